"""The two stores of a group's offsets beside each other: may a member that reads one of them begin there?"""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster import GroupSpec
from airflow_provider_kmigrate.core.coordination.group_seen import MemberKind
from airflow_provider_kmigrate.core.decision import Act, Decision, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.groups.looks import OFFSETS_SETTLE, GroupObservations
from airflow_provider_kmigrate.core.groups.members import held_in_kafka, places, read_by, unread
from airflow_provider_kmigrate.core.groups.offsets import larger
from airflow_provider_kmigrate.core.model import Reason


def compared(looks: GroupObservations, group: GroupSpec, target: MemberKind) -> Decision | None:
    """What keeps a member that is to be `target` from beginning where its store stands; None: nothing. Act: "copy offsets"."""
    if target is MemberKind.MIGRATING:
        return _skipping(looks, group)
    missing = unread(looks.first, group.name)
    if missing:
        return Wait((Reason("K60", f"{missing[0].text} Its offsets are compared with those of that look."),))
    behind = offsets_behind(looks, target, group)
    return _with_offsets(looks, group, target, behind) if behind else None


def offsets_behind(looks: GroupObservations, target: MemberKind, group: GroupSpec) -> frozenset[TopicPartition]:
    """Partitions whose offset in the store that `target` reads is lower than what the other one had at the earlier look.

    Kafka need not know of partitions that nobody reads; ZooKeeper does without harm.
    """
    if looks.now is None or looks.first is None:
        return frozenset()
    if target is MemberKind.OLD:
        return _behind(looks.now.in_zookeeper, dict(looks.first.committed or {}))
    if target is MemberKind.PLAIN:
        return _behind(dict(looks.now.committed or {}), looks.first.in_zookeeper) & read_by(looks.now, group)
    return frozenset()


def _behind(reads: dict[TopicPartition, int], other: dict[TopicPartition, int]) -> frozenset[TopicPartition]:
    return frozenset(where for where, offset in other.items() if reads.get(where, -1) < offset)


def _with_offsets(looks: GroupObservations, group: GroupSpec, target: MemberKind, behind: frozenset[TopicPartition]) -> Decision:
    store, other = ("ZooKeeper", "Kafka") if target is MemberKind.OLD else ("Kafka", "ZooKeeper")
    text = f"Group {group.name}: {store}'s offsets of {places(behind)} are behind {other}'s."
    if target is MemberKind.OLD and looks.at - looks.first_at >= OFFSETS_SETTLE:
        return Act(Verb.COPY_OFFSETS, f"{text} The instance would read their records once more.")
    return Wait((Reason("K60", text),))


def _skipping(looks: GroupObservations, group: GroupSpec) -> Decision | None:
    """The first migrating member begins at the larger of both stores: the one that nobody writes must not be ahead.

    It is after offsets were set back by hand in the other one. Members that are about to pass it, or that write both, are waited for.
    """
    skipped = ahead(looks, group)
    if looks.now is None or not skipped:
        return None
    plain = not looks.now.of_kind(MemberKind.OLD)
    idle, used = ("zookeeper", "kafka") if plain else ("kafka", "zookeeper")
    text = f"Group {group.name} reads from {used}, and {idle}'s leftover offsets of {places(skipped)} are ahead."
    text += f" If they were set back by hand: groups copy-offsets --to {idle} --reset --group {group.name}."
    reasons = (Reason("K64", text),)
    return Refuse(reasons) if looks.at - looks.begun_at >= group.commit_within else Wait(reasons)


def ahead(looks: GroupObservations, group: GroupSpec) -> frozenset[TopicPartition]:
    """Partitions that the group reads from one store while the other one's offset is larger; empty once a member migrates, and where old
    and plain ones meet: then any way out is better.

    Kafka's offsets are no leftovers where they rise under old members, which then commit to both.
    """
    seen = looks.without_ghosts(group)
    kinds = {member.kind for member in (seen.members or () if seen else ())}
    if seen is None or seen.zk is None or len(kinds) != 1:
        return frozenset()
    zookeeper, kafka = seen.in_zookeeper, dict(seen.committed or {})
    if kinds == {MemberKind.PLAIN}:
        return larger(zookeeper, kafka) & held_in_kafka(seen)
    before = dict(looks.begun.committed or {}) if looks.begun else {}
    rises = larger(kafka, before) & seen.zk.partitions
    return frozenset() if kinds == {MemberKind.MIGRATING} or rises else larger(kafka, zookeeper) & seen.zk.partitions
