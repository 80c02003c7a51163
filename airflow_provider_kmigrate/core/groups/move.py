"""Decides the next move of a consumer group's migration off ZooKeeper's coordination (KIP-125) and of its rollback.

The path is one line, and a group may stand anywhere on it::

    all ZooKeeper -- ZooKeeper and migrating -- all migrating -- mode kafka -- migrating and Kafka -- all Kafka
                     (mode zookeeper)                            (mode kafka)

Every decision is about one instance or about the mode. ZooKeeper consumers and Kafka consumers must never meet: the former know
no Kafka group, the latter no owner znode, and both would read every partition.

A group that was rolled back is migrated again only when the operator says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Reason, ZkController, ZkView
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, GroupSpec
from airflow_provider_kmigrate.core.groups.members import (
    ABSENT,
    GroupObservations,
    InstanceMap,
    flaw_reasons,
    instability_reasons,
    map_instances,
    missing_instance_reasons,
    no_member_reasons,
    unknown_member_reasons,
    unread_reasons,
)
from airflow_provider_kmigrate.core.groups.offsets import check_start_offsets, pending_reset_reasons
from airflow_provider_kmigrate.core.member.cutover_note import CutoverNote
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, MemberKind, ZkGroup
from airflow_provider_kmigrate.core.member.registration import GroupHold, Mode

_KIND_WORDS: Final = {
    MemberKind.ZOOKEEPER: "a ZooKeeper consumer",
    MemberKind.MIGRATING: "a migrating consumer",
    MemberKind.KAFKA: "a Kafka consumer",
}


class Goal(StrEnum):
    """The state that a rollback takes a group to."""

    ZOOKEEPER_CONSUMERS = "zookeeper_consumers"  # every instance a ZooKeeper consumer, as before
    ZOOKEEPER_MODE = "zookeeper_mode"  # every instance migrating, ZooKeeper coordinates
    KAFKA_MODE = "kafka_mode"  # every instance migrating, Kafka coordinates


def decide_switch(
    observations: GroupObservations,
    group: GroupSpec,
    instance: str,
    target: MemberKind,
    *,
    restart_requested: bool = False,
    hurry: bool = False,
    former: Collection[str] = (),
) -> Decision:
    """Decides the switch of one instance to another kind of member.

    `restart_requested`: this life of the step has already requested the restart, and `former` are the lives that Kafka knew then: a killed
    member keeps its place there for a session and looks like a Kafka consumer. `hurry`: do not wait for the group to become
    stable, since its instability may be the reason for the switch.

    Acts: "switch" (restart the instance), "copy offsets" (ZooKeeper's, if Kafka's are ahead: before it becomes a ZooKeeper
    consumer).
    """
    observed = observations.now
    missing = unread_reasons(observed, group.name)
    if missing or observed is None:
        return Wait(missing)
    members = map_instances(observed.members or (), group).instances[instance]
    kinds = frozenset(member.kind for member in members if target is not MemberKind.KAFKA or member.incarnation not in former)
    if kinds == {target}:
        done_text = f"{instance} of group {group.name} is {_KIND_WORDS[target]}."
        return Done(done_text) if hurry else done_when_stable(observed, group, done_text)
    if restart_requested:
        return Wait((_unfinished_switch_reason(group, instance, target, kinds),))
    obstacle = _check_forbidden(
        observations, group, lambda observation: _switch_forbidden_reasons(observation, group, instance, target)
    )
    return obstacle or _decide_switch_now(observed, observations, group, instance, target, hurry=hurry)


def _check_forbidden(
    observations: GroupObservations, group: GroupSpec, forbids: Callable[[GroupSeen], tuple[Reason, ...]]
) -> Decision | None:
    """Refuse what is forbidden in any case; wait if a dead member that Kafka still lists may be the cause, until that is known."""
    if observations.now is None or not (reasons := forbids(observations.now)):
        return None
    living = observations.without_expiring_members(group)
    if living is None or forbids(living):
        return Refuse(reasons)
    suspect_members = ", ".join(
        member.name
        for member in observations.now.members_of_kind(MemberKind.KAFKA)
        if member not in living.members_of_kind(MemberKind.KAFKA)
    )
    text = f"Group {group.name}: {suspect_members} is in the Kafka group like a Kafka consumer, but has the name of a migrating consumer."
    return Wait((Reason("K66", f"{text} If it is alive: {reasons[0].text}"),))


def _switch_forbidden_reasons(observed: GroupSeen, group: GroupSpec, instance: str, target: MemberKind) -> tuple[Reason, ...]:
    strange = unknown_member_reasons(observed, group) if target is not MemberKind.ZOOKEEPER else ()
    return (*flaw_reasons(observed), *strange, *forbidden_kind_reasons(observed, group, instance, target))


def _decide_switch_now(
    observed: GroupSeen, observations: GroupObservations, group: GroupSpec, instance: str, target: MemberKind, *, hurry: bool
) -> Decision:
    """Nothing forbids the switch: decides whether it happens now."""
    kinds = map_instances(observed.members or (), group).kinds_of(instance)
    if not kinds and observations.seconds_missing(instance) < ABSENT:
        return Wait((_unfinished_switch_reason(group, instance, target, kinds),))
    wait_reasons = () if hurry else instability_reasons(observed, group, excused_instances=[instance])
    wait_reasons = wait_reasons or (() if hurry or target is MemberKind.MIGRATING else pending_reset_reasons(observed))
    if wait_reasons:
        return Wait(wait_reasons)
    text = f"{instance} of group {group.name}, now {_format_kinds(kinds)}, becomes {_KIND_WORDS[target]}."
    return check_start_offsets(observations, group, target) or Act(Verb.SWITCH, text)


def forbidden_kind_reasons(observed: GroupSeen, group: GroupSpec, instance: str, target: MemberKind) -> tuple[Reason, ...]:
    """Why the instance must not become that kind while the group is as it is."""
    instance_map, zk = map_instances(observed.members or (), group), observed.zk
    if target is MemberKind.MIGRATING and instance_map.kinds_of(instance) == {MemberKind.KAFKA}:
        return ()  # one Kafka consumer less is always better, and the only way out beside a ZooKeeper consumer
    other_kinds = frozenset(kind for name in instance_map.instances if name != instance for kind in instance_map.kinds_of(name))
    # Unknown members in ZooKeeper share with the ZooKeeper consumers there.
    other_kinds |= {member.kind for member in instance_map.unmapped} & {MemberKind.KAFKA}
    own_kinds = instance_map.kinds_of(instance)
    if {MemberKind.ZOOKEEPER, MemberKind.KAFKA} <= other_kinds | own_kinds | {target}:
        text = f"Group {group.name}: {instance} would become {_KIND_WORDS[target]} while others are {_format_kinds(other_kinds)}."
        return (Reason("K58", text),)
    needs = {MemberKind.ZOOKEEPER: Mode.ZOOKEEPER, MemberKind.KAFKA: Mode.KAFKA}
    kinds_after_switch = other_kinds | {target} | (own_kinds - {MemberKind.KAFKA})
    wrong = [kind for kind in needs if kind in kinds_after_switch and zk is not None and zk.requested_mode is not needs[kind]]
    if not wrong or zk is None:
        return ()
    text = f"Group {group.name}: its mode is {zk.requested_mode}, but members are or would be {_format_kinds(frozenset(wrong))}."
    text += f" Set the mode first (SetModeOperator): {needs[wrong[0]]}."
    return (Reason("K45", text),)


def decide_set_mode(observations: GroupObservations, group: GroupSpec, mode: Mode, *, blind: bool = False) -> Decision:
    """Sets the group's migration/mode, and waits until every member is stable under it. Act: "set mode".

    `blind`: the operator accepts that the members in Kafka could not be read, or that those that may be dead are dead; the
    decision then says nothing about stability.
    """
    observed = observations.now
    missing = unread_reasons(observed, group.name, offsets=False, kafka=not blind)
    if missing or observed is None or observed.zk is None:
        return Wait(missing)
    if is_mode_written(observed, mode):
        return done_when_stable(observed, group, f"Group {group.name} is in {mode} mode, and all its members have settled in it.")
    obstacle = _check_forbidden(observations, group, lambda observation: _mode_forbidden_reasons(observation, group, mode))
    if obstacle and not (blind and isinstance(obstacle, Wait)):
        return obstacle
    to_zookeeper = mode is Mode.ZOOKEEPER
    # with Kafka consumers alone the mode is the first move of a rollback, which may be for one that died
    wait_reasons = (
        instability_reasons(observed, group) if not to_zookeeper and not observed.members_of_kind(MemberKind.KAFKA) else ()
    )
    if wait_reasons:
        return Wait(wait_reasons)
    return Act(Verb.SET_MODE, f"Group {group.name}: mode {_format_mode(observed.zk)} -> {mode}; {describe_position(observed)}.")


def is_mode_written(observed: GroupSeen | None, mode: Mode) -> bool:
    """True if the znode holds the mode, byte for byte; False if it was not read. No znode, or an empty one, means zookeeper."""
    if observed is None or observed.zk is None:
        return False
    return observed.zk.mode_data == str(mode).encode() or (mode is Mode.ZOOKEEPER and not observed.zk.mode_data)


def _format_mode(zk: ZkGroup) -> str:
    return str(zk.requested_mode) if zk.mode_data in (None, b"", str(zk.requested_mode).encode()) else repr(zk.mode_data)


def _mode_forbidden_reasons(observed: GroupSeen, group: GroupSpec, mode: Mode) -> tuple[Reason, ...]:
    """Why the mode must not be set; rollback is allowed for groups with unknown members, too."""
    zookeeper, kafka = (_names_of_kind(observed, kind) for kind in (MemberKind.ZOOKEEPER, MemberKind.KAFKA))
    migrating = observed.members_of_kind(MemberKind.MIGRATING)
    reasons = [] if mode is Mode.ZOOKEEPER else [*flaw_reasons(observed), *unknown_member_reasons(observed, group)]
    if zookeeper and mode is Mode.KAFKA:
        reasons.append(Reason("K58", f"Group {group.name} has members that do not migrate: {zookeeper}."))
    if kafka and (mode is Mode.ZOOKEEPER or migrating or zookeeper):
        reasons.append(Reason("K58", f"Group {group.name} has Kafka consumers: {kafka}."))
    return tuple(reasons)


def next_rollback_move(observations: GroupObservations, group: GroupSpec, goal: Goal) -> tuple[str, MemberKind | Mode] | None:
    """The next rollback move to `goal`: an instance and its new kind, or "" and the mode. None: nothing to do.

    Only what is beyond the goal is undone: a group that never came so far stays as it is.
    """
    observed = observations.now
    if observed is None or observed.zk is None or observed.members is None:
        return None
    instance_map = map_instances(observed.members, group)
    kafka = [name for name in instance_map.instances if MemberKind.KAFKA in instance_map.kinds_of(name)]
    if kafka:
        alone = not observed.members_of_kind(MemberKind.MIGRATING) and not observed.members_of_kind(MemberKind.ZOOKEEPER)
        return ("", Mode.KAFKA) if alone and observed.zk.requested_mode is not Mode.KAFKA else (kafka[-1], MemberKind.MIGRATING)
    if goal is not Goal.KAFKA_MODE and observed.zk.requested_mode is Mode.KAFKA:
        return "", Mode.ZOOKEEPER
    migrating = [name for name in instance_map.instances if MemberKind.MIGRATING in instance_map.kinds_of(name)]
    missing = [name for name in instance_map.instances if not instance_map.kinds_of(name)]
    # a missing instance may return as a Kafka consumer: the last migrating member keeps it out, and no other need wait for it
    if goal is Goal.ZOOKEEPER_CONSUMERS and len(migrating) > bool(missing):
        return migrating[-1], MemberKind.ZOOKEEPER
    if missing:
        as_before = goal is Goal.ZOOKEEPER_CONSUMERS or observed.members_of_kind(MemberKind.ZOOKEEPER)
        return missing[0], MemberKind.ZOOKEEPER if as_before else MemberKind.MIGRATING
    return None


def check_old_version_is_served(zk: ZkView | None, name: str, goal: Goal | None) -> Refuse | Wait | None:
    """K97 while no broker is registered in ZooKeeper: ZooKeeper consumers get no record then, and what reads from Kafka must not be stopped for them.

    None: they would be served, or the goal needs none. A KRaft controller is the last word; else all brokers may be down for a moment.
    """
    if goal is not Goal.ZOOKEEPER_CONSUMERS or zk is None or zk.broker_ids:
        return None
    text = f"Group {name} cannot be rolled back to ZooKeeper consumers: no broker is registered in ZooKeeper, so they would get no record."
    reasons = (Reason("K97", text),)
    return Refuse(reasons) if isinstance(zk.controller, ZkController) and zk.controller.is_kraft else Wait(reasons)


def done_when_stable(observed: GroupSeen, group: GroupSpec, text: str) -> Decision:
    """Done with `text`, once every instance is there and no rebalance is under way."""
    wait_reasons = instability_reasons(observed, group)
    return Wait(wait_reasons) if wait_reasons else Done(text)


def _unfinished_switch_reason(group: GroupSpec, instance: str, target: MemberKind, kinds: frozenset[MemberKind]) -> Reason:
    present_state = f"is still {_format_kinds(kinds)}" if kinds else "is not present yet"
    return Reason("K55", f"{instance} of group {group.name} {present_state}; it must become {_KIND_WORDS[target]}.")


def _names_of_kind(observed: GroupSeen, kind: MemberKind) -> str:
    return ", ".join(member.name for member in observed.members_of_kind(kind)[:8])


def _format_kinds(kinds: frozenset[MemberKind]) -> str:
    return " and ".join(sorted(kinds)) or "absent"


def done_if_beyond(observed: GroupSeen | None, group: GroupSpec, instance: str, target: MemberKind) -> Done | None:
    """During migration: an instance that is already beyond `target` stays as it is."""
    if target is not MemberKind.MIGRATING or not is_already_kafka_consumer(observed, group, instance):
        return None
    return Done(f"{instance} of group {group.name} is a Kafka consumer already.")


def check_switch_order(
    observations: GroupObservations, group: GroupSpec, instance: str, target: MemberKind, *, begun: bool = False
) -> Decision | None:
    """Why the migration must not switch this instance now, by the order of switches; None: it may.

    No instance is started while the whole application is stopped: that may be on purpose, and a group that has left ZooKeeper
    with no leftovers looks like one that never began. Not so if its restart had `begun`: then it was stopped for this. The file's
    first instance is the canary: no other one goes before it.
    """
    no_members = no_member_reasons(observations.now, group.name)
    if observations.now is None or (no_members and not begun):
        return Wait(no_members)
    first = group.instances[0].name
    kinds = map_instances(observations.now.members or (), group).kinds_of(first)
    order = list(MemberKind)
    if first == instance or not kinds or min(map(order.index, kinds)) >= order.index(target):
        return None
    text = f"Group {group.name}: {first} is {_format_kinds(kinds)}, and {instance} would become {_KIND_WORDS[target]} before it."
    return Refuse((Reason("K58", text),))


def done_if_mode_not_needed(observed: GroupSeen | None, group: GroupSpec, mode: Mode) -> Done | None:
    """During migration: a group that no longer needs a mode is not given one again. A rollback may set it."""
    if mode is not Mode.KAFKA or not has_only_kafka_consumers(observed, group):
        return None
    return Done(f"Every instance of group {group.name} is a Kafka consumer already: no mode is needed.")


def is_already_kafka_consumer(observed: GroupSeen | None, group: GroupSpec, instance: str) -> bool:
    """True if an instance that is to become a migrating member is a Kafka consumer already.

    Only if the mode has been Kafka: before that it is a migrating member that died, and that Kafka keeps for its session.
    """
    if (
        observed is None
        or observed.zk is None
        or map_instances(observed.members or (), group).kinds_of(instance) != {MemberKind.KAFKA}
    ):
        return False
    return observed.zk.requested_mode is Mode.KAFKA or has_only_kafka_consumers(observed, group)


def is_instance_absent(observed: GroupSeen | None, group: GroupSpec, instance: str) -> bool:
    """True if no living member of an instance is observed; False if that is unknown."""
    if observed is None or observed.members is None:
        return False
    kinds = map_instances(observed.members, group).kinds_of(instance)
    return not kinds or (kinds == {MemberKind.KAFKA} and not is_already_kafka_consumer(observed, group, instance))


def has_only_kafka_consumers(observed: GroupSeen | None, group: GroupSpec) -> bool:
    """True if every instance is a Kafka consumer and ZooKeeper has no member; False if that is unknown."""
    if unread_reasons(observed, group.name) or observed is None or observed.zk is None or observed.zk.registrations:
        return False
    instance_map = map_instances(observed.members or (), group)
    return all(instance_map.kinds_of(name) == {MemberKind.KAFKA} for name in instance_map.instances)


def has_left_zookeeper(observed: GroupSeen | None, group: GroupSpec) -> bool:
    """True if the group has left ZooKeeper with no leftovers; False if that is unknown.

    If the application is stopped, the offsets decide: Kafka has them, and none in ZooKeeper is ahead. Not so if the members'
    folder still exists: then they may have been copied while its ZooKeeper consumers were stopped, which return.
    """
    if unread_reasons(observed, group.name) or observed is None or observed.zk is None or _has_notes(observed.zk):
        return False
    zookeeper_is_ahead = any(
        offset > (observed.committed or {}).get(partition, offset) for partition, offset in observed.zookeeper_offsets.items()
    )
    return has_only_kafka_consumers(observed, group) or (
        not observed.members and not observed.zk.joined and bool(observed.committed) and not zookeeper_is_ahead
    )


def list_unmoved_groups(view: ClusterView, spec: ClusterSpec) -> list[str]:
    """The groups that must move before the first roll: those that use ZooKeeper, and those of the file that have neither left it nor are in mode kafka.

    Those in `later_groups` need not. A group that was not read has not moved.
    """
    observed = view.groups or {}
    using = set(view.zk.live_groups) if view.zk is not None else set()
    unmoved = {group.name for group in spec.groups if not _may_stay_in_roll(observed.get(group.name), group)}
    return sorted((using | unmoved) - set(spec.later_groups))


def _may_stay_in_roll(observed: GroupSeen | None, group: GroupSpec) -> bool:
    in_kafka_mode = observed is not None and observed.zk is not None and observed.zk.requested_mode is Mode.KAFKA
    return in_kafka_mode or has_left_zookeeper(observed, group)


def _has_notes(zk: ZkGroup) -> bool:
    """True if a migration or a cutover of the group has begun and was not cleaned up."""
    return zk.mode_version >= 0 or zk.cutover is not None


def describe_position(observed: GroupSeen) -> str:
    """The group's position on its path, in a few words."""
    counts = [(kind, len(observed.members_of_kind(kind))) for kind in MemberKind]
    members = ", ".join(f"{count} {kind}" for kind, count in counts if count) or "no member"
    return f"{members}; mode {observed.zk.requested_mode if observed.zk else 'unknown'}"


