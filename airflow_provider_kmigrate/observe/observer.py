"""Observe one cluster repeatedly over the same connections, with a bounded wait for nodes that hang."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from airflow_provider_kmigrate.clients import group_reads
from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.core.cluster_state.model import (
    Cause,
    ClusterEnvironment,
    ClusterView,
    CoordinatorFacts,
    Fields,
    Quorum,
    Reason,
    TopicMetadata,
)
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.migration.coordinator import TOPICS
from airflow_provider_kmigrate.exceptions import Unavailable
from airflow_provider_kmigrate.observe import reads
from airflow_provider_kmigrate.observe.reads import OF_WHAT_IS_SLOW, THREADS, Answers, Question, Questions, Reads
from airflow_provider_kmigrate.observe.stored import StoredReads, read_environment

Value = TypeVar("Value")
Finish = Callable[[], dict[str, Any]]

_SLOW = Fields.MIN_INSYNC | Fields.TOPICS | Fields.STORED | Fields.STATE_EPOCH | Fields.ENSEMBLE | Fields.GROUP_PROGRESS
"""Waited for as long as topics are."""
_SWEEP_TIMEOUT = 5.0  # seconds a request about groups
_MOVING = (
    Fields.PROCESSES
    | Fields.FILES
    | Fields.BROKERS
    | Fields.CONTROLLERS
    | Fields.QUORUM
    | Fields.ZOOKEEPER
    | Fields.GROUPS
    | Fields.PARTITIONS
    | Fields.REASSIGNMENTS
)
_MOVING_FIELDS = {"zk", "kafka_cluster_id", "brokers", "controllers", "metadata_version", "quorum", "partitions", "moving"}


def _select_moving_fields(what: Fields) -> Fields:
    """The fields that are read again after slow reads; min.insync.replicas needs the partitions, too."""
    return (what & _MOVING) | (Fields.PARTITIONS if what & Fields.MIN_INSYNC else Fields(0))


@dataclass(frozen=True, slots=True)
class ObserverTimeouts:
    """Seconds that an observation waits for each kind of answer.

    `nodes`: nodes and ZooKeeper; `partitions`: all partitions, and what takes several requests one after the other, each with a limit of its own (a
    hanging node is replaced by then; at 0.2 s each way, who coordinates groups took longer than `nodes`, measured); `topics`: requests that
    read every topic's settings. `fresh`: if those took longer, all that moves is read again after them.
    """

    nodes: float = 2.5
    partitions: float = 10.0
    hosts: float = 15.0
    topics: float = 60.0
    fresh: float = 3.0


class Observer:
    """Observes one cluster, for one thread at a time. The caller that opened the tools closes them."""

    def __init__(self, spec: ClusterSpec, tools: Tools, patience: ObserverTimeouts | None = None) -> None:
        self._spec, self._tools = spec, tools
        self._reads = Reads(spec.brokers, tools)
        self._patience = patience or ObserverTimeouts()
        self._lane = THREADS.open_lane()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Drop the reads that have not begun; reads that hang are not waited for."""
        self._lane.close()

    def observe(self, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        """Return one frozen view of the fields in `what`.

        `nodes` limits whose hosts are asked for processes and files; `groups` names the consumer groups of
        `Fields.GROUP_MEMBERS`, and those whose members `Fields.GROUP_PROGRESS` reads.

        Raises `WrongCluster` and `AuthenticationFailed` only. A broker that ZooKeeper or a peer names is in the view even if the
        spec does not know it. What moves (nodes, quorum, partitions, reassignments) is never older than the slowest of these
        answers alone: 15 s, by `ObserverTimeouts`. Topics and settings may be as old as the whole observation took.
        """
        hosts, started = tuple(nodes) or tuple(self._spec.nodes()), time.monotonic()
        observation = self._begin_observation()
        fields = observation.read_view_fields(what, hosts, groups)
        unknowns = tuple(observation.questions.unknowns)
        if what & _SLOW and observation.behind > self._patience.fresh and not observation.zookeeper_unresponsive:
            repeated = self._begin_observation()
            newer = repeated.read_view_fields(_select_moving_fields(what), hosts, ())
            fields |= {name: value for name, value in newer.items() if name in _MOVING_FIELDS}
            unknowns = (*repeated.questions.unknowns, *(reason for reason in unknowns if reason.cause in OF_WHAT_IS_SLOW))
        now = time.monotonic()
        return ClusterView(taken_at=now, took=now - started, name=self._spec.name, unknowns=unknowns, **fields)

    def _begin_observation(self) -> _Observation:
        return _Observation(self._spec, self._tools, self._reads, self._patience, Questions(self._lane))

    def environment(self, view: ClusterView) -> ClusterEnvironment:
        """Read what preflight needs beside a view; never raises because of an answer of a node or ZooKeeper."""
        questions, limit = Questions(self._lane), self._patience
        return read_environment(self._spec, self._tools, view, questions, patience=limit.nodes, long=limit.topics)


class _Observation:
    """One observation. Each part starts its reads at once and returns how to finish them, so that all are waited for together."""

    def __init__(self, spec: ClusterSpec, tools: Tools, reads: Reads, patience: ObserverTimeouts, questions: Questions) -> None:
        self._spec, self._tools, self._reads = spec, tools, reads
        self._patience = patience
        self.questions = questions
        self._topics_of_partitions: list[str] | None = None
        self.zookeeper_unresponsive = False  # it did not answer in time: no other ZooKeeper read is waited for
        self.behind = 0.0  # seconds waited for topics and settings, after all that moves had been read

    def read_view_fields(self, what: Fields, hosts: Sequence[NodeSpec], groups: Sequence[str]) -> dict[str, Any]:
        """Fields of `ClusterView`."""
        source, tools, limit = self._reads, self._tools, self._patience
        moving = (
            self._ask_nodes(what, hosts),
            self._ask_quorum(what),
            self._ask_partitions(what),
            self._ask_coordinators(what),
            self._ask_field(
                "client_metrics", what & Fields.CLIENT_METRICS, reads.METRICS, limit.partitions, source.read_client_metrics
            ),
            self._ask_field("moving", what & Fields.REASSIGNMENTS, reads.MOVING, limit.partitions, source.read_reassignments),
        )
        members = (group_reads.seen, tools.zk, tools.kafka, groups)
        swept = (group_reads.sweep, tools.kafka, _SWEEP_TIMEOUT, [node.id for node in self._spec.brokers], groups)
        slow = (
            self._ask_field("group_progress", what & Fields.GROUP_PROGRESS, reads.GROUP_PROGRESS, limit.topics, *swept),
            self._ask_topics(what),
            self._ask_stored(what),
            self._ask_state_epoch(what),
            self._ask_field("ensemble", what & Fields.ENSEMBLE, reads.ENSEMBLE, limit.partitions, tools.zk.servers),
            self._ask_field("groups", what & Fields.GROUP_MEMBERS, reads.GROUPS, limit.partitions, *members),
        )
        fields = {name: value for finish in moving for name, value in finish().items()}
        begun, topics = time.monotonic(), self._topics_of_partitions  # known only now
        wants_min_insync = what & Fields.MIN_INSYNC and topics is not None
        min_insync = self._ask_field(
            "min_insync", wants_min_insync, reads.MIN_INSYNC, limit.topics, source.read_min_insync, topics
        )
        listed_groups = fields["coordinators"].groups if "coordinators" in fields else ()
        hosted = self._ask_hosted(what, {*groups, *listed_groups})
        fields |= {name: value for finish in (min_insync, hosted, *slow) for name, value in finish().items()}
        self.behind = time.monotonic() - begun
        return fields

    def _ask_nodes(self, what: Fields, hosts: Sequence[NodeSpec]) -> Finish:
        spec, source, tools, limit = self._spec, self._reads, self._tools, self._patience
        view = partial(tools.zk.view, groups=Fields.GROUPS in what)
        zk = self._ask_if(what & (Fields.ZOOKEEPER | Fields.GROUPS), reads.ZOOKEEPER, limit.nodes, view)
        brokers = self._ask_each(what & Fields.BROKERS, spec.brokers, reads.broker_reason, limit.nodes, source.ask_broker)
        controllers = self._ask_each(
            what & Fields.CONTROLLERS,
            spec.controllers,
            reads.controller_reason,
            limit.nodes,
            lambda node: tools.wire(node).api_versions(),
        )
        process, disk = partial(reads.host_reason, Cause.UNREAD_PROCESS), partial(reads.host_reason, Cause.UNREAD_FILES)
        observed = reads.HostObservations(tools)
        processes = self._ask_each(what & Fields.PROCESSES, hosts, process, limit.hosts, partial(reads.read_process, observed))
        files = self._ask_each(what & Fields.FILES, hosts, disk, limit.hosts, lambda node: observed(node).files())

        def finish() -> dict[str, Any]:
            collect = self.questions.wait_for_answers
            answers = Answers(
                self.questions.wait_for_answer(zk), collect(brokers), collect(controllers), collect(processes), collect(files)
            )
            self.zookeeper_unresponsive = zk is not None and answers.zk is None
            return {
                "zk": answers.zk,
                "kafka_cluster_id": reads.identify_cluster(spec, answers),
                "brokers": reads.build_brokers(spec, answers),
                "controllers": reads.build_controllers(spec, answers),
                "metadata_version": reads.highest_metadata_version(answers),
            }

        return finish

    def _ask_quorum(self, what: Fields) -> Finish:
        def read(node: NodeSpec) -> Quorum:
            return self._tools.wire(node).describe_quorum()

        questions = self._ask_each(what & Fields.QUORUM, self._spec.controllers, reads.quorum_reason, self._patience.nodes, read)
        return lambda: {"quorum": reads.newest_quorum(self.questions.wait_for_any_answers(questions.values()))}

    def _ask_partitions(self, what: Fields) -> Finish:
        if not what & (Fields.PARTITIONS | Fields.MIN_INSYNC):
            return dict
        read, limit = self._reads.read_partitions, self._patience.partitions
        witnesses = [self.questions.ask(reads.PARTITIONS, limit, read, group) for group in self._reads.choose_witnesses()]

        def finish() -> dict[str, Any]:
            answers = self.questions.wait_for_any_answers(witnesses)
            partitions = reads.merge_partitions(answers) if answers else None
            self._topics_of_partitions = None if partitions is None else sorted({partition.topic for partition in partitions})
            return {"partitions": partitions}

        return finish

    def _ask_coordinators(self, what: Fields) -> Finish:
        if not what & Fields.COORDINATORS:
            return dict
        source, limit, ask = self._reads, self._patience.partitions, partial(self._ask_each, True, self._spec.brokers)
        questions = {
            topic.name: ask(
                partial(reads.coordinators_reason, f"coordinators by {topic.name}"),
                limit,
                partial(source.read_possible_counts, topic),
            )
            for topic in TOPICS
        }
        group_questions = ask(
            partial(reads.coordinators_reason, "its consumer groups"), limit, lambda node: self._tools.wire(node).groups()
        )

        def finish() -> dict[str, Any]:
            collect = self.questions.wait_for_answers
            counts = {
                name: {node.id: possible for node, possible in collect(topic_questions).items()}
                for name, topic_questions in questions.items()
            }
            groups = {group for names in collect(group_questions).values() for group in names}
            return {"coordinators": CoordinatorFacts(counts, tuple(sorted(groups)))}

        return finish

    def _ask_hosted(self, what: Fields, names: Collection[str]) -> Finish:
        if not what & Fields.HOSTED_GROUPS:
            return dict
        reason = partial(reads.coordinators_reason, "the offsets of its groups")
        questions = self._ask_each(
            True,
            self._spec.brokers,
            reason,
            self._patience.topics,
            lambda node: self._tools.groups_at(node).describe_hosted(names),
        )
        return lambda: {"hosted": {node.id: offsets for node, offsets in self.questions.wait_for_answers(questions).items()}}

    def _ask_topics(self, what: Fields) -> Finish:
        sides, limit = (self._tools.zk.topics, self._read_topics_of_brokers), self._patience.topics
        questions = [self._ask_if(what & Fields.TOPICS, reads.TOPICS, limit, read) for read in sides]

        def finish() -> dict[str, Any]:
            zookeeper, brokers = (self._wait_for_zookeeper(question) for question in questions)
            topics = None if zookeeper is None or brokers is None else (zookeeper, brokers)
            return {"topics": topics, "state_epoch": None if zookeeper is None else reads.highest_state_epoch(zookeeper)}

        return finish

    def _read_topics_of_brokers(self) -> dict[str, TopicMetadata]:
        """As the first broker knows them that answers. librdkafka may ask one that is dead for longer than a handover can wait (measured)."""
        failed = Unavailable("the cluster file names no broker")
        for node in self._spec.brokers:
            try:
                return self._tools.wire(node).topics()
            except Unavailable as error:
                failed = error
        raise failed

    def _ask_stored(self, what: Fields) -> Finish:
        read = StoredReads(self._spec.brokers, self._spec.controllers, self._tools).read_everything
        question = self._ask_if(what & Fields.STORED, reads.STORED, self._patience.topics, read)

        def finish() -> dict[str, Any]:
            answer = self._wait_for_zookeeper(question)
            self.questions.unknowns.extend(answer.unread if answer else ())
            return {"stored": answer.stored if answer else None}

        return finish

    def _ask_state_epoch(self, what: Fields) -> Finish:
        if what & Fields.TOPICS:  # this reads every state anyway, tens of thousands of znodes
            return dict
        question = self._ask_if(what & Fields.STATE_EPOCH, reads.STATES, self._patience.topics, self._tools.zk.state_epoch)
        return lambda: {"state_epoch": self._wait_for_zookeeper(question)}

    def _wait_for_zookeeper(self, question: Question[Value] | None) -> Value | None:
        """The answer of a ZooKeeper read, which may take a minute; None at once if ZooKeeper does not even report its state."""
        return self.questions.wait_for_answer(
            question, unsuccessful="ZooKeeper does not answer" if self.zookeeper_unresponsive else ""
        )

    def _ask_field(
        self, name: str, needed: object, reason: Reason, patience: float, read: Callable[..., Any], *arguments: Any
    ) -> Finish:
        """The field that is the answer to one question."""
        question = self._ask_if(needed, reason, patience, read, *arguments)
        return lambda: {name: self.questions.wait_for_answer(question)}

    def _ask_if(
        self, needed: object, reason: Reason, patience: float, read: Callable[..., Value], *arguments: Any
    ) -> Question[Value] | None:
        return self.questions.ask(reason, patience, read, *arguments) if needed else None

    def _ask_each(
        self,
        needed: object,
        nodes: Sequence[NodeSpec],
        reason: Callable[[NodeSpec], Reason],
        patience: float,
        read: Callable[[NodeSpec], Value],
    ) -> dict[NodeSpec, Question[Value]]:
        return {node: self.questions.ask(reason(node), patience, read, node) for node in nodes if needed}
