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

from airflow_provider_kmigrate.core.cluster import GroupSpec
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, MemberKind, ZkGroup
from airflow_provider_kmigrate.core.coordination.registration import Mode
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.groups.members import (
    ABSENT,
    GroupObservations,
    InstanceMap,
    flawed,
    map_instances,
    missing_instances,
    rebalancing,
    stopped,
    unknown_members,
    unread,
)
from airflow_provider_kmigrate.core.groups.offsets import compared, resets_pending
from airflow_provider_kmigrate.core.model import Reason

_NAMED: Final = {
    MemberKind.ZOOKEEPER: "a ZooKeeper consumer",
    MemberKind.MIGRATING: "a migrating consumer",
    MemberKind.KAFKA: "a Kafka consumer",
}


class Goal(StrEnum):
    """The state that a rollback takes a group to."""

    ZOOKEEPER_CONSUMERS = "zookeeper_consumers"  # every instance a ZooKeeper consumer, as before
    ZOOKEEPER_MODE = "zookeeper_mode"  # every instance migrating, ZooKeeper coordinates
    KAFKA_MODE = "kafka_mode"  # every instance migrating, Kafka coordinates


def switch(
    observations: GroupObservations,
    group: GroupSpec,
    instance: str,
    target: MemberKind,
    *,
    asked: bool = False,
    hurry: bool = False,
    former: Collection[str] = (),
) -> Decision:
    """Decides the switch of one instance to another kind of member.

    `asked`: this life of the step has already requested the restart, and `former` are the lives that Kafka knew then: a killed
    member keeps its place there for a session and looks like a Kafka consumer. `hurry`: do not wait for the group to become
    stable, since its instability may be the reason for the switch.

    Acts: "switch" (restart the instance), "copy offsets" (ZooKeeper's, if Kafka's are ahead: before it becomes a ZooKeeper
    consumer).
    """
    seen = observations.now
    missing = unread(seen, group.name)
    if missing or seen is None:
        return Wait(missing)
    members = map_instances(seen.members or (), group).instances[instance]
    kinds = frozenset(member.kind for member in members if target is not MemberKind.KAFKA or member.incarnation not in former)
    if kinds == {target}:
        there = f"{instance} of group {group.name} is {_NAMED[target]}."
        return Done(there) if hurry else when_stable(seen, group, there)
    if asked:
        return Wait((_absent(group, instance, target, kinds),))
    kept = _kept_from(observations, group, lambda one: _switch_forbidden(one, group, instance, target))
    return kept or _switch_now(seen, observations, group, instance, target, hurry=hurry)


def _kept_from(
    observations: GroupObservations, group: GroupSpec, forbids: Callable[[GroupSeen], tuple[Reason, ...]]
) -> Decision | None:
    """Refuse what is forbidden in any case; wait if a dead member that Kafka still lists may be the cause, until that is known."""
    if observations.now is None or not (never := forbids(observations.now)):
        return None
    living = observations.without_expiring_members(group)
    if living is None or forbids(living):
        return Refuse(never)
    called = ", ".join(
        member.name for member in observations.now.of_kind(MemberKind.KAFKA) if member not in living.of_kind(MemberKind.KAFKA)
    )
    text = f"Group {group.name}: {called} is in the Kafka group like a Kafka consumer, but has the name of a migrating consumer."
    return Wait((Reason("K66", f"{text} If it is alive: {never[0].text}"),))


def _switch_forbidden(seen: GroupSeen, group: GroupSpec, instance: str, target: MemberKind) -> tuple[Reason, ...]:
    strange = unknown_members(seen, group) if target is not MemberKind.ZOOKEEPER else ()
    return (*flawed(seen), *strange, *forbidden(seen, group, instance, target))


