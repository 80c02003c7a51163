"""What a report is made of, from everything that a run left behind."""

from __future__ import annotations

import json
from dataclasses import replace

from airflow_provider_kmigrate.core.audit.course import MOST_PARTS, build_course
from airflow_provider_kmigrate.core.audit.report_facts import ReportWindow, collect_report_facts, find_evidence_ends
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, combine, outcome_of
from airflow_provider_kmigrate.core.events.model import OwnershipChange
from airflow_provider_kmigrate.core.ledger.book import Book
from airflow_provider_kmigrate.core.ledger.partition import BATCH_MS
from airflow_provider_kmigrate.core.monitoring import journal_lines
from tests.audit.reports import START, SUBJECT, broken, journal_text, minute_row, nothing, restart_row
from tests.core.histories import History


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


class TestTheEndOfTheEvidence:
    """A producer's events may be read later than its consumers': what they received since then is not known, and no lag."""

    def history(self, end: bool = False) -> Book:
        history = History(now=START)
        history.consumer("c", "g")
        history.producer("p")
        history.own("g", "c", OwnershipChange.ACQUIRED)
        for first in range(0, 100, 10):
            history.ack("p", 0, first, first, 10)
            history.deliver("g", "c", 0, first, 10, first)
        self.read_until = history.now
        for first in range(100, 200, 10):
            history.ack("p", 0, first, first, 10)
        return Book.of(history.end() if end else history.events)

    def test_the_lag_ends_with_the_groups_own_events(self) -> None:
        facts = collect_report_facts(SUBJECT, combine([], []), book=self.history())
        (track,) = facts.lag
        assert track.ends_ms == self.read_until - BATCH_MS
        assert track.points[-1][0] <= track.ends_ms
        assert max(records for _, records in track.points) <= 10
        assert facts.window.to_ms > self.read_until + 9_000

    def test_the_lag_of_a_group_whose_members_stopped_is_known_to_the_end(self) -> None:
        (track,) = collect_report_facts(SUBJECT, combine([], []), book=self.history(end=True)).lag
        assert (track.ends_ms, track.points[-1][1]) == (None, 100)

    def test_a_member_that_died_long_ago_does_not_end_the_picture(self) -> None:
        book = self.history()
        book.writers["dead"] = replace(book.writers["c"], name="dead", last_ms=START - 100_000)
        assert find_evidence_ends(book) == {"g": self.read_until - BATCH_MS}
        book.writers["late"] = replace(book.writers["c"], name="late", last_ms=self.read_until - 7_000)
        assert find_evidence_ends(book) == {"g": self.read_until - 7_000 - BATCH_MS}

    def test_a_group_that_is_behind_within_its_events_is_drawn_behind(self) -> None:
        book = self.history()
        book.writers["c"] = replace(book.writers["c"], last_ms=self.read_until + 9_000)  # heartbeats, and no delivery
        (track,) = collect_report_facts(SUBJECT, combine([], []), book=book).lag
        assert track.points[-1][1] >= 60


class TestTheCourse:
    def test_topics_of_a_minute_are_added_and_minutes_after_the_evidence_left_out(self) -> None:
        rows = [minute_row(0, "g", behind=2), minute_row(0, "g", behind=3, longest_delivery_ms=5), minute_row(1, "g")]
        course = build_course(rows, [], {"g": 960_000 + 119_999})
        ((part,),) = (group.parts for group in course.groups)
        assert (part.acked, part.behind, part.longest_delivery_ms, part.to_ms - part.from_ms) == (20, 5, 1_200, 60_000)

    def test_a_week_is_drawn_in_as_many_parts_as_an_hour_at_most(self) -> None:
        rows = [minute_row(number, "g", behind=int(number == 7_777)) for number in range(7 * 24 * 60)]
        (group,) = build_course(rows, [], {}).groups
        assert len(group.parts) <= MOST_PARTS
        assert (group.most_behind, sum(part.acked for part in group.parts)) == (1, 10 * len(rows))

    def test_topics_that_no_group_reads_are_in_no_course(self) -> None:
        assert build_course([{**minute_row(0), "consumer_group": None, "behind": None}], [], {}).groups == ()

    def test_the_group_with_the_most_delay_comes_first(self) -> None:
        rows = [minute_row(0, "calm"), minute_row(0, "late", longest_delivery_ms=9_000), minute_row(0, "behind", behind=1)]
        assert [course.group for course in build_course(rows, [], {}).groups] == ["behind", "late", "calm"]

    def test_a_restart_that_has_not_settled(self) -> None:
        settled, waiting = build_course([], [restart_row(5, 9), restart_row(7, None)], {}).restarts
        assert [(restart.until_ms, restart.is_settled) for restart in (settled, waiting)] == [(9, True), (7, False)]
