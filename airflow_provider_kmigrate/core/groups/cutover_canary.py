"""Decides the canary of a cutover: one instance runs the new version while all others go on as the old one.

Only for applications that allow it (`side_by_side`): ZooKeeper consumers and Kafka consumers do not know each other, so the canary reads every
partition that the others read, and records are processed twice. What it proves before anything is interrupted: the new version joins under
the group's name and the instance's, reads just the same topics, and keeps up with every partition for the group's `bake`.

Its offsets are thrown away. While the note says that there is a canary, ZooKeeper's offsets alone count: Kafka's are set to them before the canary
starts, again before the new version of all starts, and in a rollback. So no record is skipped, however far the canary was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Cause, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.cutover_state import (
    SHARE,
    STOPPED,
    CanaryWatch,
    CutoverFailedError,
    CutoverState,
    CutoverTurn,
    is_kafka_used,
    raise_if_other_topics,
    raise_if_refused,
)
from airflow_provider_kmigrate.core.groups.members import (
    flaw_reasons,
    format_partitions,
    instability_reasons,
    map_instances,
    unknown_member_reasons,
    unowned_partitions,
)
from airflow_provider_kmigrate.core.groups.offsets import (
    CopyPlan,
    OffsetWrite,
    partitions_with_larger_offset,
    plan_copy,
    unusable_offset_reasons,
)
from airflow_provider_kmigrate.core.member.cutover_note import CanaryPhase, CutoverNote
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, MemberKind, Store
from airflow_provider_kmigrate.core.shared.text import count_of

CANARY: Final = "canary"  # what acts on the canary alone are about
CANARY_PASSED: Final = "canary passed"  # what the note records


def canary_of(group: GroupSpec) -> str:
    """The instance that is the canary: the file's first, as in every other move of a group."""
    return group.instances[0].name


def decide_canary(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec, note: CutoverNote) -> CutoverTurn:
    """Decides the next move until the canary has passed, from a complete observation; raises CutoverFailedError.

    Acts about `CANARY`: "stop instances", "start instances"; "copy offsets"; "note" about `CANARY_PASSED`.
    """
    name, instance_map = canary_of(group), map_instances(observed.members or (), group)
    if faults := (*flaw_reasons(observed), *unknown_member_reasons(observed, group)):
        raise CutoverFailedError(*faults)
    if early := [other for other in instance_map.instances if other != name and MemberKind.KAFKA in instance_map.kinds_of(other)]:
        text = f"Group {group.name}: {', '.join(early)} runs the new version, and only {name} is the canary."
        raise CutoverFailedError(Reason("K93", text))
    kinds = instance_map.kinds_of(name)
    if MemberKind.KAFKA in kinds and MemberKind.ZOOKEEPER in kinds:
        raise CutoverFailedError(Reason("K91", f"Group {group.name}: {name} runs as both versions at once."))
    if MemberKind.ZOOKEEPER in kinds:
        return _stop_canary(state, at, group, "the old version", came_back=name in state.stopped)
    state = _note_stability(state, observed, at, group)
    if (unstable_at := state.canary.unstable_at) is not None:
        reasons = _unstable_reasons(observed, group)
        if at - unstable_at >= SHARE * group.switch_timeout:
            raise CutoverFailedError(*reasons)
        return CutoverTurn(Wait(reasons), state)
    if MemberKind.KAFKA in kinds:
        return _watch_canary(state, observed, at, group, note)
    return _start_canary(state, observed, at, group, note)


def _unstable_reasons(observed: GroupSeen, group: GroupSpec) -> tuple[Reason, ...]:
    """Why the group is not stable beside the canary. That the canary reads a partition is no owner of the old version."""
    zk = observed.zk
    unowned = zk.unowned if zk else frozenset()
    is_named = zk is not None and bool(zk.registrations and unowned_partitions(observed))  # by `instability_reasons`
    text = f"Group {group.name}: no member of the old version owns {format_partitions(unowned)}."
    reasons = instability_reasons(observed, group, excused_instances=[canary_of(group)])
    return (*reasons, Reason("K44", text)) if unowned and not is_named else reasons


def _note_stability(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec) -> CutoverState:
    watch = state.canary
    if _unstable_reasons(observed, group):
        return replace(state, canary=replace(watch, unstable_at=at if watch.unstable_at is None else watch.unstable_at))
    return replace(state, canary=replace(watch, unstable_at=None))


