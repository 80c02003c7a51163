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

from airflow_provider_kmigrate.applications.assignment import RESETS, place
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.member.state import DeliveryPermit, Member, permit

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
    def at(cls, generation: int, offset: int | None) -> Active:
        """A partition whose delivery begins at `offset`; None: at the reset policy."""
        start = OFFSET_INVALID if offset is None else offset
        return cls(generation, start, start, start, start)

    @property
    def uncommitted(self) -> int | None:
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
        self._settle()
        self._member = None
        return self._active

    def _settle(self) -> None:
        """Set every position to after the last returned record."""
        if self._taken_unseen:
            fetched = [KafkaPartition(*where) for where, mine in self._active.items() if mine.fetches]
            for one in self._consumer.position(fetched):
                if one.offset >= 0:
                    self._active[place(one)].position = one.offset
            for message in reversed(self._ahead[self._at :]):  # librdkafka has returned them to us, we not to the application
                self._is_at(message, 0)
        else:
            for message in self._ahead[self._known : self._at]:
                self._is_at(message, 1)
        self._known, self._taken_unseen = self._at, False

    def _is_at(self, message: Message, behind: int) -> None:
        mine = None if message.error() is not None else self._active.get((_topic(message), _partition(message)))  # type: ignore[call-overload]
        if mine is not None and mine.fetches:
            mine.position = _offset(message) + behind

    def _read_permits(self, member: Member) -> None:
        """Read what this member may deliver, if it is not known."""
        if member is self._member:
            return
        self._member, self._permit = member, permit(member)
        theirs = self._permit.generations
        everything = all(theirs.get(where) == mine.generation for where, mine in self._active.items() if mine.fetches)
        self._all_until = self._permit.until if everything else float("-inf")

    def may(self, member: Member, where: TopicPartition) -> bool:
        """True if its records may be returned now."""
        self._read_permits(member)
        mine = self._active.get(where)
        return mine is not None and self._permit.allows(where, mine.generation, time.monotonic())

    def _may_all(self, member: Member, now: float) -> bool:
        self._read_permits(member)
        return now < self._all_until

    def at_hand(self, member: Member, now: float) -> Message | None:
        """The next record that is fetched already, if all of them may be returned; this call is the price of a record."""
        if self._at < len(self._ahead) and (now < self._all_until if member is self._member else self._may_all(member, now)):
            message = self._ahead[self._at]
            self._at += 1
            return message
        return None

    def next(self, member: Member, timeout: float) -> Message | None:
        """One record or error. librdkafka returns many at a time; each is checked when it is returned."""
        if self._at == len(self._ahead):
            self._take_in(self._consumer.consume(_AHEAD, 0) or self._consumer.consume(1, timeout))
        message = self.at_hand(member, time.monotonic())
        if message is not None:
            return message
        return next((one for one in self._remaining() if self.takes(member, one)), None)

    def _take_in(self, messages: list[Message]) -> None:
        """Replace a batch that was returned whole."""
        self._taken_unseen |= self._known < self._at
        self._ahead, self._at, self._known = messages, 0, 0

    def _remaining(self) -> Iterator[Message]:
        """The remaining fetched records, one by one."""
        self._settle()
        while self._at < len(self._ahead):
            message = self._ahead[self._at]
            self._at = self._known = self._at + 1
            yield message

    def many(self, member: Member, count: int, timeout: float) -> list[Message]:
        """At most `count` records or errors. Records fetched earlier are returned first, without new ones."""
        if self._at < len(self._ahead):
            return list(islice((one for one in self._remaining() if self.takes(member, one)), count))
        messages = self._consumer.consume(count, timeout)
        if self._may_all(member, time.monotonic()):
            self._taken_unseen |= bool(messages)
            return messages  # the application's from here on: it may empty the list
        self._take_in(messages)
        return [one for one in self._remaining() if self.takes(member, one)]

    def _skip(self, where: TopicPartition) -> None:
        """Skip its fetched records: they are not what comes next."""
        left = self._ahead[self._at :]
        self._take_in([one for one in left if one.error() is not None or (one.topic(), one.partition()) != where])

    def takes(self, member: Member, message: Message) -> bool:
        """Count a fetched record as returned and say if it may be; an error is passed as it is."""
        if message.error() is not None:
            return True
        where: TopicPartition = (_topic(message), _partition(message))  # type: ignore[assignment]  # equal to one, and cheaper
        mine, offset = self._active.get(where), _offset(message)
        if mine is None or not mine.fetches:
            return False
        if not self.may(member, where):
            self.halt(TopicPartition(*where))  # fetched again once its records may be returned
            return False
        if offset < mine.position:
            return False
        mine.position = offset + 1
        return True

    def position_of(self, where: TopicPartition) -> KafkaPartition:
        """The partition at the position of its next record, as librdkafka takes it."""
        return KafkaPartition(*where, self.active[where].position)

    def fetch(self, partitions: list[KafkaPartition]) -> None:
        """Fetch from the offsets that they carry. Partitions that are not held are ignored."""
        held = [one for one in partitions if place(one) in self.active]
        for one in held:
            mine = self.active[place(one)]
            self._skip(place(one))
            one.offset = self._number(one)
            mine.position, mine.fetches = one.offset, True
            mine.start = one.offset if mine.start < 0 else min(mine.start, one.offset)
            self._halted.discard(place(one))
        if held:
            self._consumer.incremental_assign(held)
        self._pause([one for one in held if self.active[place(one)].paused], paused=True)

    def _number(self, partition: KafkaPartition) -> int:
        """The start of a partition as a number, also if only "the beginning" or "the end" is known.

        A number is committed like any position, so that a next owner begins there too, whatever its own reset; and fetching again
        skips nothing.
        """
        wanted = self._reset if partition.offset == OFFSET_INVALID else partition.offset
        if wanted >= 0:
            return wanted
        try:
            low, end = self._consumer.get_watermark_offsets(partition, timeout=_ANSWER_S, cached=False)
        except KafkaException:
            return wanted
        return int(low if wanted == OFFSET_BEGINNING else end)

    def stop_fetching(self, partitions: list[KafkaPartition]) -> None:
        """Fetch nothing of these."""
        for one in partitions:
            mine = self.active.get(place(one))
            self._skip(place(one))
            if mine is not None and mine.fetches:
                mine.fetches = False
                self._consumer.incremental_unassign([KafkaPartition(one.topic, one.partition)])

    def halt(self, where: TopicPartition) -> None:
        """Stop fetching it until it may be delivered again."""
        self.stop_fetching([KafkaPartition(*where)])
        self._halted.add(where)

    def fetch_again(self, member: Member) -> None:
        """Fetch halted partitions that may be delivered again, from the application's position."""
        if self._halted:
            self.fetch([self.position_of(where) for where in sorted(self._halted) if self.may(member, where)])

    def forget(self, where: TopicPartition) -> KafkaPartition:
        """Drop it, and return its position."""
        standing = self.position_of(where)
        self.stop_fetching([standing])
        self.active.pop(where, None)
        self._halted.discard(where)
        return standing

    def pause(self, partitions: list[KafkaPartition], *, paused: bool) -> None:
        """Pause or resume for the application; it outlasts changes of the partition."""
        held = [one for one in partitions if place(one) in self.active]
        if paused and self._at < len(self._ahead):  # what was fetched ahead is fetched again after the resume
            standing = [self.position_of(place(one)) for one in held if self.active[place(one)].fetches]
            self.stop_fetching(standing)
            self.fetch(standing)
        for one in held:
            self.active[place(one)].paused = paused
        self._pause(held, paused=paused)

    def _pause(self, held: list[KafkaPartition], *, paused: bool) -> None:
        fetching = [one for one in held if self.active[place(one)].fetches]
        if fetching:
            (self._consumer.pause if paused else self._consumer.resume)(fetching)
