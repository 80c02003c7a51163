"""Concurrent reads of one observation, each with its own timeout; each failure is kept as a reason.

`Questions` runs and times them, `Reads` is what is asked of each source. Nothing here decides; a read that fails raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from airflow_provider_kmigrate.clients import group_reads, wire_environment
from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.clients.wire import ApiVersions, Led, NodeMetadata
from airflow_provider_kmigrate.core import offsets_topic
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen
from airflow_provider_kmigrate.core.internal_topics import OFFSETS_TOPIC
from airflow_provider_kmigrate.core.model import NodeFiles, Process, ProcessState, Quorum, Reason, TopicMetadata, ZkView
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Unavailable, WrongCluster
from airflow_provider_kmigrate.observe.threads import Lane

Key = TypeVar("Key")
Value = TypeVar("Value")
Answer_co = TypeVar("Answer_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Question(Generic[Answer_co]):
    """A read under way. `reason`: what is unknown without its answer; `end`: when to stop waiting, on the clock."""

    future: Future[Answer_co]
    reason: Reason
    patience: float
    end: float


class Questions:
    """All reads of one observation. A late answer is dropped: no other observation can use it."""

    def __init__(self, lane: Lane, clock: Callable[[], float]) -> None:
        self._lane = lane
        self._clock = clock
        self.unknowns: list[Reason] = []

    def ask(self, reason: Reason, patience: float, read: Callable[..., Value], *arguments: Any) -> Question[Value]:
        """Start a read in a thread; `patience` in seconds from now."""
        return Question(self._lane.submit(read, *arguments), reason, patience, self._clock() + patience)

    def now(self) -> float:
        """Seconds on the clock that times the reads."""
        return self._clock()

    def answer(self, question: Question[Value] | None, *, in_vain: str = "") -> Value | None:
        """The answer, or None with a reason among the unknowns; None alone if there was no question.

        `in_vain`: why it is not waited for.
        """
        if question is None:
            return None
        if in_vain and not question.future.done():
            self._note(replace(question.reason, text=f"{question.reason.text}: not waited for, because {in_vain}"))
            return None
        found, reason = self._result(question)
        self._note(reason)
        return found

    def answers(self, questions: Mapping[Key, Question[Value]]) -> dict[Key, Value]:
        """The answers of the questions that got one."""
        found = {key: self.answer(question) for key, question in questions.items()}
        return {key: answer for key, answer in found.items() if answer is not None}

    def any_answers(self, questions: Iterable[Question[Value]]) -> list[Value]:
        """The answers to one question put to several nodes; adds a reason only if no node answered."""
        results = [self._result(question) for question in questions]
        found = [answer for answer, _ in results if answer is not None]
        if not found:
            for _, reason in results[:1]:
                self._note(reason)
        return found

    def _note(self, reason: Reason | None) -> None:
        if reason is not None:
            self.unknowns.append(reason)

    def _result(self, question: Question[Value]) -> tuple[Value | None, Reason | None]:
        try:
            return question.future.result(timeout=max(0.0, question.end - self._clock())), None
        except (WrongCluster, AuthenticationFailed):
            raise
        except FutureTimeoutError:
            question.future.cancel()  # a read that has not begun needs no thread any more
            why = f"no answer within {question.patience:g} s"
        except KMigrateError as error:
            why = str(error)
        return None, replace(question.reason, text=f"{question.reason.text}: {why}")


_MIN_INSYNC = "min.insync.replicas"
_WITNESSES = 2


class Seen(NamedTuple):
    """A broker's answers about itself and about its peers."""

    versions: ApiVersions
    metadata: NodeMetadata
    seconds: float | None = None  # until it answered the first request, a small one that every broker knows


