"""Many consumer groups at work on one topic, and what the raw log of `__consumer_offsets` says of groups; neither uses kmigrate's clients.

Each group is one consumer of kafka-python that commits what it has processed, with metadata, in a thread of its own. It is not
librdkafka's: of 60 consumers one or two lock themselves up whenever a broker is restarted, and then the whole process (its issue 5476,
open; stack seen with 2.16.1: a leader goes away while the consumer waits for an answer to OffsetForLeaderEpoch).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka import TopicPartition as Place
from kafka import KafkaAdminClient, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError, NoError
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from airflow_provider_kmigrate.core.offsets_topic.offsets_records import OffsetCommitted, OffsetRemoved, decode_record

_COMMIT_S = 0.5
_PRODUCE_S = 0.5
_SILENT_S = 15.0  # one of about 200 of kafka-python's consumers (3.0.12) never asked for its coordinator


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
    next: dict[int, int] = field(default_factory=dict)
    safe: dict[int, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    got_at: float = 0.0
    asked_at: float = 0.0
    committed_at: float = 0.0
    stalled_s: float = 0.0  # the longest time between two commits that succeeded
    failed: int = 0  # how often its consumer ended with an error and was started again
    leaves: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def got(self, partition: int, offset: int) -> None:
        """A record."""
        wanted, safe = self.next.get(partition, offset), self.safe.get(partition, 0)
        if offset > wanted:
            self.wrong.append(f"lost {wanted} to {offset} of {partition}")
        if offset < safe:
            self.wrong.append(f"{offset} of {partition} again, although {safe} was committed")
        self.next[partition] = max(offset + 1, wanted)
        self.got_at = time.monotonic()

    def commit_ended(self, places: Mapping[TopicPartition, OffsetAndMetadata], answer: object) -> None:
        """What became of a commit: an error, or the broker's answer."""
        if not isinstance(answer, Exception):
            self.safe |= {place.partition: committed.offset for place, committed in places.items()}
            now = time.monotonic()
            self.stalled_s, self.committed_at = max(self.stalled_s, now - self.committed_at), now


class LiveGroups:
    """Groups that read one topic, and a producer that keeps it going. `start` and `stop` them while others run."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self.groups: dict[str, LiveGroup] = {}
        self._ended = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
        self._thread = threading.Thread(target=self._produce, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self.stop([name for name, group in self.groups.items() if group.thread])
        self._thread.join(60.0)

    def start(self, names: Iterable[str]) -> None:
        """Each from its group's offsets; from the beginning without any, so that a lost offset shows as a repetition."""
        for name in names:
            group = self.groups.setdefault(name, LiveGroup(name))
            group.committed_at = time.monotonic()
            group.leaves.clear()
            group.thread = threading.Thread(target=self._run, args=(group,), daemon=True)
            group.thread.start()

    def stop(self, names: Iterable[str]) -> None:
        """Leave the groups, with everything committed that was processed."""
        leaving = [self.groups[name] for name in names]
        for group in leaving:
            group.leaves.set()
        for group in leaving:
            assert group.thread is not None
            group.thread.join(60.0)
            assert not group.thread.is_alive(), f"{group.name} did not leave within a minute"
            group.thread = None

    def _produce(self) -> None:
        while not self._ended.wait(_PRODUCE_S):
            self._producer.produce(self._topic, b"a record")
            self._producer.poll(0)

    def _run(self, group: LiveGroup) -> None:
        """As a supervisor runs an application: a consumer that fails, or gets nothing for long, is started again."""
        while not self._left(group):
            group.failed += 1

    def _left(self, group: LiveGroup) -> bool:
        with suppress(KafkaError), closing(self._consumer(group.name)) as consumer:
            group.got_at = time.monotonic()
            while not group.leaves.is_set():
                self._work(group, consumer)
                if time.monotonic() - group.got_at > _SILENT_S:
                    return False
            consumer.pause(*consumer.assignment())
            while group.next != group.safe and not self._ended.is_set():
                self._work(group, consumer)
            return True
        return self._ended.is_set()

    def _consumer(self, name: str) -> KafkaConsumer:
        return KafkaConsumer(
            self._topic,
            bootstrap_servers=self._bootstrap.split(","),
            group_id=name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
            fetch_max_wait_ms=2_000,
        )

    def _work(self, group: LiveGroup, consumer: KafkaConsumer) -> None:
        """Take records, and commit what was processed twice a second."""
        for place, records in consumer.poll(timeout_ms=500).items():
            for record in records:
                group.got(place.partition, record.offset)
        if group.next != group.safe and time.monotonic() - group.asked_at > _COMMIT_S:
            group.asked_at = time.monotonic()
            consumer.commit_async(self._places(group), group.commit_ended)

    def _places(self, group: LiveGroup) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            TopicPartition(self._topic, partition): OffsetAndMetadata(offset, f"by {group.name}", -1)
            for partition, offset in group.next.items()
        }

    def positions(self) -> dict[str, dict[int, int]]:
        """What each group has processed."""
        return {name: dict(group.next) for name, group in self.groups.items()}

    def stalled(self, names: Collection[str]) -> float:
        """The longest time in seconds that one of these groups was without a commit, since this was asked last."""
        found = max(self.groups[name].stalled_s for name in names)
        for name in names:
            self.groups[name].stalled_s = 0.0
        return round(found, 1)


_again = retry(
    retry=retry_if_exception(lambda error: isinstance(error, KafkaError) and bool(error.retriable)),
    stop=stop_after_delay(60.0),
    wait=wait_fixed(0.5),
    reraise=True,
)


@_again
def _offsets(admin: KafkaAdminClient, group: str) -> Any:
    return admin.list_group_offsets(group)


@_again
def _commit(admin: KafkaAdminClient, group: str, place: TopicPartition, offset: int) -> None:
    error = admin.alter_group_offsets(group, {place: OffsetAndMetadata(offset, "", -1)})[place]
    if error is not NoError:
        raise error


def commit(bootstrap: str, groups: Collection[str], topic: str, offset: int) -> None:
    """Commit an offset of the topic's partition 0 for groups without members."""
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as admin:
        for group in groups:
            _commit(admin, group, TopicPartition(topic, 0), offset)


def committed(bootstrap: str, groups: Collection[str]) -> dict[str, dict[tuple[str, int], Committed]]:
    """Each group's offsets, as kafka-python's admin client asks for them.

    Not librdkafka's: its Python binding reads metadata to the next zero byte, which Kafka does not send (seen: UnicodeDecodeError at the
    byte behind the metadata's end).
    """
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as admin:
        found = {group: _offsets(admin, group)[group] for group in sorted(groups)}
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
        if message.error().code() != ConfluentError._PARTITION_EOF:
            raise KafkaException(message.error())
        open_ends.discard(message.partition())
        return
    record = decode_record(message.key(), message.value())
    if isinstance(record, OffsetCommitted | OffsetRemoved):
        place = (record.group, record.topic, record.partition)
        found[place][message.partition()] = record.offset if isinstance(record, OffsetCommitted) else None
