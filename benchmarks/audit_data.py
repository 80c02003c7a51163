"""Deliveries of a made-up hour, record by record, with planted faults; and what an audit must find of them.

1,000 partitions of five topics are handed over one by one from 20 old clients to 20 new ones, in the middle of the hour. A tenth of
the partitions holds transactions, whose markers leave lawful holes. Runs in Spark's environment (numpy, pyarrow).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_kmigrate.audit.schema import LOG, NAMES, RECORDS, rows_of, table_of
from airflow_provider_kmigrate.core.events import (
    Ack,
    Change,
    DeliveryRun,
    Event,
    Ownership,
    Role,
    Stamp,
    Start,
    Stop,
    TopicPartition,
)

TOPICS, PARTITIONS, MEMBERS, FILES = 5, 1_000, 20, 8
GROUP, T0, HOUR_MS = "billing", 1_760_000_000_000, 3_600_000
FAULTS = {
    "lost": 40,
    "rewound": 20,
    "resent": 30,
    "swapped": 10,
    "consumed_twice": 5,
    "owned_twice": 10,
    "audited_twice": 20,
}  # in so many partitions
Ints = npt.NDArray[np.int64]


@dataclass
class Truth:
    """What was planted: (topic, partition, first, last) of each finding; for `double_owned` milliseconds."""

    lost: list[list[Any]] = field(default_factory=list)
    redelivered: list[list[Any]] = field(default_factory=list)
    reordered: list[list[Any]] = field(default_factory=list)
    double_owned: list[list[Any]] = field(default_factory=list)
    not_owned: int = 0  # records delivered to a member that did not own their partition yet
    audited_twice: int = 0  # rows that are there twice and mean nothing
    consumed: int = 0
    log: int = 0


@dataclass
class _Part:
    """One partition's deliveries while they are made: columns, in the order of delivery."""

    number: int
    pos: Ints
    t_ms: Ints
    mid: Ints
    seq: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(f"topic-{self.number % TOPICS}", self.number // TOPICS)

    def case(self, first: int, last: int) -> list[Any]:
        return [*self.where, int(first), int(last)]


def generate(folder: Path, records: int, seed: int = 1, *, broken: bool = False) -> Truth:
    """Leaves `records/`, `log/`, `names/` and `events/` as the audit's schema has them, and `truth.json`.

    `broken`: instead of a few faults, of each partition one row in fifty is missing and one in a hundred is there twice.
    """
    rng = np.random.default_rng(seed)
    plan = dict.fromkeys(range(PARTITIONS), "broken") if broken else _plan(rng)
    hour = _Hour(rng)
    for name in ("records", "log", "names", "events"):
        (folder / name).mkdir(parents=True)
    size = records // PARTITIONS
    for file in range(FILES):
        numbers = range(file * PARTITIONS // FILES, (file + 1) * PARTITIONS // FILES)
        with (
            _writer(folder / "records" / f"{file}.parquet", RECORDS) as consumed,
            _writer(folder / "log" / f"{file}.parquet", LOG) as log,
        ):
            for number in numbers:
                part, held = hour.partition(number, size, plan.get(number, ""))
                consumed.write_table(_records(part, rng), row_group_size=10**9)
                log.write_table(pa.table(_place(number, len(held)) | {"pos": held}, schema=LOG), row_group_size=10**9)
    pq.write_table(_names(), folder / "names" / "names.parquet")
    _finish(folder, hour.events.ended(), hour.truth)
    return hour.truth


def _finish(folder: Path, events: Iterable[Event], truth: Truth) -> None:
    """The truth last: where it is, everything is."""
    pq.write_table(table_of(row for event in events for row in rows_of(event)), folder / "events" / "events.parquet")
    (folder / "truth.json").write_text(json.dumps(asdict(truth)))


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A row group a partition; offsets and times rise evenly, which delta encoding makes small."""
    rising = [name for name in ("pos", "seq", "t_ms") if name in schema.names]
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=[name for name in schema.names if name in {"tid", "part", "mid"}],
        column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
    )


def _plan(rng: np.random.Generator) -> dict[int, str]:
    """Which partition has which fault; most have none."""
    chosen = iter(rng.permutation(PARTITIONS))
    return {int(next(chosen)): kind for kind, count in FAULTS.items() for _ in range(count)}


class _Hour:
    """Makes one partition after the other."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.truth, self.events = rng, Truth(), _Events()

    def partition(self, number: int, size: int, fault: str) -> tuple[_Part, Ints]:
        """Its deliveries, and what its log holds."""
        half, row = size // 2, np.arange(size, dtype=np.int64)
        offsets = number * 1_000 + row + (row // 1_000 if number % 10 == 0 else 0)  # a marker after each transaction
        hand_over = int(self.rng.integers(300, 3_000))
        times = T0 + row * HOUR_MS // size + np.where(row < half, 0, hand_over)
        part = _Part(number, offsets, times, number % MEMBERS + np.where(row < half, 0, MEMBERS))
        getattr(_Faults, fault or "none")(part, half, self.rng, self.truth)
        part.seq = _count(part.mid)
        self._audit_faults(part, fault)
        self._own(part, fault, int(times[half - 1]), int(times[half]), int(times[-1]))
        self.truth.consumed += len(part.pos)
        self.truth.log += size
        return part, offsets

    def _audit_faults(self, part: _Part, fault: str) -> None:
        """What the audit itself gets wrong."""
        if fault == "audited_twice":
            _repeat_rows(part, 50, self.rng, self.truth)
        if fault == "broken":
            kept = self.rng.random(len(part.pos)) >= 0.02
            part.pos, part.t_ms, part.mid, part.seq = part.pos[kept], part.t_ms[kept], part.mid[kept], part.seq[kept]
            _repeat_rows(part, len(part.pos) // 100, self.rng, self.truth)

    def _own(self, part: _Part, fault: str, last_ms: int, next_ms: int, end_ms: int) -> None:
        released, acquired = last_ms + 100, next_ms - 100
        if fault == "owned_twice":
            released = acquired + 50
            self.truth.double_owned.append(part.case(-1, 50))
        self.events.hand_over(part, released, acquired, end_ms + 60_000)


class _Faults:
    """What may be wrong with one partition's deliveries."""

    @staticmethod
    def none(part: _Part, half: int, rng: np.random.Generator, truth: Truth) -> None:
        pass

    owned_twice = audited_twice = broken = none

    @staticmethod
    def lost(part: _Part, half: int, rng: np.random.Generator, truth: Truth) -> None:
        """A few ranges are skipped."""
        keep, block = np.ones(len(part.pos), np.bool_), half // 8
        for begin in rng.choice(8, 5, replace=False) * block + block // 8:
            length = int(rng.integers(1, min(block // 2, 300)))
            keep[begin : begin + length] = False
            truth.lost += _spans(part, np.arange(begin, begin + length))
        part.pos, part.t_ms, part.mid = part.pos[keep], part.t_ms[keep], part.mid[keep]

    @staticmethod
    def rewound(part: _Part, half: int, rng: np.random.Generator, truth: Truth) -> None:
        """The old member goes back once."""
        at, length = half - half // 8, int(rng.integers(10, min(half // 4, 1_000)))
        _insert(part, at, np.arange(at - length, at))
        truth.redelivered += _spans(part, np.arange(at - length, at))

    @staticmethod
    def resent(part: _Part, half: int, rng: np.random.Generator, truth: Truth) -> None:
        """The new member begins before where the old one ended."""
        length = int(rng.integers(10, min(half // 4, 1_000)))
        truth.redelivered += _spans(part, np.arange(half - length, half))
        _insert(part, half, np.arange(half - length, half))
        part.mid[half : half + length] = part.mid[-1]
        part.t_ms[half : half + length] = part.t_ms[half + length] - 50

    @staticmethod
    def swapped(part: _Part, half: int, rng: np.random.Generator, truth: Truth) -> None:
        """Two batches come in the wrong order."""
        begin, length = half // 2, int(rng.integers(10, min(half // 8, 500)))
        order = np.arange(len(part.pos))
        order[begin : begin + 2 * length] = np.roll(order[begin : begin + 2 * length], length)
        truth.reordered += _spans(part, np.arange(begin, begin + length))
        part.pos = part.pos[order]

    @staticmethod
    def consumed_twice(part: _Part, half: int, rng: np.random.Generator, truth: Truth) -> None:
        """The new member reads along with the old one for a while, a moment behind it."""
        length = int(rng.integers(10, min(half // 4, 500)))
        along = np.arange(half - length, half)
        truth.not_owned += length
        truth.redelivered += _spans(part, along)
        pos, t_ms, mid = part.pos[along], part.t_ms[along] + 1, np.full(length, part.mid[-1])
        order = np.argsort(np.concatenate([part.t_ms, t_ms]), kind="stable")
        part.pos, part.t_ms, part.mid = (
            np.concatenate(pair)[order] for pair in ((part.pos, pos), (part.t_ms, t_ms), (part.mid, mid))
        )


def _insert(part: _Part, at: int, again: Ints) -> None:
    """Deliver some rows again before row `at`, within the time before it."""
    part.pos = np.insert(part.pos, at, part.pos[again])
    part.t_ms, part.mid = (np.insert(values, at, np.full(len(again), values[at - 1])) for values in (part.t_ms, part.mid))


def _spans(part: _Part, rows: Ints) -> list[list[Any]]:
    """The rows' offsets as cases, apart where the log has a hole."""
    offsets = part.pos[rows]
    cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
    return [part.case(piece[0], piece[-1]) for piece in np.split(offsets, cuts)]


def _count(mid: Ints) -> Ints:
    """Each member's deliveries, from 0."""
    seq = np.empty(len(mid), np.int64)
    for member in np.unique(mid):
        mine = mid == member
        seq[mine] = np.arange(np.count_nonzero(mine))
    return seq


def _repeat_rows(part: _Part, count: int, rng: np.random.Generator, truth: Truth) -> None:
    rows = np.sort(np.append(np.arange(len(part.pos)), rng.choice(len(part.pos), count, replace=False)))
    part.pos, part.t_ms, part.mid, part.seq = part.pos[rows], part.t_ms[rows], part.mid[rows], part.seq[rows]
    truth.audited_twice += count


def _place(number: int, rows: int) -> dict[str, Any]:
    tid, part = number % TOPICS, number // TOPICS
    return {"tid": np.full(rows, tid, np.int32), "part": np.full(rows, part, np.int32)}


def _records(part: _Part, rng: np.random.Generator) -> pa.Table:
    size = len(part.pos)
    values = {"mid": part.mid.astype(np.int32), "pos": part.pos, "seq": part.seq, "t_ms": part.t_ms}
    latency = (rng.lognormal(8.5, 0.7, size)).astype(np.int64)
    return pa.table(_place(part.number, size) | values | {"latency_us": latency}, schema=RECORDS)


def _names() -> pa.Table:
    topics = [{"kind": "topic", "id": tid, "name": f"topic-{tid}"} for tid in range(TOPICS)]
    members = [{"kind": "member", "id": mid, "name": _member(mid), "consumer_group": GROUP} for mid in range(2 * MEMBERS)]
    return pa.Table.from_pylist(topics + members, schema=NAMES)


def _member(mid: int) -> str:
    return f"{'old' if mid < MEMBERS else 'new'}-{mid % MEMBERS}"


class _Events:
    """What the members say of themselves, numbered as each writes it."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, int, str, Change, TopicPartition]] = []

    def hand_over(self, part: _Part, released: int, acquired: int, ends: int) -> None:
        old, new = _member(part.number % MEMBERS), _member(MEMBERS + part.number % MEMBERS)
        for order, (t_ms, member, change) in enumerate(
            (
                (T0 - 1_000, old, Change.ACQUIRED),
                (released, old, Change.RELEASED),
                (acquired, new, Change.ACQUIRED),
                (ends, new, Change.RELEASED),
            )
        ):
            self._changes.append((t_ms, order, member, change, part.where))

    def ended(self) -> Iterator[Event]:
        numbers = dict.fromkeys((_member(mid) for mid in range(2 * MEMBERS)), 1)
        topics = tuple(f"topic-{tid}" for tid in range(TOPICS))
        for member in numbers:
            yield Start(Stamp(member, 0, T0 - 2_000), Role.CONSUMER, group=GROUP, topics=topics)
        for position, (t_ms, _, member, change, where) in enumerate(sorted(self._changes)):
            stamp = Stamp(member, numbers[member], t_ms)
            numbers[member] += 1
            yield Ownership(stamp, GROUP, member, 1, change, (where,), position)
        for member, number in numbers.items():
            yield Stop(Stamp(member, number, T0 + 2 * HOUR_MS), clean=True)


def generate_polls(folder: Path, polls: int, seed: int = 1) -> Truth:
    """The same hour as its clients' events: a run a poll, an acknowledgement for each; a few polls are lost, a few come twice."""
    rng = np.random.default_rng(seed)
    each = polls // PARTITIONS
    inner = [int(at) for at in rng.permutation(polls) if (at + 1) % each]  # a partition's last poll may come later
    made = _Polls(dict(zip(inner, ("lost", "redelivered") * 10, strict=False)))
    for number in range(PARTITIONS):
        made.partition(number, each)
    (folder / "events").mkdir(parents=True)
    _finish(folder, made.ended(), made.truth)
    return made.truth


class _Polls:
    """Makes the clients' events of one partition after the other; 500 records a poll."""

    def __init__(self, faults: dict[int, str]) -> None:
        self.faults, self.truth = faults, Truth()
        self.events: list[Event] = []
        self.numbers: Counter[str] = Counter()

    def stamp(self, writer: str, t_ms: int) -> Stamp:
        self.numbers[writer] += 1
        return Stamp(writer, self.numbers[writer], t_ms)

    def partition(self, number: int, polls: int) -> None:
        where, seq = TopicPartition(f"topic-{number % TOPICS}", number // TOPICS), 0
        for poll in range(polls):
            first, t_ms, fault = poll * 500, T0 + poll * HOUR_MS // polls, self.faults.get(number * polls + poll, "")
            self.acknowledge(where, f"p{number % 10}", first, t_ms)
            for _ in range({"lost": 0, "redelivered": 2}.get(fault, 1)):
                self.deliver(where, _member(number % MEMBERS), (first, seq), t_ms)
                seq += 500
            if fault:
                getattr(self.truth, fault).append([*where, first, first + 499])

    def acknowledge(self, where: TopicPartition, producer: str, first: int, t_ms: int) -> None:
        numbers = {"first": first, "last": first + 499, "count": 500, "seq_first": first, "seq_last": first + 499}
        times: dict[str, Any] = {"t_sent_ms": t_ms - 5, "t_acked_ms": t_ms, "latency": ((600, 500),)}
        self.events.append(Ack(self.stamp(producer, t_ms), producer, *where, **numbers, **times))

    def deliver(self, where: TopicPartition, member: str, at: tuple[int, int], t_ms: int) -> None:
        first, seq = at
        numbers = {"first": first, "last": first + 499, "count": 500, "seq": seq}
        times: dict[str, Any] = {"t_first_ms": t_ms + 10, "t_last_ms": t_ms + 20, "t_sent_ms": t_ms, "latency": ((640, 500),)}
        self.events.append(DeliveryRun(self.stamp(member, t_ms + 20), GROUP, member, 1, *where, **numbers, **times))

    def ended(self) -> Iterator[Event]:
        for writer, number in self.numbers.items():
            reads = writer.startswith("old")
            start = Start(Stamp(writer, 0, T0), Role.CONSUMER if reads else Role.PRODUCER)
            yield replace(start, group=GROUP, topics=("^topic-",)) if reads else start
            yield Stop(Stamp(writer, number + 1, T0 + 2 * HOUR_MS), clean=True)
        yield from self.events
