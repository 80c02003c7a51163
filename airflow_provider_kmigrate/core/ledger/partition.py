"""Checks one partition: everything that its events show, before it is known which clients' accounts are whole.

`check` needs the partition's own events and a `CheckContext`, which holds what those events do not say of the groups. Partitions are
independent of each other, so an audit may check each on another machine; `balance.conclude` puts the results together and decides
what the absence of events may show.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import DeliveryRun, LogExtent, Ownership, OwnershipChange, TopicPartition
from airflow_provider_kmigrate.core.ledger.book import Book, GroupPartition, PartitionEvents, subscription_matches
from airflow_provider_kmigrate.core.ledger.facts import NOTHING, Case, Gap, LedgerFinding
from airflow_provider_kmigrate.core.ledger.health import EvidenceTimes
from airflow_provider_kmigrate.core.ledger.ownership import find_not_owned, first_reported_start, offsets_of_others
from airflow_provider_kmigrate.core.ledger.prefix import Prefix
from airflow_provider_kmigrate.core.ledger.records import (
    Missing,
    PartitionRead,
    Walk,
    find_missing,
    find_skipped,
    inspect_log,
    part_of,
    split_maybe_delivered,
    walk_deliveries,
)
from airflow_provider_kmigrate.core.reasons.entry import AuditCause

SKEW_MS: Final = 100
"""By how much members' clocks may differ by default."""
BATCH_MS: Final = 2_000
"""Deliveries are written about once a second: what a running client received so recently may not be written yet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the checks.

    `skew_ms`: by how much members' clocks may differ. `max_cases`: counter-examples kept of a finding.
    `mixed`: groups with members that write no events.
    """

    skew_ms: int
    max_cases: int
    times: EvidenceTimes
    mixed: tuple[str, ...] = ()

    def ended_before_step(self, case: Case) -> bool:
        """True if it ended before the step began. What has no time, such as a record stored twice, may belong to the step."""
        since = self.times.since
        return since is not None and case.to_ms is not None and case.to_ms + self.skew_ms < since

    def build_finding(self, cases: Sequence[Case]) -> LedgerFinding:
        """The finding of these cases, with at most `max_cases` kept."""
        return LedgerFinding.of(cases, self.max_cases)

    def split_by_step(self, cases: Sequence[Case]) -> Dated:
        """Splits findings by whether they were over before the step."""
        if not cases:
            return _NEVER
        over_before = [case for case in cases if self.ended_before_step(case)]
        return Dated(
            self.build_finding([case for case in cases if not self.ended_before_step(case)]), self.build_finding(over_before)
        )


@dataclass(frozen=True, slots=True)
class Dated:
    """A finding that may belong to the step, and what was over before it."""

    now: LedgerFinding = NOTHING
    earlier: LedgerFinding = NOTHING


_NEVER: Final = Dated()


@dataclass(frozen=True, slots=True)
class ReportedGroup:
    """What a group's members reported of it, wherever its partitions are.

    `last_ms`: the last sign of life of each member; `running`: of those that still run. `reports_owners`: some member reported what
    it owned.
    """

    topics: frozenset[str] = frozenset()
    from_latest: bool = False
    last_ms: Mapping[str, int] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)
    reports_owners: bool = False


_NO_PREFIX: Final = Prefix(-1, 0, None, {})
_UNNAMED: Final = ReportedGroup()  # observed reading, without a start event from any member


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What `check` must know besides a partition's own events.

    `prefixes`: of partitions of which only the events after a clean part are checked, that part.
    """

    limits: Limits
    groups: Mapping[str, ReportedGroup]
    ownership: Mapping[GroupPartition, Sequence[Ownership]]
    extents: Mapping[TopicPartition, LogExtent]
    prefixes: Mapping[TopicPartition, Prefix] = field(default_factory=dict)

    @classmethod
    def of(cls, book: Book, limits: Limits) -> CheckContext:
        """The context for checks of all partitions in the book."""
        reporting = {
            key.group
            for key, changes in book.ownership.items()
            if any(change.change is OwnershipChange.ACQUIRED for change in changes)
        }
        announced_groups = {start.group for start in book.starts if start.group is not None}
        groups = {
            name: _summarize_group(book, name, limits.times, reports_owners=name in reporting)
            for name in announced_groups | reporting
        }
        return cls(limits, groups, book.ownership, book.extents)

    def restrict_to(self, topic_partitions: Collection[TopicPartition]) -> CheckContext:
        """Only what these partitions need: it is sent to every worker."""
        changes = {key: list(group_changes) for key, group_changes in self.ownership.items() if key.where in topic_partitions}
        return replace(
            self,
            ownership=changes,
            extents={
                topic_partition: extent for topic_partition, extent in self.extents.items() if topic_partition in topic_partitions
            },
            prefixes={
                topic_partition: prefix
                for topic_partition, prefix in self.prefixes.items()
                if topic_partition in topic_partitions
            },
        )

    def subscribed_groups(self, topic: str) -> set[str]:
        """Every group that subscribed to the topic."""
        return {
            name for name, group in self.groups.items() if any(subscription_matches(pattern, topic) for pattern in group.topics)
        }

    def reading_groups(self, part: PartitionEvents) -> list[str]:
        """Every group to which the partition's records are due, or were delivered."""
        prefix = self.prefixes.get(part.where)
        subscribed = self.subscribed_groups(part.where.topic) if part.acks or (prefix and prefix.acked) else set()
        return sorted(
            subscribed | {name for name, runs in part.runs.items() if runs} | (prefix.groups.keys() if prefix else set())
        )


