"""The sources of an audit, and its table of events (`EVENTS`): every line as written, with columns for the queries and the ledger.

`row_kind` is a row's kind and its folder in Parquet (`row_kind=delivery/…`). An event about several partitions has a row for each,
numbered by `nth`; one about none has one row. Lines that are no events are rows too, with the reason in `why`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.event_lines import BadEvent, UnknownVersion, decode, encode
from airflow_provider_kmigrate.core.events import Ack, Commit, DeliveryRun, Event, Heartbeat, Latencies, Ownership
from airflow_provider_kmigrate.core.ledger.ownership import by_one_log
from airflow_provider_kmigrate.exceptions import Failed


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
_BATCH: Final = 2_000  # rows that a worker decodes together


def rows_of_line(line: str, place: str = "", position: int | None = None) -> Iterator[Row]:
    """One line as rows. `place` is put before the reason if the line is no event; `position`: of a change of ownership in its log."""
    try:
        event = decode(line)
    except BadEvent as error:
        row_kind = RowKind.VERSION if isinstance(error, UnknownVersion) else RowKind.REFUSED
        yield {"row_kind": row_kind.value, "nth": 0, "line": line, "why": f"{place}{line[:80]!r}: {error}"}
        return
    if position is not None and isinstance(event, Ownership):
        yield from rows_of(replace(event, position=position))
    else:
        yield from rows_of(event, line)


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
            return RowKind.SIGN, [{"t_last_ms": event.wall_ms}]
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


@dataclass(frozen=True, slots=True)
class Source:
    """One body of evidence, judged by itself, of one `level`. All parts of it are read together.

    `lines`: files or folders of event lines (`*.jsonl`) on this machine. `ledgers`: folders of Parquet as `sources.EVENTS`,
    anywhere the engine can read. A group's ownership belongs into one folder, or one topic: from several its order is that of the
    members' clocks. `events`: as they are in memory.
    """

    level: Level
    lines: tuple[str, ...] = ()
    ledgers: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()


def attach(source: Source, engine: Engine) -> None:
    """Make the source's view `events` in the engine."""
    written = table_of(_rows(source))
    engine.attach("events", [*source.ledgers, *([written] if written.num_rows or not source.ledgers else [])])


def read_lines(paths: Iterable[str], *, beside: bool = False) -> Iterator[Row]:
    """The lines of files, and of the `*.jsonl` in folders, as rows. Raises `Failed` if one cannot be read.

    Other content of a folder (subfolders, rotated files: `x.jsonl.1`, `x.jsonl.gz`) is reported as refused: it may be evidence.
    `beside`: there is other evidence, in other logs.
    """
    places = [Path(path) for path in paths]
    files = list(dict.fromkeys(file for place in places for file in _files(place)))
    for unread in sorted({str(found) for place in places for found in _event_files(place)} - set(map(str, files))):
        why = f"{unread} is not read: event files are in the folder itself, whole and plain, or are named one by one"
        yield {"row_kind": RowKind.REFUSED.value, "nth": 0, "line": unread, "why": why}
    owned: list[list[Ownership]] = [[] for _ in files]
    for number, file in enumerate(files):
        lines, known_ms = _read(file)  # no line is later, nor later than the next event in its file
        for line in reversed(lines):
            change = _ownership(line)
            if change is not None:
                owned[number].append(change)
                known_ms = min(known_ms, change.stamp.t_ms)
                continue
            for row in rows_of_line(line, f"{file.name} "):
                known_ms = min(known_ms, row.get("t_ms", known_ms))
                yield {"t_ms": known_ms, **row}
    for change in by_one_log(owned, beside=beside):
        yield from rows_of(change)


def _ownership(line: str) -> Ownership | None:
    if '"kind":"ownership"' not in line:
        return None
    try:
        event = decode(line)
    except BadEvent:
        return None
    return event if isinstance(event, Ownership) else None


def _rows(source: Source) -> Iterable[Row]:
    return chain(read_lines(source.lines, beside=bool(source.ledgers)), chain.from_iterable(map(rows_of, source.events)))


def _files(path: Path) -> Sequence[Path]:
    return sorted(path.glob("*.jsonl")) if path.is_dir() else [path]


def _event_files(path: Path) -> list[Path]:
    return [found for found in path.rglob("*.jsonl*") if found.is_file()] if path.is_dir() else []


def _read(path: Path) -> tuple[list[str], int]:
    """A file's lines, and when it was last written, ms since the epoch.

    Without an unfinished last line: it is being written, or its writer was killed and will leave no stop.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        return lines, path.stat().st_mtime_ns // 1_000_000
    except OSError as error:
        raise Failed(f"the audit cannot read {path}: {error}") from error
