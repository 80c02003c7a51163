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

from airflow_provider_kmigrate.core.events import DeliveryRun, Ownership, OwnershipChange, TopicPartition
from airflow_provider_kmigrate.core.intervals import Span, union
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


def double_owned(where: GroupPartition, changes: Sequence[Ownership], last_ms: Mapping[str, int], skew_ms: int) -> list[Case]:
    """Times with two owners or more. A writer that never gave up owned until its last sign of life, `last_ms`."""
    stretches = (list(found) for double, found in groupby(_intervals(changes, last_ms), key=_is_double) if double)
    cases = (_case(where, found[0].owners, found[0].from_ms, found[-1].to_ms) for found in stretches)
    return [case for case in cases if in_log(changes) or case.count > skew_ms]


def unowned(where: GroupPartition, changes: Sequence[Ownership], last_ms: Mapping[str, int], skew_ms: int) -> list[Case]:
    """Times between one owner's end and the next one's start."""
    found = owner_intervals(changes, last_ms, skew_ms)
    return [
        _case(where, (before.owners[-1], after.owners[0]), free.from_ms, free.to_ms)
        for before, free, after in zip(found, found[1:], found[2:], strict=False)
        if before.owners and not free.owners and after.owners  # skewed clocks leave pauses beside each other
    ]


def owner_intervals(
    changes: Sequence[Ownership], last_ms: Mapping[str, int], skew_ms: int, end_ms: int | None = None
) -> list[OwnerInterval]:
    """One partition's owners, one interval after the other; the last one ends with `end_ms`, None: with the last change.

    Overlaps that only clocks show, and that are not longer than `skew_ms`, do not count.
    """
    found = _intervals(changes, last_ms, end_ms)
    return list(_joined(found if in_log(changes) else _without_skew(found, skew_ms)))


def _is_double(interval: OwnerInterval) -> bool:
    return len(interval.owners) > 1


def _intervals(changes: Sequence[Ownership], last_ms: Mapping[str, int], end_ms: int | None = None) -> Iterator[OwnerInterval]:
    """The intervals between the steps. An overlap in the log is at least one millisecond long, whatever the clocks say."""
    members: dict[str, None] = {}
    shortest, steps = int(in_log(changes)), steps_of(changes, last_ms)
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


def _joined(intervals: Iterable[OwnerInterval]) -> Iterator[OwnerInterval]:
    """Joins touching intervals of the same owners; drops empty ones."""
    kept: OwnerInterval | None = None
    for one in intervals:
        if kept and kept.owners == one.owners and kept.from_ms <= one.from_ms <= kept.to_ms:
            kept = replace(kept, to_ms=max(kept.to_ms, one.to_ms))
        elif one.ms > 0:
            if kept:
                yield kept
            kept = one
    if kept:
        yield kept


def uneven_shares(changes: Iterable[Ownership]) -> Iterator[str]:
    """The generations that were shared unevenly at their fullest, each with its shares."""
    for (group, generation), shares in sorted(_fullest(changes).items()):
        topics = {topic for share in shares.values() for topic, _ in share}
        per_topic = [_spread([sum(at.topic == topic for at in share) for share in shares.values()]) for topic in topics]
        if min(_spread(list(map(len, shares.values()))), max(per_topic, default=0)) > 1:
            counts = ", ".join(f"{member} {len(share)}" for member, share in sorted(shares.items()))
            yield f"generation {generation} of {group}: {counts}"


def _spread(counts: Sequence[int]) -> int:
    return max(counts, default=0) - min(counts, default=0)


def _fullest(changes: Iterable[Ownership]) -> dict[tuple[str, int], dict[str, set[TopicPartition]]]:
    """The owners in each group's generation when most partitions had one."""
    owned: dict[str, dict[str, set[TopicPartition]]] = defaultdict(lambda: defaultdict(set))
    best: dict[tuple[str, int], dict[str, set[TopicPartition]]] = {}
    for change in sorted(changes, key=lambda change: (change.group, change.position or 0, change.stamp.t_ms)):
        shares, named = owned[change.group], set(change.partitions)
        mine = shares[change.member]
        shares[change.member] = mine | named if change.change is OwnershipChange.ACQUIRED else mine - named
        if change.generation is not None:
            key, now = (change.group, change.generation), {member: share for member, share in shares.items() if share}
            if sum(map(len, now.values())) >= sum(map(len, best.get(key, {}).values())):
                best[key] = now
    return best


def owner_changes(changes: Sequence[Ownership]) -> int:
    """How often a partition passed from one member to another."""
    takers = [change.member for change in in_order(changes) if change.change is OwnershipChange.ACQUIRED]
    return sum(one != other for one, other in pairwise(takers))


def by_one_log(logs: Sequence[Sequence[Ownership]], *, beside: bool = False) -> list[Ownership]:
    """The changes in several logs. Positions in different logs are not comparable, so groups with more than one lose them.

    `beside`: there are further logs that cannot be read here.
    """
    wrote = Counter(group for changes in logs for group in {change.group for change in changes})
    return [
        replace(change, position=None) if beside or wrote[change.group] > 1 else change for changes in logs for change in changes
    ]


def first_start(where: TopicPartition, changes: Sequence[Ownership]) -> int | None:
    """The offset at which the first owner began; None: not reported. Writers of events were not due any record before it."""
    first = next((change for change in in_order(changes) if change.change is OwnershipChange.ACQUIRED), None)
    return None if first is None else _start(where, first)


