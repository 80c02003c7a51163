"""Which stored commit of a group is current, which copies must not exist, and how a broken `__consumer_offsets` is repaired.

A commit belongs into partition `hash(group) mod count` of the topic, its home. While brokers use different counts, and after an
expansion (KIP-895), commits of one group for one partition are in two partitions of the topic. Nothing ever removes the older
copy. A broker that leads both partitions keeps the copy that it loaded first, and ignores a newer commit whose record has no higher
offset in the log (measured, classic coordinator). So an old offset can come back whenever a leader moves.

The same rules serve the audit's report, the repair, and the check after an expansion. The newest commit is the one with the
latest commit time. Where time does not settle it (`Doubt`) an operator must decide: the larger offset is not the better one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations, pairwise
from typing import NamedTuple

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, FetchedOffset, Reason
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS, count_members, groups_known, hash_group
from airflow_provider_kmigrate.core.shared.text import count_of, format_date, printable, summarize
from airflow_provider_kmigrate.exceptions import Refused


class StoredCommit(NamedTuple):
    """One record of one group for one partition, as it is in `__consumer_offsets`.

    `place`: partition of `__consumer_offsets`, `at`: the record's offset there. `t_ms`: the record's time, `commit_ms`: the commit's own;
    of a tombstone both are the record's. `offset` None: a tombstone. `key`: the record's own key, empty if it is not needed.
    """

    place: int
    at: int
    t_ms: int
    commit_ms: int
    offset: int | None
    leader_epoch: int = -1
    metadata: str = ""
    expire_ms: int | None = None
    key: bytes = b""

    @property
    def text(self) -> str:
        """The commit for a message: its value and its place."""
        value = "removed" if self.offset is None else f"offset {self.offset}"
        return f"{value} (record {self.at} of partition {self.place}, {format_date(self.commit_ms)})"

    def as_dict(self) -> dict[str, object]:
        """For JSON: all but the key."""
        return {name: value for name, value in self._asdict().items() if name != "key"}


class StoredGroup(NamedTuple):
    """The newest state of a classic group in one partition of `__consumer_offsets`."""

    place: int
    at: int
    key: bytes = b""


class CopyState(StrEnum):
    """Where the commits of one group for one partition lie, worst first."""

    SPLIT = "two coordinators committed alternately"
    REVIVED = "the group continued from an older commit"
    IGNORED = "a newer commit is ignored while one broker leads both partitions"
    AHEAD = "the newest commit is not in the partition that brokers read"
    MISPLACED = "the only commit is not in the partition that brokers read"
    REMOVED = "the offset was removed, and an older copy is left"
    STALE = "an older copy is left in another partition"
    IN_PLACE = "in one partition, the right one"


class Doubt(StrEnum):
    """Why the commit time alone does not say which offset is the group's."""

    INTERLEAVED = "two coordinators committed alternately"
    EQUAL_TIME = "two different offsets were committed in the same millisecond"
    WENT_BACK = "the newer commit has the smaller offset"
    REMOVED = "the offset was removed after the last commit elsewhere"


class CommitTimes(NamedTuple):
    """The commit times of some commits, in ms since the epoch, without the commits: the first, the last, and whether any lies strictly between."""

    first: int
    last: int
    has_between: bool = False

    def with_time(self, commit_ms: int) -> CommitTimes:
        """These times and one more."""
        inside = self.first < self.last if not self.first <= commit_ms <= self.last else self.first < commit_ms < self.last
        return CommitTimes(min(self.first, commit_ms), max(self.last, commit_ms), self.has_between or inside)

    def overlaps(self, other: CommitTimes) -> bool:
        """Whether a commit of one was made between two commits of the other. Commits of one millisecond have no order, and show nothing."""
        ends = ((self, other.first), (self, other.last), (other, self.first), (other, self.last))
        if any(times.first < end < times.last for times, end in ends):
            return True
        return self[:2] == other[:2] and (self.has_between or other.has_between)


class CommitTrail(NamedTuple):
    """All records of one group for one partition in one partition of `__consumer_offsets`, in the memory of two.

    `newest`: the last record, `previous`: the one before it. `earlier`: the times of all commits before the newest; None if there is none.
    """

    newest: StoredCommit
    previous: StoredCommit | None = None
    earlier: CommitTimes | None = None

    @property
    def times(self) -> CommitTimes | None:
        """The times of all its commits; None if all its records are removals."""
        at = self.newest.commit_ms
        if self.newest.offset is None:
            return self.earlier
        return self.earlier.with_time(at) if self.earlier else CommitTimes(at, at)

    def with_record(self, record: StoredCommit) -> CommitTrail:
        """The trail after one more record. librdkafka may hand out a record again: one that is no newer changes nothing."""
        return self if record.at <= self.newest.at else CommitTrail(record, self.newest, self.times)