def _switch_now(
    seen: GroupSeen, observations: GroupObservations, group: GroupSpec, instance: str, target: MemberKind, *, hurry: bool
) -> Decision:
    """Nothing forbids the switch: decides whether it happens now."""
    kinds = map_instances(seen.members or (), group).kinds(instance)
    if not kinds and observations.missing_for(instance) < ABSENT:
        return Wait((_absent(group, instance, target, kinds),))
    waits = () if hurry else rebalancing(seen, group, but=[instance])
    waits = waits or (() if hurry or target is MemberKind.MIGRATING else resets_pending(seen))
    if waits:
        return Wait(waits)
    text = f"{instance} of group {group.name}, now {_words(kinds)}, becomes {_NAMED[target]}."
    return compared(observations, group, target) or Act(Verb.SWITCH, text)


def forbidden(seen: GroupSeen, group: GroupSpec, instance: str, target: MemberKind) -> tuple[Reason, ...]:
    """Why the instance must not become that kind while the group is as it is."""
    everyone, zk = map_instances(seen.members or (), group), seen.zk
    if target is MemberKind.MIGRATING and everyone.kinds(instance) == {MemberKind.KAFKA}:
        return ()  # one Kafka consumer less is always better, and the only way out beside a ZooKeeper consumer
    others = frozenset(kind for name in everyone.instances if name != instance for kind in everyone.kinds(name))
    # Unknown members in ZooKeeper share with the ZooKeeper consumers there.
    others |= {member.kind for member in everyone.unmapped} & {MemberKind.KAFKA}
    own = everyone.kinds(instance)
    if {MemberKind.ZOOKEEPER, MemberKind.KAFKA} <= others | own | {target}:
        text = f"Group {group.name}: {instance} would become {_NAMED[target]} while others are {_words(others)}."
        return (Reason("K58", text),)
    needs = {MemberKind.ZOOKEEPER: Mode.ZOOKEEPER, MemberKind.KAFKA: Mode.KAFKA}
    about = others | {target} | (own - {MemberKind.KAFKA})
    wrong = [kind for kind in needs if kind in about and zk is not None and zk.requested_mode is not needs[kind]]
    if not wrong or zk is None:
        return ()
    text = f"Group {group.name}: its mode is {zk.requested_mode}, but members are or would be {_words(frozenset(wrong))}."
    text += f" Set the mode first (SetModeOperator): {needs[wrong[0]]}."
    return (Reason("K45", text),)


def set_mode(observations: GroupObservations, group: GroupSpec, mode: Mode, *, blind: bool = False) -> Decision:
    """Sets the group's migration/mode, and waits until every member is stable under it. Act: "set mode".

    `blind`: the operator accepts that the members in Kafka could not be read, or that those that may be dead are dead; the
    decision then says nothing about stability.
    """
    seen = observations.now
    missing = unread(seen, group.name, offsets=False, kafka=not blind)
    if missing or seen is None or seen.zk is None:
        return Wait(missing)
    if written(seen, mode):
        return when_stable(seen, group, f"Group {group.name} is in {mode} mode, and all its members have settled in it.")
    kept = _kept_from(observations, group, lambda one: _mode_forbidden(one, group, mode))
    if kept and not (blind and isinstance(kept, Wait)):
        return kept
    back = mode is Mode.ZOOKEEPER
    # with Kafka consumers alone the mode is the first move of a rollback, which may be for one that died
    waits = rebalancing(seen, group) if not back and not seen.of_kind(MemberKind.KAFKA) else ()
    if waits:
        return Wait(waits)
    return Act(Verb.SET_MODE, f"Group {group.name}: mode {_as_written(seen.zk)} -> {mode}; {describe_position(seen)}.")


def written(seen: GroupSeen | None, mode: Mode) -> bool:
    """True if the znode holds the mode, byte for byte; False if it was not read. No znode, or an empty one, means zookeeper."""
    if seen is None or seen.zk is None:
        return False
    return seen.zk.mode_data == str(mode).encode() or (mode is Mode.ZOOKEEPER and not seen.zk.mode_data)


def _as_written(zk: ZkGroup) -> str:
    return str(zk.requested_mode) if zk.mode_data in (None, b"", str(zk.requested_mode).encode()) else repr(zk.mode_data)


