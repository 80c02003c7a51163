"""Judges how groups' committed offsets moved over a stretch of `__consumer_offsets`: forwards, back, or stalled.

A track sums up one group's commits on one partition. Tracks of neighbouring stretches are joined in the order of the topic. So
any number of workers can read pieces of a stretch, and each returns only a row for each group and partition.

Limit: a plain jump forward is not found. A group that skips records commits like one that read them; only if an offset was
removed in between is the jump reported (A05). Wrapped consumers show it (level L2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.core.audit.fingerprint import compare_marks, marks_as_list, marks_from_list, refuse_other_version
from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditOutcome, Level
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.ledger.facts import Case
from airflow_provider_kmigrate.core.member.registration import OFFSETS_TOPIC
from airflow_provider_kmigrate.core.migration.coordinator import hash_group
from airflow_provider_kmigrate.core.offsets_topic.offsets_records import (
    BadRecord,
    ConsumerMember,
    GroupRemoved,
    GroupState,
    OffsetCommitted,
    OffsetRemoved,
    RawRecord,
    Record,
    decode_record,
)
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.text import Count, count_of

_KEPT: Final = 20  # steps kept of a track
_RECENT: Final = 4  # last offsets kept of a track
_LATE_MS: Final = 60_000  # for so long a client may retry one commit (librdkafka: for a session of the group)


class OffsetStep(NamedTuple):
    """A commit that does not continue from the one before it.

    `place`: offset of its record in `__consumer_offsets`; `prior`: the few offsets that had been set before `before`, and when;
    `at`: how many of the track's records precede it.
    """

    before: int
    after: int
    t_ms: int
    place: int
    prior: tuple[tuple[int, int], ...] = ()
    at: int = 0

    @property
    def is_late(self) -> bool:
        """True if it is not below the offsets committed a few commits, and at most a minute, before.

        A commit that was sent earlier and retried when the coordinator moved looks so (librdkafka; observed at a broker's
        restart).
        """
        lately = [offset for offset, t_ms in self.prior if self.t_ms - t_ms <= _LATE_MS]
        return min(lately, default=self.before) <= self.after < self.before

    def with_earlier_track(self, earlier: Track) -> OffsetStep:
        """The same, with what came earlier too."""
        return self._replace(prior=(*earlier.recent, *self.prior)[-(_RECENT - 1) :], at=earlier.count + self.at)


class Opening(NamedTuple):
    """The first offset set in a stretch, by which record, and how many of the track's records precede it."""

    offset: int
    t_ms: int
    place: int
    at: int = 0


@dataclass(frozen=True, slots=True)
class Track:
    """The commits of one group for one partition, in the order of the topic. `last` None: removed, and not set again since.

    `first_ms`, `last_ms`: when the coordinator stored those. `backs` are the first few of `back_count` steps back; `agains` the
    first few offsets that were removed and set again higher. `opening` and `closing` are the first and the last offset that was
    set at all, whatever was removed before or since. `moved_ms`: since when it is `closing`; commits of the same offset do
    not move it. `pause`: the longest time between two of these records. `recent`: the last few offsets that were set, and when.
    """

    first: int | None
    last: int | None
    first_ms: int
    last_ms: int
    count: int = 1
    backs: tuple[OffsetStep, ...] = ()
    back_count: int = 0
    agains: tuple[OffsetStep, ...] = ()
    opening: Opening | None = None
    closing: int | None = None
    moved_ms: int = 0
    pause: int = 0
    recent: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, offset: int | None, t_ms: int, place: int = 0) -> Track:
        """The track of one record; `offset` None: a removal."""
        if offset is None:
            return cls(None, None, t_ms, t_ms)
        opening, recent = Opening(offset, t_ms, place), ((offset, t_ms),)
        return cls(offset, offset, t_ms, t_ms, opening=opening, closing=offset, moved_ms=t_ms, recent=recent)

    def continued_by(self, later: Track) -> Track:
        """Joins this stretch with `later`, the next one."""
        steps_back, steps_over_removal = self.find_step_back(later), self.find_step_over_removal(later)
        return Track(
            self.first,
            later.last,
            self.first_ms,
            later.last_ms,
            self.count + later.count,
            (*self.backs, *steps_back, *(step.with_earlier_track(self) for step in later.backs))[:_KEPT],
            self.back_count + len(steps_back) + later.back_count,
            (*self.agains, *steps_over_removal, *(step.with_earlier_track(self) for step in later.agains))[:_KEPT],
            self.opening or (later.opening and later.opening._replace(at=self.count + later.opening.at)),
            self.closing if later.closing is None else later.closing,
            self._joined_moved_ms(later),
            max(self.pause, later.pause, later.first_ms - self.last_ms),
            (*self.recent, *later.recent)[-_RECENT:],
        )

    def _joined_moved_ms(self, later: Track) -> int:
        if later.opening is None:
            return self.moved_ms
        stays = later.opening.offset == self.closing and later.moved_ms == later.opening.t_ms
        return self.moved_ms if stays else later.moved_ms

    def find_step_back(self, later: Track) -> tuple[OffsetStep, ...]:
        """The step between this stretch and the next one, if the later one has the smaller offset, with a removal between them or not."""
        step = self._step_to(later)
        return (step,) if step and step.after < step.before else ()

    def find_step_over_removal(self, later: Track) -> tuple[OffsetStep, ...]:
        """That step, if it goes forward over a removal: the offsets between certainly had no reader."""
        step = self._step_to(later)
        removed = self.last is None or later.first is None
        return (step,) if step and removed and step.after > step.before else ()

    def _step_to(self, later: Track) -> OffsetStep | None:
        if self.closing is None or later.opening is None:
            return None
        offset, t_ms, place, at = later.opening
        return OffsetStep(self.closing, offset, t_ms, place, self.recent[:-1], self.count + at)


