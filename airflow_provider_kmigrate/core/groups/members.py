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

from airflow_provider_kmigrate.core.cluster import GroupSpec, instance_called
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, MemberKind, MemberSeen, ZkGroup
from airflow_provider_kmigrate.core.coordination.registration import Mode
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.model import Cause, Reason
from airflow_provider_kmigrate.core.text import summarize

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class InstanceMap:
    """Maps the members to the instances of the cluster file; an instance may have several members, and some belong to none."""

    instances: Mapping[str, tuple[MemberSeen, ...]]
    unmapped: tuple[MemberSeen, ...]

    def kinds(self, instance: str) -> frozenset[MemberKind]:
        """The kinds of member that an instance runs as: two while it restarts, none if it is not observed."""
        return frozenset(member.kind for member in self.instances[instance])

    def of_kind(self, kind: MemberKind) -> tuple[str, ...]:
        """The instances that run as this kind only."""
        return tuple(name for name in self.instances if self.kinds(name) == {kind})


def map_instances(members: Iterable[MemberSeen], group: GroupSpec) -> InstanceMap:
    """Members by the cluster file's instances."""
    names = [instance.name for instance in group.instances]
    found: dict[str, list[MemberSeen]] = {name: [] for name in names}
    unmapped: list[MemberSeen] = []
    for member in members:
        name = instance_called(member.name, group.name, names)
        (unmapped if name is None else found[name]).append(member)
    return InstanceMap({name: tuple(theirs) for name, theirs in found.items()}, tuple(unmapped))


def unread(
    seen: GroupSeen | None, name: str, *, ends: bool = False, offsets: bool = True, kafka: bool = True
) -> tuple[Reason, ...]:
    """What could not be read of the group; empty if everything was. `ends`: including its log ends, which starvation needs.

    A partition without a leader reports no end, so it is unknown whether records wait there. `offsets`: including those in Kafka;
    `kafka`: including its members.
    """
    if seen is None:
        return (Reason("K30", f"Group {name} could not be read."),)
    missing = unread_parts(seen, ends=ends, offsets=offsets, kafka=kafka)
    no_end = _without_end(seen) if ends else frozenset()
    missing += [f"the ends of {places(no_end)}"] if no_end else []
    return (Reason("K30", f"Group {name}: {' and '.join(missing)} could not be read."),) if missing else ()


def unread_parts(seen: GroupSeen, *, ends: bool = True, offsets: bool = True, kafka: bool = True) -> list[str]:
    """The parts of the group that were not read, of those that are needed."""
    parts = (
        (True, "its znodes", seen.zk),
        (kafka, "its members in Kafka", seen.kafka),
        (offsets, "its offsets in Kafka", seen.committed),
        (ends, "its logs' ends", seen.ends),
    )
    return [what for needed, what, found in parts if needed and found is None]


def unknown_group(seen: GroupSeen) -> tuple[Reason, ...]:
    """F09 if neither side knows the group; a side that was not read does not know it."""
    zk, kafka = seen.zk, seen.kafka
    if zk is not None and (zk.registrations or zk.progress or zk.owners or zk.offsets or zk.mode_version >= 0):
        return ()
    if seen.committed or (kafka is not None and (kafka.members or kafka.state != "Dead")):
        return ()
    return (Reason("F09", f"Neither ZooKeeper nor Kafka knows a group {seen.name}."),)


def _without_end(seen: GroupSeen) -> frozenset[TopicPartition]:
    if seen.ends is None or seen.zk is None:
        return frozenset()
    return (seen.zk.partitions | seen.held_by(MemberKind.KAFKA)) - seen.ends.keys()


def flawed(seen: GroupSeen) -> tuple[Reason, ...]:
    """Unreadable registrations: with one, no ZooKeeper consumer of the group can rebalance."""
    flaws = ((member.name, member.flaw) for member in seen.members or () if member.flaw is not None)
    return tuple(Reason("K31", f"Group {seen.name}: the registration of {name} cannot be read ({flaw}).") for name, flaw in flaws)


