"""How ready each consumer group is to be moved off ZooKeeper, with the reasons, and in which wave it could go.

A blocked group is in no wave and scores 0. Others begin at 100 and lose points for each thing that makes a move less sure. What
was not read blocks: it cannot be called healthy. Groups that the brokers coordinate already have nothing to move (wave 0).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from math import ceil
from statistics import median
from typing import Final

from airflow_provider_kmigrate.core.audit.offsets_records import (
    ConsumerAssignment,
    ConsumerGroup,
    ConsumerMember,
    GroupRemoved,
    GroupState,
    OffsetCommitted,
    OffsetRemoved,
    RawRecord,
    Record,
)
from airflow_provider_kmigrate.core.latency import quantile
from airflow_provider_kmigrate.core.model import Reason

_DAY_MS: Final = 86_400_000
LEAST_LOOKS: Final = 3  # fewer say nothing of a trend
MAX_CHURN: Final = 24.0  # generations a day
_LEAST_SPAN_MS: Final = 3_600_000  # two members that start within a second are no 86,400 generations a day
MAX_COMMIT_INTERVAL_MS: Final = 60_000
MIN_SESSION_MS: Final = 10_000


class GroupProtocol(StrEnum):
    """Who coordinates a group."""

    ZOOKEEPER = "zookeeper"
    CLASSIC = "classic"
    CONSUMER = "consumer"  # KIP-848
    MIXED = "mixed"  # members in ZooKeeper and members at the brokers: each side gives out all partitions
    UNKNOWN = "unknown"


class Life(StrEnum):
    """Whether anybody is in the group."""

    LIVE = "live"
    EMPTY = "empty"  # offsets, and nobody who reads
    DEAD = "dead"  # neither
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One look at one group. `lag`: records behind, over all its partitions. None: it could not be read."""

    t_ms: int
    group: str
    protocol: GroupProtocol
    members: int | None = None
    generation: int | None = None
    lag: int | None = None
    rebalancing: bool = False
    outside_log: int = 0  # partitions whose committed offset is no longer, or not yet, in the log


@dataclass(frozen=True, slots=True)
class LagHistory:
    """What many looks come to. `p99` in records, `slope` in records a second, `churn` in generations a day."""

    looks: int = 0
    p99: int | None = None
    slope: float | None = None
    churn: float | None = None


@dataclass(frozen=True, slots=True)
class OffsetsHistory:
    """What `__consumer_offsets` says of a group. `commit_interval_ms`: the median time between two commits of one partition."""

    protocol: GroupProtocol = GroupProtocol.UNKNOWN
    life: Life = Life.UNKNOWN
    commit_interval_ms: int | None = None
    churn: float | None = None
    shortest_session_ms: int | None = None
    places: tuple[int, ...] = ()  # partitions of the topic with records of the group; more than one is wrong
    generation: int | None = None  # the newest that was stored


@dataclass(frozen=True, slots=True)
class Readiness:
    """One group's line of the inventory. `wave` 0: nothing to move; None: blocked."""

    group: str
    protocol: GroupProtocol
    life: Life
    lag: LagHistory
    commit_interval_ms: int | None
    blockers: tuple[Reason, ...]
    reservations: tuple[Reason, ...]
    score: int
    wave: int | None = None


def lag_history(looks: Sequence[GroupSnapshot]) -> LagHistory:
    """Looks at one group, in any order."""
    ordered = sorted(looks, key=lambda look: look.t_ms)
    points = [(look.t_ms, look.lag) for look in ordered if look.lag is not None]
    numbers = [(look.t_ms, look.generation) for look in ordered if look.generation is not None]
    p99 = quantile(sorted(lag for _, lag in points), 0.99)
    return LagHistory(len(ordered), p99, slope(points), _churn(numbers))


