"""Which member is which instance of the application, and whether a group is at rest: every partition held, nothing being shared out.

Waiting reasons and refusals both are `Reason`s; who calls knows which they are by the function's name.

What a step has seen of a group so far: now, an earlier look to compare with, and who has been away since when.

Does a group go on consuming? Judged from committed offsets, never from owners: those look perfect while partitions starve (measured).

A partition starves while there are records that nobody has committed, and its offset, the larger of both stores, has stood still for
longer than its consumers take between two commits. What waited in just the same way before the switch does not count: an idle log that
ends with transactions' markers seems to have records for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_kmigrate.core.cluster import GroupSpec, instance_called
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, MemberKind, MemberSeen, ZkGroup
from airflow_provider_kmigrate.core.coordination.registration import Mode
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.model import Cause, Reason

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class InstanceMap:
    """Who plays whom: the members of each instance of the cluster file, and those of none. An instance may have several members."""

    instances: Mapping[str, tuple[MemberSeen, ...]]
    strangers: tuple[MemberSeen, ...]

    def kinds(self, instance: str) -> frozenset[MemberKind]:
        """What an instance runs as; two kinds while it is restarted, none while nothing of it is seen."""
        return frozenset(member.kind for member in self.instances[instance])

    def of_kind(self, kind: MemberKind) -> tuple[str, ...]:
        """The instances that run as nothing else."""
        return tuple(name for name in self.instances if self.kinds(name) == {kind})


def map_instances(members: Iterable[MemberSeen], group: GroupSpec) -> InstanceMap:
    """Members by the file's instances."""
    names = [instance.name for instance in group.instances]
    found: dict[str, list[MemberSeen]] = {name: [] for name in names}
    strangers: list[MemberSeen] = []
    for member in members:
        name = instance_called(member.name, group.name, names)
        (strangers if name is None else found[name]).append(member)
    return InstanceMap({name: tuple(theirs) for name, theirs in found.items()}, tuple(strangers))


def unread(
    seen: GroupSeen | None, name: str, *, ends: bool = False, offsets: bool = True, kafka: bool = True
) -> tuple[Reason, ...]:
    """What of the group could not be read; empty when all was. `ends`: with the ends of its logs, without which nothing starves.

    A partition without a leader tells no end: whether records wait there nobody knows. `offsets` and `kafka`: with Kafka's offsets, and
    its members.
    """
    if seen is None:
        return (Reason("K30", f"Group {name} could not be read."),)
    sides: dict[str, object] = {"its znodes": seen.zk}
    sides |= {"its members in Kafka": seen.kafka} if kafka else {}
    sides |= {"its offsets in Kafka": seen.committed} if offsets else {}
    sides |= {"its logs' ends": seen.ends} if ends else {}
    missing = [what for what, found in sides.items() if found is None]
    endless = _endless(seen) if ends else frozenset()
    missing += [f"the ends of {places(endless)}"] if endless else []
    return (Reason("K30", f"Group {name}: {' and '.join(missing)} could not be read."),) if missing else ()


def unheard(seen: GroupSeen) -> tuple[Reason, ...]:
    """Whether neither side knows the group; a side that was not read knows nothing of it either."""
    zk, kafka = seen.zk, seen.kafka
    if zk is not None and (zk.registrations or zk.progress or zk.owners or zk.offsets or zk.mode_version >= 0):
        return ()
    if seen.committed or (kafka is not None and (kafka.members or kafka.state != "Dead")):
        return ()
    text = f"Neither ZooKeeper nor Kafka knows a group {seen.name}."
    return (Reason("K67", text),)


def _endless(seen: GroupSeen) -> frozenset[TopicPartition]:
    if seen.ends is None or seen.zk is None:
        return frozenset()
    return (seen.zk.partitions | held_in_kafka(seen)) - seen.ends.keys()


def flawed(seen: GroupSeen) -> tuple[Reason, ...]:
    """Registrations that nobody can read: they freeze every old consumer of the group."""
    return tuple(
        Reason(
            "K31",
            f"Group {seen.name}: the registration of {member.name} cannot be read ({member.flaw}).",
        )
        for member in seen.members or ()
        if member.flaw is not None
    )


