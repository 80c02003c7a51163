"""The verdict on a ledger's facts alone."""

from __future__ import annotations

from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, Level, combine, findings_from_facts
from airflow_provider_kmigrate.core.ledger import Facts


def verdict_of(facts: Facts) -> AuditOutcome:
    """The audit's own verdict, without evidence of any other level."""
    findings, health = findings_from_facts(facts, Level.PRODUCER)
    return combine(findings, [health]).outcome
