"""Judges a consumer group from outside: which member is which instance, whether the group is stable, and whether it consumes.

Reasons to wait and refusals are both `Reason`s; the caller knows which by the function's name.

A group is stable when every partition is held and no rebalance is under way.

A group consumes if its committed offsets advance. Owners prove nothing: partitions that have one may starve (measured). A
partition starves if it has uncommitted records and its offset does not advance for longer than its consumers take between two
commits. The larger offset of both stores counts. A partition that waited in the same way before the switch does not count: an
idle log that ends with transaction markers always seems to have records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_kmigrate.core.cluster_state.model import Cause, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, match_instance
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, MemberKind, MemberSeen, ZkGroup
from airflow_provider_kmigrate.core.member.registration import Mode
from airflow_provider_kmigrate.core.shared.text import count_of, summarize

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class InstanceMap:
    """Maps the members to the instances of the cluster file; an instance may have several members, and some belong to none."""

    instances: Mapping[str, tuple[MemberSeen, ...]]
    unmapped: tuple[MemberSeen, ...]

    def kinds_of(self, instance: str) -> frozenset[MemberKind]:
        """The kinds of member that an instance runs as: two while it restarts, none if it is not observed."""
        return frozenset(member.kind for member in self.instances[instance])

    def instances_of_kind(self, kind: MemberKind) -> tuple[str, ...]:
        """The instances that run as this kind only."""
        return tuple(name for name in self.instances if self.kinds_of(name) == {kind})


def map_instances(members: Iterable[MemberSeen], group: GroupSpec) -> InstanceMap:
    """Members by the cluster file's instances."""
    names = [instance.name for instance in group.instances]
    members_by_instance: dict[str, list[MemberSeen]] = {name: [] for name in names}
    unmapped: list[MemberSeen] = []
    for member in members:
        name = match_instance(member.name, group.name, names)
        (unmapped if name is None else members_by_instance[name]).append(member)
    return InstanceMap({name: tuple(instance_members) for name, instance_members in members_by_instance.items()}, tuple(unmapped))


def unread_reasons(
    observed: GroupSeen | None, name: str, *, ends: bool = False, offsets: bool = True, kafka: bool = True
) -> tuple[Reason, ...]:
    """What could not be read of the group; empty if everything was. `ends`: including its log ends, which starvation needs.

    A partition without a leader reports no end, so it is unknown whether records wait there. `offsets`: including those in Kafka;
    `kafka`: including its members.
    """
    if observed is None:
        return (Reason("K30", f"Group {name} could not be read."),)
    missing = unread_parts(observed, ends=ends, offsets=offsets, kafka=kafka)
    no_end = _partitions_without_end(observed) if ends else frozenset()
    missing += [f"the ends of {format_partitions(no_end)}"] if no_end else []
    return (Reason("K30", f"Group {name}: {' and '.join(missing)} could not be read."),) if missing else ()


def unread_parts(observed: GroupSeen, *, ends: bool = True, offsets: bool = True, kafka: bool = True) -> list[str]:
    """The parts of the group that were not read, of those that are needed."""
    parts = (
        (True, "its znodes", observed.zk),
        (kafka, "its members in Kafka", observed.kafka),
        (offsets, "its offsets in Kafka", observed.committed),
        (ends, "its logs' ends", observed.ends),
    )
    return [part_name for needed, part_name, part in parts if needed and part is None]


def unknown_group_reasons(observed: GroupSeen) -> tuple[Reason, ...]:
    """F09 if neither side knows the group; a side that was not read does not know it."""
    zk, kafka = observed.zk, observed.kafka
    if zk is not None and (zk.registrations or zk.progress or zk.owners or zk.offsets or zk.mode_version >= 0):
        return ()
    if observed.committed or (kafka is not None and (kafka.members or kafka.state != "Dead")):
        return ()
    return (Reason("F09", f"Neither ZooKeeper nor Kafka knows a group {observed.name}."),)


def _partitions_without_end(observed: GroupSeen) -> frozenset[TopicPartition]:
    if observed.ends is None or observed.zk is None:
        return frozenset()
    return (observed.zk.partitions | observed.partitions_held_by(MemberKind.KAFKA)) - observed.ends.keys()


