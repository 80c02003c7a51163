"""The trials of `benchmarks.canary` over the events of a run, in the audit's environment: `python -m benchmarks.canary_trials EVENTS GROUP MEMBERS`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.audit.canary import measure_latencies, processes_of
from airflow_provider_kmigrate.audit.event_store import read_source
from airflow_provider_kmigrate.audit.judge import ControlEvents
from airflow_provider_kmigrate.audit.settling import open_evidence
from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.core.audit.canary import (
    HISTORY,
    CanaryPlan,
    CanaryTimes,
    Measured,
    ProcessSpan,
    build_series,
    judge_canary,
)
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, Level
from tests.kit.duckdb_engine import DuckDBEngine

INTERVAL_MS, STEP_MS = 2_000, 10_000
WINDOW = 40
PLANTED = (1.0, 1.5, 2.0, 3.0)
_BEFORE = HISTORY * WINDOW


def judged(events: Path, group: str, members: int) -> dict[str, Any]:
    """Outcomes by what was planted."""
    names = tuple(f"{group}.{n}" for n in range(members))
    plan = CanaryPlan(group, names[0], names[1:], interval_ms=INTERVAL_MS, window=WINDOW)
    with DuckDBEngine(threads=2) as engine:
        open_evidence(engine, read_source(Source(Level.CONSUMER, lines=(str(events),))))
        processes = tuple(processes_of(engine, ControlEvents.read(engine), plan))
        first, last = max(span.start_ms for span in processes) + 20_000, min(span.last_ms for span in processes)
        cells = measure_latencies(
            engine, processes, CanaryTimes(INTERVAL_MS, first, first, 0, (last - first) // INTERVAL_MS), plan
        )
    moments = range(first + _BEFORE * INTERVAL_MS, last - WINDOW * INTERVAL_MS + 1, STEP_MS)
    found = {f"{factor:g}": Counter(_trials(processes, cells, moments, plan, factor)) for factor in PLANTED}
    late = sorted(value for _, value in cells.values() if value is not None)
    return {
        "members": members,
        "seconds": (last - first) // 1000,
        "intervals": len(cells),
        "p95_ms": {"median": late[len(late) // 2], "highest": late[-1]},
        "trials": sum(found["1"].values()),
        "outcomes": {
            factor: {str(outcome): count for outcome, count in sorted(counts.items())} for factor, counts in found.items()
        },
    }


def _trials(
    processes: Sequence[ProcessSpan], cells: Measured, moments: Iterable[int], plan: CanaryPlan, factor: float
) -> Iterator[AuditOutcome]:
    for changed in moments:
        times = CanaryTimes(INTERVAL_MS, changed, changed, _BEFORE, WINDOW)
        for name in plan.members:
            trial = replace(plan, canary=name, baseline=tuple(one for one in plan.members if one != name))
            made = build_series(processes, _planted(cells, name, changed, factor), times, trial)
            yield judge_canary(made, [], trial).outcome


def _planted(cells: Measured, name: str, changed: int, factor: float) -> Measured:
    return {
        (member, begin): (records, value * factor if value is not None and member == name and begin >= changed else value)
        for (member, begin), (records, value) in cells.items()
    }


if __name__ == "__main__":
    print(json.dumps(judged(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
