"""Which member is which instance of the application, and whether a group is at rest: every partition held, nothing being shared out.

Waiting reasons and refusals both are `Reason`s; who calls knows which they are by the function's name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_kmigrate.core.cluster import GroupSpec, instance_called
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, MemberKind, MemberSeen, ZkGroup
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.model import Reason

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
