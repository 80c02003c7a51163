"""What every code means, is it safe meanwhile, what to do, what never to do: the one place that says so.

Log lines, JSON reports, task pages and docs/runbook.md are made from these entries; the rest of the package gives a code
and what it observed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_provider_kmigrate.core.reasons import audit, cluster, groups, nodes, preflight
from airflow_provider_kmigrate.core.reasons.entry import Area, AuditCause, RunbookEntry

_PARTS = (cluster, nodes, preflight, groups, audit)
_LINK = re.compile(r"(?<!`)\[([A-Z]\d{1,2}[a-z]?)\](?!\()")
_COMMAND = "kmigrate runbook"


def _place(entry: RunbookEntry) -> tuple[str, int, str]:
    return entry.code[0], int(re.sub(r"\D", "", entry.code)), entry.code


AREAS: tuple[Area, ...] = tuple(sorted((area for part in _PARTS for area in part.AREAS), key=lambda area: area.letter))
ENTRIES: Mapping[str, RunbookEntry] = {
    entry.code: entry for entry in sorted((entry for part in _PARTS for entry in part.ENTRIES), key=_place)
}

CODE_OF: Mapping[AuditCause, str] = {cause: entry.code for entry in ENTRIES.values() for cause in entry.causes}


def links(text: str, url: str) -> tuple[str, ...]:
    """Where to read the entries of the codes that a text names in brackets, in its order.

    `url`: of the runbook; empty: the command that prints an entry.
    """
    codes = dict.fromkeys(code for code in _LINK.findall(text) if code in ENTRIES)
    return tuple(f"{url}#{code.lower()}" if url else f"{_COMMAND} {code}" for code in codes)


def runbook(guide: str) -> str:
    """The whole runbook as Markdown: the hand-written `guide` with its codes linked, the letters, every entry."""
    linked = _LINK.sub(lambda found: f"[{found[1]}](#{found[1].lower()})", guide)
    rows = "\n".join(f"| [{area.letter}](#{area.anchor}) | {area.about} | {area.when} |" for area in AREAS)
    letters = f"## The letters\n\n| letter | about | when |\n| --- | --- | --- |\n{rows}\n"
    return "\n".join((linked.rstrip() + "\n", letters, *(_area(area) for area in AREAS)))


def _area(area: Area) -> str:
    own = (each.markdown() for each in ENTRIES.values() if each.code[0] == area.letter)
    return "\n".join((area.markdown(), *own))
