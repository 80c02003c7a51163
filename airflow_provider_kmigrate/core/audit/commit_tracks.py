"""How committed offsets moved over a stretch of `__consumer_offsets`: forwards, or back, or not at all although records wait.

What it does not claim to see: a plain jump forward. A group that skips records commits like one that read them; only where an offset was
removed in between is the jump told (D12). Wrapped consumers see it (level L2).

A track is a sum: tracks of neighbouring stretches are joined in the order of the topic, so a stretch of any size is read in pieces,
by any number of workers, and only a row for each group and partition comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.core.audit.fingerprint import compare_marks, marks_as_list, marks_from_list, refuse_other
from airflow_provider_kmigrate.core.audit.log_blocks import LogMark
from airflow_provider_kmigrate.core.audit.offsets_records import (
    ConsumerAssignment,
    ConsumerMember,
    ConsumerMemberRemoved,
    GroupRemoved,
    GroupState,
    OffsetCommitted,
    OffsetRemoved,
    RawRecord,
    Record,
)
from airflow_provider_kmigrate.core.audit.verdict import Ground, Level, Outcome
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.ledger.facts import Case
from airflow_provider_kmigrate.core.model import Reason

VERSION: Final = 2
_KEPT: Final = 5  # steps that are kept of a track
_CASES: Final = 20


class Step(NamedTuple):
    """A commit that was not where the one before it was. `place`: offset of its record in `__consumer_offsets`."""

    before: int
    after: int
    t_ms: int
    place: int


class Opening(NamedTuple):
    """The first offset that was set in a stretch, and by which record."""

    offset: int
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

    `first_ms`, `last_ms`: when the coordinator stored those. `backs` are the first few of `back_count` steps back; `agains` of
    `again_count` offsets that were removed and set again higher. `opening` and `closing` are the first and the last offset that was
    set at all, whatever was removed before or since.
    """

    first: int | None
    last: int | None
    first_ms: int
    last_ms: int
    count: int = 1
    backs: tuple[Step, ...] = ()
    back_count: int = 0
    agains: tuple[Step, ...] = ()
    again_count: int = 0
    opening: Opening | None = None
    closing: int | None = None

    @classmethod
    def of(cls, offset: int | None, t_ms: int, place: int = 0) -> Track:
        """One record; `offset` None: a removal."""
        opening = None if offset is None else Opening(offset, t_ms, place)
        return cls(offset, offset, t_ms, t_ms, opening=opening, closing=offset)

    def then(self, later: Track) -> Track:
        """Both stretches as one; `later` is the next one."""
        back, again = self.back_to(later), self.again_in(later)
        return Track(
            self.first,
            later.last,
            self.first_ms,
            later.last_ms,
            self.count + later.count,
            (*self.backs, *back, *later.backs)[:_KEPT],
            self.back_count + len(back) + later.back_count,
            (*self.agains, *again, *later.agains)[:_KEPT],
            self.again_count + len(again) + later.again_count,
            self.opening or later.opening,
            self.closing if later.closing is None else later.closing,
        )

    def back_to(self, later: Track) -> tuple[Step, ...]:
        """The step between this stretch and the next one, if it goes back, a removal between them or not."""
        step = self._step(later)
        return (step,) if step and step.after < step.before else ()

    def again_in(self, later: Track) -> tuple[Step, ...]:
        """That step, if it goes forward over a removal: what lies between was given to nobody for sure."""
        step = self._step(later)
        removed = self.last is None or later.first is None
        return (step,) if step and removed and step.after > step.before else ()

    def _step(self, later: Track) -> Step | None:
        return None if self.closing is None or later.opening is None else Step(self.closing, *later.opening)


