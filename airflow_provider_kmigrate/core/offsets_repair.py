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
from itertools import pairwise
from typing import NamedTuple

from airflow_provider_kmigrate.core.coordinator import OFFSETS, groups_known, magnitude, with_members
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.model import ClusterView, FetchedOffset, Reason
from airflow_provider_kmigrate.core.text import date, printable, summarize
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
        return f"{value} (record {self.at} of partition {self.place}, {date(self.commit_ms)})"

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


@dataclass(frozen=True, slots=True)
class JudgedCopies:
    """The copies of one group for one partition. `home`: the partition of `__consumer_offsets` in which it belongs.

    `copies`: the last commit in each partition of the topic that has one that was not removed; the home's first. `removal`: the
    tombstone that is last in the home.
    """

    key: GroupPartition
    home: int
    state: CopyState
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


def judge(key: GroupPartition, records: Iterable[StoredCommit], count: int) -> JudgedCopies:
    """Judge all records of one group for one partition, if `__consumer_offsets` has `count` partitions for the brokers."""
    home, last = magnitude(key.group) % count, dict[int, StoredCommit]()
    ordered = sorted(records)
    for record in ordered:
        last[record.place] = record
    live = (record for record in last.values() if record.offset is not None)
    copies = tuple(sorted(live, key=lambda copy: (copy.place != home, copy.place)))
    removal = last[home] if home in last and last[home].offset is None else None
    course = by_time(record for record in ordered if record.place in {copy.place for copy in copies})
    return JudgedCopies(
        key, home, _state(home, copies, removal, course), copies, removal, tuple(_doubts(copies, removal, course))
    )


def by_time(records: Iterable[StoredCommit]) -> list[StoredCommit]:
    """The commits, without removals, in the order of their commit times; at equal times those of one partition together."""
    commits = (record for record in records if record.offset is not None)
    return sorted(commits, key=lambda record: (record.commit_ms, record.place, record.at))


def _state(home: int, copies: Sequence[StoredCommit], removal: StoredCommit | None, course: Sequence[StoredCommit]) -> CopyState:
    strays = [copy for copy in copies if copy.place != home]
    if not strays:
        return CopyState.IN_PLACE
    if len(strays) == len(copies):
        return CopyState.REMOVED if _outlives(removal, strays) else _split(course) or CopyState.MISPLACED
    current = copies[0]
    if found := _split(course):
        return found
    if revivals(course):
        return CopyState.REVIVED
    if any(stray.commit_ms > current.commit_ms for stray in strays):
        return CopyState.AHEAD
    return CopyState.IGNORED if any(stray.at >= current.at for stray in strays) else CopyState.STALE


def _split(course: Sequence[StoredCommit]) -> CopyState | None:
    return CopyState.SPLIT if interleaved(course) else None


def _outlives(removal: StoredCommit | None, copies: Sequence[StoredCommit]) -> bool:
    return removal is not None and all(removal.t_ms >= copy.commit_ms for copy in copies)


def interleaved(course: Sequence[StoredCommit]) -> bool:
    """True if a partition has commits before and after one of another partition; one change is that of an expansion.

    Commits of one millisecond have no order, and show nothing.
    """
    begins, ends = dict[int, int](), dict[int, int]()
    for commit in course:
        begins.setdefault(commit.place, commit.commit_ms)
        ends[commit.place] = commit.commit_ms
    return any(begins[place] < commit.commit_ms < ends[place] for commit in course for place in begins if place != commit.place)


def revivals(course: Sequence[StoredCommit]) -> list[tuple[StoredCommit, StoredCommit]]:
    """The commits with which a group continued from an older copy in another partition, each with the newer one before it."""
    found, latest = [], dict[int, StoredCommit]()
    for earlier, later in pairwise(course):
        elsewhere = [copy.offset or 0 for place, copy in latest.items() if place != earlier.place]
        latest[earlier.place] = earlier
        if elsewhere and min(elsewhere) <= (later.offset or 0) < (earlier.offset or 0):
            found.append((earlier, later))
    return found


