"""The tolerances and requirements of an audit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.ledger.health import ANY_EVIDENCE, Demand


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """The settings of an audit's judgement. Times are milliseconds.

    `skew_ms`: by how much the members' clocks may differ. `max_cases`: counter-examples kept of a finding. `window`: limits
    stalls and gaps to what was sent or delivered from .. before (ms since the epoch). `allow`: findings that are shown and do
    not fail, such as `redelivered` if clients are killed on purpose. `required`: levels that must have been measured; None: those
    of the sources. `max_gap_ms`, `max_unowned_ms`: the longest wait and the longest time without an owner that may pass.
    `required_evidence`: the least evidence, from `since` on, of `groups`. `alive_since` as for `core.ledger.balance`: for an audit of
    clients that run on; None: all must have stopped.
    """

    skew_ms: int = 100
    max_cases: int = 20
    window: tuple[int, int] | None = None
    allow: frozenset[str] = frozenset()
    required: Collection[Level] | None = None
    max_gap_ms: int | None = None
    max_unowned_ms: int | None = None
    alive_since: int | None = None
    required_evidence: Demand = ANY_EVIDENCE