class Reads:
    """The reads of one cluster's observer; it remembers which brokers failed last, to ask them later."""

    def __init__(self, brokers: Sequence[NodeSpec], tools: Tools) -> None:
        self._brokers = brokers
        self._tools = tools
        self._doubtful: set[int] = set()

    def zookeeper(self, groups: bool) -> ZkView:
        """ZooKeeper's view of the cluster; `groups`: also the consumer groups."""
        return self._tools.zk.view(groups=groups)

    def broker(self, node: NodeSpec) -> Seen:
        """Versions and metadata of one broker, and the seconds of its first answer."""
        wire, asked = self._tools.wire(node), time.monotonic()
        versions = wire.api_versions()
        seconds = time.monotonic() - asked
        return Seen(versions, wire.metadata(), seconds)

    def controller(self, node: NodeSpec) -> ApiVersions:
        """Versions and flags of one controller."""
        return self._tools.wire(node).api_versions()

    def quorum(self, node: NodeSpec) -> Quorum:
        """The quorum, as this node describes it; only its leader can."""
        return self._tools.wire(node).describe_quorum()

    def process(self, node: NodeSpec) -> Process:
        """Raises `Unavailable` if the host answers without a state: that is as unknown as no answer."""
        found = self._tools.host(node).status(node)
        if found.state is ProcessState.UNKNOWN:
            raise Unavailable("it does not report whether the node runs")
        return found

    def files(self, node: NodeSpec) -> NodeFiles:
        """Properties and directories on the node's machine."""
        return self._tools.host(node).files(node)

    def zookeeper_topics(self) -> dict[str, TopicMetadata]:
        """Every topic in ZooKeeper."""
        return self._tools.zk.topics()

    def state_epoch(self) -> int:
        """The highest controller epoch in any partition state in ZooKeeper."""
        return self._tools.zk.state_epoch()

    def broker_topics(self) -> dict[str, TopicMetadata]:
        """Every topic that the brokers report."""
        return self._tools.admin.topics()

    def witnesses(self) -> list[list[NodeSpec]]:
        """Brokers to ask for the whole cluster, in groups of which one answer each is enough; those that failed last come last.

        Two groups if there are two brokers: an isolated broker keeps answering with what it last received.
        """
        order = self._trusted_first()
        return [order[start::_WITNESSES] for start in range(min(_WITNESSES, len(order)))]

    def partitions(self, candidates: Iterable[NodeSpec]) -> tuple[Led, ...]:
        """Every partition, from the first candidate that answers."""
        return self._first(candidates, lambda node: self._tools.wire(node).partitions())

    def min_insync(self, topics: Sequence[str]) -> dict[str, int]:
        """The value in force, from the first broker that answers; topics that it does not know are left out."""
        found = self._first(self._trusted_first(), lambda node: self._tools.wire(node).topic_configs(_MIN_INSYNC, topics))
        return {topic: int(value) for topic, value in found.items()}

    def moving(self) -> tuple[str, ...]:
        """Partitions that are being reassigned. In ZooKeeper mode only the controller knows them, so it is asked first."""
        order = self._trusted_first()
        controller = self._first(order, lambda node: self._tools.wire(node).metadata()).controller_id
        candidates = sorted(order, key=lambda node: node.id != controller)
        return self._first(candidates, lambda node: wire_environment.reassignments(self._tools.wire(node)))

    def client_metrics(self) -> tuple[str, ...]:
        """The subscriptions' names. Only KRaft brokers list them; empty if every broker answers that it does not."""
        for node in self._trusted_first():
            names = self._tools.wire(node).client_metrics()
            if names is not None:
                return names
        return ()

    def offsets_counts(self, node: NodeSpec) -> frozenset[int]:
        """The possible counts of `__consumer_offsets` that this broker computes with; empty if the topic does not exist.

        The leaders are those that the broker itself knows. They must be the same before and after, or its answers prove nothing.
        """
        wire = self._tools.wire(node)
        leaders = wire.leaders(OFFSETS_TOPIC)
        if leaders is None:  # asking for a coordinator would create it
            return frozenset()
        answers = wire.find_coordinators(offsets_topic.probe_groups())
        if wire.leaders(OFFSETS_TOPIC) != leaders:
            raise Unavailable(f"leaders of {OFFSETS_TOPIC} moved while {node.name} was read")
        return offsets_topic.possible_counts(answers, leaders)

    def groups(self, names: Sequence[str]) -> dict[str, GroupSeen]:
        """Consumer groups, as ZooKeeper and Kafka report them."""
        return group_reads.seen(self._tools.zk, self._tools.kafka, names)

    def _trusted_first(self) -> list[NodeSpec]:
        return sorted(self._brokers, key=lambda node: (node.id in self._doubtful, node.id))

    def _first(self, candidates: Iterable[NodeSpec], read: Callable[[NodeSpec], Value]) -> Value:
        last: KMigrateError = Unavailable("there is no broker to ask")
        for node in candidates:
            try:
                found = read(node)
            except AuthenticationFailed:
                raise
            except KMigrateError as error:
                self._doubtful.add(node.id)
                last = error
            else:
                self._doubtful.discard(node.id)
                return found
        raise last
