"""Many consumer groups at work on one topic, and what the raw log of `__consumer_offsets` says of groups; neither uses kmigrate's clients.

Each group is one librdkafka consumer that commits what it has processed, with metadata. One thread drives all of them.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from kafka import KafkaAdminClient

from airflow_provider_kmigrate.applications.assignment import close_consumer
from airflow_provider_kmigrate.core.audit.offsets_records import OffsetCommitted, OffsetRemoved, decode
from tests.waiting import wait_until

_COMMIT_S = 0.5
_PRODUCE_S = 0.2


class Committed(NamedTuple):
    """A committed offset with its metadata."""

    offset: int
    metadata: str


@dataclass
class LiveGroup:
    """`next`: by partition, the offset that it must get next; `safe`: what it has committed. `wrong`: records that it lost, or got again.

    A record that comes again although its commit had succeeded shows an offset that was lost, or an old one.
    """

    name: str
    consumer: Consumer | None = None
    next: dict[int, int] = field(default_factory=dict)
    safe: dict[int, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    asked_at: float = 0.0
    committed_at: float = 0.0
    stalled_s: float = 0.0  # the longest time between two commits that succeeded

    def got(self, partition: int, offset: int) -> None:
        """A record."""
        wanted, safe = self.next.get(partition, offset), self.safe.get(partition, 0)
        if offset > wanted:
            self.wrong.append(f"lost {wanted} to {offset} of {partition}")
        if offset < safe:
            self.wrong.append(f"{offset} of {partition} again, although {safe} was committed")
        self.next[partition] = max(offset + 1, wanted)

    def commit_ended(self, error: KafkaError | None, places: Iterable[Place]) -> None:
        """librdkafka's answer to a commit."""
        if error is None and all(place.error is None for place in places):
            self.safe |= {place.partition: place.offset for place in places}
            now = time.monotonic()
            self.stalled_s, self.committed_at = max(self.stalled_s, now - self.committed_at), now


class LiveGroups:
    """Groups that read one topic, and a producer that keeps it going. `start` and `stop` them while others run."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self.groups: dict[str, LiveGroup] = {}
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join(60.0)
        for consumer in [group.consumer for group in self.groups.values() if group.consumer]:
            close_consumer(consumer)

    def start(self, names: Iterable[str]) -> None:
        """Each from its group's offsets; from the beginning without any, so that a lost offset shows as a repetition."""
        for name in names:
            group = self.groups.setdefault(name, LiveGroup(name))
            group.committed_at = time.monotonic()
            consumer = Consumer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "group.id": name,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "session.timeout.ms": 10_000,
                    "fetch.wait.max.ms": 2_000,
                    "on_commit": group.commit_ended,
                    "log_level": 2,
                }
            )
            consumer.subscribe([self._topic])
            with self._lock:
                group.consumer = consumer

    def stop(self, names: Iterable[str]) -> None:
        """Leave the groups, with everything committed that was processed.

        Not by a synchronous commit: librdkafka has no time limit for it (seen: one waited for ever after its coordinator had restarted).
        """
        for name in names:
            with self._lock:
                group = self.groups[name]
                consumer, group.consumer = group.consumer, None
            assert consumer is not None
            consumer.pause(consumer.assignment())
            wait_until(partial(self._settled, group, consumer), f"{name} commits what it processed", 30.0)
            close_consumer(consumer)

    def _run(self) -> None:
        produced = 0.0
        while not self._ended.is_set():
            if time.monotonic() - produced > _PRODUCE_S:
                self._producer.produce(self._topic, b"a record")
                produced = time.monotonic()
            self._producer.poll(0)
            with self._lock:
                for group in self.groups.values():
                    self._step(group)
            self._ended.wait(0.02)

    def _step(self, group: LiveGroup) -> None:
        if group.consumer is not None:
            self._settled(group, group.consumer)

    def _settled(self, group: LiveGroup, consumer: Consumer) -> bool:
        """Take a record and commit, if there is something to take and to commit; True if everything processed is committed."""
        message = consumer.poll(0)
        if message is not None and message.error() is None:
            group.got(message.partition() or 0, message.offset() or 0)
        if group.next != group.safe and time.monotonic() - group.asked_at > _COMMIT_S:
            group.asked_at = time.monotonic()
            with suppress(KafkaException):  # in the middle of a rebalance
                consumer.commit(offsets=self._places(group), asynchronous=True)
        return group.next == group.safe

    def _places(self, group: LiveGroup) -> list[Place]:
        return [Place(self._topic, partition, offset, metadata=f"by {group.name}") for partition, offset in group.next.items()]

    def positions(self) -> dict[str, dict[int, int]]:
        """What each group has processed."""
        with self._lock:
            return {name: dict(group.next) for name, group in self.groups.items()}

    def stalled(self, names: Collection[str]) -> float:
        """The longest time in seconds that one of these groups was without a commit, since this was asked last."""
        with self._lock:
            found = max(self.groups[name].stalled_s for name in names)
            for name in names:
                self.groups[name].stalled_s = 0.0
        return round(found, 1)


def committed(bootstrap: str, groups: Collection[str]) -> dict[str, dict[tuple[str, int], Committed]]:
    """Each group's offsets, as kafka-python's admin client asks for them.

    Not librdkafka's: its Python binding reads metadata to the next zero byte, which Kafka does not send (seen: UnicodeDecodeError at the
    byte behind the metadata's end).
    """
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as admin:
        found = {group: admin.list_group_offsets(group)[group] for group in sorted(groups)}
    return {
        group: {(where.topic, where.partition): Committed(one.offset, one.metadata or "") for where, one in places.items()}
        for group, places in found.items()
    }


class RawCommit(NamedTuple):
    """The newest record of a group's commit in one partition of `__consumer_offsets`; offset None: a tombstone."""

    partition: int
    offset: int | None


def raw_commits(bootstrap: str) -> dict[tuple[str, str, int], list[RawCommit]]:
    """(group, topic, partition) -> its newest record in each partition of `__consumer_offsets` that has one, read from the log."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "raw", "enable.partition.eof": True, "log_level": 2})
    found: dict[tuple[str, str, int], dict[int, int | None]] = defaultdict(dict)
    try:
        topic = "__consumer_offsets"
        open_ends = set(reader.list_topics(topic, 30).topics[topic].partitions)
        reader.assign([Place(topic, partition, OFFSET_BEGINNING) for partition in sorted(open_ends)])
        while open_ends:
            _take(reader.poll(30.0), open_ends, found)
    finally:
        reader.close()
    return {key: [RawCommit(*row) for row in sorted(rows.items())] for key, rows in found.items()}


def _take(message: Any, open_ends: set[int], found: Mapping[tuple[str, str, int], dict[int, int | None]]) -> None:
    if message is None:
        raise TimeoutError(f"the raw log of partitions {sorted(open_ends)} was not read to its end")
    if message.error() is not None:
        if message.error().code() != KafkaError._PARTITION_EOF:
            raise KafkaException(message.error())
        open_ends.discard(message.partition())
        return
    record = decode(message.key(), message.value())
    if isinstance(record, OffsetCommitted | OffsetRemoved):
        place = (record.group, record.topic, record.partition)
        found[place][message.partition()] = record.offset if isinstance(record, OffsetCommitted) else None