def not_owned(where: TopicPartition, runs: Iterable[DeliveryRun], changes: Sequence[Ownership]) -> list[Case]:
    """Deliveries to a member that did not own the partition by its own account; each member's own clock decides."""
    owned: dict[str, list[Owned]] = defaultdict(list)
    for one in owned_times(changes):
        owned[one.member].append(one)
    strangers = (
        run for run in runs if not any(one.from_ms <= run.t_first_ms and run.t_last_ms <= one.to_ms for one in owned[run.member])
    )
    return [
        Case(
            *where,
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
    found = []
    for change in sorted(changes, key=lambda change: (change.stamp.writer, change.stamp.event_seq)):
        if change.change is OwnershipChange.ACQUIRED:
            since.setdefault(change.member, change.stamp.t_ms)
        elif change.member in since:
            found.append(Owned(change.member, since.pop(change.member), _ended(change)))
    return found + [Owned(member, begin, FOREVER) for member, begin in since.items()]


def _start(where: TopicPartition, change: Ownership) -> int | None:
    found = dict(zip(change.partitions, change.starts, strict=False)).get(where)
    return None if found is None or found < 0 else found


def of_others(where: TopicPartition, changes: Sequence[Ownership], runs: Sequence[DeliveryRun]) -> list[Span]:
    """The offsets due to members that write no events, as far as known, in a group that has such members.

    These are the offsets between the last delivery before an acquisition and its start, and everything after the last owner's
    end.
    """
    found: list[Span] = []
    owners: set[str] = set()
    last = -1
    for change in in_order(changes):
        last = max([last, *(run.last for run in runs if run.t_last_ms <= change.stamp.t_ms)])
        start = _begins(where, change, runs) if change.change is OwnershipChange.ACQUIRED else None
        if start is not None and not owners and start > last + 1:
            found.append((last + 1, start - 1))
        owners = owners | {change.member} if change.change is OwnershipChange.ACQUIRED else owners - {change.member}
    if not owners:
        found.append((max([last, *(run.last for run in runs)]) + 1, MAX_OFFSET))
    return union(found)


def _begins(where: TopicPartition, change: Ownership, runs: Sequence[DeliveryRun]) -> int | None:
    """Where a member began or, if it did not report that, its first delivered offset."""
    start = _start(where, change)
    if start is not None:
        return start
    mine = (run for run in runs if run.member == change.member and run.t_first_ms >= change.stamp.t_ms)
    return min((run.first for run in mine), default=None)


def in_log(changes: Iterable[Ownership]) -> bool:
    """True if every change has its position in the log, so that no clock decides their order."""
    return all(change.position is not None for change in changes)


def steps_of(changes: Sequence[Ownership], last_ms: Mapping[str, int]) -> list[OwnershipStep]:
    """One partition's changes in their order, with the end of what was never given up."""
    ordered = in_log(changes)
    said = (
        OwnershipStep(_effect(one, changes, ordered=ordered), one.change is OwnershipChange.ACQUIRED, _ended(one), one.member)
        for one in changes
    )
    return sorted([*said, *_unsaid(changes, last_ms, ordered=ordered)])


def in_order(changes: Sequence[Ownership]) -> list[Ownership]:
    """One partition's changes in their order, each with the time at which it took effect."""
    ordered = in_log(changes)
    rows = [(_effect(one, changes, ordered=ordered), one.change is OwnershipChange.ACQUIRED, one.stamp, one) for one in changes]
    return [replace(one, stamp=one.stamp._replace(t_ms=_ended(one))) for *_, one in sorted(rows, key=lambda row: row[:3])]


def _place(change: Ownership, *, ordered: bool) -> float:
    return change.position if ordered and change.position is not None else change.stamp.t_ms


def _ended(change: Ownership) -> int:
    return change.stamp.t_ms if change.until_ms is None else change.until_ms


def _effect(change: Ownership, changes: Iterable[Ownership], *, ordered: bool) -> float:
    """The place of a change: its own, or, if it ended before it was written, before later changes of others."""
    place = _place(change, ordered=ordered)
    if change.until_ms is None or not ordered:
        return place if change.until_ms is None else change.until_ms
    others = (other for other in changes if other.member != change.member and other.stamp.t_ms >= change.until_ms)
    return min([place, *(_place(other, ordered=True) for other in others)])


def _unsaid(changes: Sequence[Ownership], last_ms: Mapping[str, int], *, ordered: bool) -> Iterator[OwnershipStep]:
    """The end of what a member never gave up: before the first change in the log that is later than its last sign of life."""
    latest = {change.member: change for change in sorted(changes, key=lambda change: _place(change, ordered=ordered))}
    for member, change in latest.items():
        if change.change is OwnershipChange.ACQUIRED:
            end = last_ms.get(change.stamp.writer, change.stamp.t_ms)
            later = (_place(other, ordered=ordered) for other in changes if other.stamp.t_ms > end)
            # After the end of that moment, else a member killed just after acquiring would own forever.
            yield OwnershipStep(min(later, default=_END) if ordered else end + 0.5, False, end, member)


def _case(where: GroupPartition, members: tuple[str, ...], from_ms: int, to_ms: int) -> Case:
    """A case of time. `count` is milliseconds, at least one: an overlap that the log shows is one, however short."""
    length = max(1, to_ms - from_ms)
    return Case(where.topic, where.partition, -1, -1, length, where.group, members=members, from_ms=from_ms, to_ms=to_ms)
