"""Orders changes of ownership, and finds double ownership of a partition in a group.

If every change has its position in one log, the log's order decides and no clock is needed: a member writes `acquired` before its
first poll and `released` after its last commit. Intervals that do not overlap in the log did not overlap at all. Changes without
a position are ordered by time, and an overlap no longer than the clocks' skew does not count.

Two ends are not in the log at their proper place. A killed member's end is its last sign of life. A member that slept or was
isolated writes `lost` on its return, with the time at which its ownership ended (`until_ms`). They stand before the first change
in the log that is later. That forgives nothing: the end is never before the member's own last delivery. A delivery after it goes
to a member that does not own the partition (A08).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Final, NamedTuple

from airflow_provider_kmigrate.core.events.intervals import Span, union
from airflow_provider_kmigrate.core.events.model import DeliveryRun, Ownership, OwnershipChange, TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.ledger.facts import Case

_END = float("inf")
MAX_OFFSET: Final = 2**63 - 1
FOREVER: Final = 2**63 - 1


class OwnershipStep(NamedTuple):
    """A member acquires or gives up the partition, in the order of `place`."""

    place: float
    takes: bool  # at one place, giving up comes before acquiring
    t_ms: int
    member: str


@dataclass(frozen=True, slots=True)
class OwnerInterval:
    """The owners of a partition from .. to: none, one member, or several at once."""

    from_ms: int
    to_ms: int
    owners: tuple[str, ...]

    @property
    def ms(self) -> int:
        """Its length in milliseconds."""
        return self.to_ms - self.from_ms


def find_double_ownership(
    group_partition: GroupPartition, changes: Sequence[Ownership], last_ms: Mapping[str, int], skew_ms: int
) -> list[Case]:
    """Times with two owners or more. A writer that never gave up owned until its last sign of life, `last_ms`."""
    stretches = (
        list(stretch) for double, stretch in groupby(_intervals_between_steps(changes, last_ms), key=_is_double) if double
    )
    cases = (_case_of_times(group_partition, stretch[0].owners, stretch[0].from_ms, stretch[-1].to_ms) for stretch in stretches)
    return [case for case in cases if are_all_in_log(changes) or case.count > skew_ms]


def find_unowned_times(
    group_partition: GroupPartition, changes: Sequence[Ownership], last_ms: Mapping[str, int], skew_ms: int
) -> list[Case]:
    """Times between one owner's end and the next one's start."""
    intervals = owner_intervals(changes, last_ms, skew_ms)
    return [
        _case_of_times(group_partition, (before.owners[-1], after.owners[0]), unowned_interval.from_ms, unowned_interval.to_ms)
        for before, unowned_interval, after in zip(intervals, intervals[1:], intervals[2:], strict=False)
        if before.owners and not unowned_interval.owners and after.owners  # skewed clocks leave pauses beside each other
    ]


def owner_intervals(
    changes: Sequence[Ownership], last_ms: Mapping[str, int], skew_ms: int, end_ms: int | None = None
) -> list[OwnerInterval]:
    """One partition's owners, one interval after the other; the last one ends with `end_ms`, None: with the last change.

    Overlaps that only clocks show, and that are not longer than `skew_ms`, do not count.
    """
    intervals = _intervals_between_steps(changes, last_ms, end_ms)
    return list(_join_intervals(intervals if are_all_in_log(changes) else _without_skew(intervals, skew_ms)))


def _is_double(interval: OwnerInterval) -> bool:
    return len(interval.owners) > 1


def _intervals_between_steps(
    changes: Sequence[Ownership], last_ms: Mapping[str, int], end_ms: int | None = None
) -> Iterator[OwnerInterval]:
    """The intervals between the steps. An overlap in the log is at least one millisecond long, whatever the clocks say."""
    members: dict[str, None] = {}
    shortest, steps = int(are_all_in_log(changes)), steps_of(changes, last_ms)
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if step.takes:
            members[step.member] = None
        else:
            members.pop(step.member, None)
        to_ms = following.t_ms if following else end_ms or step.t_ms
        least = shortest if len(members) > 1 else 0
        yield OwnerInterval(step.t_ms, max(to_ms, step.t_ms + least), tuple(members))


def _without_skew(intervals: Iterable[OwnerInterval], skew_ms: int) -> Iterator[OwnerInterval]:
    """Gives a stretch of overlaps no longer than the skew to the member that stays."""
    for double, stretch in groupby(intervals, key=_is_double):
        parts = list(stretch)
        short = double and parts[-1].to_ms - parts[0].from_ms <= skew_ms
        yield from (replace(part, owners=part.owners[-1:]) if short else part for part in parts)


def _join_intervals(intervals: Iterable[OwnerInterval]) -> Iterator[OwnerInterval]:
    """Joins touching intervals of the same owners; drops empty ones."""
    current: OwnerInterval | None = None
    for interval in intervals:
        if current and current.owners == interval.owners and current.from_ms <= interval.from_ms <= current.to_ms:
            current = replace(current, to_ms=max(current.to_ms, interval.to_ms))
        elif interval.ms > 0:
            if current:
                yield current
            current = interval
    if current:
        yield current


def describe_uneven_shares(changes: Iterable[Ownership]) -> Iterator[str]:
    """The generations that were shared unevenly at their fullest, each with its shares."""
    for (group, generation), shares in sorted(_fullest_shares(changes).items()):
        topics = {topic for share in shares.values() for topic, _ in share}
        per_topic = [
            _spread([sum(topic_partition.topic == topic for topic_partition in share) for share in shares.values()])
            for topic in topics
        ]
        if min(_spread(list(map(len, shares.values()))), max(per_topic, default=0)) > 1:
            counts = ", ".join(f"{member} {len(share)}" for member, share in sorted(shares.items()))
            yield f"generation {generation} of {group}: {counts}"


def _spread(counts: Sequence[int]) -> int:
    return max(counts, default=0) - min(counts, default=0)


def _fullest_shares(changes: Iterable[Ownership]) -> dict[tuple[str, int], dict[str, set[TopicPartition]]]:
    """The owners in each group's generation when most partitions had one."""
    owned: dict[str, dict[str, set[TopicPartition]]] = defaultdict(lambda: defaultdict(set))
    best: dict[tuple[str, int], dict[str, set[TopicPartition]]] = {}
    for change in sorted(changes, key=lambda change: (change.group, change.position or 0, change.stamp.t_ms)):
        shares, changed_partitions = owned[change.group], set(change.partitions)
        owned_before = shares[change.member]
        shares[change.member] = (
            owned_before | changed_partitions if change.change is OwnershipChange.ACQUIRED else owned_before - changed_partitions
        )
        if change.generation is not None:
            key, now = (change.group, change.generation), {member: share for member, share in shares.items() if share}
            if sum(map(len, now.values())) >= sum(map(len, best.get(key, {}).values())):
                best[key] = now
    return best