@dataclass(slots=True)
class Tracks:
    """Every group's, while they are being read. `members`: how many each classic group last had. `consumers`: of groups of KIP-848
    each member that was heard of, and whether it is still there.
    """

    found: dict[Reader, Track]
    members: dict[str, int]
    consumers: dict[str, dict[str, bool]]

    @classmethod
    def empty(cls) -> Tracks:
        return cls({}, {}, {})

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
            case ConsumerMember(group, member) | ConsumerAssignment(group, member):
                self.consumers.setdefault(group, {})[member] = True
            case ConsumerMemberRemoved(group, member):
                self.consumers.setdefault(group, {})[member] = False

    def _put(self, raw: RawRecord, record: OffsetCommitted | OffsetRemoved, offset: int | None, t_ms: int) -> None:
        reader = Reader(record.group, record.topic, record.partition)
        one, known = Track.of(offset, t_ms, raw.offset), self.found.get(reader)
        self.found[reader] = one if known is None else known.then(one)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, to bring a worker's tracks home; `from_dict` reads it."""
        rows = [[list(reader), list(astuple(track))] for reader, track in self.found.items()]
        return {"tracks": rows, "members": self.members, "consumers": self.consumers}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Tracks:
        return cls(
            {Reader(*reader): _track(row) for reader, row in document["tracks"]}, document["members"], document["consumers"]
        )

    def join(self, later: Tracks) -> None:
        """Take in what was read of the stretch behind."""
        for reader, track in later.found.items():
            known = self.found.get(reader)
            self.found[reader] = track if known is None else known.then(track)
        self.members |= later.members
        for group, consumers in later.consumers.items():
            self.consumers.setdefault(group, {}).update(consumers)


def _track(row: Sequence[Any]) -> Track:
    first, last, first_ms, last_ms, count, backs, back_count, agains, again_count, opening, closing = row
    back, again = (tuple(Step(*step) for step in found) for found in (backs, agains))
    begins = Opening(*opening) if opening else None
    return Track(first, last, first_ms, last_ms, count, back, back_count, again, again_count, begins, closing)


@dataclass(frozen=True, slots=True)
class CommitLook:
    """What `__consumer_offsets` said up to `taken_ms`: everything before a step, or what came since the look before.

    `marks` are its own logs: where they begin and end, and whose they are.
    """

    taken_ms: int
    tracks: Mapping[Reader, Track]
    members: Mapping[str, int]
    refused: int = 0  # records that could not be read
    ends: Mapping[int, int] = field(default_factory=dict)  # of each partition of the topic: where the next look goes on
    consumers: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    marks: Mapping[TopicPartition, LogMark] = field(default_factory=dict)

    def joined(self, later: CommitLook) -> CommitLook:
        """Everything up to the later look; what it could not read counts, what this one could not was judged."""
        tracks = Tracks(dict(self.tracks), dict(self.members), {group: dict(found) for group, found in self.consumers.items()})
        tracks.join(
            Tracks(dict(later.tracks), dict(later.members), {group: dict(found) for group, found in later.consumers.items()})
        )
        return replace(later, tracks=tracks.found, members=tracks.members, consumers=tracks.consumers)

    def has_members(self, group: str) -> bool:
        return self.members.get(group, 0) > 0 or any(self.consumers.get(group, {}).values())


@dataclass(frozen=True, slots=True)
class Patience:
    """Milliseconds. A group that committed within `fresh` before the first look was alive; after `stalled` it has to move on."""

    fresh: int = 600_000
    stalled: int = 65_000  # a session of 45 s that must time out first, and 20 s to rebalance


Ends = Mapping[TopicPartition, int]


