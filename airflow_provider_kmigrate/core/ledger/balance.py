"""Balances a whole ledger: files the events, checks every partition by itself, examines the evidence, concludes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from operator import add
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import Event
from airflow_provider_kmigrate.core.ledger.book import Book, GroupPartition
from airflow_provider_kmigrate.core.ledger.facts import Case, Facts, Gap, GroupBalance, LedgerFinding
from airflow_provider_kmigrate.core.ledger.health import (
    ANY_EVIDENCE,
    Demand,
    EvidenceHealth,
    EvidenceTimes,
    Newest,
    Refusals,
    check_any_evidence,
    check_demand,
    examine_evidence,
)
from airflow_provider_kmigrate.core.ledger.ownership import (
    count_owner_changes,
    describe_uneven_shares,
    find_double_ownership,
    find_unowned_times,
)
from airflow_provider_kmigrate.core.ledger.partition import (
    SKEW_MS,
    CheckContext,
    Dated,
    GroupChecked,
    Limits,
    PartitionChecked,
    check_partition,
)
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.text import Count


def balance(
    events: Iterable[Event],
    *,
    refused: Sequence[str] = (),
    refused_before: Sequence[str] = (),
    skew_ms: int = SKEW_MS,
    max_cases: int = 20,
    alive_since: int | None = None,
    demand: Demand = ANY_EVIDENCE,
    now_ms: int | None = None,
) -> Facts:
    """What the events show.

    `refused` are the lines that were no events, `refused_before` those of them from before `demand.since`. `skew_ms` is by
    how much the members' clocks may differ. Each finding keeps at most `max_cases` counter-examples; counts are whole.

    `alive_since` (ms since the epoch) is for clients that still run: a writer that gave a sign of life since then needs no stop,
    and what was acknowledged since then may be unread. None: every client must have stopped, and read everything.

    `demand`: what evidence there must be at least. What was delivered again, too late or after its own commit, or had two owners,
    and was over before `demand.since`, is in `Facts.earlier`; a loss has no time, so it counts whenever it happened. `now_ms`:
    when the events had been read; None: unknown.
    """
    times = EvidenceTimes(alive_since, None if now_ms is None else now_ms + skew_ms, demand.since)
    limits = Limits(skew_ms, max_cases, times, demand.mixed)
    book = Book.of(events)
    context = CheckContext.of(book, limits)
    return conclude(
        book,
        [check_partition(part, context) for part in book.partition_events()],
        limits,
        refused=Refusals(refused, refused_before),
        unmet=tuple(check_demand(demand, Newest.of(book, demand.since), book.failures)),
    )


def conclude(
    book: Book, parts: Iterable[PartitionChecked], limits: Limits, *, refused: Refusals, unmet: Sequence[Reason]
) -> Facts:
    """The facts of all partitions together.

    `parts` are what deliveries, acknowledgements and commits showed; the book need not hold these events. `unmet`: evidence that
    is demanded and missing.
    """
    checked = sorted(parts, key=lambda part: part.where)
    health = examine_evidence(book, refused, limits.times, _group_miscounts(checked))
    total = _sum_up(checked, health)
    total.add_ownership(book, limits)
    acked, delivered = sum(part.acked for part in checked), _count_delivered(book, checked)
    open_questions = _open_question_reasons(total, limits.max_cases)
    reasons = (*health.reasons, *check_any_evidence(acked=acked, groups=delivered), *total.doubts, *open_questions, *unmet)
    findings = {name: LedgerFinding.merge(cases, limits.max_cases) for name, cases in total.findings.items()}
    skipped_cases = (case for finding in total.skipped for case in finding.cases)
    return Facts(
        complete=not reasons,
        reasons=reasons,
        acked=acked,
        send_failures=sum(failure.seq_last - failure.seq_first + 1 for failure in book.failures),
        delivered=delivered,
        **findings,
        recorded=health.recorded and not total.doubts,
        longest_stall_ms=_longest_stall_ms(book, checked),
        of_others=tuple(total.of_others),
        skipped=LedgerFinding.with_largest_cases(
            sum(finding.count for finding in total.skipped), skipped_cases, limits.max_cases
        ),
        unowned=LedgerFinding.with_largest_cases(sum(case.count for case in total.unowned), total.unowned, limits.max_cases),
        owner_changes=sum(map(count_owner_changes, book.ownership.values())),
        uneven=_find_uneven_shares(book),
        gaps=tuple(sorted(total.gaps, key=lambda gap: (-gap.ms, gap.group, gap.topic, gap.partition))),
        earlier={name: LedgerFinding.merge(cases, limits.max_cases) for name, cases in sorted(total.earlier.items())},
        balances=tuple(group_balance for _, group_balance in sorted(total.balances.items())),
    )


def _sum_up(parts: Iterable[PartitionChecked], health: EvidenceHealth) -> _Total:
    """The findings of all partitions, each as far as its group's account is trusted."""
    total = _Total()
    for part in parts:
        total.add(part)
        for group_checked in part.groups:
            lost = _judge_group(group_checked, health, total)
            if group_checked.judged:
                total.add_balance(_balance_partition(part, group_checked, lost))
    return total