def flaw_reasons(observed: GroupSeen) -> tuple[Reason, ...]:
    """Unreadable registrations: with one, no ZooKeeper consumer of the group can rebalance."""
    flaws = ((member.name, member.flaw) for member in observed.members or () if member.flaw is not None)
    return tuple(
        Reason("K31", f"Group {observed.name}: the registration of {name} cannot be read ({flaw}).") for name, flaw in flaws
    )


def unknown_member_reasons(observed: GroupSeen, group: GroupSpec) -> tuple[Reason, ...]:
    """Members that belong to no instance of the cluster file."""
    unmapped = map_instances(observed.members or (), group).unmapped
    if not unmapped:
        return ()
    shown_members = ", ".join(f"{member.name} ({member.kind})" for member in unmapped[:_SHOWN])
    return (Reason("K56", f"Group {observed.name} has members that the cluster file does not know: {shown_members}."),)


def instability_reasons(observed: GroupSeen, group: GroupSpec, excused_instances: Collection[str] = ()) -> tuple[Reason, ...]:
    """Why the group is not stable; empty if it is. `excused_instances` may be missing."""
    return (
        *_kafka_rebalance_reasons(observed),
        *_unowned_partition_reasons(observed),
        *_unsettled_member_reasons(observed),
        *missing_instance_reasons(observed, group, excused_instances),
    )


def missing_instance_reasons(
    observed: GroupSeen, group: GroupSpec, excused_instances: Collection[str] = ()
) -> tuple[Reason, ...]:
    """K55 if instances of the cluster file have no member; `excused_instances` may be missing."""
    instance_map = map_instances(observed.members or (), group)
    absent = [name for name, members in instance_map.instances.items() if not members and name not in excused_instances]
    if not absent:
        return ()
    return (Reason("K55", f"Group {observed.name}: no member of {', '.join(absent[:_SHOWN])} is present."),)


def no_member_reasons(observed: GroupSeen | None, name: str) -> tuple[Reason, ...]:
    """K55 if the group has no member, or if that is unknown."""
    if observed is not None and observed.members:
        return ()
    return (Reason("K55", f"Group {name} has no member, neither in ZooKeeper nor in Kafka."),)


def _kafka_rebalance_reasons(observed: GroupSeen) -> Iterator[Reason]:
    if observed.kafka is not None and not observed.kafka.stable:
        yield Reason("K52", f"Group {observed.name} rebalances in Kafka ({observed.kafka.state}).")


def _unowned_partition_reasons(observed: GroupSeen) -> Iterator[Reason]:
    """K44 for partitions that no member owns, if members are in ZooKeeper."""
    if observed.zk is not None and observed.zk.registrations and (idle := unowned_partitions(observed)):
        yield Reason("K44", f"Group {observed.name}: no member owns {format_partitions(idle)}.")


def unowned_partitions(observed: GroupSeen) -> frozenset[TopicPartition]:
    """Partitions that no member owns; what Kafka consumers hold has no owner znode."""
    return observed.zk.unowned - observed.partitions_held_by(MemberKind.KAFKA) if observed.zk is not None else frozenset()


def _unsettled_member_reasons(observed: GroupSeen) -> Iterator[Reason]:
    """Migrating members that are not yet stable under the current mode."""
    zk = observed.zk
    late = [
        member.name for member in observed.members_of_kind(MemberKind.MIGRATING) if zk is not None and not _is_settled(member, zk)
    ]
    if zk is not None and late:
        names = ", ".join(late[:_SHOWN])
        yield Reason(
            "K52",
            f"Group {observed.name}: {count_of(len(late), 'migrating consumer is', 'migrating consumers are')} not settled in {zk.mode} mode: {names}.",
        )


def _is_settled(member: MemberSeen, zk: ZkGroup) -> bool:
    reported = member.progress
    return reported is not None and reported.settled and reported.mode is zk.mode and reported.epoch == zk.mode_epoch


_FORGOTTEN = 86_400.0  # seconds behind the group's newest commit after which an offset counts as one of a topic no longer read


