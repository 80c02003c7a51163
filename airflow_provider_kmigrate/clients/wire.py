"""Ask one broker or controller about itself, over one reusable connection to exactly that node.

Neither Python client can address a chosen broker or a controller's listener. Only these answers show a broker's mode and a
controller's migration flag without JMX (KIP-866: api key 55 served = KRaft; not served but tag 3 set = migration mode). Reads
only. Every call ends within `timeout` seconds, connecting and authenticating included.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    ListConfigResourcesRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from airflow_provider_kmigrate.clients.admin import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_TOPIC_OR_PARTITION,
    check,
)
from airflow_provider_kmigrate.clients.settings import WireSecurity
from airflow_provider_kmigrate.clients.wire_connection import Connection, Deadline, api_keys, tls_context
from airflow_provider_kmigrate.clients.znodes import batches
from airflow_provider_kmigrate.core.model import BrokerMode, Partition, Quorum
from airflow_provider_kmigrate.exceptions import TimedOut, Unavailable, Unreachable

_METADATA_LOG = "__cluster_metadata"
_TOPIC = 2  # ConfigResource.Type of a topic
_CONTROLLERS = 2  # DescribeCluster's endpoint type (KIP-919)
Use = Callable[[Connection, Deadline], Any]

_CONFIGS_BATCH = 500  # topics a request; a ZooKeeper-mode broker reads one znode for each


class NotLeader(Unavailable):
    """The controller answers, but another one leads, or none does at the moment."""


@dataclass(frozen=True, slots=True)
class ApiVersions:
    """What a node serves: api key -> (min, max); `metadata_version` is the finalized feature level (3.9-IV0 is 21) or None."""

    keys: Mapping[int, tuple[int, int]]
    migration_ready: bool
    metadata_version: int | None = None

    @property
    def mode(self) -> BrokerMode:
        """A broker's mode; says nothing about a controller, which is always KRaft."""
        if DescribeQuorumRequest.API_KEY in self.keys:
            return BrokerMode.KRAFT
        return BrokerMode.MIGRATION if self.migration_ready else BrokerMode.ZOOKEEPER


@dataclass(frozen=True, slots=True)
class NodeMetadata:
    """The cluster as one broker believes it to be; in KRaft mode `controller_id` is any live broker (KIP-590)."""

    cluster_id: str | None
    controller_id: int | None
    broker_ids: frozenset[int]


class Led(NamedTuple):
    """A partition with the leader epoch that the answering broker knows; the higher epoch is the newer truth."""

    leader_epoch: int
    partition: Partition


