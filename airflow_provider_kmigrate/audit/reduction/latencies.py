"""How long records took: to be acknowledged, and to be delivered; of all of them, also of those that the ledger does not see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.algebra import Ints, changes, codes, column
from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.core import latency
from airflow_provider_kmigrate.core.events import Event, Latencies, SendFailure
from airflow_provider_kmigrate.core.ledger import Produce
from airflow_provider_kmigrate.core.ledger.produce import STALL_US


@dataclass(frozen=True, slots=True)
class MemberLatency:
    """From sent to delivered, in milliseconds, to within 0.8 %."""

    group: str
    member: str
    records: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float


def of_members(engine: Engine, *, single_records: bool) -> tuple[MemberLatency, ...]:
    """Each member's latencies, as far as they were noted."""
    found: dict[tuple[str, str], Ints] = {}
    if single_records:
        found.update(_of_records(engine))
    polls = engine.ask(queries.DELIVERY_LATENCIES)
    for key, rows in _by_member(polls):
        found[key] = buckets(polls["latency"].take(rows))
    return tuple(_summary(*key, pairs) for key, pairs in sorted(found.items()) if len(pairs))


def _by_member(table: pa.Table) -> Iterator[tuple[tuple[str, str], pa.Array]]:
    code = codes([table["consumer_group"], table["member"]])
    for value in np.unique(code):
        rows = np.flatnonzero(code == value)
        key = (table["consumer_group"][int(rows[0])].as_py(), table["member"][int(rows[0])].as_py())
        yield key, pa.array(rows)


def _of_records(engine: Engine) -> Iterator[tuple[tuple[str, str], Ints]]:
    names = {row["id"]: row for row in engine.ask(queries.NAMES).to_pylist() if row["kind"] == "member"}
    table = engine.ask(queries.record_latencies())
    mid, bucket = np.divmod(column(table, "bucket"), queries.LATENCY_STRIDE)
    pairs = np.stack([bucket, column(table, "n")], axis=1)
    for member in np.unique(mid):
        mine = pairs[mid == member]
        name = names[int(member)]
        yield (name["consumer_group"], name["name"]), mine[np.argsort(mine[:, 0])]


def _summary(group: str, member: str, pairs: Ints) -> MemberLatency:
    counts = tuple(map(tuple, pairs.tolist()))
    quantiles = ((latency.bucket_quantile(counts, share) or 0.0) / 1000 for share in (0.5, 0.95, 0.99, 0.999))
    return MemberLatency(group, member, int(pairs[:, 1].sum()), *quantiles)


def produce(engine: Engine, events: Iterable[Event], part: Produce) -> Produce:
    """As the ledger says it of all events. `part` is what it said of the reduced history; the slowest records are in that whole.

    Latencies come from lists where a producer wrote them, else from its acknowledgements' histograms (0.8 %).
    """
    kept = list(events)
    told = Counter[str]()
    for event in kept:
        if isinstance(event, Latencies):
            told[event.producer] += len(event.values_us)
    values = np.array([value for event in kept if isinstance(event, Latencies) for value in event.values_us], np.int64)
    acks = _once(engine.ask(queries.ACK_LATENCIES))
    untold = acks.filter(pc.invert(pc.is_in(acks["producer"], pa.array(list(told), pa.string()))))
    has_latency = pc.greater(pc.list_value_length(untold["latency"]), 0)
    rough, silent = untold.filter(has_latency), untold.filter(pc.invert(has_latency))
    exact = not rough.num_rows and not silent.num_rows and told == _owed(acks, kept)
    weighted = _weighted(values, rough)
    return replace(part, **_quantiles(*weighted), exact=exact, longest_ack_gap_ms=_longest_ack_gap(silent))


def _once(acks: pa.Table) -> pa.Table:
    """Without those that were read again."""
    _, rows = np.unique(codes([acks["writer"], acks["number"]]), return_index=True)
    return acks.take(rows)


def _owed(acks: pa.Table, events: Iterable[Event]) -> Mapping[str, int]:
    """Of each producer, how many latencies there must be."""
    totals = acks.group_by("producer").aggregate([("n", "sum")])
    owed = Counter(dict(zip(totals["producer"].to_pylist(), totals["n_sum"].to_pylist(), strict=True)))
    for event in events:
        if isinstance(event, SendFailure):
            owed[event.producer] += event.seq_last - event.seq_first + 1
    return owed


def _weighted(values: Ints, rough: pa.Table) -> tuple[Ints, Ints]:
    """Latencies and how many records had each."""
    pairs = buckets(rough["latency"])
    middles = np.array([round(latency.middle(int(bucket))) for bucket in pairs[:, 0]], np.int64)
    return np.concatenate([values, middles]), np.concatenate([np.ones(len(values), np.int64), pairs[:, 1]])


def buckets(histograms: pa.ChunkedArray) -> Ints:
    """Rows (bucket, count) of all histograms together, ascending."""
    flat = np.asarray(pc.list_flatten(histograms).to_numpy(), np.int64).reshape(-1, 2)
    bucket, at = np.unique(flat[:, 0], return_inverse=True)
    counts = np.zeros(len(bucket), np.int64)
    np.add.at(counts, at, flat[:, 1])
    return np.stack([bucket, counts], axis=1)


def _quantiles(values: Ints, weights: Ints) -> dict[str, Any]:
    order = np.argsort(values, kind="stable")
    values, upto = values[order], np.cumsum(weights[order])
    slow = values > STALL_US
    size = int(upto[-1]) if len(upto) else 0
    rank = max(1, -(-size * 9_990 // 10_000))  # nearest rank, in whole numbers as `core.latency` has it
    return {
        "records": size,
        "longest_ms": int(values[-1]) / 1000 if size else None,
        "p999_ms": int(values[np.searchsorted(upto, rank)]) / 1000 if size else None,
        "stalled_record_s": int((values * weights[order])[slow].sum()) / 1_000_000,
        "slow_records": int(weights[order][slow].sum()),
    }


def _longest_ack_gap(silent: pa.Table) -> int | None:
    """The longest time between two acknowledgements of one producer and partition."""
    if not silent.num_rows:
        return None
    pair, time = codes([silent["producer"], silent["topic"], silent["part"]]), column(silent, "t_last_ms")
    order = np.lexsort((time, pair))
    steps = np.diff(time[order])[changes(pair[order])[1:] == 0]
    return int(steps.max()) if len(steps) else None
