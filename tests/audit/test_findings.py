"""What an audit concludes: planted faults by their causes, what is tolerated, what it cannot judge."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the audit has its own environment")
pytest.importorskip("duckdb", reason="the audit has its own environment")

from airflow_provider_kmigrate.audit.job import Result, audit_sources
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import AuditPolicy
from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditOutcome, Level
from airflow_provider_kmigrate.core.events.lines import encode
from airflow_provider_kmigrate.core.events.model import DeliveryRun, Event, Ownership, OwnershipChange, SendFailure
from airflow_provider_kmigrate.core.ledger import Demand, balance
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from tests.core.histories import History, calm, with_a_canary
from tests.core.ledger_faults import (
    committed_too_early,
    delivered_out_of_order,
    lost_in_the_middle,
    overwritten,
    read_again,
    stored_twice,
)
from tests.core.steady_ledger import BEGAN, steady


def concluded(events: Sequence[Event], engine: Engine, policy: AuditPolicy | None = None) -> Result:
    return audit_sources([Source(Level.CONSUMER, events=tuple(events))], policy or AuditPolicy(), engine)


def findings(result: Result, *outcomes: AuditOutcome) -> dict[object, AuditFinding]:
    wanted = outcomes or (AuditOutcome.FAIL, AuditOutcome.INCONCLUSIVE)
    return {finding.reason.cause: finding for finding in result.verdict.findings if finding.outcome in wanted}


def test_nothing_planted_passes(engine: Engine) -> None:
    result = concluded(calm().end(), engine)
    assert (result.verdict.outcome, findings(result)) == (AuditOutcome.PASS, {})
    assert result.sources[0].facts == balance(calm().end())


def test_nothing_at_all_is_inconclusive(engine: Engine) -> None:
    result = concluded([], engine)
    assert (result.verdict.outcome, set(findings(result))) == (
        AuditOutcome.INCONCLUSIVE,
        {AuditCause.NOTHING_ACKED, AuditCause.NO_GROUP, AuditCause.LEVEL_UNMEASURED},
    )
    assert audit_sources([], AuditPolicy(), engine).verdict.outcome is AuditOutcome.INCONCLUSIVE


def test_what_producers_gave_up_is_shown(duck: Engine) -> None:
    history = calm()
    stamp = history.stamp("p")
    history.events.append(SendFailure(stamp, "p", "t", 0, 30, 34, "NOT_ENOUGH_REPLICAS", None, stamp.t_ms))
    result = concluded(history.end(), duck)
    shown = findings(result, AuditOutcome.PASS)[AuditCause.SENDS_GIVEN_UP]
    assert (result.verdict.outcome, shown.count) == (AuditOutcome.PASS, 5)


def test_what_is_tolerated_is_known_by_its_name_not_by_its_cases(duck: Engine) -> None:
    history = calm()
    read_again(history)
    lost_in_the_middle(history)
    policy = AuditPolicy(max_cases=0, allow=frozenset({"redelivered"}))
    result = audit_sources([Source(Level.CONSUMER, events=tuple(history.end()))], policy, duck)
    assert result.verdict.outcome is AuditOutcome.FAIL
    assert AuditCause.LOST in findings(result, AuditOutcome.FAIL)
    assert AuditCause.REDELIVERED in findings(result, AuditOutcome.PASS)


def own_twice(h: History) -> None:
    h.consumer("n", "g")
    h.own("g", "n", OwnershipChange.ACQUIRED)
    h.own("g", "m", OwnershipChange.RELEASED)
    h.own("g", "n", OwnershipChange.RELEASED)


def deliver_unowned(h: History) -> None:
    h.own("g", "m", OwnershipChange.RELEASED)
    h.ack("p", 0, 30, 30, 7)
    h.deliver("g", "m", 0, 30, 7, 30)


@pytest.mark.parametrize(
    ("plant", "causes"),
    [
        (lost_in_the_middle, {AuditCause.LOST}),
        (read_again, {AuditCause.REDELIVERED}),
        (delivered_out_of_order, {AuditCause.REORDERED}),
        (own_twice, {AuditCause.DOUBLE_OWNED}),
        (overwritten, {AuditCause.LOST, AuditCause.DIVERGED}),
        (stored_twice, {AuditCause.STORED_TWICE}),
        (committed_too_early, {AuditCause.COMMIT_GAP}),
        (deliver_unowned, {AuditCause.NOT_OWNED}),
    ],
)
def test_a_planted_fault_fails_by_its_cause_and_only_that(
    duck: Engine, plant: Callable[[History], None], causes: set[AuditCause]
) -> None:
    history = calm()
    plant(history)
    result = concluded(history.end(), duck)
    assert (result.verdict.outcome, set(findings(result))) == (AuditOutcome.FAIL, causes)


def test_a_lost_audit_event_is_never_a_lost_record(engine: Engine) -> None:
    events = [event for event in calm().end() if not (isinstance(event, DeliveryRun) and event.first == 10)]
    result = concluded(events, engine)
    assert (result.verdict.outcome, set(findings(result))) == (
        AuditOutcome.INCONCLUSIVE,
        {AuditCause.NUMBERS_MISSING, AuditCause.COUNT_GAP},
    )


def test_what_was_not_owned_is_found_behind_an_unbroken_chain(engine: Engine) -> None:
    """The member gave the partition up in the middle, took it again, and delivered once in between."""
    history = calm()
    for first, change in ((30, OwnershipChange.RELEASED), (40, None), (50, OwnershipChange.ACQUIRED), (60, None)):
        if change:
            history.own("g", "m", change)
        history.ack("p", 0, first, first, 10)
        history.deliver("g", "m", 0, first, 10, first)
    finding = findings(concluded(history.end(), engine))[AuditCause.NOT_OWNED]
    assert (finding.outcome, finding.count, [(case.first, case.last, case.members) for case in finding.examples]) == (
        AuditOutcome.FAIL,
        20,
        [(30, 49, ("m",))],
    )


@pytest.mark.parametrize(("begun", "first"), [(0, 30), (1, 50)])
def test_what_was_not_owned_before_the_step_is_shown_alone(duck_or_nightly_spark: Engine, begun: int, first: int) -> None:
    """Twice it delivered what was not its own: once before the second step, once in it."""
    history, begins = calm(), [calm().now]
    for at in (30, 50):
        history.own("g", "m", OwnershipChange.RELEASED)
        history.ack("p", 0, at, at, 10)
        history.deliver("g", "m", 0, at, 10, at)
        begins.append(history.now + 101)
        history.own("g", "m", OwnershipChange.ACQUIRED)
        history.ack("p", 0, at + 10, at + 10, 10)
        history.deliver("g", "m", 0, at + 10, 10, at + 10)
    result = concluded(history.end(), duck_or_nightly_spark, AuditPolicy(required_evidence=Demand(begins[begun])))
    assert findings(result)[AuditCause.NOT_OWNED].examples[0].first == first
    late = concluded(history.end(), duck_or_nightly_spark, AuditPolicy(required_evidence=Demand(begins[2])))
    assert (late.verdict.outcome, findings(late, AuditOutcome.PASS)[AuditCause.NOT_OWNED].count) == (AuditOutcome.PASS, 20)


@pytest.mark.parametrize(("late_ms", "causes"), [(-1, set()), (1, {AuditCause.NOT_OWNED})])
def test_a_member_that_delivers_after_its_reported_end_of_ownership_is_found(
    engine: Engine, late_ms: int, causes: set[AuditCause]
) -> None:
    """It slept, another one took over, and it says when it is awake until when it owned."""
    history = calm()
    history.consumer("n", "g")
    history.ack("p", 0, 30, 30, 20)
    history.deliver("g", "m", 0, 30, 10, 30)
    until = history.now - late_ms
    history.own("g", "n", OwnershipChange.ACQUIRED)
    history.deliver("g", "n", 0, 40, 10, 40)
    history.own("g", "m", OwnershipChange.LOST, until_ms=until)
    history.own("g", "n", OwnershipChange.RELEASED)
    assert set(findings(concluded(history.end(), engine))) == causes


def test_what_a_lost_acquisition_hides_is_inconclusive(duck: Engine) -> None:
    events = [event for event in calm().end() if not isinstance(event, Ownership)]
    history = calm()
    deliver_unowned(history)
    history.own("g", "m", OwnershipChange.ACQUIRED)
    events = [event for event in history.end() if not (isinstance(event, Ownership) and event.position == 1)]
    assert findings(concluded(events, duck))[AuditCause.NOT_OWNED].outcome is AuditOutcome.INCONCLUSIVE


def test_unowned_time_is_shown(duck: Engine) -> None:
    history = calm()
    history.consumer("n", "g")
    history.own("g", "m", OwnershipChange.RELEASED)
    history.now += 6_000
    history.own("g", "n", OwnershipChange.ACQUIRED)
    events = history.end()
    shown = findings(concluded(events, duck), AuditOutcome.PASS)
    assert (
        shown[AuditCause.UNOWNED].count,
        shown[AuditCause.UNOWNED].examples[0].members,
        shown[AuditCause.OWNER_CHANGES].count,
    ) == (7_000, ("m", "n"), 1)


@pytest.mark.parametrize(
    ("shares", "uneven"), [(((0, 1, 2), (3, 4)), False), (((0, 1, 2, 3), (4, 5)), True), (((0, 1), ()), False)]
)
def test_uneven_shares_are_shown(duck: Engine, shares: tuple[tuple[int, ...], ...], uneven: bool) -> None:
    history = calm()
    history.own("g", "m", OwnershipChange.RELEASED)
    history.generation = 2
    for member, partitions in zip("xy", shares, strict=True):
        history.consumer(member, "g")
        history.own("g", member, OwnershipChange.ACQUIRED, partitions)
    for member, partitions in zip("xy", shares, strict=True):
        history.own("g", member, OwnershipChange.RELEASED, partitions)
    assert (AuditCause.UNEVEN in findings(concluded(history.end(), duck), AuditOutcome.PASS)) is uneven


def test_what_the_policy_tolerates_is_shown_and_does_not_fail(duck: Engine) -> None:
    history = calm()
    read_again(history)
    result = concluded(history.end(), duck, AuditPolicy(allow=frozenset({"redelivered"})))
    assert result.verdict.outcome is AuditOutcome.PASS
    assert findings(result, AuditOutcome.PASS)[AuditCause.REDELIVERED].count == 5


def test_a_canary_among_members_that_write_no_events(duck_or_nightly_spark: Engine) -> None:
    events = tuple(with_a_canary().end())
    source = Source(Level.CONSUMER, events=events)
    result = audit_sources([source], AuditPolicy(required_evidence=Demand(mixed=("g",))), duck_or_nightly_spark)
    shown = findings(result, AuditOutcome.PASS)[AuditCause.OWNER_WITHOUT_EVENTS]
    assert (result.verdict.outcome, shown.count) == (AuditOutcome.PASS, 1)
    assert "t-1 of g" in shown.reason.text
    assert result.sources[0].facts == balance(events, demand=Demand(mixed=("g",)))
    assert audit_sources([source], AuditPolicy(), duck_or_nightly_spark).verdict.outcome is AuditOutcome.INCONCLUSIVE


def running(seconds: int) -> History:
    """Three partitions, an acknowledgement and a delivery of each a second."""
    history = History()
    history.consumer("m", "g")
    history.producer("p")
    history.own("g", "m", OwnershipChange.ACQUIRED, (0, 1, 2))
    for second in range(seconds):
        for partition in range(3):
            history.ack("p", partition, second * 5, second * 5, 5)
            history.deliver("g", "m", partition, second * 5, 5, second * 5)
        history.now -= 5_000
    return history


def test_clients_that_run_on_make_no_partition_suspect(engine: Engine) -> None:
    """As many events as they may write in a day: none of their partitions has to be looked at, and of killed ones every one."""
    history = running(200)
    source, policy = Source(Level.PROBE, events=tuple(history.events)), AuditPolicy(alive_since=0)
    result = audit_sources([source], policy, engine)
    assert result.verdict.outcome is AuditOutcome.PASS, result.verdict.headline
    (audited,) = result.sources
    assert (audited.suspects, audited.partitions) == (0, 3)
    facts, ledger = audited.facts, balance(history.events, alive_since=0)
    assert (facts.acked, facts.delivered, facts.gaps) == (ledger.acked, ledger.delivered, ledger.gaps)
    killed = audit_sources([source], replace(policy, alive_since=history.now + 60_000), engine)
    assert (killed.sources[0].suspects, set(findings(killed))) == (3, {AuditCause.NO_STOP})


@pytest.mark.parametrize("skipped", [1, 5])
def test_what_a_group_passed_over_without_a_word_of_any_producer_is_shown(duck_or_nightly_spark: Engine, skipped: int) -> None:
    """Records of a producer that is not wrapped, or a transaction's markers: the counts of deliveries are unbroken either way."""
    history = calm()
    history.ack("p", 0, 30 + skipped, 30, 10)
    history.deliver("g", "m", 0, 30 + skipped, 10, 30)
    result = concluded(history.end(), duck_or_nightly_spark)
    shown = findings(result, AuditOutcome.PASS)[AuditCause.SKIPPED]
    assert (result.verdict.outcome, shown.count) == (AuditOutcome.PASS, skipped)
    assert [(case.group, case.first, case.last) for case in shown.examples] == [("g", 30, 29 + skipped)]
    assert result.sources[0].facts == balance(history.events)
    assert AuditCause.SKIPPED not in findings(concluded(calm().end(), duck_or_nightly_spark), AuditOutcome.PASS)