def _summarize_group(book: Book, name: str, times: EvidenceTimes, *, reports_owners: bool) -> ReportedGroup:
    starts = [start for start in book.starts if start.group == name]
    writers = book.writers_of(name)
    return ReportedGroup(
        frozenset(pattern for start in starts for pattern in start.topics),
        any(start.reset == "latest" for start in starts),
        {writer.name: writer.last_ms for writer in writers},
        {writer.name: writer.last_ms for writer in writers if times.is_still_running(writer)},
        reports_owners,
    )


@dataclass(frozen=True, slots=True)
class GroupChecked:
    """One group on one partition. `judged` False: only members that write no events owned it.

    `lost` holds what is perhaps `on_its_way`, and what is `surely_lost` if the group's account is whole; `committed_over` is the
    part of the latter beyond which the group committed. `to_come` and `not_read`: records acknowledged too recently to be missing,
    see `GroupBalance`. The other fields are those of `Facts`.
    """

    key: GroupPartition
    judged: bool = True
    compacted: bool = False
    redelivered: Dated = _NEVER
    client_repeats: LedgerFinding = NOTHING
    reordered: Dated = _NEVER
    commit_gap: Dated = _NEVER
    not_owned: Dated = _NEVER
    lost: LedgerFinding = NOTHING
    on_its_way: LedgerFinding = NOTHING
    surely_lost: LedgerFinding = NOTHING
    committed_over: LedgerFinding = NOTHING
    unread: LedgerFinding = NOTHING
    unclear: LedgerFinding = NOTHING
    skipped: LedgerFinding = NOTHING
    to_come: int = 0
    not_read: int = 0
    gap: Gap | None = None

    @property
    def repeats(self) -> int:
        """Records that were delivered to the group before."""
        return self.redelivered.now.count + self.redelivered.earlier.count + self.client_repeats.count

    @property
    def missing(self) -> int:
        """Acknowledged records that no delivery was found for, without the newest."""
        return self.lost.count + self.unread.count + self.unclear.count


@dataclass(frozen=True, slots=True)
class PartitionChecked:
    """What one partition's events show.

    `miscounted`: writers whose count of deliveries has a hole here, each with the reason. `stall_us`: the longest wait for an
    acknowledgement.
    """

    where: TopicPartition
    acked: int
    delivered: Mapping[str, int]
    groups: tuple[GroupChecked, ...] = ()
    diverged: LedgerFinding = NOTHING
    stored_twice: LedgerFinding = NOTHING
    reordered: LedgerFinding = NOTHING
    miscounted: tuple[tuple[str, Reason], ...] = ()
    stall_us: int | None = None


def check_partition(part: PartitionEvents, context: CheckContext) -> PartitionChecked:
    """Everything that the partition's events show, for all its groups; with its prefix if the context has one."""
    finding = context.limits.build_finding
    flaws = inspect_log(*part.where, part.acks, [run for runs in part.runs.values() for run in runs])
    prefix = context.prefixes.get(part.where, _NO_PREFIX)
    stalls = [prefix.stall_us, *(ack.latency_max_us for ack in part.acks)]
    delivered = Counter({group: group_prefix.records for group, group_prefix in prefix.groups.items()})
    delivered.update({group: sum(run.count for run in runs) for group, runs in part.runs.items()})
    return PartitionChecked(
        part.where,
        acked=prefix.acked + sum(ack.count for ack in part.acks),
        delivered=dict(delivered),
        groups=tuple(_check_group(part, group, context) for group in context.reading_groups(part)),
        diverged=finding(flaws.diverged),
        stored_twice=finding(flaws.stored_twice),
        reordered=finding(flaws.reordered),
        miscounted=tuple(_find_miscounts(part.runs, prefix)),
        stall_us=max((stall_us for stall_us in stalls if stall_us is not None), default=None),
    )