@dataclass(slots=True)
class Tracks:
    """The tracks of all groups while they are being read.

    `members`: how many each classic group last had. `consumers`: of KIP-848 groups, each member that appeared, and whether it is
    still there. `left_ms`: when members last left a group.
    """

    found: dict[GroupPartition, Track] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    consumers: dict[str, dict[str, bool]] = field(default_factory=dict)
    left_ms: dict[str, int] = field(default_factory=dict)
    refused: int = 0  # records that could not be read: what they say of their groups is unknown

    def add_raw(self, raw: RawRecord) -> None:
        """Decode one record and add it, or count it as refused."""
        try:
            self.add(raw, decode_record(raw.key, raw.value))
        except BadRecord:
            self.refused += 1

    def add(self, raw: RawRecord, record: Record) -> None:
        """Add one record, in the order of its partition of the topic."""
        match record:
            case OffsetCommitted():
                self._append(_group_partition(record), Track.of(record.offset, record.commit_ms, raw.offset))
            case OffsetRemoved():
                self._append(_group_partition(record), Track.of(None, raw.t_ms))
            case GroupState():
                self.members[record.group] = record.members
                if not record.members:
                    self.left_ms[record.group] = raw.t_ms
            case GroupRemoved(group):
                self.members[group] = 0
            case ConsumerMember(group, member, there):
                self.consumers.setdefault(group, {})[member] = there
                if not there:
                    self.left_ms[group] = raw.t_ms

    def _append(self, key: GroupPartition, track: Track) -> None:
        earlier = self.found.get(key)
        self.found[key] = track if earlier is None else earlier.continued_by(track)

    def join(self, later: Tracks) -> None:
        """Add the tracks of the stretch that follows."""
        for key, track in later.found.items():
            self._append(key, track)
        self.members |= later.members
        self.left_ms |= later.left_ms
        self.refused += later.refused
        for group, consumers in later.consumers.items():
            self.consumers.setdefault(group, {}).update(consumers)


def _group_partition(record: OffsetCommitted | OffsetRemoved) -> GroupPartition:
    return GroupPartition(record.group, record.topic, record.partition)


VERSION: Final = 3
_CASES: Final = 20
# More late commits of a partition while one broker coordinates its group look like two members that both own it.
_FEW: Final = 2
# More than `_FEW` late commits among so many records of a partition look so too, whatever coordinators did.
_CLOSE: Final = 10
_LATE: Final = "{:retried commit} took effect after newer ones of the same members."


@dataclass(frozen=True, slots=True)
class CommitSnapshot:
    """The content of `__consumer_offsets` up to `taken_ms`: everything before a step, or what came since the last observation.

    `marks` are its own logs: where they begin and end, and whose they are.
    """

    taken_ms: int
    tracks: Mapping[GroupPartition, Track]
    members: Mapping[str, int]
    refused: int = 0  # records that could not be read
    ends: Mapping[int, int] = field(default_factory=dict)  # of each partition of the topic: where the next observation continues
    consumers: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    marks: Mapping[TopicPartition, LogMark] = field(default_factory=dict)
    left_ms: Mapping[str, int] = field(default_factory=dict)  # when members last left a group; is not kept

    def continued_by(self, later: CommitSnapshot) -> CommitSnapshot:
        """Everything up to the later observation. Its unreadable records count; this one's were judged already."""
        tracks = self.copy_tracks()
        tracks.join(later.copy_tracks())
        return replace(later, tracks=tracks.found, members=tracks.members, consumers=tracks.consumers)

    def copy_tracks(self) -> Tracks:
        """Its tracks, to be joined with later ones."""
        consumers = {group: dict(members) for group, members in self.consumers.items()}
        return Tracks(dict(self.tracks), dict(self.members), consumers)

    def has_members(self, group: str) -> bool:
        """True if its newest records show a member: of a classic group, or a consumer of KIP-848."""
        return self.members.get(group, 0) > 0 or any(self.consumers.get(group, {}).values())