def _mode_forbidden(seen: GroupSeen, group: GroupSpec, mode: Mode) -> tuple[Reason, ...]:
    """Why the mode must not be set; rollback is allowed for groups with unknown members, too."""
    zookeeper, kafka = (_names(seen, kind) for kind in (MemberKind.ZOOKEEPER, MemberKind.KAFKA))
    migrating = seen.of_kind(MemberKind.MIGRATING)
    reasons = [] if mode is Mode.ZOOKEEPER else [*flawed(seen), *unknown_members(seen, group)]
    if zookeeper and mode is Mode.KAFKA:
        reasons.append(Reason("K58", f"Group {group.name} has members that do not migrate: {zookeeper}."))
    if kafka and (mode is Mode.ZOOKEEPER or migrating or zookeeper):
        reasons.append(Reason("K58", f"Group {group.name} has Kafka consumers: {kafka}."))
    return tuple(reasons)


def next_rollback(observations: GroupObservations, group: GroupSpec, goal: Goal) -> tuple[str, MemberKind | Mode] | None:
    """The next rollback move to `goal`: an instance and its new kind, or "" and the mode. None: nothing to do.

    Only what is beyond the goal is undone: a group that never came so far stays as it is.
    """
    seen = observations.now
    if seen is None or seen.zk is None or seen.members is None:
        return None
    everyone = map_instances(seen.members, group)
    kafka = [name for name in everyone.instances if MemberKind.KAFKA in everyone.kinds(name)]
    if kafka:
        alone = not seen.of_kind(MemberKind.MIGRATING) and not seen.of_kind(MemberKind.ZOOKEEPER)
        return ("", Mode.KAFKA) if alone and seen.zk.requested_mode is not Mode.KAFKA else (kafka[-1], MemberKind.MIGRATING)
    if goal is not Goal.KAFKA_MODE and seen.zk.requested_mode is Mode.KAFKA:
        return "", Mode.ZOOKEEPER
    migrating = [name for name in everyone.instances if MemberKind.MIGRATING in everyone.kinds(name)]
    missing = [name for name in everyone.instances if not everyone.kinds(name)]
    # a missing instance may return as a Kafka consumer: the last migrating member keeps it out, and no other need wait for it
    if goal is Goal.ZOOKEEPER_CONSUMERS and len(migrating) > bool(missing):
        return migrating[-1], MemberKind.ZOOKEEPER
    if missing:
        as_before = goal is Goal.ZOOKEEPER_CONSUMERS or seen.of_kind(MemberKind.ZOOKEEPER)
        return missing[0], MemberKind.ZOOKEEPER if as_before else MemberKind.MIGRATING
    return None


def when_stable(seen: GroupSeen, group: GroupSpec, text: str) -> Decision:
    """Done with `text`, once every instance is there and no rebalance is under way."""
    waits = rebalancing(seen, group)
    return Wait(waits) if waits else Done(text)


def _absent(group: GroupSpec, instance: str, target: MemberKind, kinds: frozenset[MemberKind]) -> Reason:
    seen = f"is still {_words(kinds)}" if kinds else "is not present yet"
    return Reason("K55", f"{instance} of group {group.name} {seen}; it must become {_NAMED[target]}.")


def _names(seen: GroupSeen, kind: MemberKind) -> str:
    return ", ".join(member.name for member in seen.of_kind(kind)[:8])


def _words(kinds: frozenset[MemberKind]) -> str:
    return " and ".join(sorted(kinds)) or "absent"


def already_beyond(seen: GroupSeen | None, group: GroupSpec, instance: str, target: MemberKind) -> Done | None:
    """During migration: an instance that is already beyond `target` stays as it is."""
    if target is not MemberKind.MIGRATING or not further(seen, group, instance):
        return None
    return Done(f"{instance} of group {group.name} is a Kafka consumer already.")


