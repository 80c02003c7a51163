"""Latencies of records until acknowledgement and delivery: histograms that are added up where the events are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.core import events
from airflow_provider_kmigrate.core.ledger.ownership import AckTimes

Ints = npt.NDArray[np.int64]
_ANSWER: Final = pa.schema([("producer", pa.string()), ("bucket", pa.int64()), ("n", pa.int64())])


def of_producers(engine: Engine, *, repeated: bool) -> dict[str, AckTimes]:
    """All acknowledgements as the ledger needs them. `repeated`: some events were read more than once."""
    records = engine.ask(queries.acked_records(once=repeated)).to_pylist()
    gaps = {row["producer"]: row["ms"] for row in engine.ask(queries.ack_gaps(once=repeated)).to_pylist()}
    counts = _histograms(engine, queries.ack_latencies(once=repeated))
    names = ((row["producer"], row["n"]) for row in records)
    return {name: AckTimes(n, counts.get(name, ()), gaps.get(name)) for name, n in names}


def _histograms(engine: Engine, question: str) -> dict[str, events.Histogram]:
    """The histogram of each producer."""
    table = _added(engine.map(question, _add_batches, _ANSWER))
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for name, bucket, n in zip(*(column.to_pylist() for column in table.columns), strict=True):
        found[name].append((bucket, n))
    return {name: tuple(sorted(pairs)) for name, pairs in found.items()}


def _add_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Histograms of the same producer added up, a batch at a time. Runs in Spark's workers."""
    for batch in batches:
        pairs = np.asarray(pc.list_flatten(batch["latency"]).to_numpy(), np.int64)
        names = batch["producer"].take(pc.list_parent_indices(batch["latency"])[::2])
        rows = pa.table({"producer": names, "bucket": pairs[::2], "n": pairs[1::2]}, schema=_ANSWER)
        yield from _added(rows).cast(_ANSWER).to_batches()


def _added(rows: pa.Table) -> pa.Table:
    names = ["producer", "bucket"]
    return rows.group_by(names).aggregate([("n", "sum")]).select([*names, "n_sum"]).rename_columns([*names, "n"])


def buckets(histograms: pa.ChunkedArray) -> Ints:
    """Rows (bucket, count) of all histograms together, ascending."""
    flat = np.asarray(pc.list_flatten(histograms).to_numpy(), np.int64).reshape(-1, 2)
    bucket, at = np.unique(flat[:, 0], return_inverse=True)
    counts = np.zeros(len(bucket), np.int64)
    np.add.at(counts, at, flat[:, 1])
    return np.stack([bucket, counts], axis=1)
