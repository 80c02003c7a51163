"""How committed offsets moved over a stretch of `__consumer_offsets`: forwards, or back, or not at all although records wait.

A track is a sum: tracks of neighbouring stretches are joined in the order of the topic, so a stretch of any size is read in pieces,
by any number of workers, and only a row for each group and partition comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.ledger.facts import Case
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.offsets_records import (
    ConsumerAssignment,
    GroupRemoved,
    GroupState,
    OffsetCommitted,
    OffsetRemoved,
    RawRecord,
    Record,
)
from airflow_provider_kmigrate.core.verdict import Ground, Level, Outcome

_KEPT: Final = 5  # steps back that are kept of a track
_CASES: Final = 20


class Step(NamedTuple):
    """A commit that was lower than the one before it. `place`: offset of its record in `__consumer_offsets`."""

    before: int
    after: int
    t_ms: int
    place: int


class Reader(NamedTuple):
    """Whose offsets: one group on one partition."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Track:
    """The commits of one group for one partition, in the order of the topic. `last` None: removed, and not set again since.

    `first_ms`, `last_ms`: when the coordinator stored those. `backs` are the first few of `back_count` steps back.
    """

    first: int | None
    last: int | None
    first_ms: int
    last_ms: int
    count: int = 1
    backs: tuple[Step, ...] = ()
    back_count: int = 0
    place: int = 0  # of its first record

    def then(self, later: Track) -> Track:
        """Both stretches as one; `later` is the next one."""
        joint = self.back_to(later)
        return Track(
            self.first,
            later.last,
            self.first_ms,
            later.last_ms,
            self.count + later.count,
            (*self.backs, *joint, *later.backs)[:_KEPT],
            self.back_count + len(joint) + later.back_count,
            self.place,
        )

    def back_to(self, later: Track) -> tuple[Step, ...]:
        """The step between this stretch and the next one, if it goes back."""
        if self.last is None or later.first is None or later.first >= self.last:
            return ()
        return (Step(self.last, later.first, later.first_ms, later.place),)


@dataclass(slots=True)
class Tracks:
    """Every group's, while they are being read. `members`: how many each classic group last had."""

    found: dict[Reader, Track]
    members: dict[str, int]

    @classmethod
    def empty(cls) -> Tracks:
        return cls({}, {})

    def add(self, raw: RawRecord, record: Record) -> None:
        """One more record, in the order of its partition of the topic."""
        match record:
            case OffsetCommitted():
                self._put(raw, record, record.offset, record.commit_ms)
            case OffsetRemoved():
                self._put(raw, record, None, raw.t_ms)
            case GroupState():
                self.members[record.group] = len(record.members)
            case GroupRemoved(group):
                self.members[group] = 0
            case ConsumerAssignment(group):  # of KIP-848: how many more there are is in other records
                self.members[group] = max(1, self.members.get(group, 0))

    def _put(self, raw: RawRecord, record: OffsetCommitted | OffsetRemoved, offset: int | None, t_ms: int) -> None:
        reader = Reader(record.group, record.topic, record.partition)
        one, known = Track(offset, offset, t_ms, t_ms, place=raw.offset), self.found.get(reader)
        self.found[reader] = one if known is None else known.then(one)

    def rows(self) -> list[Any]:
        """For JSON, to bring a worker's tracks home; `of_rows` reads them."""
        return [[list(reader), list(astuple(track))] for reader, track in self.found.items()]

    @classmethod
    def of_rows(cls, rows: Iterable[Any], members: Mapping[str, int]) -> Tracks:
        found = {}
        for reader, (first, last, first_ms, last_ms, count, backs, back_count, place) in rows:
            steps = tuple(Step(*step) for step in backs)
            found[Reader(*reader)] = Track(first, last, first_ms, last_ms, count, steps, back_count, place)
        return cls(found, dict(members))

    def join(self, later: Tracks) -> None:
        """Take in what was read of the stretch behind."""
        for reader, track in later.found.items():
            known = self.found.get(reader)
            self.found[reader] = track if known is None else known.then(track)
        self.members |= later.members


@dataclass(frozen=True, slots=True)
class CommitLook:
    """What `__consumer_offsets` said up to `taken_ms`: everything before a step, or what came since the look before."""

    taken_ms: int
    tracks: Mapping[Reader, Track]
    members: Mapping[str, int]
    refused: int = 0  # records that could not be read
    ends: Mapping[int, int] = field(default_factory=dict)  # of each partition of the topic: where the next look goes on


@dataclass(frozen=True, slots=True)
class Patience:
    """Milliseconds. A group that committed within `fresh` before the first look was alive; after `stalled` it has to move on."""

    fresh: int = 600_000
    stalled: int = 65_000  # a session of 45 s that must time out first, and 20 s to rebalance


Ends = Mapping[TopicPartition, int]


