"""One observation of a consumer group in ZooKeeper and Kafka: its members, their kinds, and its offsets.

What could not be read is None, never a default that looks healthy. Tools, the gate of the cluster's migration and the DAG that
moves groups all decide on this; `clients.group_reads` makes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import KafkaMember, non_migrating_members
from airflow_provider_kmigrate.core.member.cutover_note import CutoverNote, UnreadableNote
from airflow_provider_kmigrate.core.member.registration import (
    GroupHold,
    MemberProgress,
    Mode,
    Registration,
    Unreadable,
    consumer_of,
    host_of_consumer,
    parse_mode,
)


class MemberKind(StrEnum):
    """The kind of member that an instance of the application runs as."""

    ZOOKEEPER = "zookeeper"  # Kafka's ZooKeeper consumer, or ours without migration: in ids only
    MIGRATING = "migrating"  # in ids and in migration/ids
    KAFKA = "kafka"  # in the Kafka group, and no migrating member's


class Store(StrEnum):
    """Where offsets are committed."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """`offsets/<topic>/<partition>`: the next offset to read, and when it was written, in seconds since the epoch."""

    offset: int | Unreadable
    changed_at: float


def usable_offsets(stored: Mapping[TopicPartition, object]) -> dict[TopicPartition, int]:
    """Offsets that a member can begin at. Other contents do not count: no number, or -1 of a member that never committed."""
    return {partition: offset for partition, offset in stored.items() if isinstance(offset, int) and offset >= 0}


@dataclass(frozen=True, slots=True)
class ZkGroup:
    """A group's znodes below `/consumers/<group>`.

    `progress`: children of migration/ids, with what each reports of itself (None: nothing known). `mode_version`: the data
    version of migration/mode, -1 if there is none; `mode_epoch` its mzxid, 0 if there is none. `partitions`: every existing
    partition that a readable registration selects. `hold`: that it was rolled back; `resets`: offsets that the operator recorded
    and that no holder has applied yet. `joined`: members have been in it since it was last cleaned up: the folder `ids` stays
    behind. `cutover_partitions`: every existing partition of the topics that the cutover's note names, with or without members.
    """

    registrations: Mapping[str, Registration | Unreadable] = field(default_factory=dict)
    progress: Mapping[str, MemberProgress | None] = field(default_factory=dict)
    mode_data: bytes | None = None
    mode_version: int = -1
    mode_epoch: int = 0
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)  # partition -> thread id
    offsets: Mapping[TopicPartition, StoredOffset] = field(default_factory=dict)
    partitions: frozenset[TopicPartition] = frozenset()
    hold: GroupHold | None = None
    resets: Mapping[TopicPartition, int | Unreadable] = field(default_factory=dict)
    joined: bool = False
    cutover: CutoverNote | UnreadableNote | None = None  # how far the group's cutover is; None: none has begun
    unregistered_s: float | None = None  # seconds since a client that is not registered committed here; None: none did lately
    cutover_partitions: frozenset[TopicPartition] = frozenset()

    @property
    def requested_mode(self) -> Mode:
        """The mode in migration/mode; members follow it only if every one of them can (`mode`)."""
        return parse_mode(self.mode_data)

    @property
    def mode(self) -> Mode:
        """The coordinator: Kafka only if migration/mode says so and every member migrates."""
        return self.requested_mode if self.registrations.keys() <= self.progress.keys() else Mode.ZOOKEEPER

    @property
    def committed(self) -> dict[TopicPartition, int]:
        """The committed offsets that are usable."""
        return usable_offsets({partition: stored.offset for partition, stored in self.offsets.items()})

    @property
    def unowned(self) -> frozenset[TopicPartition]:
        """Partitions that are wanted and not held."""
        return self.partitions - self.owners.keys()


@dataclass(frozen=True, slots=True)
class KafkaGroup:
    """A group as its coordinator describes it. `state` as Kafka names it: Stable, Empty, Dead, PreparingRebalance, CompletingRebalance."""

    state: str
    members: tuple[KafkaMember, ...] = ()

    @property
    def stable(self) -> bool:
        """True if no rebalance is under way."""
        return self.state in {"Stable", "Empty", "Dead"}


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """One member. `name`: its consumer id in ZooKeeper, its client.id in Kafka. `holds`: by owner znode, or in Kafka.

    `host`: as Kafka reports it; in ZooKeeper the host name within the consumer id; empty if neither says.

    `incarnation`: what it does not share with an earlier process of the same name; empty if unknown. It is Kafka's member id, or the
    time of registration. A migrating member keeps that for life, whatever its sessions do.
    """

    name: str
    kind: MemberKind
    holds: frozenset[TopicPartition] = frozenset()
    flaw: Unreadable | None = None  # a registration that freezes the group
    progress: MemberProgress | None = None
    host: str = ""
    incarnation: str = ""


@dataclass(frozen=True)  # without slots: `members` is kept, every check of a scan asks for it
class GroupSeen:
    """The group on both sides. `committed`: offsets in Kafka; `ends`: log ends of partitions that it reads or committed for."""

    name: str
    zk: ZkGroup | None = None
    kafka: KafkaGroup | None = None
    committed: Mapping[TopicPartition, int] | None = None
    ends: Mapping[TopicPartition, int] | None = None

    @cached_property
    def members(self) -> tuple[MemberSeen, ...] | None:
        """All members of the group, by kind and name; None if a side could not be read.

        A member in migration/ids alone is about to join or to leave, and counts as migrating.
        """
        if self.zk is None or self.kafka is None:
            return None
        zk, kafka = self.zk, self.kafka
        names, held = zk.registrations.keys() | zk.progress.keys(), _partitions_by_owner(zk)
        consumers = [
            MemberSeen(member.client_id, MemberKind.KAFKA, member.partitions, host=member.host, incarnation=member.member_id)
            for member in non_migrating_members(kafka.members, zk.progress.keys())
        ]
        in_zookeeper = (_build_zookeeper_member(name, self.name, zk, frozenset(held.get(name, ()))) for name in names)
        return tuple(sorted([*in_zookeeper, *consumers], key=_member_order))

    @property
    def zookeeper_offsets(self) -> dict[TopicPartition, int]:
        """Offsets in ZooKeeper that a member can begin at; none if it was not read."""
        return self.zk.committed if self.zk else {}

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The group's positions as its members begin at them: the larger of both stores. Unread stores do not count."""
        zookeeper, kafka = self.zookeeper_offsets, self.committed or {}
        return {
            partition: max(zookeeper.get(partition, -1), kafka.get(partition, -1))
            for partition in zookeeper.keys() | kafka.keys()
        }

    def members_of_kind(self, kind: MemberKind) -> tuple[MemberSeen, ...]:
        """The members of one kind; none if a side could not be read (`members` is then None)."""
        return tuple(member for member in self.members or () if member.kind is kind)

    def partitions_held_by(self, kind: MemberKind) -> frozenset[TopicPartition]:
        """What the members of one kind hold."""
        return frozenset().union(*(member.holds for member in self.members_of_kind(kind)))


