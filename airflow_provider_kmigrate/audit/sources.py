"""The sources of an audit, and its table of events (`EVENTS`), with columns for the queries and the ledger.

`row_kind` is a row's kind and, in what Spark writes, its folder in Parquet (`row_kind=delivery/…`). An event about several partitions has a
row for each, numbered by `nth`; one about none has one row. Lines that are no events are rows too, with the reason in `why`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.events.lines import BadEvent, UnknownVersion, decode, encode
from airflow_provider_kmigrate.core.events.model import Ack, Commit, DeliveryRun, Event, Heartbeat, Latencies, Ownership
from airflow_provider_kmigrate.core.shared.text import describe_hidden


class RowKind(StrEnum):
    """A row's kind."""

    DELIVERY = "delivery"
    ACK = "ack"
    COMMIT = "commit"
    CONTROL = "control"  # few, and all of them are always read: starts, stops, ownership, extents, slow acknowledgements
    SIGN = "sign"  # shows only that its writer lived: heartbeats, refused commits, latencies
    REFUSED = "refused"  # no event, kept aside
    VERSION = "version"  # of a schema that this release does not know


WHOLE_KINDS: Final = frozenset({RowKind.DELIVERY, RowKind.ACK, RowKind.COMMIT})
"""Kinds of rows whose columns hold what the ledger reads of the event."""

EVENTS: Final = pa.schema(
    [
        ("row_kind", pa.string()),
        ("writer", pa.string()),
        ("number", pa.int64()),  # event_seq
        ("nth", pa.int32()),
        ("t_ms", pa.int64()),
        ("line", pa.string()),  # of events whose columns do not hold all of them; older releases wrote it for each
        ("why", pa.string()),
        ("consumer_group", pa.string()),
        ("member", pa.string()),
        ("topic", pa.string()),
        ("part", pa.int32()),
        ("lo", pa.int64()),  # first offset; of a commit the offset
        ("hi", pa.int64()),  # last offset; of a commit the last offset before it
        ("n", pa.int64()),  # records
        ("seq", pa.int64()),  # number of the first: of the member's deliveries, or of the producer's records
        ("t_first_ms", pa.int64()),
        ("t_last_ms", pa.int64()),  # of a heartbeat its machine's clock
        ("t_sent_ms", pa.int64()),
        ("gap_ms", pa.int64()),
        ("producer", pa.string()),
        ("producer_seq", pa.int64()),
        ("generation", pa.int64()),  # of a delivery; null also in ledgers of older releases
        ("latency", pa.list_(pa.int64())),  # of a delivery: bucket, count, bucket, count ...; null: not measured
        ("wait_us", pa.int64()),  # the longest of an acknowledgement's records; null: not measured
    ]
)

Row = dict[str, Any]
_BATCH: Final = 2_000  # rows that a worker decodes together


def rows_of_line(line: str, location: str = "", position: int | None = None) -> Iterator[Row]:
    """One line as rows. `location` is put before the reason if the line is no event; `position`: of a change of ownership in its log.

    A line that is no event may be anything, a secret too: its row has its length and hash only.
    """
    try:
        event = decode(line)
    except BadEvent as error:
        data = line.encode(errors="replace")
        yield build_refused_row(
            location, describe_hidden(len(data), sha256(data).hexdigest()), str(error), isinstance(error, UnknownVersion)
        )
        return
    if position is not None and isinstance(event, Ownership):
        yield from rows_of_event(replace(event, position=position))
    else:
        yield from rows_of_event(event, line)


def build_refused_row(location: str, shown_line: str, why: str, is_version: bool = False) -> Row:
    """The row of a line that is no event of ours, as it may be shown; `is_version`: it is of an unknown version of the events."""
    row_kind = RowKind.VERSION if is_version else RowKind.REFUSED
    return {
        "row_kind": row_kind.value,
        "nth": 0,
        "line": shown_line,
        "why": f"{location}{shown_line}{': ' if shown_line else ''}{why}",
    }