def _check_group(part: PartitionEvents, name: str, context: CheckContext) -> GroupChecked:
    """Everything that the partition's events show for one group."""
    key, limits, group = GroupPartition(name, *part.where), context.limits, context.groups.get(name, _UNNAMED)
    changes, runs, is_mixed = context.ownership.get(key, ()), part.runs.get(name, ()), name in limits.mixed
    if is_mixed and not changes and not runs:
        return GroupChecked(key, judged=False)
    read = _collect_reading(part, key, context)
    absent, walk_findings = find_missing(read), walk_deliveries(read, limits.skew_ms)
    skips = [] if is_mixed else find_skipped(read)
    maybe_delivered_cases, surely_lost = (
        split_maybe_delivered(read, absent.lost, group.running, limits.skew_ms + BATCH_MS) if absent.lost else ([], [])
    )
    fresh, overdue = _split_by_freshness(absent.unread, limits.times.alive_since)
    not_read = _count_surely_not_read(fresh, group, limits)
    return GroupChecked(
        key,
        compacted=read.extent is not None and read.extent.compacted,
        redelivered=limits.split_by_step(walk_findings.redelivered),
        client_repeats=limits.build_finding(walk_findings.client_repeats),
        reordered=limits.split_by_step(walk_findings.reordered),
        commit_gap=limits.split_by_step(walk_findings.commit_gap),
        not_owned=limits.split_by_step(find_not_owned(part.where, runs, changes) if group.reports_owners else ()),
        lost=limits.build_finding(absent.lost),
        on_its_way=limits.build_finding(maybe_delivered_cases),
        surely_lost=limits.build_finding(surely_lost),
        committed_over=limits.build_finding(_find_committed_over(read, surely_lost)),
        unread=limits.build_finding(overdue),
        unclear=limits.build_finding(absent.unclear),
        skipped=LedgerFinding.with_largest_cases(sum(case.count for case in skips), skips, limits.max_cases),
        to_come=sum(case.count for case in fresh) - not_read,
        not_read=not_read,
        gap=_longest_gap(read, group, absent, walk_findings),
    )


def _collect_reading(part: PartitionEvents, key: GroupPartition, context: CheckContext) -> PartitionRead:
    """The partition's events as one group read it."""
    name, changes = key.group, context.ownership.get(key, ())
    runs, is_mixed = part.runs.get(name, ()), name in context.limits.mixed
    return PartitionRead(
        *key,
        acks=part.acks,
        runs=runs,
        commits=part.commits.get(name, ()),
        extent=context.extents.get(part.where),
        from_latest=context.groups.get(name, _UNNAMED).from_latest,
        start=first_reported_start(part.where, changes),
        excused=offsets_of_others(part.where, changes, runs) if is_mixed else (),
        prefix=context.prefixes.get(part.where, _NO_PREFIX).groups.get(name),
    )


def _split_by_freshness(unread: Iterable[Case], alive_since: int | None) -> tuple[list[Case], list[Case]]:
    """Unread records that running consumers need not have read yet, because they are so new; and all others."""
    fresh, overdue = list[Case](), list[Case]()
    for case in unread:
        is_fresh = alive_since is not None and case.to_ms is not None and case.to_ms >= alive_since
        (fresh if is_fresh else overdue).append(case)
    return fresh, overdue


def _count_surely_not_read(fresh: Iterable[Case], group: ReportedGroup, limits: Limits) -> int:
    """Of these new records those that are newer than all that the running members' events can show."""
    known_until = min(group.running.values(), default=limits.times.alive_since or 0) - BATCH_MS
    return sum(case.count for case in fresh if (case.to_ms or 0) > known_until)


def _find_committed_over(read: PartitionRead, lost: Iterable[Case]) -> list[Case]:
    """Records that were never delivered although the group committed an offset beyond them."""
    committed = max((commit.offset for commit in read.commits), default=0)
    behind = [part_of(case, (case.first, min(case.last, committed - 1))) for case in lost if case.first < committed]
    return [replace(case, note=f"offset {committed} is committed") for case in behind]


def _longest_gap(read: PartitionRead, group: ReportedGroup, absent: Missing, walk_findings: Walk) -> Gap | None:
    """The partition's longest gap; one that is still open ends with the group's last sign of life."""
    gaps = [] if walk_findings.gap is None else [walk_findings.gap]
    gaps = [read.prefix.gap, *gaps] if read.prefix else gaps
    sent = [
        sent_ms for case in absent.unread if (sent_ms := case.from_ms if case.from_ms is not None else case.to_ms) is not None
    ]
    if sent and group.last_ms:
        begin, end = max(min(sent), walk_findings.last_ms or min(sent)), max(group.last_ms.values())
        gaps.append(Gap(read.group, read.topic, read.partition, max(0, end - begin), begin, end, open=True))
    return max(gaps, key=lambda gap: gap.ms, default=None)


def _find_miscounts(runs: Mapping[str, Sequence[DeliveryRun]], prefix: Prefix) -> Iterator[tuple[str, Reason]]:
    """Each member counts its deliveries of each partition from 0, or goes on after the prefix; a run that is missing breaks the count."""
    before = {
        (writer, group, member): count
        for group, group_prefix in prefix.groups.items()
        for (writer, member), count in group_prefix.counted.items()
    }
    counted: dict[tuple[str, str, str], list[DeliveryRun]] = defaultdict(list)
    for group, group_runs in runs.items():
        for run in group_runs:
            counted[run.stamp.writer, group, run.member].append(run)
    for (writer, group, member), member_runs in sorted(counted.items()):
        expected = before.get((writer, group, member), 0)
        for run in sorted(member_runs, key=lambda run: (run.seq, run.count)):
            if run.seq != expected:
                partition_name = f"{run.topic}-{run.partition}"
                text = f"{member} of {group} counts delivery {run.seq} of {partition_name} where {expected} was next."
                yield writer, Reason.of(AuditCause.COUNT_GAP, text)
                break
            expected += run.count
