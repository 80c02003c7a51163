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

from airflow_provider_kmigrate.core.cluster import GroupSpec
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, MemberKind, Store
from airflow_provider_kmigrate.core.coordination.registration import Unreadable
from airflow_provider_kmigrate.core.decision import Act, Decision, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.groups.members import (
    OFFSETS_SETTLE,
    GroupObservations,
    places,
    read_by,
    unread,
    unread_parts,
)
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.text import summarize


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


def plan(seen: GroupSeen, to: Store, *, reset: bool = False) -> CopyPlan | Refuse:
    """Plans what to write to `to`. `reset`: lower offsets that are ahead there, too."""
    refused = (*refusals(seen, to), *_unusable(seen, to))
    if refused:
        return Refuse(refused)
    source, target, ends = _usable(seen, _other(to)), _usable(seen, to), seen.ends or {}
    there = {where: offset for where, offset in source.items() if where in ends}
    writes, lower = _compared(there, target, reset=reset)
    return CopyPlan(seen.name, to, writes, lower, tuple(sorted(source.keys() - ends.keys())))


def raised(source: Mapping[TopicPartition, int], target: Mapping[TopicPartition, int]) -> tuple[OffsetWrite, ...]:
    """Plans writes that bring the target level with the source, for a group whose members live and write both."""
    return _compared(source, target, reset=False)[0]


def _compared(
    source: Mapping[TopicPartition, int], target: Mapping[TopicPartition, int], *, reset: bool
) -> tuple[tuple[OffsetWrite, ...], tuple[TopicPartition, ...]]:
    """What to write, and what to leave alone because the target is ahead."""
    writes, lower = [], []
    for where, offset in sorted(source.items()):
        over = target.get(where)
        if over is not None and over > offset and not reset:
            lower.append(where)
        elif over != offset:
            writes.append(OffsetWrite(where, offset, over))
    return tuple(writes), tuple(lower)


def outdated(made: CopyPlan, now: GroupSeen) -> tuple[Reason, ...]:
    """Why a plan no longer fits what is there now: its target must be unchanged; the source may have advanced."""
    refused = tuple(refusals(now, made.to))
    if refused:
        return refused
    target = _usable(now, made.to)
    moved = [write.where for write in made.writes if target.get(write.where) != write.over]
    if not moved:
        return ()
    return (Reason("K71", f"Offsets of {now.name} in {made.to} changed since the copy was planned: {places(moved)}."),)


def missing(made: CopyPlan, now: GroupSeen) -> tuple[OffsetWrite, ...]:
    """Planned offsets that reading back does not find."""
    target = _usable(now, made.to)
    return tuple(write for write in made.writes if target.get(write.where) != write.offset)


def refusals(seen: GroupSeen, to: Store) -> Iterator[Reason]:
    """Why nothing may be written to this side of a group now."""
    if missing := unread_parts(seen):
        yield Reason("K30", f"Group {seen.name}: {' and '.join(missing)} could not be read.")
    elif there := _there(seen, to):
        yield Reason("K71", f"{seen.name} has members in {to}: {summarize(there)}.")


def _there(seen: GroupSeen, to: Store) -> list[str]:
    """Members that live on that side; a rebalance in Kafka and owner znodes count as members."""
    if to is Store.ZOOKEEPER and seen.zk is not None:
        return sorted({*seen.zk.registrations, *seen.zk.progress, *seen.zk.owners.values()})
    if seen.kafka is None:
        return []
    members = sorted(f"{member.client_id} on {member.host}" for member in seen.kafka.members)
    return members or ([] if seen.kafka.state in {"Empty", "Dead"} else [f"unknown members (its state is {seen.kafka.state})"])


def _unusable(seen: GroupSeen, to: Store) -> Iterator[Reason]:
    if to is Store.KAFKA and (broken := unreadable(seen)):
        flaws = summarize(f"{where.name}: {flaw}" for where, flaw in broken)
        yield Reason("K42", f"Offsets of {seen.name} in ZooKeeper are not numbers: {flaws}.")
    if past := beyond_logs(_usable(seen, _other(to)), seen.ends or {}):
        yield Reason("K42", f"Offsets of {seen.name} in {_other(to)} are beyond their logs: {past}.")


def unreadable(seen: GroupSeen) -> list[tuple[TopicPartition, Unreadable]]:
    """Offsets in ZooKeeper that are no numbers."""
    stored = seen.zk.offsets if seen.zk else {}
    return sorted((where, one.offset) for where, one in stored.items() if isinstance(one.offset, Unreadable))


