"""Decides a group's cutover: all instances stop, offsets are copied to Kafka, the new version starts; and how it is rolled back.

For applications that can't be migrating consumers (JVM programs, MirrorMaker 1, other languages). The path is one line::

    all ZooKeeper -> stopping -> no member -> offsets are equal in both stores -> new version -> every partition makes progress

With `side_by_side` one instance runs the new version first, beside the others (`core.groups.cutover_canary`).

What no observation shows is in the group's note (`core.member.cutover_note`). Any failure turns the cutover back: the new version stops,
what only Kafka has is copied back, the old version starts. Offsets that Kafka got before they were copied never reach ZooKeeper: a
version that started too early may have started anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Cause, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, GroupWay
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups import move
from airflow_provider_kmigrate.core.groups.cutover_canary import (
    CANARY,
    canary_of,
    decide_canary,
    decide_canary_end,
    plan_canary_clean_up,
    unread_canary_reasons,
)
from airflow_provider_kmigrate.core.groups.cutover_state import (
    SHARE,
    STOPPED,
    CanaryWatch,
    CutoverFailedError,
    CutoverState,
    CutoverTurn,
    InstanceRequest,
    is_kafka_used,
    list_zookeeper_members,
    raise_if_other_topics,
    raise_if_refused,
)
from airflow_provider_kmigrate.core.groups.members import (
    InstanceMap,
    flaw_reasons,
    format_partitions,
    instability_reasons,
    map_instances,
    no_member_reasons,
    unknown_member_reasons,
    unread_reasons,
)
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.groups.offsets import (
    CopyPlan,
    OffsetWrite,
    partitions_with_larger_offset,
    pending_reset_reasons,
    plan_copy,
    plan_raising_writes,
    unusable_offset_reasons,
)
from airflow_provider_kmigrate.core.member.cutover_note import CanaryPhase, CutoverNote, UnreadableNote
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup, MemberKind, Store
from airflow_provider_kmigrate.core.shared.text import count_of, summarize

COPIED, MOVED, ROLLED_BACK = "copied", "moved", "rolled back"  # what the note records

_COMMITS: Final = 3  # commits of unregistered clients after which it is certain that one goes on
_SETTLE: Final = 10.0  # seconds in which a new version that has joined may still be sharing out its partitions
_STOP_TRIES: Final = 2  # how often a version that may still start is asked to stop
_STOP_AGAIN: Final = 5.0  # seconds between
_OBSERVED: Final = 3.0  # seconds that observations, copying and reading back take beside that
_NOT_ASKED: Final = KafkaGroup("Dead")


def decide_cutover(state: CutoverState, observed: GroupSeen | None, at: float, group: GroupSpec) -> CutoverTurn:
    """Decides the next move of a cutover from one observation at `at`, which `state` does not have yet.

    Acts: "stop instances", "copy offsets", "start instances", "note" (about `MOVED`), "roll back" (with `failed`: note it, and decide by
    `decide_cutover_rollback` from then on).
    """
    state = state.add(observed, at, group)
    note = _read_note(observed)
    if isinstance(note, UnreadableNote):
        return CutoverTurn(Refuse((_unreadable_note_reason(group, note),)), state)
    try:
        return _decide_forward(state, observed, at, group, note)
    except CutoverFailedError as failure:
        text = f"Group {group.name} is rolled back: {' '.join(reason.text for reason in failure.reasons)}"
        return CutoverTurn(Act(Verb.ROLL_BACK, text, "the cutover"), state, failed=failure.reasons)


def _read_note(observed: GroupSeen | None) -> CutoverNote | UnreadableNote | None:
    return observed.zk.cutover if observed is not None and observed.zk is not None else None


def _unreadable_note_reason(group: GroupSpec, note: UnreadableNote) -> Reason:
    return Reason("K94", f"/consumers/{group.name}/migration/cutover cannot be read: {note.content!r}.")


def _decide_forward(
    state: CutoverState, observed: GroupSeen | None, at: float, group: GroupSpec, note: CutoverNote | None
) -> CutoverTurn:
    missing = unread_reasons(observed, group.name, ends=True)
    if missing or observed is None or observed.zk is None or observed.kafka is None:
        unread_s = 0.0 if state.unread_at is None else at - state.unread_at
        if note is not None and not note.moved_ms and unread_s >= SHARE * group.switch_timeout:
            raise CutoverFailedError(*missing)
        return CutoverTurn(Wait(missing), state)
    if note is None:
        return _decide_begin(state, observed, at, group)
    if turn := _decide_canary(state, observed, at, group, note):
        return turn
    if note.moved_ms:
        return CutoverTurn(_decide_moved(observed, group, note), state)
    return _decide_under_way(state, observed, at, group, note)


def _decide_canary(
    state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec, note: CutoverNote
) -> CutoverTurn | None:
    """The turn while there is a canary; None: there is none, or none any more."""
    if note.canary is CanaryPhase.RUNS:
        return decide_canary(state, observed, at, group, note)
    if note.canary is CanaryPhase.PASSED:
        text = f"Group {group.name}: its canary has ended; {count_of(len(group.instances), 'instance stops', 'instances stop')}."
        return decide_canary_end(state, observed, at, group) or _stop(state, group, text)
    return None


def _decide_under_way(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec, note: CutoverNote) -> CutoverTurn:
    """All instances stop, or have stopped."""
    in_zookeeper, in_kafka = list_zookeeper_members(observed), is_kafka_used(observed)
    if in_zookeeper and in_kafka:
        both = f"Group {group.name} has {summarize(in_zookeeper)} in ZooKeeper while its new version runs."
        raise CutoverFailedError(Reason("K91", both))
    if in_zookeeper and note.copied:
        started = f"Group {group.name}: {summarize(in_zookeeper)} is a ZooKeeper consumer after the new version was started."
        raise CutoverFailedError(Reason("K91", started))
    if in_zookeeper:
        return _decide_stop(state, observed, at, group)
    if in_kafka:
        return _decide_joined(state, observed, at, group, note)
    return _decide_between(state, observed, at, group, note)


# Before the stop.


def _decide_begin(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec) -> CutoverTurn:
    """Nothing was done yet: refuses or waits while the application still runs, else stops all of it."""
    if move.has_only_kafka_consumers(observed, group):
        return CutoverTurn(Done(f"Every instance of group {group.name} is a Kafka consumer already."), state)
    if reasons := no_member_reasons(observed, group.name):  # no application is started that its team stopped
        return CutoverTurn(Wait(reasons), state)
    refused = (
        *flaw_reasons(observed),
        *unknown_member_reasons(observed, group),
        *_other_kind_reasons(observed, group),
        *pending_reset_reasons(observed),
        *unusable_offset_reasons(observed, Store.KAFKA),
        *_leftover_reasons(observed, group),
    )
    if refused:
        return CutoverTurn(Refuse(refused), state)
    return _await_ready(state, observed, at, group) or _begin(state, observed, group)


def _await_ready(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec) -> CutoverTurn | None:
    """What must be there before anything stops: an offset of each partition, a stable group. None: it is."""
    if unknown := _unknown_start_reasons(observed, group):
        late = state.started_at is not None and at - state.started_at >= group.commit_within
        return CutoverTurn(Refuse(unknown) if late else Wait(unknown), state)
    if wait_reasons := instability_reasons(observed, group):
        return CutoverTurn(Wait(wait_reasons), state)
    return None


def _begin(state: CutoverState, observed: GroupSeen, group: GroupSpec) -> CutoverTurn:
    """The first stop: of all, or of the canary."""
    if group.side_by_side:
        name = canary_of(group)
        text = f"Group {group.name}: {name} stops, and runs as the new version beside the others."
        fresh = replace(state, canary=CanaryWatch())  # what is known of a canary is of an earlier cutover
        return CutoverTurn(Act(Verb.STOP_INSTANCES, text, CANARY), fresh, (name,), STOPPED)
    text = f"Group {group.name}: {count_of(len(group.instances), 'instance stops', 'instances stop')}; {move.describe_position(observed)}."
    return _stop(state, group, text)


def _stop(state: CutoverState, group: GroupSpec, text: str) -> CutoverTurn:
    names = tuple(instance.name for instance in group.instances)
    return CutoverTurn(Act(Verb.STOP_INSTANCES, text), state, names, STOPPED)


def _other_kind_reasons(observed: GroupSeen, group: GroupSpec) -> Iterator[Reason]:
    """A group that is not only of ZooKeeper consumers: a cutover knows nothing between the two versions."""
    for kind, code, advice in (
        (MemberKind.MIGRATING, "K58", "Roll them back first, or write `way: migrating`."),
        (MemberKind.KAFKA, "K38", "Stop them: the cutover starts the new version itself."),
    ):
        if members := observed.members_of_kind(kind):
            names = summarize(member.name for member in members)
            yield Reason(code, f"Group {group.name} leaves ZooKeeper by a cutover, and has {kind} consumers: {names}. {advice}")


def _leftover_reasons(observed: GroupSeen, group: GroupSpec) -> Iterator[Reason]:
    """Kafka's offsets that are ahead of the group: the new version would skip records."""
    read = observed.zk.partitions if observed.zk else frozenset()
    if ahead := partitions_with_larger_offset(observed.committed or {}, observed.zookeeper_offsets) & read:
        text = f"Group {group.name} reads from zookeeper, and kafka's leftover offsets of {format_partitions(ahead)} are ahead."
        yield Reason("K64", f"{text} Left over: run groups copy-offsets --to kafka --reset --group {group.name}.")