def slope(points: Sequence[tuple[int, int]]) -> float | None:
    """The least-squares slope in units a second; None of fewer than `LEAST_LOOKS` points, or of one moment."""
    if len(points) < LEAST_LOOKS:
        return None
    mean_t = sum(t for t, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((t - mean_t) ** 2 for t, _ in points)
    return 1000 * sum((t - mean_t) * (y - mean_y) for t, y in points) / spread if spread else None


def _churn(numbers: Sequence[tuple[int, int]]) -> float | None:
    """Generations a day; a number that fell back began anew and counts by itself."""
    if len(numbers) < 2 or numbers[-1][0] == numbers[0][0]:
        return None
    moves = sum(later - one if later >= one else later for (_, one), (_, later) in pairwise(numbers))
    return moves * _DAY_MS / (numbers[-1][0] - numbers[0][0])


class _Log:
    """One group's records while they are read."""

    def __init__(self) -> None:
        self.commits: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.stored: set[tuple[str, int]] = set()  # partitions that have an offset now
        self.generations: list[tuple[int, int]] = []
        self.members: int | None = None
        self.sessions: set[int] = set()
        self.protocol = GroupProtocol.UNKNOWN
        self.removed = False
        self.places: set[int] = set()

    def add(self, raw: RawRecord, record: Record) -> None:
        self.places.add(raw.partition)
        match record:
            case OffsetCommitted():
                self.commits[record.topic, record.partition].append(record.commit_ms)
                self.stored.add((record.topic, record.partition))
                self.removed = False
            case OffsetRemoved():
                self.stored.discard((record.topic, record.partition))
            case GroupState():
                self.protocol, self.members, self.removed = GroupProtocol.CLASSIC, len(record.members), False
                self.generations.append((raw.t_ms, record.generation))
                self.sessions = {member.session_timeout_ms for member in record.members}
            case ConsumerGroup():
                self.protocol, self.removed = GroupProtocol.CONSUMER, False
                self.generations.append((raw.t_ms, record.epoch))
            case ConsumerMember() | ConsumerAssignment():
                self.protocol, self.members = GroupProtocol.CONSUMER, max(1, self.members or 0)
            case GroupRemoved():
                self.members, self.removed = 0, True

    def history(self) -> OffsetsHistory:
        intervals = [later - one for times in self.commits.values() for one, later in pairwise(times)]
        return OffsetsHistory(
            protocol=self.protocol,
            life=self._life(),
            commit_interval_ms=round(median(intervals)) if intervals else None,
            churn=_churn(self.generations) if self._span_ms() >= _LEAST_SPAN_MS else None,
            shortest_session_ms=min(self.sessions, default=None),
            places=tuple(sorted(self.places)),
            generation=self.generations[-1][1] if self.generations else None,
        )

    def _span_ms(self) -> int:
        return self.generations[-1][0] - self.generations[0][0] if self.generations else 0

    def _life(self) -> Life:
        if self.members:
            return Life.LIVE
        if self.removed and not self.stored:
            return Life.DEAD
        return Life.EMPTY if self.members == 0 else Life.UNKNOWN


def offsets_histories(records: Iterable[tuple[RawRecord, Record]]) -> dict[str, OffsetsHistory]:
    """By group, from decoded records in the order of the topic (`offsets_records.Scan.read_all`)."""
    logs: dict[str, _Log] = defaultdict(_Log)
    for raw, record in records:
        group = getattr(record, "group", None)
        if group is not None:
            logs[group].add(raw, record)
    return {group: log.history() for group, log in logs.items()}


def assess(latest: GroupSnapshot, lag: LagHistory, offsets: OffsetsHistory | None) -> Readiness:
    """One group, from its newest look, its history and, where it was read, what `__consumer_offsets` says."""
    known = offsets or OffsetsHistory()
    churn = lag.churn if lag.churn is not None else known.churn
    history, life = replace(lag, churn=churn), _life(latest, known)
    blockers = () if life is Life.DEAD else _blockers(latest, known)
    reservations = () if life is Life.DEAD else _reservations(history, known, life)
    score = 0 if blockers else max(0, 100 - sum(_POINTS[reason.code] for reason in reservations))
    return Readiness(latest.group, latest.protocol, life, history, known.commit_interval_ms, blockers, reservations, score)


def _life(latest: GroupSnapshot, offsets: OffsetsHistory) -> Life:
    if latest.members is None:
        return offsets.life
    if latest.members:
        return Life.LIVE
    return Life.DEAD if offsets.life is Life.DEAD else Life.EMPTY


def _blockers(latest: GroupSnapshot, offsets: OffsetsHistory) -> tuple[Reason, ...]:
    found = []
    if latest.protocol is GroupProtocol.UNKNOWN or latest.members is None or latest.lag is None:
        text = f"Group {latest.group}: its members, its lag or who coordinates it could not be read."
        found.append(Reason("K10", text, "What was not read cannot be called ready.", "Mend the access and look again."))
    if latest.protocol is GroupProtocol.MIXED:
        text = f"Group {latest.group} has members in ZooKeeper and members at the brokers."
        why = "Each side gives out all partitions: every record is consumed twice."
        found.append(Reason("K11", text, why, "Stop the members of one side, or move them with the migrating consumer."))
    if latest.rebalancing:
        text = f"Group {latest.group} is rebalancing."
        found.append(Reason("K12", text, "Its owners and positions are about to change.", "Wait until it is stable."))
    if latest.outside_log:
        text = f"Group {latest.group}: {latest.outside_log} committed offsets are outside their logs."
        why = "A member that starts there resets to the beginning or the end: records are repeated or skipped."
        found.append(Reason("K13", text, why, "Decide where it is to go on, and set its offsets, before it is moved."))
    if len(offsets.places) > 1:
        text = f"Group {latest.group} has records in {len(offsets.places)} partitions of __consumer_offsets."
        why = "Brokers may disagree on who coordinates it; it may come back to an old place."
        found.append(Reason("K14", text, why, "Make offsets.topic.num.partitions equal on every broker first (K04)."))
    return tuple(found)


_POINTS: Final[Mapping[str, int]] = {"K20": 30, "K21": 10, "K22": 20, "K23": 15, "K24": 5, "K25": 15}


def _reservations(lag: LagHistory, offsets: OffsetsHistory, life: Life) -> tuple[Reason, ...]:
    found = []
    if lag.slope is not None and lag.slope > 0.01 * max(1, lag.p99 or 0) / 60:  # more than 1 % of its lag a minute
        text = f"Its lag grows by {lag.slope:.3g} records a second."
        found.append(
            Reason(
                "K20", text, "It falls behind already; a move costs it more time.", "Give it members, or wait for a quiet hour."
            )
        )
    if lag.looks < LEAST_LOOKS:
        text = f"It was looked at {lag.looks} times only."
        found.append(Reason("K21", text, "Neither a trend nor churn can be told.", "Take snapshots for a day."))
    if lag.churn is not None and lag.churn > MAX_CHURN:
        text = f"It has {lag.churn:.0f} generations a day."
        why = "Members that come and go during a move of the coordinator leave ghosts that hold the group up (measured)."
        found.append(Reason("K22", text, why, "Freeze deployments and scaling of it while it is moved."))
    if offsets.commit_interval_ms is not None and offsets.commit_interval_ms > MAX_COMMIT_INTERVAL_MS:
        text = f"It commits every {offsets.commit_interval_ms / 1000:.0f} s."
        found.append(
            Reason("K23", text, "A hard hand-over repeats that much work.", "Shorten the interval, or hand over gracefully.")
        )
    if life is Life.EMPTY:
        text = "It has offsets and no members."
        found.append(
            Reason("K24", text, "Nothing shows afterwards that it still reads.", "Ask its owner whether it is still needed.")
        )
    if offsets.shortest_session_ms is not None and offsets.shortest_session_ms < MIN_SESSION_MS:
        text = f"Its shortest session is {offsets.shortest_session_ms / 1000:.0f} s."
        found.append(
            Reason("K25", text, "A coordinator that restarts may throw its members out.", "Raise session.timeout.ms to 45 s.")
        )
    return tuple(found)


def waves(groups: Iterable[Readiness]) -> tuple[Readiness, ...]:
    """The groups with their waves, in the order in which to move them.

    Of those that are to be moved, the readiest twentieth (at least one) goes first, then up to a quarter, then the rest; those
    below half of the points go last, by themselves.
    """
    ordered = sorted(groups, key=lambda each: (-each.score, each.lag.p99 or 0, each.group))
    moving = [each for each in ordered if _moves(each) and not each.blockers]
    sure = [each.group for each in moving if each.score >= 50]
    first, second = max(1, ceil(len(sure) / 20)), ceil(len(sure) / 4)
    number = {group: 1 if place < first else 2 if place < second else 3 for place, group in enumerate(sure)}
    found = [replace(each, wave=_wave(each, number)) for each in ordered]
    return tuple(sorted(found, key=lambda each: (each.wave is None, each.wave or 0)))


def _moves(group: Readiness) -> bool:
    return group.life is not Life.DEAD and group.protocol not in {GroupProtocol.CLASSIC, GroupProtocol.CONSUMER}


def _wave(group: Readiness, number: Mapping[str, int]) -> int | None:
    if group.blockers:
        return None
    return number.get(group.group, 4) if _moves(group) else 0
