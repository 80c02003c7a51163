"""Turn the nodes' answers into parts of a `ClusterView`, and name the reason of each answer that is missing.

Pure, so that every combination of answers and missing answers can be tested. The observer adds to each reason why the read
failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_kmigrate.clients.wire import ApiVersions, Led
from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.model import (
    Broker,
    Cause,
    Controller,
    NodeFiles,
    Partition,
    Process,
    Quorum,
    Reason,
    TopicMetadata,
    ZkView,
    version_of,
)
from airflow_provider_kmigrate.exceptions import WrongCluster
from airflow_provider_kmigrate.observe.reads import Seen

ZOOKEEPER = Reason(
    "U01",
    "ZooKeeper was not read",
    cause=Cause.UNREAD,
)
PARTITIONS = Reason("U05", "No broker reported the partitions", cause=Cause.UNREAD)
MIN_INSYNC = Reason("U05", "min.insync.replicas was not read", cause=Cause.UNREAD_SLOW)
METRICS = Reason(
    "U05",
    "Client-metrics subscriptions were not read",
    cause=Cause.UNREAD_SLOW,
)
STATES = Reason(
    "U05",
    "The partitions' states were not read from ZooKeeper",
    cause=Cause.UNREAD_SLOW,
)
STORED = Reason(
    "U05",
    "Metadata beside topics was not read from both sides",
    cause=Cause.UNREAD_STORED,
)
GROUPS = Reason(
    "U05",
    "The consumer groups of this step were not read",
    cause=Cause.UNREAD_SLOW,
)
MOVING = Reason("U05", "The reassignments were not read", cause=Cause.UNREAD)
TOPICS = Reason("U05", "The topics of ZooKeeper and the brokers were not both read", cause=Cause.UNREAD_SLOW)

#: Causes that belong to no single node. One unresponsive node is mostly no news, because it has not been started yet.
OF_THE_CLUSTER = frozenset({Cause.UNREAD, Cause.UNREAD_SLOW, Cause.UNREAD_STORED})
OF_WHAT_IS_SLOW = frozenset({Cause.UNREAD_SLOW, Cause.UNREAD_STORED, Cause.UNREAD_OFFSETS_COUNT})
"""Slow reads, which `Observer.look` does not repeat when it reads the rest again."""


def broker(node: NodeSpec) -> Reason:
    """R01: this broker did not answer."""
    return Reason("R01", f"{_named(node)} did not answer")


def controller(node: NodeSpec) -> Reason:
    """G23: this controller did not answer."""
    return Reason("G23", f"{_named(node)} did not answer", cause=Cause.UNREAD_CONTROLLER)


def host(node: NodeSpec) -> Reason:
    """U04: the node's host did not report its process or its files."""
    return Reason("U04", f"The host of {node.name} did not answer")


def quorum(node: NodeSpec) -> Reason:
    """G20: no controller answered as the leader."""
    text = f"No controller answered as the leader of the quorum, {_named(node)}"
    return Reason("G20", text)


def offsets(node: NodeSpec) -> Reason:
    """U05: this broker did not report its coordinators."""
    return Reason("U05", f"{_named(node)} did not report its coordinators", cause=Cause.UNREAD_OFFSETS_COUNT)


