"""A confluent-kafka consumer that records what it was delivered, committed and owned.

Wrap your own; everything else stays as it is::

    consumer = AuditedConsumer(Consumer(properties), FileSink("/var/log/audit"), reset="earliest")
    consumer = AuditedConsumer.of(properties, TopicSink(properties, "audit-events"))  # knows `reset`, sees automatic commits too

The order of writing makes the record trustworthy:

1. `acquired` is written before the first poll of a partition.
2. Deliveries are written before a commit that covers them is sent: a member killed in between leaves records that are delivered
   again, not committed records without a delivery. (Automatic commits run beside the application: a kill may then leave up to
   `batch_s` of deliveries unwritten; the missing stop shows it.)
3. `released` is written after the commit in the application's `on_revoke`, before the coordinator learns that a partition is
   free.

It also works around librdkafka's stall after a coordinator has moved (`applications.assignment`). A failing sink never stops the
application: the gaps are numbered (`applications.event_log`).
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_CREATE_TIME, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.applications.assignment import (
    COORDINATOR_MOVED,
    RESETS,
    Assignment,
    AssignmentTimeouts,
    close_consumer,
    topic_partition_of,
)
from airflow_provider_kmigrate.applications.event_log import EventLog, Sink, new_writer_name
from airflow_provider_kmigrate.applications.runs import BEAT_S, AuditedClient, Content, DeliveryRuns
from airflow_provider_kmigrate.core.events.model import (
    UNKNOWN_OFFSET,
    Commit,
    DeliveryRun,
    OwnershipChange,
    Position,
    Start,
    TopicPartition,
    WriterRole,
)

Callback = Callable[[Any, list[KafkaPartition]], object]
Identify = Callable[[Message], Content | None]
METADATA_MAGIC: Final = b"CGMDv2:"


class Membership(NamedTuple):
    """The content of librdkafka's opaque group metadata; `generation` None: in no generation now."""

    group: str
    generation: int | None


def parse_group_metadata(metadata: bytes | None) -> Membership | None:
    """Parse librdkafka's group metadata: its magic, an int32 in the machine's byte order, the group's name up to a zero byte."""
    if metadata is None or not metadata.startswith(METADATA_MAGIC) or len(metadata) < len(METADATA_MAGIC) + 4:
        return None
    (generation,) = struct.unpack_from("=i", metadata, len(METADATA_MAGIC))
    name, _, _ = metadata[len(METADATA_MAGIC) + 4 :].partition(b"\0")
    return Membership(name.decode(errors="replace"), generation if generation >= 0 else None)