def find_empty_partitions(observed: GroupSeen) -> frozenset[TopicPartition]:
    """The partitions that the group reads, that hold no record, and of which it has no offset in ZooKeeper: their first record is at 0."""
    ends, read = observed.ends or {}, observed.zk.partitions if observed.zk else frozenset()
    return frozenset(partition for partition in read - observed.zookeeper_offsets.keys() if ends.get(partition) == 0)


def _unknown_start_reasons(observed: GroupSeen, group: GroupSpec) -> tuple[Reason, ...]:
    """Partitions with records and without an offset: auto.offset.reset would decide where the new version begins."""
    read = observed.zk.partitions if observed.zk else frozenset()
    if unknown := sorted(read - observed.zookeeper_offsets.keys() - find_empty_partitions(observed)):
        return (Reason("K42", f"Group {group.name} reads {format_partitions(unknown)} and has committed no offset there."),)
    return ()


# Between the stop and the start.


def _decide_stop(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec) -> CutoverTurn:
    """A member is registered in ZooKeeper after the stop began."""
    instance_map = map_instances(observed.members or (), group)
    present = [name for name, members in instance_map.instances.items() if members]
    if unknown := unknown_member_reasons(observed, group):
        raise CutoverFailedError(*unknown)
    if returned := [name for name in present if name in state.stopped]:
        text = f"Group {group.name}: {summarize(returned)} was stopped and is a member again: something else starts it."
        raise CutoverFailedError(Reason("K91", text))
    raise_if_refused(state, group, present, STOPPED)
    if any(state.asked(name, STOPPED) is None for name in present):
        return _stop(state, group, f"Group {group.name}: {summarize(present)} must stop, as all others.")
    text = f"Group {group.name}: {summarize(present)} was asked to stop and is still a member."
    if state.is_late(at, group):
        raise CutoverFailedError(Reason("K91", text))
    return CutoverTurn(Wait((Reason("K91", text),)), state)