def unknown_members(seen: GroupSeen, group: GroupSpec) -> tuple[Reason, ...]:
    """Members that belong to no instance of the cluster file."""
    unmapped = map_instances(seen.members or (), group).unmapped
    if not unmapped:
        return ()
    named = ", ".join(f"{member.name} ({member.kind})" for member in unmapped[:_SHOWN])
    return (Reason("K56", f"Group {seen.name} has members that the cluster file does not know: {named}."),)


def rebalancing(seen: GroupSeen, group: GroupSpec, but: Collection[str] = ()) -> tuple[Reason, ...]:
    """Why the group is not stable; empty if it is. Instances in `but` may be missing."""
    return (*_rebalancing_in_kafka(seen), *_unheld(seen), *_unsettled(seen), *missing_instances(seen, group, but))


def missing_instances(seen: GroupSeen, group: GroupSpec, but: Collection[str] = ()) -> tuple[Reason, ...]:
    """K55 if instances of the cluster file have no member; those in `but` may be missing."""
    everyone = map_instances(seen.members or (), group)
    absent = [name for name, members in everyone.instances.items() if not members and name not in but]
    if not absent:
        return ()
    return (Reason("K55", f"Group {seen.name}: no member of {', '.join(absent[:_SHOWN])} is present."),)


def stopped(seen: GroupSeen | None, name: str) -> tuple[Reason, ...]:
    """K55 if the group has no member, or if that is unknown."""
    if seen is not None and seen.members:
        return ()
    return (Reason("K55", f"Group {name} has no member, neither in ZooKeeper nor in Kafka."),)


def _rebalancing_in_kafka(seen: GroupSeen) -> Iterator[Reason]:
    if seen.kafka is not None and not seen.kafka.stable:
        yield Reason("K52", f"Group {seen.name} rebalances in Kafka ({seen.kafka.state}).")


def _unheld(seen: GroupSeen) -> Iterator[Reason]:
    """K44 for partitions that no member owns, if members are in ZooKeeper."""
    if seen.zk is not None and seen.zk.registrations and (idle := unowned(seen)):
        yield Reason("K44", f"Group {seen.name}: no member owns {places(idle)}.")


def unowned(seen: GroupSeen) -> frozenset[TopicPartition]:
    """Partitions that no member owns; what Kafka consumers hold has no owner znode."""
    return seen.zk.unowned - seen.held_by(MemberKind.KAFKA) if seen.zk is not None else frozenset()


def _unsettled(seen: GroupSeen) -> Iterator[Reason]:
    """Migrating members that are not yet stable under the current mode."""
    zk = seen.zk
    late = [member.name for member in seen.of_kind(MemberKind.MIGRATING) if zk is not None and not _settled(member, zk)]
    if zk is not None and late:
        names = ", ".join(late[:_SHOWN])
        yield Reason("K52", f"Group {seen.name}: {len(late)} migrating consumers are not settled in {zk.mode} mode: {names}.")


def _settled(member: MemberSeen, zk: ZkGroup) -> bool:
    reported = member.progress
    return reported is not None and reported.settled and reported.mode is zk.mode and reported.epoch == zk.mode_epoch


_FORGOTTEN = 86_400.0  # seconds behind the group's newest commit after which an offset counts as one of a topic no longer read


def read_by(seen: GroupSeen, group: GroupSpec) -> frozenset[TopicPartition]:
    """What the group reads: what registrations select, Kafka consumers hold and, if these are incomplete, was committed lately.

    Offsets in ZooKeeper are never deleted: those of deleted or unsubscribed topics stay there for years.
    """
    certain = certainly_read(seen)
    if seen.zk is None or not _may_hide_partitions(seen, group):
        return certain
    newest = max((stored.changed_at for stored in seen.zk.offsets.values()), default=0.0)
    late = {where for where, stored in seen.zk.offsets.items() if newest - stored.changed_at < _FORGOTTEN}
    return certain | (late if seen.ends is None else late & seen.ends.keys())


def certainly_read(seen: GroupSeen) -> frozenset[TopicPartition]:
    """Partitions that a registration selects, or that exist and a Kafka consumer holds."""
    held = seen.held_by(MemberKind.KAFKA)
    return (held if seen.ends is None else held & seen.ends.keys()) | (seen.zk.partitions if seen.zk else frozenset())


