"""`python -m benchmarks [NAME [ARGUMENT ...]]`: every benchmark, or one; each leaves build/bench/<name>.json."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

NAMES = ("overhead", "rollback", "preflight", "audit", "assignment", "groups_scan", "handover", "canary")
BUILD = Path("build/bench")


def run(name: str, arguments: list[str]) -> None:
    began = time.monotonic()
    figures = importlib.import_module(f"benchmarks.{name}").main(arguments, BUILD)
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / f"{name}.json"
    path.write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures, indent=1))
    print(f"{name}: {time.monotonic() - began:.0f} s; figures in {path}")


def main() -> int:
    name, *arguments = sys.argv[1:] or ["all"]
    if name != "all" and name not in NAMES:
        print(f"There is no benchmark {name!r}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for each in NAMES if name == "all" else (name,):
        run(each, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