def _stop_canary(state: CutoverState, at: float, group: GroupSpec, version: str, *, came_back: bool) -> CutoverTurn:
    name = canary_of(group)
    if came_back:
        text = f"Group {group.name}: {name} was stopped and is a member again: something else starts it."
        raise CutoverFailedError(Reason("K91", text))
    raise_if_refused(state, group, [name], STOPPED)
    if state.asked(name, STOPPED) is None:
        return CutoverTurn(
            Act(Verb.STOP_INSTANCES, f"Group {group.name}: {name} stops as {version}.", CANARY), state, (name,), STOPPED
        )
    text = f"Group {group.name}: {name} was asked to stop and is still a member."
    if state.is_late(at, group):
        raise CutoverFailedError(Reason("K91", text))
    return CutoverTurn(Wait((Reason("K91", text),)), state)


def _start_canary(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec, note: CutoverNote) -> CutoverTurn:
    """The others own every partition, and the canary is no member: it gets ZooKeeper's offsets, and starts."""
    name = canary_of(group)
    if state.canary.has_joined:
        text = f"Group {group.name}: {name} has left the group while it ran the new version."
        raise CutoverFailedError(Reason("V30", text, cause=Cause.GROUP_UNHEALTHY))
    if state.asked(name, MemberKind.KAFKA):
        raise_if_refused(state, group, [name], MemberKind.KAFKA)
        text = f"Group {group.name}: {name} has not joined as the new version."
        if state.is_late(at, group):
            raise CutoverFailedError(Reason("K93", text))
        return CutoverTurn(Wait((Reason("K93", text),)), state)
    if not state.canary.copied:
        copy_plan = plan_copy(observed, Store.KAFKA, reset=True)
        if isinstance(copy_plan, Refuse):
            raise CutoverFailedError(*copy_plan.reasons)
        empty = (OffsetWrite(partition, 0, None) for partition in sorted(note.partitions - observed.zookeeper_offsets.keys()))
        state = replace(state, canary=replace(state.canary, copied=True))
        text = f"Group {group.name}: {name} begins where ZooKeeper's offsets are."
        return CutoverTurn(Act(Verb.COPY_OFFSETS, text), state, writes=replace(copy_plan, writes=(*copy_plan.writes, *empty)))
    text = f"Group {group.name}: {name} starts as the new version. Records are processed twice until it ends."
    return CutoverTurn(Act(Verb.START_INSTANCES, text, CANARY), state, (name,), MemberKind.KAFKA)


def _watch_canary(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec, note: CutoverNote) -> CutoverTurn:
    """The canary is a member of the Kafka group, and nothing rebalances."""
    name = canary_of(group)
    members = map_instances(observed.members or (), group).instances[name]
    lives = frozenset(member.incarnation for member in members)
    watch = _add_offsets(state.canary, observed, at, note, lives)
    state = replace(state, canary=watch)
    if lives.isdisjoint(watch.lives):
        text = f"Group {group.name}: {name} was started again while it ran the new version."
        raise CutoverFailedError(Reason("V30", text, cause=Cause.GROUP_UNHEALTHY))
    joined_s = at - (at if watch.joined_at is None else watch.joined_at)
    held = observed.partitions_held_by(MemberKind.KAFKA)
    raise_if_other_topics(group, held, note)
    if unheld := note.partitions - held:
        text = f"Group {group.name}: {name} does not read {format_partitions(unheld)} as the new version."
        if joined_s >= group.commit_within:
            raise CutoverFailedError(Reason("K93", text))
        return CutoverTurn(Wait((Reason("K93", text),)), state)
    starving = [partition for partition, moved_at in watch.moved_at.items() if at - moved_at >= group.commit_within]
    if starving:
        text = f"Group {group.name}: {name} as the new version has committed nothing for {group.commit_within:.0f} s: {format_partitions(starving)}."
        raise CutoverFailedError(Reason("V30", text, cause=Cause.GROUP_UNHEALTHY))
    idle = [
        partition
        for partition in sorted(note.partitions)
        if not _has_moved(watch, observed, partition, waited=joined_s >= group.commit_within)
    ]
    if (idle or joined_s < group.bake) and not watch.has_baked:
        waits = f"{format_partitions(idle)} without a commit yet" if idle else f"{joined_s:.0f} of {group.bake:.0f} s"
        decision = Wait((Reason("T01", f"Group {group.name}: {name} runs the new version; {waits}."),))
        return CutoverTurn(decision, state, may_defer=group.bake > 0)
    state = replace(state, canary=replace(watch, has_baked=True))
    text = f"Group {group.name}: {name} reads each of the {count_of(len(note.partitions), 'partition')} as the new version."
    return CutoverTurn(Act(Verb.NOTE, text, CANARY_PASSED), state)


