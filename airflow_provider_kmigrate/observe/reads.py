"""Concurrent reads of one observation, each with its own timeout, and the parts of a `ClusterView` that their answers make.

`Questions` runs and times the reads; a read that fails raises, and is kept as a reason. Calls may hang, so they run on threads that
all observers of a process share (`THREADS`). Nothing here decides. The functions at the end turn answers into parts of a view; they
are pure, so that every combination can be tested.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, NamedTuple, TypeVar

from airflow_provider_kmigrate.clients import wire
from airflow_provider_kmigrate.clients.hosts import HostObservation
from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.clients.wire import ApiVersions, NodeMetadata, PartitionLeader
from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    Cause,
    Controller,
    NodeFiles,
    Partition,
    Process,
    ProcessState,
    Quorum,
    Reason,
    TopicMetadata,
    ZkView,
    version_of,
)
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.migration import coordinator
from airflow_provider_kmigrate.core.migration.coordinator import CoordinatorTopic
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Unavailable, WrongCluster

Value = TypeVar("Value")

_MOST = 256  # threads of a process, and one more for each lane without a running call
_MOST_OF_A_LANE = 64  # a call that hangs keeps its thread until the client's own timeout
_IDLE = 10.0  # seconds after which a thread without work ends


@dataclass(slots=True)
class _Job:
    future: Future[Any]
    call: Callable[[], object]
    lane: Lane

    def run(self) -> Callable[[], object]:
        """Make the call; returns the function that delivers its result."""
        if not self.future.set_running_or_notify_cancel():
            return bool
        try:
            return partial(self.future.set_result, self.call())
        except BaseException as error:  # noqa: BLE001 - as in any executor, the waiting caller gets it
            return partial(self.future.set_exception, error)


@dataclass(eq=False, slots=True)
class Lane:
    """The calls of one observer or trigger. Hanging calls of this lane do not delay other lanes."""

    threads: Threads
    waiting: deque[_Job] = field(default_factory=deque)
    running: int = 0

    def submit(self, call: Callable[..., Value], *arguments: Any) -> Future[Value]:
        """Run the call on a thread, in the order of this lane's calls; cancelling the future works only before the call runs."""
        future: Future[Value] = Future()
        self.threads.start(_Job(future, lambda: call(*arguments), self))
        return future

    def close(self) -> None:
        """Drop the calls that have not begun."""
        self.threads.drop(self)


class Threads:
    """Daemon threads, created on demand: a hanging call delays neither the end of the process nor other lanes.

    At most `most` calls run at a time. A lane without a running call may exceed that by one, so that hanging calls of other lanes
    never block it. `idle`: seconds after which a thread without work ends.
    """

    def __init__(self, most: int = _MOST, most_of_a_lane: int = _MOST_OF_A_LANE, idle: float = _IDLE) -> None:
        self._most, self._most_of_a_lane, self._ends_after = most, most_of_a_lane, idle
        self.after_fork()

    def after_fork(self) -> None:
        """Begin again, as in a child process, which has none of its parent's threads."""
        self._lock, self._running = Lock(), 0
        self._lanes: dict[Lane, None] = {}  # lanes with waiting calls, in their order
        self._idle: list[SimpleQueue[_Job]] = []

    def open_lane(self) -> Lane:
        """A new lane for one caller's calls."""
        return Lane(self)

    def start(self, job: _Job) -> None:
        """Queue a job on its lane."""
        with self._lock:
            job.lane.waiting.append(job)
            self._lanes[job.lane] = None
            self._dispatch()

    def drop(self, lane: Lane) -> None:
        """Cancel the lane's waiting jobs; a running one ends by itself."""
        with self._lock:
            self._lanes.pop(lane, None)
            dropped = list(lane.waiting)
            lane.waiting.clear()
        for job in dropped:
            job.future.cancel()

    def _dispatch(self) -> None:
        """Start each call that may run on a thread; the lane with the fewest running calls goes first."""
        while (lane := self._next_lane()) is not None:
            job = lane.waiting.popleft()
            if not lane.waiting:
                del self._lanes[lane]
            lane.running, self._running = lane.running + 1, self._running + 1
            if self._idle:
                self._idle.pop().put(job)
            else:
                Thread(target=self._run_jobs, args=(job,), name="kmigrate-observe", daemon=True).start()

    def _next_lane(self) -> Lane | None:
        lane = min(self._lanes, key=lambda candidate: candidate.running, default=None)
        if lane is None or lane.running >= self._most_of_a_lane:
            return None
        return lane if self._running < self._most or lane.running == 0 else None

    def _run_jobs(self, job: _Job | None) -> None:
        inbox: SimpleQueue[_Job] = SimpleQueue()
        while job is not None:
            self._carry_out(job, inbox)
            job = self._wait_for_job(inbox)

    def _carry_out(self, job: _Job, inbox: SimpleQueue[_Job]) -> None:
        deliver = job.run()
        try:
            with self._lock:
                job.lane.running, self._running = job.lane.running - 1, self._running - 1
                self._idle.append(inbox)
                self._dispatch()
        finally:  # also if no thread can be started for the next call
            deliver()  # only now: a caller that waited for the result then finds this thread idle and needs no new one

    def _wait_for_job(self, inbox: SimpleQueue[_Job]) -> _Job | None:
        """The next call for this thread; None if none came within the idle time."""
        try:
            return inbox.get(timeout=self._ends_after)
        except Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
            return inbox.get()  # a call arrived at this very moment


