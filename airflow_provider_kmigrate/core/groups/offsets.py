"""Decides how a group's committed offsets are compared, copied and reset between ZooKeeper and Kafka.

Both stores mean the same: the next offset to read. An offset is never lowered unless the operator asks for it (`reset`): the
higher one is work that was done. A store is not written while members live on its side: Kafka would refuse, and ZooKeeper
consumers would overwrite it.

- Copy: what would be written, what is left as it is, what is refused.
- Compare: may a member that reads one of the stores begin there?
- Reset (`migration/reset`): which members can still apply a recorded offset, and whether one may be recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.members import (
    OFFSETS_SETTLE,
    GroupObservations,
    consumed_partitions,
    format_partitions,
    unread_parts,
    unread_reasons,
)
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, MemberKind, Store
from airflow_provider_kmigrate.core.member.registration import Unreadable
from airflow_provider_kmigrate.core.shared.text import summarize


@dataclass(frozen=True, slots=True)
class OffsetWrite:
    """One offset to write, and the present one; None: there is none, or it is unreadable."""

    where: TopicPartition
    offset: int
    over: int | None


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """`writes` in order; `lower`: unchanged because the target is ahead; `gone`: without a log that can be read from now."""

    group: str
    to: Store
    writes: tuple[OffsetWrite, ...] = ()
    lower: tuple[TopicPartition, ...] = ()
    gone: tuple[TopicPartition, ...] = ()


def plan_copy(observed: GroupSeen, to: Store, *, reset: bool = False) -> CopyPlan | Refuse:
    """Plans what to write to `to`. `reset`: lower offsets that are ahead there, too."""
    refused = (*write_refusal_reasons(observed, to), *unusable_offset_reasons(observed, to))
    if refused:
        return Refuse(refused)
    source, target, ends = _usable_offsets(observed, _other_store(to)), _usable_offsets(observed, to), observed.ends or {}
    readable_offsets = {partition: offset for partition, offset in source.items() if partition in ends}
    writes, lower = _plan_writes(readable_offsets, target, reset=reset)
    return CopyPlan(observed.name, to, writes, lower, tuple(sorted(source.keys() - ends.keys())))


def plan_raising_writes(source: Mapping[TopicPartition, int], target: Mapping[TopicPartition, int]) -> tuple[OffsetWrite, ...]:
    """Plans writes that bring the target level with the source, for a group whose members live and write both."""
    return _plan_writes(source, target, reset=False)[0]


def _plan_writes(
    source: Mapping[TopicPartition, int], target: Mapping[TopicPartition, int], *, reset: bool
) -> tuple[tuple[OffsetWrite, ...], tuple[TopicPartition, ...]]:
    """What to write, and what to leave alone because the target is ahead."""
    writes, lower = [], []
    for partition, offset in sorted(source.items()):
        over = target.get(partition)
        if over is not None and over > offset and not reset:
            lower.append(partition)
        elif over != offset:
            writes.append(OffsetWrite(partition, offset, over))
    return tuple(writes), tuple(lower)


def outdated_plan_reasons(copy_plan: CopyPlan, now: GroupSeen) -> tuple[Reason, ...]:
    """Why a plan no longer fits what is there now: its target must be unchanged; the source may have advanced."""
    refused = tuple(write_refusal_reasons(now, copy_plan.to))
    if refused:
        return refused
    target = _usable_offsets(now, copy_plan.to)
    moved = [write.where for write in copy_plan.writes if target.get(write.where) != write.over]
    if not moved:
        return ()
    return (
        Reason("K71", f"Offsets of {now.name} in {copy_plan.to} changed since the copy was planned: {format_partitions(moved)}."),
    )


def find_missing_writes(copy_plan: CopyPlan, now: GroupSeen) -> tuple[OffsetWrite, ...]:
    """Planned offsets that reading back does not find."""
    target = _usable_offsets(now, copy_plan.to)
    return tuple(write for write in copy_plan.writes if target.get(write.where) != write.offset)


def write_refusal_reasons(observed: GroupSeen, to: Store) -> Iterator[Reason]:
    """Why nothing may be written to this side of a group now."""
    if missing := unread_parts(observed):
        yield Reason("K30", f"Group {observed.name}: {' and '.join(missing)} could not be read.")
    elif members := _members_in_store(observed, to):
        yield Reason("K71", f"{observed.name} has members in {to}: {summarize(members)}.")


def _members_in_store(observed: GroupSeen, to: Store) -> list[str]:
    """Members that live on that side; a rebalance in Kafka and owner znodes count as members."""
    if to is Store.ZOOKEEPER and observed.zk is not None:
        return sorted({*observed.zk.registrations, *observed.zk.progress, *observed.zk.owners.values()})
    if observed.kafka is None:
        return []
    members = sorted(f"{member.client_id} on {member.host}" for member in observed.kafka.members)
    return members or (
        [] if observed.kafka.state in {"Empty", "Dead"} else [f"unknown members (its state is {observed.kafka.state})"]
    )


def unusable_offset_reasons(observed: GroupSeen, to: Store) -> Iterator[Reason]:
    """Offsets that cannot be copied to this side: no numbers, or beyond their logs."""
    if to is Store.KAFKA and (broken := unreadable_offsets(observed)):
        flaws = summarize(f"{partition.name}: {flaw}" for partition, flaw in broken)
        yield Reason("K42", f"Offsets of {observed.name} in ZooKeeper are not numbers: {flaws}.")
    if past := describe_offsets_beyond_logs(_usable_offsets(observed, _other_store(to)), observed.ends or {}):
        yield Reason("K42", f"Offsets of {observed.name} in {_other_store(to)} are beyond their logs: {past}.")


def unreadable_offsets(observed: GroupSeen) -> list[tuple[TopicPartition, Unreadable]]:
    """Offsets in ZooKeeper that are no numbers."""
    stored = observed.zk.offsets if observed.zk else {}
    return sorted(
        (partition, stored_offset.offset)
        for partition, stored_offset in stored.items()
        if isinstance(stored_offset.offset, Unreadable)
    )


def describe_offsets_beyond_logs(offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> str:
    """The offsets behind their logs' ends, as text; empty if there are none."""
    beyond = sorted(partition for partition, offset in offsets.items() if partition in ends and offset > ends[partition])
    return summarize(f"{partition.name} at {offsets[partition]} of {ends[partition]}" for partition in beyond)


