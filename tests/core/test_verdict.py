"""The combination of grounds, the audit's health and a canary into one verdict."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.audit.verdict import (
    CLAIMS,
    VERSION,
    AuditFinding,
    AuditOutcome,
    AuditVerdict,
    CanaryVerdict,
    Level,
    LevelHealth,
    as_dict,
    combine,
    findings_from_facts,
    may_change,
    outcome_of,
    undetected_fault_rate,
    worst_outcome,
)
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.ledger.facts import Case, Facts, LedgerFinding
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Refused
from tests.core.level_health import HEALTHY

LOST = Case("orders", 3, first=10, last=12, count=3, members=("m1",))


def found(outcome: AuditOutcome = AuditOutcome.FAIL, level: Level = Level.CONSUMER) -> AuditFinding:
    return AuditFinding(outcome, Reason("A05", "3 records were skipped."), level, examples=(LOST,))


def causes(verdict: AuditVerdict) -> list[object]:
    return [finding.reason.cause for finding in verdict.findings]


def consumers(events: int = 9) -> LevelHealth:
    return LevelHealth(Level.CONSUMER, events)


def test_whole_evidence_without_findings_passes_and_says_what_was_shown() -> None:
    verdict = combine([], HEALTHY)
    assert verdict.outcome is AuditOutcome.PASS
    assert verdict.proven == (Level.LOG, Level.PROBE)
    assert all(CLAIMS[level] in verdict.headline for level in verdict.proven)


def test_a_pass_names_the_default_levels_that_gave_no_evidence() -> None:
    assert "not measured" not in combine([], HEALTHY).headline
    probe_only = combine([], HEALTHY[1:])
    assert (probe_only.outcome, probe_only.unmeasured) == (AuditOutcome.PASS, (Level.LOG,))
    assert probe_only.headline.endswith("; not measured: L0.")
    assert as_dict(probe_only)["unmeasured"] == ["L0"]
    clients_only = combine([], [consumers()])
    assert clients_only.headline.endswith("; not measured: L0 and L1.")


@pytest.mark.parametrize(
    ("level", "too_much"),
    [
        (Level.CONSUMER, ("every record in the log", "one owner at a time")),
        (Level.PRODUCER, ("every record",)),
        (Level.LOG, ("everything", "what was in the log")),
        (Level.PROBE, ("every record",)),
    ],
)
def test_a_claim_says_no_more_than_was_shown(level: Level, too_much: tuple[str, ...]) -> None:
    """Of unwrapped producers' records nothing says that they were to come; without numbers a delivery shows an offset, not whose record it was."""
    assert not [words for words in too_much if words in CLAIMS[level]]
    assert level is Level.LOG or "acknowledged, but for the newest," in CLAIMS[level]


def test_nothing_at_all_is_inconclusive() -> None:
    assert combine([], []).outcome is AuditOutcome.INCONCLUSIVE
    assert "INCONCLUSIVE" in combine([], []).headline


def test_a_level_without_events_is_inconclusive() -> None:
    verdict = combine([], [HEALTHY[0], LevelHealth(Level.PROBE, events=0)])
    assert verdict.outcome is AuditOutcome.INCONCLUSIVE
    assert causes(verdict) == [AuditCause.LEVEL_UNMEASURED]
    assert verdict.proven == (Level.LOG,)


def test_a_violation_fails_whatever_else_holds() -> None:
    verdict = combine([found()], (*HEALTHY, consumers()))
    assert verdict.outcome is AuditOutcome.FAIL
    assert verdict.levels == {Level.LOG: AuditOutcome.PASS, Level.PROBE: AuditOutcome.PASS, Level.CONSUMER: AuditOutcome.FAIL}
    assert verdict.findings[0].examples == (LOST,)
    assert "[A05]" in verdict.headline