class Wire:
    """One node; connects at the first call, keeps the connection, and opens a new one after any failure.

    Raises `Unreachable`, `TimedOut`, `AuthenticationFailed`; `Failed` if the node does not serve a request; and `admin.error_for`
    of error codes. Threads take turns: a call waits for the one before it, within its own timeout.
    """

    def __init__(self, host: str, port: int, security: WireSecurity | None = None, timeout: float = 5.0) -> None:
        self.host, self.port, self.timeout = host, port, timeout
        self._security = security or WireSecurity()
        self._tls: ssl.SSLContext | None = None
        self._connection: Connection | None = None
        self._turn = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def endpoint(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def api_versions(self) -> ApiVersions:
        """Mode, migration flag (tag 3) and metadata version, as they are now."""
        answer = self._exchange(lambda connection, deadline: connection.api_versions(deadline))
        levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        return ApiVersions(
            keys=api_keys(answer),
            migration_ready=bool(answer.zk_migration_ready),
            metadata_version=levels.get("metadata.version") if answer.finalized_features_epoch >= 0 else None,
        )

    def describe_quorum(self) -> Quorum:
        """The metadata quorum as its leader sees it; raises `NotLeader` on every other controller.

        A leader knows no high watermark until its majority has fetched from it. That raises `Unavailable`, since every lag
        computed with -1 would look like none.
        """
        topic = DescribeQuorumRequest.TopicData
        wanted = [topic(topic_name=_METADATA_LOG, partitions=[topic.PartitionData(partition_index=0)])]
        answer = self.ask(DescribeQuorumRequest, 0, 2, topics=wanted)
        self._check_leads(answer.error_code, answer.error_message)
        state = answer.topics[0].partitions[0]
        self._check_leads(state.error_code, state.error_message)
        if state.high_watermark < 0:
            raise Unavailable(f"{self.endpoint} was elected a moment ago and knows no high watermark yet")
        return Quorum(
            leader_id=state.leader_id,
            leader_epoch=state.leader_epoch,
            high_watermark=state.high_watermark,
            voters={replica.replica_id: replica.log_end_offset for replica in state.current_voters},
            observers={replica.replica_id: replica.log_end_offset for replica in state.observers},
        )

    def describe_cluster(self) -> tuple[str, int, dict[int, tuple[str, int]]]:
        """A controller's view: cluster id, the leader's id (-1: none), and every controller's host and port (KIP-919).

        Raises `Failed` below metadata version 3.7-IV0; a controller that has not yet loaded its metadata is below it.
        """
        answer = self.ask(DescribeClusterRequest, 1, 1, endpoint_type=_CONTROLLERS)
        check(answer.error_code, f"{self.endpoint} DescribeCluster", answer.error_message)
        return answer.cluster_id, answer.controller_id, {node.broker_id: (node.host, node.port) for node in answer.brokers}

    def metadata(self) -> NodeMetadata:
        """The broker's cluster id, controller and live peers, without topics; raises `Unavailable` while it knows nothing yet."""
        answer = self._metadata(topics=[])
        return NodeMetadata(
            cluster_id=answer.cluster_id,
            controller_id=answer.controller_id if answer.controller_id >= 0 else None,
            broker_ids=frozenset(broker.node_id for broker in answer.brokers),
        )

    def partitions(self) -> tuple[Led, ...]:
        """Every partition of every topic as this broker's metadata cache has it; raises `Unavailable` while it is empty."""
        answer = self._metadata(topics=None)
        for topic in answer.topics:
            check(topic.error_code, f"{self.endpoint} Metadata", topic.name)
        return tuple(_led(topic.name, each) for topic in answer.topics for each in topic.partitions)

    def leaders(self, topic: str) -> dict[int, int] | None:
        """Partition -> leader (-1: none) of one topic; None if this broker knows no such topic. Never creates it."""
        wanted = MetadataRequest.MetadataRequestTopic(name=topic)
        (answer,) = self._metadata(topics=[wanted]).topics
        if answer.error_code == UNKNOWN_TOPIC_OR_PARTITION:
            return None
        check(answer.error_code, f"{self.endpoint} Metadata", topic)
        return {each.partition_index: each.leader_id for each in answer.partitions}

    def find_coordinators(self, groups: Iterable[str]) -> dict[str, int | None]:
        """For each group the coordinator that this broker knows; None while it knows none or still loads.

        Creates `__consumer_offsets` if it does not exist yet: check `leaders` first.
        """
        groups = tuple(groups)
        version = self.version_of(FindCoordinatorRequest, 1, 4)
        if version >= 4:
            return self._coordinators_at_once(groups)
        return {group: self._coordinator(group, version) for group in groups}

    def topic_configs(self, key: str, topics: Iterable[str]) -> dict[str, str]:
        """The value in force of one configuration key for each topic; topics deleted meanwhile are left out."""
        values: dict[str, str] = {}
        for batch in batches(topics, _CONFIGS_BATCH):
            values.update(self._topic_configs(key, batch))
        return values

    def replica_lags(self) -> dict[tuple[str, int], int]:
        """For each of this broker's replicas: the records that its log is behind the high watermark it knows (DescribeLogDirs)."""
        answer = self.ask(DescribeLogDirsRequest, 1, 4, topics=None)
        return {
            (topic.name, partition.partition_index): partition.offset_lag
            for folder in answer.results
            for topic in folder.topics
            for partition in topic.partitions
            if not partition.is_future_key
        }

    def client_metrics(self) -> tuple[str, ...] | None:
        """The names of client-metrics subscriptions (KIP-714); None if this node does not list them (ZooKeeper mode)."""
        if not self.serves(ListConfigResourcesRequest):
            return None
        answer = self.ask(ListConfigResourcesRequest, 0, 0)
        check(answer.error_code, f"{self.endpoint} ListClientMetricsResources")
        return tuple(sorted(resource.resource_name for resource in answer.config_resources))

    def ask(self, request: Any, lowest: int, highest: int, **fields: Any) -> Any:
        """The answer to one request in the newest version that both sides speak; the caller handles error codes in it."""
        return self._exchange(
            lambda connection, deadline: connection.call(
                request(version=connection.version_of(request, lowest, highest), **fields), deadline
            )
        )

    def serves(self, request: Any) -> bool:
        """True if this node knows the request at all."""
        return request.API_KEY in self._exchange(lambda connection, _: connection.keys)

    def version_of(self, request: Any, lowest: int, highest: int) -> int:
        """The version that `ask` would use: the newest that both sides speak. Raises `Failed` if there is none."""
        version: int = self._exchange(lambda connection, _: connection.version_of(request, lowest, highest))
        return version

    def _check_leads(self, code: int, detail: str | None) -> None:
        if code == NOT_LEADER_OR_FOLLOWER:
            raise NotLeader(f"{self.endpoint} does not lead the quorum")
        check(code, f"{self.endpoint} DescribeQuorum", detail)

    def _metadata(self, topics: list[Any] | None) -> Any:
        answer = self.ask(MetadataRequest, 4, 9, topics=topics, allow_auto_topic_creation=False)
        if not answer.brokers:  # it has started, but got no metadata from a controller yet: "no topics" would look healthy
            raise Unavailable(f"{self.endpoint} has no metadata yet")
        return answer

    def _coordinators_at_once(self, groups: tuple[str, ...]) -> dict[str, int | None]:
        answer = self.ask(FindCoordinatorRequest, 4, 4, coordinator_keys=list(groups))
        return {each.key: self._named(each) for each in answer.coordinators}

    def _coordinator(self, group: str, version: int) -> int | None:
        return self._named(self.ask(FindCoordinatorRequest, 1, version, key=group))

    def _named(self, coordinator: Any) -> int | None:
        if coordinator.error_code in {COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE}:
            return None
        check(coordinator.error_code, f"{self.endpoint} FindCoordinator", coordinator.error_message)
        node_id: int = coordinator.node_id
        return node_id if node_id >= 0 else None

    def _topic_configs(self, key: str, topics: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        resource = DescribeConfigsRequest.DescribeConfigsResource
        wanted = [resource(resource_type=_TOPIC, resource_name=topic, configuration_keys=[key]) for topic in topics]
        for result in self.ask(DescribeConfigsRequest, 1, 4, resources=wanted).results:
            if result.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                continue
            check(result.error_code, f"{self.endpoint} DescribeConfigs", result.error_message)
            yield from ((result.resource_name, entry.value) for entry in result.configs if entry.name == key)

    def _exchange(self, use: Use) -> Any:
        with self._my_turn() as deadline:
            kept = self._connection is not None
            try:
                return self._use(use, deadline)
            except Unreachable:
                if not kept:
                    raise
            # The node may have closed a kept connection long ago (idle limit, restart): that says nothing about its state now.
            return self._use(use, deadline)

    def _use(self, use: Use, deadline: Deadline) -> Any:
        if self._connection is None:
            self._tls = self._tls or tls_context(self._security)
            self._connection = Connection(self.host, self.port, self._security, self._tls, deadline)
        try:
            return use(self._connection, deadline)
        except BaseException:  # an answer may still be under way; it must not be read as the next one's
            self.close()
            raise

    @contextlib.contextmanager
    def _my_turn(self) -> Iterator[Deadline]:
        deadline = Deadline(self.timeout)
        if not self._turn.acquire(timeout=self.timeout):
            raise TimedOut(f"{self.endpoint}: the call before did not end within {self.timeout:g} s")
        try:
            yield deadline
        finally:
            self._turn.release()


def _led(topic: str, answer: Any) -> Led:
    partition = Partition(topic, answer.partition_index, answer.leader_id, tuple(answer.replica_nodes), tuple(answer.isr_nodes))
    return Led(answer.leader_epoch, partition)
