"""Observe one cluster repeatedly over the same connections, with a bounded wait for nodes that hang."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.model import ClusterEnvironment, ClusterView, Fields, Reason
from airflow_provider_kmigrate.observe import reads
from airflow_provider_kmigrate.observe.reads import OF_WHAT_IS_SLOW, THREADS, Answers, Question, Questions, Reads
from airflow_provider_kmigrate.observe.stored import EnvironmentReader, StoredReads

Value = TypeVar("Value")
Finish = Callable[[], dict[str, Any]]

_SLOW = (
    Fields.MIN_INSYNC | Fields.TOPICS | Fields.STORED | Fields.STATE_EPOCH
)  # their answers are waited for as long as topics have
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


def _moving_of(what: Fields) -> Fields:
    """The fields that are read again after slow reads; min.insync.replicas needs the partitions, too."""
    return (what & _MOVING) | (Fields.PARTITIONS if what & Fields.MIN_INSYNC else Fields(0))


@dataclass(frozen=True, slots=True)
class ObserverTimeouts:
    """Seconds that an observation waits for each kind of answer.

    `nodes`: nodes and ZooKeeper; `partitions`: all partitions (a hanging witness is replaced by then); `topics`: requests that
    read every topic's settings. `fresh`: if those took longer, all that moves is read again after them.
    """

    nodes: float = 2.5
    partitions: float = 10.0
    hosts: float = 15.0
    topics: float = 60.0
    fresh: float = 3.0


class Observer:
    """Observes one cluster, for one thread at a time. The caller that opened the tools closes them."""

    def __init__(
        self,
        spec: ClusterSpec,
        tools: Tools,
        patience: ObserverTimeouts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._reads = Reads(spec.brokers, tools)
        self._stored = StoredReads(spec.brokers, spec.controllers, tools)
        self._patience = patience or ObserverTimeouts()
        self._around = EnvironmentReader(spec, tools, self._patience.nodes, self._patience.topics)
        self._clock = clock
        self._lane = THREADS.lane()

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
        `Fields.GROUP_MEMBERS`.

        Raises `WrongCluster` and `AuthenticationFailed` only. A broker that ZooKeeper or a peer names is in the view even if the
        spec does not know it. What moves (nodes, quorum, partitions, reassignments) is never older than the slowest of these
        answers alone: 15 s, by `ObserverTimeouts`. Topics and settings may be as old as the whole observation took.
        """
        hosts, started = tuple(nodes) or tuple(self._spec.nodes()), self._clock()
        seen = self._observation()
        fields = seen.view_fields(what, hosts, groups)
        unknowns = tuple(seen.unknowns)
        if what & _SLOW and seen.behind > self._patience.fresh and not seen.zookeeper_unresponsive:
            again = self._observation()
            newer = again.view_fields(_moving_of(what), hosts, ())
            fields |= {name: value for name, value in newer.items() if name in _MOVING_FIELDS}
            unknowns = (*again.unknowns, *(reason for reason in unknowns if reason.cause in OF_WHAT_IS_SLOW))
        now = self._clock()
        return ClusterView(taken_at=now, took=now - started, name=self._spec.name, unknowns=unknowns, **fields)

    def _observation(self) -> _Observation:
        return _Observation(self._spec, self._reads, self._stored, self._patience, Questions(self._lane, self._clock))

    def environment(self, view: ClusterView) -> ClusterEnvironment:
        """Read what preflight needs beside a view; never raises because of an answer of a node or ZooKeeper."""
        return self._around.read(view, Questions(self._lane, self._clock))


