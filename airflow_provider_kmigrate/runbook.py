"""`python -m airflow_provider_kmigrate.runbook G05...`: what codes mean and what to do about them, where no repository is at hand.

Without a code it prints the whole runbook. Ends with 0, or with 1 where a code has no entry.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import resources

_ASKED = "What codes mean and what to do about them. Without a code: the whole runbook. Ends with 1 where a code has no entry."
_NEXT = re.compile(r"^#{2,3} ", re.MULTILINE)
_CODE = re.compile(r"^### ([A-Z]\d{1,2}[a-z]?) ", re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_kmigrate.runbook", description=_ASKED)
    parser.add_argument("codes", nargs="*", metavar="CODE", help="as a log has it, such as G05 or [G05]")
    codes = [code.strip("[]") for code in parser.parse_args(argv).codes]
    text = resources.files("airflow_provider_kmigrate").joinpath("runbook.md").read_text(encoding="utf-8")
    found = {code: entry(text, code) for code in codes}
    for code, told in found.items():
        sys.stdout.write(f"{told.rstrip()}\n\n" if told else f"{_missing(text, code)}\n")
    if not codes:
        sys.stdout.write(text)
    return 0 if all(found.values()) else 1


def _missing(text: str, code: str) -> str:
    """That there is none, and which there are of that letter: a slip of the pen, or a log of another release."""
    there = ", ".join(each for each in _CODE.findall(text) if each[0] == code[:1].upper())
    if not re.fullmatch(r"[A-Za-z]\d+[A-Za-z]?", code) or not there:
        return f"The runbook has no entry {code}. A code is a letter and a number, as the log has it in brackets: G05."
    return f"The runbook has no entry {code}. Of {code[0].upper()} it has {there}; another release's runbook may have more."


def entry(text: str, code: str) -> str:
    """The runbook's entry of a code in any case, with its heading; empty where there is none."""
    head = re.search(rf"^### {re.escape(code)} ", text, re.MULTILINE | re.IGNORECASE)
    if head is None:
        return ""
    end = _NEXT.search(text, head.end())
    return text[head.start() : end.start() if end else len(text)]


if __name__ == "__main__":
    sys.exit(main())
