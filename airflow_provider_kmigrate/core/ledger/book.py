"""Events sorted into the piles that the checks read, each event once, whatever order or how often the files were read."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_provider_kmigrate.core.events import (
    Ack,
    Commit,
    DeliveryRun,
    Event,
    Expect,
    Heartbeat,
    Latencies,
    LogExtent,
    Ownership,
    SendFailure,
    Slow,
    Start,
    Stop,
    TopicPartition,
)
from airflow_provider_kmigrate.core.intervals import Span, subtract, union


class GroupPartition(NamedTuple):
    """One group on one partition."""

    group: str
    topic: str
    partition: int

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Committed(NamedTuple):
    """One accepted commit of one partition."""

    t_ms: int
    offset: int
    member: str


@dataclass(slots=True)
class Writer:
    """One writer's events by their number."""

    name: str
    events: dict[int, Event] = field(default_factory=dict)
    conflicts: int = 0  # numbers under which two different events were found
    last_ms: int = 0  # when it last gave a sign of life

    def add(self, event: Event) -> None:
        self.last_ms = max(self.last_ms, event.stamp.t_ms)
        known = self.events.setdefault(event.stamp.event_seq, event)
        if known is not event and known != event:
            self.conflicts += 1
            self.events[event.stamp.event_seq] = min(known, event, key=repr)  # the same one in whatever order they come

    @property
    def start(self) -> Start | None:
        first = self.events.get(0)
        return first if isinstance(first, Start) else None

    @property
    def stop(self) -> Stop | None:
        last = self.events[max(self.events)]
        return last if isinstance(last, Stop) else None

    @property
    def clock_lag_ms(self) -> int:
        """By how much the times of its events were behind its machine's clock, by its last heartbeat."""
        last = max((event for event in self.events.values() if isinstance(event, Heartbeat)), key=_number, default=None)
        return 0 if last is None else last.clock.epoch_ms - last.stamp.t_ms

    def missing(self) -> list[Span]:
        """Numbers below its last one under which there is no event."""
        return subtract([(0, max(self.events))], union((number, number) for number in self.events))


@dataclass(slots=True)
class Book:
    """The piles. Made by `Book.of`; nothing in it changes afterwards."""

    writers: dict[str, Writer] = field(default_factory=dict)
    starts: list[Start] = field(default_factory=list)
    expected: set[str] = field(default_factory=set)
    acks: dict[TopicPartition, list[Ack]] = field(default_factory=lambda: defaultdict(list))
    runs: dict[GroupPartition, list[DeliveryRun]] = field(default_factory=lambda: defaultdict(list))
    commits: dict[GroupPartition, list[Committed]] = field(default_factory=lambda: defaultdict(list))
    ownership: dict[GroupPartition, list[Ownership]] = field(default_factory=lambda: defaultdict(list))
    extents: dict[TopicPartition, LogExtent] = field(default_factory=dict)
    failures: list[SendFailure] = field(default_factory=list)
    latencies: list[Latencies] = field(default_factory=list)
    slow: list[Slow] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Book:
        book = cls()
        for event in events:
            name = event.stamp.writer
            writer = book.writers.get(name)
            if writer is None:
                writer = book.writers[name] = Writer(name)
            writer.add(event)
        for writer in book.writers.values():
            for event in writer.events.values():
                book._file(event)
        return book

    def _file(self, event: Event) -> None:  # noqa: C901  # one line a kind
        match event:
            case DeliveryRun():
                self.runs[GroupPartition(event.group, event.topic, event.partition)].append(event)
            case Ack():
                self.acks[TopicPartition(event.topic, event.partition)].append(event)
            case Commit(ok=True):
                for at in event.offsets:
                    key = GroupPartition(event.group, at.topic, at.partition)
                    self.commits[key].append(Committed(event.stamp.t_ms, at.offset, event.member))
            case Ownership():
                for where in event.partitions:
                    self.ownership[GroupPartition(event.group, *where)].append(event)
            case Latencies():
                self.latencies.append(event)
            case Slow():
                self.slow.append(event)
            case SendFailure():
                self.failures.append(event)
            case LogExtent():
                self._extent(event)
            case Start():
                self.starts.append(event)
            case Expect():
                self.expected.update(event.writers)

    def _extent(self, event: LogExtent) -> None:
        """Keep the newest look at each log."""
        where = TopicPartition(event.topic, event.partition)
        known = self.extents.get(where)
        if known is None or (known.stamp.t_ms, known.end) < (event.stamp.t_ms, event.end):
            self.extents[where] = event

    @property
    def produced(self) -> list[Event]:
        """What producers said of their latencies."""
        return [*self.latencies, *self.slow]

    def groups(self) -> list[str]:
        """Every group that said it would read, or was seen reading."""
        named = {start.group for start in self.starts if start.group is not None}
        return sorted(named | {key.group for key in self.runs})

    def partitions_of(self, group: str) -> Iterator[GroupPartition]:
        """Every partition that the group must be delivered, or was."""
        patterns = [pattern for start in self.starts if start.group == group for pattern in start.topics]
        wanted = {where for where in self.acks if any(_matches(pattern, where.topic) for pattern in patterns)}
        seen = {key.where for key in self.runs if key.group == group}
        yield from (GroupPartition(group, *where) for where in sorted(wanted | seen))

    def groups_of(self, writer: Writer) -> set[str]:
        """The groups that a writer's events are about."""
        return {group for event in writer.events.values() if (group := getattr(event, "group", None)) is not None}

    def writers_of(self, group: str) -> list[Writer]:
        """Consumers that said they belong to the group."""
        return [self.writers[start.stamp.writer] for start in self.starts if start.group == group]

    def runs_by_partition(self) -> dict[TopicPartition, list[DeliveryRun]]:
        """The deliveries of all groups."""
        found: dict[TopicPartition, list[DeliveryRun]] = defaultdict(list)
        for key, runs in self.runs.items():
            found[key.where] += runs
        return found

    def delivered(self, group: str) -> int:
        """How many records the group was delivered, repeats included."""
        return sum(run.count for key, runs in self.runs.items() if key.group == group for run in runs)

    def reads_from_latest(self, group: str) -> bool:
        return any(start.reset == "latest" for start in self.starts if start.group == group)


def _number(event: Event) -> int:
    return event.stamp.event_seq


def _matches(pattern: str, topic: str) -> bool:
    """As librdkafka and the Java client subscribe: a name, or a pattern where it begins with `^`."""
    if not pattern.startswith("^"):
        return pattern == topic
    try:
        return re.match(pattern, topic) is not None
    except re.error:
        return True  # asks for too much, so that nothing is overlooked
