"""A group's canary compared with its other members, from what they wrote down; `core.audit.canary_judge` decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.audit.reduction.history import Control
from airflow_provider_kmigrate.audit.reduction.latencies import buckets
from airflow_provider_kmigrate.core import latency
from airflow_provider_kmigrate.core.audit.canary_judge import judge
from airflow_provider_kmigrate.core.audit.canary_series import CanaryPlan, Life, Measured, Times, series, times, unseen
from airflow_provider_kmigrate.core.audit.verdict import CanaryVerdict, Ground, Outcome

_SHARE = 0.95
_SEED = 20_261_123  # the same events have the same verdict


def compare(
    engine: Engine, control: Control, plan: CanaryPlan, grounds: Iterable[Ground], since: int | None = None
) -> CanaryVerdict:
    """The verdict over the source that is attached. `grounds`: what the audit found in it; a FAIL about a canary decides.

    `since`: when the step began in which the canary was changed, ms since the epoch; None: not known.
    """
    lives = tuple(lives_of(engine, control, plan))
    found, broken = times(lives, plan, since), _broken(grounds, lives, plan)
    if found is None:
        return unseen(plan, broken)
    compared = series(lives, measured(engine, lives, found, plan), found, plan)
    return judge([compared], broken, plan.policy, np.random.default_rng(_SEED))


def lives_of(engine: Engine, control: Control, plan: CanaryPlan) -> Iterator[Life]:
    """The group's processes that belong to an instance. One without its start, or with a hole in its numbers, is not whole."""
    for row in engine.ask(queries.LIVES).to_pylist():
        start = control.starts.get(row["writer"])
        if start is not None and start.group == plan.group and plan.instance(row["writer"]):
            yield Life(row["writer"], row["t_lo"], row["t_hi"], whole=row["n"] == row["number_hi"] + 1)


def measured(engine: Engine, lives: Iterable[Life], found: Times, plan: CanaryPlan) -> Measured:
    """Records and the 95th percentile of how late they came, in milliseconds."""
    engine.attach("writers", [pa.table({"writer": [life.writer for life in lives]})])
    table = engine.ask(queries.LATENESS)
    cells: dict[tuple[str, int], list[int]] = {}
    for at, (writer, t_ms) in enumerate(zip(table["writer"].to_pylist(), table["t_last_ms"].to_pylist(), strict=True)):
        instance, begin = plan.instance(writer), found.begin_of(t_ms)
        if instance is not None and begin is not None:
            cells.setdefault((instance, begin), []).append(at)
    return {key: _cell(table.take(rows)) for key, rows in cells.items()}


def _cell(rows: pa.Table) -> tuple[int, float | None]:
    counts = tuple(map(tuple, buckets(rows["latency"]).tolist()))
    late = latency.bucket_quantile(counts, _SHARE)
    return sum(rows["n"].to_pylist()), None if late is None else late / 1000


def _broken(grounds: Iterable[Ground], lives: Iterable[Life], plan: CanaryPlan) -> list[Ground]:
    """What fails, and names a process of a canary."""
    theirs = {life.writer for life in lives if plan.instance(life.writer) in plan.canaries}
    failed = (ground for ground in grounds if ground.outcome is Outcome.FAIL)
    return [ground for ground in failed if any(theirs.intersection(case.members) for case in ground.examples)]