def consumed_partitions(observed: GroupSeen, group: GroupSpec) -> frozenset[TopicPartition]:
    """What the group reads: what registrations select, Kafka consumers hold and, if these are incomplete, was committed lately.

    Offsets in ZooKeeper are never deleted: those of deleted or unsubscribed topics stay there for years.
    """
    certain = certainly_consumed(observed)
    if observed.zk is None or not _may_hide_partitions(observed, group):
        return certain
    newest = max((stored.changed_at for stored in observed.zk.offsets.values()), default=0.0)
    late = {partition for partition, stored in observed.zk.offsets.items() if newest - stored.changed_at < _FORGOTTEN}
    return certain | (late if observed.ends is None else late & observed.ends.keys())


def certainly_consumed(observed: GroupSeen) -> frozenset[TopicPartition]:
    """Partitions that a registration selects, or that exist and a Kafka consumer holds."""
    held_by_kafka = observed.partitions_held_by(MemberKind.KAFKA)
    return (held_by_kafka if observed.ends is None else held_by_kafka & observed.ends.keys()) | (
        observed.zk.partitions if observed.zk else frozenset()
    )


def _may_hide_partitions(observed: GroupSeen, group: GroupSpec) -> bool:
    """True if a member may read what no registration shows: a Kafka consumer, an absent instance, an unreadable registration."""
    return not group.instances or bool(
        missing_instance_reasons(observed, group) or observed.members_of_kind(MemberKind.KAFKA) or flaw_reasons(observed)
    )


def format_partitions(partitions: Iterable[TopicPartition]) -> str:
    """Partitions as text for a sentence."""
    return summarize(partition.name for partition in sorted(partitions))


OFFSETS_SETTLE = 5.0  # seconds after which an offset of one store must be in the other, too
ABSENT = 45.0  # seconds without any member after which an instance is restarted again; by default a dead member's session lasts as long


@dataclass(frozen=True, slots=True)
class GroupObservations:
    """The group now, and what one step keeps of its earlier observations; times are on the monotonic clock.

    `whole`: (time, observation) of those in which nothing was unknown, oldest first. The first is the one to compare offsets
    with: the youngest that is `OFFSETS_SETTLE` old, else the oldest. An older one would say less with each commit since. `begun`:
    the first complete one. `missing_since`: instance -> since when it has no member. `kafka_since`: incarnation of each observed
    Kafka consumer -> since when.
    """

    now: GroupSeen | None = None
    at: float = 0.0
    whole: tuple[tuple[float, GroupSeen], ...] = ()
    begun: tuple[float, GroupSeen] | None = None
    missing_since: Mapping[str, float] = field(default_factory=dict)
    kafka_since: Mapping[str, float] = field(default_factory=dict)

    def with_observation(self, observed: GroupSeen | None, at: float, group: GroupSpec) -> GroupObservations:
        """Add one observation. If members are unknown, it changes no member's presence."""
        latest = replace(self, now=observed, at=at)
        if observed is None or observed.members is None:
            return latest
        instance_map = map_instances(observed.members, group)
        missing = {name: self.missing_since.get(name, at) for name in instance_map.instances if not instance_map.kinds_of(name)}
        kafka_since = {
            member.incarnation: self.kafka_since.get(member.incarnation, at)
            for member in observed.members_of_kind(MemberKind.KAFKA)
        }
        whole = self._complete_observations(observed, at)
        begun = self.begun or next(iter(whole), None)
        return replace(latest, whole=whole, begun=begun, missing_since=missing, kafka_since=kafka_since)

    def _complete_observations(self, observed: GroupSeen, at: float) -> tuple[tuple[float, GroupSeen], ...]:
        whole = self.whole if unread_reasons(observed, observed.name) else (*self.whole, (at, observed))
        settled = [then for then, _ in whole if at - then >= OFFSETS_SETTLE]
        return tuple(observation for observation in whole if observation[0] >= max(settled)) if settled else whole

    def seconds_missing(self, instance: str) -> float:
        """How long the instance has had no member, in seconds."""
        return self.at - self.missing_since.get(instance, self.at)

    def without_expiring_members(self, group: GroupSpec) -> GroupSeen | None:
        """The group without Kafka members that may be dead migrating consumers, which Kafka keeps until their session expires.

        Such a member has a consumer id of the group. The application sets its session timeout, so the wait is as long as for a
        member that starts. In mode kafka, if other members are Kafka consumers, it counts as a Kafka consumer.
        """
        observed = self.now
        if observed is None or observed.zk is None or observed.kafka is None:
            return observed
        consumers = observed.members_of_kind(MemberKind.KAFKA)
        with_consumer_id = [member for member in consumers if member.name.startswith(f"{group.name}_")]
        if observed.zk.requested_mode is Mode.KAFKA and len(with_consumer_id) < len(consumers):
            return observed
        limit = max(ABSENT, group.switch_timeout)
        expiring = {
            member.incarnation
            for member in with_consumer_id
            if self.at - self.kafka_since.get(member.incarnation, self.at) < limit
        }
        living = tuple(member for member in observed.kafka.members if member.member_id not in expiring)
        return replace(observed, kafka=replace(observed.kafka, members=living))


