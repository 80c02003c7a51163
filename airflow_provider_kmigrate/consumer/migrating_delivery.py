"""Which records may be handed over: the rule of `core.membership` at the price of a dictionary look-up a record, and positions.

Only the application's thread uses this. A record that comes while its partition may not be delivered is dropped, and its partition
is fetched again from where the application stands as soon as it may be.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.consumer.assignment import place
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.member_state import Member, Stage
from airflow_provider_kmigrate.core.registration import Mode

_ANSWER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Permit:
    """What a member may deliver, partition -> generation, before `until` (monotonic)."""

    generations: Mapping[TopicPartition, int]
    until: float

    def allows(self, where: TopicPartition, generation: int, now: float) -> bool:
        return now < self.until and self.generations.get(where) == generation


def permit(member: Member) -> Permit:
    """`member_state.may_deliver` for as long as the member does not change."""
    until = member.lease
    if member.mode is Mode.KAFKA:
        until = min(until, member.polled + member.settings.poll_limit)
    if not member.live:
        return Permit({}, until)
    return Permit({where: held.generation for where, held in member.held.items() if held.stage is Stage.DELIVERING}, until)


@dataclass(slots=True)
class Active:
    """One partition in the application's hands. `position`: behind the last record handed over; negative: none was yet.

    `start`: where its generation began; `asked`: the last offset of which a commit was asked, `committed`: the last one accepted;
    `fetches`: the data consumer has it assigned; `paused`: by the application.
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
        start = OFFSET_INVALID if offset is None else offset
        return cls(generation, start, start, start, start)

    @property
    def uncommitted(self) -> int | None:
        """What there is to commit: the position, unless it is what was asked last."""
        return self.position if self.position >= 0 and self.position != self.asked else None

    def covers(self, offset: int) -> bool:
        """Whether a commit of this offset is about what this generation was given."""
        return self.position >= 0 and min(self.start, self.position) <= offset <= self.position


class Hands:
    """All partitions in the application's hands, and the consumer that fetches them."""

    def __init__(self, consumer: Consumer, reset: str) -> None:
        self.active: dict[TopicPartition, Active] = {}
        self._consumer = consumer
        self._from_start = reset in {"earliest", "smallest", "beginning"}
        self._halted: set[TopicPartition] = set()
        self._member: Member | None = None
        self._permit = Permit({}, float("-inf"))

    def may(self, member: Member, where: TopicPartition) -> bool:
        """Whether its records may be handed over now."""
        if member is not self._member:
            self._member, self._permit = member, permit(member)
        mine = self.active.get(where)
        return mine is not None and self._permit.allows(where, mine.generation, time.monotonic())

    def open(self, member: Member, where: TopicPartition) -> Active | None:
        """For fetched records of it: None where they may not be handed over; then they are fetched again once they may."""
        mine = self.active.get(where)
        if mine is None or not mine.fetches:
            return None
        if not self.may(member, where):
            self.halt(where)
            return None
        return mine

    def standing(self, where: TopicPartition) -> KafkaPartition:
        return KafkaPartition(*where, self.active[where].position)

    def fetch(self, partitions: list[KafkaPartition]) -> None:
        """From the offsets that they carry. Others than those in hand are passed over."""
        held = [one for one in partitions if place(one) in self.active]
        for one in held:
            mine = self.active[place(one)]
            if one.offset == OFFSET_INVALID:
                one.offset = self._first(one)
            mine.position, mine.fetches = one.offset, True
            mine.start = one.offset if mine.start < 0 else min(mine.start, one.offset)
            self._halted.discard(place(one))
        if held:
            self._consumer.incremental_assign(held)
        self.pause([one for one in held if self.active[place(one)].paused], paused=True)

    def _first(self, partition: KafkaPartition) -> int:
        """Where a group without a commit begins: the end as a number, so that fetching once more skips nothing that came since."""
        if self._from_start:
            return OFFSET_BEGINNING
        try:
            _, end = self._consumer.get_watermark_offsets(partition, timeout=_ANSWER_S, cached=False)
        except KafkaException:
            return OFFSET_END
        return int(end)

    def rest(self, partitions: list[KafkaPartition]) -> None:
        """Fetch nothing of these."""
        for one in partitions:
            mine = self.active.get(place(one))
            if mine is not None and mine.fetches:
                mine.fetches = False
                self._consumer.incremental_unassign([KafkaPartition(one.topic, one.partition)])

    def halt(self, where: TopicPartition) -> None:
        """Fetch nothing of it until it may be delivered again."""
        self.rest([KafkaPartition(*where)])
        self._halted.add(where)

    def fetch_again(self, member: Member) -> None:
        """What was halted and may be delivered again, from where the application stands."""
        if self._halted:
            self.fetch([self.standing(where) for where in sorted(self._halted) if self.may(member, where)])

    def forget(self, where: TopicPartition) -> None:
        self.rest([KafkaPartition(*where)])
        self.active.pop(where, None)
        self._halted.discard(where)

    def pause(self, partitions: list[KafkaPartition], *, paused: bool) -> None:
        """As the application wants it, also over what happens to the partition meanwhile."""
        held = [one for one in partitions if place(one) in self.active]
        for one in held:
            self.active[place(one)].paused = paused
        fetching = [one for one in held if self.active[place(one)].fetches]
        if fetching:
            (self._consumer.pause if paused else self._consumer.resume)(fetching)