def decide_clean_up(observed: GroupSeen | None, group: GroupSpec) -> Decision:
    """Removes the leftovers in ZooKeeper of a group that has left it. Act: "clean up"."""
    missing = unread_reasons(observed, group.name)
    if missing or observed is None or observed.zk is None:
        return Wait(missing)
    if unfinished := _unfinished_move_reasons(observed, observed.zk, group):
        return Refuse(unfinished)
    if _has_notes(observed.zk):
        if not has_only_kafka_consumers(observed, group):
            return Wait(no_member_reasons(observed, group.name) or missing_instance_reasons(observed, group))
        return Act(Verb.CLEAN_UP, f"Group {group.name} has left ZooKeeper: {describe_position(observed)}.")
    return Done(f"ZooKeeper holds only the last offsets of group {group.name}.")


def _unfinished_move_reasons(observed: GroupSeen, zk: ZkGroup, group: GroupSpec) -> tuple[Reason, ...]:
    """Why nothing of the group may be deleted in ZooKeeper."""
    if zk.registrations or zk.progress or zk.owners:
        return (Reason("K58", f"Group {group.name} still has members in ZooKeeper: {describe_position(observed)}."),)
    if isinstance(zk.cutover, CutoverNote) and not zk.cutover.moved_ms:
        return (Reason("K58", f"The cutover of group {group.name} has not ended: {describe_position(observed)}."),)
    return pending_reset_reasons(observed)


