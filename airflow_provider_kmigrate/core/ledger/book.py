"""Sorts events into the partitions that the checks read, each event once, whatever the order or repetition of the files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_provider_kmigrate.core.events.intervals import count_numbers, subtract, union
from airflow_provider_kmigrate.core.events.model import (
    Ack,
    Commit,
    DeliveryRun,
    Event,
    Expect,
    Heartbeat,
    LogExtent,
    Ownership,
    SendFailure,
    Slow,
    Start,
    Stop,
    TopicPartition,
)


class GroupPartition(NamedTuple):
    """One group on one partition."""

    group: str
    topic: str
    partition: int

    @property
    def where(self) -> TopicPartition:
        """The partition without its group."""
        return TopicPartition(self.topic, self.partition)


class AcceptedCommit(NamedTuple):
    """One accepted commit of one partition."""

    t_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class Writer:
    """One writer's account of itself: whether its events are whole, and how it ended. Times are ms since the epoch.

    `missing` counts numbers below the last one without an event, from `first_missing` on; `conflicts` counts numbers with two
    different events. `clock_lag_ms`: how far the times of its events were behind its machine's clock, by its last heartbeat.
    `groups`: the consumer groups that its events are about.
    """

    name: str
    first_ms: int
    last_ms: int  # its last sign of life
    started: bool  # number 0 is a start
    stop: Stop | None = None  # its last event, if that is a stop
    missing: int = 0
    first_missing: int = 0
    conflicts: int = 0
    clock_lag_ms: int = 0
    groups: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str, events: Mapping[int, Event], conflicts: int = 0, last_ms: int = 0) -> Writer:
        """A writer's account, from all its events by their numbers."""
        last = events[max(events)]
        beats = [event for _, event in sorted(events.items()) if isinstance(event, Heartbeat)]
        holes = subtract([(0, max(events))], union((number, number) for number in events))
        return cls(
            name,
            min(event.stamp.t_ms for event in events.values()),
            last_ms,
            started=isinstance(events.get(0), Start),
            stop=last if isinstance(last, Stop) else None,
            missing=count_numbers(holes),
            first_missing=holes[0][0] if holes else 0,
            conflicts=conflicts,
            clock_lag_ms=beats[-1].wall_ms - beats[-1].stamp.t_ms if beats else 0,
            groups=frozenset(group for event in events.values() if (group := getattr(event, "group", None)) is not None),
        )


@dataclass(slots=True)
class PartitionEvents:
    """The events of one partition: acknowledgements, and each group's deliveries and commits."""

    where: TopicPartition
    acks: list[Ack] = field(default_factory=list)
    runs: dict[str, list[DeliveryRun]] = field(default_factory=lambda: defaultdict(list))
    commits: dict[str, list[AcceptedCommit]] = field(default_factory=lambda: defaultdict(list))


@dataclass(slots=True)
class _Numbered:
    """One writer's events by their number, each once."""

    events: dict[int, Event] = field(default_factory=dict)
    conflicts: int = 0
    last_ms: int = 0

    def add(self, event: Event) -> None:
        """Add an event; a different one with the same number is a conflict."""
        self.last_ms = max(self.last_ms, event.stamp.t_ms)
        earlier = self.events.setdefault(event.stamp.event_seq, event)
        if earlier is not event and earlier != event:
            self.conflicts += 1
            self.events[event.stamp.event_seq] = min(earlier, event, key=repr)  # the same one, whatever order they come in


@dataclass(slots=True)
class Book:
    """The sorted events. Made by `Book.of`; nothing in it changes afterwards."""

    writers: dict[str, Writer] = field(default_factory=dict)
    starts: list[Start] = field(default_factory=list)
    expected: set[str] = field(default_factory=set)
    acks: dict[TopicPartition, list[Ack]] = field(default_factory=lambda: defaultdict(list))
    runs: dict[GroupPartition, list[DeliveryRun]] = field(default_factory=lambda: defaultdict(list))
    commits: dict[GroupPartition, list[AcceptedCommit]] = field(default_factory=lambda: defaultdict(list))
    ownership: dict[GroupPartition, list[Ownership]] = field(default_factory=lambda: defaultdict(list))
    extents: dict[TopicPartition, LogExtent] = field(default_factory=dict)
    failures: list[SendFailure] = field(default_factory=list)
    slow: list[Slow] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Book:
        """The book of all writers' events, in any order; repeated events count once."""
        book = cls()
        numbered: dict[str, _Numbered] = defaultdict(_Numbered)
        for event in events:
            numbered[event.stamp.writer].add(event)
        for name, writer_events in numbered.items():
            book.writers[name] = Writer.of(name, writer_events.events, writer_events.conflicts, writer_events.last_ms)
            for event in writer_events.events.values():
                book._file_event(event)
        return book

    def _file_event(self, event: Event) -> None:  # noqa: C901  # one line a kind
        match event:
            case DeliveryRun():
                self.runs[GroupPartition(event.group, event.topic, event.partition)].append(event)
            case Ack():
                self.acks[TopicPartition(event.topic, event.partition)].append(event)
            case Commit(ok=True):
                for position in event.offsets:
                    key = GroupPartition(event.group, position.topic, position.partition)
                    self.commits[key].append(AcceptedCommit(event.stamp.t_ms, position.offset))
            case Ownership():
                for topic_partition in event.partitions:
                    self.ownership[GroupPartition(event.group, *topic_partition)].append(event)
            case Slow():
                self.slow.append(event)
            case SendFailure():
                self.failures.append(event)
            case LogExtent():
                self._keep_newest_extent(event)
            case Start():
                self.starts.append(event)
            case Expect():
                self.expected.update(event.writers)

    def _keep_newest_extent(self, event: LogExtent) -> None:
        """Keep the newest observation of each log."""
        topic_partition = TopicPartition(event.topic, event.partition)
        newest = self.extents.get(topic_partition)
        if newest is None or (newest.stamp.t_ms, newest.end) < (event.stamp.t_ms, event.end):
            self.extents[topic_partition] = event

    def writers_of(self, group: str) -> list[Writer]:
        """Consumers that announced that they belong to the group."""
        return [self.writers[start.stamp.writer] for start in self.starts if start.group == group]

    def partition_events(self) -> list[PartitionEvents]:
        """Every partition that was acknowledged or delivered, ascending; nothing in it is a copy."""
        topic_partitions = sorted(self.acks.keys() | {key.where for key in self.runs})
        parts_by_partition = {
            topic_partition: PartitionEvents(topic_partition, self.acks.get(topic_partition, []))
            for topic_partition in topic_partitions
        }
        for key, runs in self.runs.items():
            parts_by_partition[key.where].runs[key.group] = runs
        for key, commits in self.commits.items():
            if key.where in parts_by_partition:
                parts_by_partition[key.where].commits[key.group] = commits
        return list(parts_by_partition.values())


def subscription_matches(pattern: str, topic: str) -> bool:
    """True if a subscription holds a topic, as in librdkafka and the Java client: a name, or a pattern that begins with `^`."""
    if not pattern.startswith("^"):
        return pattern == topic
    try:
        return re.match(pattern, topic) is not None
    except re.error:
        return True  # selects too much, so that nothing is overlooked
