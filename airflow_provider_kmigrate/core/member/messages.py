"""The events and actions of a migrating member (`core.member.membership`), all frozen.

An event or action about one partition carries the generation under which the member asked for that partition. A generation ends
when the partition is released or lost, so whatever arrives for an older one is out of date and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.group_seen import Store
from airflow_provider_kmigrate.core.member.registration import MemberProgress, Mode, Registration, Unreadable, parse_mode


@dataclass(frozen=True, slots=True)
class GroupView:
    """One observation of the group's znodes and the topics, in one session after a `sync`.

    Read first `migration/ids`, then `ids`, then the mode: in this order a member that joins meanwhile can only seem unable to
    migrate, which means ZooKeeper mode: the safe side.
    """

    session: int
    epoch: int  # the mode znode's mzxid; 0 while there is none
    mode_data: bytes | None
    registrations: Mapping[str, Registration | Unreadable]  # children of ids
    migrating: frozenset[str]  # children of migration/ids
    topics: Mapping[str, Collection[int]]
    owned: frozenset[TopicPartition] = frozenset()  # whose owner znode exists, whichever member made it
    foreign: frozenset[TopicPartition] = (
        frozenset()
    )  # held in Kafka by members that know no owner znodes (`assignors.foreign_partitions`)

    @property
    def mode(self) -> Mode:
        """Kafka coordinates only if migration/mode says so and every member can; anything uncertain is ZooKeeper mode."""
        return parse_mode(self.mode_data) if self.registrations.keys() <= self.migrating else Mode.ZOOKEEPER


class MemberAlarm(StrEnum):
    """Conditions that the operator must be alerted to, each with its sentence."""

    FROZEN = "unreadable registrations: ZooKeeper consumers release all partitions, this member keeps its own"
    FOREIGN = "Kafka consumers hold partitions although ZooKeeper coordinates: this member does not take those partitions"
    OWNER_LOST = "an owner znode is missing or another member's: its partition is not delivered until it is claimed again"
    SLOW = "releasing a partition takes longer than a ZooKeeper consumer waits for it"
    BLOCKED = "an owner znode belongs to another member for longer than a rebalance takes"
    UNCOMMITTED = "the last offset of a partition could not be committed: its next owner delivers some records again"
    LATE_COMMIT = "a commit for a partition that is no longer held was dropped"
    UNOWNED = "partitions have no owner although the group's members do not change: a ZooKeeper consumer has probably given up"
    NOT_POLLED = "the Kafka member was not polled for too long: delivery is paused"
    HUNG = "user code holds a partition past every limit: this process must end"


# ------------------------------------------------------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """Something that happened outside the member, the input of `membership.step`."""


@dataclass(frozen=True, slots=True)
class PartitionEvent(MemberEvent):
    """An event about one partition, under the generation in which the member asked for it."""

    where: TopicPartition
    generation: int


@dataclass(frozen=True, slots=True)
class Alive(MemberEvent):
    """ZooKeeper answered a request of this session, sent at `sent`; `timeout` is the negotiated one, in seconds."""

    session: int
    sent: float
    timeout: float


@dataclass(frozen=True, slots=True)
class Suspended(MemberEvent):
    """The connection to ZooKeeper is gone; the session may still live."""


@dataclass(frozen=True, slots=True)
class Expired(MemberEvent):
    """The session is gone, and every ephemeral znode of it."""


@dataclass(frozen=True, slots=True)
class Registered(MemberEvent):
    """`ids/<own>` and `migration/ids/<own>` exist, made by this session in one transaction (or found to be its own)."""

    session: int


@dataclass(frozen=True, slots=True)
class GroupObserved(MemberEvent):
    """The group as ZooKeeper shows it now."""

    view: GroupView


@dataclass(frozen=True, slots=True)
class KafkaAssigned(MemberEvent):
    """The embedded Kafka consumer was assigned these, beside what it has."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class KafkaRevoked(MemberEvent):
    """The embedded consumer must give these up. The callback returns once they do not block it (`state.blocks_revocation`)."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class KafkaLost(MemberEvent):
    """Kafka removed the member; others may have its partitions already, and a commit would be refused or, worse, taken."""


@dataclass(frozen=True, slots=True)
class OwnerIs(PartitionEvent):
    """The current owner of the znode: the answer to Claim, CheckOwner and Release, and what a watch on it brings.

    A lost answer is read again before it is reported (R16): a create that worked then shows as our own session.
    """

    session: int | None


@dataclass(frozen=True, slots=True)
class OffsetsRead(PartitionEvent):
    """The committed offset of each store, None if it has none; `reset`: recorded by the operator, not applied yet."""

    zookeeper: int | None
    kafka: int | None
    reset: int | None = None


@dataclass(frozen=True, slots=True)
class KafkaRead(PartitionEvent):
    """Kafka's committed offset now; None if there is none, or no answer. `foreign`: no migrating member committed it."""

    offset: int | None
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Stopped(PartitionEvent):
    """No handler runs for the partition any more; `offset` is the one still to commit; None: none."""

    offset: int | None