REBALANCE_LIMIT = 60.0  # seconds that an untouched group may take to become stable
RESTARTS = 3  # restarts at which a watched instance counts as restarting too often
HEALTHY_PERIODS = 10  # how long a healthy period is waited for, in multiples of its length


@dataclass(frozen=True, slots=True)
class Mark:
    """A partition's committed offset and log end when the offset last moved; `offset` -1 if none is committed."""

    offset: int
    since: float
    end: int


@dataclass(frozen=True, slots=True)
class GroupHealth:
    """The summary of many observations of one group; times are on the monotonic clock of one process.

    Of the watched instance: `incarnations`: every one of its members' that was observed, `most_members`: the most members at once,
    `new_incarnations`: how many began after it ran as the wanted kind. `earlier`: restarts counted by earlier processes.

    `before_switch`: offset and log end of each partition at that time; `read`: partitions certainly read, then or since.
    """

    marks: Mapping[TopicPartition, Mark] = field(default_factory=dict)
    before_switch: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    read: frozenset[TopicPartition] = frozenset()
    unstable_since: float | None = None  # since when the group has not been stable
    absent_since: float | None = None  # since when the watched instance has not been observed as the wanted kind
    incarnations: frozenset[str] = frozenset()
    most_members: int = 1
    new_incarnations: int = 0
    earlier: int = 0

    @property
    def restarts(self) -> int:
        """How often the watched instance has restarted with all of its members."""
        return self.earlier + self.new_incarnations // self.most_members


def health_before_switch(observed: GroupSeen) -> GroupHealth:
    """Start from the observation just before a change: the group must still read every partition that it read then."""
    ends, offsets = observed.ends or {}, positions_with_uncommitted(observed)
    at_switch = {partition: (offsets[partition], ends[partition]) for partition in offsets.keys() & ends.keys()}
    return GroupHealth(before_switch=at_switch, read=certainly_consumed(observed))


def positions_with_uncommitted(observed: GroupSeen) -> dict[TopicPartition, int]:
    """Partition -> committed offset, the larger of both stores; -1 if the partition is read and has no commit."""
    subscribed = observed.zk.partitions if observed.zk else frozenset()
    return dict.fromkeys(subscribed, -1) | observed.positions


def update_health(
    health: GroupHealth, observed: GroupSeen, group: GroupSpec, now: float, watched: tuple[str, MemberKind] | None = None
) -> GroupHealth:
    """Record one complete observation; `watched`: an instance and the kind that it must become."""
    ends, offsets = observed.ends or {}, positions_with_uncommitted(observed)
    read = (health.read & ends.keys()) | certainly_consumed(observed)
    marks = {
        partition: _update_mark(
            health.marks.get(partition), offsets.get(partition, -1), ends.get(partition), now, health.before_switch.get(partition)
        )
        for partition in read | consumed_partitions(observed, group)
    }
    runs_as_watched_kind = watched is None or map_instances(observed.members or (), group).kinds_of(watched[0]) == {watched[1]}
    return replace(
        _count_restarts(health, incarnations_of_kind(observed, group, *watched))
        if watched and (runs_as_watched_kind or health.incarnations)
        else health,
        marks=marks,
        read=read,
        unstable_since=_update_since(health.unstable_since, bool(instability_reasons(observed, group)), now),
        absent_since=_update_since(health.absent_since, not runs_as_watched_kind, now),
    )