def _decide_between(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec, note: CutoverNote) -> CutoverTurn:
    """No member on either side: proves that, copies, and starts the new version once both stores hold the same."""
    names = tuple(instance.name for instance in group.instances)
    if any(state.asked(name, MemberKind.KAFKA) for name in names):
        return _await_start(state, at, group, names)
    if not state.quiet.holds(at, group.quiet):
        return CutoverTurn(_decide_quiet(state, observed, at, group), state)
    copy_plan = _plan_copy(observed, group, note)
    if copy_plan.writes:
        expected = {write.where: write.offset for write in copy_plan.writes}
        kafka_offsets = dict(observed.committed or {}) | expected
        zookeeper_offsets = dict(observed.zk.offsets) if observed.zk else {}
        state = replace(state, quiet=replace(state.quiet, offsets=(zookeeper_offsets, kafka_offsets)))
        text = f"Group {group.name} has had no member for {at - state.quiet.since:.0f} s: {count_of(len(copy_plan.writes), 'offset is', 'offsets are')} copied."
        return CutoverTurn(Act(Verb.COPY_OFFSETS, text), state, writes=copy_plan)
    text = f"Group {group.name}: both stores hold the same {count_of(len(note.partitions), 'offset')}, and there is no member."
    return CutoverTurn(
        Act(Verb.START_INSTANCES, f"{text} The new version starts.", MemberKind.KAFKA), state, names, MemberKind.KAFKA
    )


