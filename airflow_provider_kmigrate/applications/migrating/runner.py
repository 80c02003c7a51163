"""The runner of `core.member.membership`: carries its actions out and reports their results. It decides nothing.

Threads, and which of them may wait for what::

    runner       steps the member with one event at a time; never waits for I/O
    executors    one partition's I/O in order, other partitions' beside it; each answer awaited for seconds
    kafka        polls the embedded consumer; in a revocation it waits for the runner
    kazoo's own  put words into the runner's queue, nothing else
    application  poll, consume, commit, close: the only one in which records are returned and callbacks run

What concerns the application (Start, Stop, Pause, Resume, Drop, results of commits) waits in `inbox` for its next poll.

The other members of the Kafka group (R6, R7) come from DescribeGroups, in a thread and over a connection of their own. It is
called only while this member is in the group, or was refused by it: else the group need not exist. Unknown does not mean empty:
the last answer stays until the next one, and its age is reported. Metrics: KIP-125's two by its names, and Prometheus' text.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial, singledispatchmethod
from typing import Any, Final

from confluent_kafka import ConsumerGroupState, KafkaException, Message

from airflow_provider_kmigrate.applications.migrating.kafka import FencedConsumer
from airflow_provider_kmigrate.applications.migrating.settings import MigratingSettings
from airflow_provider_kmigrate.applications.migrating.zookeeper import GroupSession, GroupZnodes, StateChanged, Watched
from airflow_provider_kmigrate.clients import wire_groups
from airflow_provider_kmigrate.clients.admin import connect, error_of, wait_for_answer
from airflow_provider_kmigrate.clients.identity import supports_identity
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member import messages
from airflow_provider_kmigrate.core.member.assignors import KafkaMember, Owners
from airflow_provider_kmigrate.core.member.group_seen import KafkaGroup, Store
from airflow_provider_kmigrate.core.member.membership import step
from airflow_provider_kmigrate.core.member.registration import Mode, Registration
from airflow_provider_kmigrate.core.member.state import (
    Member,
    Settings,
    UnknownAssignment,
    blocks_revocation,
    compute_global_assignment,
    due_commits,
    is_current_generation,
    subscribed_topics,
)
from airflow_provider_kmigrate.exceptions import KMigrateError, TimedOut, Unreachable

_RETRY_S: Final = 0.2

Job = Callable[[], bool]
"""Returns true if it is done; if not, it is called again after a moment, and later jobs of its key wait for it."""


class PartitionExecutors:
    """A pool of `threads` that runs jobs, those of one key in order. A job must bound its own time and raise nothing."""

    def __init__(self, threads: int = 8) -> None:
        self._lock = threading.Lock()
        self._executors: dict[Hashable, deque[Job]] = {}
        self._ready: queue.SimpleQueue[Hashable] = queue.SimpleQueue()
        self._later: deque[tuple[float, Hashable]] = deque()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True, name=f"kmigrate-executor-{n}") for n in range(threads)]

    def start(self) -> None:
        """Start the threads; once only."""
        for thread in self._threads:
            thread.start()

    def add(self, key: Hashable, job: Job) -> None:
        """Queue a job; jobs with the same key run one after another, in order."""
        with self._lock:
            jobs = self._executors.setdefault(key, deque())
            jobs.append(job)
            if len(jobs) == 1:
                self._ready.put(key)

    def retry_due_jobs(self) -> None:
        """Try the jobs again that were not done. The owner of the clock calls it often."""
        with self._lock:
            while self._later and self._later[0][0] <= time.monotonic():
                self._ready.put(self._later.popleft()[1])

    def close(self, timeout: float) -> None:
        """Drop jobs that have not begun; wait for those that have."""
        self._over.set()
        for _ in self._threads:
            self._ready.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while not self._over.is_set():
            key = self._ready.get()
            if not self._over.is_set():
                self._run_next_job(key)

    def _run_next_job(self, key: Hashable) -> None:
        with self._lock:
            job = self._executors[key][0]
        done = job()
        with self._lock:
            jobs = self._executors[key]
            if not done:
                self._later.append((time.monotonic() + _RETRY_S, key))
                return
            jobs.popleft()
            if jobs:
                self._ready.put(key)
            else:
                del self._executors[key]


_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


_GAUGES: Final = {
    "ActiveKafkaCoordinationCount": (
        "kmigrate_consumer_kafka_coordination_active",
        "Whether Kafka coordinates the group, as this member last observed (0 or 1).",
    ),
    "KafkaOwnedPartitionsCount": (
        "kmigrate_consumer_kafka_owned_partitions",
        "Partitions that Kafka has assigned to this member, in either mode.",
    ),
    "MembersAge": (
        "kmigrate_consumer_kafka_members_age_seconds",
        "Age of this member's list of the Kafka group's members; absent: no list.",
    ),
}
"""Figure -> its name and its text for Prometheus."""


def metrics_of(member: Member | None) -> dict[str, int]:
    """KIP-125's metrics: whether Kafka coordinates by the member's last observation, and how many partitions Kafka assigned."""
    return {
        "ActiveKafkaCoordinationCount": int(member is not None and member.mode is Mode.KAFKA),
        "KafkaOwnedPartitionsCount": len(member.kafka) if member else 0,
    }


def with_metrics_in_stats(properties: Mapping[str, Any], metrics: Callable[[], dict[str, int]]) -> dict[str, Any]:
    """Properties of the consumer that fetches: if the application has a `stats_cb`, its JSON gets the metrics, too."""
    stats_callback = properties.get("stats_cb")
    if stats_callback is None:
        return dict(properties)
    return {**properties, "stats_cb": lambda text: stats_callback(json.dumps({**json.loads(text), **metrics()}))}


def format_prometheus(metrics: dict[str, int], group: str, client: str, members_age: float) -> str:
    """The metrics as Prometheus' text, with the labels `group` and `client`."""
    labels = f'{{group="{group.translate(_ESCAPED)}",client="{client.translate(_ESCAPED)}"}}'
    age = {"MembersAge": f"{members_age:.3f}"} if members_age < float("inf") else {}
    figures = [(*_GAUGES[figure], value) for figure, value in {**metrics, **age}.items()]
    return "".join(f"# HELP {name} {text}\n# TYPE {name} gauge\n{name}{labels} {value}\n" for name, text, value in figures)