def restart_health_timers(health: GroupHealth, now: float) -> GroupHealth:
    """Record an incomplete observation: any offset may have moved since, so every timer restarts."""
    marks = {partition: replace(mark, since=now) for partition, mark in health.marks.items()}
    return replace(
        health,
        marks=marks,
        unstable_since=_update_since(None, health.unstable_since is not None, now),
        absent_since=_update_since(None, health.absent_since is not None, now),
    )


def incarnations_of_kind(observed: GroupSeen, group: GroupSpec, instance: str, kind: MemberKind) -> frozenset[str]:
    """The incarnations of one instance's members of this kind."""
    members = map_instances(observed.members or (), group).instances[instance]
    return frozenset(member.incarnation for member in members if member.kind is kind and member.incarnation)


def _count_restarts(health: GroupHealth, now: frozenset[str]) -> GroupHealth:
    new = len(now - health.incarnations) if health.incarnations else 0
    return replace(
        health,
        incarnations=health.incarnations | now,
        most_members=max(health.most_members, len(now)),
        new_incarnations=health.new_incarnations + new,
    )


def _update_mark(last: Mark | None, offset: int, end: int | None, now: float, at_switch: tuple[int, int] | None) -> Mark:
    if last is None or last.offset != offset:
        return Mark(offset, now, end if end is not None else offset)
    # the timer restarts if the partition has caught up, or if it is unknown whether records wait
    waits = end is not None and (offset, end) != at_switch and _has_waiting_records(last, end)
    return last if waits else replace(last, since=now, end=last.end if end is None else end)


def _has_waiting_records(mark: Mark, end: int) -> bool:
    """True if there are records to read. A single last offset, already there at the last commit, is a transaction marker."""
    if mark.offset < 0:
        return end > mark.end
    return end > mark.offset and not end == mark.end == mark.offset + 1


def starving_partitions(health: GroupHealth, group: GroupSpec, now: float) -> tuple[TopicPartition, ...]:
    """Partitions with waiting records whose offset has not moved for `commit_within`."""
    return tuple(sorted(partition for partition, mark in health.marks.items() if now - mark.since >= group.commit_within))


def health_fault_reasons(health: GroupHealth, group: GroupSpec, now: float, limit: float = REBALANCE_LIMIT) -> tuple[Reason, ...]:
    """V30 for each fault of a switched group; empty if there is none. `limit`: seconds that it may take to become stable."""
    return tuple(_unhealthy_reason(f"Group {group.name}{text}.") for text in _describe_faults(health, group, now, limit))


def _describe_faults(health: GroupHealth, group: GroupSpec, now: float, limit: float) -> Iterator[str]:
    if starved := starving_partitions(health, group, now):
        yield f" has committed no offset for {group.commit_within:.0f} s although records wait: {format_partitions(starved)}"
    if health.absent_since is not None and now - health.absent_since >= limit:
        yield f": the switched instance has been missing for {now - health.absent_since:.0f} s"
    if health.restarts >= RESTARTS:
        yield f": the switched instance has restarted {count_of(health.restarts, 'time')}"
    if health.unstable_since is not None and now - health.unstable_since >= limit:
        yield f" has not been stable for {now - health.unstable_since:.0f} s"


def never_healthy_reasons(group: GroupSpec, watched: float, times: int, healthy_seconds: float) -> tuple[Reason, ...]:
    """V30 if the group was unstable `times` times in `watched` seconds, and never healthy for `healthy_seconds` seconds; else empty."""
    if watched <= HEALTHY_PERIODS * healthy_seconds or not times:
        return ()
    text = f"was unstable {count_of(times, 'time')} in {watched:.0f} s, and never healthy for {healthy_seconds:.0f} s without a break."
    return (_unhealthy_reason(f"Group {group.name} {text}"),)


def _unhealthy_reason(text: str) -> Reason:
    return Reason("V30", text, cause=Cause.GROUP_UNHEALTHY)


def _update_since(then: float | None, holds: bool, now: float) -> float | None:
    return (now if then is None else then) if holds else None


def must_roll_back(causes: Iterable[str]) -> bool:
    """True if a step refused for these reasons rolls its group back by itself: only for faults observed in the group.

    A step that could not observe, was not allowed to act, or was ended by the operator, has found no fault.
    """
    return Cause.GROUP_UNHEALTHY in causes
