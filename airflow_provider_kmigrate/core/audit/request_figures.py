"""The figures that stand first in the request before the point of no return: records lost, records twice, longest stall, the rollback's time.

A figure that nothing measured says so: unknown is not zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from airflow_provider_kmigrate.core.audit.verdict import BEFORE_THE_STEP, AuditOutcome, Level
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.text import code_span, format_duration, table_cell

NOT_MEASURED: Final = "not measured: no audit left a result"
_LOST: Final = frozenset({AuditCause.LOST})
_TWICE: Final = frozenset({AuditCause.STORED_TWICE, AuditCause.REDELIVERED})
_DELIVERY_LEVELS: Final = frozenset(level.label for level in Level) - {Level.LOG.label}


def summarize_audit(verdict: Mapping[str, Any], ledgers: Iterable[Mapping[str, Any]], page: str) -> dict[str, Any]:
    """The figures of one audit as JSON values: `{"outcome", "levels", "lost", "twice", "longest_stall_ms", "page"}`.

    `verdict`: as `verdict.as_dict`; `ledgers`: those of its report, none if it made none. `lost` and `twice` are None if the audit could not
    conclude, `twice` also if no event of a client or of the probe was read: logs alone show no delivery.
    """
    findings = [
        finding for finding in verdict.get("findings", ()) if not str(finding["reason"]["text"]).startswith(BEFORE_THE_STEP)
    ]
    levels = sorted(verdict.get("levels", ()))
    concluded = verdict["outcome"] != AuditOutcome.INCONCLUSIVE
    stalls = [ledger["longest_stall_ms"] for ledger in ledgers if ledger.get("longest_stall_ms") is not None]
    return {
        "outcome": str(verdict["outcome"]),
        "levels": levels,
        "lost": _count(findings, _LOST) if concluded and levels else None,
        "twice": _count(findings, _TWICE) if concluded and _DELIVERY_LEVELS.intersection(levels) else None,
        "longest_stall_ms": max(stalls, default=None),
        "page": page,
    }


def _count(findings: Iterable[Mapping[str, Any]], causes: frozenset[AuditCause]) -> int:
    return sum(int(finding["count"]) for finding in findings if finding["reason"].get("cause") in causes)


def render_figures(audit: Mapping[str, Any] | None, readiness: Mapping[str, Any] | None) -> str:
    """Four rows of a Markdown table. `audit`: as `summarize_audit`; `readiness`: as `readiness.to_document`; None: there is none.

    They were stored by earlier tasks of the run: what is not of the expected form counts as not measured.
    """
    rows = {
        "Records lost": _describe_count(audit, "lost"),
        "Records twice": _describe_count(audit, "twice"),
        "Longest stall of a producer": _describe_stall(audit),
        "A rollback takes": _describe_rollback(readiness),
    }
    return "\n".join(
        ("| figure | observed |", "| --- | --- |", *(f"| {name} | {table_cell(text)} |" for name, text in rows.items()))
    )


def _describe_count(audit: Mapping[str, Any] | None, name: str) -> str:
    if not isinstance(audit, Mapping):
        return NOT_MEASURED
    count, levels = audit.get(name), audit.get("levels")
    if not isinstance(count, int) or isinstance(count, bool) or not isinstance(levels, list):
        return f"not known: the audit says {audit.get('outcome')}, and nothing that it read counts them"
    return f"{count:,} (audit: {audit.get('outcome')}, by the evidence {', '.join(map(str, levels))})"


def _describe_stall(audit: Mapping[str, Any] | None) -> str:
    if not isinstance(audit, Mapping):
        return NOT_MEASURED
    stall = audit.get("longest_stall_ms")
    if not isinstance(stall, int | float) or isinstance(stall, bool):
        return "not measured: the audit read no producer's events"
    return f"{format_duration(stall)} until a record was acknowledged"


def _describe_rollback(readiness: Mapping[str, Any] | None) -> str:
    forecast = readiness.get("forecast") if isinstance(readiness, Mapping) else None
    seconds = forecast.get("seconds") if isinstance(forecast, Mapping) else None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not isinstance(forecast, Mapping):
        return "not known: `before_approval.readiness` left no forecast"
    basis = "as measured in this migration" if forecast.get("measured") else "assumed: no restart was measured"
    return f"{format_duration(1000 * seconds)} ({basis}); not possible after the finalization"


def render_origin(requester: str | None, plan: str, page: str) -> str:
    """Who asked, for which plan, and where the last report is; one Markdown line each.

    `requester`: as `utils.approval.find_requester`; `plan`: the fingerprint of the run's plan, `page`: the path of a report; both empty: not known.
    """
    if requester:
        who = f"{code_span(requester)} started this run."
    else:
        who = "Airflow does not say who started this run." if requester is None else "No user started this run: its schedule did."
    lines = [who]
    lines += [f"Its plan has the fingerprint {code_span(plan)}."] if plan else []
    lines += [f"The last report: {code_span(page)}."] if page else []
    return "\n".join(f"* {line}" for line in lines)