Trails = Mapping[int, CommitTrail]
"""The trails of one group for one partition, by partition of `__consumer_offsets`."""


def build_trails(records: Iterable[StoredCommit]) -> dict[int, CommitTrail]:
    """The trails of all records of one group for one partition; those of each partition of `__consumer_offsets` in their order."""
    trails = dict[int, CommitTrail]()
    for record in records:
        trail = trails.get(record.place)
        trails[record.place] = CommitTrail(record) if trail is None else trail.with_record(record)
    return trails


@dataclass(frozen=True, slots=True)
class CommitCopies:
    """The copies of one group for one partition. `home`: the partition of `__consumer_offsets` in which it belongs.

    `copies`: the last commit in each partition of the topic that has one that was not removed; the home's first. `removal`: the
    tombstone that is last in the home.
    """

    key: GroupPartition
    home: int
    copies: tuple[StoredCommit, ...]
    removal: StoredCommit | None = None
    doubts: tuple[Doubt, ...] = ()

    @property
    def current(self) -> StoredCommit | None:
        """The commit that a broker with this count reads; None: the group has no offset there."""
        return self.copies[0] if self.copies and self.copies[0].place == self.home else None

    @property
    def newest(self) -> StoredCommit:
        """The copy with the latest commit time; of equal ones the home's. Raises ValueError if there is no copy."""
        return max(self.copies, key=lambda copy: (copy.commit_ms, copy.place == self.home))

    @property
    def strays(self) -> tuple[StoredCommit, ...]:
        """The copies that are not in the home."""
        return tuple(copy for copy in self.copies if copy.place != self.home)

    @property
    def values(self) -> tuple[StoredCommit, ...]:
        """What an operator chooses from: the copies, and the removal."""
        return (*self.copies, *([self.removal] if self.removal else []))


@dataclass(frozen=True, slots=True)
class JudgedCopies(CommitCopies):
    """Copies of which the whole history was read. `state`: where they lie."""

    state: CopyState = field(kw_only=True)


def judge_copies(key: GroupPartition, records: Iterable[StoredCommit], count: int) -> JudgedCopies:
    """Judge all records of one group for one partition, if `__consumer_offsets` has `count` partitions for the brokers."""
    ordered = sorted(records)
    found = find_copies(key, build_trails(ordered), count)
    places = {copy.place for copy in found.copies}
    course = sort_by_commit_time(record for record in ordered if record.place in places)
    state = _judge_state(found.home, found.copies, found.removal, course)
    return JudgedCopies(key, found.home, found.copies, found.removal, found.doubts, state=state)


def find_copies(key: GroupPartition, trails: Trails, count: int) -> CommitCopies:
    """The copies of one group for one partition, if `__consumer_offsets` has `count` partitions for the brokers, and what is suspect of them.

    A repair that was killed between its import and its removals finds its own commit in the home: it repeats the newest stray. What is
    suspect was decided on the log without it, so it is left out again.
    """
    home = hash_group(key.group) % count
    copies, removal = _live_copies(trails, home)
    before = _without_import(trails, home, copies)
    doubts = tuple(_find_doubts(before, *_live_copies(before, home)))
    return CommitCopies(key, home, copies, removal, doubts)


def _live_copies(trails: Trails, home: int) -> tuple[tuple[StoredCommit, ...], StoredCommit | None]:
    live = (trail.newest for trail in trails.values() if trail.newest.offset is not None)
    copies = tuple(sorted(live, key=lambda copy: (copy.place != home, copy.place)))
    last_at_home = trails[home].newest if home in trails else None
    return copies, last_at_home if last_at_home is not None and last_at_home.offset is None else None


def _without_import(trails: Trails, home: int, copies: Sequence[StoredCommit]) -> Trails:
    """The trails without the home's last commit, if it is the newest of all and repeats the newest stray."""
    if len(copies) < 2 or copies[0].place != home:
        return trails
    current, newest_stray = copies[0], max(copies[1:], key=lambda copy: copy.commit_ms)
    if current.commit_ms <= newest_stray.commit_ms or not _is_same_commit(newest_stray, current):
        return trails
    others, at_home = {place: trail for place, trail in trails.items() if place != home}, trails[home]
    return others if at_home.previous is None else {**others, home: CommitTrail(at_home.previous, earlier=at_home.earlier)}