def _add_offsets(watch: CanaryWatch, observed: GroupSeen, at: float, note: CutoverNote, lives: frozenset[str]) -> CanaryWatch:
    committed, ends = observed.committed or {}, observed.ends or {}
    latest = {partition: committed[partition] for partition in note.partitions if partition in committed}
    if watch.joined_at is None:
        watch = replace(watch, lives=lives, joined_at=at, offsets=latest, ends=dict(ends), has_joined=True)
    moved_at = {
        partition: at
        if latest.get(partition) != watch.latest.get(partition) or _has_read_all(watch, latest, ends, partition)
        else watch.moved_at.get(partition, at)
        for partition in note.partitions
    }
    return replace(watch, latest=latest, moved_at=moved_at)


def _has_read_all(
    watch: CanaryWatch, latest: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], partition: TopicPartition
) -> bool:
    """True if no record waits; one offset that is left in a log that has not grown is a transaction's marker, which no consumer commits."""
    offset, end = latest.get(partition), ends.get(partition)
    if offset is None or end is None:
        return False
    return offset >= end or end == offset + 1 == watch.ends.get(partition)


def _has_moved(watch: CanaryWatch, observed: GroupSeen, partition: TopicPartition, *, waited: bool) -> bool:
    """True if it has committed there, or nothing waits. `waited`: long enough to take one offset that is left for a marker."""
    offset, end = watch.latest.get(partition), (observed.ends or {}).get(partition)
    if offset is None or end is None:
        return False
    read_all = _has_read_all(watch, watch.latest, observed.ends or {}, partition) if waited else offset >= end
    return read_all or offset > watch.offsets.get(partition, -1)


def decide_canary_end(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec) -> CutoverTurn | None:
    """Decides the next move while the canary that has passed ends; None: it has, the others are sound, and all may stop."""
    name, instance_map = canary_of(group), map_instances(observed.members or (), group)
    if MemberKind.ZOOKEEPER in instance_map.kinds_of(name):
        text = f"Group {group.name}: {name} is the old version again before all have stopped: something else starts it."
        raise CutoverFailedError(Reason("K91", text))
    if is_kafka_used(observed) and (instance_map.kinds_of(name) or state.asked(name, STOPPED) is None):
        return _stop_canary(state, at, group, "the canary", came_back=False)
    reasons = (*unknown_member_reasons(observed, group), *_unstable_reasons(observed, group))
    reasons = (*reasons, *unusable_offset_reasons(observed, Store.KAFKA))
    if not reasons:
        return None
    if state.is_late(at, group):
        raise CutoverFailedError(*reasons)
    return CutoverTurn(Wait(reasons), state)


def unread_canary_reasons(observed: GroupSeen, note: CutoverNote) -> tuple[Reason, ...]:
    """K30 in a rollback if it is unknown what a canary left in Kafka: the note must stay, or its offsets would be taken for the group's."""
    if note.canary is CanaryPhase.NONE or note.copied or observed.committed is not None:
        return ()
    return (Reason("K30", f"Group {observed.name}: the offsets that its canary left in Kafka could not be read."),)


def plan_canary_clean_up(observed: GroupSeen, note: CutoverNote) -> CopyPlan | None:
    """In a rollback: what sets offsets that a canary left in Kafka back to ZooKeeper's; None: nothing.

    Without it the next cutover would be refused (K64), and the next rollback would take them for the group's.
    """
    if note.canary is CanaryPhase.NONE or note.copied or observed.committed is None or is_kafka_used(observed):
        return None
    zookeeper = observed.zookeeper_offsets
    ahead = sorted(partitions_with_larger_offset(observed.committed, zookeeper) & note.partitions)
    writes = tuple(OffsetWrite(partition, zookeeper[partition], observed.committed[partition]) for partition in ahead)
    return CopyPlan(observed.name, Store.KAFKA, writes) if writes else None