def test_malformed_events_and_owner_changes_are_shown_and_decide_nothing() -> None:
    verdict = combine([], (*HEALTHY[:1], LevelHealth(Level.PROBE, 50, malformed=2, owner_changes=60)))
    assert verdict.outcome is AuditOutcome.PASS
    assert [(finding.reason.cause, finding.count) for finding in verdict.findings] == [
        (AuditCause.MALFORMED, 2),
        (AuditCause.OWNER_CHANGES, 60),
    ]


VIOLATIONS = ("lost", "redelivered", "stored_twice", "reordered", "diverged", "commit_gap", "double_owned")


@pytest.mark.parametrize("name", VIOLATIONS)
def test_each_violation_of_a_ledger_fails_with_its_cases(name: str) -> None:
    reasons = (Reason.of(AuditCause.NO_STOP, "No stop."),)
    facts = Facts(complete=False, reasons=reasons, acked=9, **{name: LedgerFinding(3, (LOST,))})  # type: ignore[arg-type]
    findings, health = findings_from_facts(facts, Level.CONSUMER)
    verdict = combine(findings, (*HEALTHY, health))
    assert (verdict.outcome, verdict.levels[Level.CONSUMER]) == (AuditOutcome.FAIL, AuditOutcome.FAIL)
    assert (verdict.findings[0].count, verdict.findings[0].examples) == (3, (LOST,))
    assert "3 " in verdict.findings[0].reason.text
    assert causes(verdict)[-1] == AuditCause.NO_STOP


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (Facts(complete=True, reasons=(), acked=9, delivered={"g": 9}), AuditOutcome.PASS),
        (Facts(complete=False, reasons=(Reason.of(AuditCause.COUNT_GAP, "A hole."),), acked=9), AuditOutcome.INCONCLUSIVE),
        (Facts(complete=True, reasons=()), AuditOutcome.INCONCLUSIVE),
    ],
)
def test_a_ledger_without_violations(facts: Facts, outcome: AuditOutcome) -> None:
    findings, health = findings_from_facts(facts, Level.PROBE)
    assert combine(findings, [HEALTHY[0], health]).outcome is outcome


@pytest.mark.parametrize("outcome", list(AuditOutcome))
def test_a_canary_counts_as_a_finding(outcome: AuditOutcome) -> None:
    canary = CanaryVerdict(
        outcome, "lag", 1.25, 60, 60, findings=(AuditFinding(outcome, Reason.of(AuditCause.CANARY_WORSE, "Worse.")),)
    )
    verdict = combine([], HEALTHY, canary)
    assert verdict.outcome is outcome
    assert causes(verdict) == [AuditCause.CANARY_WORSE]
    assert verdict.levels[Level.LOG] is AuditOutcome.PASS, "a slow canary says nothing about the log"


OUTCOMES = st.sampled_from(list(AuditOutcome))
LEVELS = st.sampled_from(list(Level))
FINDINGS = st.builds(AuditFinding, OUTCOMES, st.just(Reason.of(AuditCause.LOST, "x")), LEVELS, st.just(1), st.just((LOST,)))
HEALTH = st.lists(st.builds(LevelHealth, LEVELS, st.integers(0, 2)), unique_by=lambda account: account.level)


@given(st.lists(FINDINGS, max_size=4), FINDINGS, HEALTH)
@settings(max_examples=100, deadline=None)
def test_laws(findings: list[AuditFinding], another: AuditFinding, health: list[LevelHealth]) -> None:
    """More grounds never help, a level without events never passes, and the order of the grounds is irrelevant."""
    verdict, more = combine(findings, health), combine([*findings, another], health)
    assert more.outcome.rank >= verdict.outcome.rank or not (findings or health)
    turned = combine(findings[::-1], health)
    assert (turned.outcome, turned.levels, set(turned.findings)) == (verdict.outcome, verdict.levels, set(verdict.findings))
    assert verdict.findings or not health or verdict.outcome is AuditOutcome.PASS
    for account in health:
        if not account.events:
            assert verdict.outcome is not AuditOutcome.PASS
            assert account.level not in verdict.proven
    assert outcome_of(json.loads(json.dumps(as_dict(verdict), allow_nan=False))) is verdict.outcome