def unknown_members(seen: GroupSeen, group: GroupSpec) -> tuple[Reason, ...]:
    """Members that are no instance's of the cluster file."""
    strangers = map_instances(seen.members or (), group).strangers
    if not strangers:
        return ()
    named = ", ".join(f"{member.name} ({member.kind})" for member in strangers[:_SHOWN])
    return (Reason("K56", f"Group {seen.name} has members that the cluster file does not know: {named}."),)


def restless(seen: GroupSeen, group: GroupSpec, but: Collection[str] = ()) -> tuple[Reason, ...]:
    """Why the group is not at rest; empty when it is. Instances in `but` may be missing."""
    return (*_sharing(seen), *_unheld(seen), *_unsettled(seen), *away(seen, group, but))


def away(seen: GroupSeen, group: GroupSpec, but: Collection[str] = ()) -> tuple[Reason, ...]:
    """Instances of which nothing is seen."""
    everyone = map_instances(seen.members or (), group)
    absent = [name for name, members in everyone.instances.items() if not members and name not in but]
    if not absent:
        return ()
    return (Reason("K55", f"Group {seen.name}: nothing is seen of {', '.join(absent[:_SHOWN])}."),)


def stopped(seen: GroupSeen | None, name: str) -> tuple[Reason, ...]:
    """Whether nobody at all is in the group; also where that is not known."""
    if seen is not None and seen.members:
        return ()
    text = f"Group {name}: nobody is in it, neither in ZooKeeper nor in Kafka."
    return (Reason("K55", text),)


def _sharing(seen: GroupSeen) -> list[Reason]:
    if seen.kafka is None or seen.kafka.stable:
        return []
    text = f"Group {seen.name} is being shared out in Kafka ({seen.kafka.state})."
    return [Reason("K52", text)]


def _unheld(seen: GroupSeen) -> list[Reason]:
    """Of members in ZooKeeper; what plain members hold has no owner's znode."""
    if seen.zk is None or not seen.zk.registrations:
        return []
    idle = seen.zk.unowned - held_in_kafka(seen)
    if not idle:
        return []
    return [
        Reason(
            "K41",
            f"Group {seen.name}: nobody holds {places(idle)}.",
        )
    ]


def held_in_kafka(seen: GroupSeen) -> frozenset[TopicPartition]:
    """What plain members hold."""
    return frozenset().union(*(member.holds for member in seen.of_kind(MemberKind.PLAIN)))


_FORGOTTEN = 86_400.0  # seconds behind the group's newest commit after which an offset is of a topic that is read no more


def read_by(seen: GroupSeen, group: GroupSpec) -> frozenset[TopicPartition]:
    """What the group reads: what a registration selects, what a plain member holds, and where these do not tell all, what has been
    committed of late.

    Offsets in ZooKeeper are never deleted: those of topics that were deleted, or are subscribed no more, stand there for years.
    """
    surely = surely_read(seen)
    if seen.zk is None or not _hides(seen, group):
        return surely
    newest = max((stored.changed_at for stored in seen.zk.offsets.values()), default=0.0)
    late = {where for where, stored in seen.zk.offsets.items() if newest - stored.changed_at < _FORGOTTEN}
    return surely | (late if seen.ends is None else late & seen.ends.keys())


def surely_read(seen: GroupSeen) -> frozenset[TopicPartition]:
    """What a registration selects, and what a plain member holds of what exists."""
    held = held_in_kafka(seen)
    return (held if seen.ends is None else held & seen.ends.keys()) | (seen.zk.partitions if seen.zk else frozenset())


def _hides(seen: GroupSeen, group: GroupSpec) -> bool:
    """Whether somebody may read what no registration tells: instances that are plain, or away, and registrations that nobody can read."""
    everyone = map_instances(seen.members or (), group)
    plain = any(MemberKind.PLAIN in everyone.kinds(name) or not everyone.kinds(name) for name in everyone.instances)
    return plain or not everyone.instances or bool(seen.of_kind(MemberKind.PLAIN)) or bool(flawed(seen))


