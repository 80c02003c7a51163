"""The migrating member's state, and the rules that need only it: what it may deliver, what it should own, where it commits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member import messages
from airflow_provider_kmigrate.core.member.assignors import (
    Frozen,
    KafkaMember,
    Owners,
    Strategy,
    assign,
    assign_streams,
    non_migrating_members,
    topics_of,
)
from airflow_provider_kmigrate.core.member.group_seen import Store
from airflow_provider_kmigrate.core.member.messages import GroupView, MemberAlarm
from airflow_provider_kmigrate.core.member.registration import MemberProgress, Mode, Registration, Unreadable, thread_id

LEASE: Final = 2 / 3
"""Share of the session timeout, from sending a request that was answered, within which the session cannot have expired."""


class PartitionStage(StrEnum):
    """The stage of one partition in a member."""

    CLAIMING = "claiming"  # it wants the owner znode
    READING = "reading"  # the znode is its own; the start offset is being read
    DELIVERING = "delivering"
    CHECKING = "checking"  # it delivered until the connection broke: does it still own the znode?
    STOPPING = "stopping"  # nothing new is delivered, handlers finish
    COMMITTING = "committing"
    RELEASING = "releasing"


LEAVING: Final = frozenset({PartitionStage.STOPPING, PartitionStage.COMMITTING, PartitionStage.RELEASING})


class UnknownAssignment(StrEnum):
    """Why the assignment of the whole group is not known. It is what the legacy consumer's rebalance listener gets (KIP-125)."""

    NOT_OBSERVED = "this member has not observed its group yet"
    FROZEN = "a registration in ZooKeeper cannot be read"
    TIES = "partitions of different topics have one hash, and their order is known to Scala's hash map alone"
    FOREIGN = "Kafka consumers hold partitions although ZooKeeper coordinates"
    NO_ANSWER = "the coordinator did not report the members of a stable group"
    OLDER = "the coordinator reports another share of this member than it was assigned: a rebalance is under way"
    MEMBER_MISSING = "a migrating consumer is registered in ZooKeeper and is no member in Kafka, or the other way round"


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """One partition. `since`: when its stage began; `asked`: when its last action was given; `waits`: an answer is awaited.

    `began`: the offset of its start, `committed`: the application has committed here, `last`: the last offset to commit, be it
    the start, `owed`: the stores that did not take it, `final`: the one with which it is released. `check_kafka_at`: when Kafka is
    sent `last` again, or asked whether it still has the start; `fenced`: Kafka takes none of its commits; `stale`: stores that
    may still hold an offset from before an operator's reset, which is kept while there are any.
    """

    generation: int
    thread: str
    stage: PartitionStage
    since: float
    asked: float
    waits: bool = True
    began: int | None = None
    committed: bool = False
    last: int | None = None
    owed: frozenset[Store] = frozenset()
    final: int | None = None
    check_kafka_at: float | None = None
    fenced: bool = False
    stale: frozenset[Store] = frozenset()


@dataclass(frozen=True, slots=True)
class Settings:
    """Time limits, in seconds.

    `poll_limit` is max.poll.interval.ms less a margin; `slow` is how long a ZooKeeper consumer waits at least; `late_commit` is
    how long an abandoned commit may still take effect in Kafka.
    """

    consumer: str
    registration: Registration
    strategy: Strategy = Strategy.RANGE
    internal_too: bool = False
    poll_limit: float = 240.0
    retry: float = 0.05
    slow: float = 4.0
    owed_retry: float = 1.0
    late_commit: float = 50.0
    observe_every: float = 5.0
    unowned: float = 15.0


