"""How long tasks took, from the journals of runs: what a plan predicts from. No decision is based on it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from airflow_provider_kmigrate.core.migration.durations import Work
from airflow_provider_kmigrate.core.monitoring.journal_lines import ASKED, JournalLine

_OF_NODES: Final = {
    Work.RESTART: re.compile(r"(?:roll back )?broker \d+ to "),
    Work.PROVISION: re.compile(r"provision controller \d+"),
    Work.FINALIZE: re.compile(r"finalize controller \d+"),
}
_CHECKS: Final = frozenset(
    {
        "controllers ready",
        "preferred leaders",
        "all brokers registered",
        "migration phase",
        "dual-write lag",
        "metadata equivalence",
    }
)
_ANSWERS: Final = frozenset({ASKED, "approval"})
_LONGEST_LEAD_MS: Final = 300_000
"""What stands longer before an act waited for a person, a window, others' work or the next run: it is left out."""


def list_task_seconds(lines: Iterable[JournalLine]) -> dict[Work, list[float]]:
    """Seconds of each task that ended, oldest first, from the end of the task before it in its run, or from a person's answer.

    A node's task counts only if it acted: one that was skipped in its place changed nothing.
    """
    seconds: dict[Work, list[float]] = {work: [] for work in Work}
    ends: dict[str, int] = {}  # run -> when its last task ended
    acts: dict[tuple[str, str], int] = {}  # (run, step) -> when its first act began
    for line in lines:
        if line.kind == "act":
            acts.setdefault((line.run, line.step), line.at_ms)
        elif line.kind in _ANSWERS:
            ends[line.run] = line.at_ms
        elif line.kind == "done":
            acted_at = acts.pop((line.run, line.step), None)
            began = _find_beginning(line, ends.get(line.run), acted_at)
            ends[line.run] = line.at_ms
            work = _work_of(line.step, has_acted=acted_at is not None)
            if work is not None:
                seconds[work].append(max(0, line.at_ms - began) / 1000)
    return seconds


def _find_beginning(line: JournalLine, last_end: int | None, acted_at: int | None) -> int:
    first = line.began_ms if acted_at is None else acted_at
    return first if last_end is None or first - last_end > _LONGEST_LEAD_MS else min(first, last_end)


def _work_of(step: str, *, has_acted: bool) -> Work | None:
    if step == "metadata copy":
        return Work.COPY
    if step in _CHECKS:
        return Work.CHECK
    return next((work for work, pattern in _OF_NODES.items() if has_acted and pattern.match(step)), None)
