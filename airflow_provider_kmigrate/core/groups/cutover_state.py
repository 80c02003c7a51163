"""What one process remembers of a cutover that it observes, and the turn that a decision of it is.

`core.groups.cutover` decides by it; `core.groups.cutover_canary` decides the part before the stop in which a canary runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from airflow_provider_kmigrate.core.cluster_state.decision import Decision
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.members import ABSENT, map_instances, unread_reasons
from airflow_provider_kmigrate.core.groups.offsets import CopyPlan
from airflow_provider_kmigrate.core.member.cutover_note import CutoverNote
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, Store
from airflow_provider_kmigrate.core.shared.text import summarize

STOPPED: Final = "stopped"  # the kind that an instance is switched to while it must not run
SHARE: Final = 0.9  # of switch_timeout: the cutover turns back before its step gives up
_READS: Final = 3  # observations in a row without a member


@dataclass(frozen=True, slots=True)
class InstanceRequest:
    """What was asked of an instance last, and when on the monotonic clock; `error`: what it answered, if it refused.

    `is_unknown`: its effect is not known. `tries`: how often this was asked without anything else between.
    """

    kind: str
    at: float
    error: str = ""
    is_unknown: bool = False
    tries: int = 1

    @property
    def is_done(self) -> bool:
        """True if it was answered well: the command ended with 0."""
        return not self.error and not self.is_unknown


@dataclass(frozen=True, slots=True)
class QuietTimer:
    """How long the offsets of both stores have stood still without any member. `changes`: how often they moved without one."""

    offsets: object = None
    since: float = 0.0
    reads: int = 0
    changes: int = 0

    def add(self, offsets: object, at: float) -> QuietTimer:
        """Add one observation; None: there is a member, or something was not read."""
        if offsets is None:
            return QuietTimer(changes=self.changes)
        if self.offsets is None or offsets != self.offsets:
            return QuietTimer(offsets, at, 1, self.changes + (self.offsets is not None))
        return replace(self, reads=self.reads + 1)

    def holds(self, at: float, seconds: float) -> bool:
        """True if several observations over so many seconds saw no member."""
        return self.reads >= _READS and at - self.since >= seconds


@dataclass(frozen=True, slots=True)
class CanaryWatch:
    """What was observed of the canary; times are on the monotonic clock.

    `lives`: the member ids it had at its first stable observation, at `joined_at`. `offsets`, `ends`: what it had committed, and the logs' ends, then. `latest`: what it has committed. `moved_at`: when each
    partition was last seen to advance, or without waiting records. `unstable_at`: since when the group beside it is not stable. `copied`: it was
    given ZooKeeper's offsets by this process. `has_joined`, `has_baked`: any process saw it as a member, and throughout its bake.
    """

    lives: frozenset[str] = frozenset()
    joined_at: float | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    latest: Mapping[TopicPartition, int] = field(default_factory=dict)
    moved_at: Mapping[TopicPartition, float] = field(default_factory=dict)
    unstable_at: float | None = None
    copied: bool = False
    has_joined: bool = False
    has_baked: bool = False


@dataclass(frozen=True, slots=True)
class CutoverState:
    """What one process remembers of its observations; times are on the monotonic clock.

    `stopped`: instances without a member after they were asked to stop. `quiet`, `quiet_in_kafka`: how long there was no member, on both
    sides and in Kafka alone. `started_at`: the first complete observation. `joined_at`: since when the new version is complete, with the
    logs' ends then.
    """

    requests: Mapping[str, InstanceRequest] = field(default_factory=dict)
    stopped: frozenset[str] = frozenset()
    quiet: QuietTimer = QuietTimer()
    quiet_in_kafka: QuietTimer = QuietTimer()
    started_at: float | None = None
    unread_at: float | None = None
    joined_at: float | None = None
    joined_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    canary: CanaryWatch = CanaryWatch()

    def add(self, observed: GroupSeen | None, at: float, group: GroupSpec) -> CutoverState:
        """Add one observation."""
        unread = observed is None or bool(unread_reasons(observed, group.name, ends=True))
        state = replace(
            self,
            quiet=self.quiet.add(_offsets_without_members(observed), at),
            quiet_in_kafka=self.quiet_in_kafka.add(_kafka_offsets_without_members(observed), at),
            unread_at=(at if self.unread_at is None else self.unread_at) if unread else None,
        )
        if unread or observed is None:
            return state
        instance_map = map_instances(observed.members or (), group)
        stopped = {
            name for name, request in self.requests.items() if request.kind == STOPPED and not instance_map.instances.get(name)
        }
        return replace(state, stopped=self.stopped | stopped, started_at=at if self.started_at is None else self.started_at)

    def with_requests(
        self, instances: Iterable[str], kind: str, at: float, errors: Mapping[str, str], unknown: Collection[str] = ()
    ) -> CutoverState:
        """What these instances were asked for, the errors of those that refused, and those of which nothing is known."""
        requests = {
            name: InstanceRequest(
                kind, at, errors.get(name, ""), name in unknown, 1 + (asked.tries if (asked := self.asked(name, kind)) else 0)
            )
            for name in instances
        }
        return replace(self, requests={**self.requests, **requests}, stopped=self.stopped - requests.keys())

    def is_late(self, at: float, group: GroupSpec) -> bool:
        """True if the last request, or this process's beginning, is so long ago that the cutover must turn back."""
        started_at = at if self.started_at is None else self.started_at
        return (
            at - max(started_at, *(request.at for request in self.requests.values()), started_at) >= SHARE * group.switch_timeout
        )

    @property
    def is_quiet(self) -> bool:
        """True while no member was seen and nothing was asked to start: then observations take no processor from any start."""
        only_stopped = all(request.kind == STOPPED for request in self.requests.values())
        return only_stopped and bool(self.quiet.reads or self.quiet_in_kafka.reads)

    def is_due(self, instance: str, kind: str, at: float) -> bool:
        """True if the instance must be asked for this kind: it was not, or it refused, a while ago."""
        request = self.asked(instance, kind)
        return request is None or (bool(request.error) and at - request.at >= ABSENT)

    def asked(self, instance: str, kind: str) -> InstanceRequest | None:
        """The request, if the instance was last asked for this kind by this process."""
        request = self.requests.get(instance)
        return request if request is not None and request.kind == kind else None