@dataclass(frozen=True, slots=True)
class Member:
    """The whole state of a member. `live`: its session is proven until `lease`; `kafka`: what its embedded consumer was assigned.

    `kept`: until then ZooKeeper keeps the session, and no other member can own what it owns, whatever happens to it.
    """

    settings: Settings
    session: int | None = None
    live: bool = False
    registered: bool = False
    answered_at: float = float("-inf")
    lease: float = float("-inf")
    kept: float = float("-inf")
    polled: float = float("-inf")
    observed: float = float("-inf")
    view: GroupView | None = None
    kafka: frozenset[TopicPartition] = frozenset()
    target: Owners = field(default_factory=dict)
    held: Mapping[TopicPartition, HeldPartition] = field(default_factory=dict)
    generation: int = 0
    closing: bool = False
    published: MemberProgress | None = None
    raised: frozenset[tuple[MemberAlarm, str]] = frozenset()
    unowned: Mapping[TopicPartition, float] = field(default_factory=dict)

    @property
    def mode(self) -> Mode:
        """The mode that the member last observed; ZooKeeper before the first observation."""
        return self.view.mode if self.view else Mode.ZOOKEEPER

    @property
    def closed(self) -> bool:
        """True if it has left, or its session did so for it."""
        return self.closing and not self.registered and not self.held

    @property
    def settled(self) -> bool:
        """True if it delivers exactly its share, and holds nothing else."""
        delivering = {
            partition: held_partition.thread
            for partition, held_partition in self.held.items()
            if held_partition.stage is PartitionStage.DELIVERING
        }
        return self.registered and self.live and delivering == self.target and len(self.held) == len(delivering)


@dataclass(frozen=True, slots=True)
class DeliveryPermit:
    """The permit to deliver while the member does not change: partition -> generation, before `until` (monotonic)."""

    generations: Mapping[TopicPartition, int]
    until: float

    def allows(self, partition: TopicPartition, generation: int, now: float) -> bool:
        """Must be asked before every record that is returned, because a paused process wakes without an event."""
        return now < self.until and self.generations.get(partition) == generation


def delivery_permit(member: Member) -> DeliveryPermit:
    """What a member may deliver, and until when its session, and in Kafka mode its place in the Kafka group, are proven."""
    until = member.lease if member.mode is not Mode.KAFKA else min(member.lease, member.polled + member.settings.poll_limit)
    delivering = {
        partition: held_partition.generation
        for partition, held_partition in member.held.items()
        if held_partition.stage is PartitionStage.DELIVERING
    }
    return DeliveryPermit(delivering if member.live else {}, until)


def is_current_generation(member: Member, partition: TopicPartition, generation: int) -> bool:
    """True if a generation is still the member's; a commit asks this right before it is sent."""
    held_partition = member.held.get(partition)
    return held_partition is not None and held_partition.generation == generation


def blocks_revocation(member: Member, partitions: Collection[TopicPartition]) -> bool:
    """True if the Kafka group should still wait for one of these: it may be in use, or is being committed and released.

    Without ZooKeeper the group does not wait for the last two: the member that gets the partition waits for its owner znode.
    """
    used = {PartitionStage.DELIVERING, PartitionStage.CHECKING, PartitionStage.STOPPING, *(LEAVING if member.live else ())}
    return any(partition in member.held and member.held[partition].stage in used for partition in partitions)


def compute_target(settings: Settings, view: GroupView, kafka: Collection[TopicPartition]) -> Owners | Frozen:
    """What the member should own by this view, partition -> its thread; nothing while it is not registered itself."""
    if settings.consumer not in view.registrations:
        return {}
    if view.mode is Mode.KAFKA:
        return assign_streams(settings.consumer, subscribed_topics(settings, view), kafka)
    assignment = assign(settings.strategy, view.registrations, view.topics, internal=settings.internal_too)
    if isinstance(assignment, Frozen):
        return assignment
    streams = max(settings.registration.subscription.values(), default=0)
    threads = frozenset(thread_id(settings.consumer, stream) for stream in range(streams))
    return {
        partition: thread
        for partition, thread in assignment.owners.items()
        if thread in threads and partition not in view.foreign
    }


