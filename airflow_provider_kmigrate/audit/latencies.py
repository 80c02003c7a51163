"""Latencies of records until acknowledgement and delivery: histograms that are added up where the events are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.core import events
from airflow_provider_kmigrate.core.ledger.ownership import AckTimes

Ints = npt.NDArray[np.int64]
_MEMBER: Final = ("consumer_group", "member")
_PRODUCER: Final = ("producer",)


@dataclass(frozen=True, slots=True)
class MemberLatency:
    """A member's latencies from sent to delivered, in milliseconds, to within 0.8 %."""

    group: str
    member: str
    records: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float


def of_members(engine: Engine) -> tuple[MemberLatency, ...]:
    """Each member's latencies, as far as they were recorded."""
    found = _histograms(engine, queries.DELIVERY_LATENCIES, _MEMBER)
    return tuple(_summary(group, member, counts) for (group, member), counts in sorted(found.items()))


def _summary(group: str, member: str, counts: events.Histogram) -> MemberLatency:
    quantiles = ((events.bucket_quantile(counts, share) or 0.0) / 1000 for share in (0.5, 0.95, 0.99, 0.999))
    return MemberLatency(group, member, sum(count for _, count in counts), *quantiles)


def of_producers(engine: Engine, *, repeated: bool) -> dict[str, AckTimes]:
    """All acknowledgements as the ledger needs them. `repeated`: some events were read more than once."""
    records = engine.ask(queries.acked_records(once=repeated)).to_pylist()
    gaps = {row["producer"]: row["ms"] for row in engine.ask(queries.ack_gaps(once=repeated)).to_pylist()}
    counts = _histograms(engine, queries.ack_latencies(once=repeated), _PRODUCER)
    names = ((row["producer"], row["n"]) for row in records)
    return {name: AckTimes(n, counts.get((name,), ()), gaps.get(name)) for name, n in names}


def _histograms(engine: Engine, question: str, keys: tuple[str, ...]) -> dict[tuple[str, ...], events.Histogram]:
    """The histogram of each key."""
    answer = pa.schema([(name, pa.string()) for name in keys] + [("bucket", pa.int64()), ("n", pa.int64())])
    table = _added(engine.map(question, partial(_add_batches, keys, answer), answer), keys)
    found: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for *key, bucket, n in zip(*(table[name].to_pylist() for name in (*keys, "bucket", "n")), strict=True):
        found[tuple(key)].append((bucket, n))
    return {key: tuple(sorted(pairs)) for key, pairs in found.items()}


def _add_batches(keys: tuple[str, ...], answer: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Histograms of the same key added up, a batch at a time. Runs in Spark's workers."""
    for batch in batches:
        pairs = np.asarray(pc.list_flatten(batch["latency"]).to_numpy(), np.int64)
        row = pc.list_parent_indices(batch["latency"])[::2]
        columns: dict[str, Any] = {name: batch[name].take(row) for name in keys}
        rows = pa.table(columns | {"bucket": pairs[::2], "n": pairs[1::2]}, schema=answer)
        yield from _added(rows, keys).cast(answer).to_batches()


def _added(rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    names = [*keys, "bucket"]
    return rows.group_by(names).aggregate([("n", "sum")]).select([*names, "n_sum"]).rename_columns([*names, "n"])


def buckets(histograms: pa.ChunkedArray) -> Ints:
    """Rows (bucket, count) of all histograms together, ascending."""
    flat = np.asarray(pc.list_flatten(histograms).to_numpy(), np.int64).reshape(-1, 2)
    bucket, at = np.unique(flat[:, 0], return_inverse=True)
    counts = np.zeros(len(bucket), np.int64)
    np.add.at(counts, at, flat[:, 1])
    return np.stack([bucket, counts], axis=1)