def rows_of_records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Records of an events topic (topic, partition, offset, value) as batches of `EVENTS`. Runs in Spark's workers.

    The place in the topic orders changes of ownership, which is why each group's are in one partition.
    """
    for batch in batches:
        for begin in range(0, batch.num_rows, _BATCH):
            columns = (column.to_pylist() for column in batch.slice(begin, _BATCH).columns)
            rows = [
                row
                for topic, partition, offset, value in zip(*columns, strict=True)
                for row in rows_of_line((value or b"").decode(errors="replace"), f"{topic}-{partition} offset {offset} ", offset)
            ]
            yield from table_of(rows).to_batches()


def rows_of_event(event: Event, line: str | None = None) -> Iterator[Row]:
    """One event as rows; `line` is its text if available, kept if the columns do not hold the event."""
    stamp = event.stamp
    row_kind, column_sets = _kind_and_columns(event)
    has_columns = row_kind in WHOLE_KINDS or isinstance(event, Heartbeat)
    text = None if has_columns else line or encode(event)
    envelope = {"writer": stamp.writer, "number": stamp.event_seq, "t_ms": stamp.t_ms, "line": text}
    for nth, columns in enumerate(column_sets):
        yield {"row_kind": row_kind.value, "nth": nth, **envelope, **columns}


def table_of(rows: Iterable[Row]) -> pa.Table:
    """Rows as a table of `EVENTS`."""
    return pa.Table.from_pylist(list(rows), schema=EVENTS)


def _kind_and_columns(event: Event) -> tuple[RowKind, Sequence[Row]]:
    """The event's kind of row, and the columns that are not in every event, once for each partition that it is about."""
    match event:
        case DeliveryRun():
            return RowKind.DELIVERY, [_delivery_columns(event)]
        case Ack():
            return RowKind.ACK, [_ack_columns(event)]
        case Commit(ok=True, offsets=[_, *_]):
            return RowKind.COMMIT, _commit_columns(event)
        case Commit():
            return RowKind.SIGN, [{"consumer_group": event.group, "member": event.member}]
        case Heartbeat():
            return RowKind.SIGN, [{"t_last_ms": event.wall_ms}]
    return RowKind.SIGN if isinstance(event, Latencies) else RowKind.CONTROL, [{}]


def _delivery_columns(event: DeliveryRun) -> Row:
    return {
        "consumer_group": event.group,
        "member": event.member,
        "topic": event.topic,
        "part": event.partition,
        "lo": event.first,
        "hi": event.last,
        "n": event.count,
        "seq": event.seq,
        "t_first_ms": event.t_first_ms,
        "t_last_ms": event.t_last_ms,
        "t_sent_ms": event.t_sent_ms,
        "gap_ms": event.gap_ms,
        "producer": event.producer,
        "producer_seq": event.producer_seq,
        "generation": event.generation,
        "latency": list(chain.from_iterable(event.latency)) or None,
    }


def _ack_columns(event: Ack) -> Row:
    return {
        "topic": event.topic,
        "part": event.partition,
        "lo": event.first,
        "hi": event.last,
        "n": event.count,
        "seq": event.seq_first,
        "t_sent_ms": event.t_sent_ms,
        "t_last_ms": event.t_acked_ms,
        "producer": event.producer,
        "producer_seq": event.seq_first,
        "wait_us": event.latency_max_us,
    }


def _commit_columns(event: Commit) -> list[Row]:
    member_columns = {"consumer_group": event.group, "member": event.member}
    return [
        {**member_columns, "topic": topic, "part": partition, "lo": offset, "hi": offset - 1}
        for topic, partition, offset in event.offsets
    ]


@dataclass(frozen=True, slots=True)
class Source:
    """One body of evidence, judged by itself, of one `level`. All parts of it are read together.

    `lines`: files or folders of event lines (`*.jsonl`) on this machine; `store`: the folder that keeps what was read of them
    (`audit.event_store`), which the engine can read; empty: one that ends with this program. `ledgers`: folders of Parquet as `sources.EVENTS`,
    anywhere the engine can read. A group's ownership belongs into one folder, or one topic: from several its order is that of the
    members' clocks. `events`: as they are in memory.
    """

    level: Level
    lines: tuple[str, ...] = ()
    store: str = ""
    ledgers: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
