"""Does a group go on consuming? Judged from committed offsets, never from owners: those look perfect while partitions starve (measured).

A partition starves while there are records that nobody has committed, and its offset, the larger of both stores, has stood still for
longer than its consumers take between two commits. What waited in just the same way before the switch does not count: an idle log that
ends with transactions' markers seems to have records for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_kmigrate.core.cluster import GroupSpec
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, MemberKind
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.groups.members import map_instances, places, read_by, restless, surely_read
from airflow_provider_kmigrate.core.model import Cause, Reason

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
