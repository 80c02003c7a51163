"""The newest stretch of `__consumer_offsets`, read as any consumer reads a topic; nothing is committed, and no group is made."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from airflow_provider_kmigrate.clients.admin import error_of
from airflow_provider_kmigrate.core.audit.offsets_records import RawRecord
from airflow_provider_kmigrate.core.internal_topics import OFFSETS_TOPIC
from airflow_provider_kmigrate.exceptions import TimedOut

_FIXED: Final = {
    "group.id": "kmigrate-inventory",
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "earliest",  # where retention or compaction has removed the beginning meanwhile
    "log_level": "0",
}
_AT_ONCE: Final = 5_000
_POLL_S: Final = 0.5


def recent(properties: Mapping[str, Any], since_ms: int, most: int = 1_000_000, timeout: float = 60.0) -> list[RawRecord]:
    """What was written since then, the records of each partition in their order; empty where the topic does not exist.

    Of a partition with very many, the last ones only: `most` shared out among all. Our user needs READ on the topic. Raises ours;
    `TimedOut` where it takes longer than `timeout` s.
    """
    deadline = time.monotonic() + timeout
    try:
        consumer = Consumer({**properties, **_FIXED})
    except KafkaException as error:
        raise error_of(error.args[0], "the properties of a Kafka connection") from error
    try:
        starts = _starts(consumer, since_ms, most, timeout)
        consumer.assign(starts)
        return sorted(_read(consumer, {one.partition for one in starts}, deadline))
    except KafkaException as error:
        raise error_of(error.args[0], f"reading {OFFSETS_TOPIC}") from error
    finally:
        consumer.close()


def _starts(consumer: Consumer, since_ms: int, most: int, timeout: float) -> list[TopicPartition]:
    """Where to begin in each partition that has something to read. What a partition does not tell is not nothing: that raises."""
    topic = consumer.list_topics(timeout=timeout).topics.get(OFFSETS_TOPIC)
    if topic is None:
        return []
    if topic.error is not None:
        raise KafkaException(topic.error)
    partitions = sorted(topic.partitions)
    found = consumer.offsets_for_times([TopicPartition(OFFSETS_TOPIC, index, since_ms) for index in partitions], timeout)
    if refused := [one.error for one in found if one.error is not None]:
        raise KafkaException(refused[0])
    starts = []
    for one in (one for one in found if one.offset >= 0):  # negative: nothing was written since
        end = consumer.get_watermark_offsets(TopicPartition(OFFSETS_TOPIC, one.partition), timeout)[1]
        starts.append(TopicPartition(OFFSETS_TOPIC, one.partition, max(one.offset, end - most // len(partitions))))
    return starts


def _read(consumer: Consumer, left: set[int], deadline: float) -> Iterator[RawRecord]:
    """Up to the ends; a partition that grows meanwhile ends where it was once caught up with."""
    while left:
        if time.monotonic() > deadline:
            raise TimedOut(f"{OFFSETS_TOPIC} was not read in time; {len(left)} of its partitions are left")
        for message in consumer.consume(_AT_ONCE, _POLL_S):
            if (error := message.error()) is None:
                yield _record(message)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                left.discard(message.partition() or 0)
            else:
                raise KafkaException(error)


def _record(message: Message) -> RawRecord:
    key: Any = message.key()
    value: Any = message.value()
    return RawRecord(message.partition() or 0, message.offset() or 0, message.timestamp()[1], key, value)
