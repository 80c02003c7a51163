"""What preflight, or a scan of groups, found: one finding a line, with its severity; `core.reasons` explains the codes.

What other steps check too has the same code here, such as G21. W codes never block; B codes block, warn or are not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.reasons import registry


class Severity(StrEnum):
    """Whether a migration may start in spite of a finding; the gravest first."""

    BLOCK = "block"
    UNKNOWN = "not known"  # cannot be seen from here; the operator should find it out before the migration
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """One finding; `source` is where the rule comes from: a KIP, a ticket, Kafka's code, a measurement."""

    reason: Reason
    severity: Severity
    source: str

    @property
    def code(self) -> str:
        """The reason's code."""
        return self.reason.code

    def __str__(self) -> str:
        return f"{self.severity}: {self.reason} (source: {self.source})"


def blocks(code: str, seen: str) -> PreflightFinding:
    """A finding that stops the migration; `seen` is what was observed."""
    return _found(code, seen, Severity.BLOCK)


def warns(code: str, seen: str) -> PreflightFinding:
    """A finding that the operator should know of."""
    return _found(code, seen, Severity.WARN)


def unknown(code: str, seen: str) -> PreflightFinding:
    """A possible problem that could not be seen; the remedy is how to find it out."""
    entry = registry.entry(code)
    return PreflightFinding(Reason(code, seen, remedy=entry.ask), Severity.UNKNOWN, entry.source)


def _found(code: str, seen: str, severity: Severity) -> PreflightFinding:
    return PreflightFinding(Reason(code, seen), severity, registry.entry(code).source)
