"""The four figures of the request before the point of no return, and who asked."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_kmigrate.core.audit.request_figures import NOT_MEASURED, render_figures, render_origin, summarize_audit
from airflow_provider_kmigrate.core.audit.verdict import (
    BEFORE_THE_STEP,
    AuditFinding,
    AuditOutcome,
    Level,
    LevelHealth,
    as_dict,
    combine,
)
from airflow_provider_kmigrate.core.reasons.entry import AuditCause

PROBED = [LevelHealth(Level.LOG, 10), LevelHealth(Level.PROBE, 10)]
LOST = AuditFinding.of(AuditOutcome.FAIL, AuditCause.LOST, "3 acknowledged records were lost.", Level.PROBE, 3)
TWICE = AuditFinding.of(AuditOutcome.PASS, AuditCause.REDELIVERED, "2 records again.", Level.PROBE, 2)
EARLIER = AuditFinding.of(AuditOutcome.PASS, AuditCause.LOST, f"{BEFORE_THE_STEP}7 records.", Level.PROBE, 7)
DOUBT = AuditFinding.of(AuditOutcome.INCONCLUSIVE, AuditCause.NO_START, "A writer has no start.", Level.PROBE)


@pytest.mark.parametrize(
    ("findings", "health", "lost", "twice"),
    [
        ([], PROBED, 0, 0),
        ([LOST], PROBED, 3, 0),
        ([TWICE], PROBED, 0, 2),
        ([EARLIER], PROBED, 0, 0),
        ([DOUBT], PROBED, None, None),
        ([], PROBED[:1], 0, None),
        ([], [], None, None),
    ],
    ids=["clean", "lost", "an allowed repeat counts", "before the step", "inconclusive", "logs show no delivery", "no evidence"],
)
def test_an_audit_is_two_counts_or_it_does_not_know(
    findings: list[AuditFinding], health: list[LevelHealth], lost: int | None, twice: int | None
) -> None:
    figures = summarize_audit(as_dict(combine(findings, health)), [], "")
    assert (figures["lost"], figures["twice"]) == (lost, twice)


@pytest.mark.parametrize(("stalls", "longest"), [([], None), ([None], None), ([900.0, 2_300.0, None], 2_300.0)])
def test_the_longest_stall_is_that_of_any_level(stalls: list[float | None], longest: float | None) -> None:
    ledgers = [{"level": "L1", "longest_stall_ms": stall} for stall in stalls]
    assert summarize_audit(as_dict(combine([], PROBED)), ledgers, "")["longest_stall_ms"] == longest


AUDIT: dict[str, Any] = {"outcome": "PASS", "levels": ["L0", "L1"], "lost": 0, "twice": 0, "longest_stall_ms": 2_300.0}
READY: dict[str, Any] = {"forecast": {"seconds": 300.0, "measured": True}}


def test_the_four_figures_are_four_rows() -> None:
    assert render_figures(AUDIT, READY).splitlines()[2:] == [
        "| Records lost | 0 (audit: PASS, by the evidence L0, L1) |",
        "| Records twice | 0 (audit: PASS, by the evidence L0, L1) |",
        "| Longest stall of a producer | 2.3 s until a record was acknowledged |",
        "| A rollback takes | 5 min (as measured in this migration); not possible after the finalization |",
    ]


@pytest.mark.parametrize("audit", [None, "PASS", 0, []])
@pytest.mark.parametrize("readiness", [None, "ready", {}, {"forecast": None}, {"forecast": {"seconds": "soon"}}])
def test_what_was_not_measured_is_no_zero(audit: Any, readiness: Any) -> None:
    shown = render_figures(audit, readiness)
    assert shown.count(NOT_MEASURED) == 3
    assert "not known" in shown
    assert "| 0" not in shown


@pytest.mark.parametrize("value", [None, "0", True, 0.5, "0 |\n| Records lost | 0"])
def test_a_forged_figure_is_shown_as_none(value: Any) -> None:
    shown = render_figures(AUDIT | {"lost": value, "levels": value}, READY)
    assert len(shown.splitlines()) == 6
    assert "| Records lost | not known" in shown


@pytest.mark.parametrize(
    ("requester", "said"),
    [("ann", "`ann` started this run."), ("", "No user started this run"), (None, "Airflow does not say who started this run.")],
)
def test_the_requester_is_named_or_it_is_said_that_none_is_known(requester: str | None, said: str) -> None:
    assert said in render_origin(requester, "", "")


def test_the_plan_and_the_last_report_are_code_so_that_they_can_be_no_link() -> None:
    shown = render_origin("ann", "0123 ` [x](http://e)", "/srv/kmigrate/report.html")
    assert "Its plan has the fingerprint `0123 ' [x](http://e)`." in shown
    assert "The last report: `/srv/kmigrate/report.html`." in shown
    assert len(render_origin("a\n* forged", "", "").splitlines()) == 1
