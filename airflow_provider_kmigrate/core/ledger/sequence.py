"""One partition's deliveries to one group, walked through in time: what came again, too late, or after its own commit; the gaps.

Deliveries of one member are ordered by its own clock. Of two members' deliveries one counts as earlier only when it ended more
than the clocks' skew before the other began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from airflow_provider_kmigrate.core.events import DeliveryRun
from airflow_provider_kmigrate.core.intervals import Coverage, Span, intersect, subtract
from airflow_provider_kmigrate.core.ledger.coverage import Read
from airflow_provider_kmigrate.core.ledger.facts import Case, Gap

Window = tuple[int, int]  # from, and before, in ms since the epoch


@dataclass(slots=True)
class Walk:
    """What one walk found."""

    redelivered: list[Case] = field(default_factory=list)
    reordered: list[Case] = field(default_factory=list)
    overrun: list[Case] = field(default_factory=list)
    gap: Gap | None = None
    last_ms: int | None = None  # when the last delivery ended


def walk(read: Read, skew_ms: int, window: Window | None = None) -> Walk:
    """Walk through the deliveries of one partition to one group; gaps count where they end in the window."""
    runs = sorted(read.runs, key=lambda run: (run.t_first_ms, run.seq, run.member))
    found, covered = Walk(), Coverage()
    order = _Order(runs, skew_ms)
    commits = _Commits(read, skew_ms)
    previous: DeliveryRun | None = None
    for index, run in enumerate(runs):
        if window is None or window[0] <= run.t_first_ms < window[1]:
            _note_gap(found, previous, run)
        committed = commits.before(run.t_first_ms)
        if covered.high is not None and run.first <= covered.high:
            fresh = covered.add((run.first, run.last))
            found.redelivered += _again(runs, index, fresh)
            found.reordered += _late(run, fresh, order.behind(run))
        else:
            fresh = covered.add((run.first, run.last))
        if committed > run.first:
            found.overrun += _early(run, fresh, committed)
        order.passed(run)
        if previous is None or run.t_last_ms >= previous.t_last_ms:
            previous = run
    found.last_ms = None if previous is None else previous.t_last_ms
    return found


def _case(run: DeliveryRun, span: Span, members: tuple[str, ...], note: str = "") -> Case:
    size = span[1] - span[0] + 1
    seq = None if run.producer_seq is None else run.producer_seq + span[0] - run.first
    return Case(
        run.topic,
        run.partition,
        *span,
        size,
        group=run.group,
        producer=run.producer,
        seq_first=seq,
        seq_last=None if seq is None else seq + size - 1,
        members=members,
        from_ms=run.t_first_ms,
        to_ms=run.t_last_ms,
        note=note,
    )


def _note_gap(found: Walk, previous: DeliveryRun | None, run: DeliveryRun) -> None:
    begin, length, members = run.t_last_ms - run.gap_ms, run.gap_ms, (run.member, run.member)
    if previous is not None:
        waited_from = max(previous.t_last_ms, previous.t_last_ms if run.t_sent_ms is None else run.t_sent_ms)
        if run.t_first_ms - waited_from >= length:
            begin, length, members = waited_from, run.t_first_ms - waited_from, (previous.member, run.member)
    if found.gap is None or length > found.gap.ms:
        found.gap = Gap(run.group, run.topic, run.partition, length, begin, begin + length, members)


def _again(runs: Sequence[DeliveryRun], index: int, fresh: Sequence[Span]) -> Iterator[Case]:
    run = runs[index]
    for span in subtract([(run.first, run.last)], fresh):
        before = next((other.member for other in runs[:index] if other.first <= span[1] and other.last >= span[0]), "")
        yield _case(run, span, (before, run.member))


def _late(run: DeliveryRun, fresh: Sequence[Span], behind: tuple[int, str]) -> Iterator[Case]:
    """The new records that should have come before what was already delivered."""
    for span in intersect(fresh, [(0, behind[0] - 1)]) if behind[0] > run.first else ():
        yield _case(run, span, (behind[1], run.member), f"delivered after offset {behind[0]}")


def _early(run: DeliveryRun, fresh: Sequence[Span], committed: int) -> Iterator[Case]:
    for span in intersect(fresh, [(0, committed - 1)]):
        yield _case(run, span, (run.member,), f"offset {committed} had been committed before")


class _Order:
    """The highest offset that was delivered before a run for sure, and by whom."""

    def __init__(self, runs: Sequence[DeliveryRun], skew_ms: int) -> None:
        self._runs = runs
        self._skew_ms = skew_ms
        self._own: dict[str, int] = {}
        self._ended: list[int] | None = None
        self._highest: list[tuple[int, str]] = []

    def passed(self, run: DeliveryRun) -> None:
        self._own[run.member] = max(run.last, self._own.get(run.member, -1))

    def behind(self, run: DeliveryRun) -> tuple[int, str]:
        if self._ended is None:  # made when first needed: most partitions never do
            by_end = sorted(self._runs, key=lambda other: (other.t_last_ms, other.last))
            self._ended = [other.t_last_ms for other in by_end]
            self._highest = list(accumulate(((other.last, other.member) for other in by_end), max))
        count = bisect_left(self._ended, run.t_first_ms - self._skew_ms)
        others = self._highest[count - 1] if count else (-1, "")
        return max(others, (self._own.get(run.member, -1), run.member))


class _Commits:
    """The highest offset that the group had committed before a time for sure; asked with ascending times."""

    def __init__(self, read: Read, skew_ms: int) -> None:
        self._commits = sorted(read.commits)
        self._skew_ms = skew_ms
        self._next = 0
        self._highest = -1

    def before(self, t_ms: int) -> int:
        commits = self._commits
        while self._next < len(commits) and commits[self._next].t_ms < t_ms - self._skew_ms:
            self._highest = max(self._highest, commits[self._next].offset)
            self._next += 1
        return self._highest
