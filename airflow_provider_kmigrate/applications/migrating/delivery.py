"""The delivery buffer: which fetched records may be returned by the rule of `core.member.membership`, and positions.

Only the application's thread uses it. The check costs a dictionary look-up a record. A record that arrives while its partition
may not be delivered is dropped; the partition is fetched again from the application's position as soon as it may be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.applications.assignment import RESETS, topic_partition_of
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.state import DeliveryPermit, Member, delivery_permit

_ANSWER_S: Final = 5.0

_AHEAD: Final = 500
_error = Message.error
_topic: Callable[[Message], str] = Message.topic  # type: ignore[assignment]  # a record that is no error has all three
_partition: Callable[[Message], int] = Message.partition  # type: ignore[assignment]
_offset: Callable[[Message], int] = Message.offset  # type: ignore[assignment]


@dataclass(slots=True)
class Active:
    """One partition that the application holds. `position`: after the last returned record; negative: none yet.

    `start`: where its generation began; `asked`: the last offset that a commit was requested for, `committed`: the last accepted
    one; `fetches`: the data consumer has it assigned; `paused`: by the application.
    """

    generation: int
    start: int
    position: int
    committed: int
    asked: int = OFFSET_INVALID
    fetches: bool = False
    paused: bool = False

    @classmethod
    def starting_at(cls, generation: int, offset: int | None) -> Active:
        """A partition whose delivery begins at `offset`; None: at the reset policy."""
        start = OFFSET_INVALID if offset is None else offset
        return cls(generation, start, start, start, start)

    @property
    def uncommitted_offset(self) -> int | None:
        """The offset to commit: the position, unless it was requested last."""
        return self.position if self.position >= 0 and self.position != self.asked else None

    def covers(self, offset: int) -> bool:
        """True if a commit of this offset is about records that this generation got."""
        return self.position >= 0 and min(self.start, self.position) <= offset <= self.position


class DeliveryBuffer:
    """All partitions that the application holds, and the consumer that fetches them.

    As long as every fetched partition may be delivered, which is checked again whenever the member changes, nothing is done
    record by record: librdkafka drops what it fetched for an older assignment, and knows each partition's position. Reading
    `active` brings the positions up to date.
    """

    def __init__(self, consumer: Consumer, reset: str) -> None:
        self._active: dict[TopicPartition, Active] = {}
        self._consumer = consumer
        self._reset = RESETS.get(reset, OFFSET_END)
        self._halted: set[TopicPartition] = set()
        self._ahead: list[Message] = []  # fetched; the first `_at` were returned, and the first `_known` are in the positions
        self._at = self._known = 0
        self._taken_unseen = False  # whole batches were returned since positions were known
        self._member: Member | None = None
        self._permit = DeliveryPermit({}, float("-inf"))
        self._all_until = float("-inf")  # until when all that is fetched may be returned, as long as the member does not change

    @property
    def active(self) -> dict[TopicPartition, Active]:
        """The partitions; the caller may change them until records are requested again."""
        self._update_positions()
        self._member = None
        return self._active

    def _update_positions(self) -> None:
        """Set every position to after the last returned record."""
        if self._taken_unseen:
            fetched = [
                KafkaPartition(*topic_partition)
                for topic_partition, active_partition in self._active.items()
                if active_partition.fetches
            ]
            for partition in self._consumer.position(fetched):
                if partition.offset >= 0:
                    self._active[topic_partition_of(partition)].position = partition.offset
            for message in reversed(self._ahead[self._at :]):  # librdkafka has returned them to us, we not to the application
                self._set_position(message, 0)
        else:
            for message in self._ahead[self._known : self._at]:
                self._set_position(message, 1)
        self._known, self._taken_unseen = self._at, False

    def _set_position(self, message: Message, behind: int) -> None:
        active_partition = None if message.error() is not None else self._active.get((_topic(message), _partition(message)))  # type: ignore[call-overload]
        if active_partition is not None and active_partition.fetches:
            active_partition.position = _offset(message) + behind

    def _read_permits(self, member: Member) -> None:
        """Read what this member may deliver, if it is not known."""
        if member is self._member:
            return
        self._member, self._permit = member, delivery_permit(member)
        permitted_generations = self._permit.generations
        may_deliver_all = all(
            permitted_generations.get(topic_partition) == active_partition.generation
            for topic_partition, active_partition in self._active.items()
            if active_partition.fetches
        )
        self._all_until = self._permit.until if may_deliver_all else float("-inf")

    def may_deliver(self, member: Member, topic_partition: TopicPartition) -> bool:
        """True if its records may be returned now."""
        self._read_permits(member)
        active_partition = self._active.get(topic_partition)
        return active_partition is not None and self._permit.allows(
            topic_partition, active_partition.generation, time.monotonic()
        )

    def _may_deliver_all(self, member: Member, now: float) -> bool:
        self._read_permits(member)
        return now < self._all_until

    def take_fetched_record(self, member: Member, now: float) -> Message | None:
        """The next record that is fetched already, if all of them may be returned; this call is the price of a record."""
        if self._at < len(self._ahead) and (
            now < self._all_until if member is self._member else self._may_deliver_all(member, now)
        ):
            message = self._ahead[self._at]
            self._at += 1
            return message
        return None

    def next_message(self, member: Member, timeout: float) -> Message | None:
        """One record or error. librdkafka returns many at a time; each is checked when it is returned."""
        if self._at == len(self._ahead):
            self._replace_batch(self._consumer.consume(_AHEAD, 0) or self._consumer.consume(1, timeout))
        message = self.take_fetched_record(member, time.monotonic())
        if message is not None:
            return message
        return next((fetched for fetched in self._take_remaining() if self.accept_message(member, fetched)), None)

    def _replace_batch(self, messages: list[Message]) -> None:
        """Replace a batch that was returned whole."""
        self._taken_unseen |= self._known < self._at
        self._ahead, self._at, self._known = messages, 0, 0

    def _take_remaining(self) -> Iterator[Message]:
        """The remaining fetched records, one by one."""
        self._update_positions()
        while self._at < len(self._ahead):
            message = self._ahead[self._at]
            self._at = self._known = self._at + 1
            yield message

    def next_messages(self, member: Member, count: int, timeout: float) -> list[Message]:
        """At most `count` records or errors. Records fetched earlier are returned first, without new ones."""
        if self._at < len(self._ahead):
            return list(islice((message for message in self._take_remaining() if self.accept_message(member, message)), count))
        messages = self._consumer.consume(count, timeout)
        if self._may_deliver_all(member, time.monotonic()):
            self._taken_unseen |= bool(messages)
            return messages  # the application's from here on: it may empty the list
        self._replace_batch(messages)
        return [message for message in self._take_remaining() if self.accept_message(member, message)]

    def _drop_fetched(self, topic_partition: TopicPartition) -> None:
        """Skip its fetched records: they are not what comes next."""
        unreturned = self._ahead[self._at :]
        self._replace_batch(
            [
                message
                for message in unreturned
                if message.error() is not None or (message.topic(), message.partition()) != topic_partition
            ]
        )

    def accept_message(self, member: Member, message: Message) -> bool:
        """Count a fetched record as returned and say if it may be; an error is passed as it is."""
        if message.error() is not None:
            return True
        topic_partition: TopicPartition = (_topic(message), _partition(message))  # type: ignore[assignment]  # equal to one, and cheaper
        active_partition, offset = self._active.get(topic_partition), _offset(message)
        if active_partition is None or not active_partition.fetches:
            return False
        if not self.may_deliver(member, topic_partition):
            self.halt(TopicPartition(*topic_partition))  # fetched again once its records may be returned
            return False
        if offset < active_partition.position:
            return False
        active_partition.position = offset + 1
        return True

    def position_of(self, topic_partition: TopicPartition) -> KafkaPartition:
        """The partition at the position of its next record, as librdkafka takes it."""
        return KafkaPartition(*topic_partition, self.active[topic_partition].position)

    def fetch(self, partitions: list[KafkaPartition]) -> None:
        """Fetch from the offsets that they carry. Partitions that are not held are ignored."""
        held_partitions = [partition for partition in partitions if topic_partition_of(partition) in self.active]
        for partition in held_partitions:
            active_partition = self.active[topic_partition_of(partition)]
            self._drop_fetched(topic_partition_of(partition))
            partition.offset = self._resolve_start_offset(partition)
            active_partition.position, active_partition.fetches = partition.offset, True
            active_partition.start = (
                partition.offset if active_partition.start < 0 else min(active_partition.start, partition.offset)
            )
            self._halted.discard(topic_partition_of(partition))
        if held_partitions:
            self._consumer.incremental_assign(held_partitions)
        self._pause_fetching(
            [partition for partition in held_partitions if self.active[topic_partition_of(partition)].paused], paused=True
        )

    def _resolve_start_offset(self, partition: KafkaPartition) -> int:
        """The start of a partition as a number, also if only "the beginning" or "the end" is known.

        A number is committed like any position, so that a next owner begins there too, whatever its own reset; and fetching again
        skips nothing.
        """
        start_offset = self._reset if partition.offset == OFFSET_INVALID else partition.offset
        if start_offset >= 0:
            return start_offset
        try:
            low, end = self._consumer.get_watermark_offsets(partition, timeout=_ANSWER_S, cached=False)
        except KafkaException:
            return start_offset
        return int(low if start_offset == OFFSET_BEGINNING else end)

    def stop_fetching(self, partitions: list[KafkaPartition]) -> None:
        """Fetch nothing of these."""
        for partition in partitions:
            active_partition = self.active.get(topic_partition_of(partition))
            self._drop_fetched(topic_partition_of(partition))
            if active_partition is not None and active_partition.fetches:
                active_partition.fetches = False
                self._consumer.incremental_unassign([KafkaPartition(partition.topic, partition.partition)])

    def halt(self, topic_partition: TopicPartition) -> None:
        """Stop fetching it until it may be delivered again."""
        self.stop_fetching([KafkaPartition(*topic_partition)])
        self._halted.add(topic_partition)

    def fetch_again(self, member: Member) -> None:
        """Fetch halted partitions that may be delivered again, from the application's position."""
        if self._halted:
            self.fetch(
                [
                    self.position_of(topic_partition)
                    for topic_partition in sorted(self._halted)
                    if self.may_deliver(member, topic_partition)
                ]
            )

    def forget(self, topic_partition: TopicPartition) -> KafkaPartition:
        """Drop it, and return its position."""
        position = self.position_of(topic_partition)
        self.stop_fetching([position])
        self.active.pop(topic_partition, None)
        self._halted.discard(topic_partition)
        return position

    def pause(self, partitions: list[KafkaPartition], *, paused: bool) -> None:
        """Pause or resume for the application; it outlasts changes of the partition."""
        held_partitions = [partition for partition in partitions if topic_partition_of(partition) in self.active]
        if paused and self._at < len(self._ahead):  # what was fetched ahead is fetched again after the resume
            positions = [
                self.position_of(topic_partition_of(partition))
                for partition in held_partitions
                if self.active[topic_partition_of(partition)].fetches
            ]
            self.stop_fetching(positions)
            self.fetch(positions)
        for partition in held_partitions:
            self.active[topic_partition_of(partition)].paused = paused
        self._pause_fetching(held_partitions, paused=paused)

    def _pause_fetching(self, partitions: list[KafkaPartition], *, paused: bool) -> None:
        fetching = [partition for partition in partitions if self.active[topic_partition_of(partition)].fetches]
        if fetching:
            (self._consumer.pause if paused else self._consumer.resume)(fetching)
