"""Histories of small clusters for the ledger's tests: a script that writes events as well-behaved clients do.

Times advance by a second with every step, so that the order of steps is beyond any clock's skew.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from airflow_provider_kmigrate.core.events.model import (
    Ack,
    Commit,
    DeliveryRun,
    Event,
    LogExtent,
    Ownership,
    OwnershipChange,
    Position,
    Stamp,
    Start,
    Stop,
    TopicPartition,
    WriterRole,
    latency_bucket,
)
from airflow_provider_kmigrate.core.ledger import Facts
from airflow_provider_kmigrate.core.ledger.records import REPEAT_MS, REPEAT_RECORDS

TOPIC = "t"

FINDINGS = (
    "lost",
    "unseen",
    "redelivered",
    "client_repeats",
    "stored_twice",
    "reordered",
    "diverged",
    "commit_gap",
    "double_owned",
)


def counts(facts: Facts) -> dict[str, int]:
    """What was found, and how much of it."""
    return {name: count for name in FINDINGS if (count := getattr(facts, name).count)}


def causes(facts: Facts) -> set[object]:
    """Why it is not complete."""
    return {reason.cause for reason in facts.reasons}


@dataclass
class History:
    """Each call appends what one client writes; `end()` adds the stops."""

    events: list[Event] = field(default_factory=list)
    now: int = 1_000_000
    numbers: Counter[str] = field(default_factory=Counter)
    counted: Counter[tuple[str, int]] = field(default_factory=Counter)
    position: int = 0
    generation: int = 1

    def stamp(self, writer: str) -> Stamp:
        self.now += 1_000
        self.numbers[writer] += 1
        return Stamp(writer, self.numbers[writer] - 1, self.now)

    def producer(self, name: str) -> None:
        self.events.append(Start(self.stamp(name), WriterRole.PRODUCER))

    def consumer(self, name: str, group: str, topics: tuple[str, ...] = (TOPIC,), reset: str = "earliest") -> None:
        self.events.append(Start(self.stamp(name), WriterRole.CONSUMER, group=group, topics=topics, reset=reset))

    def ack(self, producer: str, partition: int, first: int, seq: int, count: int) -> None:
        stamp = self.stamp(producer)
        last = first if first < 0 else first + count - 1
        ends = (first, last, count, seq, seq + count - 1, stamp.t_ms - 5, stamp.t_ms)
        self.events.append(Ack(stamp, producer, TOPIC, partition, *ends, 5_000, ((latency_bucket(5_000), count),)))

    def deliver(  # noqa: PLR0917  # one row of a table
        self, group: str, member: str, partition: int, first: int, count: int, seq: int | None = None, *, producer: str = "p"
    ) -> None:
        """`seq` None: the consumer cannot tell whose records these are."""
        stamp = self.stamp(member)
        start = self.counted[member, partition]
        self.counted[member, partition] += count
        span = (first, first + count - 1, count, start, stamp.t_ms, stamp.t_ms)
        who = (None, None) if seq is None else (producer, seq)
        self.events.append(DeliveryRun(stamp, group, member, self.generation, TOPIC, partition, *span, None, 0, *who))

    def inexact(self, group: str, member: str, first: int, last: int, count: int) -> None:
        stamp = self.stamp(member)
        start = self.counted[member, 0]
        self.counted[member, 0] += count
        self.events.append(DeliveryRun(stamp, group, member, None, TOPIC, 0, first, last, count, start, stamp.t_ms, stamp.t_ms))

    def commit(self, group: str, member: str, partition: int, offset: int, ok: bool = True) -> None:
        self.events.append(Commit(self.stamp(member), group, member, self.generation, (Position(TOPIC, partition, offset),), ok))

    def own(  # noqa: PLR0917
        self,
        group: str,
        member: str,
        change: OwnershipChange,
        partitions: Sequence[int] = (0,),
        ordered: bool = True,
        until_ms: int | None = None,
        starts: tuple[int, ...] = (),
    ) -> None:
        self.position += 1
        where = tuple(TopicPartition(TOPIC, partition) for partition in partitions)
        place = self.position if ordered else None
        reported = (change, where, place, until_ms, starts)
        self.events.append(Ownership(self.stamp(member), group, member, self.generation, *reported))

    def extent(self, partition: int, start: int, end: int, compacted: bool = False) -> None:
        if "control" not in self.numbers:
            self.events.append(Start(self.stamp("control"), WriterRole.CONTROL))
        self.events.append(LogExtent(self.stamp("control"), TOPIC, partition, start, end, compacted))

    def end(self, *killed: str) -> list[Event]:
        for writer in list(self.numbers):
            if writer not in killed:
                self.events.append(Stop(self.stamp(writer), clean=True))
        return self.events


def calm(count: int = 30, step: int = 10) -> History:
    """One producer, one partition, one group of one member; everything arrives once, in order."""
    history = History()
    history.consumer("m", "g")
    history.producer("p")
    history.own("g", "m", OwnershipChange.ACQUIRED)
    for first in range(0, count, step):
        history.ack("p", 0, first, first, step)
        history.deliver("g", "m", 0, first, step, first)
        history.commit("g", "m", 0, first + step)
    return history


def moved_on(*, overlap: bool) -> History:
    """From one member to the other; the second one's file has been written to for longer."""
    history = History()
    history.consumer("a", "g")
    history.consumer("b", "g")
    for _ in range(3):
        history.own("g", "b", OwnershipChange.ACQUIRED, (7,))
        history.own("g", "b", OwnershipChange.RELEASED, (7,))
    history.own("g", "a", OwnershipChange.ACQUIRED)
    if overlap:
        history.own("g", "b", OwnershipChange.ACQUIRED)
    history.own("g", "a", OwnershipChange.RELEASED)
    if not overlap:
        history.own("g", "b", OwnershipChange.ACQUIRED)
    return history


