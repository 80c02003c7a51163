"""`kmigrate runbook G05...`: what codes mean and what to do about them, without a copy of the repository.

Without a code it prints the whole runbook, which is how docs/runbook.md is made. Ends with 0, or with 1 if a code has no entry.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import resources

from airflow_provider_kmigrate.core.reasons import ENTRIES, runbook

_ABOUT = "Print what codes mean and what to do. Without a code: the whole runbook. Exits with 1 if a code has no entry."


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate runbook", description=_ABOUT)
    parser.add_argument("codes", nargs="*", metavar="CODE", help="as a log has it, such as G05 or [G05]")
    codes = [code.strip("[]") for code in parser.parse_args(argv).codes]
    found = {code: _entry(code) for code in codes}
    for code, text in found.items():
        sys.stdout.write(f"{text}\n" if text else f"{_missing(code)}\n")
    if not codes:
        sys.stdout.write(whole())
    return 0 if all(found.values()) else 1


def whole() -> str:
    """docs/runbook.md."""
    guide = resources.files("airflow_provider_kmigrate").joinpath("runbook_guide.md").read_text(encoding="utf-8")
    return runbook(guide)


def _entry(code: str) -> str:
    """The entry of a code in upper or lower case; empty if there is none."""
    known = {each.lower(): each for each in ENTRIES}.get(code.lower())
    return ENTRIES[known].markdown() if known else ""


def _missing(code: str) -> str:
    """That a code has no entry, and which codes its letter has: a typing error, or the log of another release."""
    there = ", ".join(each for each in ENTRIES if each[0] == code[:1].upper())
    if not re.fullmatch(r"[A-Za-z]\d+[A-Za-z]?", code) or not there:
        return f"The runbook has no entry {code}. A code is a letter and a number, as the log has it in brackets: G05."
    return f"The runbook has no entry {code}. Of {code[0].upper()} it has {there}; another release's runbook may have more."
