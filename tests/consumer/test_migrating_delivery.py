"""Positions and permits while records are handed over, against a consumer in memory that keeps librdkafka's rules."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, Message
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.applications.migrating.delivery import Active, DeliveryBuffer
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.state import HeldPartition, Member, PartitionStage
from tests.consumer.mock_kafka import MockKafka
from tests.core.member_talk import ALONE, Talk
from tests.seeds import seeds

END = 2_000


class Librdkafka:
    """Endless logs: what is fetched for an older assignment is dropped, and a position is known from the first record on."""

    def __init__(self, random: random.Random) -> None:
        self._random = random
        self.next: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self.paused: set[int] = set()

    def incremental_assign(self, partitions: Iterable[KafkaPartition]) -> None:
        for one in partitions:
            assert one.partition not in self.next, "it is assigned"
            self.next[one.partition] = one.offset

    def incremental_unassign(self, partitions: Iterable[KafkaPartition]) -> None:
        for one in partitions:
            del self.next[one.partition]
            self.taken.pop(one.partition, None)
            self.paused.discard(one.partition)

    def pause(self, partitions: Iterable[KafkaPartition]) -> None:
        self.paused |= {one.partition for one in partitions}

    def resume(self, partitions: Iterable[KafkaPartition]) -> None:
        self.paused -= {one.partition for one in partitions}

    def position(self, partitions: Iterable[KafkaPartition]) -> list[KafkaPartition]:
        return [KafkaPartition("t", one.partition, self.taken.get(one.partition, OFFSET_INVALID)) for one in partitions]

    def consume(self, count: int, timeout: float) -> list[Message]:
        del timeout
        found = list[Message]()
        for _ in range(self._random.randint(0, min(count, 12))):
            open_ones = sorted(self.next.keys() - self.paused)
            if open_ones:
                partition = self._random.choice(open_ones)
                found.append(Message("t", partition, self.next[partition]))
                self.next[partition] += 1
                self.taken[partition] = self.next[partition]
        return found


class Application:
    """What it was handed over; every record of a partition once and in order, and never one that may not be."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311  # no secret
        self.hands = DeliveryBuffer(Librdkafka(self.random), "earliest")  # type: ignore[arg-type]
        self.talk = Talk().delivering(ALONE).member
        self.open: dict[TopicPartition, int] = {}
        self.expected: dict[TopicPartition, int] = {}
        self.member = self.allow()

    def allow(self, lease: float = 3_600.0) -> Member:
        held = {
            where: HeldPartition(generation, "thread", PartitionStage.DELIVERING, 0.0, 0.0)
            for where, generation in self.open.items()
        }
        self.member = replace(self.talk, held=held, lease=time.monotonic() + lease, live=True)
        return self.member

    def take(self, where: TopicPartition) -> None:
        self.open[where] = self.random.randint(1, 10**6)
        self.allow()
        self.hands.active[where] = Active.starting_at(self.open[where], self.expected.get(where, 0))
        self.hands.fetch([KafkaPartition(*where, self.expected.get(where, 0))])

    def give(self, where: TopicPartition) -> None:
        assert self.hands.position_of(where).offset == self.expected.get(where, 0)
        self.hands.forget(where)
        del self.open[where]
        self.allow()

    def handed(self, messages: Iterable[Message | None]) -> None:
        for message in (one for one in messages if one is not None):
            where = TopicPartition(str(message.topic()), int(message.partition() or 0))
            assert where in self.open, "it is not held"
            assert message.offset() == self.expected.get(where, 0)
            self.expected[where] = int(message.offset() or 0) + 1


def poll(it: Application) -> None:
    message = it.hands.take_fetched_record(it.member, time.monotonic())
    it.handed([it.hands.next_message(it.member, 0.0) if message is None else message])


def consume(it: Application) -> None:
    messages = it.hands.next_messages(it.member, it.random.randint(1, 20), 0.0)
    it.handed(messages)
    messages.clear()  # an application may do that


def take_one(it: Application) -> None:
    free = [where for number in range(4) if (where := TopicPartition("t", number)) not in it.open]
    if free:
        it.take(it.random.choice(free))


def give_one(it: Application) -> None:
    if it.open:
        it.give(it.random.choice(sorted(it.open)))


def lease_runs_out(it: Application) -> None:
    """Nothing may be handed over, then all goes on from where it stood."""
    it.allow(lease=-1.0)
    for _ in range(3):
        assert it.hands.next_message(it.member, 0.0) is None
        assert it.hands.next_messages(it.member, 5, 0.0) == []
    it.allow()
    it.hands.fetch_again(it.member)


def one_is_checked(it: Application) -> None:
    """One partition may not be handed over for a while; the others may."""
    if not it.open:
        return
    where = it.random.choice(sorted(it.open))
    generation = it.open.pop(where)
    it.allow()
    for _ in range(3):
        poll(it)
        consume(it)
    it.open[where] = generation
    it.allow()
    it.hands.fetch_again(it.member)


def pause_one(it: Application) -> None:
    if not it.open:
        return
    where = it.random.choice(sorted(it.open))
    it.hands.pause([KafkaPartition(*where)], paused=True)
    before = it.expected.get(where, 0)
    for _ in range(3):
        poll(it)
    assert it.expected.get(where, 0) == before
    it.hands.pause([KafkaPartition(*where)], paused=False)


def observe(it: Application) -> None:
    """Positions are those of the application at any time."""
    for where in it.open:
        assert it.hands.position_of(where).offset == it.expected.get(where, 0)


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds(20))
def test_each_record_comes_once_and_in_order_whatever_happens(seed: int) -> None:
    it = Application(seed)
    doings: dict[Any, int] = {
        poll: 60, consume: 10, observe: 6, take_one: 4, give_one: 2, lease_runs_out: 1, one_is_checked: 2, pause_one: 2,
    }  # fmt: skip
    for doing in it.random.choices(list(doings), list(doings.values()), k=END):
        doing(it)
    observe(it)
    assert sum(it.expected.values()) > END / 4, "hardly anything was handed over"


def test_librdkafka_forgets_a_position_with_the_assignment() -> None:
    """The rule that the above rests on; else a partition that begins again would go on at its old place."""
    with MockKafka() as kafka:
        kafka.topic("t", 1)
        kafka.fill("t", {0: 300})
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g", "enable.auto.commit": False})
        place, seen = [KafkaPartition("t", 0)], 0
        consumer.incremental_assign([KafkaPartition("t", 0, 0)])
        deadline = time.monotonic() + 30
        while seen < 100 and time.monotonic() < deadline:
            seen += len(consumer.consume(100 - seen, 0.5))
        assert [one.offset for one in consumer.position(place)] == [100]
        consumer.incremental_unassign(place)
        consumer.incremental_assign([KafkaPartition("t", 0, 50)])
        assert [one.offset for one in consumer.position(place)] == [OFFSET_INVALID]
        consumer.close()