THREADS = Threads()
"""The threads of this process."""
os.register_at_fork(after_in_child=THREADS.after_fork)


Key = TypeVar("Key")
Answer_co = TypeVar("Answer_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Question(Generic[Answer_co]):
    """A read under way. `reason`: what is unknown without its answer; `end`: when to stop waiting, of `time.monotonic`."""

    future: Future[Answer_co]
    reason: Reason
    patience: float
    end: float


_log = logging.getLogger(__name__)


class Questions:
    """All reads of one observation. A late answer is dropped: no other observation can use it."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.unknowns: list[Reason] = []

    def ask(self, reason: Reason, patience: float, read: Callable[..., Value], *arguments: Any) -> Question[Value]:
        """Start a read in a thread; `patience` in seconds from now."""
        return Question(self._lane.submit(read, *arguments), reason, patience, time.monotonic() + patience)

    def wait_for_answer(self, question: Question[Value] | None, *, unsuccessful: str = "") -> Value | None:
        """The answer, or None with a reason among the unknowns; None alone if there was no question.

        `unsuccessful`: why it is not waited for.
        """
        if question is None:
            return None
        if unsuccessful and not question.future.done():
            self._note_unknown(replace(question.reason, text=f"{question.reason.text}: not waited for, because {unsuccessful}"))
            return None
        answer, reason = self._wait_for_result(question)
        self._note_unknown(reason)
        return answer

    def wait_for_answers(self, questions: Mapping[Key, Question[Value]]) -> dict[Key, Value]:
        """The answers of the questions that got one."""
        answers = {key: self.wait_for_answer(question) for key, question in questions.items()}
        return {key: answer for key, answer in answers.items() if answer is not None}

    def wait_for_any_answers(self, questions: Iterable[Question[Value]]) -> list[Value]:
        """The answers to one question put to several nodes; adds a reason only if no node answered."""
        results = [self._wait_for_result(question) for question in questions]
        answers = [answer for answer, _ in results if answer is not None]
        if not answers:
            for _, reason in results[:1]:
                self._note_unknown(reason)
        return answers

    def _note_unknown(self, reason: Reason | None) -> None:
        if reason is not None:
            self.unknowns.append(reason)

    def _wait_for_result(self, question: Question[Value]) -> tuple[Value | None, Reason | None]:
        try:
            return question.future.result(timeout=max(0.0, question.end - time.monotonic())), None
        except (WrongCluster, AuthenticationFailed):
            raise
        except FutureTimeoutError:
            question.future.cancel()  # a read that has not begun needs no thread any more
            why = f"no answer within {question.patience:g} s"
        except KMigrateError as error:
            return None, unread_because(question.reason, error)
        except Exception as error:  # noqa: BLE001 - one answer that we cannot read is unknown; it never ends the watch of the others
            _log.warning("%s: unexpected", question.reason.text, exc_info=error)
            why = f"an answer could not be read ({type(error).__name__}); the log has the details"
        return None, replace(question.reason, text=f"{question.reason.text}: {why}")


def unread_because(reason: Reason, error: KMigrateError) -> Reason:
    """What was not read, with the error's own code and remedy if it has them: a machine with another host key is M06, not U04.

    `cause` and `node` stay, so that decisions see no difference.
    """
    own = next(iter(error.reasons), None)
    if own is None:
        return replace(reason, text=f"{reason.text}: {error}", certain=not error.retriable)
    return replace(reason, code=own.code, text=f"{reason.text}: {own.text}", remedy=own.remedy, certain=not error.retriable)


class HostObservations:
    """One observation of each node's machine, shared by all that one observation takes from it. Thread-safe; an error goes to all of it."""

    def __init__(self, tools: Tools) -> None:
        self._tools, self._lock = tools, Lock()
        self._found: dict[NodeSpec, Future[HostObservation]] = {}

    def __call__(self, node: NodeSpec) -> HostObservation:
        """What the node's machine shows, read once; a second caller waits for the first. Raises as the host does."""
        with self._lock:
            is_first, future = node not in self._found, self._found.setdefault(node, Future())
        if is_first:
            try:
                future.set_result(self._tools.host(node).observe(node))
            except BaseException as error:  # noqa: BLE001 - the waiting caller gets it
                future.set_exception(error)
        return future.result()


def read_process(observations: HostObservations, node: NodeSpec) -> Process:
    """Raises `Unavailable` if the host answers without a state: that is as unknown as no answer."""
    host_process = observations(node).process()
    if host_process.state is ProcessState.UNKNOWN:
        raise Unavailable("it does not report whether the node runs")
    return host_process


_MIN_INSYNC = "min.insync.replicas"
_WITNESSES = 2
_SAMPLES, _BETWEEN = 3, 0.4  # of a broker that uses another count, and the seconds between two of them


class BrokerAnswers(NamedTuple):
    """A broker's answers about itself and about its peers."""

    versions: ApiVersions
    metadata: NodeMetadata
    seconds: float | None = None  # until it answered the first request, a small one that every broker knows


class Reads:
    """The reads of one cluster's observer that are more than one request; it remembers which brokers failed last, to ask them later."""

    def __init__(self, brokers: Sequence[NodeSpec], tools: Tools) -> None:
        self._brokers = brokers
        self._tools = tools
        self._uncertain: set[int] = set()

    def ask_broker(self, node: NodeSpec) -> BrokerAnswers:
        """Versions and metadata of one broker, and the seconds of its first answer."""
        wire, asked_at = self._tools.wire(node), time.monotonic()
        versions = wire.api_versions()
        seconds = time.monotonic() - asked_at
        return BrokerAnswers(versions, wire.metadata(), seconds)

    def choose_witnesses(self) -> list[list[NodeSpec]]:
        """Brokers to ask for the whole cluster, in groups of which one answer each is enough; those that failed last come last.

        Two groups if there are two brokers: an isolated broker keeps answering with what it last received.
        """
        order = self._order_by_trust()
        return [order[start::_WITNESSES] for start in range(min(_WITNESSES, len(order)))]

    def read_partitions(self, candidates: Iterable[NodeSpec]) -> tuple[PartitionLeader, ...]:
        """Every partition, from the first candidate that answers."""
        return self._ask_first(candidates, lambda node: self._tools.wire(node).partitions())

    def read_min_insync(self, topics: Sequence[str]) -> dict[str, int]:
        """The value in force, from the first broker that answers; topics that it does not know are left out."""
        configs = self._ask_first(self._order_by_trust(), lambda node: self._tools.wire(node).topic_configs(_MIN_INSYNC, topics))
        return {topic: int(value) for topic, value in configs.items()}

    def read_reassignments(self) -> tuple[str, ...]:
        """Partitions that are being reassigned. In ZooKeeper mode only the controller knows them, so it is asked first."""
        order = self._order_by_trust()
        controller = self._ask_first(order, lambda node: self._tools.wire(node).metadata()).controller_id
        candidates = sorted(order, key=lambda node: node.id != controller)
        return self._ask_first(candidates, lambda node: wire.list_reassignments(self._tools.wire(node)))

    def read_client_metrics(self) -> tuple[str, ...]:
        """The subscriptions' names. Only KRaft brokers list them; empty if every broker answers that it does not."""
        for node in self._order_by_trust():
            names = self._tools.wire(node).client_metrics()
            if names is not None:
                return names
        return ()

    def read_possible_counts(self, topic: CoordinatorTopic, node: NodeSpec) -> frozenset[int]:
        """The possible partition counts that this broker computes the topic's coordinators with; empty if the topic does not exist.

        The leaders are those that the broker itself knows. They and their epochs must not change while it is asked, or its answers
        prove nothing. That it does not use the topic's own count is reported only if `_SAMPLES` samples agree.
        """
        wire = self._tools.wire(node)
        leaders_and_epochs = wire.leaders(topic.name)
        if leaders_and_epochs is None:  # asking for a coordinator would create it
            return frozenset()
        leaders = {partition: leader for partition, (leader, _) in leaders_and_epochs.items()}
        names = coordinator.probe_groups(tuple(leaders[partition] for partition in sorted(leaders)))
        samples = set[frozenset[int]]()
        for sample in range(_SAMPLES):
            time.sleep(_BETWEEN if sample else 0.0)
            samples.add(coordinator.possible_counts(wire.find_coordinators(names, topic.key_type), leaders))
            if wire.leaders(topic.name) != leaders_and_epochs or len(samples) > 1:
                raise Unavailable(f"leaders of {topic.name} moved while {node.name} was read")
            if any(len(leaders_and_epochs) in possible for possible in samples):
                break
        possible = samples.pop()
        return (
            possible
            if len(possible) < 2
            else coordinator.narrow_counts(possible, len(leaders_and_epochs), self._read_registered_count(topic, node))
        )

    def _read_registered_count(self, topic: CoordinatorTopic, node: NodeSpec) -> int | None:
        """The partitions that the topic had when the broker registered, or that the broker's own setting says if there was none yet.

        None if neither is reported, which proves nothing.
        """
        try:
            count = self._tools.zk.partitions_at_registration(topic.name, node.id)
            if count != 0:
                return count
            (setting,) = wire.describe_broker_configs(self._tools.wire(node), node.id, [topic.setting])
            return int(setting.value)
        except (KMigrateError, TypeError, ValueError):
            return None

    def _order_by_trust(self) -> list[NodeSpec]:
        return sorted(self._brokers, key=lambda node: (node.id in self._uncertain, node.id))

    def _ask_first(self, candidates: Iterable[NodeSpec], read: Callable[[NodeSpec], Value]) -> Value:
        return read_from_first(candidates, read, self._uncertain)


def read_from_first(nodes: Iterable[NodeSpec], read: Callable[[NodeSpec], Value], uncertain: set[int] | None = None) -> Value:
    """The answer of the first node that responds, else the last one's error; `uncertain` then has the ids of those that failed."""
    last: KMigrateError = Unavailable("there is no node to ask")
    failed = set[int]() if uncertain is None else uncertain
    for node in nodes:
        try:
            answer = read(node)
        except AuthenticationFailed:
            raise
        except KMigrateError as error:
            failed.add(node.id)
            last = error
        else:
            failed.discard(node.id)
            return answer
    raise last


ZOOKEEPER = Reason("U01", "ZooKeeper was not read", cause=Cause.UNREAD_ZOOKEEPER)
PARTITIONS = Reason("U05", "No broker reported the partitions", cause=Cause.UNREAD)
MIN_INSYNC = Reason("U05", "min.insync.replicas was not read", cause=Cause.UNREAD_SLOW)
METRICS = Reason("U05", "Client-metrics subscriptions were not read", cause=Cause.UNREAD_SLOW)
STATES = Reason("U05", "The partitions' states were not read from ZooKeeper", cause=Cause.UNREAD_SLOW)
STORED = Reason("U05", "Metadata beside topics was not read from both sides", cause=Cause.UNREAD_STORED)
GROUP_PROGRESS = Reason("U05", "The progress of the consumer groups was not read", cause=Cause.UNREAD_GROUPS)
GROUPS = Reason("U05", "The consumer groups of this step were not read", cause=Cause.UNREAD_SLOW)
MOVING = Reason("U05", "The reassignments were not read", cause=Cause.UNREAD)
ENSEMBLE = Reason("U01", "ZooKeeper's servers did not report themselves", cause=Cause.UNREAD_SLOW)
TOPICS = Reason("U05", "The topics of ZooKeeper and the brokers were not both read", cause=Cause.UNREAD_SLOW)

OF_WHAT_IS_SLOW = frozenset({Cause.UNREAD_SLOW, Cause.UNREAD_STORED, Cause.UNREAD_COORDINATORS, Cause.UNREAD_GROUPS})
"""Slow reads, which `Observer.observe` does not repeat when it reads the rest again."""


def broker_reason(node: NodeSpec) -> Reason:
    """R01: this broker did not answer."""
    return Reason("R01", f"{_name_with_endpoint(node)} did not answer", cause=Cause.UNREAD_BROKER, node=node.name)


def controller_reason(node: NodeSpec) -> Reason:
    """G23: this controller did not answer."""
    return Reason("G23", f"{_name_with_endpoint(node)} did not answer", cause=Cause.UNREAD_CONTROLLER, node=node.name)


def host_reason(cause: Cause, node: NodeSpec) -> Reason:
    """U04: the node's host did not report its process (`UNREAD_PROCESS`) or its files (`UNREAD_FILES`)."""
    return Reason("U04", f"The host of {node.name} did not answer", cause=cause, node=node.name)


def quorum_reason(node: NodeSpec) -> Reason:
    """G20: no controller answered as the leader."""
    return Reason(
        "G20", f"No controller answered as the leader of the quorum, {_name_with_endpoint(node)}", cause=Cause.NO_LEADER
    )


def coordinators_reason(what: str, node: NodeSpec) -> Reason:
    """U05: this broker did not report its coordinators (`what`: of which topic), or its groups."""
    return Reason("U05", f"{_name_with_endpoint(node)} did not report {what}", cause=Cause.UNREAD_COORDINATORS, node=node.name)


def _name_with_endpoint(node: NodeSpec) -> str:
    return f"{node.name.capitalize()} at {node.endpoint}"


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of nodes, hosts and ZooKeeper; a source that did not answer is absent."""

    zk: ZkView | None
    brokers: Mapping[NodeSpec, BrokerAnswers]
    controllers: Mapping[NodeSpec, ApiVersions]
    processes: Mapping[NodeSpec, Process]
    files: Mapping[NodeSpec, NodeFiles]


def identify_cluster(spec: ClusterSpec, answers: Answers) -> str | None:
    """The cluster id that the brokers report, None if none did.

    Raises `WrongCluster` if any source reports another id than the spec.
    """
    reported_ids = {f"{node.name} at {node.endpoint}": answer.metadata.cluster_id for node, answer in answers.brokers.items()}
    reported = [cluster_id for cluster_id in reported_ids.values() if cluster_id]
    if answers.zk is not None:
        reported_ids["ZooKeeper's /cluster/id"] = answers.zk.cluster_id
    for source, cluster_id in reported_ids.items():
        if cluster_id and cluster_id != spec.cluster_id:
            text = f"{source} belongs to cluster {cluster_id}, the cluster file names {spec.cluster_id}."
            raise WrongCluster.because(Reason("I01", text))
    return reported[0] if reported else None


def build_brokers(spec: ClusterSpec, answers: Answers) -> dict[int, Broker]:
    """Every broker that the spec names, ZooKeeper has registered or a peer lists."""
    nodes = {node.id: node for node in spec.brokers}
    listed = {number for answer in answers.brokers.values() for number in answer.metadata.broker_ids}
    registered = set(answers.zk.broker_ids) if answers.zk else set()
    return {number: _build_broker(number, nodes.get(number), answers) for number in sorted(nodes.keys() | listed | registered)}


def build_controllers(spec: ClusterSpec, answers: Answers) -> dict[int, Controller]:
    """Every controller of the spec."""
    return {node.id: _build_controller(node, answers) for node in spec.controllers}


def merge_partitions(witnesses: Iterable[tuple[PartitionLeader, ...]]) -> tuple[Partition, ...]:
    """Merge the partitions from several brokers' caches into one sorted tuple.

    The higher leader epoch is newer. Within one epoch only the ISR changes, which Metadata does not number: a replica counts as
    in sync only if every witness says so. A partition that one witness misses is taken from the other.
    """
    best: dict[tuple[str, int], PartitionLeader] = {}
    for led in (led for witness in witnesses for led in witness):
        key = (led.partition.topic, led.partition.index)
        best[key] = _merge_newer(best[key], led) if key in best else led
    return tuple(led.partition for _, led in sorted(best.items()))


def highest_state_epoch(topics: Mapping[str, TopicMetadata]) -> int | None:
    """The highest controller_epoch of ZooKeeper's partition states; -1 if there is no state, None if one misses it."""
    epochs = [partition.controller_epoch for topic in topics.values() for partition in topic.partitions.values()]
    known_epochs = [epoch for epoch in epochs if epoch is not None]
    return max(known_epochs, default=-1) if len(known_epochs) == len(epochs) else None


def newest_quorum(quorums: Iterable[Quorum]) -> Quorum | None:
    """The newest of the quorums whose node believes it leads: an isolated leader may not know that it was replaced."""
    return max(quorums, key=lambda quorum: quorum.leader_epoch, default=None)


def highest_metadata_version(answers: Answers) -> str | None:
    """The finalized metadata.version that controllers and KRaft brokers report; the highest, since it only grows."""
    answered = [*answers.controllers.values(), *(answer.versions for answer in answers.brokers.values())]
    levels = [versions.metadata_version for versions in answered if versions.metadata_version]
    return version_of(max(levels)) if levels else None


def _build_broker(number: int, node: NodeSpec | None, answers: Answers) -> Broker:
    answer = answers.brokers.get(node) if node else None
    listed_by = frozenset(peer.id for peer, other in answers.brokers.items() if number in other.metadata.broker_ids)
    broker = Broker(
        number,
        mode=answer.versions.mode if answer else None,
        in_zookeeper=number in answers.zk.broker_ids if answers.zk else None,
        listed_by=listed_by if answers.brokers else None,
        controller_id=answer.metadata.controller_id if answer else None,
        answered_in=answer.seconds if answer else None,
        named=node is not None,
        rack=next((other.metadata.racks[number] for other in answers.brokers.values() if number in other.metadata.racks), None),
    )
    if node is None:
        return broker
    return replace(broker, process=answers.processes.get(node, Process()), files=answers.files.get(node, NodeFiles()))


def _build_controller(node: NodeSpec, answers: Answers) -> Controller:
    answer = answers.controllers.get(node)
    return Controller(
        node.id,
        process=answers.processes.get(node, Process()),
        answers=answer is not None,
        migration_flag=answer.migration_ready if answer else None,
        files=answers.files.get(node, NodeFiles()),
    )


def _merge_newer(first: PartitionLeader, second: PartitionLeader) -> PartitionLeader:
    if first.leader_epoch != second.leader_epoch:
        return max(first, second, key=lambda led: led.leader_epoch)
    if first.partition.isr == second.partition.isr:  # as mostly
        return first
    both = set(first.partition.isr) & set(second.partition.isr)
    return first._replace(
        partition=replace(first.partition, isr=tuple(number for number in first.partition.isr if number in both))
    )