def sort_by_commit_time(records: Iterable[StoredCommit]) -> list[StoredCommit]:
    """The commits, without removals, in the order of their commit times; at equal times those of one partition together."""
    commits = (record for record in records if record.offset is not None)
    return sorted(commits, key=lambda record: (record.commit_ms, record.place, record.at))


def _judge_state(
    home: int, copies: Sequence[StoredCommit], removal: StoredCommit | None, course: Sequence[StoredCommit]
) -> CopyState:
    strays = [copy for copy in copies if copy.place != home]
    if not strays:
        return CopyState.IN_PLACE
    if len(strays) == len(copies):
        return CopyState.REMOVED if _outlives(removal, strays) else _split_state(course) or CopyState.MISPLACED
    current = copies[0]
    if state := _split_state(course):
        return state
    if find_revivals(course):
        return CopyState.REVIVED
    if any(stray.commit_ms > current.commit_ms for stray in strays):
        return CopyState.AHEAD
    return CopyState.IGNORED if any(stray.at >= current.at for stray in strays) else CopyState.STALE


def _split_state(course: Sequence[StoredCommit]) -> CopyState | None:
    return CopyState.SPLIT if is_interleaved(course) else None


def _outlives(removal: StoredCommit | None, copies: Sequence[StoredCommit]) -> bool:
    return removal is not None and all(removal.t_ms >= copy.commit_ms for copy in copies)


def is_interleaved(course: Sequence[StoredCommit]) -> bool:
    """True if a partition has commits before and after one of another partition; one change is that of an expansion.

    Commits of one millisecond have no order, and show nothing.
    """
    begins, ends = dict[int, int](), dict[int, int]()
    for commit in course:
        begins.setdefault(commit.place, commit.commit_ms)
        ends[commit.place] = commit.commit_ms
    return any(begins[place] < commit.commit_ms < ends[place] for commit in course for place in begins if place != commit.place)


def find_revivals(course: Sequence[StoredCommit]) -> list[tuple[StoredCommit, StoredCommit]]:
    """The commits with which a group continued from an older copy in another partition, each with the newer one before it."""
    revived, latest = [], dict[int, StoredCommit]()
    for earlier, later in pairwise(course):
        elsewhere = [copy.offset or 0 for place, copy in latest.items() if place != earlier.place]
        latest[earlier.place] = earlier
        if elsewhere and min(elsewhere) <= (later.offset or 0) < (earlier.offset or 0):
            revived.append((earlier, later))
    return revived


def _find_doubts(trails: Trails, copies: Sequence[StoredCommit], removal: StoredCommit | None) -> Iterable[Doubt]:
    """None if all copies say the same, whatever their times are."""
    if copies and _outlives(removal, copies):
        yield Doubt.REMOVED
    if len({copy.offset for copy in copies}) < 2:
        return
    newest = max(copy.commit_ms for copy in copies)
    latest = [copy.offset or 0 for copy in copies if copy.commit_ms == newest]
    times = [times for copy in copies if (times := trails[copy.place].times)]
    if any(one.overlaps(other) for one, other in combinations(times, 2)):
        yield Doubt.INTERLEAVED
    if len(set(latest)) > 1:
        yield Doubt.EQUAL_TIME
    if any((copy.offset or 0) > min(latest) for copy in copies if copy.commit_ms < newest):
        yield Doubt.WENT_BACK


@dataclass(frozen=True, slots=True)
class GroupLog:
    """What `__consumer_offsets` holds of one group: the trails of each partition that it committed, and its own states."""

    commits: Mapping[GroupPartition, Trails] = field(default_factory=dict)
    states: Sequence[StoredGroup] = ()


def find_log_mismatches(
    groups: Mapping[str, GroupLog], expected_commits: Mapping[GroupPartition, FetchedOffset], counts: Collection[int]
) -> list[str]:
    """How the log differs from what it must hold of these groups, one sentence each; empty if it does not.

    It must hold the `expected_commits` and no others, each of them once, in the partition that one of `counts` gives its group. With no
    counts it must hold nothing at all.
    """
    homes = {
        group: {hash_group(group) % count for count in counts} for group in (*groups, *(key.group for key in expected_commits))
    }
    copies = {key: find_copies(key, trails, 1).copies for log in groups.values() for key, trails in log.commits.items()}
    wrong = []
    for key in sorted({*copies, *expected_commits}):
        stored_copies, expected_commit = copies.get(key, ()), expected_commits.get(key)
        fetched = [
            FetchedOffset(stored_copy.offset or 0, stored_copy.leader_epoch, stored_copy.metadata)
            for stored_copy in stored_copies
            if stored_copy.place in homes[key.group]
        ]
        if fetched != ([] if expected_commit is None else [expected_commit]) or len(fetched) != len(stored_copies):
            stored = " and ".join(copy.text for copy in stored_copies) or "nothing"
            wrong.append(
                f"{_format_key(key)} must be {'nothing' if expected_commit is None else f'offset {expected_commit.offset}'}, and {stored} is stored"
            )
    for group, log in sorted(groups.items()):
        wrong += [
            f"{group} is stored as a group in partition {state.place}" for state in log.states if state.place not in homes[group]
        ]
    return wrong


