"""The receiving process: one member of a classic consumer group, which commits its deliveries once a second.

`consumer.audited` has the order of its writes, and its workaround for librdkafka's stall.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.consumer import runs
from airflow_provider_kmigrate.consumer.audited import AuditedConsumer
from airflow_provider_kmigrate.consumer.event_log import FileSink
from airflow_provider_kmigrate.consumer.kafka_calls import kafka_calls
from airflow_provider_kmigrate.consumer.workload.life import Life
from airflow_provider_kmigrate.core.events import TopicPartition

Protocol = Literal["cooperative", "eager"]
DEFAULTS: Final = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
    "session.timeout.ms": "30000",
    "topic.metadata.refresh.interval.ms": "5000",  # of the default 300 s: new topics and partitions are found soon
    "fetch.wait.max.ms": "100",
    "fetch.min.bytes": "65536",  # with the line above: ten fetches a second and broker, however slowly records trickle in
}
_STRATEGY: Final[Mapping[Protocol, str]] = {"cooperative": "cooperative-sticky", "eager": "range"}
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """A receiver's settings.

    `topics`: names, or patterns that begin with `^`. Batches of `batch_s` seconds are written and committed.
    """

    events: Path
    writer: str
    group: str
    properties: Mapping[str, str]
    topics: tuple[str, ...]
    protocol: Protocol = "cooperative"
    batch_s: float = 1.0


class Receiver:
    """Runs until `life` is over; then commits, leaves the group and writes its stop.

    `connect` makes the client from its properties.
    """

    def __init__(self, settings: ReceiverSettings, life: Life, connect: Callable[[dict[str, Any]], Consumer] = Consumer) -> None:
        self._settings = settings
        self._life = life
        self._committed: dict[TopicPartition, int] = {}
        fixed = {
            "group.id": settings.group,
            "client.id": settings.writer,
            "partition.assignment.strategy": _STRATEGY[settings.protocol],
        }
        self._consumer = AuditedConsumer.of(
            {**DEFAULTS, **settings.properties, **fixed},
            FileSink(settings.events),
            writer=settings.writer,
            batch_s=settings.batch_s,
            identify=_content,
            must_write=True,
            connect=connect,
        )

    def run(self) -> None:
        """Receive until the end. Raises ours if librdkafka calls an error fatal."""
        reason = "it ended with an error"
        try:
            self._consumer.subscribe(list(self._settings.topics), on_revoke=self._revoked, on_lost=self._lost)
            self._consume()
            reason = ""
        finally:
            self._consumer.close(clean=not reason, reason=reason)

    def _consume(self) -> None:
        """Polls one record at a time; librdkafka has fetched them anyway, so single polls cost little."""
        now = time.monotonic()
        next_commit = now + self._settings.batch_s
        while not self._life.over:
            message = self._consumer.poll(_POLL_S)
            error = None if message is None else message.error()
            if error is not None and error.fatal():
                with kafka_calls("consuming"):
                    raise KafkaException(error)
            before, now = now, time.monotonic()
            self._consumer.slipped(now - before - _POLL_S)
            if now >= next_commit:
                next_commit = now + self._settings.batch_s
                self._commit()

    def _commit(self) -> None:
        """Commit deliveries that are not committed yet. A refusal is recorded, and retried with the next batch."""
        due = {where: offset for where, offset in self._consumer.positions().items() if self._committed.get(where) != offset}
        if not due:
            return
        try:
            answer = self._consumer.commit(
                offsets=[KafkaPartition(*where, offset) for where, offset in due.items()], asynchronous=False
            )
        except KafkaException:
            return
        failed = {TopicPartition(one.topic, one.partition) for one in answer or () if one.error is not None}
        self._committed |= {where: offset for where, offset in due.items() if where not in failed}

    def _revoked(self, _: AuditedConsumer, partitions: list[KafkaPartition]) -> None:
        self._commit()
        self._lost(_, partitions)

    def _lost(self, _: AuditedConsumer, partitions: list[KafkaPartition]) -> None:
        """Drop uncommitted deliveries: a commit would fail, or overwrite that of another member that owns the partitions already."""
        for one in partitions:
            self._committed.pop(TopicPartition(one.topic, one.partition), None)


def _content(message: Message) -> runs.Content | None:
    return runs.unpack(message.value())