@dataclass(frozen=True, slots=True)
class CommitTimeouts:
    """Milliseconds. A group with a commit within `fresh` before the first observation was alive.

    After `stalled` such a group must have moved on. `leave`: members that leave have committed shortly before; without such a
    commit they were removed, or had nothing to do.
    """

    fresh: int = 600_000
    stalled: int = 65_000  # a session of 45 s that must time out first, and 20 s to rebalance
    leave: int = 5_000  # shorter than any session may be (group.min.session.timeout.ms is 6 s)


Ends = Mapping[TopicPartition, int]


class Waiting(NamedTuple):
    """Offsets before which records lay in the logs at the last observation, `since`, and `stalled` before this one."""

    before: Ends
    since: Ends


PATIENCE: Final = CommitTimeouts()
_UNKNOWN: Final = Waiting({}, {})


def judge_commits(
    before: CommitSnapshot,
    after: CommitSnapshot,
    ends: Ends,
    waiting: Waiting = _UNKNOWN,
    *,
    patience: CommitTimeouts = PATIENCE,
    resetting_groups: Collection[str] = (),
) -> list[AuditFinding]:
    """What the commits since `before` show; `ends` are the logs' ends at the next observation, so that later records wait too.

    Without `waiting` no group is reported to have stopped in between. `resetting_groups`: groups that reset on purpose, of which only
    that is reported.
    """
    change = _Change(before, after, before.continued_by(after), patience)
    stalled = ((_Shown.STALLED, case) for case in change.find_stalled(ends, waiting))
    cases: dict[_Shown, list[Case]] = {shown: [] for shown in _Shown}
    for shown, case in (*change.find_steps_back(resetting_groups), *change.find_removals(), *stalled):
        cases[shown].append(case)
    dropped = Counter[_Shown]()  # steps back beyond those that a track keeps
    for key, track in after.tracks.items():
        dropped[_Shown.MEANT if key.group in resetting_groups else _Shown.BACK] += track.back_count - len(track.backs)
    findings = [
        _build_finding(shown, shown_cases, len(shown_cases) + dropped[shown])
        for shown, shown_cases in cases.items()
        if shown_cases
    ]
    return [*compare_marks(before.marks, after.marks), *findings, *check_unreadable_records(before.refused + after.refused)]


def find_stalled_groups(before: CommitSnapshot, after: CommitSnapshot, ends: Ends, waiting: Waiting = _UNKNOWN) -> list[Case]:
    """Groups that do not move although logs end after their commits, by `ends` and `waiting`."""
    return _Change(before, after, before.continued_by(after), PATIENCE).find_stalled(ends, waiting)


def end_of_records(offsets: Iterable[int], begin: int, end: int) -> int:
    """The end of a log without what follows its last record: markers of transactions, and aborted records.

    `offsets` are those of its records from `begin` on. A group that commits after each record, as librdkafka does, never reaches
    `end`.
    """
    return max((offset + 1 for offset in offsets if offset < end), default=min(begin, end))


class _Shown(Enum):
    """What commits can show, in the order of the report: the outcome, the cause, and the text with the number of cases."""

    BACK = (
        AuditOutcome.FAIL,
        AuditCause.COMMIT_WENT_BACK,
        "{:commit} went back: their group had committed a higher offset before.",
    )
    LATE = AuditOutcome.INCONCLUSIVE, AuditCause.COMMIT_LATE, _LATE
    OVERTAKEN = AuditOutcome.PASS, AuditCause.COMMIT_LATE, _LATE
    MEANT = (
        AuditOutcome.PASS,
        AuditCause.COMMIT_WENT_BACK,
        "{:commit} went back, of groups that the cluster file names as `resetting_groups`.",
    )
    REMOVED = (
        AuditOutcome.INCONCLUSIVE,
        AuditCause.COMMIT_REMOVED,
        "{:committed offset was|committed offsets were} removed and not set again.",
    )
    AGAIN = (
        AuditOutcome.INCONCLUSIVE,
        AuditCause.COMMIT_REMOVED,
        "{:committed offset was|committed offsets were} removed and set again further on; records in between may not have been delivered.",
    )
    EXPIRED = (
        AuditOutcome.PASS,
        AuditCause.COMMIT_REMOVED,
        "Removed: {:committed offset} of groups without members, which had not committed lately.",
    )
    STALLED = (
        AuditOutcome.INCONCLUSIVE,
        AuditCause.GROUP_STALLED,
        "{:partition} had records waiting, but no commit moved, or commits stopped, although their group has or had members.",
    )


