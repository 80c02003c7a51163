"""How long tasks took, from the journals of runs: what a plan predicts from. No decision is based on it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from airflow_provider_kmigrate.core.migration.durations import Work
from airflow_provider_kmigrate.core.monitoring.journal_lines import ASKED, OBSERVATIONS, BakeFilter, JournalLine

_OF_NODES: Final = {
    Work.RESTART: re.compile(r"(?:roll back )?broker \d+ to "),
    Work.PROVISION: re.compile(r"provision controller \d+"),
    Work.FINALIZE: re.compile(r"finalize controller \d+"),
}
_OF_CLUSTER: Final = {"metadata copy": Work.COPY, "controllers ready": Work.READY}
_CHECKS: Final = frozenset(
    {
        "preferred leaders",
        "all brokers registered",
        "migration phase",
        "dual-write lag",
        "metadata equivalence",
    }
)
_ANSWERS: Final = frozenset({ASKED, "approval"})
_LONGEST_LEAD_MS: Final = 300_000
"""What stands longer before an act waited for an approver, a window, others' work or the next run: it is left out."""
_LONGEST_LEAD_OF_A_PASS_MS: Final = 30_000
"""The same behind work of another kind, where audits and fingerprints stand that no journal names: of minutes, once a pass, where a restart takes seconds."""


class _TaskEnd(NamedTuple):
    """When a task ended, ms since the epoch, and its work; None: of another kind, or an approver's answer."""

    at_ms: int
    work: Work | None


def list_task_seconds(lines: Iterable[JournalLine], bake: float) -> dict[Work, list[float]]:
    """Seconds of each task that ended, oldest first, from the end of the task before it in its run, or from an approver's answer.

    Of each work only those of the newest run that has any: machines, their load and logs change between two runs, so a run that has measured
    some goes by its own. A node's task counts only if it acted: one that was skipped in its place changed nothing, and the wait for the
    controllers only behind such a start. `bake`: see `BakeFilter`.
    """
    seconds: dict[Work, list[float]] = {work: [] for work in Work}
    runs: dict[Work, str] = {}  # the newest run that has done such work
    ends: dict[str, _TaskEnd] = {}  # run -> its last task's
    acts: dict[tuple[str, str], int] = {}  # (run, step) -> when its first act began
    bakes, last_run = BakeFilter(bake), OBSERVATIONS  # last_run: that acted
    for line in lines:
        run = last_run if line.run == OBSERVATIONS else line.run
        if line.kind == "act":
            last_run = run
            acts.setdefault((run, line.step), line.at_ms)
        elif line.kind in _ANSWERS:
            ends[run] = _TaskEnd(line.at_ms, None)
        elif line.kind == "done":
            acted_at = acts.pop((run, line.step), None)
            work = _work_of(line.step, has_acted=acted_at is not None)
            began = _find_beginning(line.began_ms if acted_at is None else acted_at, work, ends.get(run))
            ends[run] = _TaskEnd(line.at_ms, work)
            if work is None or (work is Work.READY and runs.get(Work.PROVISION) != run):
                continue
            if runs.setdefault(work, run) != run:
                runs[work], seconds[work] = run, []
            seconds[work].append(bakes.remove_bake(run, line.step, max(0, line.at_ms - began) / 1000))
    return seconds


def _find_beginning(first_ms: int, work: Work | None, last: _TaskEnd | None) -> int:
    if last is None:
        return first_ms
    longest = _LONGEST_LEAD_MS if last.work is work else _LONGEST_LEAD_OF_A_PASS_MS
    return first_ms if first_ms - last.at_ms > longest else min(first_ms, last.at_ms)


def _work_of(step: str, *, has_acted: bool) -> Work | None:
    if step in _OF_CLUSTER:
        return _OF_CLUSTER[step]
    if step in _CHECKS:
        return Work.CHECK
    return next((work for work, pattern in _OF_NODES.items() if has_acted and pattern.match(step)), None)