def _doubts(copies: Sequence[StoredCommit], removal: StoredCommit | None, course: Sequence[StoredCommit]) -> Iterable[Doubt]:
    """None if all copies say the same, whatever their times are."""
    if copies and _outlives(removal, copies):
        yield Doubt.REMOVED
    if len({copy.offset for copy in copies}) < 2:
        return
    newest = max(copy.commit_ms for copy in copies)
    latest = [copy.offset or 0 for copy in copies if copy.commit_ms == newest]
    if interleaved(course):
        yield Doubt.INTERLEAVED
    if len(set(latest)) > 1:
        yield Doubt.EQUAL_TIME
    if any((copy.offset or 0) > min(latest) for copy in copies if copy.commit_ms < newest):
        yield Doubt.WENT_BACK


@dataclass(frozen=True, slots=True)
class GroupLog:
    """What `__consumer_offsets` holds of one group: the records of each partition that it committed, and its own states."""

    commits: Mapping[GroupPartition, Sequence[StoredCommit]] = field(default_factory=dict)
    states: Sequence[StoredGroup] = ()


def unlike(groups: Mapping[str, GroupLog], wanted: Mapping[GroupPartition, FetchedOffset], counts: Collection[int]) -> list[str]:
    """How the log differs from what it must hold of these groups, one sentence each; empty if it does not.

    It must hold the `wanted` commits and no others, each of them once, in the partition that one of `counts` gives its group. With no
    counts it must hold nothing at all.
    """
    homes = {group: {magnitude(group) % count for count in counts} for group in (*groups, *(key.group for key in wanted))}
    copies = {key: judge(key, records, 1).copies for log in groups.values() for key, records in log.commits.items()}
    wrong = []
    for key in sorted({*copies, *wanted}):
        there, must = copies.get(key, ()), wanted.get(key)
        found = [FetchedOffset(one.offset or 0, one.leader_epoch, one.metadata) for one in there if one.place in homes[key.group]]
        if found != ([] if must is None else [must]) or len(found) != len(there):
            stored = " and ".join(copy.text for copy in there) or "nothing"
            wrong.append(f"{_name(key)} must be {'nothing' if must is None else f'offset {must.offset}'}, and {stored} is stored")
    for group, log in sorted(groups.items()):
        wrong += [f"{group} is stored as a group in partition {at.place}" for at in log.states if at.place not in homes[group]]
    return wrong


def commit_times(groups: Mapping[str, GroupLog]) -> dict[GroupPartition, int]:
    """When each commit that was not removed was made, in ms since the epoch; the last of its copies."""
    judged = (judge(key, records, 1) for log in groups.values() for key, records in log.commits.items())
    return {one.key: one.newest.commit_ms for one in judged if one.copies}


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
    undecided: tuple[JudgedCopies, ...] = ()

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
            "strays": [{"group": one.group, "place": one.place, "key": one.raw_key.hex()} for one in self.strays],
            "undecided": [
                {**one.key._asdict(), "doubts": list(one.doubts), "copies": [commit.as_dict() for commit in one.values]}
                for one in self.undecided
            ],
        }


Decided = Mapping[GroupPartition, int | None]
"""The offset that an operator chose for an ambiguous commit; None: it stays removed."""


def plan(groups: Mapping[str, GroupLog], count: int, decided: Decided | None = None, gone: Collection[str] = ()) -> RepairPlan:
    """Plan the repair for a topic of `count` partitions, which all brokers must use.

    A decision counts only if it is one of the values that were found, so that no wrong number is imported. `gone`: topics that do not
    exist any more; brokers refuse commits for them, so their copies are only removed.
    """
    stop, imports, strays = list[str](), dict[GroupPartition, StoredCommit](), list[StrayRecord]()
    undecided, choices = list[JudgedCopies](), decided or {}
    for group, log in sorted(groups.items()):
        judged = [judge(key, records, count) for key, records in sorted(log.commits.items())]
        removed = [*_strays(group, log.states, judged, magnitude(group) % count)]
        current = [one for one in judged if one.key.topic not in gone]
        unclear = [one for one in current if one.strays and _chosen(one, choices) is None]
        stop += [group] if removed else []
        undecided += unclear
        if not unclear:
            strays += removed
            imports |= {one.key: pick for one in current if (pick := _to_import(one, choices))}
    return RepairPlan(count, tuple(stop), imports, tuple(strays), tuple(undecided))


