"""Events in a Kafka topic: a record a line, its key the writer.

The topic must keep them all: retention.ms and retention.bytes are -1, and it is not compacted.

A writer's events stay in one partition, in order. The changes of ownership of a group all go to one partition as well, and each is
acknowledged before the member goes on: the offset of the record is then the place in the order that no clock is needed for, which
whoever reads the topic sets as `position`. Other events are sent without waiting, so that a stalled audit topic does not stall
the application; those that a killed process had not sent yet are missing numbers, never missing records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final
from zlib import crc32

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.clients.admin import error_of
from airflow_provider_kmigrate.consumer.event_files import Reading
from airflow_provider_kmigrate.core.audit.event_lines import BadEvent, decode, encode
from airflow_provider_kmigrate.core.events import Event, Ownership
from airflow_provider_kmigrate.exceptions import KMigrateError, TimedOut, Unavailable

_FIXED: Final = {"enable.idempotence": "true", "acks": "all", "linger.ms": "20", "compression.type": "zstd"}
_POLL_S: Final = 0.1
_Delivered = Callable[[KafkaError | None, Message], None]


class TopicSink:
    """An events topic, which must exist. It has a producer of its own: give it its own `client.id` and, where needed, identity.

    `own_timeout`: seconds that a rebalance may wait for the acknowledgement of a change of ownership.
    """

    def __init__(
        self, properties: Mapping[str, str], topic: str, *, own_timeout: float = 5.0, close_timeout: float = 30.0
    ) -> None:
        self.topic = topic
        self._own_timeout, self._close_timeout = own_timeout, close_timeout
        self._failed: KMigrateError | None = None
        try:
            self._producer = Producer({**properties, **_FIXED})
            self._partitions = self._count()
        except KafkaException as error:
            raise error_of(error.args[0], f"the events topic {topic}") from error

    def _count(self) -> int:
        found = self._producer.list_topics(self.topic, timeout=30.0).topics[self.topic]
        if found.error is not None:
            raise error_of(found.error, f"the events topic {self.topic}")
        return len(found.partitions)

    def append(self, writer: str, lines: Sequence[str]) -> None:
        """Hand over without waiting. Raises where lines cannot be queued, or where earlier ones were given up on."""
        partition = self._partition(writer)
        for line in lines:
            self._send(writer, line, partition, self._delivered)
        self._producer.poll(0)
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _partition(self, name: str) -> int:
        return crc32(name.encode()) % self._partitions

    def _send(self, writer: str, line: str, partition: int, on_delivery: _Delivered) -> None:
        try:
            self._producer.produce(self.topic, line, writer, partition, on_delivery=on_delivery)
        except BufferError as error:
            raise Unavailable(f"the queue to the events topic {self.topic} is full") from error
        except KafkaException as error:
            raise error_of(error.args[0], f"the events topic {self.topic}") from error

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed = error_of(error, f"the events topic {self.topic}")

    def own(self, event: Ownership) -> None:
        """Raises `TimedOut` where it is not acknowledged in time; it may be written all the same."""
        answers: list[KafkaError | None] = []
        self._send(event.stamp.writer, encode(event), self._partition(event.group), lambda error, _: answers.append(error))
        deadline = time.monotonic() + self._own_timeout
        while not answers:
            if time.monotonic() > deadline:
                raise TimedOut(f"the events topic {self.topic} did not acknowledge within {self._own_timeout:g} s")
            self._producer.poll(_POLL_S)
        if answers[0] is not None:
            raise error_of(answers[0], f"the events topic {self.topic}")

    def close(self, writer: str, events: int, *, clean: bool) -> None:  # noqa: ARG002  # the stop says it
        """Wait for the acknowledgements that are due; raises `TimedOut`."""
        left = self._producer.flush(self._close_timeout)
        if left:
            raise TimedOut(f"{left} events of {writer} were not acknowledged within {self._close_timeout:g} s")


def placed(event: Event, offset: int) -> Event:
    """An event as it counts when it was read from a topic at this offset."""
    return replace(event, position=offset) if isinstance(event, Ownership) else event


def read_topic(properties: Mapping[str, str], topic: str, timeout: float = 60.0) -> Reading:
    """Everything that the topic held when the reading began; `TimedOut` where that takes longer than `timeout` s.

    For small topics; `audit.sources.stream` brings large ones into files.
    """
    reading = Reading()
    for message in _messages(properties, topic, time.monotonic() + timeout):
        value, where = message.value() or b"", f"{topic}-{message.partition()} offset {message.offset()}"
        try:
            reading.events.append(placed(decode(value.decode(errors="replace")), message.offset() or 0))
        except BadEvent as error:
            reading.refused.append(f"{where} {value[:80]!r}: {error}")
    return reading


def _messages(properties: Mapping[str, str], topic: str, deadline: float) -> Iterator[Message]:
    fixed = {"group.id": "kmigrate-events", "enable.auto.commit": "false", "enable.partition.eof": "true"}
    consumer = Consumer({**properties, **fixed})
    try:
        left = {partition: end for partition, end in _ends(consumer, topic).items() if end}
        consumer.assign([KafkaPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
        while left:
            if time.monotonic() > deadline:
                raise TimedOut(f"the events topic {topic} was not read in time")
            message = consumer.poll(_POLL_S)
            if message is not None and not _ended(message, left):
                yield message
    except KafkaException as error:
        raise error_of(error.args[0], f"the events topic {topic}") from error
    finally:
        consumer.close()


def _ends(consumer: Consumer, topic: str) -> dict[int, int]:
    """Where each partition ends now; 0 for one that is empty."""
    found = consumer.list_topics(topic, timeout=30.0).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    marks = {index: consumer.get_watermark_offsets(KafkaPartition(topic, index), timeout=10.0) for index in found.partitions}
    return {index: end if end > start else 0 for index, (start, end) in marks.items()}


def _ended(message: Message, left: dict[int, int]) -> bool:
    """Whether this is no record to read, but the end of its partition; drops partitions that are read."""
    error, partition, offset = message.error(), message.partition(), message.offset()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
        raise KafkaException(error)
    if partition not in left:
        return True  # written since
    if error is not None or (offset or 0) + 1 >= left[partition]:
        del left[partition]
    return error is not None