def _may_hide_partitions(seen: GroupSeen, group: GroupSpec) -> bool:
    """True if a member may read what no registration shows: a Kafka consumer, an absent instance, an unreadable registration."""
    return not group.instances or bool(missing_instances(seen, group) or seen.of_kind(MemberKind.KAFKA) or flawed(seen))


def places(partitions: Iterable[TopicPartition]) -> str:
    """Partitions as text for a sentence."""
    return summarize(where.name for where in sorted(partitions))


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

    def observe(self, seen: GroupSeen | None, at: float, group: GroupSpec) -> GroupObservations:
        """Add one observation. If members are unknown, it changes no member's presence."""
        latest = replace(self, now=seen, at=at)
        if seen is None or seen.members is None:
            return latest
        everyone = map_instances(seen.members, group)
        missing = {name: self.missing_since.get(name, at) for name in everyone.instances if not everyone.kinds(name)}
        kafka_since = {
            member.incarnation: self.kafka_since.get(member.incarnation, at) for member in seen.of_kind(MemberKind.KAFKA)
        }
        whole = self._whole(seen, at)
        begun = self.begun or next(iter(whole), None)
        return replace(latest, whole=whole, begun=begun, missing_since=missing, kafka_since=kafka_since)

    def _whole(self, seen: GroupSeen, at: float) -> tuple[tuple[float, GroupSeen], ...]:
        whole = self.whole if unread(seen, seen.name) else (*self.whole, (at, seen))
        settled = [then for then, _ in whole if at - then >= OFFSETS_SETTLE]
        return tuple(each for each in whole if each[0] >= max(settled)) if settled else whole

    def missing_for(self, instance: str) -> float:
        """How long the instance has had no member, in seconds."""
        return self.at - self.missing_since.get(instance, self.at)

    def without_expiring_members(self, group: GroupSpec) -> GroupSeen | None:
        """The group without Kafka members that may be dead migrating consumers, which Kafka keeps until their session expires.

        Such a member has a consumer id of the group. The application sets its session timeout, so the wait is as long as for a
        member that starts. In mode kafka, if other members are Kafka consumers, it counts as a Kafka consumer.
        """
        seen = self.now
        if seen is None or seen.zk is None or seen.kafka is None:
            return seen
        consumers = seen.of_kind(MemberKind.KAFKA)
        called = [member for member in consumers if member.name.startswith(f"{group.name}_")]
        if seen.zk.requested_mode is Mode.KAFKA and len(called) < len(consumers):
            return seen
        limit = max(ABSENT, group.switch_timeout)
        expiring = {
            member.incarnation for member in called if self.at - self.kafka_since.get(member.incarnation, self.at) < limit
        }
        living = tuple(member for member in seen.kafka.members if member.member_id not in expiring)
        return replace(seen, kafka=replace(seen.kafka, members=living))


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


def before(seen: GroupSeen) -> GroupHealth:
    """Start from the observation just before a change: the group must still read every partition that it read then."""
    ends, at = seen.ends or {}, positions(seen)
    at_switch = {where: (at[where], ends[where]) for where in at.keys() & ends.keys()}
    return GroupHealth(before_switch=at_switch, read=certainly_read(seen))


def positions(seen: GroupSeen) -> dict[TopicPartition, int]:
    """Partition -> committed offset, the larger of both stores; -1 if the partition is read and has no commit."""
    wanted = seen.zk.partitions if seen.zk else frozenset()
    return dict.fromkeys(wanted, -1) | seen.positions


def follow(
    health: GroupHealth, seen: GroupSeen, group: GroupSpec, now: float, watched: tuple[str, MemberKind] | None = None
) -> GroupHealth:
    """Record one complete observation; `watched`: an instance and the kind that it must become."""
    ends, at = seen.ends or {}, positions(seen)
    read = (health.read & ends.keys()) | certainly_read(seen)
    marks = {
        where: _mark(health.marks.get(where), at.get(where, -1), ends.get(where), now, health.before_switch.get(where))
        for where in read | read_by(seen, group)
    }
    there = watched is None or map_instances(seen.members or (), group).kinds(watched[0]) == {watched[1]}
    return replace(
        _with_restarts(health, incarnations(seen, group, *watched)) if watched and (there or health.incarnations) else health,
        marks=marks,
        read=read,
        unstable_since=_since(health.unstable_since, bool(rebalancing(seen, group)), now),
        absent_since=_since(health.absent_since, not there, now),
    )