def with_a_canary(start: int = 500) -> History:
    """Old members read two partitions up to 500 and write no events; then one member that does takes over the first of them."""
    history = History()
    history.producer("p")
    for partition in (0, 1):
        history.ack("p", partition, 0, 0, 500)
    history.consumer("canary", "g")
    history.own("g", "canary", OwnershipChange.ACQUIRED, (0,), starts=(start,))
    for partition in (0, 1):
        history.ack("p", partition, 500, 500, 10)
    history.deliver("g", "canary", 0, 500, 10, 500)
    history.commit("g", "canary", 0, 510)
    return history


@dataclass
class Truth:
    """What the same history says when it is read record by record."""

    lost: int = 0
    unread: int = 0
    redelivered: int = 0
    client_repeats: int = 0
    reordered: int = 0
    commit_gap: int = 0
    stored_twice: int = 0
    diverged: int = 0


def by_records(events: Sequence[Event]) -> Truth:
    """The slow and obvious ledger of complete histories whose steps are a second apart."""
    truth = Truth()
    acks = [event for event in events if isinstance(event, Ack)]
    runs = sorted((event for event in events if isinstance(event, DeliveryRun)), key=lambda run: run.t_first_ms)
    commits = [event for event in events if isinstance(event, Commit) and event.ok]
    starts = [event for event in events if isinstance(event, Start) and event.group]
    for where in {(ack.topic, ack.partition) for ack in acks} | {(run.topic, run.partition) for run in runs}:
        here = [ack for ack in acks if (ack.topic, ack.partition) == where]
        _log_truth(truth, here, [run for run in runs if (run.topic, run.partition) == where])
        for group in {start.group for start in starts}:
            mine = [run for run in runs if (run.topic, run.partition) == where and run.group == group]
            offsets = [
                (at.offset, commit.stamp.t_ms)
                for commit in commits
                if commit.group == group
                for at in commit.offsets
                if at[:2] == where
            ]
            _group_truth(truth, here, mine, offsets)
    return truth


def _group_truth(truth: Truth, acks: list[Ack], runs: list[DeliveryRun], commits: list[tuple[int, int]]) -> None:
    known = {(run.producer, run.producer_seq + i) for run in runs if run.producer_seq is not None for i in range(run.count)}
    anonymous = {run.first + i for run in runs if run.producer is None for i in range(run.count)}
    horizon = max([run.last for run in runs] + [offset - 1 for offset, _ in commits], default=-1)
    for ack in acks:
        for i in range(ack.count):
            if (ack.producer, ack.seq_first + i) not in known and ack.first + i not in anonymous:
                truth.lost += ack.first + i <= horizon
                truth.unread += ack.first + i > horizon
                truth.commit_gap += ack.first + i < max((offset for offset, _ in commits), default=0)
    seen: set[int] = set()
    had: dict[str, list[DeliveryRun]] = defaultdict(list)  # of each member, in its present generation
    back: dict[str, set[tuple[object, ...]]] = {}  # of each member the records that it has gone back to by itself
    for run in runs:
        mine = had[run.member]
        if mine and (mine[-1].generation != run.generation or run.generation is None):
            mine.clear()
            back.pop(run.member, None)
        if mine and run.first <= mine[-1].last:
            recent = [one for one in mine if run.t_first_ms - one.t_last_ms <= REPEAT_MS]
            deep = max((one.last for one in recent), default=0) - run.first >= REPEAT_RECORDS
            back[run.member] = set() if deep else {record for one in recent for record in _records(one)}
        high = max(seen, default=-1)
        committed = max((offset for offset, when in commits if when < run.t_first_ms), default=0)
        for offset in range(run.first, run.last + 1):
            own = offset in seen and _held(back.get(run.member, set()), run, offset)
            truth.client_repeats += own
            truth.redelivered += offset in seen and not own
            truth.reordered += offset not in seen and offset < high
            truth.commit_gap += offset not in seen and offset < committed
        seen |= set(range(run.first, run.last + 1))
        mine.append(run)


def _records(run: DeliveryRun) -> Iterator[tuple[object, ...]]:
    for i in range(run.count):
        yield run.first + i, None if run.producer_seq is None else (run.producer, run.producer_seq + i)


def _held(held: set[tuple[object, ...]], run: DeliveryRun, offset: int) -> bool:
    """Whether the record at this offset is among these; one without a number may be any."""
    number = None if run.producer_seq is None else (run.producer, run.producer_seq + offset - run.first)
    return any(where == offset and (known is None or number is None or known == number) for where, known in held)


def _log_truth(truth: Truth, acks: list[Ack], runs: list[DeliveryRun]) -> None:
    held: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for ack in acks:
        for i in range(ack.count):
            held[ack.first + i].add((ack.producer, ack.seq_first + i))
    for run in runs:
        for i in range(run.count):
            if run.producer is not None and run.producer_seq is not None:
                held[run.first + i].add((run.producer, run.producer_seq + i))
    numbers: dict[str, list[int]] = defaultdict(list)
    for offset in sorted(held):
        truth.diverged += len(held[offset]) - 1
        for producer, seq in held[offset] if len(held[offset]) == 1 else ():
            numbers[producer].append(seq)
    for seqs in numbers.values():
        for i, seq in enumerate(seqs):
            twice = seq in seqs[:i]
            truth.stored_twice += twice
            truth.reordered += not twice and seq < max(seqs[:i], default=-1)