def _decide_quiet(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec) -> Decision:
    owners = observed.zk.owners if observed.zk else {}
    late = state.is_late(at, group)
    if state.quiet.changes >= _COMMITS or (late and state.quiet.changes):
        raise CutoverFailedError(
            Reason("K92", f"Group {group.name} has no member, and its offsets move: {_describe_newest(observed)}.")
        )
    if late and owners:
        raise CutoverFailedError(Reason("K91", f"Group {group.name}: owners were left behind: {format_partitions(owners)}."))
    if owners:
        return Wait((Reason("K52", f"Group {group.name}: {format_partitions(owners)} still have owners without a member."),))
    text = f"Group {group.name}: no member for {at - state.quiet.since:.0f} of {group.quiet:.0f} s."
    return Wait((Reason("T01", text),))


def _describe_newest(observed: GroupSeen) -> str:
    """The partition whose offset in ZooKeeper was written last."""
    stored = observed.zk.offsets if observed.zk else {}
    newest = max(stored, key=lambda partition: stored[partition].changed_at, default=None)
    return "unknown" if newest is None else f"{newest.name} was written last in ZooKeeper, at {stored[newest].offset}"


def _plan_copy(observed: GroupSeen, group: GroupSpec, note: CutoverNote) -> CopyPlan:
    """What is missing in Kafka's store, with 0 where the group had no offset before the first record; fails if a record would be skipped."""
    of_canary = note.canary is not CanaryPhase.NONE  # what Kafka has is the canary's, and was processed beside the old version
    copy_plan = plan_copy(observed, Store.KAFKA, reset=of_canary)
    if isinstance(copy_plan, Refuse):
        raise CutoverFailedError(*copy_plan.reasons)
    if ahead := note.partitions.intersection(copy_plan.lower):
        raise CutoverFailedError(
            Reason("K64", f"Group {group.name}: kafka's offsets of {format_partitions(ahead)} are ahead of zookeeper's.")
        )
    ends, offsets = observed.ends or {}, observed.zookeeper_offsets if of_canary else observed.positions
    unread = _partitions_from_zero(observed, note)
    without = sorted((note.partitions | unread) - offsets.keys())
    if unknown := [partition for partition in without if partition not in unread and ends.get(partition, 0) != 0]:
        raise CutoverFailedError(Reason("K42", f"Group {group.name} has no offset of {format_partitions(unknown)}."))
    if gone := note.partitions.intersection(copy_plan.gone):
        raise CutoverFailedError(
            Reason("K42", f"Group {group.name} reads {format_partitions(gone)}, which have no log any more.")
        )
    return replace(copy_plan, writes=(*copy_plan.writes, *(OffsetWrite(partition, 0, None) for partition in without)))


def _partitions_from_zero(observed: GroupSeen, note: CutoverNote) -> frozenset[TopicPartition]:
    """Where the group begins at offset 0 if it has none: partitions that were empty, or did not exist, when the cutover began.

    Records that came since would be skipped by `auto.offset.reset` of either version.
    """
    existing = observed.zk.cutover_partitions if observed.zk else frozenset()
    return note.empty | (existing - note.partitions)