_log = logging.getLogger(__name__)
_EVERY_S: Final = 3.0
_AGAIN_S: Final = 0.2  # a group that rebalances reports no partitions
_ANSWER_S: Final = 3.0
_STABLE: Final = "Stable"

Ask = Callable[[], KafkaGroup]
Answer = tuple[KafkaMember, ...]


def make_group_describer(properties: Mapping[str, Any], group: str) -> Ask:
    """DescribeGroups of one group, answered within seconds or an exception of ours.

    By the wire client; if it does not support the properties' security, by librdkafka (see `identity`).
    """
    scalar_properties = {
        name: value for name, value in properties.items() if isinstance(value, str | int | float) or name == "oauth_cb"
    }
    texts = {name: value if callable(value) else str(value) for name, value in scalar_properties.items()}
    if "oauth_cb" not in texts and supports_identity(texts):
        return lambda: wire_groups.describe_group(texts, group, _ANSWER_S)
    return _make_librdkafka_describer(texts, group)


def _make_librdkafka_describer(properties: Mapping[str, Any], group: str) -> Ask:
    admin, what = connect(properties), f"describing {group}"

    def describe_group() -> KafkaGroup:
        admin.poll(0)  # librdkafka's log lines wait for this, and would pile up in an outage
        try:
            (answer,) = admin.describe_consumer_groups([group], request_timeout=_ANSWER_S).values()
        except KafkaException as error:
            raise error_of(error.args[0], what) from error
        description = wait_for_answer(what, answer, _ANSWER_S)
        # a group that rebalances reports members without assignments
        stable = description.state is ConsumerGroupState.STABLE
        return (
            KafkaGroup(_STABLE, tuple(map(_to_kafka_member, description.members)))
            if stable
            else KafkaGroup(description.state.name)
        )

    return describe_group


def _to_kafka_member(member: Any) -> KafkaMember:
    partitions = frozenset(
        TopicPartition(partition.topic, partition.partition) for partition in member.assignment.topic_partitions
    )
    return KafkaMember(member.member_id, member.client_id, partitions, member.host)


def _is_unanswered(error: KMigrateError) -> bool:
    """True if no coordinator was reached or answered; false for an answer that is an error or cannot be read."""
    return isinstance(error, Unreachable | TimedOut) and isinstance(error.__cause__, OSError | KafkaException | None)


