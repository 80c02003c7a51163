"""The member's place in the Kafka group, and the fence that keeps plain consumers out of it while ZooKeeper coordinates (R8).

A group has only members that share an assignor. Plain consumers are to list `range`; ours list

* `roundrobin` while ZooKeeper coordinates: a plain consumer is refused with INCONSISTENT_GROUP_PROTOCOL and disturbs nobody,
* `roundrobin, range` while Kafka does: a plain consumer gets in once *every* migrating member has changed its list.

librdkafka cannot change the list of a consumer, so another consumer takes the place. It joins before the old one leaves: a group
that ran empty would wait for `group.initial.rebalance.delay.ms`, and where plain consumers are still inside, the one that lists
`roundrobin` only is refused (and tries on by itself) while the other keeps its share. What both were given is the member's. Nothing
is handed over in any other way than in every rebalance: a revocation is answered when the partitions are committed and released.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from confluent_kafka import Message

from airflow_provider_kmigrate.consumer.migrating.kafka import Committed, EmbeddedConsumer, Freed, Tell
from airflow_provider_kmigrate.core.coordination.assignors import KafkaMember
from airflow_provider_kmigrate.core.coordination.registration import Mode
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.member.words import KafkaAssigned, KafkaLost, KafkaRevoked, Polled

_log = logging.getLogger(__name__)
ASSIGNORS: Final = {Mode.ZOOKEEPER: "roundrobin", Mode.KAFKA: "roundrobin,range"}

KafkaEvent = KafkaAssigned | KafkaRevoked | KafkaLost | Polled


class FencedConsumer:
    """One or, while the list changes, two embedded consumers. `follow` and `close` are the shell's; the rest is any thread's."""

    def __init__(self, properties: Mapping[str, Any], client_id: str, tell: Tell, freed: Freed, poll_every: float) -> None:
        self._tell, self._freed, self._client_id = tell, freed, client_id
        self._made: Callable[..., EmbeddedConsumer] = partial(self._make, properties, client_id, poll_every)
        self._lock = threading.Lock()
        self._closing = self._away = False
        self._wanted, self._topics = Mode.ZOOKEEPER, frozenset[str]()
        self._consumers: dict[Mode, EmbeddedConsumer] = {}
        self._consumers[Mode.ZOOKEEPER] = self._made(Mode.ZOOKEEPER)

    def _make(self, properties: Mapping[str, Any], client_id: str, poll_every: float, mode: Mode) -> EmbeddedConsumer:
        given = {**properties, "partition.assignment.strategy": ASSIGNORS[mode]}
        return EmbeddedConsumer(given, client_id, partial(self._told, mode), partial(self._is_free, mode), poll_every)

    def start(self) -> None:
        for consumer in self._consumers.values():
            consumer.start()

    def follow(self, mode: Mode, topics: frozenset[str]) -> None:
        """Be in the group with that mode's list of assignors, as soon as may be."""
        self._wanted, self._topics = mode, topics
        self.change_over()

    def change_over(self) -> None:
        """To be called often: who is missing is made, who has been replaced leaves."""
        if self._closing:
            return
        wanted, other = self._consumers.get(self._wanted), self._consumers.get(_other(self._wanted))
        if wanted is None or wanted.gone:
            wanted = self._consumers[self._wanted] = self._made(self._wanted)
            wanted.start()
        wanted.want(self._topics)
        if other is not None and other.gone:
            del self._consumers[_other(self._wanted)]
        elif other is not None and not wanted.leaving and (wanted.joined or not other.subscribed):
            other.leave()

    @property
    def joined(self) -> frozenset[Mode]:
        """With which lists the member is in the group."""
        return frozenset(mode for mode, consumer in list(self._consumers.items()) if consumer.joined)

    def known(self) -> bool:
        """Whether the group exists: it has taken this member, or refused it."""
        return any(consumer.joined or consumer.refused for consumer in list(self._consumers.values()))

    def away(self, members: Collection[KafkaMember] | None) -> None:
        """Any thread, often: None where the coordinator has been out of reach for a session, else who is in the stable group.

        Out of reach, the group has shared out without this member: all is given up. Back, it has what it had as far as the group says
        so; the embedded consumer may hear only later that it was put out.
        """
        with self._lock:
            if (members is None) == self._away:
                return
            self._away = members is None
            if members is None:
                _log.warning("the Kafka group's coordinator is out of reach: what the group gave is given up")
                self._tell(KafkaLost())
                return
            mine = frozenset().union(*(member.partitions for member in members if member.client_id == self._client_id))
            had = frozenset().union(*(consumer.assigned for consumer in self._consumers.values()))
            if mine & had:
                self._tell(KafkaAssigned(mine & had))

    def complaint(self) -> Message | None:
        """The next error of the Kafka group that does not pass by itself."""
        for consumer in list(self._consumers.values()):
            with contextlib.suppress(IndexError):
                return consumer.complaints.popleft()
        return None

    def committed(self, where: TopicPartition) -> Future[Committed | None]:
        """What the group committed; None if nothing is. The answer is a KafkaException if the coordinator does not answer."""
        return self._speaker().committed(where)

    def commit(self, where: TopicPartition, offset: int) -> Future[bool]:
        """Whether the coordinator took it, as this member's."""
        return self._speaker().commit(where, offset)

    def close(self) -> None:
        """Leave the group; waits a while."""
        self._closing = True
        consumers = list(self._consumers.values())
        for consumer in consumers:
            consumer.leave()
        for consumer in consumers:
            consumer.close()

    # ---------------------------------------------------------------------------------------------------------- two as one

    def _speaker(self) -> EmbeddedConsumer:
        """Who is in the group, best the one that stays."""
        return max(list(self._consumers.values()), key=lambda one: (one.joined, not one.leaving))

    def _others(self, mode: Mode) -> frozenset[TopicPartition]:
        other = self._consumers.get(_other(mode))
        return other.assigned if other is not None else frozenset()

    def _told(self, mode: Mode, event: KafkaEvent) -> None:
        """What one loses that the other has been given since, the member has."""
        with self._lock:
            others = self._others(mode)
            self._tell(KafkaRevoked(event.partitions - others) if isinstance(event, KafkaRevoked) else event)
            if isinstance(event, KafkaLost) and others:
                self._tell(KafkaAssigned(others))

    def _is_free(self, mode: Mode, partitions: frozenset[TopicPartition]) -> bool:
        return self._freed(partitions - self._others(mode))


def _other(mode: Mode) -> Mode:
    return Mode.ZOOKEEPER if mode is Mode.KAFKA else Mode.KAFKA
