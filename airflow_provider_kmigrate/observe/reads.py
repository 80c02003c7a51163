"""What a look asks of each side, as it runs in a thread of its own. Nothing here is decided; what fails, raises."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from airflow_provider_kmigrate.clients import group_reads, wire_surroundings
from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.clients.wire import ApiVersions, Led, NodeMetadata
from airflow_provider_kmigrate.core import offsets_topic
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen
from airflow_provider_kmigrate.core.internal_topics import OFFSETS_TOPIC
from airflow_provider_kmigrate.core.model import NodeFiles, Process, ProcessState, Quorum, TopicMetadata, ZkView
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Unavailable

Value = TypeVar("Value")

_MIN_INSYNC = "min.insync.replicas"
_WITNESSES = 2


class Seen(NamedTuple):
    """A broker's answers about itself and about its peers."""

    versions: ApiVersions
    metadata: NodeMetadata
    seconds: float | None = None  # until it had answered the first question, a small one that every broker knows


class Reads:
    """The questions of one cluster's observer; it remembers which brokers it had better not ask first."""

    def __init__(self, brokers: Sequence[NodeSpec], tools: Tools) -> None:
        self._brokers = brokers
        self._tools = tools
        self._doubtful: set[int] = set()

    def zookeeper(self, groups: bool) -> ZkView:
        return self._tools.zk.view(groups=groups)

    def broker(self, node: NodeSpec) -> Seen:
        wire, asked = self._tools.wire(node), time.monotonic()
        versions = wire.api_versions()
        seconds = time.monotonic() - asked
        return Seen(versions, wire.metadata(), seconds)

    def controller(self, node: NodeSpec) -> ApiVersions:
        return self._tools.wire(node).api_versions()

    def quorum(self, node: NodeSpec) -> Quorum:
        return self._tools.wire(node).describe_quorum()

    def process(self, node: NodeSpec) -> Process:
        """Raises `Unavailable` where the host answers without telling: that is as unknown as no answer."""
        found = self._tools.host(node).status(node)
        if found.state is ProcessState.UNKNOWN:
            raise Unavailable("it does not tell whether the node runs")
        return found

    def files(self, node: NodeSpec) -> NodeFiles:
        return self._tools.host(node).files(node)

    def zookeeper_topics(self) -> dict[str, TopicMetadata]:
        return self._tools.zk.topics()

    def state_epoch(self) -> int:
        return self._tools.zk.state_epoch()

    def broker_topics(self) -> dict[str, TopicMetadata]:
        return self._tools.admin.topics()

    def witnesses(self) -> list[list[NodeSpec]]:
        """Brokers to ask for the whole cluster, in groups of which one member each is enough, those that failed last.

        Two groups where there are two brokers: one that is cut off goes on answering with what it last heard.
        """
        order = self._trusted_first()
        return [order[start::_WITNESSES] for start in range(min(_WITNESSES, len(order)))]

    def partitions(self, candidates: Iterable[NodeSpec]) -> tuple[Led, ...]:
        """Every partition as the first candidate that answers sees it."""
        return self._first(candidates, lambda node: self._tools.wire(node).partitions())

    def min_insync(self, topics: Sequence[str]) -> dict[str, int]:
        """The value in force, from the first broker that answers; topics that it does not know (any more, or yet) are left out."""
        found = self._first(self._trusted_first(), lambda node: self._tools.wire(node).topic_configs(_MIN_INSYNC, topics))
        return {topic: int(value) for topic, value in found.items()}

    def moving(self) -> tuple[str, ...]:
        """Partitions that are being reassigned. In ZooKeeper mode the controller alone knows them, so it is asked first."""
        order = self._trusted_first()
        controller = self._first(order, lambda node: self._tools.wire(node).metadata()).controller_id
        candidates = sorted(order, key=lambda node: node.id != controller)
        return self._first(candidates, lambda node: wire_surroundings.reassignments(self._tools.wire(node)))

    def client_metrics(self) -> tuple[str, ...]:
        """The subscriptions' names. Only KRaft brokers list them; where every broker answers that it does not, there are none."""
        for node in self._trusted_first():
            names = self._tools.wire(node).client_metrics()
            if names is not None:
                return names
        return ()

    def offsets_counts(self, node: NodeSpec) -> frozenset[int]:
        """The possible counts of `__consumer_offsets` that this broker computes with; empty where the topic does not exist.

        The leaders are those that the broker itself knows, and must be the same before and after: else its answers prove nothing.
        """
        wire = self._tools.wire(node)
        leaders = wire.leaders(OFFSETS_TOPIC)
        if leaders is None:  # asking for a coordinator would create it
            return frozenset()
        answers = wire.find_coordinators(offsets_topic.probe_groups())
        if wire.leaders(OFFSETS_TOPIC) != leaders:
            raise Unavailable(f"leaders of {OFFSETS_TOPIC} moved while {node.name} was asked")
        return offsets_topic.possible_counts(answers, leaders)

    def groups(self, names: Sequence[str]) -> dict[str, GroupSeen]:
        """Consumer groups as both sides show them."""
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