def judge_commits(before: CommitLook, after: CommitLook, ends: Ends, patience: Patience | None = None) -> list[Ground]:
    """What the commits since `before` show; `ends` are the logs' ends at that look."""
    return [
        *_gone_back(before, after),
        *_removed(before, after),
        *_stalled(before, after, ends, patience or Patience()),
        *_unread(before, after),
    ]


def _ground(outcome: Outcome, reason: Reason, cases: Iterable[Case], count: int | None = None) -> list[Ground]:
    found = sorted(cases, key=lambda case: case.order)
    total = len(found) if count is None else count
    text = reason.text.format(total)
    return [Ground(outcome, replace(reason, text=text), Level.LOG, total, tuple(found[:_CASES]))] if found else []


_BACK: Final = Reason(
    "D11",
    "{} commits went back behind an offset that their group had committed before.",
    "The group is delivered those records again; two members that both own a partition look like this, and so does a reset by hand.",
    "If nobody reset these groups' offsets, look which members committed, and whether two coordinators served the group.",
)
_REMOVED: Final = Reason(
    "D12",
    "{} committed offsets were removed and not set again.",
    "A group without a committed offset starts where auto.offset.reset says: it reads everything again, or skips what waits.",
    "Find out whether they expired or were deleted on purpose; else restore them from the backup.",
)
_STALLED: Final = Reason(
    "D13",
    "{} partitions had records waiting and no commit moved although their group has members.",
    "A member that is told of a moved coordinator while it starts may stop fetching for good and still count as stable.",
    "Restart one member of each group named, or wait for its next rebalance, and take the fingerprint again.",
)
_UNREADABLE: Final = Reason(
    "D14", "{} records of __consumer_offsets could not be read.", "What they said of their groups is unknown."
)


def _gone_back(before: CommitLook, after: CommitLook) -> list[Ground]:
    cases, count = [], 0
    for reader, track in after.tracks.items():
        known = before.tracks.get(reader)
        steps = [*(known.back_to(track) if known else ()), *track.backs]
        count += track.back_count + (len(steps) - len(track.backs))
        cases += [_case(reader, step) for step in steps]
    return _ground(Outcome.FAIL, _BACK, cases, count)


def _case(reader: Reader, step: Step) -> Case:
    note = f"committed {step.after} after {step.before}, record {step.place} of __consumer_offsets"
    where = (reader.topic, reader.partition, step.after, step.before - 1, step.before - step.after)
    return Case(*where, group=reader.group, to_ms=step.t_ms, note=note)


def _removed(before: CommitLook, after: CommitLook) -> list[Ground]:
    gone = {reader: track for reader, track in after.tracks.items() if track.last is None}
    known = {reader: track.last for reader, track in before.tracks.items()}
    cases = [
        Case(reader.topic, reader.partition, offset, offset, 1, group=reader.group, to_ms=track.last_ms, note="removed")
        for reader, track in gone.items()
        if (offset := track.first if track.first is not None else known.get(reader)) is not None
    ]
    return _ground(Outcome.INCONCLUSIVE, _REMOVED, cases)


def _stalled(before: CommitLook, after: CommitLook, ends: Ends, patience: Patience) -> list[Ground]:
    if after.taken_ms - before.taken_ms < patience.stalled:
        return []
    members = {**before.members, **after.members}
    cases = [
        Case(reader.topic, reader.partition, offset, end - 1, end - offset, group=reader.group, from_ms=track.last_ms)
        for reader, track in before.tracks.items()
        if (offset := track.last) is not None
        and (end := ends.get(TopicPartition(reader.topic, reader.partition), 0)) > offset
        and members.get(reader.group, 0) > 0
        and track.last_ms >= before.taken_ms - patience.fresh
        and _now(after, reader, offset) == offset
    ]
    return _ground(Outcome.INCONCLUSIVE, _STALLED, cases)


def _now(after: CommitLook, reader: Reader, offset: int) -> int | None:
    track = after.tracks.get(reader)
    return offset if track is None else track.last


def _unread(before: CommitLook, after: CommitLook) -> list[Ground]:
    count = before.refused + after.refused
    reason = replace(_UNREADABLE, text=_UNREADABLE.text.format(count))
    return [Ground(Outcome.INCONCLUSIVE, reason, Level.LOG, count)] if count else []


def as_dict(look: CommitLook) -> dict[str, Any]:
    """For JSON: as much of a look as the next one is compared with."""
    tracks = [[*reader, track.last, track.last_ms] for reader, track in sorted(look.tracks.items())]
    ends = {str(partition): end for partition, end in look.ends.items()}
    return {"taken_ms": look.taken_ms, "tracks": tracks, "members": dict(look.members), "refused": look.refused, "ends": ends}


def from_dict(document: Mapping[str, Any]) -> CommitLook:
    """What `as_dict` made. Raises KeyError, TypeError or ValueError for anything else."""
    tracks = {Reader(*row[:3]): Track(row[3], row[3], row[4], row[4]) for row in document["tracks"]}
    ends = {int(partition): int(end) for partition, end in document["ends"].items()}
    return CommitLook(document["taken_ms"], tracks, dict(document["members"]), document["refused"], ends)