_ORDER: Final = {kind: place for place, kind in enumerate(MemberKind)}


def _member_order(member: MemberSeen) -> tuple[int, str]:
    return _ORDER[member.kind], member.name


def _partitions_by_owner(zk: ZkGroup) -> dict[str, list[TopicPartition]]:
    partitions: dict[str, list[TopicPartition]] = defaultdict(list)
    for partition, thread in zk.owners.items():
        partitions[consumer_of(thread)].append(partition)
    return partitions


def _build_zookeeper_member(name: str, group: str, zk: ZkGroup, holds: frozenset[TopicPartition]) -> MemberSeen:
    entry = zk.registrations.get(name)
    return MemberSeen(
        name,
        MemberKind.MIGRATING if name in zk.progress else MemberKind.ZOOKEEPER,
        holds,
        entry if isinstance(entry, Unreadable) else None,
        zk.progress.get(name),
        host_of_consumer(name, group),
        incarnation=f"{name} {entry.timestamp}" if isinstance(entry, Registration) else "",
    )


class Lag(NamedTuple):
    """A partition's committed offset and its log's end; `records`: what is between them."""

    committed: int
    end: int

    @property
    def records(self) -> int:
        """Records behind the end of the log."""
        return self.end - self.committed


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """Where a group with members stands in each partition that it has committed."""

    places: Mapping[TopicPartition, Lag] = field(default_factory=dict)

    def partitions_with_lag(self) -> Iterator[tuple[TopicPartition, Lag]]:
        """The partitions with lag."""
        return ((partition, lag) for partition, lag in self.places.items() if lag.records > 0)

    def has_committed_since(self, earlier: GroupPosition) -> bool:
        """Whether anything was committed since."""
        return any(
            partition not in earlier.places or earlier.places[partition].committed != lag.committed
            for partition, lag in self.places.items()
        )

    def stalled_since(self, earlier: GroupPosition) -> frozenset[str]:
        """The names of partitions that have lag now and had some then, without a commit between."""
        earlier_lags = earlier.places
        return frozenset(
            partition.name
            for partition, lag in self.partitions_with_lag()
            if partition in earlier_lags
            and earlier_lags[partition].records > 0
            and earlier_lags[partition].committed == lag.committed
        )


@dataclass(frozen=True, slots=True)
class GroupSweep:
    """One sweep over the consumer groups that have members.

    `unread`: groups whose offsets or log ends were not reported; `unresponsive`: brokers that did not answer, whose groups are missing.
    `members`: of the groups that the observation named. `left`: where those of them stand that have no members. `rebalancing`: the
    states of groups that are not stable, as Kafka names them.
    """

    groups: Mapping[str, GroupPosition] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    unresponsive: tuple[int, ...] = ()
    members: Mapping[str, tuple[KafkaMember, ...]] = field(default_factory=dict)
    left: Mapping[str, GroupPosition] = field(default_factory=dict)
    rebalancing: Mapping[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether every broker answered for every group."""
        return not self.unread and not self.unresponsive

    def has_no_members(self, group: str) -> bool:
        """Whether a group certainly has no members."""
        return group not in self.groups and group not in self.unread and not self.unresponsive
