"""What preflight found as a document: `preflight.schema.json` says of what form, and `SCHEMA` grows when that changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Final

from airflow_provider_kmigrate.core.findings.finding import PreflightFinding, Severity
from airflow_provider_kmigrate.steps.prepare import Preflight, as_json

SCHEMA: Final = 1


class Outcome(StrEnum):
    """What the findings come to."""

    BLOCKED = "BLOCKED"  # the migration refuses to begin
    OPEN = "OPEN QUESTIONS"  # it would begin, but something could not be seen from here
    READY = "READY"  # nothing blocks, nothing is unknown


def outcome_of(found: Iterable[PreflightFinding]) -> Outcome:
    """The gravest finding decides."""
    severities = {finding.severity for finding in found}
    if Severity.BLOCK in severities:
        return Outcome.BLOCKED
    return Outcome.OPEN if Severity.UNKNOWN in severities else Outcome.READY


def as_document(looked: Preflight, clock: Callable[[], float] = time.time) -> dict[str, Any]:
    """JSON values only; findings in their order, the gravest first."""
    spec, view = looked.facts.spec, looked.view
    counts = {str(severity): sum(finding.severity is severity for finding in looked.found) for severity in Severity}
    partitions = view.partitions
    return {
        "schema": SCHEMA,
        "cluster": spec.name,
        "cluster_id": spec.cluster_id,
        "made_ms": int(clock() * 1000),
        "took_s": round(looked.took, 3),
        "outcome": str(outcome_of(looked.found)),
        "counts": counts,
        "seen": {
            "brokers": len(spec.brokers),
            "controllers": len(spec.controllers),
            "topics": None if partitions is None else len({partition.topic for partition in partitions}),
            "partitions": None if partitions is None else len(partitions),
        },
        "findings": [as_json(finding) for finding in looked.found],
        "unread": list(looked.facts.around.unread),
    }
