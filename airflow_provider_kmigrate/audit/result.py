"""The result of an audit."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditVerdict, CanaryVerdict, Level, LevelHealth
from airflow_provider_kmigrate.core.events import Event
from airflow_provider_kmigrate.core.ledger import Facts


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