def _build_finding(shown: _Shown, cases: Iterable[Case], count: int) -> AuditFinding:
    outcome, cause, text = shown.value
    examples = tuple(sorted(cases, key=lambda case: case.sort_key)[:_CASES])
    return AuditFinding.of(outcome, cause, text.format(Count(count)), Level.LOG, count, examples)


def check_unreadable_records(count: int) -> list[AuditFinding]:
    """The finding about records of `__consumer_offsets` in an unknown format; none if there are none."""
    text = f"{count_of(count, 'record')} of __consumer_offsets could not be read."
    return [AuditFinding.of(AuditOutcome.INCONCLUSIVE, AuditCause.COMMITS_UNKNOWN, text, Level.LOG, count)] if count else []


@dataclass(frozen=True, slots=True)
class _Change:
    """Two observations, everything up to the later one (`now`), and how long a group may take."""

    before: CommitSnapshot
    after: CommitSnapshot
    now: CommitSnapshot
    patience: CommitTimeouts

    def find_steps_back(self, resetting_groups: Collection[str]) -> Iterator[tuple[_Shown, Case]]:
        """Steps back. A late commit that a newer one has replaced is reported by itself; the effect of any other is still unknown."""
        for key, track in self.after.tracks.items():
            earlier, terms = self._earlier_track(key), 1 + _count_leader_elections(key.group, self.before.marks, self.after.marks)
            steps = (
                [*earlier.find_step_back(track), *(step.with_earlier_track(earlier) for step in track.backs)]
                if earlier
                else track.backs
            )
            too_frequent = _exceed_retries([step.at for step in steps], terms) or track.back_count > len(track.backs)
            is_expected = key.group in resetting_groups
            for step in steps:
                yield (
                    _Shown.MEANT if is_expected else _Shown.BACK if too_frequent else _classify_step(step, track),
                    _case_of_step(key, step),
                )

    def find_removals(self) -> Iterator[tuple[_Shown, Case]]:
        """Removed offsets. For a group without members and recent commits, Kafka removes offsets every day, in any cluster."""
        for key, track in self.after.tracks.items():
            earlier, offset = self._earlier_track(key), self.now.tracks[key].closing
            for step in (*(earlier.find_step_over_removal(track) if earlier else ()), *track.agains):
                yield _Shown.AGAIN, _case_of_step(key, step)
            if track.last is None and offset is not None and (earlier or track.opening):
                case = Case(*key.where, offset, offset, 1, group=key.group, to_ms=track.last_ms, note="removed")
                yield _Shown.REMOVED if self._was_used(key) else _Shown.EXPIRED, case

    def find_stalled(self, ends: Ends, waiting: Waiting) -> list[Case]:
        """Partitions whose group does not move, or has stopped."""
        return [*self._find_unmoved(ends), *self._find_stopped(waiting)]

    def _find_unmoved(self, ends: Ends) -> Iterator[Case]:
        """Groups without any moved commit since the last observation."""
        if self.after.taken_ms - self.before.taken_ms < self.patience.stalled:
            return
        for key, track in self.before.tracks.items():
            if (
                (offset := track.last) is not None
                and (end := ends.get(key.where, 0)) > offset
                and self._has_members(key.group)
                and self._was_alive(track)
                and self.now.tracks[key].last == offset
            ):
                yield Case(*key.where, offset, end - 1, end - offset, group=key.group, from_ms=track.last_ms)

    def _find_stopped(self, waiting: Waiting) -> Iterator[Case]:
        """Groups whose commits moved after the last observation and then stopped, while records wait longer than ever since.

        The next observation finds a group that stops later than `fresh` before this one: by then not one commit has moved.
        """
        note = "it moved after the observation before the step, and then stopped"
        for key, track in self.after.tracks.items():
            full_track = self.now.tracks[key]
            longest = min(self.patience.fresh, max(self.patience.stalled, 2 * full_track.pause))
            if (
                (offset := track.last) is not None
                and (end := waiting.since.get(key.where, 0)) > offset
                and track.moved_ms == full_track.moved_ms  # else it has not moved since
                and self.after.taken_ms - track.moved_ms > longest
                and (self.now.has_members(key.group) or self._members_vanished(key.group))
                and not self._lets_records_wait(key, waiting.before)
            ):
                yield Case(*key.where, offset, end - 1, end - offset, group=key.group, from_ms=track.moved_ms, note=note)

    def _earlier_track(self, key: GroupPartition) -> Track | None:
        """What the group had committed; an offset removed before the observation is no base for comparison."""
        track = self.before.tracks.get(key)
        return None if track is None or track.last is None else track

    def _was_alive(self, track: Track | None) -> bool:
        """True for a track of `before` whose group was alive then."""
        return track is not None and track.last_ms >= self.before.taken_ms - self.patience.fresh

    def _has_members(self, group: str) -> bool:
        return self.before.has_members(group) or self.now.has_members(group)

    def _was_used(self, key: GroupPartition) -> bool:
        set_since = self.after.tracks[key].opening is not None
        return self._was_alive(self._earlier_track(key)) or set_since or self._has_members(key.group)

    def _members_vanished(self, group: str) -> bool:
        """The earlier members are gone without leaving: a member that leaves has committed shortly before."""
        newest = max((track.last_ms for key, track in self.after.tracks.items() if key.group == group), default=0)
        left_ms = self.after.left_ms.get(group, self.after.taken_ms)
        return self.before.has_members(group) and left_ms - newest >= self.patience.leave

    def _lets_records_wait(self, key: GroupPartition, ends: Ends) -> bool:
        """True for a group that had let records wait for long at the last observation, and continued: that is its normal pace."""
        earlier = self._earlier_track(key)
        return earlier is not None and ends.get(key.where, 0) > (earlier.last or 0) and not self._was_alive(earlier)


