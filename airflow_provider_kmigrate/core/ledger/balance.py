"""Balances a whole ledger: files the events, checks every partition by itself, examines the evidence, concludes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from airflow_provider_kmigrate.core.events import Event
from airflow_provider_kmigrate.core.ledger.book import Book, GroupPartition
from airflow_provider_kmigrate.core.ledger.facts import Facts, Gap, LedgerFinding
from airflow_provider_kmigrate.core.ledger.health import (
    ANY_EVIDENCE,
    Demand,
    EvidenceHealth,
    EvidenceTimes,
    Newest,
    Refusals,
    examine,
    nothing,
    unmet,
)
from airflow_provider_kmigrate.core.ledger.ownership import double_owned, owner_changes, uneven_shares, unowned
from airflow_provider_kmigrate.core.ledger.partition import (
    SKEW_MS,
    CheckContext,
    Dated,
    GroupChecked,
    Limits,
    PartitionChecked,
    check,
)
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.reasons.entry import AuditCause


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
        [check(part, context) for part in book.parts()],
        limits,
        refused=Refusals(refused, refused_before),
        unmet=tuple(unmet(demand, Newest.of(book, demand.since), book.failures)),
    )


def conclude(
    book: Book, parts: Iterable[PartitionChecked], limits: Limits, *, refused: Refusals, unmet: Sequence[Reason]
) -> Facts:
    """The facts of all partitions together.

    `parts` are what deliveries, acknowledgements and commits showed; the book need not hold these events. `unmet`: evidence that
    is demanded and missing.
    """
    checked = sorted(parts, key=lambda part: part.where)
    health = examine(book, refused, limits.times, _miscounted(checked))
    total = _Total()
    for part in checked:
        total.add(part)
        for found in part.groups:
            _judge(found, health, total)
    last_ms = {name: writer.last_ms for name, writer in book.writers.items()}
    for where, changes in book.ownership.items():
        total.date("double_owned", limits.dated(double_owned(where, changes, last_ms, limits.skew_ms)))
    free = [case for where, changes in book.ownership.items() for case in unowned(where, changes, last_ms, limits.skew_ms)]
    acked, delivered = sum(part.acked for part in checked), _delivered(book, checked)
    open_questions = _reasons(total, limits.max_cases)
    reasons = (*health.reasons, *nothing(acked=acked, groups=delivered), *total.doubts, *open_questions, *unmet)
    findings = {name: LedgerFinding.merged(cases, limits.max_cases) for name, cases in total.findings.items()}
    return Facts(
        complete=not reasons,
        reasons=reasons,
        acked=acked,
        send_failures=sum(failure.seq_last - failure.seq_first + 1 for failure in book.failures),
        delivered=delivered,
        **findings,
        recorded=health.recorded and not total.doubts,
        longest_stall_ms=_longest_stall(book, checked),
        of_others=tuple(total.of_others),
        skipped=LedgerFinding.largest(
            sum(one.count for one in total.skipped), (case for one in total.skipped for case in one.cases), limits.max_cases
        ),
        unowned=LedgerFinding.largest(sum(case.count for case in free), free, limits.max_cases),
        owner_changes=sum(map(owner_changes, book.ownership.values())),
        uneven=tuple(uneven_shares({one.stamp: one for changes in book.ownership.values() for one in changes}.values())),
        gaps=tuple(sorted(total.gaps, key=lambda gap: (-gap.ms, gap.group, gap.topic, gap.partition))),
        earlier={name: LedgerFinding.merged(cases, limits.max_cases) for name, cases in sorted(total.earlier.items())},
    )


def _miscounted(checked: Iterable[PartitionChecked]) -> dict[str, list[Reason]]:
    """What contradicts the numbers of each writer."""
    found: dict[str, list[Reason]] = defaultdict(list)
    for part in checked:
        for writer, reason in part.miscounted:
            found[writer].append(reason)
    return found


@dataclass(slots=True)
class _Total:
    """The findings in all partitions so far. `open_questions`: by cause and group what is unknown."""

    findings: dict[str, list[LedgerFinding]] = field(default_factory=lambda: defaultdict(list))
    earlier: dict[str, list[LedgerFinding]] = field(default_factory=lambda: defaultdict(list))
    gaps: list[Gap] = field(default_factory=list)
    of_others: list[GroupPartition] = field(default_factory=list)
    skipped: list[LedgerFinding] = field(default_factory=list)
    doubts: dict[Reason, None] = field(default_factory=dict)  # from before the step, that matter
    open_questions: dict[tuple[AuditCause, str], list[LedgerFinding]] = field(default_factory=lambda: defaultdict(list))

    def add(self, part: PartitionChecked) -> None:
        """Add what needs no trust in any client's account."""
        for name in ("diverged", "stored_twice", "reordered"):
            self.note(name, getattr(part, name))
        for found in part.groups:
            self.date("redelivered", found.redelivered)
            self.note("client_repeats", found.client_repeats)
            self.date("not_owned", found.not_owned)
            self.skipped.append(found.skipped)
            self.gaps += [] if found.gap is None else [found.gap]
            self.of_others += [] if found.judged else [found.key]

    def note(self, name: str, finding: LedgerFinding) -> None:
        """Add a finding under this name."""
        self.findings[name].append(finding)

    def date(self, name: str, dated: Dated) -> None:
        """Add a finding, and keep what was over before the step apart."""
        self.note(name, dated.now)
        if dated.earlier.count:
            self.earlier[name].append(dated.earlier)

    def ask(self, cause: AuditCause, group: str, finding: LedgerFinding) -> None:
        """Add an open question of a group, if the finding counts anything."""
        if finding.count:
            self.open_questions[cause, group].append(finding)
            if cause is not AuditCause.MAYBE_COMPACTED:
                self.note("unseen", finding)