def _unsettled(seen: GroupSeen) -> list[Reason]:
    """Migrating members that have not come to rest under the mode as it is now."""
    zk = seen.zk
    if zk is None:
        return []
    late = [member.name for member in seen.of_kind(MemberKind.MIGRATING) if not _settled(member, zk)]
    if not late:
        return []
    text = f"Group {seen.name}: {len(late)} migrating members are not settled in {zk.mode} mode: {', '.join(late[:_SHOWN])}."
    return [Reason("K52", text)]


def _settled(member: MemberSeen, zk: ZkGroup) -> bool:
    told = member.progress
    return told is not None and told.settled and told.mode is zk.mode and told.epoch == zk.mode_epoch


def places(partitions: Iterable[TopicPartition]) -> str:
    """Partitions as a sentence has them."""
    ordered = sorted(partitions)
    named = ", ".join(where.name for where in ordered[:_SHOWN])
    return f"{named}, ... ({len(ordered)})" if len(ordered) > _SHOWN else named


OFFSETS_SETTLE = 5.0  # seconds after which an offset that one store had must be in the other, too
ABSENT = 45.0  # seconds without any member after which an instance is restarted once more; a dead one's session lasts as long by default


@dataclass(frozen=True, slots=True)
class GroupObservations:
    """The group now, and at an earlier look to compare its offsets with, each with its time on the monotonic clock.

    `begun`: the first whole look of the same step. `away`: instance -> since when nothing of it is seen; one that is seen now is
    not in it. `plain`: life of each plain member that is seen -> since when.
    """

    now: GroupSeen | None
    at: float
    first: GroupSeen | None = None
    first_at: float = 0.0
    begun: GroupSeen | None = None
    begun_at: float = 0.0
    away: Mapping[str, float] = field(default_factory=dict)
    plain: Mapping[str, float] = field(default_factory=dict)

    def absent_for(self, instance: str) -> float:
        """Seconds."""
        return self.at - self.away.get(instance, self.at)

    def without_ghosts(self, group: GroupSpec) -> GroupSeen | None:
        """The group without plain members that may be dead migrating ones: their places in Kafka, which it keeps for a session.

        Such a place is called by a consumer id of the group, and is gone within a session, whose length is the application's own: it is waited for as
        long as for a member that starts. It is taken for a plain member's where the mode is kafka and others are plain, too.
        """
        seen = self.now
        if seen is None or seen.zk is None or seen.kafka is None:
            return seen
        plain = seen.of_kind(MemberKind.PLAIN)
        called = [member for member in plain if member.name.startswith(f"{group.name}_")]
        if seen.zk.toggle is Mode.KAFKA and len(called) < len(plain):
            return seen
        limit = max(ABSENT, group.switch_timeout)
        ghosts = {member.life for member in called if self.at - self.plain.get(member.life, self.at) < limit}
        living = tuple(member for member in seen.kafka.members if member.member_id not in ghosts)
        return replace(seen, kafka=replace(seen.kafka, members=living))


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """What is kept of the looks of one step, for the next one to be judged by.

    `whole`: (time, look) of those in which nothing was unknown, oldest first; the first of them is the one to compare with: the
    youngest that is `OFFSETS_SETTLE` old, or the oldest there is. An older one would say less with each commit since.
    """

    whole: tuple[tuple[float, GroupSeen], ...] = ()
    begun: tuple[float, GroupSeen] | None = None
    away: Mapping[str, float] = field(default_factory=dict)
    plain: Mapping[str, float] = field(default_factory=dict)

    def saw(self, seen: GroupSeen | None, at: float, group: GroupSpec) -> GroupHistory:
        """Take in one look. Where members are unknown, nobody has come or gone."""
        if seen is None or seen.members is None:
            return self
        everyone = map_instances(seen.members, group)
        away = {name: self.away.get(name, at) for name in everyone.instances if not everyone.kinds(name)}
        plain = {member.life: self.plain.get(member.life, at) for member in seen.of_kind(MemberKind.PLAIN)}
        whole = self._whole(seen, at)
        return replace(self, whole=whole, begun=self.begun or next(iter(whole), None), away=away, plain=plain)

    def _whole(self, seen: GroupSeen, at: float) -> tuple[tuple[float, GroupSeen], ...]:
        whole = self.whole if unread(seen, seen.name) else (*self.whole, (at, seen))
        settled = [then for then, _ in whole if at - then >= OFFSETS_SETTLE]
        return tuple(each for each in whole if each[0] >= max(settled)) if settled else whole

    def looks(self, seen: GroupSeen | None, at: float) -> GroupObservations:
        """For the look that was taken in last."""
        first_at, first = self.whole[0] if self.whole else (at, None)
        begun_at, begun = self.begun or (at, None)
        return GroupObservations(seen, at, first, first_at, begun, begun_at, self.away, self.plain)


