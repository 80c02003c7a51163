"""The columns of `sources.EVENTS` become the events of one partition again, and the ledger checks them: in Spark's workers, a partition at a time.

Executors have only this package's `core` and `audit` (`spark_calls.ship_package`), so this module imports no client.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from airflow_provider_kmigrate.audit.sources import RowKind
from airflow_provider_kmigrate.core.events.model import (
    Ack,
    Commit,
    DeliveryRun,
    Event,
    Heartbeat,
    Position,
    Stamp,
    TopicPartition,
)
from airflow_provider_kmigrate.core.ledger.book import AcceptedCommit, PartitionEvents
from airflow_provider_kmigrate.core.ledger.partition import CheckContext, check_partition

CHECKED: Final = pa.schema([("checked", pa.binary())])
"""A pickled `PartitionChecked`."""
_DELIVERY, _ACK = RowKind.DELIVERY.value, RowKind.ACK.value


def check_rows(context: CheckContext, rows: pa.Table) -> pa.Table:
    """Check all rows of one partition, as `queries.EVENTS_OF` has them, into one row. Runs in Spark's workers."""
    return pa.table({"checked": [pickle.dumps(check_partition(build_partition_events(rows), context))]}, schema=CHECKED)


_COLUMNS: Final = (
    *("row_kind", "writer", "number", "t_ms", "consumer_group", "member", "lo", "hi", "n", "seq"),
    *("t_first_ms", "t_last_ms", "t_sent_ms", "gap_ms", "producer", "producer_seq", "generation", "wait_us"),
)
_Row = tuple[Any, ...]


def build_partition_events(rows: pa.Table) -> PartitionEvents:
    """The events of one partition, without what the ledger ignores: latencies in buckets, and generations of commits."""
    part = PartitionEvents(TopicPartition(rows["topic"][0].as_py(), rows["part"][0].as_py()))
    for row in _without_repeats(list(zip(*(rows[name].to_pylist() for name in _COLUMNS), strict=True))):
        _file_row(part, row)
    return part


def _without_repeats(rows: list[_Row]) -> Iterable[_Row]:
    """One of two rows with the same number of one writer: the same one, in any order of the rows."""
    if len({row[1:3] for row in rows}) == len(rows):
        return rows
    unique_rows: dict[_Row, _Row] = {}
    for row in sorted(rows, key=repr):
        unique_rows.setdefault(row[1:3], row)
    return unique_rows.values()


def _file_row(part: PartitionEvents, row: _Row) -> None:
    event = _build_event(part.where, row)
    if isinstance(event, DeliveryRun):
        part.runs[event.group].append(event)
    elif isinstance(event, Ack):
        part.acks.append(event)
    elif isinstance(event, Commit):
        part.commits[event.group].append(AcceptedCommit(event.stamp.t_ms, event.offsets[0].offset))


def _build_event(where: TopicPartition, row: _Row) -> Event:
    row_kind, writer, number, t_ms, group, member, lo, hi, n, seq, *rest = row
    t_first, t_last, t_sent, gap, producer, producer_seq, generation, wait_us = rest
    stamp = Stamp(writer, number, t_ms)
    if row_kind == _DELIVERY:
        delivery_fields = (t_first, t_last, t_sent, gap, producer, producer_seq)
        return DeliveryRun(stamp, group, member, generation, *where, lo, hi, n, seq, *delivery_fields)
    if row_kind == _ACK:
        return Ack(stamp, producer, *where, lo, hi, n, seq, seq + n - 1, t_sent, t_last, wait_us)
    if row_kind == RowKind.COMMIT:
        return Commit(stamp, group, member, None, (Position(*where, lo),), ok=True)
    return Heartbeat(stamp, t_last)