def _judge(found: GroupChecked, health: EvidenceHealth, total: _Total) -> None:
    """What may be concluded from missing deliveries of a group, and from the order of the others."""
    group = found.key.group
    total.ask(AuditCause.NOT_DELIVERED_YET, group, found.unread)
    total.ask(AuditCause.GAPS_UNCLEAR, group, found.unclear)
    trusted, lost = health.trusts(group), found.lost
    if trusted:
        total.ask(AuditCause.IN_UNREAD_EVENTS, group, found.on_its_way)
        lost = found.surely_lost
        if lost.count or found.reordered.now.count or found.commit_gap.now.count:
            doubts = health.old_doubts(group)
            total.doubts.update(dict.fromkeys(doubts))
            trusted = not doubts
    if found.compacted:
        total.ask(AuditCause.MAYBE_COMPACTED, group, lost)
    total.note("unseen" if found.compacted or not trusted else "lost", lost)
    if trusted:  # an unrecorded earlier delivery would make a later one look out of order
        total.date("reordered", found.reordered)
        total.date("commit_gap", found.commit_gap)
        total.note("commit_gap", found.committed_over)


def _longest_stall(book: Book, parts: Iterable[PartitionChecked]) -> float | None:
    """In milliseconds; also of records that were given up."""
    waits = [part.stall_us for part in parts if part.stall_us is not None]
    waits += [record.latency_us for event in book.slow for record in event.records]
    return max(waits) / 1000 if waits else None


def _delivered(book: Book, parts: Iterable[PartitionChecked]) -> dict[str, int]:
    """Number of records delivered to each group, repeats included; groups that only announced themselves have 0."""
    found = Counter({start.group: 0 for start in book.starts if start.group is not None})
    for part in parts:
        found.update(part.delivered)
    return dict(sorted(found.items()))


_TEXTS: Final = {
    AuditCause.NOT_DELIVERED_YET: "has not received {count} acknowledged records yet",
    AuditCause.GAPS_UNCLEAR: "received runs with gaps that may hide up to {count} records",
    AuditCause.MAYBE_COMPACTED: "has not received {count} acknowledged records of compacted logs",
    AuditCause.IN_UNREAD_EVENTS: "may have received {count} records through members whose newest events were not read yet",
}


def _reasons(total: _Total, limit: int) -> Iterator[Reason]:
    for (cause, group), findings in sorted(total.open_questions.items()):
        found = LedgerFinding.merged(findings, max(1, limit))
        first = found.cases[0]
        place = f"first {first.topic}-{first.partition} offsets {first.first}..{first.last}"
        yield Reason.of(cause, f"Group {group} {_TEXTS[cause].format(count=found.count)}, {place}.")