class CutoverTurn(NamedTuple):
    """One decision, and what its act needs: which instances get which kind, what is copied, what the note becomes, why it failed.

    `may_defer`: nothing is stopped while it waits, and another process may go on watching.
    """

    decision: Decision
    state: CutoverState
    instances: tuple[str, ...] = ()
    kind: str = ""
    writes: CopyPlan = CopyPlan("", Store.KAFKA)
    failed: tuple[Reason, ...] = ()
    may_defer: bool = False


class CutoverFailedError(Exception):
    """The cutover must be rolled back."""

    def __init__(self, *reasons: Reason) -> None:
        super().__init__(*map(str, reasons))
        self.reasons = reasons


def list_zookeeper_members(observed: GroupSeen) -> list[str]:
    """Consumers that are registered in ZooKeeper; owner znodes alone are left to their sessions."""
    return sorted({*observed.zk.registrations, *observed.zk.progress}) if observed.zk else []


def is_kafka_used(observed: GroupSeen) -> bool:
    """True if the Kafka group has members, or members that join or leave; False if it was not read."""
    return observed.kafka is not None and (bool(observed.kafka.members) or observed.kafka.state not in {"Empty", "Dead"})


def _offsets_without_members(observed: GroupSeen | None) -> object:
    """The offsets of both stores if no member owns or is registered anywhere; None if one does, or that is unknown."""
    kafka_offsets = _kafka_offsets_without_members(observed)
    if kafka_offsets is None or observed is None or observed.zk is None:
        return None
    zk = observed.zk
    return None if zk.registrations or zk.progress or zk.owners else (dict(zk.offsets), kafka_offsets)


def _kafka_offsets_without_members(observed: GroupSeen | None) -> object:
    if observed is None or observed.kafka is None or observed.committed is None or is_kafka_used(observed):
        return None
    return dict(observed.committed)


def raise_if_refused(state: CutoverState, group: GroupSpec, instances: Iterable[str], kind: str) -> None:
    """Raises CutoverFailedError (K91, K93) if one of these instances refused to become this kind."""
    if errors := [request.error for name in instances if (request := state.asked(name, kind)) and request.error]:
        raise CutoverFailedError(
            Reason("K91" if kind == STOPPED else "K93", f"Group {group.name}: {summarize(errors, apart=' ')}")
        )


def raise_if_other_topics(group: GroupSpec, held: frozenset[TopicPartition], note: CutoverNote) -> None:
    """Raises CutoverFailedError (K93) if the new version reads topics that the old one did not."""
    if others := sorted({partition.topic for partition in held} - {partition.topic for partition in note.partitions}):
        raise CutoverFailedError(Reason("K93", f"Group {group.name}: its new version reads other topics: {summarize(others)}."))
