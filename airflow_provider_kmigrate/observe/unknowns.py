"""What it means that something could not be read; the observer adds why to the text."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import Cause, Reason

_ACL = "Check that brokers are up, and what our principal may do."

ZOOKEEPER = Reason(
    "U01",
    "ZooKeeper was not read",
    "Where a migration stands is written there.",
    "Check the ensemble, and that it has a quorum.",
    cause=Cause.UNREAD,
)
PARTITIONS = Reason(
    "U05", "No broker told the partitions", "Stopping a broker could take partitions offline.", _ACL, cause=Cause.UNREAD
)
MIN_INSYNC = Reason(
    "U07", "min.insync.replicas was not read", "Without it nobody knows which broker may stop.", _ACL, cause=Cause.UNREAD_SLOW
)
METRICS = Reason(
    "U09",
    "Client-metrics subscriptions were not read",
    "One would stop the dual-write at the next failover.",
    _ACL,
    cause=Cause.UNREAD_SLOW,
)
STATES = Reason(
    "U11",
    "The partitions' states were not read from ZooKeeper",
    "A new controller must have a higher epoch than any of them.",
    "Check the ensemble, and that it has a quorum.",
    cause=Cause.UNREAD_SLOW,
)
STORED = Reason(
    "U12",
    "Metadata beside topics was not read from both sides",
    "What was not compared may be lost on the way back.",
    "Check the ensemble, that brokers are up, and what our principal may do.",
    cause=Cause.UNREAD_STORED,
)
GROUPS = Reason(
    "U13",
    "The consumer groups of this step were not read",
    "Who is in them, and how far they have come, is unknown.",
    "Check the ensemble, and that the groups' coordinators are up.",
    cause=Cause.UNREAD_SLOW,
)
MOVING = Reason("U14", "The reassignments were not read", "Somebody may be moving partitions just now.", _ACL, cause=Cause.UNREAD)
TOPICS = Reason(
    "U10", "The topics of ZooKeeper and the brokers were not both read", "They cannot be compared.", _ACL, cause=Cause.UNREAD_SLOW
)

#: What belongs to no single node; that one node does not answer is mostly no news, because it is not started yet.
OF_THE_CLUSTER = frozenset({Cause.UNREAD, Cause.UNREAD_SLOW, Cause.UNREAD_STORED})
OF_WHAT_IS_SLOW = frozenset({Cause.UNREAD_SLOW, Cause.UNREAD_STORED, Cause.UNREAD_OFFSETS_COUNT})
"""What is not read again where the rest is (`Observer.look`)."""


def broker(node: NodeSpec) -> Reason:
    """U02: this broker did not answer."""
    return Reason("U02", f"{_named(node)} did not answer", "Its mode is unknown.", _look_at(node))


def controller(node: NodeSpec) -> Reason:
    """U03: this controller did not answer."""
    return Reason(
        "U03", f"{_named(node)} did not answer", "Its migration flag is unknown.", _look_at(node), Cause.UNREAD_CONTROLLER
    )


def host(node: NodeSpec) -> Reason:
    """What its host did not say of a node."""
    remedy = "Check that its host can be reached, and the commands of the cluster file."
    return Reason("U04", f"The host of {node.name} did not answer", "Whether the node runs, and with what, is unknown.", remedy)


def quorum(node: NodeSpec) -> Reason:
    """U06: no controller answered as the leader."""
    text = f"No controller answered as the leader of the quorum, {_named(node)}"
    return Reason("U06", text, "The controllers elect one, or have lost their majority.", "Look at the controllers' logs.")


def offsets(node: NodeSpec) -> Reason:
    """U08: this broker did not tell its coordinators."""
    why = "Brokers with different counts split consumer groups once they are restarted."
    return Reason("U08", f"{_named(node)} did not tell its coordinators", why, _look_at(node), Cause.UNREAD_OFFSETS_COUNT)


def _named(node: NodeSpec) -> str:
    return f"{node.name.capitalize()} at {node.endpoint}"


def _look_at(node: NodeSpec) -> str:
    return f"Look at the process and the log of {node.name}."
