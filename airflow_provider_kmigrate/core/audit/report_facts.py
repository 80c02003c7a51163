"""The facts that a run's report shows: partitions' owners, groups' lag, producers' waits, as frozen values.

The page and the JSON file beside it are made of the same values. They are for pictures: `core.ledger` decides what is wrong, from
the same events, and both agree on what they share (two owners at a time). Ownership is ordered by its position in the log if that
is known, and drawn by the writers' times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.core import journal_lines
from airflow_provider_kmigrate.core.audit.commit_copies import OffsetsFacts
from airflow_provider_kmigrate.core.audit.verdict import AuditVerdict, Level
from airflow_provider_kmigrate.core.audit.verdict import as_dict as verdict_as_dict
from airflow_provider_kmigrate.core.events import Event
from airflow_provider_kmigrate.core.journal_lines import ActSpan, JournalLine, JournalLines, PhaseSpan
from airflow_provider_kmigrate.core.ledger.book import Book, PartitionEvents
from airflow_provider_kmigrate.core.ledger.facts import Facts, Gap
from airflow_provider_kmigrate.core.ledger.health import EvidenceTimes
from airflow_provider_kmigrate.core.ledger.ownership import OwnerInterval, owner_intervals
from airflow_provider_kmigrate.core.ledger.partition import SKEW_MS, CheckContext, Limits

BINS = 240


@dataclass(frozen=True, slots=True)
class ReportWindow:
    """A time window from .. before, in ms since the epoch."""

    from_ms: int
    to_ms: int

    @property
    def length(self) -> int:
        """At least 1 ms."""
        return max(1, self.to_ms - self.from_ms)

    def bins(self) -> list[int]:
        """The ends of `BINS` equal parts."""
        return [self.from_ms + self.length * (number + 1) // BINS for number in range(BINS)]


@dataclass(frozen=True, slots=True)
class OwnerTrack:
    """The owners of a partition in one group, from the first acquisition on."""

    group: str
    topic: str
    partition: int
    held: tuple[OwnerInterval, ...]

    @property
    def double_ms(self) -> int:
        """Milliseconds with several owners at once."""
        return sum(span.ms for span in self.held if len(span.owners) > 1)

    @property
    def unowned_ms(self) -> int:
        """Milliseconds without an owner, after the first acquisition."""
        return sum(span.ms for span in self.held if not span.owners)


@dataclass(frozen=True, slots=True)
class LagTrack:
    """How many records a group was behind at these times, summed over its partitions."""

    group: str
    points: tuple[tuple[int, int], ...]

    @property
    def largest(self) -> int:
        """The largest lag in records; 0 without any point."""
        return max((records for _, records in self.points), default=0)


@dataclass(frozen=True, slots=True)
class Stall:
    """The longest wait for an acknowledgement, of those that came in from .. to."""

    from_ms: int
    to_ms: int
    ms: float


def owners(book: Book, skew_ms: int = SKEW_MS) -> tuple[OwnerTrack, ...]:
    """Every partition's owners. Overlaps that only clocks show, and that are not longer than `skew_ms`, do not count."""
    last_ms = {name: writer.last_ms for name, writer in book.writers.items()}
    ends: dict[str, int] = {}
    for key, changes in book.ownership.items():
        ends[key.group] = max([ends.get(key.group, 0), *(last_ms[change.stamp.writer] for change in changes)])
    return tuple(
        OwnerTrack(*key, tuple(owner_intervals(changes, last_ms, skew_ms, ends[key.group])))
        for key, changes in sorted(book.ownership.items())
    )


def lag_track(book: Book, window: ReportWindow) -> tuple[LagTrack, ...]:
    """Records acknowledged and not yet delivered, for each group whose topics have acknowledgements with offsets."""
    bins, behind = window.bins(), defaultdict[str, list[list[int]]](list)
    context = CheckContext.of(book, Limits(skew_ms=0, max_cases=0, times=EvidenceTimes()))
    for part in book.parts():
        ends = [(ack.t_acked_ms, ack.last + 1) for ack in part.acks if ack.located]
        for group in context.readers(part) if ends else ():
            behind[group].append(_behind(ends, _positions(part, group), bins))
    return tuple(
        LagTrack(group, tuple(zip(bins, map(sum, zip(*found, strict=True)), strict=True)))
        for group, found in sorted(behind.items())
    )


def _positions(part: PartitionEvents, group: str) -> list[tuple[int, int]]:
    """(time, next offset); the first one is where the group, or the log, began."""
    runs = part.runs.get(group, [])
    first = min((run.first for run in runs), default=min(ack.first for ack in part.acks if ack.located))
    return [(0, first), *((run.t_last_ms, run.last + 1) for run in runs)]


