"""What a report of one run shows, as frozen values: the page and the JSON file beside it are made of the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.core import journal_lines
from airflow_provider_kmigrate.core.audit import timeline
from airflow_provider_kmigrate.core.audit.timeline import LagTrack, OwnerTrack, Stall, Window
from airflow_provider_kmigrate.core.audit.verdict import AuditVerdict, Level
from airflow_provider_kmigrate.core.audit.verdict import as_dict as verdict_as_dict
from airflow_provider_kmigrate.core.events import Event
from airflow_provider_kmigrate.core.journal_lines import ActSpan, AlarmMark, Journal, PhaseSpan
from airflow_provider_kmigrate.core.ledger.book import Book
from airflow_provider_kmigrate.core.ledger.facts import Facts, Gap

VERSION: Final = 1
_EDGE_MS = 1_000  # what happened in the last moment is drawn inside the picture


@dataclass(frozen=True, slots=True)
class Subject:
    """What the report is about. `made_ms`: when it was made, ms since the epoch."""

    cluster: str
    cluster_id: str
    run: str
    made_ms: int


class Ledger(NamedTuple):
    """The facts of one ledger, and the level of evidence that its events are."""

    level: Level
    facts: Facts


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """Everything that is shown. An empty part was not measured; the page says so.

    `gaps`: the longest delivery gap of each group and partition, longest first. `unreadable`: lines of the journal.
    """

    subject: Subject
    window: Window
    verdict: AuditVerdict
    ledgers: tuple[Ledger, ...] = ()
    phases: tuple[PhaseSpan, ...] = ()
    acts: tuple[ActSpan, ...] = ()
    alarms: tuple[AlarmMark, ...] = ()
    stalls: tuple[Stall, ...] = ()
    gaps: tuple[Gap, ...] = ()
    owners: tuple[OwnerTrack, ...] = ()
    lag: tuple[LagTrack, ...] = ()
    unreadable: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain = asdict(self)
        plain["verdict"] = verdict_as_dict(self.verdict)
        plain["ledgers"] = [{"level": ledger.level.label, **ledger.facts.as_dict()} for ledger in self.ledgers]
        plain["window"] = self.window._asdict()
        plain["stalls"] = [stall._asdict() for stall in self.stalls]
        plain["owners"] = [_owners(track) for track in self.owners]
        return {"version": VERSION, **plain}


def _owners(track: OwnerTrack) -> dict[str, Any]:
    return {**asdict(track), "held": [span._asdict() for span in track.held]}


def collect(
    subject: Subject,
    verdict: AuditVerdict,
    *,
    ledgers: Sequence[Ledger] = (),
    journal: Journal | None = None,
    events: Iterable[Event] = (),
    lag: tuple[LagTrack, ...] = (),
) -> ReportFacts:
    """The facts of one run.

    `events` are kept in memory, about 1 kB each: give those of a run of ordinary size, and of a large one at least the ownership.
    `lag` from elsewhere is shown instead of what the events say.
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
        stalls=timeline.stalls(book, window),
        gaps=tuple(gaps),
        owners=timeline.owners(book),
        lag=lag or timeline.lag_track(book, window),
        unreadable=journal.unreadable if journal else 0,
    )


def _window(book: Book, lines: Sequence[journal_lines.Line]) -> Window:
    """From the first to the last of everything that has a time; a minute of 1970 where nothing has."""
    times = [line.began_ms for line in lines] + [line.at_ms for line in lines]
    for writer in book.writers.values():
        times += [writer.first_ms, writer.last_ms]
    return Window(min(times), max(times) + _EDGE_MS) if times else Window(0, 60_000)