def switch_blocked(
    observations: GroupObservations, group: GroupSpec, instance: str, target: MemberKind, *, begun: bool = False
) -> Decision | None:
    """Why the migration must not switch this instance now, by the order of switches; None: it may.

    No instance is started while the whole application is stopped: that may be on purpose, and a group that has left ZooKeeper
    with no leftovers looks like one that never began. Not so if its restart had `begun`: then it was stopped for this. The file's
    first instance is the canary: no other one goes before it.
    """
    empty = stopped(observations.now, group.name)
    if observations.now is None or (empty and not begun):
        return Wait(empty)
    first = group.instances[0].name
    kinds = map_instances(observations.now.members or (), group).kinds(first)
    order = list(MemberKind)
    if first == instance or not kinds or min(map(order.index, kinds)) >= order.index(target):
        return None
    text = f"Group {group.name}: {first} is {_words(kinds)}, and {instance} would become {_NAMED[target]} before it."
    return Refuse((Reason("K58", text),))


def mode_not_needed(seen: GroupSeen | None, group: GroupSpec, mode: Mode) -> Done | None:
    """During migration: a group that no longer needs a mode is not given one again. A rollback may set it."""
    if mode is not Mode.KAFKA or not all_kafka(seen, group):
        return None
    return Done(f"Every instance of group {group.name} is a Kafka consumer already: no mode is needed.")


def further(seen: GroupSeen | None, group: GroupSpec, instance: str) -> bool:
    """True if an instance that is to become a migrating member is a Kafka consumer already.

    Only if the mode has been Kafka: before that it is a migrating member that died, and that Kafka keeps for its session.
    """
    if seen is None or seen.zk is None or map_instances(seen.members or (), group).kinds(instance) != {MemberKind.KAFKA}:
        return False
    return seen.zk.requested_mode is Mode.KAFKA or all_kafka(seen, group)


def absent(seen: GroupSeen | None, group: GroupSpec, instance: str) -> bool:
    """True if no living member of an instance is observed; False if that is unknown."""
    if seen is None or seen.members is None:
        return False
    kinds = map_instances(seen.members, group).kinds(instance)
    return not kinds or (kinds == {MemberKind.KAFKA} and not further(seen, group, instance))


def all_kafka(seen: GroupSeen | None, group: GroupSpec) -> bool:
    """True if every instance is a Kafka consumer and ZooKeeper has no member; False if that is unknown."""
    if unread(seen, group.name) or seen is None or seen.zk is None or seen.zk.registrations:
        return False
    everyone = map_instances(seen.members or (), group)
    return all(everyone.kinds(name) == {MemberKind.KAFKA} for name in everyone.instances)


def moved(seen: GroupSeen | None, group: GroupSpec) -> bool:
    """True if the group has left ZooKeeper with no leftovers; False if that is unknown.

    If the application is stopped, the offsets decide: Kafka has them, and none in ZooKeeper is ahead. Not so if the members'
    folder still exists: then they may have been copied while its ZooKeeper consumers were stopped, which return.
    """
    if unread(seen, group.name) or seen is None or seen.zk is None or seen.zk.mode_version >= 0:
        return False
    ahead = any(offset > (seen.committed or {}).get(where, offset) for where, offset in seen.in_zookeeper.items())
    return all_kafka(seen, group) or (not seen.members and not seen.zk.joined and bool(seen.committed) and not ahead)


def describe_position(seen: GroupSeen) -> str:
    """The group's position on its path, in a few words."""
    counts = [(kind, len(seen.of_kind(kind))) for kind in MemberKind]
    members = ", ".join(f"{count} {kind}" for kind, count in counts if count) or "no member"
    return f"{members}; mode {seen.zk.requested_mode if seen.zk else 'unknown'}"


def clean_up(seen: GroupSeen | None, group: GroupSpec) -> Decision:
    """Removes the leftovers in ZooKeeper of a group that has left it. Act: "clean up"."""
    missing = unread(seen, group.name)
    if missing or seen is None or seen.zk is None:
        return Wait(missing)
    if seen.zk.registrations or seen.zk.progress or seen.zk.owners:
        text = f"Group {group.name} still has members in ZooKeeper: {describe_position(seen)}."
        return Refuse((Reason("K58", text),))
    if unapplied := resets_pending(seen):
        return Refuse(unapplied)
    if seen.zk.mode_version >= 0:
        if not all_kafka(seen, group):
            return Wait(stopped(seen, group.name) or missing_instances(seen, group))
        return Act(Verb.CLEAN_UP, f"Group {group.name} has left ZooKeeper: {describe_position(seen)}.")
    return Done(f"ZooKeeper holds only the last offsets of group {group.name}.")


