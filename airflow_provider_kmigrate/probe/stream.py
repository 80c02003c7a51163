"""What both ends of a stream of records have written: its progress, and statements about the whole of it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from airflow_provider_kmigrate.applications.event_log import EventLog, EventReader, FileSink
from airflow_provider_kmigrate.clients.admin import connect, read_marks
from airflow_provider_kmigrate.core.events.model import (
    Ack,
    Commit,
    DeliveryRun,
    Event,
    Expect,
    LogExtent,
    Ownership,
    OwnershipChange,
    Start,
    TopicPartition,
    WriterRole,
)
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.probe.kafka_calls import matches_any, partitions_of


class StreamProgress:
    """Call `update` to read the events since the last time."""

    def __init__(self, events: Path) -> None:
        self._reader = EventReader(events)
        self.started: set[str] = set()
        self.acked = 0
        self.producing: set[str] = set()
        self.ends: dict[TopicPartition, int] = {}  # after the last acknowledged record
        self.committed: dict[str, dict[TopicPartition, int]] = defaultdict(dict)  # by group
        self.delivered: dict[str, dict[TopicPartition, int]] = defaultdict(dict)  # by group: after the last delivered record
        self.owners: dict[str, dict[TopicPartition, set[str]]] = defaultdict(lambda: defaultdict(set))

    def update(self) -> StreamProgress:
        """Read the events since the last call; returns itself."""
        for event in self._reader.read().events:
            self._add_event(event)
        return self

    def _add_event(self, event: Event) -> None:
        match event:
            case Start():
                self.started.add(event.stamp.writer)
            case Ack():
                self._add_ack(event)
            case Ownership():
                self._add_ownership(event)
            case DeliveryRun():
                delivered, topic_partition = self.delivered[event.group], TopicPartition(event.topic, event.partition)
                delivered[topic_partition] = max(delivered.get(topic_partition, 0), event.last + 1)
            case Commit(ok=True):
                committed = self.committed[event.group]
                for position in event.offsets:  # attempts are read in any order: an earlier one's last commit may come last
                    topic_partition = TopicPartition(position.topic, position.partition)
                    committed[topic_partition] = max(committed.get(topic_partition, 0), position.offset)

    def _add_ack(self, event: Ack) -> None:
        self.acked += event.count
        self.producing.add(event.stamp.writer)
        topic_partition = TopicPartition(event.topic, event.partition)
        self.ends[topic_partition] = max(self.ends.get(topic_partition, 0), event.last + 1)

    def _add_ownership(self, event: Ownership) -> None:
        for topic_partition in event.partitions:
            owners = self.owners[event.group][topic_partition]
            if event.change is OwnershipChange.ACQUIRED:
                owners.add(event.member)
            else:
                owners.discard(event.member)

    def describe_unowned(self, group: str, partitions: Iterable[TopicPartition]) -> str:
        """What is missing until some member of the group owns each of these partitions; empty: nothing."""
        partitions = set(partitions)
        missing = sorted(topic_partition for topic_partition in partitions if not self.owners[group][topic_partition])
        first = ", ".join(topic_partition.name for topic_partition in missing[:5])
        return (
            f"group {group}: {len(missing)} of {count_of(len(partitions), 'partition')} without an owner ({first})"
            if missing
            else ""
        )

    def count_uncommitted(self, group: str, topics: Sequence[str]) -> int:
        """The number of acknowledged offsets of the topics that the group has not committed."""
        committed = self.committed[group]
        return sum(
            max(0, end - committed.get(topic_partition, 0))
            for topic_partition, end in self.ends.items()
            if matches_any(topics, topic_partition.topic)
        )


def write_expected(events: Path, writers: Sequence[str]) -> None:
    """Write whose events are to come: a writer of which nothing arrives is missing evidence."""
    _write_control(events, "begin", lambda log: log.write(Expect(log.stamp(), tuple(writers))))


def write_extents(events: Path, properties: Mapping[str, str], topics: Sequence[str]) -> None:
    """Write from where to where the logs go, once nothing more is sent. The ledger does with less if no broker answers."""
    _write_control(events, "end", lambda log: _note_extents(log, properties, topics))


def _write_control(events: Path, what: str, write_events: Callable[[EventLog], None]) -> None:
    """Write statements, each by a writer of its own, so that a killed caller leaves no record without its stop."""
    log = EventLog(FileSink(events), f"control-{what}-{os.urandom(3).hex()}")
    log.write(Start(log.stamp(), WriterRole.CONTROL))
    write_events(log)
    log.close(clean=True)


def _note_extents(log: EventLog, properties: Mapping[str, str], topics: Sequence[str]) -> None:
    try:
        names = {topic_partition.topic for topic_partition in partitions_of(connect(properties), topics)}
        marks = read_marks(properties, names)
    except KMigrateError as error:  # the ledger does with less
        log.remark("control-no-extents", str(error))
        return
    for topic_partition, mark in sorted(marks.items()):
        if mark.unread:
            log.remark("control-no-extents", f"{topic_partition.name}: {mark.unread}")
        else:
            log.write(LogExtent(log.stamp(), *topic_partition, mark.start, mark.end, mark.compacted))


def describe_missing(what: str, writers: set[str]) -> str:
    """The writers whose first event of this kind is missing, as a sentence; empty: all have written one."""
    return f"no {what} of {', '.join(sorted(writers))}" if writers else ""