def count_owner_changes(changes: Sequence[Ownership]) -> int:
    """How often a partition passed from one member to another."""
    takers = [change.member for change in order_changes(changes) if change.change is OwnershipChange.ACQUIRED]
    return sum(earlier != later for earlier, later in pairwise(takers))


def merge_logs(logs: Sequence[Sequence[Ownership]], *, beside: bool = False) -> list[Ownership]:
    """The changes in several logs. Positions in different logs are not comparable, so groups with more than one lose them.

    `beside`: there are further logs that cannot be read here.
    """
    wrote = Counter(group for changes in logs for group in {change.group for change in changes})
    return [
        replace(change, position=None) if beside or wrote[change.group] > 1 else change for changes in logs for change in changes
    ]


def first_reported_start(topic_partition: TopicPartition, changes: Sequence[Ownership]) -> int | None:
    """The offset at which the first owner began; None: not reported. Writers of events were not due any record before it."""
    first = next((change for change in order_changes(changes) if change.change is OwnershipChange.ACQUIRED), None)
    return None if first is None else _reported_start(topic_partition, first)


def find_not_owned(topic_partition: TopicPartition, runs: Iterable[DeliveryRun], changes: Sequence[Ownership]) -> list[Case]:
    """Deliveries to a member that did not own the partition by its own account; each member's own clock decides."""
    owned: dict[str, list[Owned]] = defaultdict(list)
    for owned_time in owned_times(changes):
        owned[owned_time.member].append(owned_time)
    strangers = (
        run
        for run in runs
        if not any(owned_time.from_ms <= run.t_first_ms and run.t_last_ms <= owned_time.to_ms for owned_time in owned[run.member])
    )
    return [
        Case(
            *topic_partition,
            run.first,
            run.last,
            run.count,
            group=run.group,
            members=(run.member,),
            from_ms=run.t_first_ms,
            to_ms=run.t_last_ms,
        )
        for run in strangers
    ]


class Owned(NamedTuple):
    """A member owned a partition from .. to, ms since the epoch on its own clock; `FOREVER`: it never gave it up."""

    member: str
    from_ms: int
    to_ms: int


def owned_times(changes: Iterable[Ownership]) -> list[Owned]:
    """When each member owned one partition, by its own events."""
    since: dict[str, int] = {}
    owned = []
    for change in sorted(changes, key=lambda change: (change.stamp.writer, change.stamp.event_seq)):
        if change.change is OwnershipChange.ACQUIRED:
            since.setdefault(change.member, change.stamp.t_ms)
        elif change.member in since:
            owned.append(Owned(change.member, since.pop(change.member), _effective_ms(change)))
    return owned + [Owned(member, begin, FOREVER) for member, begin in since.items()]