def test_our_own_probe_has_evidence_of_each_partition(duck: Engine) -> None:
    """It stands for every broker; of users' clients only what they wrote steadily is asked for."""
    for stops, level, expected in (
        (None, Level.PROBE, set()),
        (1, Level.PROBE, {AuditCause.NO_EVIDENCE}),
        (1, Level.PRODUCER, set()),
    ):
        events = steady(stops=stops, beat_ms=20_000).events
        source = Source(level, events=tuple(events))
        result = audit_sources([source], AuditPolicy(alive_since=BEGAN, required_evidence=Demand(BEGAN)), duck)
        assert set(findings(result)) == expected


def test_a_torn_line_from_before_the_step(duck: Engine, tmp_path: Path) -> None:
    for name, lines in (("events", list(map(encode, calm().events))), ("ownership", ['{"v":2,"kind":"owne'])):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    source = Source(Level.CONSUMER, lines=(str(tmp_path),))
    begun = calm().events[0].stamp.t_ms
    assert set(findings(audit_sources([source], AuditPolicy(alive_since=begun, required_evidence=Demand(begun)), duck))) == {
        AuditCause.BAD_LINES
    }
    os.utime(tmp_path / "ownership.jsonl", (begun / 1000 - 60, begun / 1000 - 60))
    result = audit_sources([source], AuditPolicy(alive_since=begun, required_evidence=Demand(begun)), duck)
    assert (result.verdict.outcome, len(result.sources[0].refused)) == (AuditOutcome.PASS, 1)


def test_what_a_client_handed_out_twice_by_itself_is_shown_and_fails_nothing(engine: Engine) -> None:
    history = calm()
    history.deliver("g", "m", 0, 25, 5, 25)
    result = concluded(history.end(), engine)
    shown = findings(result, AuditOutcome.PASS)[AuditCause.CLIENT_REPEATED]
    assert (result.verdict.outcome, shown.count) == (AuditOutcome.PASS, 5)
    assert [(case.group, case.members, case.first, case.last) for case in shown.examples] == [("g", ("m", "m"), 25, 29)]
    assert AuditCause.REDELIVERED not in findings(result, AuditOutcome.PASS)