def commit_times(groups: Mapping[str, GroupLog]) -> dict[GroupPartition, int]:
    """When each commit that was not removed was made, in ms since the epoch; the last of its copies."""
    found = (find_copies(key, trails, 1) for log in groups.values() for key, trails in log.commits.items())
    return {copies.key: copies.newest.commit_ms for copies in found if copies.copies}


class StrayRecord(NamedTuple):
    """A record to remove: its key is written again to the same partition without a value. `key` None: the group's own state."""

    group: str
    key: GroupPartition | None
    place: int
    raw_key: bytes


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """How all groups get one copy of each commit, the right one.

    `stop`: groups without whose members nothing may be written. `imports`: what is committed again, through the coordinator. Then
    `strays` are removed, and every broker restarts: until then it keeps removed copies in memory. `undecided`: copies that an
    operator must decide; nothing of their groups is imported or removed before that.
    """

    count: int
    stop: tuple[str, ...] = ()
    imports: Mapping[GroupPartition, StoredCommit] = field(default_factory=dict)
    strays: tuple[StrayRecord, ...] = ()
    undecided: tuple[CommitCopies, ...] = ()

    @property
    def empty(self) -> bool:
        """True if every commit is where it belongs."""
        return not (self.stop or self.undecided)

    def as_dict(self) -> dict[str, object]:
        """For JSON: what an operator reads before the repair, and an import can be repeated from."""
        return {
            "count": self.count,
            "stop": list(self.stop),
            "imports": [{**key._asdict(), **commit.as_dict()} for key, commit in sorted(self.imports.items())],
            "strays": [{"group": stray.group, "place": stray.place, "key": stray.raw_key.hex()} for stray in self.strays],
            "undecided": [
                {**judged.key._asdict(), "doubts": list(judged.doubts), "copies": [commit.as_dict() for commit in judged.values]}
                for judged in self.undecided
            ],
        }


Decided = Mapping[GroupPartition, int | None]
"""The offset that an operator chose for an ambiguous commit; None: it stays removed."""


def plan_repair(
    groups: Mapping[str, GroupLog], count: int, decided: Decided | None = None, gone: Collection[str] = ()
) -> RepairPlan:
    """Plan the repair for a topic of `count` partitions, which all brokers must use.

    A decision counts only if it is one of the values that were found, so that no wrong number is imported. `gone`: topics that do not
    exist any more; brokers refuse commits for them, so their copies are only removed.
    """
    stop, imports, strays = list[str](), dict[GroupPartition, StoredCommit](), list[StrayRecord]()
    undecided, choices = list[CommitCopies](), decided or {}
    for group, log in sorted(groups.items()):
        judged = [find_copies(key, trails, count) for key, trails in sorted(log.commits.items())]
        removed = [*_find_stray_records(group, log.states, judged, hash_group(group) % count)]
        current = [judged_copies for judged_copies in judged if judged_copies.key.topic not in gone]
        unclear = [
            judged_copies for judged_copies in current if judged_copies.strays and _chosen_commit(judged_copies, choices) is None
        ]
        stop += [group] if removed else []
        undecided += unclear
        if not unclear:
            strays += removed
            imports |= {
                judged_copies.key: pick for judged_copies in current if (pick := _commit_to_import(judged_copies, choices))
            }
    return RepairPlan(count, tuple(stop), imports, tuple(strays), tuple(undecided))


def _find_stray_records(
    group: str, states: Iterable[StoredGroup], judged: Iterable[CommitCopies], home: int
) -> Iterable[StrayRecord]:
    for judged_copies in judged:
        yield from (StrayRecord(group, judged_copies.key, copy.place, copy.key) for copy in judged_copies.strays)
    yield from (StrayRecord(group, None, state.place, state.key) for state in states if state.place != home)