UNREST = 60.0  # seconds that a group may take to come to rest without having been touched
RESTARTS = 3  # so often a watched instance may not begin anew
STRETCHES = 10  # times as long as a group has to be well for at a stretch it may take to come to that


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a partition's consumers stood when their offset last moved; `offset` -1 and the log's end then, where none is committed."""

    offset: int
    since: float
    end: int


@dataclass(frozen=True, slots=True)
class Health:
    """What many looks at one group come to; times on the monotonic clock of one process.

    Of the watched instance: `lives`: every one that was seen of its members, `crew`: how many at once at most, `renewed`: how many
    began after it had been there as what it is to be. `earlier`: how often it began anew by the looks of earlier processes.

    `stood`: offset and log's end of each partition just before the switch, `read`: what is surely read, then or since.
    """

    marks: Mapping[TopicPartition, Mark] = field(default_factory=dict)
    stood: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    read: frozenset[TopicPartition] = frozenset()
    unrest: float | None = None  # since when the group has not been at rest
    gone: float | None = None  # since when the watched instance has not been seen as what it is to be
    lives: frozenset[str] = frozenset()
    crew: int = 1
    renewed: int = 0
    earlier: int = 0

    @property
    def restarts(self) -> int:
        """How often the watched instance, all of its members, has begun anew."""
        return self.earlier + self.renewed // self.crew


def before(seen: GroupSeen | None, earlier: int = 0) -> Health:
    """With what one look shows that is about to be changed: what it reads it has to go on reading."""
    if seen is None:
        return Health(earlier=earlier)
    ends, at = seen.ends or {}, positions(seen)
    return Health(
        stood={where: (at[where], ends[where]) for where in at.keys() & ends.keys()}, read=surely_read(seen), earlier=earlier
    )


def positions(seen: GroupSeen) -> dict[TopicPartition, int]:
    """Partition -> committed offset, the larger of both stores; -1 for one that somebody reads and nobody has committed."""
    wanted = seen.zk.partitions if seen.zk else frozenset()
    return dict.fromkeys(wanted, -1) | seen.positions


def follow(
    health: Health, seen: GroupSeen, group: GroupSpec, now: float, watched: tuple[str, MemberKind] | None = None
) -> Health:
    """Take in one look, of which nothing is unknown; `watched`: an instance and what it is to be."""
    ends, at = seen.ends or {}, positions(seen)
    read = (health.read & ends.keys()) | surely_read(seen)
    marks = {
        where: _mark(health.marks.get(where), at.get(where, -1), ends.get(where), now, health.stood.get(where))
        for where in read | read_by(seen, group)
    }
    there = watched is None or map_instances(seen.members or (), group).kinds(watched[0]) == {watched[1]}
    return replace(
        _lived(health, lives(seen, group, *watched)) if watched and (there or health.lives) else health,
        marks=marks,
        read=read,
        unrest=_since(health.unrest, bool(restless(seen, group)), now),
        gone=_since(health.gone, not there, now),
    )


def unknown(health: Health, now: float) -> Health:
    """Take in a look in which something was unknown: what had stood still may have moved since, so every clock begins anew."""
    marks = {where: replace(mark, since=now) for where, mark in health.marks.items()}
    return replace(
        health, marks=marks, unrest=_since(None, health.unrest is not None, now), gone=_since(None, health.gone is not None, now)
    )


def lives(seen: GroupSeen, group: GroupSpec, instance: str, kind: MemberKind) -> frozenset[str]:
    """Of the members of one instance that are of this kind."""
    members = map_instances(seen.members or (), group).instances[instance]
    return frozenset(member.life for member in members if member.kind is kind and member.life)


def _lived(health: Health, now: frozenset[str]) -> Health:
    new = len(now - health.lives) if health.lives else 0
    return replace(health, lives=health.lives | now, crew=max(health.crew, len(now)), renewed=health.renewed + new)


def _mark(last: Mark | None, offset: int, end: int | None, now: float, stood: tuple[int, int] | None) -> Mark:
    if last is None or last.offset != offset:
        return Mark(offset, now, end if end is not None else offset)
    # one that is caught up does not age, nor one of which nobody knows whether records wait
    waits = end is not None and (offset, end) != stood and _waits(last, end)
    return last if waits else replace(last, since=now, end=last.end if end is None else end)


def _waits(mark: Mark, end: int) -> bool:
    """Whether there are records to read. A last offset that has been alone since the commit before it is a transaction's marker."""
    if mark.offset < 0:
        return end > mark.end
    return end > mark.offset and not end == mark.end == mark.offset + 1


