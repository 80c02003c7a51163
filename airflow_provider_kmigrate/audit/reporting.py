"""The result of an audit, and its report: verdict, its facts, and the course of events by the journals and the clients' events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_provider_kmigrate.audit import queries, report
from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.audit.request import ReportRequest
from airflow_provider_kmigrate.core import journal_lines
from airflow_provider_kmigrate.core.audit.report_facts import Ledger, Subject, collect
from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditVerdict, CanaryVerdict, Level, LevelHealth
from airflow_provider_kmigrate.core.event_lines import decode
from airflow_provider_kmigrate.core.events import Event
from airflow_provider_kmigrate.core.ledger import Facts
from airflow_provider_kmigrate.exceptions import Failed

_MOST: Final = 300_000  # events that are kept in memory for pictures, about 1 kB each


@dataclass(frozen=True, slots=True)
class Audited:
    """The result for one source. `refused`: lines that are no events, each with the reason; `pictured`: events for a report.

    Of its `partitions` the `suspects` were judged event by event.
    """

    level: Level
    facts: Facts
    findings: tuple[AuditFinding, ...]
    health: LevelHealth
    refused: tuple[tuple[str, str], ...] = ()
    pictured: tuple[Event, ...] = ()
    canary: CanaryVerdict | None = None
    partitions: int = 0
    suspects: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict over all sources, and its evidence."""

    verdict: AuditVerdict
    sources: tuple[Audited, ...]


def events(engine: Engine) -> tuple[Event, ...]:
    """Events of the attached source: all, or of a large one those of owners and stalls."""
    few = engine.ask(queries.EVENT_COUNT)["n"][0].as_py() > _MOST
    lines = engine.ask(queries.FEW_LINES if few else queries.ALL_LINES)["line"].to_pylist()
    return tuple(map(decode, lines))


def write(wanted: ReportRequest, result: Result, folder: Path) -> report.AuditReport:
    """Write `report.html` and `report.json` into the folder.

    Raises `Failed` if a journal is unreadable or the folder not writable.
    """
    subject = Subject(wanted.cluster, wanted.cluster_id, wanted.run, time.time_ns() // 1_000_000)
    pictured = [event for source in result.sources for event in source.pictured]
    ledgers = [Ledger(source.level, source.facts) for source in result.sources]
    try:
        journal = journal_lines.read(_lines(wanted.journals))
        return report.write(collect(subject, result.verdict, ledgers=ledgers, journal=journal, events=pictured), folder)
    except OSError as error:
        raise Failed(f"the report cannot be written in {folder}: {error}") from error


def _lines(journals: Iterable[str]) -> Iterator[str]:
    for place in map(Path, journals):
        for path in sorted(place.glob("*.jsonl")) if place.is_dir() else [place]:
            yield from path.read_text(encoding="utf-8", errors="replace").splitlines()