def judge_commits(before: CommitLook, after: CommitLook, ends: Ends, patience: Patience | None = None) -> list[Ground]:
    """What the commits since `before` show; `ends` are the logs' ends at the look after it, so that what came meanwhile waits too."""
    patience, now = patience or Patience(), before.joined(after)
    return [
        *compare_marks(before.marks, after.marks),
        *_gone_back(before, after),
        *_removed(before, after, now, patience),
        *_stalled(before, now, ends, patience),
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
_EXPIRED: Final = replace(
    _REMOVED, text="{} committed offsets of groups without members, which had not committed lately, were removed."
)
_AGAIN: Final = Reason(
    "D12",
    "{} committed offsets were removed and set again elsewhere, further on.",
    "What lies between the two places may have been delivered to nobody.",
    "Find out who removed them, and whether the group began anew at the end of the log; if so, have it read what lies between.",
)
_STALLED: Final = Reason(
    "D13",
    "{} partitions had records waiting and no commit moved although their group had members, or has them.",
    "Nobody reads them, or a member that is told of a moved coordinator while it starts may stop fetching for good and still count as stable.",
    "Restart one member of each group named, or wait for its next rebalance, and take the fingerprint again.",
)
_UNREADABLE: Final = Reason(
    "D14", "{} records of __consumer_offsets could not be read.", "What they said of their groups is unknown."
)


def _gone_back(before: CommitLook, after: CommitLook) -> list[Ground]:
    cases, count = [], 0
    for reader, track in after.tracks.items():
        known = _set(before, reader)
        steps = [*(known.back_to(track) if known else ()), *track.backs]
        count += track.back_count + (len(steps) - len(track.backs))
        cases += [_case(reader, step) for step in steps]
    return _ground(Outcome.FAIL, _BACK, cases, count)


def _set(look: CommitLook, reader: Reader) -> Track | None:
    """What the group had committed; an offset that was removed before the look is nothing to go on from."""
    track = look.tracks.get(reader)
    return None if track is None or track.last is None else track


def _case(reader: Reader, step: Step) -> Case:
    note = f"committed {step.after} after {step.before}, record {step.place} of __consumer_offsets"
    first, end = sorted((step.before, step.after))
    return Case(reader.topic, reader.partition, first, end - 1, end - first, group=reader.group, to_ms=step.t_ms, note=note)


def _removed(before: CommitLook, after: CommitLook, now: CommitLook, patience: Patience) -> list[Ground]:
    """Of a group that nobody is in, and that did not commit lately, offsets are removed every day, wherever it is."""
    gone: dict[bool, list[Case]] = {True: [], False: []}
    again: list[Case] = []
    for reader, track in after.tracks.items():
        known = _set(before, reader)
        again += [_case(reader, step) for step in (*(known.again_in(track) if known else ()), *track.agains)]
        offset = now.tracks[reader].closing
        if track.last is None and offset is not None and (known or track.opening):
            case = Case(
                reader.topic, reader.partition, offset, offset, 1, group=reader.group, to_ms=track.last_ms, note="removed"
            )
            gone[_was_used(reader, before, after, patience)].append(case)
    return [
        *_ground(Outcome.INCONCLUSIVE, _REMOVED, gone[True]),
        *_ground(Outcome.INCONCLUSIVE, _AGAIN, again),
        *_ground(Outcome.PASS, _EXPIRED, gone[False]),
    ]


def _was_used(reader: Reader, before: CommitLook, after: CommitLook, patience: Patience) -> bool:
    known = _set(before, reader)
    lately = known is not None and known.last_ms >= before.taken_ms - patience.fresh
    set_since = after.tracks[reader].opening is not None
    return lately or set_since or any(look.has_members(reader.group) for look in (before, before.joined(after)))


def _stalled(before: CommitLook, now: CommitLook, ends: Ends, patience: Patience) -> list[Ground]:
    if now.taken_ms - before.taken_ms < patience.stalled:
        return []
    cases = [
        Case(reader.topic, reader.partition, offset, end - 1, end - offset, group=reader.group, from_ms=track.last_ms)
        for reader, track in before.tracks.items()
        if (offset := track.last) is not None
        and (end := ends.get(TopicPartition(reader.topic, reader.partition), 0)) > offset
        and (before.has_members(reader.group) or now.has_members(reader.group))
        and track.last_ms >= before.taken_ms - patience.fresh
        and now.tracks[reader].last == offset
    ]
    return _ground(Outcome.INCONCLUSIVE, _STALLED, cases)


def _unread(before: CommitLook, after: CommitLook) -> list[Ground]:
    count = before.refused + after.refused
    reason = replace(_UNREADABLE, text=_UNREADABLE.text.format(count))
    return [Ground(Outcome.INCONCLUSIVE, reason, Level.LOG, count)] if count else []


def as_dict(look: CommitLook) -> dict[str, Any]:
    """For JSON: as much of a look as the next one is compared with."""
    tracks = [[*reader, track.last, track.last_ms] for reader, track in sorted(look.tracks.items())]
    ends = {str(partition): end for partition, end in look.ends.items()}
    rest = {"consumers": {group: dict(found) for group, found in look.consumers.items()}, "marks": marks_as_list(look.marks)}
    known = {"taken_ms": look.taken_ms, "tracks": tracks, "members": dict(look.members), "refused": look.refused, "ends": ends}
    return {"version": VERSION, **known, **rest}


def from_dict(document: Mapping[str, Any]) -> CommitLook:
    """What `as_dict` made. Raises `Refused` (D00) for another version, and KeyError, TypeError or ValueError for anything else."""
    refuse_other(document.get("version"), VERSION)
    tracks = {Reader(*row[:3]): Track(row[3], row[3], row[4], row[4], closing=row[3]) for row in document["tracks"]}
    ends = {int(partition): int(end) for partition, end in document["ends"].items()}
    rest = {"consumers": document["consumers"], "marks": marks_from_list(document["marks"])}
    return CommitLook(document["taken_ms"], tracks, dict(document["members"]), document["refused"], ends, **rest)
