"""The facts that a run's report shows: partitions' owners, groups' lag, producers' waits, as frozen values.

The page and the JSON file beside it are made of the same values. They are for pictures: `core.ledger` decides what is wrong, from
the same events, and both agree on what they share (two owners at a time). Ownership is ordered by its position in the log if that
is known, and drawn by the writers' times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.core.audit.commit_copies import OffsetsFacts
from airflow_provider_kmigrate.core.audit.course import NO_COURSE, Course, Row, build_course
from airflow_provider_kmigrate.core.audit.verdict import AuditVerdict, Level
from airflow_provider_kmigrate.core.audit.verdict import as_dict as verdict_as_dict
from airflow_provider_kmigrate.core.ledger.book import Book, PartitionEvents
from airflow_provider_kmigrate.core.ledger.facts import Facts, Gap
from airflow_provider_kmigrate.core.ledger.health import EvidenceTimes
from airflow_provider_kmigrate.core.ledger.ownership import OwnerInterval, owner_intervals
from airflow_provider_kmigrate.core.ledger.partition import BATCH_MS, SKEW_MS, CheckContext, Limits
from airflow_provider_kmigrate.core.monitoring import journal_lines
from airflow_provider_kmigrate.core.monitoring.journal_lines import ActSpan, JournalLine, JournalLines, PhaseSpan

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

    def bin_ends(self) -> list[int]:
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
    """How many records a group was behind at these times, summed over its partitions.

    `ends_ms`: the group's events were read until then; of later times nothing is known. None: its members stopped, and all is known.
    """

    group: str
    points: tuple[tuple[int, int], ...]
    ends_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Stall:
    """The longest wait for an acknowledgement, of those that came in from .. to."""

    from_ms: int
    to_ms: int
    ms: float


def build_owner_tracks(book: Book, skew_ms: int = SKEW_MS) -> tuple[OwnerTrack, ...]:
    """Every partition's owners. Overlaps that only clocks show, and that are not longer than `skew_ms`, do not count."""
    last_ms = {name: writer.last_ms for name, writer in book.writers.items()}
    ends: dict[str, int] = {}
    for key, changes in book.ownership.items():
        ends[key.group] = max([ends.get(key.group, 0), *(last_ms[change.stamp.writer] for change in changes)])
    return tuple(
        OwnerTrack(*key, tuple(owner_intervals(changes, last_ms, skew_ms, ends[key.group])))
        for key, changes in sorted(book.ownership.items())
    )


def build_lag_tracks(book: Book, window: ReportWindow) -> tuple[LagTrack, ...]:
    """Records acknowledged and not yet delivered, for each group whose topics have acknowledgements with offsets."""
    bins, lags_by_group = window.bin_ends(), defaultdict[str, list[list[int]]](list)
    context = CheckContext.of(book, Limits(skew_ms=0, max_cases=0, times=EvidenceTimes()))
    for part in book.partition_events():
        ends = [(ack.t_acked_ms, ack.last + 1) for ack in part.acks if ack.has_offsets]
        for group in context.reading_groups(part) if ends else ():
            lags_by_group[group].append(_lag_at(ends, _group_positions(part, group), bins))
    return tuple(
        LagTrack(group, tuple(zip(bins, map(sum, zip(*partition_lags, strict=True)), strict=True)))
        for group, partition_lags in sorted(lags_by_group.items())
    )


def _group_positions(part: PartitionEvents, group: str) -> list[tuple[int, int]]:
    """(time, next offset); the first one is where the group, or the log, began."""
    runs = part.runs.get(group, [])
    first = min((run.first for run in runs), default=min(ack.first for ack in part.acks if ack.has_offsets))
    return [(0, first), *((run.t_last_ms, run.last + 1) for run in runs)]


_RUNNING_MS: Final = 60_000  # without a sign of life for longer than this a member does not count as running


def find_evidence_ends(book: Book) -> dict[str, int]:
    """Until when the deliveries of each group are known that still runs, ms since the epoch.

    It is where the events of its running members end that were read first, for they own partitions too. A producer's events may have been
    read later: what was acknowledged since then is no lag. A group whose members have all stopped has no entry.
    """
    last_ms: dict[str, list[int]] = defaultdict(list)
    for writer in book.writers.values():
        for group in writer.groups if writer.stop is None else ():
            last_ms[group].append(writer.last_ms)
    return {
        group: min(member_ms for member_ms in members_ms if member_ms >= max(members_ms) - _RUNNING_MS) - BATCH_MS
        for group, members_ms in last_ms.items()
    }


def cut_track(track: LagTrack, ends_ms: int | None) -> LagTrack:
    """The track without the points after the end of its group's evidence."""
    if ends_ms is None or not track.points or track.points[-1][0] <= ends_ms:
        return track
    return LagTrack(track.group, tuple(point for point in track.points if point[0] <= ends_ms), ends_ms)


def _lag_at(ends: Sequence[tuple[int, int]], positions: Sequence[tuple[int, int]], bins: Sequence[int]) -> list[int]:
    pairs = zip(_highest_so_far(ends, bins), _highest_so_far(positions, bins), strict=True)
    return [max(0, end - position) for end, position in pairs]