def _strays(group: str, states: Iterable[StoredGroup], judged: Iterable[JudgedCopies], home: int) -> Iterable[StrayRecord]:
    for one in judged:
        yield from (StrayRecord(group, one.key, copy.place, copy.key) for copy in one.strays)
    yield from (StrayRecord(group, None, state.place, state.key) for state in states if state.place != home)


def _chosen(judged: JudgedCopies, decided: Decided) -> StoredCommit | None:
    """Of a key with strays the commit, or the removal, that is right; None if an operator must decide that."""
    if not judged.doubts:
        return judged.newest
    fitting = [value for value in judged.values if judged.key in decided and value.offset == decided[judged.key]]
    return max(fitting, key=lambda value: value.commit_ms, default=None)


def _to_import(judged: JudgedCopies, decided: Decided) -> StoredCommit | None:
    pick = _chosen(judged, decided) if judged.strays else None
    return None if pick is None or pick.offset is None or _same(pick, judged.current) else pick


def _same(one: StoredCommit, other: StoredCommit | None) -> bool:
    return other is not None and (one.offset, one.leader_epoch, one.metadata) == (
        other.offset,
        other.leader_epoch,
        other.metadata,
    )


def decide_repair(repair: RepairPlan, view: ClusterView) -> Decision:
    """Decide the next act of a repair, from a view with the coordinators and the groups of `stop` (`Fields.HOSTED_GROUPS`)."""
    if repair.empty:
        return Done(f"Every commit lies only where the {repair.count} partitions of {OFFSETS.name} put it.")
    if repair.undecided:
        return Refuse(tuple(Reason("K90", _question(one)) for one in repair.undecided))
    if not (known := groups_known(view)).met:
        return Wait(known.reasons)
    if named := [f"{group} ({many})" for group, many in with_members(view, repair.stop).items()]:
        return Wait((Reason("K79", f"{len(named)} groups that are repaired have members: {summarize(named)}."),))
    if repair.imports:
        return Act(Verb.IMPORT, f"{len(repair.imports)} commits are newer in another partition of {OFFSETS.name}.")
    return Act(
        Verb.CLEAN_UP,
        f"{len(repair.strays)} older copies of {len(repair.stop)} groups are in other partitions of {OFFSETS.name}.",
    )


def _question(judged: JudgedCopies) -> str:
    values = "; ".join(value.text for value in judged.values)
    return f"{_name(judged.key)}: {', and '.join(judged.doubts)}. Its copies: {values}."


def decisions_of(document: Mapping[str, Mapping[str, int | None]]) -> Decided:
    """An operator's decisions: group -> `topic-partition` -> offset. Raises `Refused` (F09) for anything else."""
    found = {}
    for group, offsets in document.items():
        for name, offset in offsets.items():
            topic, _, partition = name.rpartition("-")
            if not (topic and partition.isdecimal() and (offset is None or (type(offset) is int and offset >= 0))):
                text = f'{group}: {{"{name}": {offset!r}}} is no decision; one is {{"billing": {{"orders-0": 111}}}}, or null.'
                raise Refused.because(Reason("F09", text))
            found[GroupPartition(group, topic, int(partition))] = offset
    return found


def _name(key: GroupPartition) -> str:
    return printable(f"{key.group} {key.where.name}")


def groups_of(
    records: Iterable[tuple[GroupPartition, StoredCommit]], states: Iterable[tuple[str, StoredGroup]]
) -> dict[str, GroupLog]:
    """Records, in any order, as the log of each group."""
    commits: dict[str, dict[GroupPartition, list[StoredCommit]]] = defaultdict(lambda: defaultdict(list))
    own: dict[str, list[StoredGroup]] = defaultdict(list)
    for key, record in sorted(records):
        commits[key.group][key].append(record)
    for group, state in sorted(states):
        own[group].append(state)
    return {group: GroupLog(dict(commits[group]), own[group]) for group in sorted({*commits, *own})}
