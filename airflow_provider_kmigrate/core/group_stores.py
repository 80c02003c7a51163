"""The two stores of a group's offsets beside each other: may a member that reads one of them begin there?"""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster import GroupSpec
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.group_looks import OFFSETS_SETTLE, Looks
from airflow_provider_kmigrate.core.group_members import places, read_by, unread
from airflow_provider_kmigrate.core.group_seen import GroupSeen, MemberKind, StoredOffset
from airflow_provider_kmigrate.core.model import Act, Decision, Reason, Wait

_COMMITS = "Migrating members write both stores; look at their logs for commits that fail."


def compared(looks: Looks, group: GroupSpec, target: MemberKind) -> Decision | None:
    """What keeps a member that is to be `target` from beginning where its store stands; None: nothing. Act: "copy offsets"."""
    if target is MemberKind.MIGRATING:
        return None
    missing = unread(looks.first, group.name)
    if missing:
        return Wait(
            (Reason("K60", f"{missing[0].text} Its offsets are compared with those of that look.", missing[0].why, _COMMITS),)
        )
    behind = offsets_behind(looks, target)
    return _with_offsets(looks, group, target, behind) if behind else None


def offsets_behind(looks: Looks, target: MemberKind) -> frozenset[TopicPartition]:
    """Partitions whose offset in the store that `target` reads is lower than what the other one had at the earlier look.

    Kafka need not know of partitions that nobody reads; ZooKeeper does without harm.
    """
    if looks.now is None or looks.first is None:
        return frozenset()
    if target is MemberKind.OLD:
        return _behind(zookeeper_offsets(looks.now), dict(looks.first.committed or {}))
    if target is MemberKind.PLAIN:
        return _behind(dict(looks.now.committed or {}), zookeeper_offsets(looks.first)) & read_by(looks.now)
    return frozenset()


def zookeeper_offsets(seen: GroupSeen) -> dict[TopicPartition, int]:
    """Those that can be read."""
    return {where: stored.offset for where, stored in _stored(seen).items() if isinstance(stored.offset, int)}


def _stored(seen: GroupSeen) -> dict[TopicPartition, StoredOffset]:
    return dict(seen.zk.offsets) if seen.zk else {}


def _behind(reads: dict[TopicPartition, int], other: dict[TopicPartition, int]) -> frozenset[TopicPartition]:
    return frozenset(where for where, offset in other.items() if reads.get(where, -1) < offset)


def _with_offsets(looks: Looks, group: GroupSpec, target: MemberKind, behind: frozenset[TopicPartition]) -> Decision:
    store, other = ("ZooKeeper", "Kafka") if target is MemberKind.OLD else ("Kafka", "ZooKeeper")
    text = f"Group {group.name}: {store}'s offsets of {places(behind)} are behind {other}'s."
    if target is MemberKind.OLD and looks.at - looks.first_at >= OFFSETS_SETTLE:
        return Act("copy offsets", f"{text} The instance would read their records once more.")
    return Wait((Reason("K60", text, f"The next member that is {target} would read their records once more.", _COMMITS),))