def _highest_so_far(points: Iterable[tuple[int, int]], bins: Sequence[int]) -> list[int]:
    """The highest value so far at each of these times; 0 before the first."""
    steps: list[tuple[int, int]] = []
    for t_ms, value in sorted(points):
        if not steps or value > steps[-1][1]:
            steps.append((t_ms, value))
    times = [t_ms for t_ms, _ in steps]
    indexes = (bisect_right(times, t_ms) for t_ms in bins)
    return [steps[index - 1][1] if index else 0 for index in indexes]


def find_stalls(book: Book, window: ReportWindow) -> tuple[Stall, ...]:
    """The longest wait for an acknowledgement, for each part of the window with any acknowledgement."""
    return build_stalls(find_worst_waits(_ack_latencies(book), window), window)


def find_worst_waits(latencies: Iterable[tuple[int, float]], window: ReportWindow) -> dict[int, float]:
    """The longest of these waits (time of the acknowledgement, ms) for each part of the window, by its index."""
    bins = window.bin_ends()
    worst: dict[int, float] = {}
    for t_ms, value in latencies:
        bin_index = bisect_right(bins, t_ms)
        if window.from_ms <= t_ms and bin_index < len(bins):
            worst[bin_index] = max(worst.get(bin_index, 0.0), value)
    return worst


def build_stalls(worst: Mapping[int, float], window: ReportWindow) -> tuple[Stall, ...]:
    """The stalls of `find_worst_waits`."""
    starts = [window.from_ms, *window.bin_ends()]
    return tuple(Stall(starts[bin_index], starts[bin_index + 1], value) for bin_index, value in sorted(worst.items()))


def _ack_latencies(book: Book) -> Iterator[tuple[int, float]]:
    """(time of the acknowledgement, its latency in ms)."""
    for acks in book.acks.values():
        for ack in acks:
            if ack.latency_max_us is not None:
                yield ack.t_acked_ms, ack.latency_max_us / 1000
    yield from list_slow_waits(book)


def list_slow_waits(book: Book) -> Iterator[tuple[int, float]]:
    """(time of the acknowledgement, its latency in ms) of the records that producers reported one by one."""
    for slow in book.slow:
        for record in slow.records:
            yield record.t_sent_ms + record.latency_us // 1000, record.latency_us / 1000


@dataclass(frozen=True, slots=True)
class LoadCurves:
    """What a report draws of a run's records."""

    lag: tuple[LagTrack, ...] = ()
    stalls: tuple[Stall, ...] = ()


def measure_book(book: Book, window: ReportWindow) -> LoadCurves:
    """The curves of a book that holds all events."""
    return LoadCurves(build_lag_tracks(book, window), find_stalls(book, window))


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
    course: Course = NO_COURSE

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain = asdict(replace(self, offsets=None))
        plain["verdict"] = verdict_as_dict(self.verdict)
        plain["ledgers"] = [{"level": ledger.level.label, **ledger.facts.as_dict()} for ledger in self.ledgers]
        plain["offsets"] = self.offsets.as_dict() if self.offsets else None
        return {"version": VERSION, **plain}


def collect_report_facts(
    subject: Subject,
    verdict: AuditVerdict,
    *,
    ledgers: Sequence[Ledger] = (),
    journal: JournalLines | None = None,
    book: Book | None = None,
    measure: Callable[[Book, ReportWindow], LoadCurves] = measure_book,
    offsets: OffsetsFacts | None = None,
    completeness: Iterable[Row] = (),
    restarts: Iterable[Row] = (),
) -> ReportFacts:
    """Collects the facts of one run.

    `completeness` and `restarts`: rows of the tables of these names. `book`: at least the writers and their ownership. `measure` finds the curves in a window, where the book has not all events.
    """
    book, lines = book or Book(), journal.lines if journal else ()
    window = _facts_window(book, lines)
    curves, ends = measure(book, window), find_evidence_ends(book)
    gaps = sorted((gap for ledger in ledgers for gap in ledger.facts.gaps), key=lambda gap: (-gap.ms, gap.group, gap.topic))
    return ReportFacts(
        subject=subject,
        window=window,
        verdict=verdict,
        ledgers=tuple(ledgers),
        phases=journal_lines.list_phases(lines),
        acts=journal_lines.list_acts(lines),
        alarms=journal_lines.list_alarms(lines),
        stalls=curves.stalls,
        gaps=tuple(gaps),
        owners=build_owner_tracks(book),
        lag=tuple(cut_track(track, ends.get(track.group)) for track in curves.lag),
        unreadable=journal.unreadable if journal else 0,
        offsets=offsets,
        course=build_course(completeness, restarts, ends),
    )


def _facts_window(book: Book, lines: Sequence[journal_lines.JournalLine]) -> ReportWindow:
    """From the first to the last time of any fact; a minute of 1970 if there is none."""
    times = [line.began_ms for line in lines] + [line.at_ms for line in lines]
    for writer in book.writers.values():
        times += [writer.first_ms, writer.last_ms]
    return ReportWindow(min(times), max(times) + _EDGE_MS) if times else ReportWindow(0, 60_000)