def plan(seen: GroupSeen, group: GroupSpec, goal: Goal | None = None) -> str:
    """Where a group stands and what remains to be done, as a sentence, from one observation; `goal` None: migration."""
    everyone = map_instances(seen.members or (), group)
    only_zookeeper = goal is not None and not everyone.of_kind(MemberKind.KAFKA)  # which unknown members do not keep it from
    left = [*flawed(seen), *(() if only_zookeeper else unknown_members(seen, group))]
    if left:
        return f"{describe_position(seen)}. It cannot be moved: {' '.join(map(str, left))}"
    steps = list(_forward(seen, everyone) if goal is None else _back(seen, everyone, goal))
    kept = " ".join(map(str, held(seen))) if goal is None and steps else ""
    return f"{describe_position(seen)}. {'Then ' + ', '.join(steps) if steps else 'Nothing to do'}. {kept}".strip()


def _forward(seen: GroupSeen, everyone: InstanceMap) -> Iterator[str]:
    left = [name for name in everyone.instances if everyone.kinds(name) != {MemberKind.KAFKA}]
    if unmigrated := [name for name in left if MemberKind.MIGRATING not in everyone.kinds(name)]:
        yield f"{', '.join(unmigrated)} become migrating consumers one by one"
    if seen.zk is not None and seen.zk.requested_mode is not Mode.KAFKA and left:
        yield "mode kafka"
    if left:
        yield f"{', '.join(left)} become Kafka consumers one by one"
    if left or (seen.zk and seen.zk.mode_version >= 0):
        yield "the leftovers in ZooKeeper are deleted"


def _back(seen: GroupSeen, everyone: InstanceMap, goal: Goal) -> Iterator[str]:
    kafka = [name for name in everyone.instances if MemberKind.KAFKA in everyone.kinds(name)]
    later = [name for name in everyone.instances if everyone.kinds(name) & {MemberKind.KAFKA, MemberKind.MIGRATING}]
    in_kafka_mode = seen.zk is not None and seen.zk.requested_mode is Mode.KAFKA
    if kafka and not in_kafka_mode:
        yield "mode kafka"
    if kafka:
        yield f"{', '.join(reversed(kafka))} become migrating consumers one by one"
    if (kafka or in_kafka_mode) and goal is not Goal.KAFKA_MODE:
        yield "mode zookeeper"
    if later and goal is Goal.ZOOKEEPER_CONSUMERS:
        yield f"{', '.join(reversed(later))} become ZooKeeper consumers one by one"


def held(seen: GroupSeen | None, run: str = "") -> tuple[Reason, ...]:
    """Why this run may not migrate the group; empty if no other run rolled it back (this run's cleared task may continue)."""
    hold = seen.zk.hold if seen is not None and seen.zk is not None else None
    if seen is None or hold is None or (run and hold.run == run):
        return ()
    by = hold.run or "an unknown run"
    text = (
        f"Group {seen.name} was rolled back by {by}: {hold.why} To release it, start a run with conf "
        f'{{"release_groups": ["{seen.name}"]}}, or run groups release --group {seen.name}.'
    )
    return (Reason("K69", text),)


def release(seen: GroupSeen | None, name: str) -> Decision:
    """Records that the operator allows the group's migration again. Act: "release"."""
    missing = unread(seen, name, offsets=False, kafka=False)
    if missing or seen is None or seen.zk is None:
        return Wait(missing)
    hold = seen.zk.hold
    if hold is None:
        return Done(f"Group {name} was not rolled back: it may migrate.")
    return Act(Verb.RELEASE, f"Group {name} may migrate again. It was rolled back by {hold.run}: {hold.why}")