def beyond_logs(offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> str:
    """The offsets behind their logs' ends, as text; empty if there are none."""
    beyond = sorted(where for where, offset in offsets.items() if where in ends and offset > ends[where])
    return summarize(f"{where.name} at {offsets[where]} of {ends[where]}" for where in beyond)


def _usable(seen: GroupSeen, store: Store) -> Mapping[TopicPartition, int]:
    return seen.in_zookeeper if store is Store.ZOOKEEPER else seen.committed or {}


def larger(one: Mapping[TopicPartition, int], other: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
    """Partitions of both for which `one` is larger."""
    return frozenset(where for where, offset in one.items() if where in other and offset > other[where])


def _other(store: Store) -> Store:
    return Store.KAFKA if store is Store.ZOOKEEPER else Store.ZOOKEEPER


def compared(observations: GroupObservations, group: GroupSpec, target: MemberKind) -> Decision | None:
    """What keeps a member that becomes `target` from beginning at its store's offsets; None: nothing. Act: "copy offsets"."""
    if target is MemberKind.MIGRATING:
        return _skipping(observations, group)
    if not observations.whole:
        text = f"Group {group.name} could not be read as a whole yet. Its offsets are compared with those of that observation."
        return Wait((Reason("K60", text),))
    behind = offsets_behind(observations, target, group)
    return _with_offsets(observations, group, target, behind) if behind else None


def offsets_behind(observations: GroupObservations, target: MemberKind, group: GroupSpec) -> frozenset[TopicPartition]:
    """Partitions whose offset in the store that `target` reads is lower than the other store's at the earlier observation.

    Kafka may miss partitions that have no reader; a gap in ZooKeeper is harmless there.
    """
    now = observations.now
    if now is None or not observations.whole:
        return frozenset()
    _, first = observations.whole[0]
    if target is MemberKind.ZOOKEEPER:
        return _behind(now.in_zookeeper, first.committed or {})
    if target is MemberKind.KAFKA:
        return _behind(now.committed or {}, first.in_zookeeper) & read_by(now, group)
    return frozenset()


def _behind(reads: Mapping[TopicPartition, int], other: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
    return frozenset(where for where, offset in other.items() if reads.get(where, -1) < offset)


def _with_offsets(
    observations: GroupObservations, group: GroupSpec, target: MemberKind, behind: frozenset[TopicPartition]
) -> Decision:
    store, other = ("ZooKeeper", "Kafka") if target is MemberKind.ZOOKEEPER else ("Kafka", "ZooKeeper")
    text = f"Group {group.name}: {store}'s offsets of {places(behind)} are behind {other}'s."
    if target is MemberKind.ZOOKEEPER and observations.at - observations.whole[0][0] >= OFFSETS_SETTLE:
        return Act(Verb.COPY_OFFSETS, f"{text} The instance would read their records again.")
    return Wait((Reason("K60", text),))


def _skipping(observations: GroupObservations, group: GroupSpec) -> Decision | None:
    """The first migrating member begins at the larger of both stores, so the store that is not written must not be ahead.

    It is ahead after offsets were reset by hand in the other one. Members that are about to pass it, or that write both, are
    waited for.
    """
    skipped = ahead(observations, group)
    if observations.now is None or not skipped:
        return None
    in_kafka = not observations.now.of_kind(MemberKind.ZOOKEEPER)
    idle, used = ("zookeeper", "kafka") if in_kafka else ("kafka", "zookeeper")
    text = f"Group {group.name} reads from {used}, and {idle}'s leftover offsets of {places(skipped)} are ahead."
    text += f" If you reset them by hand, run: groups copy-offsets --to {idle} --reset --group {group.name}."
    reasons = (Reason("K64", text),)
    since, _ = observations.begun or (observations.at, None)
    return Refuse(reasons) if observations.at - since >= group.commit_within else Wait(reasons)


def ahead(observations: GroupObservations, group: GroupSpec) -> frozenset[TopicPartition]:
    """Partitions that the group reads from one store while the other one's offset is larger.

    Empty once a member migrates, and if ZooKeeper and Kafka consumers meet: then any way out is better. Kafka's offsets are no
    leftovers if they rise under ZooKeeper consumers, which then commit to both.
    """
    seen = observations.without_expiring_members(group)
    kinds = {member.kind for member in (seen.members or () if seen else ())}
    if seen is None or seen.zk is None or len(kinds) != 1:
        return frozenset()
    zookeeper, kafka = seen.in_zookeeper, seen.committed or {}
    if kinds == {MemberKind.KAFKA}:
        return larger(zookeeper, kafka) & seen.held_by(MemberKind.KAFKA)
    before = (observations.begun[1].committed or {}) if observations.begun else {}
    rises = larger(kafka, before) & seen.zk.partitions
    return frozenset() if kinds == {MemberKind.MIGRATING} or rises else larger(kafka, zookeeper) & seen.zk.partitions


def pending(seen: GroupSeen) -> str:
    """Recorded resets that no holder has applied yet, as text; empty if there are none, or if that is unknown."""
    resets = sorted(seen.zk.resets.items(), key=lambda one: one[0]) if seen.zk is not None else []
    shown = ((where, repr(offset.content) if isinstance(offset, Unreadable) else offset) for where, offset in resets)
    return summarize(f"{where.name} at {offset}" for where, offset in shown)


def resets_pending(seen: GroupSeen) -> tuple[Reason, ...]:
    """Why no instance may become a Kafka or ZooKeeper consumer, and no cleanup may run: the recorded reset would be lost."""
    waiting = pending(seen)
    text = f"Group {seen.name} has recorded offset resets that no member has applied: {waiting}."
    return (Reason("K46", text),) if waiting else ()


def unfit(seen: GroupSeen, wanted: Mapping[TopicPartition, int]) -> tuple[Reason, ...]:
    """Why these offsets may not be recorded; empty if they may."""
    missing, wrong = unread(seen, seen.name, ends=True), "; ".join(_wrong(seen, wanted))
    return missing or ((Reason("K76", f"Group {seen.name}: {wrong}."),) if wrong else ())


def _wrong(seen: GroupSeen, wanted: Mapping[TopicPartition, int]) -> Iterator[str]:
    ends, read = seen.ends or {}, seen.zk.partitions if seen.zk else frozenset()
    if not seen.of_kind(MemberKind.MIGRATING):
        yield "it has no migrating consumer"
    for where, offset in sorted(wanted.items()):
        if where not in read or where not in ends:
            yield f"no member selects {where.name}"
        elif offset < 0:
            yield f"{offset} is not an offset"
        elif offset > ends[where]:
            yield f"{where.name} ends at {ends[where]}, and {offset} is beyond it"