def _await_start(state: CutoverState, at: float, group: GroupSpec, names: Iterable[str]) -> CutoverTurn:
    """The new version was started and has not joined."""
    raise_if_refused(state, group, names, MemberKind.KAFKA)
    text = f"Group {group.name}: no member of its new version has joined."
    if state.is_late(at, group):
        raise CutoverFailedError(Reason("K93", text))
    return CutoverTurn(Wait((Reason("K93", text),)), state)


# After the start.


def _decide_joined(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec, note: CutoverNote) -> CutoverTurn:
    """Members are in the Kafka group and none in ZooKeeper: waits for all of them, then for every partition."""
    kafka_members = observed.members_of_kind(MemberKind.KAFKA)
    if not note.copied:
        text = f"Group {group.name}: {summarize(member.name for member in kafka_members)} joined before offsets were copied."
        raise CutoverFailedError(Reason("K93", text))
    instance_map = map_instances(observed.members or (), group)
    if absent := [name for name, members in instance_map.instances.items() if not members]:
        return _decide_absent(state, at, group, instance_map, absent)
    if reasons := instability_reasons(observed, group):
        if state.is_late(at, group):
            raise CutoverFailedError(*reasons)
        return CutoverTurn(Wait(reasons), replace(state, joined_at=None))
    if state.joined_at is None:
        state = replace(state, joined_at=at, joined_ends=dict(observed.ends or {}))
    return _decide_progress(state, observed, at, group, note)


def _decide_absent(state: CutoverState, at: float, group: GroupSpec, instance_map: InstanceMap, absent: list[str]) -> CutoverTurn:
    state = replace(state, joined_at=None)
    raise_if_refused(state, group, absent, MemberKind.KAFKA)
    if unasked := tuple(name for name in absent if state.asked(name, MemberKind.KAFKA) is None):
        text = f"{', '.join(unasked)} of group {group.name} must run as the new version, as all others."
        return CutoverTurn(Act(Verb.START_INSTANCES, text, MemberKind.KAFKA), state, unasked, MemberKind.KAFKA)
    strangers = summarize(member.name for member in instance_map.unmapped)
    more = f" {strangers} joined, which the file does not know." if strangers else ""
    text = f"Group {group.name}: {summarize(absent)} has not joined as the new version.{more}"
    if state.is_late(at, group):
        raise CutoverFailedError(Reason("K93", text))
    return CutoverTurn(Wait((Reason("K93", text),)), state)


def _decide_progress(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec, note: CutoverNote) -> CutoverTurn:
    """Every instance runs the new version: it must read the same partitions, and make progress in each."""
    joined_s = at - (at if state.joined_at is None else state.joined_at)
    held = observed.partitions_held_by(MemberKind.KAFKA)
    raise_if_other_topics(group, held, note)
    if unheld := note.partitions - held:
        text = f"Group {group.name}: its new version does not read {format_partitions(unheld)}."
        if joined_s >= _SETTLE:
            raise CutoverFailedError(Reason("K93", text))
        return CutoverTurn(Wait((Reason("K93", text),)), state)
    idle = [partition for partition in sorted(note.partitions) if not _makes_progress(observed, partition)]
    if idle and joined_s >= group.commit_within:
        idle = [partition for partition in idle if not _ends_with_marker(state, observed, partition)]
        if idle:
            text = f"Group {group.name}: its new version has committed nothing for {joined_s:.0f} s: {format_partitions(idle)}."
            raise CutoverFailedError(Reason("V30", text, cause=Cause.GROUP_UNHEALTHY))
    if idle:
        return CutoverTurn(Wait((Reason("T01", f"Group {group.name}: {format_partitions(idle)} without a commit yet."),)), state)
    text = f"Each of the {count_of(len(note.partitions), 'partition')} of group {group.name} makes progress in its new version."
    return CutoverTurn(Act(Verb.NOTE, text, MOVED), state)


def _makes_progress(observed: GroupSeen, partition: TopicPartition) -> bool:
    """True if its offset is past the one that was copied, or nothing is left to read. ZooKeeper still holds what was copied."""
    committed, end = (observed.committed or {}).get(partition), (observed.ends or {}).get(partition)
    if committed is None or end is None:
        return False
    return committed >= end or committed > observed.zookeeper_offsets.get(partition, 0)


