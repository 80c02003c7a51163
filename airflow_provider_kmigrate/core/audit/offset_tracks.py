"""How one group's committed offsets on one partition moved over a stretch of `__consumer_offsets`.

A track is a sum: tracks of neighbouring stretches are joined in the order of the topic, so a stretch of any size is read in pieces,
by any number of workers, and only a row for each group and partition comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Final, NamedTuple

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

_KEPT: Final = 20  # steps that are kept of a track
_RECENT: Final = 4  # offsets that are kept of a track, the last ones
_LATE_MS: Final = 60_000  # so long a client may try to send one commit (librdkafka: for a session of the group)


class OffsetStep(NamedTuple):
    """A commit that was not where the one before it was. `place`: offset of its record in `__consumer_offsets`; `prior`: the few offsets that
    had been set before `before`, and when; `at`: how many of the track's records lie before it.
    """

    before: int
    after: int
    t_ms: int
    place: int
    prior: tuple[tuple[int, int], ...] = ()
    at: int = 0

    @property
    def late(self) -> bool:
        """It lies not below what was committed a few commits, and at most a minute, before: one that was sent earlier and tried again
        where the coordinator moved looks so (librdkafka; seen when a broker was restarted).
        """
        lately = [offset for offset, t_ms in self.prior if self.t_ms - t_ms <= _LATE_MS]
        return min(lately, default=self.before) <= self.after < self.before

    def behind(self, earlier: Track) -> OffsetStep:
        """The same, by what came earlier too."""
        return self._replace(prior=(*earlier.recent, *self.prior)[-(_RECENT - 1) :], at=earlier.count + self.at)


class Opening(NamedTuple):
    """The first offset that was set in a stretch, by which record, and how many of the track's lie before it."""

    offset: int
    t_ms: int
    place: int
    at: int = 0


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
    set at all, whatever was removed before or since. `moved_ms`: since when it is `closing`; commits of the same offset do not move.
    `pause`: the longest time between two of these records. `recent`: the last few offsets that were set, and when.
    """

    first: int | None
    last: int | None
    first_ms: int
    last_ms: int
    count: int = 1
    backs: tuple[OffsetStep, ...] = ()
    back_count: int = 0
    agains: tuple[OffsetStep, ...] = ()
    again_count: int = 0
    opening: Opening | None = None
    closing: int | None = None
    moved_ms: int = 0
    pause: int = 0
    recent: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, offset: int | None, t_ms: int, place: int = 0) -> Track:
        """One record; `offset` None: a removal."""
        opening = None if offset is None else Opening(offset, t_ms, place)
        if opening is None:
            return cls(None, None, t_ms, t_ms)
        return cls(offset, offset, t_ms, t_ms, opening=opening, closing=offset, moved_ms=t_ms, recent=((opening.offset, t_ms),))

    def then(self, later: Track) -> Track:
        """Both stretches as one; `later` is the next one."""
        back, again = self.back_to(later), self.again_in(later)
        return Track(
            self.first,
            later.last,
            self.first_ms,
            later.last_ms,
            self.count + later.count,
            (*self.backs, *back, *(step.behind(self) for step in later.backs))[:_KEPT],
            self.back_count + len(back) + later.back_count,
            (*self.agains, *again, *(step.behind(self) for step in later.agains))[:_KEPT],
            self.again_count + len(again) + later.again_count,
            self.opening or (later.opening and later.opening._replace(at=self.count + later.opening.at)),
            self.closing if later.closing is None else later.closing,
            self._moved_ms(later),
            max(self.pause, later.pause, later.first_ms - self.last_ms),
            (*self.recent, *later.recent)[-_RECENT:],
        )

    def _moved_ms(self, later: Track) -> int:
        if later.opening is None:
            return self.moved_ms
        stays = later.opening.offset == self.closing and later.moved_ms == later.opening.t_ms
        return self.moved_ms if stays else later.moved_ms

    def back_to(self, later: Track) -> tuple[OffsetStep, ...]:
        """The step between this stretch and the next one, if it goes back, a removal between them or not."""
        step = self._step(later)
        return (step,) if step and step.after < step.before else ()

    def again_in(self, later: Track) -> tuple[OffsetStep, ...]:
        """That step, if it goes forward over a removal: what lies between was given to nobody for sure."""
        step = self._step(later)
        removed = self.last is None or later.first is None
        return (step,) if step and removed and step.after > step.before else ()

    def _step(self, later: Track) -> OffsetStep | None:
        if self.closing is None or later.opening is None:
            return None
        offset, t_ms, place, at = later.opening
        return OffsetStep(self.closing, offset, t_ms, place, self.recent[:-1], self.count + at)


@dataclass(slots=True)
class Tracks:
    """Every group's, while they are being read. `members`: how many each classic group last had. `consumers`: of groups of KIP-848
    each member that was heard of, and whether it is still there. `left_ms`: when members were last gone from a group.
    """

    found: dict[Reader, Track]
    members: dict[str, int]
    consumers: dict[str, dict[str, bool]]
    left_ms: dict[str, int] = field(default_factory=dict)

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
                if not record.members:
                    self.left_ms[record.group] = raw.t_ms
            case GroupRemoved(group):
                self.members[group] = 0
            case ConsumerMember(group, member) | ConsumerAssignment(group, member):
                self.consumers.setdefault(group, {})[member] = True
            case ConsumerMemberRemoved(group, member):
                self.consumers.setdefault(group, {})[member] = False
                self.left_ms[group] = raw.t_ms

    def _put(self, raw: RawRecord, record: OffsetCommitted | OffsetRemoved, offset: int | None, t_ms: int) -> None:
        reader = Reader(record.group, record.topic, record.partition)
        one, known = Track.of(offset, t_ms, raw.offset), self.found.get(reader)
        self.found[reader] = one if known is None else known.then(one)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, to bring a worker's tracks home; `from_dict` reads it."""
        rows = [[list(reader), list(astuple(track))] for reader, track in self.found.items()]
        return {"tracks": rows, "members": self.members, "consumers": self.consumers, "left_ms": self.left_ms}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Tracks:
        found = {Reader(*reader): _track(row) for reader, row in document["tracks"]}
        return cls(found, document["members"], document["consumers"], document["left_ms"])

    def join(self, later: Tracks) -> None:
        """Take in what was read of the stretch behind."""
        for reader, track in later.found.items():
            known = self.found.get(reader)
            self.found[reader] = track if known is None else known.then(track)
        self.members |= later.members
        self.left_ms |= later.left_ms
        for group, consumers in later.consumers.items():
            self.consumers.setdefault(group, {}).update(consumers)


def _track(row: Sequence[Any]) -> Track:
    first, last, first_ms, last_ms, count, backs, back_count, agains, again_count, opening, *rest = row
    closing, moved_ms, pause, recent = rest
    back, again = (
        tuple(OffsetStep(before, after, t_ms, place, _pairs(prior), at) for before, after, t_ms, place, prior, at in steps)
        for steps in (backs, agains)
    )
    ends = Opening(*opening) if opening else None, closing, moved_ms, pause
    return Track(first, last, first_ms, last_ms, count, back, back_count, again, again_count, *ends, _pairs(recent))


def _pairs(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((offset, t_ms) for offset, t_ms in rows)