class GroupPoller(threading.Thread):
    """Polls the group every few seconds, and at once after `changed`.

    `may_ask`: the group is known to exist; `differs` gets changes.

    `away` gets None if the coordinator has been unreachable for `session` seconds: the group has then removed this member, which
    librdkafka does not report, since it counts a session only on an open connection (measured). After each answer it gets the
    members of the stable group. Without a first answer nothing is concluded: this connection is not librdkafka's.
    """

    def __init__(
        self,
        ask: Ask,
        may_ask: Callable[[], bool],
        differs: Callable[[], None],
        away: Callable[[Answer | None], object],
        session: float,
    ) -> None:
        super().__init__(daemon=True, name="kmigrate-group-poller")
        self._ask, self._may_ask, self._differs, self._away, self._session = ask, may_ask, differs, away, session
        self._reached = time.monotonic()
        self._changed, self._ending = threading.Event(), threading.Event()
        self.members: Answer = ()  # in the last answer; empty before the first one
        self._answered = float("-inf")
        self._spoken = False  # this thread has had an answer once: its own connection to the brokers works

    @property
    def age(self) -> float:
        """Seconds since the last answer; infinite before the first one."""
        return time.monotonic() - self._answered

    def poll_at_once(self) -> None:
        """The group rebalances: poll at once. Any thread."""
        self._changed.set()

    def request_end(self) -> None:
        """Stop polling, without waiting: a call in progress ends by its own time-out."""
        self._ending.set()
        self._changed.set()

    def run(self) -> None:
        """Poll the group until `request_end`; sooner after a change or a failure."""
        while not self._ending.is_set():
            answered = False
            try:
                if self._may_ask():
                    answered = self.poll()
                else:
                    self._reached = time.monotonic()
            except Exception:  # noqa: BLE001  # without this thread no unreachable coordinator would be noticed
                _log.exception("polling the Kafka group failed; trying again")
            self._changed.wait(_EVERY_S if answered else _AGAIN_S)
            self._changed.clear()

    def _record_reached(self, at: float) -> None:
        self._reached, self._spoken = at, True

    def ask_stable_members(self) -> Answer | None:
        """The members of the stable group, asked now; None if it is not stable or does not answer. Any thread."""
        try:
            group = self._ask()
        except KMigrateError as error:
            _log.info("%s", error)
            return None
        return group.members if group.state == _STABLE else None

    def poll(self) -> bool:
        """Poll once; true if there was an answer."""
        began = time.monotonic()
        try:
            group = self._ask()
        except KMigrateError as error:
            _log.info("%s", error)
            if not _is_unanswered(error):
                self._record_reached(began)
            elif self._spoken and time.monotonic() - self._reached >= self._session:
                self._away(None)
            return False
        self._record_reached(began)
        if group.state != _STABLE:
            return False
        self._away(group.members)
        before, self.members, self._answered = self.members, tuple(sorted(group.members)), began
        if self.members != before:
            self._differs()
        return True


_TICK_S: Final = 0.025
_COMMIT_S: Final = (
    2.0  # for the coordinator to take a last commit: the partition has no owner meanwhile; a ZooKeeper consumer retries for 6 s
)
_READ_S: Final = 6.0
_SECOND_S: Final = 0.5  # if ZooKeeper has the offset already; a commit waits behind the JoinGroup of its own connection
_LATE_S: Final = 5.0  # beyond a session of the Kafka group, for which librdkafka tries to send one commit
_HUNG: Final = 70  # exit status

Connect = Callable[[ZooKeeperSettings, StateChanged, Watched], GroupSession]
DeliveryAction = messages.StartDelivery | messages.StopDelivery | messages.PauseDelivery | messages.Resume | messages.Drop
Inbox = DeliveryAction | messages.CommitDone
CommitAnswer = Future[frozenset[Store] | None]
"""The stores that failed; None: the partition is not held any more. What had been sent before it was lost may have been taken."""


