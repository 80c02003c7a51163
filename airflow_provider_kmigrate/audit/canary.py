"""The measurements by which a group's canary is judged, from its members' events; `core.audit.canary` decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.judge import ControlEvents
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.core.audit.canary import (
    CanaryPlan,
    CanaryTimes,
    Measured,
    ProcessSpan,
    build_series,
    find_canary_times,
    judge_canary,
    judge_unobserved_canary,
)
from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditOutcome, CanaryVerdict
from airflow_provider_kmigrate.core.events import model as events

_SHARE = 0.95


def compare(
    engine: Engine, control: ControlEvents, plan: CanaryPlan, findings: Iterable[AuditFinding], since: int | None = None
) -> CanaryVerdict:
    """The verdict over the attached source. `findings`: the audit's findings in it; a FAIL about the canary decides.

    `since`: start of the step that changed the canary, ms since the epoch; None: unknown.
    """
    processes = tuple(processes_of(engine, control, plan))
    canary_times, canary_failures = find_canary_times(processes, plan, since), _find_canary_failures(findings, processes, plan)
    if canary_times is None:
        return judge_unobserved_canary(plan, canary_failures)
    return judge_canary(
        build_series(processes, measure_latencies(engine, processes, canary_times, plan), canary_times, plan),
        canary_failures,
        plan,
    )


def processes_of(engine: Engine, control: ControlEvents, plan: CanaryPlan) -> Iterator[ProcessSpan]:
    """The group's processes that belong to an instance. One without its start, or with a gap in its numbers, is not whole."""
    for row in engine.ask(queries.WRITERS).to_pylist():
        start = control.starts.get(row["writer"])
        if start is not None and start.group == plan.group and plan.instance_of(row["writer"]):
            yield ProcessSpan(row["writer"], row["t_lo"], row["t_hi"], whole=row["numbers"] == row["last"] + 1)


def measure_latencies(engine: Engine, processes: Iterable[ProcessSpan], canary_times: CanaryTimes, plan: CanaryPlan) -> Measured:
    """Records and the 95th percentile of their delay, in milliseconds."""
    engine.attach("writers", [pa.table({"writer": [span.writer for span in processes]})])
    table = engine.ask(queries.LATENESS)
    cells: dict[tuple[str, int], list[int]] = {}
    for at, (writer, t_ms) in enumerate(zip(table["writer"].to_pylist(), table["t_last_ms"].to_pylist(), strict=True)):
        instance, begin = plan.instance_of(writer), canary_times.find_interval_start(t_ms)
        if instance is not None and begin is not None:
            cells.setdefault((instance, begin), []).append(at)
    return {key: _summarize_interval(table.take(rows)) for key, rows in cells.items()}


def _summarize_interval(rows: pa.Table) -> tuple[int, float | None]:
    counts = events.merge_histograms(tuple(zip(row[::2], row[1::2], strict=True)) for row in rows["latency"].to_pylist() if row)
    latency_us = events.bucket_quantile(counts, _SHARE)
    return sum(rows["n"].to_pylist()), None if latency_us is None else latency_us / 1000


def _find_canary_failures(
    findings: Iterable[AuditFinding], processes: Iterable[ProcessSpan], plan: CanaryPlan
) -> list[AuditFinding]:
    """Failing grounds that name a process of the canary."""
    canary_writers = {span.writer for span in processes if plan.instance_of(span.writer) == plan.canary}
    failed = (finding for finding in findings if finding.outcome is AuditOutcome.FAIL)
    return [finding for finding in failed if any(canary_writers.intersection(case.members) for case in finding.examples)]