def _ends_with_marker(state: CutoverState, observed: GroupSeen, partition: TopicPartition) -> bool:
    """True if one offset is left in a log that has not grown: it is a transaction's marker, which no consumer commits."""
    committed, end = (observed.committed or {}).get(partition), (observed.ends or {}).get(partition)
    return committed is not None and end == committed + 1 == state.joined_ends.get(partition)


def _decide_moved(observed: GroupSeen, group: GroupSpec, note: CutoverNote) -> Decision:
    if reasons := returned_reasons(observed, group):
        return Refuse(reasons)
    text = f"Group {group.name} reads from Kafka. It was stopped for {note.pause_s:.1f} s, from the first stop to every partition's progress."
    return move.done_when_stable(observed, group, text)


def returned_reasons(observed: GroupSeen, group: GroupSpec) -> tuple[Reason, ...]:
    """V30 if ZooKeeper consumers are back after a cutover, or commit there: they read what the new version reads."""
    note = _read_note(observed)
    if group.way is not GroupWay.CUTOVER or not isinstance(note, CutoverNote) or not note.moved_ms or observed.zk is None:
        return ()
    late = [partition for partition, stored in observed.zk.offsets.items() if stored.changed_at > note.written_at]
    text = f"Group {group.name} has moved to Kafka, and in ZooKeeper"
    signs = [f"{summarize(members)} is a member again" for members in [list_zookeeper_members(observed)] if members]
    signs += [f"offsets of {format_partitions(late)} were written since"] if late else []
    return (Reason("V30", f"{text} {' and '.join(signs)}.", cause=Cause.GROUP_UNHEALTHY),) if signs else ()


# Back.


def decide_cutover_rollback(state: CutoverState, observed: GroupSeen | None, at: float, group: GroupSpec) -> CutoverTurn:
    """Decides the next move of the rollback, from wherever the group is. Acts: as `decide_cutover`'s, "note" about `ROLLED_BACK`.

    While offsets were not copied, ZooKeeper alone decides: the old version starts even if Kafka does not answer. Beside a canary the old
    version runs: what waits for Kafka then is the canary's instance alone, and the note, until Kafka has none of its offsets.
    """
    state = state.add(observed, at, group)
    note = _read_note(observed)
    if isinstance(note, UnreadableNote):
        return CutoverTurn(Refuse((_unreadable_note_reason(group, note),)), state)
    only_zookeeper = note is not None and not note.copied
    may_run = note is not None and note.canary in {CanaryPhase.RUNS, CanaryPhase.PASSED}  # the canary, which must stop first
    missing = unread_reasons(observed, group.name, offsets=not only_zookeeper, kafka=may_run or not only_zookeeper)
    if missing or observed is None or observed.zk is None:
        return CutoverTurn(Wait(missing), state)
    if migrating := sorted(observed.zk.progress):
        text = f"Group {group.name} has migrating consumers: {summarize(migrating)}. Its way is a cutover."
        return CutoverTurn(Refuse((Reason("K58", text),)), state)
    if observed.kafka is not None and is_kafka_used(observed):
        return _stop_new_version(state, observed, at, group)
    if not only_zookeeper and (turn := _copy_back(state, observed, at, group)):
        return turn
    return _start_old_version(state, observed, at, group, note)


def _stop_new_version(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec) -> CutoverTurn:
    instance_map = map_instances(observed.members or (), group)
    running = tuple(name for name in instance_map.instances if MemberKind.KAFKA in instance_map.kinds_of(name))
    due = tuple(name for name in running if name in state.stopped or state.is_due(name, STOPPED, at))
    if due:
        text = f"{', '.join(due)} of group {group.name} must stop: the old version starts when no member reads from Kafka."
        if returned := [name for name in due if name in state.stopped]:
            text += f" {summarize(returned)} was stopped and is a member again: something else starts it."
        return CutoverTurn(Act(Verb.STOP_INSTANCES, text), state, due, STOPPED)
    strangers = [member.name for member in instance_map.unmapped if member.kind is MemberKind.KAFKA]
    names = summarize([*running, *strangers]) or "a member that joins or leaves"
    return CutoverTurn(Wait((Reason("K91", f"Group {group.name}: {names} is still in the Kafka group."),)), state)


