"""The sources of one observer, written by hand: any answer may be replaced, and one that is an exception is raised."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kafka.protocol.admin import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse

from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.clients.wire import ApiVersions, NodeMetadata, NotLeader, PartitionLeader
from airflow_provider_kmigrate.core.cluster_state.model import (
    Certificate,
    ClusterView,
    Fields,
    NodeFiles,
    Process,
    ProcessState,
    Quorum,
    TopicMetadata,
    ZkView,
    ZooKeeperServer,
)
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS, hash_group
from airflow_provider_kmigrate.observe import Observer, ObserverTimeouts

CLUSTER = "cluster-1"
EVERYTHING = ~Fields(0)
QUICK = ObserverTimeouts(nodes=1.0, partitions=1.0, hosts=1.0, topics=1.0)


def node(number: int, role: NodeRole) -> NodeSpec:
    return NodeSpec(number, role, "h", 9000 + number, HostSpec("agent", "p"))


BROKERS = tuple(node(number, NodeRole.BROKER) for number in (1, 2, 3))
CONTROLLERS = tuple(node(number, NodeRole.CONTROLLER) for number in (3001, 3002))
SPEC = ClusterSpec("test", CLUSTER, "zk", "kafka", BROKERS, CONTROLLERS)


@dataclass
class FakeWire:
    """One node; any attribute may be replaced by a test, and a value that is an exception is raised."""

    versions: Any = field(default_factory=lambda: ApiVersions({}, migration_ready=False))
    peers: Any = field(default_factory=lambda: NodeMetadata(CLUSTER, 1, frozenset({1, 2, 3})))
    quorum: Any = field(default_factory=lambda: NotLeader("not me"))
    leds: Any = ()
    metrics: Any = None
    offsets_leaders: Any = None
    endpoint: str = "h:1"
    moving: Any = field(default_factory=lambda: ListPartitionReassignmentsResponse(0, 0, None, []))
    offsets_count: int = 0
    settings: Any = ()
    listed: Any = ()
    asked: list[str] = field(default_factory=list)
    admin: Any = None
    shown: Any = field(default_factory=Certificate)

    def certificate(self) -> Certificate:
        found: Certificate = self._say("certificate", self.shown)
        return found

    def topics(self) -> dict[str, TopicMetadata]:
        self._say("topics", None)
        if isinstance(self.versions, Exception):
            raise self.versions
        found: dict[str, TopicMetadata] = self.admin.topics()
        return found

    def _say(self, verb: str, answer: Any) -> Any:
        self.asked.append(verb)
        answer = answer() if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def api_versions(self) -> ApiVersions:
        return self._say("api_versions", self.versions)

    def metadata(self) -> NodeMetadata:
        return self._say("metadata", self.peers)

    def describe_quorum(self) -> Quorum:
        return self._say("describe_quorum", self.quorum)

    def partitions(self) -> tuple[PartitionLeader, ...]:
        return self._say("partitions", self.leds)

    def client_metrics(self) -> tuple[str, ...] | None:
        return self._say("client_metrics", self.metrics)

    def leaders(self, topic: str) -> dict[int, tuple[int, int]] | None:
        if topic != OFFSETS.name:
            return None
        found = self._say("leaders", self.offsets_leaders)
        return None if found is None else {partition: (leader, 5) for partition, leader in found.items()}

    def find_coordinators(self, groups: tuple[str, ...], key_type: int) -> dict[str, int | None]:
        assert key_type == OFFSETS.key_type
        leaders = self._say("find_coordinators", self.offsets_leaders)
        return {group: leaders[hash_group(group) % self.offsets_count] for group in groups}

    def groups(self) -> tuple[str, ...]:
        return self._say("groups", self.listed)

    def ask(self, kind: type, *_versions: int, **_fields: Any) -> Any:
        if kind.__name__ == "DescribeConfigsRequest":
            return SimpleNamespace(
                results=[SimpleNamespace(error_code=0, error_message=None, configs=self._say("configs", self.settings))]
            )
        assert kind is ListPartitionReassignmentsRequest
        return self._say("reassignments", self.moving)

    def topic_configs(self, key: str, topics: list[str]) -> dict[str, str]:
        assert key == "min.insync.replicas"
        return self._say("topic_configs", dict.fromkeys(topics, "2"))


@dataclass
class FakeZooKeeper:
    answer: Any = field(default_factory=lambda: ZkView(cluster_id=CLUSTER, broker_ids=(1, 2, 3)))
    topics_answer: Any = field(default_factory=dict)
    epoch_answer: Any = 7
    servers_answer: Any = ()
    asked_groups: bool | None = None
    registrations: Any = None  # partitions of the topic when a broker registered

    def partitions_at_registration(self, _topic: str, _broker: int) -> int | None:
        return _given(self.registrations)

    def state_epoch(self) -> int:
        return _given(self.epoch_answer)

    def servers(self) -> tuple[ZooKeeperServer, ...]:
        return _given(self.servers_answer)

    def view(self, *, groups: bool) -> ZkView:
        self.asked_groups = groups
        return _given(self.answer)

    def topics(self) -> dict[str, TopicMetadata]:
        return _given(self.topics_answer)

    def children(self, path: str) -> list[str]:
        assert path == "/consumers"
        _given(self.answer)
        return []

    def read_znodes(self, paths: Iterable[str]) -> Iterator[Any]:
        return iter(list(paths)[:0])

    families = read_znodes


@dataclass
class FakeAdmin:
    topics_answer: Any = field(default_factory=dict)

    def topics(self) -> dict[str, TopicMetadata]:
        return _given(self.topics_answer)


@dataclass
class FakeHost:
    process: Any = field(default_factory=lambda: Process(ProcessState.RUNNING, 7))
    on_disk: Any = field(default_factory=lambda: NodeFiles(properties={"a": "b"}))
    asked: list[str] = field(default_factory=list)

    def observe(self, node: NodeSpec) -> Any:
        self.asked.append(node.name)
        return SimpleNamespace(process=lambda: _given(self.process), files=lambda: _given(self.on_disk))


def _given(answer: Any) -> Any:
    answer = answer() if callable(answer) else answer
    if isinstance(answer, Exception):
        raise answer
    return answer


class Cluster:
    """Everything that an observer of `SPEC` talks to."""

    def __init__(self, patience: ObserverTimeouts = QUICK) -> None:
        self.zk, self.admin, self.host = FakeZooKeeper(), FakeAdmin(), FakeHost()
        self.wires = {each.id: FakeWire(admin=self.admin) for each in SPEC.nodes()}
        self.released = threading.Event()
        tools: Any = Tools(self.zk, self.admin, lambda each: self.wires[each.id], lambda _: self.host)  # type: ignore[arg-type]
        self.observer = Observer(SPEC, tools, patience)

    def observe(self, what: Fields) -> ClusterView:
        return self.observer.observe(what)

    def hang(self) -> None:
        """An answer that does not come."""
        self.released.wait(30)


def codes(view: ClusterView) -> list[str]:
    return [reason.code for reason in view.unknowns]