def describe_plan(observed: GroupSeen, group: GroupSpec, goal: Goal | None = None) -> str:
    """Where a group stands and what remains to be done, as a sentence, from one observation; `goal` None: migration."""
    instance_map = map_instances(observed.members or (), group)
    only_zookeeper = goal is not None and not instance_map.instances_of_kind(
        MemberKind.KAFKA
    )  # which unknown members do not keep it from
    obstacles = [*flaw_reasons(observed), *(() if only_zookeeper else unknown_member_reasons(observed, group))]
    if obstacles:
        return f"{describe_position(observed)}. It cannot be moved: {' '.join(map(str, obstacles))}"
    steps = list(
        _describe_migration(observed, instance_map) if goal is None else _describe_rollback(observed, instance_map, goal)
    )
    hold_text = " ".join(map(str, hold_reasons(observed))) if goal is None and steps else ""
    return f"{describe_position(observed)}. {'Then ' + ', '.join(steps) if steps else 'Nothing to do'}. {hold_text}".strip()


def _describe_migration(observed: GroupSeen, instance_map: InstanceMap) -> Iterator[str]:
    remaining = [name for name in instance_map.instances if instance_map.kinds_of(name) != {MemberKind.KAFKA}]
    if unmigrated := [name for name in remaining if MemberKind.MIGRATING not in instance_map.kinds_of(name)]:
        yield f"{', '.join(unmigrated)} become migrating consumers one by one"
    if observed.zk is not None and observed.zk.requested_mode is not Mode.KAFKA and remaining:
        yield "mode kafka"
    if remaining:
        yield f"{', '.join(remaining)} become Kafka consumers one by one"
    if remaining or (observed.zk and observed.zk.mode_version >= 0):
        yield "the leftovers in ZooKeeper are deleted"