class MemberRunner:
    """One member. `end` ends the process if only its death frees a partition."""

    def __init__(
        self,
        settings: MigratingSettings,
        consumer: str,
        registration: Registration,
        end: Callable[[int], object],
        connect: Connect,
    ) -> None:
        limits = {"poll_limit": settings.poll_limit, "late_commit": settings.kafka_session + _LATE_S}
        self.member = Member(Settings(consumer, registration, settings.strategy, settings.internal_too, **limits))
        self.inbox: deque[Inbox] = deque()
        self._end_process = end
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._executors = PartitionExecutors()
        self._observing = False
        self._answers: dict[tuple[TopicPartition, int, int], list[CommitAnswer]] = {}
        self._commits: dict[TopicPartition, deque[messages.CommitOffset]] = {}
        self._figures = metrics_of(None)
        self._over = threading.Event()
        self._zk = connect(
            settings.zookeeper,
            lambda lost: self.post(messages.Expired() if lost else messages.Suspended()),
            lambda path: self._events.put(partial(self._check_path, path)),
        )
        self._znodes = GroupZnodes(
            self._zk, settings.group, consumer, registration, migrates=settings.migrates, internal_too=settings.internal_too
        )
        self._kafka: FencedConsumer | None = None
        self._poller: GroupPoller | None = None
        if settings.migrates:
            self._kafka = FencedConsumer(settings, consumer, self.post, self._has_released)
            self._poller = self._make_poller(self._kafka, settings)
        self._pulse_every = settings.zookeeper.session_timeout / 12
        self._next_pulse = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name="kmigrate-member")

    def _make_poller(self, kafka: FencedConsumer, settings: MigratingSettings) -> GroupPoller:
        """The poller of the Kafka group; its answers are part of the next observation."""
        ask, observe = make_group_describer(settings.embedded, settings.group), partial(self._carry_out, messages.ObserveGroup())
        return GroupPoller(
            ask, kafka.group_exists, lambda: self._events.put(observe), kafka.handle_group_answer, settings.kafka_session
        )

    def start(self) -> None:
        """Start all threads of the member; it joins the group."""
        self._executors.start()
        self._thread.start()
        self._zk.start()
        if self._kafka is not None:
            self._kafka.start()
        if self._poller is not None:
            self._poller.start()

    def close(self) -> None:
        """Close in order: the Kafka group (it may still revoke), work in progress, the session with its remaining znodes."""
        if self._poller is not None:
            self._poller.request_end()
        if self._kafka is not None:
            self._kafka.close()
        self._over.set()
        self._thread.join(5.0)
        self._executors.close(5.0)
        self._zk.close()

    def read_global_assignment(self) -> Owners | UnknownAssignment:
        """The assignment of the whole group. Any thread; while Kafka coordinates its coordinator is asked, for seconds at most."""
        member, members = self.member, None
        if member.mode is Mode.KAFKA and self._poller is not None:
            members = self._poller.ask_stable_members()
        return compute_global_assignment(member.settings, member.view, member.kafka, members)

    @property
    def members_age(self) -> float:
        """Seconds since the Kafka group last reported its members; infinite before the first report."""
        return self._poller.age if self._poller else float("inf")

    def take_permanent_error(self) -> Message | None:
        """The lasting error that keeps this member out of the Kafka group while Kafka coordinates. For the application's thread."""
        error = self._kafka.take_permanent_error() if self._kafka else None
        return error if self.member.mode is Mode.KAFKA else None

    # ------------------------------------------------------------------------------------------------------- the machine

    def post(self, event: messages.MemberEvent) -> None:
        """Queue an event for the member. Any thread."""
        self._events.put(partial(self._step, event))

    def commit(self, topic_partition: TopicPartition, generation: int, offset: int) -> CommitAnswer:
        """Commit from any thread. The answer may never come while ZooKeeper is unavailable."""
        answer: CommitAnswer = Future()
        self._events.put(partial(self._handle_commit_request, messages.CommitAsked(topic_partition, generation, offset), answer))
        return answer

    def _run(self) -> None:
        next_tick = 0.0
        while not self._over.is_set():
            try:
                self._events.get(timeout=_TICK_S)()
            except queue.Empty:
                pass
            except Exception:  # noqa: BLE001  # without this thread nothing is delivered: the lease runs out
                _log.exception("the member's thread failed")
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + _TICK_S
                self._step(messages.Tick())
                self._answer_commits_of_lost_partitions()
                self._report_figures()
                self._confirm_session_if_due(now)
                self._executors.retry_due_jobs()
                if self._kafka is not None:
                    self._events.put(self._kafka.change_over)

    def _report_figures(self) -> None:
        figures = metrics_of(self.member)
        if figures != self._figures:
            self._figures = figures
            _log.info("%s: %s", self.member.settings.consumer, ", ".join(f"{name} {value}" for name, value in figures.items()))

    def _confirm_session_if_due(self, now: float) -> None:
        if now >= self._next_pulse:
            self._next_pulse = now + self._pulse_every
            self._zk.confirm_session(lambda session, sent, timeout: self.post(messages.Alive(session, sent, timeout)))

    def _step(self, event: messages.MemberEvent) -> None:
        self.member, actions = step(self.member, event, time.monotonic())
        if isinstance(event, messages.CommitDone):
            self.inbox.append(event)
            for answer in self._answers.pop((event.where, event.generation, event.offset), ()):
                answer.set_result(event.failed)
        elif isinstance(event, messages.GroupObserved):
            self._update_kafka_topics(event.view)
        elif isinstance(event, messages.KafkaAssigned) and self._poller is not None:
            self._poller.poll_at_once()
        for action in actions:
            self._carry_out(action)

    def _handle_commit_request(self, event: messages.CommitAsked, answer: CommitAnswer) -> None:
        if is_current_generation(self.member, event.where, event.generation):
            self._answers.setdefault((event.where, event.generation, event.offset), []).append(answer)
        else:
            answer.set_result(None)
        self._step(event)

    def _answer_commits_of_lost_partitions(self) -> None:
        """Their results never come, and who waits for one takes no notice of the loss meanwhile."""
        for key in [key for key in self._answers if not is_current_generation(self.member, *key[:2])]:
            for answer in self._answers.pop(key):
                answer.set_result(None)

    def _update_kafka_topics(self, view: messages.GroupView) -> None:
        """Subscribe in the Kafka group to exactly the topics of ZooKeeper's assignment, as plain names."""
        if self._kafka is not None:
            self._kafka.follow_mode(
                self.member.mode, frozenset(subscribed_topics(self.member.settings, view)) & view.topics.keys()
            )

    def _has_released(self, partitions: frozenset[TopicPartition]) -> bool:
        """True if the member knows of a revocation and uses none of these by Kafka's assignment."""
        member = self.member
        revoked = not partitions & member.kafka
        return self._over.is_set() or (revoked and (member.mode is not Mode.KAFKA or not blocks_revocation(member, partitions)))

    def _check_path(self, path: str) -> None:
        topic_partition = self._znodes.partition_of_owner_path(path)
        if topic_partition is None:
            self._carry_out(messages.ObserveGroup())
        elif topic_partition in self.member.held:
            self._carry_out(messages.CheckOwner(topic_partition, self.member.held[topic_partition].generation))

    # ------------------------------------------------------------------------------------------------------- the actions

    @singledispatchmethod
    def _carry_out(self, action: messages.Action) -> None:
        raise TypeError(action)

    @_carry_out.register
    def _put_into_inbox(self, action: DeliveryAction) -> None:
        self.inbox.append(action)

    @_carry_out.register
    def _log_alarm(self, action: messages.Raise) -> None:
        _log.warning("%s: %s: %s", self.member.settings.consumer, action.alarm.value, action.about)

    @_carry_out.register
    def _end_hung_process(self, _: messages.End) -> None:
        _log.critical("%s: the application holds a partition past every limit; ending the process", self.member.settings.consumer)
        self._end_process(_HUNG)

    @_carry_out.register
    def _register(self, action: messages.Register) -> None:
        def job() -> None:
            if self._zk.session == action.session:
                self._znodes.register(action.session)
                self.post(messages.Registered(action.session))

        self._submit(None, job)

    @_carry_out.register
    def _deregister(self, _: messages.Deregister) -> None:
        self._submit(None, self._znodes.deregister)

    @_carry_out.register
    def _publish_progress(self, action: messages.Publish) -> None:
        def job() -> None:
            if self.member.published == action.progress:
                self._znodes.publish(action.progress)

        self._submit(None, job)

    @_carry_out.register
    def _observe_group(self, _: messages.ObserveGroup) -> None:
        def job() -> None:
            self._observing = False  # any change from here on needs another observation
            try:
                self.post(messages.GroupObserved(self._znodes.observe(self._poller.members if self._poller else ())))
            except KMigrateError:
                self._observing = True
                raise

        if not self._observing:
            self._observing = True
            self._submit(None, job)

    @_carry_out.register
    def _claim_owner(self, action: messages.Claim) -> None:
        self._submit_current(action, lambda: self._post_owner(action, self._znodes.claim(action.where, action.thread)))

    @_carry_out.register
    def _check_owner(self, action: messages.CheckOwner) -> None:
        self._submit_current(action, lambda: self._post_owner(action, self._znodes.read_owner(action.where)))

    @_carry_out.register
    def _relabel_owner(self, action: messages.Relabel) -> None:
        self._submit_current(action, lambda: self._znodes.relabel(action.where, action.thread))

    @_carry_out.register
    def _release_owner(self, action: messages.ReleaseOwner) -> None:
        """Also for an older generation: an abandoned claim may have worked."""
        self._submit(action.where, lambda: self._post_owner(action, self._znodes.release(action.where)))

    @_carry_out.register
    def _read_offsets(self, action: messages.ReadOffsets) -> None:
        def job() -> None:
            zookeeper = kafka = self._znodes.read_offset(action.where)
            if self._kafka is not None:
                committed = self._kafka.read_committed(action.where).result(_READ_S)
                kafka = None if committed is None else committed.offset
            reset = self._znodes.read_reset(action.where)
            self.post(messages.OffsetsRead(action.where, action.generation, zookeeper, kafka, reset))

        self._submit_current(action, job)

    @_carry_out.register
    def _read_kafka_offset(self, action: messages.ReadKafka) -> None:
        """Try once: the partition's commits wait for it, and commits to ZooKeeper do not need Kafka."""
        kafka = self._kafka
        if kafka is None:
            return

        def job() -> None:
            committed = None
            with contextlib.suppress(KMigrateError, KafkaException, FutureTimeout):
                committed = kafka.read_committed(action.where).result(_READ_S)
            offset, foreign = committed or (None, False)
            self.post(messages.KafkaRead(action.where, action.generation, offset, foreign))

        self._submit_current(action, job)

    @_carry_out.register
    def _forget_reset(self, action: messages.ForgetReset) -> None:
        self._submit_current(action, lambda: self._znodes.forget_reset(action.where))

    @_carry_out.register
    def _queue_commit(self, action: messages.CommitOffset) -> None:
        waiting_commits = self._commits.setdefault(action.where, deque())
        waiting_commits.append(action)
        self._submit(action.where, lambda: self._commit_all(waiting_commits))

    def _commit_all(self, waiting_commits: deque[messages.CommitOffset]) -> None:
        """Write all waiting commits; nothing is left for the later ones."""
        for action, settled_commits in due_commits(tuple(waiting_commits)):
            failed = frozenset(store for store in action.stores if not self._commit(store, action))
            for commit in settled_commits:
                waiting_commits.popleft()
                if self._is_current(commit):
                    self.post(messages.CommitDone(commit.where, commit.generation, commit.offset, failed & set(commit.stores)))

    def _commit(self, store: Store, action: messages.CommitOffset) -> bool:
        """Every failure is an answer: the member decides about a retry."""
        still_current = partial(self._is_current, action)
        if not still_current():
            return False
        try:
            if store is Store.ZOOKEEPER:
                return self._znodes.write_offset(action.where, action.offset, still_current)
            return self._kafka is None or _await_commit(self._kafka.commit(action.where, action.offset), _commit_timeout(action))
        except (KMigrateError, FutureTimeout) as error:
            _log.info("commit of %s to %s: %s", action.where, store.value, error)
            return False

    def _post_owner(self, action: messages.Claim | messages.CheckOwner | messages.ReleaseOwner, session: int | None) -> None:
        self.post(messages.OwnerIs(action.where, action.generation, session))

    def _is_current(self, action: messages.PartitionAction) -> bool:
        return is_current_generation(self.member, action.where, action.generation)

    def _submit_current(self, action: messages.PartitionAction, act: Callable[[], None]) -> None:
        """Run it in the partition's order, unless its generation is over by then."""
        self._submit(action.where, lambda: act() if self._is_current(action) else None)

    def _submit(self, key: TopicPartition | None, act: Callable[[], None]) -> None:
        def job() -> bool:
            try:
                act()
            except (KMigrateError, KafkaException, FutureTimeout) as error:
                _log.info("%s: trying again after a failure: %s", self.member.settings.consumer, error)
                return self._over.is_set()
            except Exception:  # noqa: BLE001  # the member awaits an answer
                _log.exception("a member's action failed; trying again")
                return self._over.is_set()
            return True

        self._executors.add(key, job)


def _await_commit(commit: Future[bool], wait: float) -> bool:
    """Wait for the coordinator's answer.

    A commit without a waiter must not be sent after the release; librdkafka may still send its own.
    """
    try:
        return commit.result(wait)
    finally:
        commit.cancel()


def _commit_timeout(action: messages.CommitOffset) -> float:
    return _COMMIT_S if action.stores[0] is Store.KAFKA else _SECOND_S
