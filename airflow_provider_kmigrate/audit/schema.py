"""The audit's table of events (`EVENTS`): every line as it was written, with the columns for the queries and the ledger.

`row_kind` is a row's kind and its folder in Parquet (`row_kind=delivery/…`). An event about several partitions has a row for each,
numbered by `nth`; one about none has one row. Lines that are no events are rows too, with the reason in `why`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from airflow_provider_kmigrate.core.event_lines import BadEvent, UnknownVersion, decode, encode
from airflow_provider_kmigrate.core.events import Ack, Commit, DeliveryRun, Event, Heartbeat, Latencies


class RowKind(StrEnum):
    """A row's kind."""

    DELIVERY = "delivery"
    ACK = "ack"
    COMMIT = "commit"
    CONTROL = "control"  # few, and all of them are always read: starts, stops, ownership, extents, slow acknowledgements
    SIGN = "sign"  # shows only that its writer lived: heartbeats, refused commits, latencies
    REFUSED = "refused"  # no event, kept aside
    VERSION = "version"  # of a schema that this release does not know


EVENTS: Final = pa.schema(
    [
        ("row_kind", pa.string()),
        ("writer", pa.string()),
        ("number", pa.int64()),  # event_seq
        ("nth", pa.int32()),
        ("t_ms", pa.int64()),
        ("line", pa.string()),
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


def rows_of_line(line: str, place: str = "") -> Iterator[Row]:
    """One line as rows. `place` is put before the reason if the line is no event."""
    try:
        event = decode(line)
    except BadEvent as error:
        row_kind = RowKind.VERSION if isinstance(error, UnknownVersion) else RowKind.REFUSED
        yield {"row_kind": row_kind.value, "nth": 0, "line": line, "why": f"{place}{line[:80]!r}: {error}"}
        return
    yield from rows_of(event, line)


def rows_of(event: Event, line: str | None = None) -> Iterator[Row]:
    """One event as rows; `line` is its text if available."""
    stamp = event.stamp
    row_kind, places = _placed(event)
    envelope = {"writer": stamp.writer, "number": stamp.event_seq, "t_ms": stamp.t_ms, "line": line or encode(event)}
    for nth, place in enumerate(places):
        yield {"row_kind": row_kind.value, "nth": nth, **envelope, **place}


def table_of(rows: Iterable[Row]) -> pa.Table:
    """Rows as a table of `EVENTS`."""
    return pa.Table.from_pylist(list(rows), schema=EVENTS)


def _placed(event: Event) -> tuple[RowKind, Sequence[Row]]:
    """The event's kind of row, and the columns that are not in every event, once for each partition that it is about."""
    match event:
        case DeliveryRun():
            return RowKind.DELIVERY, [_of_delivery(event)]
        case Ack():
            return RowKind.ACK, [_of_ack(event)]
        case Commit(ok=True, offsets=[_, *_]):
            return RowKind.COMMIT, _of_commit(event)
        case Commit():
            return RowKind.SIGN, [{"consumer_group": event.group, "member": event.member}]
        case Heartbeat():
            return RowKind.SIGN, [{"t_last_ms": event.clock.epoch_ms}]
    return RowKind.SIGN if isinstance(event, Latencies) else RowKind.CONTROL, [{}]


def _of_delivery(event: DeliveryRun) -> Row:
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


def _of_ack(event: Ack) -> Row:
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


def _of_commit(event: Commit) -> list[Row]:
    who = {"consumer_group": event.group, "member": event.member}
    return [
        {**who, "topic": topic, "part": partition, "lo": offset, "hi": offset - 1} for topic, partition, offset in event.offsets
    ]