def _describe_rollback(observed: GroupSeen, instance_map: InstanceMap, goal: Goal) -> Iterator[str]:
    kafka = [name for name in instance_map.instances if MemberKind.KAFKA in instance_map.kinds_of(name)]
    later = [name for name in instance_map.instances if instance_map.kinds_of(name) & {MemberKind.KAFKA, MemberKind.MIGRATING}]
    in_kafka_mode = observed.zk is not None and observed.zk.requested_mode is Mode.KAFKA
    if kafka and not in_kafka_mode:
        yield "mode kafka"
    if kafka:
        yield f"{', '.join(reversed(kafka))} become migrating consumers one by one"
    if (kafka or in_kafka_mode) and goal is not Goal.KAFKA_MODE:
        yield "mode zookeeper"
    if later and goal is Goal.ZOOKEEPER_CONSUMERS:
        yield f"{', '.join(reversed(later))} become ZooKeeper consumers one by one"


def hold_reasons(observed: GroupSeen | None, run: str = "") -> tuple[Reason, ...]:
    """Why this run may not migrate the group; empty if no other run rolled it back (this run's cleared task may continue)."""
    hold = observed.zk.hold if observed is not None and observed.zk is not None else None
    if observed is None or hold is None or (run and hold.run == run):
        return ()
    text = (
        f"Group {observed.name} was rolled back by {_name_run(hold)}: {hold.why} To release it, start a run with conf "
        f'{{"release_groups": ["{observed.name}"]}}, or run groups release --group {observed.name}.'
    )
    return (Reason("K69", text),)


def _name_run(hold: GroupHold) -> str:
    return hold.run or "an unknown run"


def decide_release(observed: GroupSeen | None, name: str) -> Decision:
    """Records that the operator allows the group's migration again. Act: "release"."""
    missing = unread_reasons(observed, name, offsets=False, kafka=False)
    if missing or observed is None or observed.zk is None:
        return Wait(missing)
    hold = observed.zk.hold
    if hold is None:
        return Done(f"No run holds group {name}: it may migrate.")
    return Act(Verb.RELEASE, f"Group {name} may migrate again. It was rolled back by {_name_run(hold)}: {hold.why}")