class AuditedConsumer(AuditedClient):
    """One member of a group, wrapping `consumer`; methods without a description, and all other methods, are the consumer's own.

    `reset` is its auto.offset.reset; None if unknown: then nothing is claimed about what the group had to be delivered before its
    first record, and partitions without a commit are left to librdkafka. `incremental`: see `Assignment`. Deliveries are
    written every `batch_s` seconds and before every commit. After `beat_s` seconds without a poll a thread writes them and the heartbeats
    (`applications.runs`), unless it `must_write`: a thread could not report a failure. `identify` gives the number of a record that
    carries one. Raises if the sink cannot be written at the start.
    """

    def __init__(
        self,
        consumer: Consumer,
        sink: Sink,
        *,
        reset: str | None = None,
        incremental: bool | None = None,
        writer: str | None = None,
        batch_s: float = 1.0,
        beat_s: float = BEAT_S,
        identify: Identify | None = None,
        timeouts: AssignmentTimeouts | None = None,
        must_write: bool = False,
    ) -> None:
        group_metadata = parse_group_metadata(consumer.consumer_group_metadata())
        self.group = group_metadata.group if group_metadata else ""
        super().__init__(EventLog(sink, writer or new_writer_name(self.group), must_write=must_write), batch_s, beat_s)
        self._consumer = consumer
        self._reset = reset
        self._identify: Identify = identify or (lambda _: None)
        self._runs = DeliveryRuns(self.group, self.log.writer)
        self._assignment = Assignment(consumer, self.log.remark, reset, timeouts, incremental=incremental)
        self._generation: int | None = None
        self._callbacks: dict[str, Callback | None] = {}
        self._assigned_by_application = False
        self._started = self._closing = self._closed = False
        self._never_began: set[TopicPartition] = set()  # given while it closed
        self._beats = not must_write

    @classmethod
    def of(
        cls,
        properties: Mapping[str, Any],
        sink: Sink,
        *,
        connect: Callable[[dict[str, Any]], Any] = Consumer,
        **options: Any,
    ) -> Self:
        """Wrap a new consumer, which `connect` makes. `on_commit` in the properties is still called, and its arguments are recorded.

        Its `writer` begins with the properties' `consumer.id` or `client.id`, which identifies the instance.
        """
        wrappers: list[Self] = []
        on_commit = properties.get("on_commit")

        def handle_commit(error: KafkaError | None, partitions: list[KafkaPartition]) -> None:
            for audited in wrappers:
                audited._record_commit(partitions, error)  # noqa: SLF001
            if on_commit is not None:
                on_commit(error, partitions)

        instance_name = properties.get("consumer.id") or properties.get("client.id")
        defaults = {"reset": str(properties.get("auto.offset.reset", "latest")), "incremental": _is_incremental(properties)}
        defaults |= {"writer": new_writer_name(f"{instance_name}-")} if instance_name else {}
        wrappers.append(cls(connect({**properties, "on_commit": handle_commit}), sink, **{**defaults, **options}))
        return wrappers[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def subscribe(
        self,
        topics: list[str],
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """As the consumer's; callbacks get this wrapper."""
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost or on_revoke}
        self._record_start(topics)
        self._consumer.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def _record_start(self, topics: Iterable[str]) -> None:
        """Record a start. A further subscription is another start: its topics must be delivered too."""
        names = tuple(sorted(topics))
        first, self._started = not self._started, True
        reset = "earliest" if RESETS.get(self._reset or "") == OFFSET_BEGINNING else "latest"
        self.log.write(Start(self.log.stamp(), WriterRole.CONSUMER, group=self.group, topics=names, reset=reset))
        self.log.flush()
        if first and self._beats:
            self._pulse.start()

    def poll(self, timeout: float | None = None) -> Message | None:
        """As the consumer's. A long wait is cut into pieces of `batch_s`, so that deliveries are written meanwhile."""
        deadline = math.inf if timeout is None or timeout < 0 else time.monotonic() + timeout
        while True:
            remaining_s = max(0.0, deadline - time.monotonic())
            message = self._consumer.poll(min(remaining_s, self._batch_s))
            self._record_messages(() if message is None else (message,))
            if message is not None or remaining_s <= self._batch_s:
                return message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """As the consumer's, not cut into pieces: librdkafka drops a batch's records of partitions that a rebalance took meanwhile."""
        messages = self._consumer.consume(num_messages, timeout)
        self._record_messages(messages)
        return messages

    def _record_messages(self, messages: Sequence[Message]) -> None:
        with self._lock:
            now_ms = self.log.clock.now_ms() if messages else 0
            for message in messages:
                error = message.error()
                if error is None:
                    self._record_delivery(message, now_ms)
                else:
                    self._handle_error(error)
            self._write_if_due()
            if not messages:
                self._assignment.reassign_stalled()

    def _record_delivery(self, message: Message, now_ms: int) -> None:
        topic_partition, offset = partition_and_offset(message)
        content = self._identify(message)
        self._runs.add_delivery(
            topic_partition, offset, now_ms, _sent_ms(message) if content is None else content.t_sent_ms, content
        )
        self._assignment.record_delivery(topic_partition, offset)

    def _handle_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return
        self.log.remark("consumer-error", f"{error.name()}: {error.str()}")
        if error.code() in COORDINATOR_MOVED:
            self._assignment.on_coordinator_moved()

    def _drain_events(self) -> Iterator[DeliveryRun]:
        return self._runs.drain(self.log.stamp, self._generation)

    def commit(self, *args: Any, **kwargs: Any) -> list[KafkaPartition] | None:
        """As the consumer's, after all deliveries are written."""
        self._write_events()
        try:
            answer: list[KafkaPartition] | None = self._consumer.commit(*args, **kwargs)
        except KafkaException as error:
            self._record_commit(offsets_to_commit(*args, **kwargs), error.args[0])
            raise
        if answer is not None:
            self._record_commit(answer, None)
        return answer

    def _record_commit(self, partitions: Iterable[KafkaPartition], error: KafkaError | None) -> None:
        """Write one event for the accepted partitions and one for each kind of refusal; deliveries are written before.

        An automatic commit is recorded when it is made: events read just then, or after a kill, must not show a commit without
        its delivery.
        """
        positions_by_error: dict[str | None, list[Position]] = {}
        for partition in partitions:
            cause = partition.error or error
            if partition.offset >= 0:
                positions_by_error.setdefault(cause.name() if cause else None, []).append(
                    Position(partition.topic, partition.partition, partition.offset)
                )
        with self._lock:
            self._write_events()
            for error_name, positions in positions_by_error.items():
                stamp, ok = self.log.stamp(), error_name is None
                self.log.write(Commit(stamp, self.group, self.writer, self._generation, tuple(positions), ok, error_name))
            self.log.flush()

    def assign(self, partitions: list[KafkaPartition]) -> None:
        """As the consumer's; replaces what is held. In `on_assign` it replaces this wrapper's own assignment."""
        self._assigned_by_application = True
        if not self._started:
            self._record_start({partition.topic for partition in partitions})
        self._consumer.assign(partitions)
        self._assignment.clear()
        self._assignment.hold(partitions)

    def incremental_assign(self, partitions: list[KafkaPartition]) -> None:
        """As the consumer's; adds to what is held. In `on_assign` it replaces this wrapper's own assignment."""
        self._assigned_by_application = True
        self._consumer.incremental_assign(partitions)
        self._assignment.hold(partitions)

    def incremental_unassign(self, partitions: list[KafkaPartition]) -> None:
        """As the consumer's; removes from what is held."""
        self._consumer.incremental_unassign(partitions)
        self._assignment.drop(partitions)

    def unassign(self) -> None:
        """As the consumer's; nothing is held afterwards."""
        self._consumer.unassign()
        self._assignment.clear()

    def seek(self, partition: KafkaPartition) -> None:
        """As the consumer's; the position that `watch` assigns again follows it."""
        self._consumer.seek(partition)
        self._assignment.record_seek(topic_partition_of(partition), partition.offset)

    def pause(self, partitions: list[KafkaPartition]) -> None:
        """As the consumer's; paused partitions are not assigned again by `watch`."""
        self._consumer.pause(partitions)
        self._assignment.pause(partitions, paused=True)

    def resume(self, partitions: list[KafkaPartition]) -> None:
        """As the consumer's; ends `pause`."""
        self._consumer.resume(partitions)
        self._assignment.pause(partitions, paused=False)

    def positions(self) -> dict[TopicPartition, int]:
        """The offset after the last record of each held partition that delivered one."""
        return self._assignment.positions()

    def _on_assign(self, _: Consumer, partitions: list[KafkaPartition]) -> None:
        """Assign; while it closes, ask the group nothing: no coordinator answers.

        It took 20 s until the time-out, or raised an error out of `close` (measured, 2.16.1). Ownership is not recorded then: it reads
        none of these, and librdkafka does not always report that it gave them up.
        """
        if self._closing:
            self._never_began |= {topic_partition_of(partition) for partition in partitions}
            self._run_callback("assign", partitions)
            return
        self._write_events()  # it belongs to the previous generation
        group_metadata = parse_group_metadata(self._consumer.consumer_group_metadata())
        self._generation = group_metadata.generation if group_metadata else None
        starts = self._assignment.resolve_starts(partitions)
        self._record_ownership(OwnershipChange.ACQUIRED, starts, starts=[max(UNKNOWN_OFFSET, start.offset) for start in starts])
        self._assigned_by_application = False
        try:
            self._run_callback("assign", starts)
        finally:  # if the callback raises, librdkafka assigns them all the same
            if not self._assigned_by_application:
                self._assignment.assign(starts)
                self._assignment.hold(starts)

    def _on_revoke(self, _: Consumer, partitions: list[KafkaPartition]) -> None:
        """Record the release even if the callback raises: librdkafka releases the partitions all the same."""
        try:
            self._run_callback("revoke", partitions)
        finally:
            self._write_events()
            self._record_ownership(OwnershipChange.RELEASED, partitions)
            self._assignment.drop(partitions)

    def _on_lost(self, _: Consumer, partitions: list[KafkaPartition]) -> None:
        """Record the loss: another member may own these already."""
        self._write_events()
        self._record_ownership(OwnershipChange.LOST, partitions, until_ms=self._ownership_end_ms(partitions))
        self._assignment.drop(partitions)
        self._run_callback("lost", partitions)

    def _run_callback(self, name: str, partitions: list[KafkaPartition]) -> None:
        if (callback := self._callbacks.get(name)) is not None:
            callback(self, partitions)

    def _ownership_end_ms(self, partitions: Iterable[KafkaPartition]) -> int | None:
        """When ownership of these ended, if the consumer knows it; never before the last delivery from them."""
        until: float | None = getattr(self._consumer, "ours_until", None)
        if until is None:
            return None
        delivery_times_ms = (self._runs.last_delivery_ms(topic_partition_of(partition)) for partition in partitions)
        return max([self.log.clock.at_ms(until), *(ms for ms in delivery_times_ms if ms is not None)])

    def _record_ownership(
        self,
        change: OwnershipChange,
        partitions: Sequence[KafkaPartition],
        *,
        until_ms: int | None = None,
        starts: Sequence[int] = (),
    ) -> None:
        topic_partitions = [
            topic_partition for topic_partition in map(topic_partition_of, partitions) if topic_partition not in self._never_began
        ]
        if topic_partitions:
            self.log.write_ownership(self.group, self._generation, change, topic_partitions, until_ms=until_ms, starts=starts)

    def close(self, *, clean: bool = True, reason: str = "") -> None:
        """As the consumer's; then write the last event. May be repeated."""
        was_closing, self._closing = self._closing, True
        try:  # revokes, which writes and releases
            if was_closing or not isinstance(self._consumer, Consumer):
                self._consumer.close()
            else:
                close_consumer(self._consumer)
        finally:
            with self._lock:
                self._stopped.set()
                if not self._closed and self._started:
                    self._closed = True
                    self._write_events()
                    self.log.close(clean=clean, reason=reason)


def _is_incremental(properties: Mapping[str, Any]) -> bool:
    """Librdkafka refuses to mix both protocols in one list of strategies; a KIP-848 group knows only this one."""
    strategies = str(properties.get("partition.assignment.strategy", ""))
    return "cooperative-sticky" in strategies or str(properties.get("group.protocol", "")).lower() == "consumer"


def partition_and_offset(message: Message) -> tuple[TopicPartition, int]:
    """Partition and offset of a delivered or acknowledged record; the offset is negative if unknown."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    return TopicPartition(topic or "", -1 if partition is None else partition), -1 if offset is None else offset


def _sent_ms(message: Message) -> int | None:
    kind, value = message.timestamp()
    return int(value) if kind == TIMESTAMP_CREATE_TIME and value >= 0 else None


def offsets_to_commit(
    message: Message | None = None, offsets: list[KafkaPartition] | None = None, asynchronous: bool = True
) -> list[KafkaPartition]:
    """The partitions and offsets that these arguments of a commit name."""
    del asynchronous
    if message is not None:
        topic_partition, offset = partition_and_offset(message)
        return [KafkaPartition(*topic_partition, offset + 1)]
    return offsets or []