def _behind(ends: Sequence[tuple[int, int]], positions: Sequence[tuple[int, int]], bins: Sequence[int]) -> list[int]:
    pairs = zip(_highest(ends, bins), _highest(positions, bins), strict=True)
    return [max(0, end - position) for end, position in pairs]


def _highest(points: Iterable[tuple[int, int]], bins: Sequence[int]) -> list[int]:
    """The highest value so far at each of these times; 0 before the first."""
    steps: list[tuple[int, int]] = []
    for t_ms, value in sorted(points):
        if not steps or value > steps[-1][1]:
            steps.append((t_ms, value))
    times = [t_ms for t_ms, _ in steps]
    at = (bisect_right(times, t_ms) for t_ms in bins)
    return [steps[place - 1][1] if place else 0 for place in at]


def stalls(book: Book, window: ReportWindow) -> tuple[Stall, ...]:
    """The longest wait for an acknowledgement, for each part of the window with any acknowledgement."""
    bins = window.bins()
    worst: dict[int, float] = {}
    for t_ms, value in _latencies(book):
        place = bisect_right(bins, t_ms)
        if window.from_ms <= t_ms and place < len(bins):
            worst[place] = max(worst.get(place, 0.0), value)
    starts = [window.from_ms, *bins]
    return tuple(Stall(starts[place], bins[place], value) for place, value in sorted(worst.items()))


def _latencies(book: Book) -> Iterator[tuple[int, float]]:
    """(time of the acknowledgement, its latency in ms)."""
    for acks in book.acks.values():
        for ack in acks:
            if ack.latency_max_us is not None:
                yield ack.t_acked_ms, ack.latency_max_us / 1000
    for slow in book.slow:
        for record in slow.records:
            yield record.t_sent_ms + record.latency_us // 1000, record.latency_us / 1000


VERSION: Final = 3
_EDGE_MS = 1_000  # events of the last moment are drawn inside the picture


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of the report. `made_ms`: when the report was made, ms since the epoch."""

    cluster: str
    cluster_id: str
    run: str
    made_ms: int


class Ledger(NamedTuple):
    """The facts of one ledger, and its events' level of evidence."""

    level: Level
    facts: Facts


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """Everything that the report shows. An empty part was not measured; the page says so.

    `gaps`: the longest delivery gap of each group and partition, longest first. `unreadable`: lines of the journal.
    """

    subject: Subject
    window: ReportWindow
    verdict: AuditVerdict
    ledgers: tuple[Ledger, ...] = ()
    phases: tuple[PhaseSpan, ...] = ()
    acts: tuple[ActSpan, ...] = ()
    alarms: tuple[JournalLine, ...] = ()
    stalls: tuple[Stall, ...] = ()
    gaps: tuple[Gap, ...] = ()
    owners: tuple[OwnerTrack, ...] = ()
    lag: tuple[LagTrack, ...] = ()
    unreadable: int = 0
    offsets: OffsetsFacts | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain = asdict(replace(self, offsets=None))
        plain["verdict"] = verdict_as_dict(self.verdict)
        plain["ledgers"] = [{"level": ledger.level.label, **ledger.facts.as_dict()} for ledger in self.ledgers]
        plain["offsets"] = self.offsets.as_dict() if self.offsets else None
        return {"version": VERSION, **plain}


def collect(
    subject: Subject,
    verdict: AuditVerdict,
    *,
    ledgers: Sequence[Ledger] = (),
    journal: JournalLines | None = None,
    events: Iterable[Event] = (),
    offsets: OffsetsFacts | None = None,
) -> ReportFacts:
    """Collects the facts of one run.

    `events` are kept in memory, about 1 kB each: pass all of a run of ordinary size, and of a large one at least the ownership.
    """
    book, lines = Book.of(events), journal.lines if journal else ()
    window = _window(book, lines)
    gaps = sorted((gap for ledger in ledgers for gap in ledger.facts.gaps), key=lambda gap: (-gap.ms, gap.group, gap.topic))
    return ReportFacts(
        subject=subject,
        window=window,
        verdict=verdict,
        ledgers=tuple(ledgers),
        phases=journal_lines.phases(lines),
        acts=journal_lines.acts(lines),
        alarms=journal_lines.alarms(lines),
        stalls=stalls(book, window),
        gaps=tuple(gaps),
        owners=owners(book),
        lag=lag_track(book, window),
        unreadable=journal.unreadable if journal else 0,
        offsets=offsets,
    )


def _window(book: Book, lines: Sequence[journal_lines.JournalLine]) -> ReportWindow:
    """From the first to the last time of any fact; a minute of 1970 if there is none."""
    times = [line.began_ms for line in lines] + [line.at_ms for line in lines]
    for writer in book.writers.values():
        times += [writer.first_ms, writer.last_ms]
    return ReportWindow(min(times), max(times) + _EDGE_MS) if times else ReportWindow(0, 60_000)