def _named(node: NodeSpec) -> str:
    return f"{node.name.capitalize()} at {node.endpoint}"


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of nodes, hosts and ZooKeeper; a source that did not answer is absent."""

    zk: ZkView | None = None
    brokers: Mapping[NodeSpec, Seen] = field(default_factory=dict)
    controllers: Mapping[NodeSpec, ApiVersions] = field(default_factory=dict)
    processes: Mapping[NodeSpec, Process] = field(default_factory=dict)
    files: Mapping[NodeSpec, NodeFiles] = field(default_factory=dict)


def identify(spec: ClusterSpec, answers: Answers) -> str | None:
    """The cluster id that the brokers report, None if none did.

    Raises `WrongCluster` if any source reports another id than the spec.
    """
    named = {f"{node.name} at {node.endpoint}": seen.metadata.cluster_id for node, seen in answers.brokers.items()}
    reported = [found for found in named.values() if found]
    if answers.zk is not None:
        named["ZooKeeper's /cluster/id"] = answers.zk.cluster_id
    for who, found in named.items():
        if found and found != spec.cluster_id:
            text = f"{who} belongs to cluster {found}, the cluster file names {spec.cluster_id}."
            reason = Reason("I01", text)
            raise WrongCluster(str(reason), [reason])
    return reported[0] if reported else None


def brokers(spec: ClusterSpec, answers: Answers) -> dict[int, Broker]:
    """Every broker that the spec names, ZooKeeper has registered or a peer lists."""
    nodes = {node.id: node for node in spec.brokers}
    listed = {number for seen in answers.brokers.values() for number in seen.metadata.broker_ids}
    registered = set(answers.zk.broker_ids) if answers.zk else set()
    return {number: _broker(number, nodes.get(number), answers) for number in sorted(nodes.keys() | listed | registered)}


def controllers(spec: ClusterSpec, answers: Answers) -> dict[int, Controller]:
    """Every controller of the spec."""
    return {node.id: _controller(node, answers) for node in spec.controllers}


def newest(witnesses: Iterable[tuple[Led, ...]]) -> tuple[Partition, ...]:
    """Merge the partitions from several brokers' caches into one sorted tuple.

    The higher leader epoch is newer. Within one epoch only the ISR changes, which Metadata does not number: a replica counts as
    in sync only if every witness says so. A partition that one witness misses is taken from the other.
    """
    best: dict[tuple[str, int], Led] = {}
    for led in (led for witness in witnesses for led in witness):
        key = (led.partition.topic, led.partition.index)
        best[key] = _newer(best[key], led) if key in best else led
    return tuple(led.partition for _, led in sorted(best.items()))


def state_epoch(topics: Mapping[str, TopicMetadata]) -> int | None:
    """The highest controller_epoch of ZooKeeper's partition states; -1 if there is no state, None if one misses it."""
    epochs = [partition.controller_epoch for topic in topics.values() for partition in topic.partitions.values()]
    known = [epoch for epoch in epochs if epoch is not None]
    return max(known, default=-1) if len(known) == len(epochs) else None


def leader_of(quorums: Iterable[Quorum]) -> Quorum | None:
    """The newest of the quorums whose node believes it leads: an isolated leader may not know that it was replaced."""
    return max(quorums, key=lambda quorum: quorum.leader_epoch, default=None)


def metadata_version(answers: Answers) -> str | None:
    """The finalized metadata.version that controllers and KRaft brokers report; the highest, since it only grows."""
    answered = [*answers.controllers.values(), *(seen.versions for seen in answers.brokers.values())]
    levels = [versions.metadata_version for versions in answered if versions.metadata_version]
    return version_of(max(levels)) if levels else None


def _broker(number: int, node: NodeSpec | None, answers: Answers) -> Broker:
    seen = answers.brokers.get(node) if node else None
    listed_by = frozenset(peer.id for peer, other in answers.brokers.items() if number in other.metadata.broker_ids)
    broker = Broker(
        number,
        mode=seen.versions.mode if seen else None,
        in_zookeeper=number in answers.zk.broker_ids if answers.zk else None,
        listed_by=listed_by if answers.brokers else None,
        controller_id=seen.metadata.controller_id if seen else None,
        answered_in=seen.seconds if seen else None,
    )
    if node is None:
        return broker
    return replace(broker, process=answers.processes.get(node, Process()), files=answers.files.get(node, NodeFiles()))


def _controller(node: NodeSpec, answers: Answers) -> Controller:
    seen = answers.controllers.get(node)
    return Controller(
        node.id,
        process=answers.processes.get(node, Process()),
        answers=seen is not None,
        migration_flag=seen.migration_ready if seen else None,
        files=answers.files.get(node, NodeFiles()),
    )


def _newer(one: Led, other: Led) -> Led:
    if one.leader_epoch != other.leader_epoch:
        return max(one, other, key=lambda led: led.leader_epoch)
    both = set(one.partition.isr) & set(other.partition.isr)
    return one._replace(partition=replace(one.partition, isr=tuple(number for number in one.partition.isr if number in both)))