def _exceed_retries(positions: Sequence[int], terms: int) -> bool:
    """True for more late commits than a client causes that retries when its coordinator moves.

    Two owners alternate: their commits are close together, however seldom both commit, and continue while no coordinator moves.
    """
    close = any(later - earlier < _CLOSE for earlier, later in zip(positions, positions[_FEW:], strict=False))
    return close or len(positions) > _FEW * terms


def _count_leader_elections(group: str, before: Mapping[TopicPartition, LogMark], after: Mapping[TopicPartition, LogMark]) -> int:
    """How often a new leader was elected for the group's partition of `__consumer_offsets`; 0 if that is unknown."""
    offsets_partition = TopicPartition(OFFSETS_TOPIC, hash_group(group) % max(1, len(after)))
    old_epoch, new_epoch = (
        marks[offsets_partition].leader_epoch if offsets_partition in marks else None for marks in (before, after)
    )
    return max(0, new_epoch - old_epoch) if old_epoch is not None and new_epoch is not None else 0


def _classify_step(step: OffsetStep, track: Track) -> _Shown:
    if not step.is_late:
        return _Shown.BACK
    return _Shown.OVERTAKEN if (track.closing or 0) >= step.before else _Shown.LATE


def _case_of_step(key: GroupPartition, step: OffsetStep) -> Case:
    note = f"committed {step.after} after {step.before}, record {step.place} of __consumer_offsets"
    first, end = sorted((step.before, step.after))
    return Case(*key.where, first, end - 1, end - first, group=key.group, to_ms=step.t_ms, note=note)


def as_dict(snapshot: CommitSnapshot) -> dict[str, Any]:
    """For JSON: what the next observation is compared with."""
    return {
        "version": VERSION,
        "taken_ms": snapshot.taken_ms,
        "tracks": [[*key, track.last, track.last_ms] for key, track in sorted(snapshot.tracks.items())],
        "members": dict(snapshot.members),
        "refused": snapshot.refused,
        "ends": {str(partition): end for partition, end in snapshot.ends.items()},
        "consumers": {group: dict(members) for group, members in snapshot.consumers.items()},
        "marks": marks_as_list(snapshot.marks),
    }


def from_dict(document: Mapping[str, Any]) -> CommitSnapshot:
    """What `as_dict` made. Raises `Refused` (X04) for another version; KeyError, TypeError or ValueError for anything else."""
    refuse_other_version(document.get("version"), VERSION)
    return CommitSnapshot(
        document["taken_ms"],
        {GroupPartition(*row[:3]): Track(row[3], row[3], row[4], row[4], closing=row[3]) for row in document["tracks"]},
        dict(document["members"]),
        document["refused"],
        {int(partition): int(end) for partition, end in document["ends"].items()},
        document["consumers"],
        marks_from_list(document["marks"]),
    )