def _find_uneven_shares(book: Book) -> tuple[str, ...]:
    changes = {change.stamp: change for group_changes in book.ownership.values() for change in group_changes}
    return tuple(describe_uneven_shares(changes.values()))


def _balance_partition(part: PartitionChecked, group_checked: GroupChecked, lost: int) -> GroupBalance:
    """The balance of one partition for a group; `lost`: how many of the missing records count as lost."""
    group, delivered = group_checked.key.group, part.delivered.get(group_checked.key.group, 0)
    accounted = delivered - group_checked.repeats + group_checked.to_come + group_checked.not_read + group_checked.missing
    return GroupBalance(
        group,
        part.acked,
        delivered,
        group_checked.repeats,
        group_checked.to_come,
        group_checked.not_read,
        lost,
        group_checked.missing - lost,
        unacknowledged=max(0, accounted - part.acked),
        not_due=max(0, part.acked - accounted),
    )


def _group_miscounts(checked: Iterable[PartitionChecked]) -> dict[str, list[Reason]]:
    """What contradicts the numbers of each writer."""
    reasons_by_writer: dict[str, list[Reason]] = defaultdict(list)
    for part in checked:
        for writer, reason in part.miscounted:
            reasons_by_writer[writer].append(reason)
    return reasons_by_writer


@dataclass(slots=True)
class _Total:
    """The findings in all partitions so far. `open_questions`: by cause and group what is unknown."""

    findings: dict[str, list[LedgerFinding]] = field(default_factory=lambda: defaultdict(list))
    earlier: dict[str, list[LedgerFinding]] = field(default_factory=lambda: defaultdict(list))
    gaps: list[Gap] = field(default_factory=list)
    of_others: list[GroupPartition] = field(default_factory=list)
    skipped: list[LedgerFinding] = field(default_factory=list)
    unowned: list[Case] = field(default_factory=list)
    doubts: dict[Reason, None] = field(default_factory=dict)  # from before the step, that matter
    open_questions: dict[tuple[AuditCause, str], list[LedgerFinding]] = field(default_factory=lambda: defaultdict(list))
    balances: dict[str, GroupBalance] = field(default_factory=dict)

    def add_balance(self, more: GroupBalance) -> None:
        """Add the balance of one partition to its group's."""
        sums = astuple(self.balances.get(more.group, GroupBalance(more.group)))[1:]
        self.balances[more.group] = GroupBalance(more.group, *map(add, sums, astuple(more)[1:]))

    def add(self, part: PartitionChecked) -> None:
        """Add what needs no trust in any client's account."""
        for name in ("diverged", "stored_twice", "reordered"):
            self.add_finding(name, getattr(part, name))
        for group_checked in part.groups:
            self.add_dated("redelivered", group_checked.redelivered)
            self.add_finding("client_repeats", group_checked.client_repeats)
            self.add_dated("not_owned", group_checked.not_owned)
            self.skipped.append(group_checked.skipped)
            self.gaps += [] if group_checked.gap is None else [group_checked.gap]
            self.of_others += [] if group_checked.judged else [group_checked.key]

    def add_ownership(self, book: Book, limits: Limits) -> None:
        """Add what the changes of ownership of all partitions show."""
        last_ms = {name: writer.last_ms for name, writer in book.writers.items()}
        for group_partition, changes in book.ownership.items():
            double_owned = find_double_ownership(group_partition, changes, last_ms, limits.skew_ms)
            self.add_dated("double_owned", limits.split_by_step(double_owned))
            self.unowned += find_unowned_times(group_partition, changes, last_ms, limits.skew_ms)

    def add_finding(self, name: str, finding: LedgerFinding) -> None:
        """Add a finding under this name."""
        self.findings[name].append(finding)

    def add_dated(self, name: str, dated: Dated) -> None:
        """Add a finding, and keep what was over before the step apart."""
        self.add_finding(name, dated.now)
        if dated.earlier.count:
            self.earlier[name].append(dated.earlier)

    def add_open_question(self, cause: AuditCause, group: str, finding: LedgerFinding) -> None:
        """Add an open question of a group, if the finding counts anything."""
        if finding.count:
            self.open_questions[cause, group].append(finding)
            if cause is not AuditCause.MAYBE_COMPACTED:
                self.add_finding("unseen", finding)