def test_json_names_levels_and_holds_no_infinity() -> None:
    canary = CanaryVerdict(AuditOutcome.INCONCLUSIVE, "lag", 1.25, 60, 60, 3, 1.0, 0.0, float("inf"), findings=(found(),))
    document = as_dict(combine([], HEALTHY, canary))
    text = json.dumps(document, allow_nan=False)
    assert document["levels"] == {"L0": "PASS", "L1": "PASS"}
    assert document["canary"]["high"] is None
    assert json.loads(text)["findings"][0]["level"] == "L2"


@pytest.mark.parametrize(
    ("measured", "others", "expected"),
    [(60, (), False), (59, (), True), (60, (found(AuditOutcome.INCONCLUSIVE),), True), (None, (), True)],
)
def test_more_of_the_same_evidence_does_not_help_a_canary_whose_window_is_over(
    measured: int | None, others: tuple[AuditFinding, ...], expected: bool
) -> None:
    unclear = AuditFinding(AuditOutcome.INCONCLUSIVE, Reason.of(AuditCause.CANARY_UNCLEAR, "It could be either."))
    canary = (
        None if measured is None else CanaryVerdict(AuditOutcome.INCONCLUSIVE, "late", 1.5, 60, measured, findings=(unclear,))
    )
    assert may_change(json.loads(json.dumps(as_dict(combine(others, HEALTHY, canary))))) is expected


@pytest.mark.parametrize("document", [{}, {"version": VERSION + 1, "outcome": "PASS"}, {"version": VERSION, "outcome": "FINE"}])
def test_an_unknown_stored_verdict_is_refused_by_name(document: dict[str, object]) -> None:
    with pytest.raises(Refused) as refusal:
        outcome_of(document)
    assert [reason.cause for reason in refusal.value.reasons] == [AuditCause.VERDICT_UNKNOWN]


def test_worst_of_nothing_is_not_a_pass() -> None:
    assert worst_outcome([]) is AuditOutcome.INCONCLUSIVE


@pytest.mark.parametrize(("trials", "rate"), [(0, 1.0), (1, 0.95), (60, 0.0487), (300, 0.00994)])
def test_rule_of_three(trials: int, rate: float) -> None:
    assert undetected_fault_rate(trials) == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize(("recorded", "outcome"), [(True, AuditOutcome.FAIL), (False, AuditOutcome.INCONCLUSIVE)])
def test_a_delivery_without_ownership_fails_where_no_event_is_missing(recorded: bool, outcome: AuditOutcome) -> None:
    facts = Facts(complete=True, reasons=(), acked=9, not_owned=LedgerFinding(3, (LOST,)), recorded=recorded)
    findings, health = findings_from_facts(facts, Level.PROBE)
    verdict = combine(findings, [HEALTHY[0], health])
    assert (verdict.outcome, causes(verdict)) == (outcome, [AuditCause.NOT_OWNED])


BOTH = LevelHealth(Level.PRODUCER, 10, includes=(Level.CONSUMER,))
ALL_LOST = AuditFinding(AuditOutcome.FAIL, Reason.of(AuditCause.LOST, "lost"), Level.PRODUCER)


def test_a_level_that_is_proven_by_the_events_of_a_higher_one_is_named() -> None:
    found = combine([], [BOTH])
    assert (found.outcome, found.proven) == (AuditOutcome.PASS, (Level.CONSUMER, Level.PRODUCER))


def test_a_finding_speaks_against_both_levels() -> None:
    assert combine([ALL_LOST], [BOTH]).levels == {Level.CONSUMER: AuditOutcome.FAIL, Level.PRODUCER: AuditOutcome.FAIL}


def test_a_lower_level_with_its_own_events_has_its_own_outcome() -> None:
    own = LevelHealth(Level.LOG, 10)
    assert combine([ALL_LOST], [BOTH, own]).levels[Level.LOG] is AuditOutcome.PASS
