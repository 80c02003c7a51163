"""What it means that something could not be read; the observer adds why to the text."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import Cause, Reason

ZOOKEEPER = Reason(
    "U01",
    "ZooKeeper was not read",
    cause=Cause.UNREAD,
)
PARTITIONS = Reason("U05", "No broker told the partitions", cause=Cause.UNREAD)
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

#: What belongs to no single node; that one node does not answer is mostly no news, because it is not started yet.
OF_THE_CLUSTER = frozenset({Cause.UNREAD, Cause.UNREAD_SLOW, Cause.UNREAD_STORED})
OF_WHAT_IS_SLOW = frozenset({Cause.UNREAD_SLOW, Cause.UNREAD_STORED, Cause.UNREAD_OFFSETS_COUNT})
"""What is not read again where the rest is (`Observer.look`)."""


def broker(node: NodeSpec) -> Reason:
    """R01: this broker did not answer."""
    return Reason("R01", f"{_named(node)} did not answer")


def controller(node: NodeSpec) -> Reason:
    """G23: this controller did not answer."""
    return Reason("G23", f"{_named(node)} did not answer", cause=Cause.UNREAD_CONTROLLER)


def host(node: NodeSpec) -> Reason:
    """What its host did not say of a node."""
    return Reason("U04", f"The host of {node.name} did not answer")


def quorum(node: NodeSpec) -> Reason:
    """G20: no controller answered as the leader."""
    text = f"No controller answered as the leader of the quorum, {_named(node)}"
    return Reason("G20", text)


def offsets(node: NodeSpec) -> Reason:
    """U05: this broker did not tell its coordinators."""
    return Reason("U05", f"{_named(node)} did not tell its coordinators", cause=Cause.UNREAD_OFFSETS_COUNT)


def _named(node: NodeSpec) -> str:
    return f"{node.name.capitalize()} at {node.endpoint}"