def _usable_offsets(observed: GroupSeen, store: Store) -> Mapping[TopicPartition, int]:
    return observed.zookeeper_offsets if store is Store.ZOOKEEPER else observed.committed or {}


def partitions_with_larger_offset(
    offsets: Mapping[TopicPartition, int], other_offsets: Mapping[TopicPartition, int]
) -> frozenset[TopicPartition]:
    """Partitions of both for which `offsets` is larger."""
    return frozenset(
        partition for partition, offset in offsets.items() if partition in other_offsets and offset > other_offsets[partition]
    )


def _other_store(store: Store) -> Store:
    return Store.KAFKA if store is Store.ZOOKEEPER else Store.ZOOKEEPER


def check_start_offsets(observations: GroupObservations, group: GroupSpec, target: MemberKind) -> Decision | None:
    """What keeps a member that becomes `target` from beginning at its store's offsets; None: nothing. Act: "copy offsets"."""
    if target is MemberKind.MIGRATING:
        return _check_skipped_records(observations, group)
    if not observations.whole:
        text = f"Group {group.name} could not be read as a whole yet. Its offsets are compared with those of that observation."
        return Wait((Reason("K60", text),))
    behind = partitions_behind(observations, target, group)
    return _copy_or_wait(observations, group, target, behind) if behind else None


def partitions_behind(observations: GroupObservations, target: MemberKind, group: GroupSpec) -> frozenset[TopicPartition]:
    """Partitions whose offset in the store that `target` reads is lower than the other store's at the earlier observation.

    Kafka may miss partitions that have no reader; a gap in ZooKeeper is harmless there.
    """
    now = observations.now
    if now is None or not observations.whole:
        return frozenset()
    _, first = observations.whole[0]
    if target is MemberKind.ZOOKEEPER:
        return _partitions_with_lower_offset(now.zookeeper_offsets, first.committed or {})
    if target is MemberKind.KAFKA:
        return _partitions_with_lower_offset(now.committed or {}, first.zookeeper_offsets) & consumed_partitions(now, group)
    return frozenset()


def _partitions_with_lower_offset(
    reads: Mapping[TopicPartition, int], other_offsets: Mapping[TopicPartition, int]
) -> frozenset[TopicPartition]:
    return frozenset(partition for partition, offset in other_offsets.items() if reads.get(partition, -1) < offset)