def _copy_back(state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec) -> CutoverTurn | None:
    """Raises ZooKeeper's offsets to Kafka's once these stand still; None if there is nothing to copy, or nothing left."""
    ends = observed.ends or {}
    kafka_offsets = {
        partition: offset for partition, offset in (observed.committed or {}).items() if offset <= ends.get(partition, offset)
    }
    writes = plan_raising_writes(kafka_offsets, observed.zookeeper_offsets)
    if not writes:
        return None
    if not state.quiet_in_kafka.holds(at, group.quiet):
        text = f"Group {group.name}: its offsets in Kafka have stood still for {at - state.quiet_in_kafka.since:.0f} of {group.quiet:.0f} s."
        return CutoverTurn(Wait((Reason("T01", text),)), state)
    text = f"Group {group.name}: {count_of(len(writes), 'offset in ZooKeeper is', 'offsets in ZooKeeper are')} behind Kafka's."
    return CutoverTurn(Act(Verb.COPY_OFFSETS, text), state, writes=CopyPlan(group.name, Store.ZOOKEEPER, writes))


def _start_old_version(
    state: CutoverState, observed: GroupSeen, at: float, group: GroupSpec, note: CutoverNote | None
) -> CutoverTurn:
    kind = MemberKind.ZOOKEEPER
    observed = replace(observed, kafka=_NOT_ASKED, committed=None) if observed.kafka is None else observed
    instance_map = map_instances(observed.members or (), group)
    absent = tuple(name for name, found in instance_map.instances.items() if not found)
    due = tuple(name for name in absent if state.is_due(name, kind, at))
    if turn := _stop_late_starters(state, at, group, note, due):
        return turn
    if due and note is not None and (writes := _plan_first_offsets(observed, note)):
        text = f"Group {group.name}: {count_of(len(writes), 'partition')} got their first records during the cutover: the old version begins there at 0."
        return CutoverTurn(Act(Verb.COPY_OFFSETS, text), state, writes=CopyPlan(group.name, Store.ZOOKEEPER, writes))
    if due:
        text = f"{', '.join(due)} of group {group.name} must run as the old version again."
        return CutoverTurn(Act(Verb.START_INSTANCES, text, kind), state, due, kind)
    if absent:
        errors = " ".join(request.error for name in absent if (request := state.asked(name, kind)))
        text = f"Group {group.name}: {summarize(absent)} is not there yet as the old version. {errors}".strip()
        return CutoverTurn(Wait((Reason("K55", text),)), state)
    if reasons := instability_reasons(observed, group):
        return CutoverTurn(Wait(reasons), state)
    done = Done(f"Group {group.name} is rolled back: {move.describe_position(observed)}.")
    return CutoverTurn(done, state) if note is None else _end_rollback(state, observed, group, note)


def _stop_late_starters(
    state: CutoverState, at: float, group: GroupSpec, note: CutoverNote | None, due: Iterable[str]
) -> CutoverTurn | None:
    """Stops instances that may still start as the new version: one that joins late would read beside the old version, unobserved.

    A stop that failed, or whose effect is not known, is tried once more; after that the old version starts all the same.
    """
    may_start = {instance.name for instance in group.instances}
    if note is not None and not note.copied:
        may_start = {canary_of(group)} if note.canary in {CanaryPhase.RUNS, CanaryPhase.PASSED} else set()
    unstopped = tuple(
        name
        for name in due
        if name in may_start and not state.asked(name, MemberKind.ZOOKEEPER) and not _is_stop_over(state.asked(name, STOPPED))
    )
    if not unstopped:
        return None
    text = f"{', '.join(unstopped)} of group {group.name} must stop: it may still start as the new version, beside the old one."
    if any((asked := state.asked(name, STOPPED)) and at - asked.at < _STOP_AGAIN for name in unstopped):
        return CutoverTurn(Wait((Reason("K91", text),)), state)
    return CutoverTurn(Act(Verb.STOP_INSTANCES, text), state, unstopped, STOPPED)


