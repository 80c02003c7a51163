"""The whole computation: file the events, examine the evidence, check every partition, collect."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from airflow_provider_kmigrate.core.events import Event
from airflow_provider_kmigrate.core.ledger.book import Book, GroupPartition
from airflow_provider_kmigrate.core.ledger.coverage import Missing, Read, maybe_delivered, missing, part_of, passed_over
from airflow_provider_kmigrate.core.ledger.facts import Case, Facts, Finding, Gap, Produce
from airflow_provider_kmigrate.core.ledger.health import ANY_EVIDENCE, Demand, Health, Newest, Times, examine, unmet
from airflow_provider_kmigrate.core.ledger.log import inspect
from airflow_provider_kmigrate.core.ledger.ownership import double_owned, first_start, of_others
from airflow_provider_kmigrate.core.ledger.produce import produce_between, produce_facts
from airflow_provider_kmigrate.core.ledger.sequence import Walk, Window, walk
from airflow_provider_kmigrate.core.model import Reason

SKEW_MS: Final = 100
_BATCH_MS: Final = 2_000  # deliveries are written about once a second
_UNREAD, _UNCLEAR, _COMPACTED, _ON_ITS_WAY = "L11", "L12", "L13", "L17"


@dataclass(slots=True)
class _Piles:
    """Cases of every partition so far."""

    lost: list[Case] = field(default_factory=list)
    unseen: list[Case] = field(default_factory=list)
    redelivered: list[Case] = field(default_factory=list)
    stored_twice: list[Case] = field(default_factory=list)
    reordered: list[Case] = field(default_factory=list)
    diverged: list[Case] = field(default_factory=list)
    overrun: list[Case] = field(default_factory=list)
    double_owned: list[Case] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    of_others: list[GroupPartition] = field(default_factory=list)
    passed_over: list[Case] = field(default_factory=list)
    earlier: dict[str, list[Case]] = field(default_factory=dict)  # by the name of the finding
    doubts: dict[Reason, None] = field(default_factory=dict)  # from before the step, that matter
    open_questions: dict[tuple[str, str], list[Case]] = field(default_factory=dict)  # (code, group) -> what is not known


@dataclass(frozen=True, slots=True)
class _Limits:
    skew_ms: int
    max_cases: int
    window: Window | None
    times: Times
    mixed: tuple[str, ...] = ()

    def is_over(self, case: Case) -> bool:
        """It ended before the step began. What has no time, such as a record stored twice, may be of the step."""
        since = self.times.since
        return since is not None and case.to_ms is not None and case.to_ms + self.skew_ms < since

    def split(self, cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
        """Those that may be of the step, and those from before it."""
        return [case for case in cases if not self.is_over(case)], [case for case in cases if self.is_over(case)]


def balance(
    events: Iterable[Event],
    *,
    refused: Sequence[str] = (),
    refused_before: Sequence[str] = (),
    window: Window | None = None,
    skew_ms: int = SKEW_MS,
    max_cases: int = 20,
    alive_since: int | None = None,
    demand: Demand = ANY_EVIDENCE,
    now_ms: int | None = None,
    newest: Newest | None = None,
) -> Facts:
    """What the events show.

    `refused` are the lines that were no events, `refused_before` those of them from before `demand.since`. `window` (from, before; ms since the epoch) limits stalls to records sent and
    gaps to deliveries made in it, to leave out a cold start; everything else is always judged whole. `skew_ms` is by how much
    the members' clocks may differ. Each finding keeps at most `max_cases` counter-examples; counts are whole.

    `alive_since` (ms since the epoch) is for a look at clients that run on: a writer that gave a sign of life since then needs no
    stop, and what was acknowledged since then may be unread. None: everybody must have stopped, and read everything.

    `demand`: what evidence there must be at least. What was delivered again, too late or after its own commit, or owned twice, and was over
    before `demand.since`, is in `Facts.earlier`; a loss has no time, so it counts whenever it happened. `now_ms`: when the events had been read; None: not known. `newest`: of the
    whole evidence, where these events are what was left of it.
    """
    times = Times(alive_since, None if now_ms is None else now_ms + skew_ms, demand.since)
    limits = _Limits(skew_ms, max_cases, window, times, demand.mixed)
    book = Book.of(events)
    health = examine(book, refused, times, refused_before)
    piles = _Piles()
    for group in book.groups():
        for key in book.partitions_of(group):
            _check_group(book, key, piles, limits, health)
    _check_logs(book, piles)
    _check_owners(book, piles, limits)
    return _facts(book, health, piles, limits, tuple(unmet(demand, newest or Newest.of(book, demand.since), book.failures)))


def _read(book: Book, key: GroupPartition, *, mixed: bool) -> Read:
    changes, runs = book.ownership.get(key, ()), book.runs.get(key, ())
    return Read(
        *key,
        acks=book.acks.get(key.where, ()),
        runs=runs,
        commits=book.commits.get(key, ()),
        extent=book.extents.get(key.where),
        from_latest=book.reads_from_latest(key.group),
        start=first_start(key.where, changes),
        excused=of_others(key.where, changes, runs) if mixed else (),
    )


def _check_group(book: Book, key: GroupPartition, piles: _Piles, limits: _Limits, health: Health) -> None:
    mixed = key.group in limits.mixed
    if mixed and not book.ownership.get(key) and not book.runs.get(key):
        piles.of_others.append(key)
        return
    read = _read(book, key, mixed=mixed)
    absent, found = missing(read), walk(read, limits.skew_ms, limits.window)
    _note(piles, "redelivered", found.redelivered, limits)
    _ask(piles, _UNREAD, [case for case in absent.unread if not _fresh(case, limits.times.alive_since)])
    _ask(piles, _UNCLEAR, absent.unclear)
    piles.passed_over += [] if mixed else passed_over(read)
    trusted = health.trusts(key.group)
    if trusted:
        absent = _unread_files(book, read, absent, piles, limits)
        if absent.lost or limits.split([*found.reordered, *found.overrun])[0]:
            doubts = health.old_doubts(key.group)
            piles.doubts.update(dict.fromkeys(doubts))
            trusted = not doubts
    compacted = read.extent is not None and read.extent.compacted
    if compacted:
        _ask(piles, _COMPACTED, absent.lost)
    if compacted or not trusted:
        piles.unseen += absent.lost
    else:
        piles.lost += absent.lost
    if trusted:  # an earlier delivery that was not written down would make a later one look out of order
        _note(piles, "reordered", found.reordered, limits)
        _note(piles, "overrun", found.overrun, limits)
        piles.overrun += _committed_over(read, absent)
    piles.gaps += _gaps(book, read, absent, found)


def _note(piles: _Piles, name: str, cases: Sequence[Case], limits: _Limits) -> None:
    now, before = limits.split(cases)
    getattr(piles, name).extend(now)
    if before:
        piles.earlier.setdefault(name, []).extend(before)


def _unread_files(book: Book, read: Read, absent: Missing, piles: _Piles, limits: _Limits) -> Missing:
    """Files are read one after another: what one member passed on another was given, perhaps when its own file had been read."""
    if not absent.lost:
        return absent
    running = {writer.name: writer.last_ms for writer in book.writers_of(read.group) if limits.times.runs_on(writer)}
    sides = maybe_delivered(read, absent.lost, running, limits.skew_ms + _BATCH_MS)
    _ask(piles, _ON_ITS_WAY, sides[0])
    return replace(absent, lost=sides[1])


def _fresh(case: Case, alive_since: int | None) -> bool:
    """Acknowledged so lately that consumers which run on need not have read it."""
    return alive_since is not None and case.to_ms is not None and case.to_ms >= alive_since


def _ask(piles: _Piles, code: str, cases: list[Case]) -> None:
    if cases:
        piles.open_questions.setdefault((code, cases[0].group or ""), []).extend(cases)
        if code != _COMPACTED:
            piles.unseen += cases


def _committed_over(read: Read, absent: Missing) -> list[Case]:
    """Records that were never delivered although the group committed an offset behind them."""
    committed = max((commit.offset for commit in read.commits), default=0)
    note = f"offset {committed} is committed"
    behind = [part_of(case, (case.first, min(case.last, committed - 1))) for case in absent.lost if case.first < committed]
    return [replace(case, note=note) for case in behind]


def _gaps(book: Book, read: Read, absent: Missing, found: Walk) -> list[Gap]:
    """The partition's longest gap; one that is still open ends with the group's last sign of life."""
    gaps = [] if found.gap is None else [found.gap]
    sent = [when for case in absent.unread if (when := case.from_ms if case.from_ms is not None else case.to_ms) is not None]
    ends = [writer.last_ms for writer in book.writers_of(read.group)]
    if sent and ends:
        begin = max(min(sent), found.last_ms or min(sent))
        gaps.append(Gap(read.group, read.topic, read.partition, max(0, max(ends) - begin), begin, max(ends), open=True))
    return [max(gaps, key=lambda gap: gap.ms)] if gaps else []


def _check_logs(book: Book, piles: _Piles) -> None:
    runs = book.runs_by_partition()
    for where in sorted(book.acks.keys() | runs.keys()):
        flaws = inspect(*where, book.acks.get(where, ()), runs.get(where, ()))
        piles.diverged += flaws.diverged
        piles.stored_twice += flaws.stored_twice
        piles.reordered += flaws.reordered


def _check_owners(book: Book, piles: _Piles, limits: _Limits) -> None:
    last_ms = {name: writer.last_ms for name, writer in book.writers.items()}
    for where, changes in book.ownership.items():
        _note(piles, "double_owned", double_owned(where, changes, last_ms, limits.skew_ms), limits)


_TEXTS: Final = {
    _UNREAD: "was not delivered {count} acknowledged records yet",
    _UNCLEAR: "was delivered runs with gaps that may hide up to {count} records",
    _COMPACTED: "was not delivered {count} acknowledged records of compacted logs",
    _ON_ITS_WAY: "may have been delivered {count} records by members whose newest events were not read yet",
}
_NEXT: Final = {
    _UNREAD: "Let the consumers reach the end of the log before they are stopped",
    _UNCLEAR: "Read these offsets from the log",
    _COMPACTED: "Read these offsets from the log, or audit a topic that is not compacted",
    _ON_ITS_WAY: "Audit again: then their events are read, or the members are known to have been killed",
}


def _reasons(piles: _Piles) -> list[Reason]:
    reasons = []
    for (code, group), cases in sorted(piles.open_questions.items()):
        first = min(cases, key=lambda case: case.order)
        text = _TEXTS[code].format(count=sum(case.count for case in cases))
        place = f"first {first.topic}-{first.partition} offsets {first.first}..{first.last}"
        reasons.append(Reason(code, f"group {group} {text}, {place}", remedy=_NEXT[code]))
    return reasons


def _facts(book: Book, health: Health, piles: _Piles, limits: _Limits, lacking: Sequence[Reason]) -> Facts:
    limit = limits.max_cases
    reasons = (*health.reasons, *piles.doubts, *_reasons(piles), *lacking)
    return Facts(
        complete=not reasons,
        reasons=reasons,
        acked=sum(ack.count for acks in book.acks.values() for ack in acks),
        send_failures=sum(failure.seq_last - failure.seq_first + 1 for failure in book.failures),
        delivered={group: book.delivered(group) for group in book.groups()},
        lost=Finding.of(piles.lost, limit),
        unseen=Finding.of(piles.unseen, limit),
        redelivered=Finding.of(piles.redelivered, limit),
        stored_twice=Finding.of(piles.stored_twice, limit),
        reordered=Finding.of(piles.reordered, limit),
        diverged=Finding.of(piles.diverged, limit),
        overrun=Finding.of(piles.overrun, limit),
        double_owned=Finding.of(piles.double_owned, limit),
        produce=_produce(book, limits),
        of_others=tuple(piles.of_others),
        passed_over=Finding.of(piles.passed_over, sys.maxsize).with_largest(Finding(), limit),
        gaps=tuple(sorted(piles.gaps, key=lambda gap: (-gap.ms, gap.group, gap.topic, gap.partition))),
        earlier={name: Finding.of(cases, limit) for name, cases in sorted(piles.earlier.items())},
    )


def _produce(book: Book, limits: _Limits) -> Produce:
    if limits.window is None:
        return produce_facts(book, limits.max_cases)
    return produce_between(book.produced, *limits.window, limits.max_cases)
