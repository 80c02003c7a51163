"""The embedded Kafka consumer: a group member that never fetches, polled in its own thread, and the fence around its group.

It answers every assignment with `assign([])`, so that it stays a stable member without a fetcher, and reports its share to the
runner. A revocation is answered when the runner releases the partitions being delivered.

Every call is made in that one thread, also while a revocation waits (usually for those very commits): measured with 2.16.1, a
synchronous `commit` or `committed` beside another thread that polls the same consumer never returns, whatever its timeout.

The fence keeps Kafka consumers out of the group while ZooKeeper coordinates (R8): all members of a group must share an assignor.
Kafka consumers list `range`; migrating members list

* `roundrobin` while ZooKeeper coordinates: a Kafka consumer is refused with INCONSISTENT_GROUP_PROTOCOL and disturbs no member,
* `roundrobin, range` while Kafka does: a Kafka consumer can join once *every* migrating member has changed its list.

librdkafka cannot change a consumer's list, so another consumer replaces it, and joins before the first one leaves: an empty group
would wait for `group.initial.rebalance.delay.ms`. If Kafka consumers are still inside, the one that lists only `roundrobin` is
refused (and retries by itself) while the other keeps its share. The shares of both are the member's. The handover is an ordinary
rebalance: a revocation is answered when the partitions are committed and released.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.applications.assignment import close_consumer, topic_partition_of
from airflow_provider_kmigrate.applications.migrating.settings import MigratingSettings
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.messages import KafkaAssigned, KafkaLost, KafkaRevoked, Polled
from airflow_provider_kmigrate.core.member.registration import Mode

_log = logging.getLogger(__name__)
_BATCH: Final = 500
_POLL_S: Final = 0.02
_READ_S: Final = 3.0
_LEAVE_S: Final = 15.0
_KEPT: Final = 16
_MARK: Final = "kmigrate "
"""How the metadata of every member's commit begins; the member's id follows."""
PERMANENT: Final = frozenset(
    {
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_MAX_SIZE_REACHED,
        KafkaError._FATAL,  # noqa: SLF001  # it has no other name
    }
)
"""Errors that librdkafka retries forever, until the operator changes a setting, a right, or a broker's limit."""

KafkaEvent = KafkaAssigned | KafkaRevoked | KafkaLost | Polled
Report = Callable[[KafkaEvent], None]
Freed = Callable[[frozenset[TopicPartition]], bool]


class CommittedOffset(NamedTuple):
    """An offset that the group committed. `foreign`: its metadata is not a migrating member's, as in an application's own transaction."""

    offset: int
    foreign: bool


class _Read(NamedTuple):
    where: TopicPartition
    answer: Future[CommittedOffset | None]


class _Commit(NamedTuple):
    where: TopicPartition
    offset: int
    answer: Future[bool]