def _judge_group(group_checked: GroupChecked, health: EvidenceHealth, total: _Total) -> int:
    """What may be concluded from missing deliveries of a group, and from the order of the others; returns how many records are lost."""
    group = group_checked.key.group
    total.add_open_question(AuditCause.NOT_DELIVERED_YET, group, group_checked.unread)
    total.add_open_question(AuditCause.GAPS_UNCLEAR, group, group_checked.unclear)
    trusted, lost = health.trusts(group), group_checked.lost
    if trusted:
        total.add_open_question(AuditCause.IN_UNREAD_EVENTS, group, group_checked.on_its_way)
        lost = group_checked.surely_lost
        if lost.count or group_checked.reordered.now.count or group_checked.commit_gap.now.count:
            doubts = health.old_doubts(group)
            total.doubts.update(dict.fromkeys(doubts))
            trusted = not doubts
    if group_checked.compacted:
        total.add_open_question(AuditCause.MAYBE_COMPACTED, group, lost)
    is_unseen = group_checked.compacted or not trusted
    total.add_finding("unseen" if is_unseen else "lost", lost)
    if trusted:  # an unrecorded earlier delivery would make a later one look out of order
        total.add_dated("reordered", group_checked.reordered)
        total.add_dated("commit_gap", group_checked.commit_gap)
        total.add_finding("commit_gap", group_checked.committed_over)
    return 0 if is_unseen else lost.count


def _longest_stall_ms(book: Book, parts: Iterable[PartitionChecked]) -> float | None:
    """In milliseconds; also of records that were given up."""
    waits = [part.stall_us for part in parts if part.stall_us is not None]
    waits += [record.latency_us for event in book.slow for record in event.records]
    return max(waits) / 1000 if waits else None


def _count_delivered(book: Book, parts: Iterable[PartitionChecked]) -> dict[str, int]:
    """Number of records delivered to each group, repeats included; groups that only announced themselves have 0."""
    counts = Counter({start.group: 0 for start in book.starts if start.group is not None})
    for part in parts:
        counts.update(part.delivered)
    return dict(sorted(counts.items()))


_TEXTS: Final = {
    AuditCause.NOT_DELIVERED_YET: "has not received {count:acknowledged record} yet",
    AuditCause.GAPS_UNCLEAR: "received runs with gaps that may hide up to {count:record}",
    AuditCause.MAYBE_COMPACTED: "has not received {count:acknowledged record} of compacted logs",
    AuditCause.IN_UNREAD_EVENTS: "may have received {count:record} through members whose newest events were not read yet",
}


def _open_question_reasons(total: _Total, limit: int) -> Iterator[Reason]:
    for (cause, group), findings in sorted(total.open_questions.items()):
        merged = LedgerFinding.merge(findings, max(1, limit))
        first = merged.cases[0]
        first_offsets = f"first {first.topic}-{first.partition} offsets {first.first}..{first.last}"
        yield Reason.of(cause, f"Group {group} {_TEXTS[cause].format(count=Count(merged.count))}, {first_offsets}.")