@dataclass(frozen=True, slots=True)
class CommitAsked(PartitionEvent):
    """The application commits; `generation` is that of the records it commits for."""

    offset: int


@dataclass(frozen=True, slots=True)
class CommitDone(PartitionEvent):
    """The result of a Commit. Kafka may still apply one that timed out for `Settings.late_commit` seconds.

    ZooKeeper never does: it is written there by version.
    """

    offset: int
    failed: frozenset[Store] = frozenset()


@dataclass(frozen=True, slots=True)
class Polled(MemberEvent):
    """The embedded Kafka consumer was polled."""


@dataclass(frozen=True, slots=True)
class Closing(MemberEvent):
    """The application closes the consumer: release everything, then leave."""


@dataclass(frozen=True, slots=True)
class Tick(MemberEvent):
    """Time has passed."""


# ----------------------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Action:
    """Something that the member wants done, an output of `membership.step`."""


@dataclass(frozen=True, slots=True)
class PartitionAction(Action):
    """An action on one partition, under the generation in which the member asked for it."""

    where: TopicPartition
    generation: int


@dataclass(frozen=True, slots=True)
class Register(Action):
    """Create `ids/<own>` and `migration/ids/<own>` in one transaction (R2)."""

    session: int


@dataclass(frozen=True, slots=True)
class Deregister(Action):
    """Delete both, `ids` first, or close the session, which does it in one transaction."""


@dataclass(frozen=True, slots=True)
class ObserveGroup(Action):
    """Read a `GroupView`."""


@dataclass(frozen=True, slots=True)
class Claim(PartitionAction):
    """Create the owner znode with this thread id; if it exists, watch it."""

    thread: str


@dataclass(frozen=True, slots=True)
class Relabel(PartitionAction):
    """Write another thread id into our own owner znode, version-checked; nothing depends on it."""

    thread: str


@dataclass(frozen=True, slots=True)
class CheckOwner(PartitionAction):
    """Read the owner znode and watch it."""


@dataclass(frozen=True, slots=True)
class ReadOffsets(PartitionAction):
    """Read both stores; repeat until they answer."""


@dataclass(frozen=True, slots=True)
class ReadKafka(PartitionAction):
    """Read Kafka's offset alone: ZooKeeper's is written by the version read at the claim, which a newer read would validate."""


@dataclass(frozen=True, slots=True)
class StartDelivery(PartitionAction):
    """Deliver from `offset` on; None: as auto.offset.reset says."""

    offset: int | None


@dataclass(frozen=True, slots=True)
class PauseDelivery(PartitionAction):
    """Deliver nothing more for now; what the application already has stays there."""


@dataclass(frozen=True, slots=True)
class Resume(PartitionAction):
    """Deliver this partition again, for the assignment of this generation."""


@dataclass(frozen=True, slots=True)
class StopDelivery(PartitionAction):
    """Deliver nothing more, wait for handlers that run, answer with Stopped."""


@dataclass(frozen=True, slots=True)
class Drop(PartitionAction):
    """The partition is lost: deliver nothing, commit nothing, forget it, report the loss to the application.

    `until` (monotonic): before it no other member could have it; None: it may have been lost just now.
    """

    until: float | None = None


@dataclass(frozen=True, slots=True)
class CommitOffset(PartitionAction):
    """Commit to these stores in this order, to each whatever the result of the one before; answer with CommitDone."""

    offset: int
    stores: tuple[Store, ...]


@dataclass(frozen=True, slots=True)
class ForgetReset(PartitionAction):
    """Delete the offset that the operator recorded, if it is still the one that was read: both stores continue from there."""


@dataclass(frozen=True, slots=True)
class ReleaseOwner(PartitionAction):
    """Read the owner znode, and delete it by its version if it is of our session; answer with OwnerIs."""


@dataclass(frozen=True, slots=True)
class Publish(Action):
    """Write this into our own `migration/ids` znode."""

    progress: MemberProgress


@dataclass(frozen=True, slots=True)
class Raise(Action):
    """Report an alarm to the user, and its subject."""

    alarm: MemberAlarm
    about: str


@dataclass(frozen=True, slots=True)
class End(Action):
    """End the process: its user code never returns, and only its death releases the partitions."""
