"""`kmigrate runbook G05...`: what codes mean and what to do about them, without a copy of the repository; `kmigrate runbook dual-write` finds entries by words.

Without a code it prints the whole runbook, which is how docs/runbook.md is made. Ends with 0, or with 1 if a code or a word has no entry.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import resources

from airflow_provider_kmigrate.core.reasons import ENTRIES, runbook

_ABOUT = (
    "Print what codes mean and what to do, or which entries have all of the words. Without a code: the whole runbook. "
    "Exits with 1 if a code or the words have no entry."
)
_CODE = re.compile(r"\[?([A-Za-z])(\d+)([A-Za-z]?)\]?")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate runbook", description=_ABOUT)
    parser.add_argument("codes", nargs="*", metavar="CODE", help="as a log has it, such as G05 or [G05]; or words")
    asked = parser.parse_args(argv).codes
    if not asked:
        sys.stdout.write(render_runbook())
    codes, words = [each for each in asked if _CODE.fullmatch(each)], [each for each in asked if not _CODE.fullmatch(each)]
    entries = {code: _find_entry(code) for code in codes}
    for code, text in entries.items():
        sys.stdout.write(f"{text}\n" if text else f"{_describe_missing(code)}\n")
    titles = _find_titles(words) if words else []
    if words:
        missing = f"The runbook has no entry with {' '.join(words)}. A code is a letter and a number, as the log has it in brackets: G05."
        sys.stdout.write("".join(f"{title}\n" for title in titles) or f"{missing}\n")
    return 0 if all(entries.values()) and bool(titles) == bool(words) else 1


def render_runbook() -> str:
    """docs/runbook.md."""
    guide = resources.files("airflow_provider_kmigrate").joinpath("runbook_guide.md").read_text(encoding="utf-8")
    return runbook(guide)


def _find_entry(code: str) -> str:
    """The entry of a code in upper or lower case, with or without zeros, as text for a terminal; empty if there is none."""
    entry_code = {_normalize(known_code): known_code for known_code in ENTRIES}.get(_normalize(code))
    return _without_anchors(ENTRIES[entry_code].markdown()) if entry_code else ""


def _normalize(code: str) -> tuple[str, int, str]:
    letter, number, more = _CODE.fullmatch(code).groups()  # type: ignore[union-attr]  # it is a code
    return letter.upper(), int(number), more.lower()


def _without_anchors(markdown: str) -> str:
    """No anchors, and of a link into the runbook its words: a terminal follows neither."""
    return re.sub(r"\[([^\]]+)\]\(#[^)]*\)", r"\1", re.sub(r'<a id="[^"]*"></a>\n*', "", markdown))


def _find_titles(words: Sequence[str]) -> list[str]:
    """The titles of the entries that have all words, those first that have them in the title."""
    wanted = [word.lower() for word in words]
    found = []
    for entry in ENTRIES.values():
        text = _without_anchors(entry.markdown())
        title = text.lstrip("# ").splitlines()[0]
        if all(word in text.lower() for word in wanted):
            found.append((not all(word in title.lower() for word in wanted), title))
    return [title for _, title in sorted(found)]


def _describe_missing(code: str) -> str:
    """That a code has no entry, and which codes its letter has: a typing error, or the log of another release."""
    shown = code.strip("[]")
    known_codes = ", ".join(known_code for known_code in ENTRIES if known_code[0] == shown[0].upper())
    return (
        f"The runbook has no entry {shown}. Of {shown[0].upper()} it has {known_codes}; another release's runbook may have more."
    )