def _chosen_commit(judged: CommitCopies, decided: Decided) -> StoredCommit | None:
    """Of a key with strays the commit, or the removal, that is right; None if an operator must decide that."""
    if not judged.doubts:
        return judged.newest
    fitting = [value for value in judged.values if judged.key in decided and value.offset == decided[judged.key]]
    return max(fitting, key=lambda value: value.commit_ms, default=None)


def _commit_to_import(judged: CommitCopies, decided: Decided) -> StoredCommit | None:
    pick = _chosen_commit(judged, decided) if judged.strays else None
    return None if pick is None or pick.offset is None or _is_same_commit(pick, judged.current) else pick


def _is_same_commit(commit: StoredCommit, other_commit: StoredCommit | None) -> bool:
    return other_commit is not None and (commit.offset, commit.leader_epoch, commit.metadata) == (
        other_commit.offset,
        other_commit.leader_epoch,
        other_commit.metadata,
    )


def decide_repair(repair: RepairPlan, view: ClusterView) -> Decision:
    """Decide the next act of a repair, from a view with the coordinators and the groups of `stop` (`Fields.HOSTED_GROUPS`)."""
    if repair.empty:
        return Done(f"Every commit lies only where the {count_of(repair.count, 'partition')} of {OFFSETS.name} put it.")
    if repair.undecided:
        return Refuse(tuple(Reason("K90", _describe_doubts(judged_copies)) for judged_copies in repair.undecided))
    if not (groups_gate := groups_known(view)).met:
        return Wait(groups_gate.reasons)
    if groups_with_members := [f"{group} ({many})" for group, many in count_members(view, repair.stop).items()]:
        return Wait(
            (
                Reason(
                    "K79",
                    f"{count_of(len(groups_with_members), 'group that is repaired has', 'groups that are repaired have')} members: {summarize(groups_with_members)}.",
                ),
            )
        )
    if repair.imports:
        return Act(
            Verb.IMPORT,
            f"{count_of(len(repair.imports), 'commit is', 'commits are')} newer in another partition of {OFFSETS.name}.",
        )
    return Act(
        Verb.CLEAN_UP,
        f"Other partitions of {OFFSETS.name} have {count_of(len(repair.strays), 'older copy', 'older copies')} of {count_of(len(repair.stop), 'group')}.",
    )


def _describe_doubts(judged: CommitCopies) -> str:
    values = "; ".join(value.text for value in judged.values)
    return f"{_format_key(judged.key)}: {', and '.join(judged.doubts)}. Its copies: {values}."


def parse_decisions(document: Mapping[str, Mapping[str, int | None]]) -> Decided:
    """An operator's decisions: group -> `topic-partition` -> offset. Raises `Refused` (F09) for anything else."""
    decisions = {}
    for group, offsets in document.items():
        for name, offset in offsets.items():
            topic, _, partition = name.rpartition("-")
            if not (topic and partition.isdecimal() and (offset is None or (type(offset) is int and offset >= 0))):
                text = f'{group}: {{"{name}": {offset!r}}} is no decision; one is {{"billing": {{"orders-0": 111}}}}, or null.'
                raise Refused.because(Reason("F09", text))
            decisions[GroupPartition(group, topic, int(partition))] = offset
    return decisions


def _format_key(key: GroupPartition) -> str:
    return printable(f"{key.group} {key.where.name}")


class GroupLogs:
    """Makes the log of each group from the records of `__consumer_offsets`, one after another.

    What it holds grows with the groups' partitions, not with their records. The records of each partition of the topic come in their order.
    """

    def __init__(self) -> None:
        self._trails: dict[GroupPartition, dict[int, CommitTrail]] = defaultdict(dict)
        self._states = dict[tuple[str, int], StoredGroup]()

    def add_commit(self, key: GroupPartition, record: StoredCommit) -> None:
        """Add a commit, or its removal."""
        trails = self._trails[key]
        trail = trails.get(record.place)
        trails[record.place] = CommitTrail(record) if trail is None else trail.with_record(record)

    def add_state(self, group: str, place: int, state: StoredGroup | None) -> None:
        """Add the group's own state in one partition of the topic; None: it was removed there."""
        if state is None:
            self._states.pop((group, place), None)
        else:
            self._states[group, place] = state

    def build(self) -> dict[str, GroupLog]:
        """The log of each group that has any record."""
        commits: dict[str, dict[GroupPartition, Trails]] = defaultdict(dict)
        for key in sorted(self._trails):
            commits[key.group][key] = self._trails[key]
        states: dict[str, list[StoredGroup]] = defaultdict(list)
        for (group, _), state in sorted(self._states.items()):
            states[group].append(state)
        return {group: GroupLog(commits[group], states[group]) for group in sorted({*commits, *states})}
