"""The sources of an audit, and its table of events (`EVENTS`): every line as written, with columns for the queries and the ledger.

`row_kind` is a row's kind and its folder in Parquet (`row_kind=delivery/…`). An event about several partitions has a row for each,
numbered by `nth`; one about none has one row. Lines that are no events are rows too, with the reason in `why`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.clients.foreign_files import Line, NotRead, lines, names_in, opened
from airflow_provider_kmigrate.clients.znodes import batches
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.event_lines import BadEvent, UnknownVersion, decode, encode
from airflow_provider_kmigrate.core.events import Ack, Commit, DeliveryRun, Event, Heartbeat, Latencies, Ownership
from airflow_provider_kmigrate.core.ledger.ownership import by_one_log
from airflow_provider_kmigrate.core.text import printable, quoted
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
_KEPT: Final = 1_000  # lines of a file that are no events, each with its reason; further ones are counted
_NEVER: Final = (1 << 63) - 1


def rows_of_line(line: str, place: str = "", position: int | None = None) -> Iterator[Row]:
    """One line as rows. `place` is put before the reason if the line is no event; `position`: of a change of ownership in its log.

    A line that is no event may be anything, a secret too: its row has its length and hash only.
    """
    try:
        event = decode(line)
    except BadEvent as error:
        data = line.encode(errors="replace")
        yield _refused(place, quoted(len(data), sha256(data).hexdigest()), str(error), isinstance(error, UnknownVersion))
        return
    if position is not None and isinstance(event, Ownership):
        yield from rows_of(replace(event, position=position))
    else:
        yield from rows_of(event, line)


def _refused(place: str, shown: str, why: str, is_version: bool = False) -> Row:
    row_kind = RowKind.VERSION if is_version else RowKind.REFUSED
    return {"row_kind": row_kind.value, "nth": 0, "line": shown, "why": f"{place}{shown}{': ' if shown else ''}{why}"}


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
    rows = chain(read_lines(source.lines, beside=bool(source.ledgers)), chain.from_iterable(map(rows_of, source.events)))
    written = [table_of(some) for some in batches(rows, _BATCH)]  # a row in a table is a tenth of one in memory
    engine.attach(
        "events", [*source.ledgers, *([pa.concat_tables(written)] if written else [] if source.ledgers else [table_of([])])]
    )


def read_lines(paths: Iterable[str], *, beside: bool = False) -> Iterator[Row]:
    """The lines of files, and of the `*.jsonl` in folders, as rows. Raises `Failed` for a path that does not exist.

    Other content of a folder (subfolders, rotated files: `x.jsonl.1`, `x.jsonl.gz`) is reported as refused, since it may be evidence; so
    is what is no plain file, or a link. `beside`: there is other evidence, in other logs.
    """
    files, unread = _listed([Path(path) for path in paths])
    for path, why in unread.items():
        yield _refused("", printable(str(path)), why)
    owned: list[list[Ownership]] = []
    for file in files:
        reading = _Reading(printable(file.name))
        yield from reading.rows(file)
        owned.append(reading.owned)
    for change in by_one_log(owned, beside=beside):
        yield from rows_of(change)


def _listed(places: Sequence[Path]) -> tuple[list[Path], dict[Path, str]]:
    """The files to read, and what else is in the folders: why each is not read."""
    files, others = dict[Path, None](), dict[Path, str]()
    for place in places:
        try:
            if not place.is_dir():
                files[place] = None
                continue
            names, is_all = names_in(place)
        except OSError as error:
            raise Failed(f"the audit cannot read {printable(str(place))}: {error.strerror}") from None
        for name in names:
            if name.endswith(".jsonl") and "/" not in name:
                files[place / name] = None
            elif ".jsonl" in name.rpartition("/")[2]:
                others[place / name] = (
                    "it is not read: event files are in the folder itself, whole and plain, or are named one by one"
                )
        if not is_all:
            others[place] = "it holds too many files: not all of them are read"
    if missing := [file for file in files if file in places and not os.path.lexists(file)]:
        raise Failed(f"the audit cannot read {printable(str(missing[0]))}: there is no such file")
    return list(files), {path: why for path, why in sorted(others.items()) if path not in files}


class _Reading:
    """One file, line by line. `owned`: the changes of ownership in it; `name`: of the file, for messages."""

    def __init__(self, name: str) -> None:
        self.owned: list[Ownership] = []
        self._name = name
        self._kept: list[Row] = []  # of lines that are no events
        self._of_kind = Counter[str]()  # how many there are
        self._next_ms = [
            _NEVER
        ]  # the earliest event before the first of them, between each two that are kept, and after the last

    def rows(self, file: Path) -> Iterator[Row]:
        """Its rows; those of lines that are no events last: none of them is later than the next event in the file, nor than its last change."""
        known_ms = 0  # not known
        try:
            with opened(file.parent, file.name) as found:
                known_ms = found.written_ms
                for line in lines(found):
                    yield from self._of(line)
        except (NotRead, OSError) as error:
            why = str(error) if isinstance(error, NotRead) else f"{self._name} is not read to its end: {error.strerror}"
            yield _refused("", "", why)
        if left := sum(self._of_kind.values()) - len(self._kept):
            yield {"t_ms": known_ms, **_refused(f"{self._name} ", "", f"has {left} more lines that are no events")}
        for row, next_ms in zip(reversed(self._kept), reversed(self._next_ms), strict=False):
            known_ms = min(known_ms, next_ms)
            yield {"t_ms": known_ms, **row}

    def _of(self, line: Line) -> Iterator[Row]:
        if line.text is None:
            self._refuse(_refused(f"{self._name} ", line.shown, "it is too long to be an event"))
            return
        text = line.text.decode(errors="replace")
        change = _ownership(text)
        rows = rows_of_line(text, f"{self._name} ") if change is None else ()
        if change is not None:
            self.owned.append(change)
            self._next_ms[-1] = min(self._next_ms[-1], change.stamp.t_ms)
        for row in rows:
            if "t_ms" in row:
                self._next_ms[-1] = min(self._next_ms[-1], row["t_ms"])
                yield row
            else:
                self._refuse(row)

    def _refuse(self, row: Row) -> None:
        self._of_kind[row["row_kind"]] += 1
        if self._of_kind[row["row_kind"]] <= _KEPT:
            self._kept.append(row)
            self._next_ms.append(_NEVER)


def _ownership(line: str) -> Ownership | None:
    if '"kind":"ownership"' not in line:
        return None
    try:
        event = decode(line)
    except BadEvent:
        return None
    return event if isinstance(event, Ownership) else None