def _is_stop_over(asked: InstanceRequest | None) -> bool:
    return asked is not None and (asked.is_done or asked.tries >= _STOP_TRIES)


def _plan_first_offsets(observed: GroupSeen, note: CutoverNote) -> tuple[OffsetWrite, ...]:
    """Offset 0 in ZooKeeper where the group never had one and the first records came after the cutover began."""
    stored = observed.zk.offsets if observed.zk else {}
    return tuple(OffsetWrite(partition, 0, None) for partition in sorted(_partitions_from_zero(observed, note) - stored.keys()))


def _end_rollback(state: CutoverState, observed: GroupSeen, group: GroupSpec, note: CutoverNote) -> CutoverTurn:
    """The old version runs: the note goes, once Kafka holds nothing of a canary that is ahead."""
    if left_reasons := unread_canary_reasons(observed, note):
        return CutoverTurn(Wait(left_reasons), state)
    if writes := plan_canary_clean_up(observed, note):
        text = f"Group {group.name}: {count_of(len(writes.writes), 'offset that its canary left in Kafka is', 'offsets that its canary left in Kafka are')} ahead of ZooKeeper's."
        return CutoverTurn(Act(Verb.COPY_OFFSETS, text), state, writes=writes)
    return CutoverTurn(Act(Verb.NOTE, f"Group {group.name} runs as its old version again.", ROLLED_BACK), state)


# In words.


def describe_plan(observed: GroupSeen, group: GroupSpec, goal: Goal | None = None) -> str:
    """Where a group of any way stands and what remains to be done, as a sentence, from one observation; `goal` None: migration."""
    if group.way is not GroupWay.CUTOVER:
        return move.describe_plan(observed, group, goal)
    steps = list(_describe_migration(observed, group) if goal is None else _describe_rollback(observed, group))
    hold_text = " ".join(map(str, move.hold_reasons(observed))) if goal is None and steps else ""
    plan_text = f"Then {', '.join(steps)}" if steps else "Nothing to do"
    return f"{move.describe_position(observed)}. {plan_text}. {hold_text}".strip()


def _describe_migration(observed: GroupSeen, group: GroupSpec) -> Iterator[str]:
    names = ", ".join(instance.name for instance in group.instances)
    if not move.has_only_kafka_consumers(observed, group):
        if group.side_by_side:
            yield f"{canary_of(group)} stops and runs as a Kafka consumer beside the others for {group.bake:.0f} s, and processes their records a second time"
        yield f"{names} stop at once, {count_of(len(observed.zookeeper_offsets), 'offset is', 'offsets are')} copied to Kafka, and {names} start as Kafka consumers"
        yield f"a pause of their own stop and start, and of {group.quiet + _OBSERVED:.0f} s in which there may be no member"
    if observed.zk is not None and observed.zk.cutover is not None:
        yield "the leftovers in ZooKeeper are deleted"


def _describe_rollback(observed: GroupSeen, group: GroupSpec) -> Iterator[str]:
    instance_map = map_instances(observed.members or (), group)
    if kafka := [name for name in instance_map.instances if MemberKind.KAFKA in instance_map.kinds_of(name)]:
        yield f"{', '.join(kafka)} stop at once, and what only Kafka has is copied back"
    if other := [name for name in instance_map.instances if MemberKind.ZOOKEEPER not in instance_map.kinds_of(name)]:
        yield f"{', '.join(other)} start as ZooKeeper consumers"


def unreachable_goal_reasons(group: GroupSpec, goal: Goal) -> tuple[Reason, ...]:
    """K58 for a goal that needs migrating consumers, which a cutover has not; empty if it can be reached."""
    if goal is Goal.ZOOKEEPER_CONSUMERS:
        return ()
    text = f"Group {group.name} left ZooKeeper by a cutover: it can only be rolled back to {Goal.ZOOKEEPER_CONSUMERS}, not to {goal}."
    return (Reason("K58", text),)