def starving(health: Health, group: GroupSpec, now: float) -> tuple[TopicPartition, ...]:
    """Partitions with records that wait, whose offset has not moved for `commit_within`."""
    return tuple(sorted(where for where, mark in health.marks.items() if now - mark.since >= group.commit_within))


def worse(health: Health, group: GroupSpec, now: float, unrest: float = UNREST) -> tuple[Reason, ...]:
    """What is wrong with a group that was switched; empty while nothing is. `unrest`: seconds that it may take to come to rest."""
    reasons = []
    hungry = starving(health, group, now)
    if hungry:
        text = (
            f"Group {group.name} has committed nothing for {group.commit_within:.0f} s although records wait: {places(hungry)}."
        )
        reasons.append(Reason("V30", text, cause=Cause.GROUP_UNWELL))
    if health.gone is not None and now - health.gone >= unrest:
        text = f"Group {group.name}: the switched instance has been away for {now - health.gone:.0f} s."
        reasons.append(Reason("V30", text, cause=Cause.GROUP_UNWELL))
    if health.restarts >= RESTARTS:
        text = f"Group {group.name}: the switched instance has begun anew {health.restarts} times."
        reasons.append(Reason("V30", text, cause=Cause.GROUP_UNWELL))
    if health.unrest is not None and now - health.unrest >= unrest:
        text = f"Group {group.name} has not been at rest for {now - health.unrest:.0f} s."
        reasons.append(Reason("V30", text, cause=Cause.GROUP_UNWELL))
    return tuple(reasons)


def never_well(group: GroupSpec, watched: float, times: int, wanted: float) -> tuple[Reason, ...]:
    """What is wrong with a group that was seen for `watched` seconds, was not at rest `times` times, and never well for `wanted`."""
    if watched <= STRETCHES * wanted or not times:
        return ()
    text = f"Group {group.name} was not at rest {times} times in {watched:.0f} s, and never well for {wanted:.0f} s at a stretch."
    return (Reason("V30", text, cause=Cause.GROUP_UNWELL),)


def _since(then: float | None, so: bool, now: float) -> float | None:
    return (now if then is None else then) if so else None


def goes_back(causes: Iterable[str]) -> bool:
    """Whether a group is taken back by itself after a step that was refused for these reasons: only for what was seen of the group.

    A step that could not look, was not allowed to act, or was ended by a person, has found nothing out.
    """
    return Cause.GROUP_UNWELL in causes
