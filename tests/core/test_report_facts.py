"""What a report is made of, from everything that a run left behind."""

from __future__ import annotations

import json

from airflow_provider_kmigrate.core.audit.report_facts import ReportWindow, collect_report_facts
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, combine, outcome_of
from airflow_provider_kmigrate.core.monitoring import journal_lines
from tests.audit.reports import START, SUBJECT, broken, journal_text, nothing


def test_the_window_holds_everything_that_has_a_time() -> None:
    facts = broken()
    assert facts.window.from_ms <= START
    times = [act.from_ms for act in facts.acts] + [span.to_ms for track in facts.owners for span in track.held]
    assert max(times) < facts.window.to_ms


def test_every_part_comes_from_its_source() -> None:
    facts = broken()
    assert [phase.name for phase in facts.phases] == ["preflight and backup", "controllers", "first roll"]
    assert [(act.verb, act.to_ms is None) for act in facts.acts] == [("provision", False), ("restart", True), ("start", False)]
    assert len(facts.alarms) == 1
    assert facts.unreadable == 1
    assert {track.partition for track in facts.owners if track.double_ms} == {2}
    assert [track.group for track in facts.lag] == ["billing"]
    assert facts.stalls
    assert facts.gaps[0].ms == max(gap.ms for gap in facts.gaps)


def test_a_run_that_left_nothing_behind_has_a_report_too() -> None:
    facts = nothing()
    assert facts.verdict.outcome is AuditOutcome.INCONCLUSIVE
    assert facts.window == ReportWindow(0, 60_000)
    assert (facts.phases, facts.owners, facts.lag, facts.stalls) == ((), (), (), ())


def test_a_report_is_json_that_a_sensor_can_read() -> None:
    document = json.loads(json.dumps(broken().as_dict(), allow_nan=False))
    assert outcome_of(document["verdict"]) is AuditOutcome.FAIL
    assert document["ledgers"][0]["level"] == "L3"
    assert document["owners"][0]["held"][0]["owners"] == ["billing-0"]
    assert document["window"]["from_ms"] == broken().window.from_ms


def test_a_journal_alone_is_enough() -> None:
    facts = collect_report_facts(SUBJECT, combine([], []), journal=journal_lines.parse_lines(journal_text()))
    assert facts.window == ReportWindow(START, START + 20_000)