def compute_global_assignment(
    settings: Settings, view: GroupView | None, kafka: Collection[TopicPartition], members: Collection[KafkaMember] | None
) -> Owners | UnknownAssignment:
    """Partition -> thread of every member, by this member's last observation. A wrong one would be worse than none.

    While Kafka coordinates: each member's share by the coordinator, split over its threads by its registration in ZooKeeper, as KIP-125 says.

    `kafka`: what this member's embedded consumer was assigned; `members`: of the stable Kafka group, None if it did not answer. A Kafka
    consumer has no threads: its partitions go to its client.id.
    """
    if view is None or settings.consumer not in view.registrations:
        return UnknownAssignment.NOT_OBSERVED
    if view.mode is Mode.KAFKA:
        return _split_kafka_assignment(settings, view, kafka, members)
    if view.foreign:
        return UnknownAssignment.FOREIGN
    assigned = assign(settings.strategy, view.registrations, view.topics, internal=settings.internal_too)
    if isinstance(assigned, Frozen):
        return UnknownAssignment.FROZEN
    return UnknownAssignment.TIES if assigned.ties else assigned.owners


def _split_kafka_assignment(
    settings: Settings, view: GroupView, kafka: Collection[TopicPartition], members: Collection[KafkaMember] | None
) -> Owners | UnknownAssignment:
    if members is None:
        return UnknownAssignment.NO_ANSWER
    consumers = non_migrating_members(members, view.migrating)
    shares: dict[str, set[TopicPartition]] = defaultdict(set)  # a member that changes its assignors is in the group twice
    for member in members:
        if member not in consumers:
            shares[member.client_id] |= member.partitions
    if shares.keys() != view.registrations.keys():
        return UnknownAssignment.MEMBER_MISSING
    if shares[settings.consumer] != set(kafka):
        return UnknownAssignment.OLDER
    owners = {partition: member.client_id for member in consumers for partition in member.partitions}
    for name, share in shares.items():
        registration = view.registrations[name]
        topics = (
            registration
            if isinstance(registration, Unreadable)
            else topics_of(registration, view.topics, internal=settings.internal_too)
        )
        if isinstance(topics, Unreadable):
            return UnknownAssignment.FROZEN
        owners |= assign_streams(name, topics, share)
    return owners


def subscribed_partitions(settings: Settings, view: GroupView) -> frozenset[TopicPartition]:
    """The partitions that a member of the group should own, as far as this member's own subscription shows."""
    topics = subscribed_topics(settings, view)
    return frozenset(TopicPartition(topic, partition) for topic in topics for partition in view.topics.get(topic, ()))


def subscribed_topics(settings: Settings, view: GroupView) -> Mapping[str, int]:
    """Topic -> streams of the member's own subscription; it may name topics that do not exist."""
    topics = topics_of(settings.registration, view.topics, internal=settings.internal_too)
    return {} if isinstance(topics, Unreadable) else topics


def stores_of_mode(mode: Mode, *, fenced: bool = False) -> tuple[Store, ...]:
    """A commit's targets, the mode's own store first (R20); a member removed from the Kafka group must not commit there (G23)."""
    if fenced:
        return (Store.ZOOKEEPER,)
    return (Store.KAFKA, Store.ZOOKEEPER) if mode is Mode.KAFKA else (Store.ZOOKEEPER, Store.KAFKA)


def due_commits(
    waiting: Sequence[messages.CommitOffset],
) -> list[tuple[messages.CommitOffset, tuple[messages.CommitOffset, ...]]]:
    """The waiting commits of one partition: each with the earlier ones that it replaces, itself the last of them.

    A later commit replaces an earlier one of its generation that goes to no other store. Otherwise an application that commits
    every record asks for more than a store can take, and a handover waits for all of it.
    """
    due: list[tuple[messages.CommitOffset, tuple[messages.CommitOffset, ...]]] = []
    for later in waiting:
        replaced: tuple[messages.CommitOffset, ...] = ()
        while due and due[-1][0].generation == later.generation and set(due[-1][0].stores) <= set(later.stores):
            replaced = due.pop()[1] + replaced
        due.append((later, (*replaced, later)))
    return due


def start_offset(read: messages.OffsetsRead) -> int | None:
    """The larger of the two stores, as in the ZooKeeper consumer's dual mode; an offset that the operator recorded wins."""
    if read.reset is not None:
        return read.reset
    return max((offset for offset in (read.zookeeper, read.kafka) if offset is not None and offset >= 0), default=None)
