"""`python -m benchmarks [NAME [ARGUMENT ...]]`: every benchmark, or one; each leaves build/bench/<name>.json.

Exit code 1: one of the figures that a benchmark lists in `MUST_BE_ZERO` is not, or is missing.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

NAMES = (
    "overhead",
    "restart",
    "rollback",
    "finalization",
    "preflight",
    "audit",
    "assignment",
    "groups_scan",
    "coordinator",
    "readiness",
    "handover",
    "cutover",
    "canary",
    "triggers",
    "parse",
    "machines",
    "gate",
    "rollback_faults",
    "hostile",
    "door",
    "renderings",
    "plan",
    "predictions",
    "interceptor",
)
BUILD = Path("build/bench")


def run(name: str, arguments: list[str]) -> list[str]:
    """What must not be and was seen, each with its figure."""
    began = time.monotonic()
    module = importlib.import_module(f"benchmarks.{name}")
    figures = module.main(arguments, BUILD)
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / f"{name}.json"
    path.write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures, indent=1))
    print(f"{name}: {time.monotonic() - began:.0f} s; figures in {path}")
    return wrong(name, figures, getattr(module, "MUST_BE_ZERO", ()))


def wrong(name: str, figures: Mapping[str, object], zero: Iterable[str]) -> list[str]:
    """Which of these figures are not zero, or not there; None: that part was not asked for."""
    found = {key: figures.get(key, "missing") for key in zero}
    return [f"{name}: {key} is {figure}" for key, figure in found.items() if figure]


def main() -> int:
    """Run the named benchmark, or all; returns the exit code."""
    name, *arguments = sys.argv[1:] or ["all"]
    if name in {"-h", "--help"}:
        print(f"{__doc__}\nThere are: {', '.join(NAMES)}")
        return 0
    if name != "all" and name not in NAMES:
        print(f"There is no benchmark {name!r}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    found = [text for each in (NAMES if name == "all" else (name,)) for text in run(each, arguments)]
    for text in found:
        print(text, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
