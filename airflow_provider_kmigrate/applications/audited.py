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
    place,
)
from airflow_provider_kmigrate.applications.event_log import EventLog, Sink, new_writer
from airflow_provider_kmigrate.applications.runs import BEAT_S, AuditedClient, Content, DeliveryRuns
from airflow_provider_kmigrate.core.events import (
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


def membership(metadata: bytes | None) -> Membership | None:
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
        found = membership(consumer.consumer_group_metadata())
        self.group = found.group if found else ""
        super().__init__(EventLog(sink, writer or new_writer(self.group), must_write=must_write), batch_s, beat_s)
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
        made: list[Self] = []
        theirs = properties.get("on_commit")

        def committed(error: KafkaError | None, partitions: list[KafkaPartition]) -> None:
            for audited in made:
                audited._committed(partitions, error)  # noqa: SLF001
            if theirs is not None:
                theirs(error, partitions)

        named = properties.get("consumer.id") or properties.get("client.id")
        known = {"reset": str(properties.get("auto.offset.reset", "latest")), "incremental": _is_incremental(properties)}
        known |= {"writer": new_writer(f"{named}-")} if named else {}
        made.append(cls(connect({**properties, "on_commit": committed}), sink, **{**known, **options}))
        return made[0]

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
        self._begin(topics)
        self._consumer.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def _begin(self, topics: Iterable[str]) -> None:
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
            left = max(0.0, deadline - time.monotonic())
            message = self._consumer.poll(min(left, self._batch_s))
            self._took(() if message is None else (message,))
            if message is not None or left <= self._batch_s:
                return message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """As the consumer's, not cut into pieces: librdkafka drops a batch's records of partitions that a rebalance took meanwhile."""
        messages = self._consumer.consume(num_messages, timeout)
        self._took(messages)
        return messages

    def _took(self, messages: Sequence[Message]) -> None:
        with self._lock:
            now_ms = self.log.clock.now_ms() if messages else 0
            for message in messages:
                error = message.error()
                if error is None:
                    self._delivered(message, now_ms)
                else:
                    self._failed(error)
            self._write_in_time()
            if not messages:
                self._assignment.watch()

    def _delivered(self, message: Message, now_ms: int) -> None:
        where, offset = place_of(message)
        content = self._identify(message)
        self._runs.add(where, offset, now_ms, _sent_ms(message) if content is None else content.t_sent_ms, content)
        self._assignment.delivered(where, offset)

    def _failed(self, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return
        self.log.remark("consumer-error", f"{error.name()}: {error.str()}")
        if error.code() in COORDINATOR_MOVED:
            self._assignment.coordinator_moved()

    def _drained(self) -> Iterator[DeliveryRun]:
        return self._runs.drain(self.log.stamp, self._generation)

    def commit(self, *args: Any, **kwargs: Any) -> list[KafkaPartition] | None:
        """As the consumer's, after all deliveries are written."""
        self._write()
        try:
            answer: list[KafkaPartition] | None = self._consumer.commit(*args, **kwargs)
        except KafkaException as error:
            self._committed(requested(*args, **kwargs), error.args[0])
            raise
        if answer is not None:
            self._committed(answer, None)
        return answer

    def _committed(self, partitions: Iterable[KafkaPartition], error: KafkaError | None) -> None:
        """Write one event for the accepted partitions and one for each kind of refusal; deliveries are written before.

        An automatic commit is recorded when it is made: events read just then, or after a kill, must not show a commit without
        its delivery.
        """
        answers: dict[str | None, list[Position]] = {}
        for one in partitions:
            cause = one.error or error
            if one.offset >= 0:
                answers.setdefault(cause.name() if cause else None, []).append(Position(one.topic, one.partition, one.offset))
        with self._lock:
            self._write()
            for refused, found in answers.items():
                stamp, ok = self.log.stamp(), refused is None
                self.log.write(Commit(stamp, self.group, self.writer, self._generation, tuple(found), ok, refused))
            self.log.flush()

    def assign(self, partitions: list[KafkaPartition]) -> None:
        """As the consumer's; replaces what is held. In `on_assign` it replaces this wrapper's own assignment."""
        self._assigned_by_application = True
        if not self._started:
            self._begin({one.topic for one in partitions})
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
        self._assignment.moved(place(partition), partition.offset)

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
            self._never_began |= {place(one) for one in partitions}
            self._call("assign", partitions)
            return
        self._write()  # it belongs to the previous generation
        found = membership(self._consumer.consumer_group_metadata())
        self._generation = found.generation if found else None
        starts = self._assignment.starts(partitions)
        self._own(OwnershipChange.ACQUIRED, starts, starts=[max(UNKNOWN_OFFSET, one.offset) for one in starts])
        self._assigned_by_application = False
        try:
            self._call("assign", starts)
        finally:  # if the callback raises, librdkafka assigns them all the same
            if not self._assigned_by_application:
                self._assignment.assign(starts)
                self._assignment.hold(starts)

    def _on_revoke(self, _: Consumer, partitions: list[KafkaPartition]) -> None:
        """Record the release even if the callback raises: librdkafka releases the partitions all the same."""
        try:
            self._call("revoke", partitions)
        finally:
            self._write()
            self._own(OwnershipChange.RELEASED, partitions)
            self._assignment.drop(partitions)

    def _on_lost(self, _: Consumer, partitions: list[KafkaPartition]) -> None:
        """Record the loss: another member may own these already."""
        self._write()
        self._own(OwnershipChange.LOST, partitions, until_ms=self._ended_ms(partitions))
        self._assignment.drop(partitions)
        self._call("lost", partitions)

    def _call(self, name: str, partitions: list[KafkaPartition]) -> None:
        if (callback := self._callbacks.get(name)) is not None:
            callback(self, partitions)

    def _ended_ms(self, partitions: Iterable[KafkaPartition]) -> int | None:
        """When ownership of these ended, if the consumer knows it; never before the last delivery from them."""
        until: float | None = getattr(self._consumer, "ours_until", None)
        if until is None:
            return None
        delivered = (self._runs.last_ms(place(one)) for one in partitions)
        return max([self.log.clock.at_ms(until), *(ms for ms in delivered if ms is not None)])

    def _own(
        self,
        change: OwnershipChange,
        partitions: Sequence[KafkaPartition],
        *,
        until_ms: int | None = None,
        starts: Sequence[int] = (),
    ) -> None:
        places = [where for where in map(place, partitions) if where not in self._never_began]
        if places:
            self.log.own(self.group, self._generation, change, places, until_ms=until_ms, starts=starts)

    def close(self, *, clean: bool = True, reason: str = "") -> None:
        """As the consumer's; then write the last event. May be repeated."""
        again, self._closing = self._closing, True
        try:  # revokes, which writes and releases
            if again or not isinstance(self._consumer, Consumer):
                self._consumer.close()
            else:
                close_consumer(self._consumer)
        finally:
            with self._lock:
                self._stopped.set()
                if not self._closed and self._started:
                    self._closed = True
                    self._write()
                    self.log.close(clean=clean, reason=reason)


def _is_incremental(properties: Mapping[str, Any]) -> bool:
    """Librdkafka refuses to mix both protocols in one list of strategies; a KIP-848 group knows only this one."""
    strategies = str(properties.get("partition.assignment.strategy", ""))
    return "cooperative-sticky" in strategies or str(properties.get("group.protocol", "")).lower() == "consumer"


def place_of(message: Message) -> tuple[TopicPartition, int]:
    """Partition and offset of a delivered or acknowledged record; the offset is negative if unknown."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    return TopicPartition(topic or "", -1 if partition is None else partition), -1 if offset is None else offset


def _sent_ms(message: Message) -> int | None:
    kind, value = message.timestamp()
    return int(value) if kind == TIMESTAMP_CREATE_TIME and value >= 0 else None


def requested(
    message: Message | None = None, offsets: list[KafkaPartition] | None = None, asynchronous: bool = True
) -> list[KafkaPartition]:
    """The partitions and offsets that these arguments of a commit name."""
    del asynchronous
    if message is not None:
        where, offset = place_of(message)
        return [KafkaPartition(*where, offset + 1)]
    return offsets or []
