"""Predicts when Kafka removes a group's offsets: ZooKeeper keeps them for ever, Kafka only while the group has members, and for a time after.

Since Kafka 2.1 (KIP-211) a group's offsets stay as long as it has members. They are removed `offsets.retention.minutes` after the last member has left; of a
group without members, so long after the commit.
"""

from __future__ import annotations

from typing import Final

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen

_DAY: Final = 86_400.0
_SHORTEST_DEFAULT: Final = 1.0 * _DAY  # of `offsets.retention.minutes`, before Kafka 2.0 (KIP-186)


def find_idle_seconds(observed: GroupSeen, now: float) -> float | None:
    """Seconds since the last commit in ZooKeeper of a group without members; None if it has members, no offset there, or was not read.

    `now`: in seconds since the epoch.
    """
    if observed.members is None or observed.members or observed.zk is None or not observed.zk.offsets:
        return None
    return max(0.0, now - max(stored.changed_at for stored in observed.zk.offsets.values()))


def describe_expiry(observed: GroupSeen, now: float, retention: float | None) -> str:
    """When a copy of its offsets in Kafka would be removed, and that it has been idle for longer; empty if it has not.

    `retention`: seconds, the brokers' shortest; None: not read, so the shortest default of any release counts.
    """
    idle = find_idle_seconds(observed, now)
    if idle is None or idle < (_SHORTEST_DEFAULT if retention is None else retention):
        return ""
    if retention is None:
        return (
            f"its last commit was {idle / _DAY:.1f} days ago, it has no member, and after how long Kafka removes a copy of its offsets"
            " (`offsets.retention.minutes`) was not read"
        )
    return (
        f"its last commit was {idle / _DAY:.1f} days ago, and it has no member: Kafka removes a copy of its offsets"
        f" {retention / _DAY:.1f} days after it was made"
    )


def expiry_reasons(observed: GroupSeen, now: float, retention: float | None) -> tuple[Reason, ...]:
    """K96 if a copy to Kafka may be removed before the group's application runs again."""
    text = describe_expiry(observed, now, retention)
    return (Reason("K96", f"Group {observed.name}: {text}."),) if text else ()
