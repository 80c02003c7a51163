"""`python -m airflow_provider_kmigrate.runbook G05...`: what codes mean and what to do about them, where no repository is at hand.

Without a code it prints the whole runbook. Ends with 0, or with 1 where a code has no entry.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import resources

_NEXT = re.compile(r"^#{2,3} ", re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    codes = [code.strip("[]") for code in (sys.argv[1:] if argv is None else argv)]
    text = resources.files("airflow_provider_kmigrate").joinpath("runbook.md").read_text(encoding="utf-8")
    found = {code: entry(text, code) for code in codes}
    for code, told in found.items():
        sys.stdout.write(f"{told.rstrip()}\n\n" if told else f"The runbook has no entry {code}.\n")
    if not codes:
        sys.stdout.write(text)
    return 0 if all(found.values()) else 1


def entry(text: str, code: str) -> str:
    """The runbook's entry of a code, with its heading; empty where there is none."""
    head = re.search(rf"^### {re.escape(code)} ", text, re.MULTILINE)
    if head is None:
        return ""
    end = _NEXT.search(text, head.end())
    return text[head.start() : end.start() if end else len(text)]


if __name__ == "__main__":
    sys.exit(main())