class EmbeddedConsumer:
    """One embedded Kafka consumer.

    `report` must only put into a queue. `freed`: whether the Kafka group need not wait for these any more.
    """

    def __init__(self, settings: MigratingSettings, client_id: str, assignors: str, report: Report, freed: Freed) -> None:
        fixed_properties = {"client.id": client_id, "partition.assignment.strategy": assignors}
        self._consumer = Consumer({**settings.embedded, **fixed_properties})
        self._mark = _MARK + client_id
        self._report = report
        self._freed = freed
        self._poll_limit = settings.poll_limit
        self._topics: frozenset[str] = frozenset()
        self._wanted: frozenset[str] = frozenset()
        self.joined = False  # it has been given its share, even an empty one, and has not been asked to give it up since
        self.refused = False
        self.permanent_errors: deque[Message] = deque(maxlen=_KEPT)  # the reader takes them out
        self.assigned: frozenset[TopicPartition] = frozenset()
        self._ending = threading.Event()
        self._asked: queue.SimpleQueue[_Read | _Commit] = queue.SimpleQueue()
        self._poller = threading.Thread(target=self._poll_until_leave, daemon=True, name="kmigrate-kafka-member")

    def start(self) -> None:
        """Start the polling thread; it joins the group once topics are wanted."""
        self._poller.start()

    def request_topics(self, topics: frozenset[str]) -> None:
        """Subscribe to these at the next poll."""
        self._wanted = topics

    def read_committed(self, topic_partition: TopicPartition) -> Future[CommittedOffset | None]:
        """The offset that the group committed; None if none. The result is a KafkaException if the coordinator does not answer."""
        answer: Future[CommittedOffset | None] = Future()
        self._queue_call(_Read(topic_partition, answer))
        return answer

    def commit(self, topic_partition: TopicPartition, offset: int) -> Future[bool]:
        """Commit as this member; true if the coordinator took it.

        A caller that stops waiting cancels it, unless it is being sent.
        """
        answer: Future[bool] = Future()
        self._queue_call(_Commit(topic_partition, offset, answer))
        return answer

    def _queue_call(self, call: _Read | _Commit) -> None:
        self._asked.put(call)
        if self.has_left:
            self._refuse_pending_calls()

    def _refuse_pending_calls(self) -> None:
        """Refuse pending calls: this consumer will not answer them, so the callers must ask again elsewhere."""
        with contextlib.suppress(queue.Empty):
            while True:
                call = self._asked.get_nowait()
                if not call.answer.set_running_or_notify_cancel():
                    continue
                if isinstance(call, _Commit):
                    call.answer.set_result(False)
                else:
                    call.answer.set_exception(KafkaException(KafkaError(KafkaError._DESTROY)))  # noqa: SLF001  # it has no other name

    @property
    def is_leaving(self) -> bool:
        """True once `leave` was called; it may still hold partitions until `gone`."""
        return self._ending.is_set()

    @property
    def has_subscription(self) -> bool:
        """Whether it has, or will have, a subscription."""
        return bool(self._topics or self._wanted)

    @property
    def has_left(self) -> bool:
        """True once it has left the group and its thread has ended: calls are refused."""
        return self.is_leaving and not self._poller.is_alive()

    def leave(self) -> None:
        """Release everything and leave the group, soon."""
        self._ending.set()

    def close(self) -> None:
        """Leave the group; waits a while."""
        self.leave()
        self._poller.join(_LEAVE_S)

    # --------------------------------------------------------------------------------------------------------- membership

    def _poll_until_leave(self) -> None:
        while not self._ending.is_set():
            self._subscribe()
            self._serve_calls(_POLL_S)
            message = self._consumer.poll(0)
            self._report(Polled())
            if message is not None:
                self._handle_error(message, message.error())
        with contextlib.suppress(KafkaException, RuntimeError):
            close_consumer(self._consumer)
        self._refuse_pending_calls()

    def _handle_error(self, message: Message, error: KafkaError | None) -> None:
        """Handle an error; a refused member retries by itself."""
        if error is None:
            return
        self.refused = error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
        permanent = error.code() in PERMANENT
        if permanent:
            self.permanent_errors.append(message)
        _log.log(logging.WARNING if permanent else logging.INFO, "embedded consumer: %s", error)

    def _subscribe(self) -> None:
        topics = self._wanted
        if topics != self._topics and topics:
            self._topics = topics
            callbacks = {"on_assign": self._on_assign, "on_revoke": self._on_revoke, "on_lost": self._on_lost}
            self._consumer.subscribe(sorted(topics), **callbacks)

    def _on_assign(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        consumer.assign([])
        self.assigned = _topic_partitions_of(partitions)
        self._report(KafkaAssigned(self.assigned))
        self.joined, self.refused = True, False

    def _on_revoke(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        topic_partitions = _topic_partitions_of(partitions)
        self.assigned = frozenset()
        self._report(KafkaRevoked(topic_partitions))
        deadline = time.monotonic() + self._poll_limit
        while not self._freed(topic_partitions) and time.monotonic() < deadline:
            self._report(Polled())
            self._serve_calls(0.01)
        self.joined = False
        consumer.unassign()

    def _on_lost(self, consumer: Consumer, _: list[KafkaPartition]) -> None:
        self.joined, self.assigned = False, frozenset()
        self._report(KafkaLost())
        consumer.unassign()

    # ------------------------------------------------------------------------------------------------------------ offsets

    def _serve_calls(self, wait: float) -> None:
        """Serve pending calls together; waits a moment for the first."""
        calls: list[_Read | _Commit] = []
        with contextlib.suppress(queue.Empty):
            calls.append(self._asked.get(timeout=wait))
            while len(calls) < _BATCH:
                calls.append(self._asked.get_nowait())
        calls = [call for call in calls if call.answer.set_running_or_notify_cancel()]
        if commits := [call for call in calls if isinstance(call, _Commit)]:
            self._send_commits(commits)
        if reads := [call for call in calls if isinstance(call, _Read)]:
            self._read_offsets(reads)

    def _read_offsets(self, batch: list[_Read]) -> None:
        try:
            committed = self._consumer.committed([KafkaPartition(*read.where) for read in batch], timeout=_READ_S)
        except KafkaException as error:
            for read in batch:
                read.answer.set_exception(error)
            return
        for read, answer in zip(batch, committed, strict=True):
            if answer.error is not None:
                read.answer.set_exception(KafkaException(answer.error))
            else:
                foreign = not (answer.metadata or "").startswith(_MARK)
                read.answer.set_result(CommittedOffset(answer.offset, foreign) if answer.offset >= 0 else None)

    def _send_commits(self, batch: list[_Commit]) -> None:
        """Nothing is sent outside the group: it would be refused, after waiting behind the JoinGroup of its connection."""
        latest = {commit.where: commit.offset for commit in batch}  # those of one partition come in order
        accepted: frozenset[TopicPartition] = frozenset()
        try:
            if self.joined:
                partitions = [
                    KafkaPartition(*topic_partition, offset, metadata=self._mark) for topic_partition, offset in latest.items()
                ]
                answers = self._consumer.commit(offsets=partitions, asynchronous=False) or []
                accepted = _topic_partitions_of(answer for answer in answers if answer.error is None)
        except KafkaException as error:
            _log.info("commit to Kafka: %s", error)
        for commit in batch:
            commit.answer.set_result(commit.where in accepted)


def _topic_partitions_of(partitions: Iterable[KafkaPartition]) -> frozenset[TopicPartition]:
    return frozenset(map(topic_partition_of, partitions))


ASSIGNORS: Final = {Mode.ZOOKEEPER: "roundrobin", Mode.KAFKA: "roundrobin,range"}


class FencedConsumer:
    """One or, while the list changes, two embedded consumers. The runner calls `follow` and `close`; any thread the others."""

    def __init__(self, settings: MigratingSettings, client_id: str, report: Report, freed: Freed) -> None:
        self._settings, self._client_id, self._report, self._freed = settings, client_id, report, freed
        self._lock = threading.Lock()
        self._closing = self._away = False
        self._wanted, self._topics = Mode.ZOOKEEPER, frozenset[str]()
        self._consumers = {Mode.ZOOKEEPER: self._make(Mode.ZOOKEEPER)}

    def _make(self, mode: Mode) -> EmbeddedConsumer:
        report, freed = partial(self._forward_event, mode), partial(self._is_free, mode)
        return EmbeddedConsumer(self._settings, self._client_id, ASSIGNORS[mode], report, freed)

    def start(self) -> None:
        """Start the consumers made so far."""
        for consumer in self._consumers.values():
            consumer.start()

    def follow_mode(self, mode: Mode, topics: frozenset[str]) -> None:
        """Be in the group with that mode's list of assignors, as soon as possible."""
        self._wanted, self._topics = mode, topics
        self.change_over()

    def change_over(self) -> None:
        """Make a missing consumer and let a replaced one leave. Call it often."""
        with self._lock:  # one that was made beside `close` or `away` would be missed by it, and stay in the group
            if self._closing:
                return
            wanted_consumer, other_consumer = self._consumers.get(self._wanted), self._consumers.get(_other_mode(self._wanted))
            if wanted_consumer is None or wanted_consumer.has_left:
                wanted_consumer = self._consumers[self._wanted] = self._make(self._wanted)
                wanted_consumer.start()
            wanted_consumer.request_topics(self._topics)
            if other_consumer is not None and other_consumer.has_left:
                del self._consumers[_other_mode(self._wanted)]
            elif (
                other_consumer is not None
                and not wanted_consumer.is_leaving
                and (wanted_consumer.joined or not other_consumer.has_subscription)
            ):
                other_consumer.leave()

    def group_exists(self) -> bool:
        """True if the group exists: it has taken this member, or refused it."""
        return any(consumer.joined or consumer.refused for consumer in list(self._consumers.values()))

    def handle_group_answer(self, members: Collection[KafkaMember] | None) -> None:
        """React to the stable group's `members`; None: the coordinator has been unreachable for a session. Any thread, often.

        If unreachable, the group has rebalanced without this member: every partition is given up. Once reachable, the member has
        its former share if the group says so; the embedded consumer may learn only later that it was removed.
        """
        with self._lock:
            if (members is None) == self._away:
                return
            self._away = members is None
            if members is None:
                _log.warning("the Kafka group's coordinator is unreachable: releasing the partitions that the group assigned")
                self._report(KafkaLost())
                return
            reported_partitions = frozenset().union(
                *(member.partitions for member in members if member.client_id == self._client_id)
            )
            assigned_partitions = frozenset().union(*(consumer.assigned for consumer in self._consumers.values()))
            if reported_partitions & assigned_partitions:
                self._report(KafkaAssigned(reported_partitions & assigned_partitions))

    def take_permanent_error(self) -> Message | None:
        """The next error of the Kafka group that does not pass by itself."""
        for consumer in list(self._consumers.values()):
            with contextlib.suppress(IndexError):
                return consumer.permanent_errors.popleft()
        return None

    def read_committed(self, topic_partition: TopicPartition) -> Future[CommittedOffset | None]:
        """As the embedded consumer's."""
        return self._active_consumer().read_committed(topic_partition)

    def commit(self, topic_partition: TopicPartition, offset: int) -> Future[bool]:
        """As the embedded consumer's."""
        return self._active_consumer().commit(topic_partition, offset)

    def close(self) -> None:
        """Leave the group; waits a while."""
        with self._lock:
            self._closing = True
            consumers = list(self._consumers.values())
        for consumer in consumers:
            consumer.leave()
        for consumer in consumers:
            consumer.close()

    # ---------------------------------------------------------------------------------------------------------- two as one

    def _active_consumer(self) -> EmbeddedConsumer:
        """The consumer that is in the group, preferably the one that stays."""
        return max(list(self._consumers.values()), key=lambda consumer: (consumer.joined, not consumer.is_leaving))

    def _partitions_of_other(self, mode: Mode) -> frozenset[TopicPartition]:
        other_consumer = self._consumers.get(_other_mode(mode))
        return other_consumer.assigned if other_consumer is not None else frozenset()

    def _forward_event(self, mode: Mode, event: KafkaEvent) -> None:
        """Merge the shares: a partition that one loses and the other has been given since stays the member's."""
        with self._lock:
            other_partitions = self._partitions_of_other(mode)
            self._report(KafkaRevoked(event.partitions - other_partitions) if isinstance(event, KafkaRevoked) else event)
            if isinstance(event, KafkaLost) and other_partitions:
                self._report(KafkaAssigned(other_partitions))

    def _is_free(self, mode: Mode, partitions: frozenset[TopicPartition]) -> bool:
        return self._freed(partitions - self._partitions_of_other(mode))


def _other_mode(mode: Mode) -> Mode:
    return Mode.ZOOKEEPER if mode is Mode.KAFKA else Mode.KAFKA
