"""The shell around `core.member.membership`: carries its actions out and tells it what came of them. It decides nothing.

Threads, and who may wait for what::

    shell        steps the member with one event at a time; never waits for I/O
    lanes        one partition's I/O in order, other partitions' beside it; each answer awaited for seconds
    kafka        polls the embedded consumer; in a revocation it waits for the shell
    kazoo's own  put words into the shell's queue, nothing else
    application  poll, consume, commit, close: the only one in which records are handed over and callbacks run

What concerns the application (Start, Stop, Pause, Resume, Drop, what became of commits) waits in `inbox` for its next poll.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial, singledispatchmethod
from typing import Final

from confluent_kafka import KafkaException, Message

from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.consumer.migrating.fence import FencedConsumer
from airflow_provider_kmigrate.consumer.migrating.lanes import PartitionExecutors
from airflow_provider_kmigrate.consumer.migrating.metrics import metrics_of
from airflow_provider_kmigrate.consumer.migrating.neighbours import GroupPoller, asking
from airflow_provider_kmigrate.consumer.migrating.settings import MigratingSettings
from airflow_provider_kmigrate.consumer.migrating.znodes import GroupZnodes
from airflow_provider_kmigrate.consumer.migrating.zookeeper import GroupSession, StateChanged, Watched
from airflow_provider_kmigrate.core.coordination.assignors import topics_of
from airflow_provider_kmigrate.core.coordination.registration import Mode, Registration, Unreadable
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.member import words as w
from airflow_provider_kmigrate.core.member.membership import step
from airflow_provider_kmigrate.core.member.state import Member, Settings, blocks_revocation, current, due_commits
from airflow_provider_kmigrate.exceptions import KMigrateError

_log = logging.getLogger(__name__)
_TICK_S: Final = 0.025
_COMMIT_S: Final = (
    2.0  # for the coordinator to take a last commit: a partition has no owner meanwhile, and an old consumer tries for 6 s
)
_READ_S: Final = 6.0
_SECOND_S: Final = 0.5  # where ZooKeeper has the offset already; a commit waits behind the JoinGroup of its own connection
_LATE_S: Final = 5.0  # beyond a session of the Kafka group, for which librdkafka tries to send one commit
_HUNG: Final = 70  # exit status

Connect = Callable[[ZooKeeperSettings, StateChanged, Watched], GroupSession]
Inbox = w.Start | w.Stop | w.Pause | w.Resume | w.Drop | w.CommitDone
CommitAnswer = Future[frozenset[w.Store] | None]
"""The stores that failed; None: the partition was not held any more, nothing was sent."""


class MemberRunner:
    """One member. `end` ends the process, where only its death frees a partition."""

    def __init__(
        self,
        settings: MigratingSettings,
        consumer: str,
        registration: Registration,
        end: Callable[[int], object] = os._exit,
        connect: Connect = GroupSession,
    ) -> None:
        core = Settings(
            consumer,
            registration,
            settings.strategy,
            settings.internal_too,
            poll_limit=settings.poll_limit,
            late_commit=settings.kafka_session + _LATE_S,
        )
        self.member = Member(core)
        self.inbox: deque[Inbox] = deque()
        self._end_process = end
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lanes = PartitionExecutors()
        self._looking = False
        self._answers: dict[tuple[TopicPartition, int, int], list[CommitAnswer]] = {}
        self._commits: dict[TopicPartition, deque[w.Commit]] = {}
        self._figures = metrics_of(None)
        self._over = threading.Event()
        self._zk = connect(settings.zookeeper, self._session_changed, self._watched)
        self._znodes = GroupZnodes(
            self._zk, settings.group, consumer, registration, migrates=settings.migrates, internal_too=settings.internal_too
        )
        self._kafka = self._embedded(settings, consumer) if settings.migrates else None
        self._neighbours = self._watching(settings) if settings.migrates else None
        self._pulse_every = settings.zookeeper.session_timeout / 12
        self._next_pulse = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name="kmigrate-member")

    def _embedded(self, settings: MigratingSettings, consumer: str) -> FencedConsumer:
        return FencedConsumer(settings.embedded, consumer, self.tell, self._freed, settings.poll_every)

    def _watching(self, settings: MigratingSettings) -> GroupPoller:
        """What they tell is part of the next look."""
        assert self._kafka  # noqa: S101
        ask, kafka = asking(settings.embedded, settings.group), self._kafka
        return GroupPoller(
            ask, kafka.known, lambda: self._events.put(partial(self._do, w.Look())), kafka.away, settings.kafka_session
        )

    def start(self) -> None:
        self._lanes.start()
        self._thread.start()
        self._zk.start()
        if self._kafka is not None:
            self._kafka.start()
        if self._neighbours is not None:
            self._neighbours.start()

    def close(self) -> None:
        """In order: the Kafka group (it may still revoke), what is under way, the session with whatever is left of it."""
        if self._neighbours is not None:
            self._neighbours.end()
        if self._kafka is not None:
            self._kafka.close()
        self._over.set()
        self._thread.join(5.0)
        self._lanes.close(5.0)
        self._zk.close()

    @property
    def members_age(self) -> float:
        """Seconds since the Kafka group last told of its members; infinite while it never did."""
        return self._neighbours.age if self._neighbours else float("inf")

    def complaint(self) -> Message | None:
        """The application's thread: what keeps this member out of the Kafka group and does not pass, where it is Kafka that coordinates."""
        found = self._kafka.complaint() if self._kafka else None
        return found if self.member.mode is Mode.KAFKA else None

    # ------------------------------------------------------------------------------------------------------- the machine

    def tell(self, event: w.Event) -> None:
        """Any thread."""
        self._events.put(partial(self._step, event))

    def commit(self, where: TopicPartition, generation: int, offset: int) -> CommitAnswer:
        """Any thread. The answer comes when the member has one; it may never come while ZooKeeper is away."""
        answer: CommitAnswer = Future()
        self._events.put(partial(self._commit_asked, w.CommitAsked(where, generation, offset), answer))
        return answer

    def _run(self) -> None:
        next_tick = 0.0
        while not self._over.is_set():
            try:
                self._events.get(timeout=_TICK_S)()
            except queue.Empty:
                pass
            except Exception:  # noqa: BLE001  # without the shell nothing is delivered: the lease runs out
                _log.exception("a member's shell failed")
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + _TICK_S
                self._step(w.Tick())
                self._tell_figures()
                self._pulse(now)
                self._lanes.wake()
                if self._kafka is not None:
                    self._events.put(self._kafka.change_over)

    def _tell_figures(self) -> None:
        figures = metrics_of(self.member)
        if figures != self._figures:
            self._figures = figures
            _log.info("%s: %s", self.member.settings.consumer, ", ".join(f"{name} {value}" for name, value in figures.items()))

    def _pulse(self, now: float) -> None:
        if now >= self._next_pulse:
            self._next_pulse = now + self._pulse_every
            self._zk.pulse(self._answered)

    def _answered(self, session: int, sent: float, timeout: float) -> None:
        self.tell(w.Alive(session, sent, timeout))

    def _step(self, event: w.Event) -> None:
        self.member, actions = step(self.member, event, time.monotonic())
        if isinstance(event, w.CommitDone):
            self.inbox.append(event)
            for answer in self._answers.pop((event.where, event.generation, event.offset), ()):
                answer.set_result(event.failed)
        elif isinstance(event, w.Seen):
            self._follow(event.view)
        elif isinstance(event, w.KafkaAssigned) and self._neighbours is not None:
            self._neighbours.changed()
        for action in actions:
            self._do(action)

    def _commit_asked(self, event: w.CommitAsked, answer: CommitAnswer) -> None:
        if current(self.member, event.where, event.generation):
            self._answers.setdefault((event.where, event.generation, event.offset), []).append(answer)
        else:
            answer.set_result(None)
        self._step(event)

    def _follow(self, view: w.GroupView) -> None:
        """The Kafka group is asked for the very topics that ZooKeeper's assignment is about, as plain names."""
        topics = topics_of(self.member.settings.registration, view.topics, internal=self.member.settings.internal_too)
        if self._kafka is not None and not isinstance(topics, Unreadable):
            self._kafka.follow(self.member.mode, frozenset(topics) & view.topics.keys())

    def _freed(self, partitions: frozenset[TopicPartition]) -> bool:
        """Whether a revocation was heard and nothing of it is in use by Kafka's word."""
        member = self.member
        heard = not partitions & member.kafka
        return self._over.is_set() or (heard and (member.mode is not Mode.KAFKA or not blocks_revocation(member, partitions)))

    def _session_changed(self, lost: bool) -> None:
        self.tell(w.Expired() if lost else w.Suspended())

    def _watched(self, path: str) -> None:
        self._events.put(partial(self._look_at, path))

    def _look_at(self, path: str) -> None:
        where = self._znodes.is_owner_path(path)
        if where is None:
            self._do(w.Look())
        elif where in self.member.held:
            self._do(w.CheckOwner(where, self.member.held[where].generation))

    # ------------------------------------------------------------------------------------------------------- the actions

    @singledispatchmethod
    def _do(self, action: w.Action) -> None:
        raise TypeError(action)

    @_do.register(w.Start)
    @_do.register(w.Stop)
    @_do.register(w.Pause)
    @_do.register(w.Resume)
    @_do.register(w.Drop)
    def _(self, action: w.Start | w.Stop | w.Pause | w.Resume | w.Drop) -> None:
        self.inbox.append(action)

    @_do.register
    def _(self, action: w.Raise) -> None:
        _log.warning("%s: %s: %s", self.member.settings.consumer, action.alarm.value, action.about)

    @_do.register
    def _(self, _: w.End) -> None:
        _log.critical("%s: the application holds a partition past every limit, the process ends", self.member.settings.consumer)
        self._end_process(_HUNG)

    @_do.register
    def _(self, action: w.Register) -> None:
        def job() -> None:
            if self._zk.session == action.session:
                self._znodes.register(action.session)
                self.tell(w.Registered(action.session))

        self._lane(None, job)

    @_do.register
    def _(self, _: w.Deregister) -> None:
        self._lane(None, self._znodes.deregister)

    @_do.register
    def _(self, action: w.Publish) -> None:
        def job() -> None:
            if self.member.published == action.progress:
                self._znodes.publish(action.progress)

        self._lane(None, job)

    @_do.register
    def _(self, _: w.Look) -> None:
        def job() -> None:
            self._looking = False  # whatever changes from here on asks for another look
            try:
                self.tell(w.Seen(self._znodes.look(self._neighbours.members if self._neighbours else ())))
            except KMigrateError:
                self._looking = True
                raise

        if not self._looking:
            self._looking = True
            self._lane(None, job)

    @_do.register
    def _(self, action: w.Claim) -> None:
        self._lane_of(action, lambda: self._owner(action, self._znodes.claim(action.where, action.thread)))

    @_do.register
    def _(self, action: w.CheckOwner) -> None:
        self._lane_of(action, lambda: self._owner(action, self._znodes.owner(action.where)))

    @_do.register
    def _(self, action: w.Relabel) -> None:
        self._lane_of(action, lambda: self._znodes.relabel(action.where, action.thread))

    @_do.register
    def _(self, action: w.Release) -> None:
        """Also of an older generation: a claim that was given up may have worked."""
        self._lane(action.where, lambda: self._owner(action, self._znodes.release(action.where)))

    @_do.register
    def _(self, action: w.ReadOffsets) -> None:
        def job() -> None:
            zookeeper = kafka = self._znodes.read_offset(action.where)
            if self._kafka is not None:
                found = self._kafka.committed(action.where).result(_READ_S)
                kafka = None if found is None else found.offset
            reset = self._znodes.read_reset(action.where)
            self.tell(w.OffsetsRead(action.where, action.generation, zookeeper, kafka, reset))

        self._lane_of(action, job)

    @_do.register
    def _(self, action: w.ReadKafka) -> None:
        """Asked once: the partition's commits wait behind it, and those to ZooKeeper need no Kafka."""
        kafka = self._kafka
        if kafka is None:
            return

        def job() -> None:
            found = None
            with contextlib.suppress(KMigrateError, KafkaException, FutureTimeout):
                found = kafka.committed(action.where).result(_READ_S)
            offset, foreign = found or (None, False)
            self.tell(w.KafkaRead(action.where, action.generation, offset, foreign))

        self._lane_of(action, job)

    @_do.register
    def _(self, action: w.ForgetReset) -> None:
        self._lane_of(action, lambda: self._znodes.forget_reset(action.where))

    @_do.register
    def _(self, action: w.Commit) -> None:
        waiting = self._commits.setdefault(action.where, deque())
        waiting.append(action)
        self._lane(action.where, lambda: self._commit_all(waiting))

    def _commit_all(self, waiting: deque[w.Commit]) -> None:
        """All that wait by now; for those that wait behind them nothing is left to do."""
        for action, good in due_commits(tuple(waiting)):
            failed = frozenset(store for store in action.stores if not self._commit(store, action))
            for each in good:
                waiting.popleft()
                if self._current(each):
                    self.tell(w.CommitDone(each.where, each.generation, each.offset, failed & set(each.stores)))

    def _commit(self, store: w.Store, action: w.Commit) -> bool:
        """Every failure is an answer: the member decides whether it is tried again."""
        ours = partial(self._current, action)
        if not ours():
            return False
        try:
            if store is w.Store.ZOOKEEPER:
                return self._znodes.write_offset(action.where, action.offset, ours)
            return self._kafka is None or _taken(self._kafka.commit(action.where, action.offset), _wait(action))
        except (KMigrateError, FutureTimeout) as error:
            _log.info("commit of %s to %s: %s", action.where, store.value, error)
            return False

    def _owner(self, action: w.Claim | w.CheckOwner | w.Release, session: int | None) -> None:
        self.tell(w.OwnerIs(action.where, action.generation, session))

    def _current(self, action: w.PartitionAction) -> bool:
        return current(self.member, action.where, action.generation)

    def _lane_of(self, action: w.PartitionAction, act: Callable[[], None]) -> None:
        """Unless the partition's generation is over by the time it is its turn."""
        self._lane(action.where, lambda: act() if self._current(action) else None)

    def _lane(self, key: TopicPartition | None, act: Callable[[], None]) -> None:
        def job() -> bool:
            try:
                act()
            except (KMigrateError, KafkaException, FutureTimeout) as error:
                _log.info("%s: to be tried again: %s", self.member.settings.consumer, error)
                return self._over.is_set()
            except Exception:  # noqa: BLE001  # the member awaits an answer
                _log.exception("a member's action failed, to be tried again")
                return self._over.is_set()
            return True

        self._lanes.add(key, job)


def _taken(commit: Future[bool], wait: float) -> bool:
    """One that nobody waits for any more must not be sent after its partition was released. What librdkafka has it still may send."""
    try:
        return commit.result(wait)
    finally:
        commit.cancel()


def _wait(action: w.Commit) -> float:
    return _COMMIT_S if action.stores[0] is w.Store.KAFKA else _SECOND_S