def unknown(health: GroupHealth, now: float) -> GroupHealth:
    """Record an incomplete observation: any offset may have moved since, so every timer restarts."""
    marks = {where: replace(mark, since=now) for where, mark in health.marks.items()}
    return replace(
        health,
        marks=marks,
        unstable_since=_since(None, health.unstable_since is not None, now),
        absent_since=_since(None, health.absent_since is not None, now),
    )


def incarnations(seen: GroupSeen, group: GroupSpec, instance: str, kind: MemberKind) -> frozenset[str]:
    """The incarnations of one instance's members of this kind."""
    members = map_instances(seen.members or (), group).instances[instance]
    return frozenset(member.incarnation for member in members if member.kind is kind and member.incarnation)


def _with_restarts(health: GroupHealth, now: frozenset[str]) -> GroupHealth:
    new = len(now - health.incarnations) if health.incarnations else 0
    return replace(
        health,
        incarnations=health.incarnations | now,
        most_members=max(health.most_members, len(now)),
        new_incarnations=health.new_incarnations + new,
    )


def _mark(last: Mark | None, offset: int, end: int | None, now: float, at_switch: tuple[int, int] | None) -> Mark:
    if last is None or last.offset != offset:
        return Mark(offset, now, end if end is not None else offset)
    # the timer restarts if the partition has caught up, or if it is unknown whether records wait
    waits = end is not None and (offset, end) != at_switch and _waits(last, end)
    return last if waits else replace(last, since=now, end=last.end if end is None else end)


def _waits(mark: Mark, end: int) -> bool:
    """True if there are records to read. A single last offset, already there at the last commit, is a transaction marker."""
    if mark.offset < 0:
        return end > mark.end
    return end > mark.offset and not end == mark.end == mark.offset + 1


def starving(health: GroupHealth, group: GroupSpec, now: float) -> tuple[TopicPartition, ...]:
    """Partitions with waiting records whose offset has not moved for `commit_within`."""
    return tuple(sorted(where for where, mark in health.marks.items() if now - mark.since >= group.commit_within))


def worse(health: GroupHealth, group: GroupSpec, now: float, limit: float = REBALANCE_LIMIT) -> tuple[Reason, ...]:
    """V30 for each fault of a switched group; empty if there is none. `limit`: seconds that it may take to become stable."""
    return tuple(_unhealthy(f"Group {group.name}{text}.") for text in _faults(health, group, now, limit))


def _faults(health: GroupHealth, group: GroupSpec, now: float, limit: float) -> Iterator[str]:
    if starved := starving(health, group, now):
        yield f" has committed no offset for {group.commit_within:.0f} s although records wait: {places(starved)}"
    if health.absent_since is not None and now - health.absent_since >= limit:
        yield f": the switched instance has been missing for {now - health.absent_since:.0f} s"
    if health.restarts >= RESTARTS:
        yield f": the switched instance has restarted {health.restarts} times"
    if health.unstable_since is not None and now - health.unstable_since >= limit:
        yield f" has not been stable for {now - health.unstable_since:.0f} s"


def never_healthy(group: GroupSpec, watched: float, times: int, wanted: float) -> tuple[Reason, ...]:
    """V30 if the group was unstable `times` times in `watched` seconds, and never healthy for `wanted` seconds; else empty."""
    if watched <= HEALTHY_PERIODS * wanted or not times:
        return ()
    text = f"was unstable {times} times in {watched:.0f} s, and never healthy for {wanted:.0f} s without a break."
    return (_unhealthy(f"Group {group.name} {text}"),)


def _unhealthy(text: str) -> Reason:
    return Reason("V30", text, cause=Cause.GROUP_UNHEALTHY)


def _since(then: float | None, so: bool, now: float) -> float | None:
    return (now if then is None else then) if so else None


def rolls_back(causes: Iterable[str]) -> bool:
    """True if a step refused for these reasons rolls its group back by itself: only for faults observed in the group.

    A step that could not observe, was not allowed to act, or was ended by the operator, has found no fault.
    """
    return Cause.GROUP_UNHEALTHY in causes