def _reported_start(topic_partition: TopicPartition, change: Ownership) -> int | None:
    start = dict(zip(change.partitions, change.starts, strict=False)).get(topic_partition)
    return None if start is None or start < 0 else start


def offsets_of_others(topic_partition: TopicPartition, changes: Sequence[Ownership], runs: Sequence[DeliveryRun]) -> list[Span]:
    """The offsets due to members that write no events, as far as known, in a group that has such members.

    These are the offsets between the last delivery before an acquisition and its start, and everything after the last owner's
    end.
    """
    spans: list[Span] = []
    owners: set[str] = set()
    last = -1
    for change in order_changes(changes):
        last = max([last, *(run.last for run in runs if run.t_last_ms <= change.stamp.t_ms)])
        start = _first_due_offset(topic_partition, change, runs) if change.change is OwnershipChange.ACQUIRED else None
        if start is not None and not owners and start > last + 1:
            spans.append((last + 1, start - 1))
        owners = owners | {change.member} if change.change is OwnershipChange.ACQUIRED else owners - {change.member}
    if not owners:
        spans.append((max([last, *(run.last for run in runs)]) + 1, MAX_OFFSET))
    return union(spans)


def _first_due_offset(topic_partition: TopicPartition, change: Ownership, runs: Sequence[DeliveryRun]) -> int | None:
    """Where a member began or, if it did not report that, its first delivered offset."""
    start = _reported_start(topic_partition, change)
    if start is not None:
        return start
    member_runs = (run for run in runs if run.member == change.member and run.t_first_ms >= change.stamp.t_ms)
    return min((run.first for run in member_runs), default=None)


def are_all_in_log(changes: Iterable[Ownership]) -> bool:
    """True if every change has its position in the log, so that no clock decides their order."""
    return all(change.position is not None for change in changes)


def steps_of(changes: Sequence[Ownership], last_ms: Mapping[str, int]) -> list[OwnershipStep]:
    """One partition's changes in their order, with the end of what was never given up."""
    ordered = are_all_in_log(changes)
    reported = (
        OwnershipStep(
            _effective_position(change, changes, ordered=ordered),
            change.change is OwnershipChange.ACQUIRED,
            _effective_ms(change),
            change.member,
        )
        for change in changes
    )
    return sorted([*reported, *_implied_ends(changes, last_ms, ordered=ordered)])


def order_changes(changes: Sequence[Ownership]) -> list[Ownership]:
    """One partition's changes in their order, each with the time at which it took effect."""
    ordered = are_all_in_log(changes)
    rows = [
        (_effective_position(change, changes, ordered=ordered), change.change is OwnershipChange.ACQUIRED, change.stamp, change)
        for change in changes
    ]
    return [
        replace(change, stamp=change.stamp._replace(t_ms=_effective_ms(change)))
        for *_, change in sorted(rows, key=lambda row: row[:3])
    ]


def _sort_position(change: Ownership, *, ordered: bool) -> float:
    return change.position if ordered and change.position is not None else change.stamp.t_ms


def _effective_ms(change: Ownership) -> int:
    return change.stamp.t_ms if change.until_ms is None else change.until_ms


def _effective_position(change: Ownership, changes: Iterable[Ownership], *, ordered: bool) -> float:
    """The place of a change: its own, or, if it ended before it was written, before later changes of others."""
    position = _sort_position(change, ordered=ordered)
    if change.until_ms is None or not ordered:
        return position if change.until_ms is None else change.until_ms
    others = (other for other in changes if other.member != change.member and other.stamp.t_ms >= change.until_ms)
    return min([position, *(_sort_position(other, ordered=True) for other in others)])


def _implied_ends(changes: Sequence[Ownership], last_ms: Mapping[str, int], *, ordered: bool) -> Iterator[OwnershipStep]:
    """The end of what a member never gave up: before the first change in the log that is later than its last sign of life."""
    latest = {change.member: change for change in sorted(changes, key=lambda change: _sort_position(change, ordered=ordered))}
    for member, change in latest.items():
        if change.change is OwnershipChange.ACQUIRED:
            end = last_ms.get(change.stamp.writer, change.stamp.t_ms)
            later = (_sort_position(other, ordered=ordered) for other in changes if other.stamp.t_ms > end)
            # After the end of that moment, else a member killed just after acquiring would own forever.
            yield OwnershipStep(min(later, default=_END) if ordered else end + 0.5, False, end, member)


def _case_of_times(group_partition: GroupPartition, members: tuple[str, ...], from_ms: int, to_ms: int) -> Case:
    """A case of time. `count` is milliseconds, at least one: an overlap that the log shows is one, however short."""
    length = max(1, to_ms - from_ms)
    return Case(
        group_partition.topic,
        group_partition.partition,
        -1,
        -1,
        length,
        group_partition.group,
        members=members,
        from_ms=from_ms,
        to_ms=to_ms,
    )