class _Observation:
    """One observation. Each part starts its reads at once and returns how to finish them, so that all are waited for together."""

    def __init__(
        self, spec: ClusterSpec, reads: Reads, stored: StoredReads, patience: ObserverTimeouts, questions: Questions
    ) -> None:
        self._spec = spec
        self._reads = reads
        self._stored_reads = stored
        self._patience = patience
        self._questions = questions
        self._topics_of_partitions: list[str] | None = None
        self.zookeeper_unresponsive = False  # it did not answer in time: no other ZooKeeper read is waited for
        self.behind = 0.0  # seconds waited for topics and settings, after all that moves had been read

    @property
    def unknowns(self) -> list[Reason]:
        return self._questions.unknowns

    def view_fields(self, what: Fields, hosts: Sequence[NodeSpec], groups: Sequence[str]) -> dict[str, Any]:
        """Fields of `ClusterView`."""
        moving = (
            self._nodes(what, hosts),
            self._quorum(what),
            self._partitions(what),
            self._offsets(what),
            self._metrics(what),
            self._moving(what),
        )
        slow = (
            self._topics(what),
            self._stored(what),
            self._state_epoch(what),
            self._groups(what, groups),
        )
        fields = {name: value for finish in moving for name, value in finish().items()}
        begun = self._questions.now()
        fields |= {name: value for finish in (self._min_insync(what), *slow) for name, value in finish().items()}
        self.behind = self._questions.now() - begun
        return fields

    def _nodes(self, what: Fields, hosts: Sequence[NodeSpec]) -> Finish:
        spec, source, limit = self._spec, self._reads, self._patience
        zk = self._ask(
            what & (Fields.ZOOKEEPER | Fields.GROUPS), reads.ZOOKEEPER, limit.nodes, source.zookeeper, Fields.GROUPS in what
        )
        brokers = self._ask_each(what & Fields.BROKERS, spec.brokers, reads.broker, limit.nodes, source.broker)
        controllers = self._ask_each(
            what & Fields.CONTROLLERS, spec.controllers, reads.controller, limit.nodes, source.controller
        )
        processes = self._ask_each(what & Fields.PROCESSES, hosts, reads.host, limit.hosts, source.process)
        files = self._ask_each(what & Fields.FILES, hosts, reads.host, limit.hosts, source.files)

        def finish() -> dict[str, Any]:
            each = self._questions.answers
            answers = Answers(self._questions.answer(zk), each(brokers), each(controllers), each(processes), each(files))
            self.zookeeper_unresponsive = zk is not None and answers.zk is None
            return {
                "zk": answers.zk,
                "kafka_cluster_id": reads.identify(spec, answers),
                "brokers": reads.brokers(spec, answers),
                "controllers": reads.controllers(spec, answers),
                "metadata_version": reads.metadata_version(answers),
            }

        return finish

    def _quorum(self, what: Fields) -> Finish:
        asked = self._ask_each(
            what & Fields.QUORUM, self._spec.controllers, reads.quorum, self._patience.nodes, self._reads.quorum
        )
        return lambda: {"quorum": reads.leader_of(self._questions.any_answers(asked.values()))}

    def _partitions(self, what: Fields) -> Finish:
        if not what & (Fields.PARTITIONS | Fields.MIN_INSYNC):
            return dict
        read, limit = self._reads.partitions, self._patience.partitions
        witnesses = [self._questions.ask(reads.PARTITIONS, limit, read, group) for group in self._reads.witnesses()]

        def finish() -> dict[str, Any]:
            seen = self._questions.any_answers(witnesses)
            partitions = reads.newest(seen) if seen else None
            self._topics_of_partitions = None if partitions is None else sorted({each.topic for each in partitions})
            return {"partitions": partitions}

        return finish

    def _min_insync(self, what: Fields) -> Finish:
        """Starts only once the partitions are known."""
        topics = self._topics_of_partitions
        wanted = what & Fields.MIN_INSYNC and topics is not None
        asked = self._ask(wanted, reads.MIN_INSYNC, self._patience.topics, self._reads.min_insync, topics)
        return lambda: {"min_insync": self._questions.answer(asked)}

    def _offsets(self, what: Fields) -> Finish:
        if not what & Fields.OFFSETS_TOPIC:
            return dict
        asked = self._ask_each(True, self._spec.brokers, reads.offsets, self._patience.nodes, self._reads.offsets_counts)
        return lambda: {"offsets_counts": {node.id: found for node, found in self._questions.answers(asked).items()}}

    def _metrics(self, what: Fields) -> Finish:
        asked = self._ask(what & Fields.CLIENT_METRICS, reads.METRICS, self._patience.nodes, self._reads.client_metrics)
        return lambda: {"client_metrics": self._questions.answer(asked)}

    def _moving(self, what: Fields) -> Finish:
        asked = self._ask(what & Fields.REASSIGNMENTS, reads.MOVING, self._patience.nodes, self._reads.moving)
        return lambda: {"moving": self._questions.answer(asked)}

    def _topics(self, what: Fields) -> Finish:
        limit = self._patience.topics
        asked = [
            self._ask(what & Fields.TOPICS, reads.TOPICS, limit, read)
            for read in (self._reads.zookeeper_topics, self._reads.broker_topics)
        ]

        def finish() -> dict[str, Any]:
            zookeeper, brokers = (self._of_zookeeper(question) for question in asked)
            topics = None if zookeeper is None or brokers is None else (zookeeper, brokers)
            return {"topics": topics, "state_epoch": None if zookeeper is None else reads.state_epoch(zookeeper)}

        return finish

    def _stored(self, what: Fields) -> Finish:
        asked = self._ask(what & Fields.STORED, reads.STORED, self._patience.topics, self._stored_reads.everything)

        def finish() -> dict[str, Any]:
            found = self._of_zookeeper(asked)
            self.unknowns.extend(found.unread if found else ())
            return {"stored": found.stored if found else None}

        return finish

    def _state_epoch(self, what: Fields) -> Finish:
        if what & Fields.TOPICS:  # this reads every state anyway, tens of thousands of znodes
            return dict
        asked = self._ask(what & Fields.STATE_EPOCH, reads.STATES, self._patience.topics, self._reads.state_epoch)
        return lambda: {"state_epoch": self._of_zookeeper(asked)}

    def _groups(self, what: Fields, groups: Sequence[str]) -> Finish:
        asked = self._ask(what & Fields.GROUP_MEMBERS, reads.GROUPS, self._patience.partitions, self._reads.groups, groups)
        return lambda: {"groups": self._questions.answer(asked)}

    def _of_zookeeper(self, question: Question[Value] | None) -> Value | None:
        """The answer of a ZooKeeper read, which may take a minute; None at once if ZooKeeper does not even report its state."""
        return self._questions.answer(question, unsuccessful="ZooKeeper does not answer" if self.zookeeper_unresponsive else "")

    def _ask(
        self, wanted: object, reason: Reason, patience: float, read: Callable[..., Value], *given: Any
    ) -> Question[Value] | None:
        return self._questions.ask(reason, patience, read, *given) if wanted else None

    def _ask_each(
        self,
        wanted: object,
        nodes: Sequence[NodeSpec],
        reason: Callable[[NodeSpec], Reason],
        patience: float,
        read: Callable[[NodeSpec], Value],
    ) -> dict[NodeSpec, Question[Value]]:
        return {node: self._questions.ask(reason(node), patience, read, node) for node in nodes if wanted}
