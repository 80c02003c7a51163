"""The events of a made-up hour of clients, as lines and as Parquet, with planted faults; and what an audit must find of them.

1,000 partitions of five topics; ten producers acknowledge, 20 old members hand the partitions over to 20 new ones in the middle of the
hour. A run of 500 records a poll, an acknowledgement for each, a commit every ten. Runs in Spark's environment (numpy, pyarrow).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_kmigrate.audit.sources import EVENTS, rows_of_event, rows_of_line, table_of
from airflow_provider_kmigrate.core.events.model import (
    Event,
    Ownership,
    OwnershipChange,
    Stamp,
    Start,
    Stop,
    TopicPartition,
    WriterRole,
)

TOPICS, PARTITIONS, MEMBERS, PRODUCERS, FILES, RECORDS = 5, 1_000, 20, 10, 8, 500
GROUP, T0, HOUR_MS = "billing", 1_760_000_000_000, 3_600_000
FAULTS = ("lost", "redelivered", "reordered", "commit_gap", "not_owned", "stored_twice")
OWNED_TWICE, OVERLAP_MS = 10, 5_000  # in so many partitions, for so long
Ints = npt.NDArray[np.int64]
Truth = dict[str, list[list[Any]]]


def generate(folder: Path, polls: int, faulty: int, seed: int = 1) -> Truth:
    """Leaves `events/` as `audit.sources` has them, a folder a row_kind, the same as `lines/`, a file a writer, and `truth.json`.

    `faulty` partitions have one fault each.

    The truth: of each finding [topic, partition, first, last]; for `double_owned` [topic, partition, -1, milliseconds].
    """
    made = _Hour(polls // PARTITIONS, np.random.default_rng(seed))
    chosen = made.rng.permutation(PARTITIONS)
    faults = {int(number): FAULTS[at % len(FAULTS)] for at, number in enumerate(chosen[:faulty])}
    twice = set(chosen[-OWNED_TWICE:].tolist())
    for number in range(PARTITIONS):
        made.partition(number, faults.get(number, ""), owned_twice=number in twice)
    made.write(folder)
    (folder / "truth.json").write_text(json.dumps(made.truth))
    return made.truth


class _Hour:
    """Makes one partition after the other; `polls` each."""

    def __init__(self, polls: int, rng: np.random.Generator) -> None:
        self.polls, self.rng = polls, rng
        self.truth: Truth = defaultdict(list)
        self.columns: dict[str, list[dict[str, Any]]] = defaultdict(list)  # by row_kind
        self.changes: list[tuple[int, str, OwnershipChange, TopicPartition]] = []

    def partition(self, number: int, fault: str, *, owned_twice: bool) -> None:
        """Write one partition's hour: acknowledgements, deliveries, commits, owners, and a planted fault."""
        where, half = TopicPartition(f"topic-{number % TOPICS}", number // TOPICS), self.polls // 2
        at = 10 * int(self.rng.integers(0, half // 10)) + 5 if fault != "not_owned" else half - 1  # no commit is beside it
        if fault:
            self.plant(where, fault, at)
        order = np.arange(self.polls)
        order = {"lost": np.delete(order, at), "redelivered": np.insert(order, at, at)}.get(fault, order)
        if fault == "reordered":
            order[[at, at + 1]] = order[[at + 1, at]]
        times = T0 + np.arange(self.polls) * HOUR_MS // self.polls
        turn = half - (fault == "not_owned")
        self.acknowledge(where, number % PRODUCERS, times, at if fault == "stored_twice" else self.polls)
        self.deliver(where, number % MEMBERS, order, times, turn)
        self.commit(where, number % MEMBERS, times, half, at if fault == "commit_gap" else None)
        self.own(where, number % MEMBERS, int(times[half]), owned_twice=owned_twice)

    def plant(self, where: TopicPartition, fault: str, at: int) -> None:
        """Note the truth of a fault that begins at this poll."""
        first = (at + (fault == "stored_twice")) * RECORDS
        case = [*where, first, first + RECORDS - 1]
        self.truth[fault].append(case)
        if fault == "lost":  # the group committed behind it
            self.truth["commit_gap"].append(case)

    def acknowledge(self, where: TopicPartition, producer: int, times: Ints, twice: int) -> None:
        """From poll `twice` on the producer's numbers are behind: it sent that poll's records again."""
        first = np.arange(self.polls) * RECORDS
        numbers = first - RECORDS * (np.arange(self.polls) > twice)
        names = np.full(self.polls, producer)
        self.add("ack", where, names, times, lo=first, seq=numbers, t_sent_ms=times - 5, t_last_ms=times)

    def deliver(self, where: TopicPartition, member: int, order: Ints, times: Ints, turn: int) -> None:
        """In this order; from poll `turn` on to the new member."""
        taken = np.searchsorted(np.maximum.accumulate(order), turn)
        row = np.arange(len(order))
        members = np.where(row < taken, member, member + MEMBERS)
        counted = np.where(row < taken, row, row - taken) * RECORDS
        high = np.maximum.accumulate(order)
        begin = times[high] + 10 + 20 * np.append(False, order[1:] <= high[:-1])  # what goes back comes right behind
        again = np.append(False, order[1:] == high[:-1])  # after a rebalance: a client's own repeat is no redelivery
        more = {"t_first_ms": begin, "t_last_ms": begin + 10, "t_sent_ms": times[order], "generation": 1 + np.cumsum(again)}
        self.add("delivery", where, members, begin + 10, lo=order * RECORDS, seq=counted, **more)

    def commit(self, where: TopicPartition, member: int, times: Ints, half: int, early: int | None) -> None:
        """Commit every tenth poll; `early`: a poll that is committed before its delivery."""
        polls = np.arange(9, self.polls, 10)
        done, when = polls + 1, times[polls] + 2 * HOUR_MS // self.polls
        if early is not None:
            done, when = np.append(done, early + 1), np.append(when, times[early] - 1_000)
        members = np.where(when < times[half], member, member + MEMBERS)
        self.add("commit", where, members, when, lo=done * RECORDS)

    def own(self, where: TopicPartition, member: int, handed_ms: int, *, owned_twice: bool) -> None:
        """Pass the partition from one member to another at `handed_ms`."""
        old, new = _member(member), _member(member + MEMBERS)
        released, acquired = handed_ms - 100, handed_ms - 90
        if owned_twice:
            released = acquired + OVERLAP_MS
            self.truth["double_owned"].append([*where, -1, OVERLAP_MS])
        self.changes += [(T0 - 1_000, old, OwnershipChange.ACQUIRED, where), (released, old, OwnershipChange.RELEASED, where)]
        self.changes += [
            (acquired, new, OwnershipChange.ACQUIRED, where),
            (T0 + HOUR_MS + 60_000, new, OwnershipChange.RELEASED, where),
        ]

    def add(self, row_kind: str, where: TopicPartition, writers: Ints, t_ms: Ints, **columns: Ints) -> None:
        """Add rows of one kind about a partition."""
        place = {"topic": np.full(len(t_ms), int(where.topic[6:])), "part": np.full(len(t_ms), where.partition)}
        self.columns[row_kind].append({"writer": writers, "t_ms": t_ms, **place, **columns})

    def write(self, folder: Path) -> None:
        """Events in the order of time, numbered by their writers."""
        row_kinds = {
            row_kind: {name: np.concatenate([one[name] for one in found]) for name in found[0]}
            for row_kind, found in self.columns.items()
        }
        control = list(self.control())
        numbers, last = _numbered(row_kinds, control)
        events = [*control, *_ended(control, last)]
        tables = {row_kind: _TABLES[row_kind](columns | {"number": numbers[row_kind]}) for row_kind, columns in row_kinds.items()}
        tables["control"] = table_of(row for event in events for row in rows_of_event(event)).drop_columns("row_kind")
        for row_kind, table in tables.items():
            line = table["line"] if row_kind == "control" else pa.nulls(table.num_rows, pa.string())
            _write(folder / "events" / f"row_kind={row_kind}", table.set_column(EVENTS.names.index("line") - 1, "line", line))
        _write_lines(folder / "lines", pa.concat_tables([table.select(_OF_LINES) for table in tables.values()]))

    def control(self) -> Iterator[Event]:
        """The starts of all writers and the changes of ownership."""
        topics = tuple(f"topic-{tid}" for tid in range(TOPICS))
        for producer in range(PRODUCERS):
            yield Start(Stamp(f"p{producer}", 0, T0 - 5_000), WriterRole.PRODUCER)
        members = [_member(number) for number in range(2 * MEMBERS)]
        for member in members:
            yield Start(Stamp(member, 0, T0 - 5_000), WriterRole.CONSUMER, group=GROUP, topics=topics)
        numbers = dict.fromkeys(members, 0)
        for position, (t_ms, member, change, where) in enumerate(sorted(self.changes, key=lambda change: change[0])):
            numbers[member] += 1
            yield Ownership(Stamp(member, numbers[member], t_ms), GROUP, member, 1, change, (where,), position)


def _member(number: int) -> str:
    return f"{'old' if number < MEMBERS else 'new'}-{number % MEMBERS}"


def _numbered(row_kinds: dict[str, dict[str, Ints]], control: list[Event]) -> tuple[dict[str, Ints], dict[str, int]]:
    """Each writer counts its events in the order of time, after those of `control`; and the last number of each."""
    last = {event.stamp.writer: event.stamp.event_seq for event in control}
    found: dict[str, Ints] = {}
    for row_kind, columns in row_kinds.items():
        found[row_kind] = np.empty(len(columns["writer"]), np.int64)
        order = np.lexsort((columns["t_ms"], columns["writer"]))
        codes, starts, counts = np.unique(columns["writer"][order], return_index=True, return_counts=True)
        for code, start, count in zip(codes.tolist(), starts.tolist(), counts.tolist(), strict=True):
            name = f"p{code}" if row_kind == "ack" else _member(code)
            found[row_kind][order[start : start + count]] = np.arange(count) + last[name] + 1
            last[name] += count
    return found, last


def _ended(control: list[Event], last: dict[str, int]) -> Iterator[Event]:
    for writer in dict.fromkeys(event.stamp.writer for event in control):
        yield Stop(Stamp(writer, last[writer] + 1, T0 + 2 * HOUR_MS), clean=True)


def _text(columns: dict[str, Ints], *pieces: str | pa.Array) -> pa.Array:
    """Pieces of text joined; a name in angle brackets is a column's number."""
    cast = [
        pa.array(columns[piece[1:-1]]).cast(pa.string()) if isinstance(piece, str) and piece[0] == "<" else piece
        for piece in pieces
    ]
    return pc.binary_join_element_wise(*cast, "")


def _names(columns: dict[str, Ints], row_kind: str) -> pa.Array:
    names = (
        [f"p{number}" for number in range(PRODUCERS)] if row_kind == "ack" else [_member(number) for number in range(2 * MEMBERS)]
    )
    return pa.array(names).take(pa.array(columns["writer"]))


def _table(row_kind: str, columns: dict[str, Ints], **more: Any) -> pa.Table:
    size, names = len(columns["writer"]), _names(columns, row_kind)
    given: dict[str, Any] = (
        columns | {"writer": names, "nth": np.zeros(size, np.int32), "topic": _text(columns, "topic-", "<topic>")} | more
    )
    arrays = [
        pa.array(given[field.name]).cast(field.type) if field.name in given else pa.nulls(size, field.type) for field in EVENTS
    ]
    table = pa.Table.from_arrays(arrays, schema=EVENTS)
    first = table.slice(0, 1).to_pylist()[0] | {"row_kind": row_kind}
    assert table_of(rows_of_line(first["line"])).to_pylist() == [first | {"line": None}], "the columns say what the line says"
    return table.drop_columns("row_kind").take(pa.array(np.argsort(columns["t_ms"], kind="stable")))


def _same(size: int, values: list[int]) -> pa.Array:
    return pa.array([values], pa.list_(pa.int64())).take(pa.array(np.zeros(size, np.int64)))


def _envelope(columns: dict[str, Ints], row_kind: str, kind: str) -> tuple[str | pa.Array, ...]:
    return (f'{{"v":2,"kind":"{kind}","writer":"', _names(columns, row_kind), '","event_seq":', "<number>", ',"t_ms":', "<t_ms>")


def _acks(columns: dict[str, Ints]) -> pa.Table:
    size, last, ends = len(columns["lo"]), columns["lo"] + RECORDS - 1, columns["seq"] + RECORDS - 1
    all_of, who = columns | {"hi": last, "seq_last": ends}, _names(columns, "ack")
    words = (*_envelope(columns, "ack", "ack"), ',"producer":"', who, '","topic":"topic-', "<topic>", '","partition":', "<part>")
    words += (',"first":', "<lo>", ',"last":', "<hi>", f',"count":{RECORDS},"seq_first":', "<seq>", ',"seq_last":', "<seq_last>")
    words += (
        ',"t_sent_ms":',
        "<t_sent_ms>",
        ',"t_acked_ms":',
        "<t_last_ms>",
        f',"latency_max_us":5000,"latency":[[600,{RECORDS}]]}}',
    )
    more = {"hi": last, "n": np.full(size, RECORDS), "producer": who, "producer_seq": columns["seq"]}
    return _table("ack", columns, line=_text(all_of, *words), wait_us=np.full(size, 5_000), **more)


def _deliveries(columns: dict[str, Ints]) -> pa.Table:
    size, last, who = len(columns["lo"]), columns["lo"] + RECORDS - 1, _names(columns, "delivery")
    words = (
        *_envelope(columns, "delivery", "delivery"),
        f',"group":"{GROUP}","member":"',
        who,
        '","generation":',
        "<generation>",
        ',"topic":"topic-',
        "<topic>",
    )
    words += (
        '","partition":',
        "<part>",
        ',"first":',
        "<lo>",
        ',"last":',
        "<hi>",
        f',"count":{RECORDS},"seq":',
        "<seq>",
        ',"t_first_ms":',
    )
    words += ("<t_first_ms>", ',"t_last_ms":', "<t_last_ms>", ',"t_sent_ms":', "<t_sent_ms>", ',"gap_ms":0,"producer":null')
    line = _text(columns | {"hi": last}, *words, f',"producer_seq":null,"latency":[[640,{RECORDS}]]}}')
    numbers = {"hi": last, "n": np.full(size, RECORDS), "gap_ms": np.zeros(size, np.int64)}
    return _table(
        "delivery", columns, line=line, latency=_same(size, [640, RECORDS]), member=who, consumer_group=[GROUP] * size, **numbers
    )


def _commits(columns: dict[str, Ints]) -> pa.Table:
    who = _names(columns, "commit")
    words = (
        *_envelope(columns, "commit", "commit"),
        f',"group":"{GROUP}","member":"',
        who,
        '","generation":1,"offsets":[["topic-',
        "<topic>",
    )
    line = _text(columns, *words, '",', "<part>", ",", "<lo>", ']],"ok":true,"error":null}')
    return _table("commit", columns, line=line, hi=columns["lo"] - 1, member=who, consumer_group=[GROUP] * len(columns["lo"]))


_TABLES = {"ack": _acks, "delivery": _deliveries, "commit": _commits}


_OF_LINES = ["writer", "number", "nth", "line"]


def _write_lines(folder: Path, rows: pa.Table) -> None:
    """A file a writer, each line once."""
    folder.mkdir(parents=True)
    for writer in pc.unique(rows["writer"]).to_pylist():
        mine = rows.filter(pc.and_(pc.equal(rows["writer"], writer), pc.equal(rows["nth"], 0))).sort_by("number")
        (folder / f"{writer}.jsonl").write_text("".join(f"{line}\n" for line in mine["line"].to_pylist()))


def _write(folder: Path, table: pa.Table) -> None:
    """In several files, as a stream leaves them."""
    folder.mkdir(parents=True)
    size = -(-table.num_rows // FILES)
    for number in range(FILES):
        if number * size < table.num_rows:
            pq.write_table(table.slice(number * size, size), folder / f"{number}.parquet", compression="zstd")