def _copy_or_wait(
    observations: GroupObservations, group: GroupSpec, target: MemberKind, behind: frozenset[TopicPartition]
) -> Decision:
    store, other_store = ("ZooKeeper", "Kafka") if target is MemberKind.ZOOKEEPER else ("Kafka", "ZooKeeper")
    text = f"Group {group.name}: {store}'s offsets of {format_partitions(behind)} are behind {other_store}'s."
    if target is MemberKind.ZOOKEEPER and observations.at - observations.whole[0][0] >= OFFSETS_SETTLE:
        return Act(Verb.COPY_OFFSETS, f"{text} The instance would read their records again.")
    return Wait((Reason("K60", text),))


def _check_skipped_records(observations: GroupObservations, group: GroupSpec) -> Decision | None:
    """The first migrating member begins at the larger of both stores, so the store that is not written must not be ahead.

    It is ahead after offsets were reset by hand in the other one. Members that are about to pass it, or that write both, are
    waited for.
    """
    skipped = ahead_in_other_store(observations, group)
    if observations.now is None or not skipped:
        return None
    in_kafka = not observations.now.members_of_kind(MemberKind.ZOOKEEPER)
    idle, used = ("zookeeper", "kafka") if in_kafka else ("kafka", "zookeeper")
    text = f"Group {group.name} reads from {used}, and {idle}'s leftover offsets of {format_partitions(skipped)} are ahead."
    text += f" If you reset them by hand, run: groups copy-offsets --to {idle} --reset --group {group.name}."
    reasons = (Reason("K64", text),)
    since, _ = observations.begun or (observations.at, None)
    return Refuse(reasons) if observations.at - since >= group.commit_within else Wait(reasons)


def ahead_in_other_store(observations: GroupObservations, group: GroupSpec) -> frozenset[TopicPartition]:
    """Partitions that the group reads from one store while the other one's offset is larger.

    Empty once a member migrates, and if ZooKeeper and Kafka consumers meet: then any way out is better. Kafka's offsets are no
    leftovers if they rise under ZooKeeper consumers, which then commit to both.
    """
    observed = observations.without_expiring_members(group)
    kinds = {member.kind for member in (observed.members or () if observed else ())}
    if observed is None or observed.zk is None or len(kinds) != 1:
        return frozenset()
    zookeeper, kafka = observed.zookeeper_offsets, observed.committed or {}
    if kinds == {MemberKind.KAFKA}:
        return partitions_with_larger_offset(zookeeper, kafka) & observed.partitions_held_by(MemberKind.KAFKA)
    before = (observations.begun[1].committed or {}) if observations.begun else {}
    rises = partitions_with_larger_offset(kafka, before) & observed.zk.partitions
    return (
        frozenset()
        if kinds == {MemberKind.MIGRATING} or rises
        else partitions_with_larger_offset(kafka, zookeeper) & observed.zk.partitions
    )


def describe_pending_resets(observed: GroupSeen) -> str:
    """Recorded resets that no holder has applied yet, as text; empty if there are none, or if that is unknown."""
    resets = sorted(observed.zk.resets.items(), key=lambda reset: reset[0]) if observed.zk is not None else []
    shown = ((partition, repr(offset.content) if isinstance(offset, Unreadable) else offset) for partition, offset in resets)
    return summarize(f"{partition.name} at {offset}" for partition, offset in shown)


def pending_reset_reasons(observed: GroupSeen) -> tuple[Reason, ...]:
    """Why no instance may become a Kafka or ZooKeeper consumer, and no cleanup may run: the recorded reset would be lost."""
    waiting = describe_pending_resets(observed)
    text = f"Group {observed.name} has recorded offset resets that no member has applied: {waiting}."
    return (Reason("K46", text),) if waiting else ()


def reset_refusal_reasons(observed: GroupSeen, new_offsets: Mapping[TopicPartition, int]) -> tuple[Reason, ...]:
    """Why these offsets may not be recorded; empty if they may."""
    missing, wrong = unread_reasons(observed, observed.name, ends=True), "; ".join(_describe_reset_faults(observed, new_offsets))
    return missing or ((Reason("K76", f"Group {observed.name}: {wrong}."),) if wrong else ())


def _describe_reset_faults(observed: GroupSeen, new_offsets: Mapping[TopicPartition, int]) -> Iterator[str]:
    ends, read = observed.ends or {}, observed.zk.partitions if observed.zk else frozenset()
    if not observed.members_of_kind(MemberKind.MIGRATING):
        yield "it has no migrating consumer"
    for partition, offset in sorted(new_offsets.items()):
        if partition not in read or partition not in ends:
            yield f"no member selects {partition.name}"
        elif offset < 0:
            yield f"{offset} is not an offset"
        elif offset > ends[partition]:
            yield f"{partition.name} ends at {ends[partition]}, and {offset} is beyond it"
