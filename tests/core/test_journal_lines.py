"""Journals read again: phases, acts, alarms. The lines are those of tests.audit.reports, and of real journals' steps."""

from __future__ import annotations

import json

import pytest

from airflow_provider_kmigrate.core.monitoring import journal_lines
from airflow_provider_kmigrate.core.monitoring.journal_lines import (
    JournalLine,
    PhaseSpan,
    list_acts,
    list_alarms,
    list_phases,
    parse_lines,
    phase_of,
    unsettled_acts,
)


def line(at: float, kind: str, step: str, text: str = "", *, seconds: float | None = None, run: str = "r") -> str:
    more = {} if seconds is None else {"seconds": seconds}
    return json.dumps({"at": at, "run": run, "kind": kind, "step": step, "text": text, **more})


def spans(*texts: str) -> list[tuple[str, int, int, int]]:
    return [(span.name, span.from_ms, span.to_ms, span.done) for span in list_phases(parse_lines(texts).lines)]


def test_a_line_is_what_the_journal_wrote() -> None:
    found = parse_lines([line(1795298448.978, "done", "backup", "saved", seconds=0.5)])
    assert found.lines[0].began_ms == 1795298448478
    assert found == ((JournalLine(1795298448978, "r", "done", "backup", "saved", seconds=0.5),), 0)


@pytest.mark.parametrize(
    "times", [{"seconds": 1e308}, {"seconds": -1.0}, {"seconds": 1e12}, {"at": 1e15}, {"at": -1}, {"at": 9e18}], ids=str
)
def test_a_time_that_cannot_be_is_no_line_and_ends_no_reader(times: dict[str, float]) -> None:
    """One altered line would have ended the plan, the watch and the history of its cluster."""
    fields = {"at": 1.0, "run": "r", "kind": "act", "step": "broker 1 to kraft", "text": "restart: broker 1", **times}
    found = parse_lines([line(1, "done", "backup"), json.dumps(fields)])
    assert (len(found.lines), found.unreadable) == (1, 1)


@pytest.mark.parametrize(
    "text", ['{"at": 12', "[]", "null", "7", '{"at": "x", "run": 1, "kind": 2, "step": 3, "text": 4}', '{"at": 1e999}', '"at"']
)
def test_what_is_no_line_is_counted_and_left_out(text: str) -> None:
    found = parse_lines([line(1, "done", "backup"), text, "", "\n"])
    assert (len(found.lines), found.unreadable) == (1, 1)


def test_journals_of_several_processes_are_one_story() -> None:
    found = parse_lines([line(3, "done", "b"), line(1, "done", "a"), line(2, "done", "c")])
    assert [each.step for each in found.lines] == ["a", "c", "b"]


@pytest.mark.parametrize(
    ("step", "phase"),
    [
        ("preflight", "preflight and backup"),
        ("backup", "preflight and backup"),
        ("provision controller 3000", "controllers"),
        ("controllers ready", "controllers"),
        ("broker 1 to migration", "first roll"),
        ("metadata copy", "copy"),
        ("broker 0 to kraft", "second roll"),
        ("soak in dual-write", "soak"),
        ("finalize controller 3001", "finalize"),
        ("finalized", "finalize"),
        ("roll back broker 0 to migration", "rollback"),
        ("restore flag of controller 3000", "rollback"),
        ("handover to ZooKeeper", "rollback"),
        ("rolled back", "rollback"),
        ("preferred leaders", None),
        ("all brokers registered", None),
        ("migration phase", None),
        ("something new", "something new"),
    ],
)
def test_every_step_has_its_phase(step: str, phase: str | None) -> None:
    assert phase_of(step) == phase


def test_phases_follow_each_other_and_begin_with_their_first_step() -> None:
    found = spans(
        line(10, "done", "backup", seconds=2),
        line(12, "act", "broker 1 to migration", "restart: x"),
        line(12.5, "file", "broker 1", "written"),
        line(20, "done", "broker 1 to migration", seconds=30),
        line(21, "done", "preferred leaders", seconds=0.5),
        line(30, "done", "metadata copy", seconds=4),
    )
    assert found == [
        ("preflight and backup", 8000, 10000, 1),
        ("first roll", 12000, 21000, 2),
        ("copy", 26000, 30000, 1),
    ], "a step that took 30 s by its own account does not reach into the phase before"


def test_a_phase_that_comes_again_is_another_span() -> None:
    names = [name for name, *_ in spans(line(1, "done", "backup"), line(2, "done", "metadata copy"), line(3, "done", "backup"))]
    assert names == ["preflight and backup", "copy", "preflight and backup"]


def test_a_journal_that_begins_anywhere() -> None:
    assert list_phases(parse_lines([line(1, "done", "preferred leaders")]).lines) == (
        PhaseSpan("preferred leaders", 1000, 1000, 1),
    )
    assert list_phases(()) == ()


class TestActs:
    def test_an_act_ends_and_settles(self) -> None:
        text = [line(1, "act", "s", "restart: why"), line(2, "acted", "s", "restart"), line(5, "done", "s"), line(6, "done", "s")]
        [act] = list_acts(parse_lines(text).lines)
        assert (act.verb, act.from_ms, act.to_ms, act.settled_ms) == ("restart", 1000, 2000, 5000)
        assert list(unsettled_acts([act])) == []

    def test_one_that_was_killed_stays_open_and_the_next_try_has_its_own_end(self) -> None:
        text = [line(1, "act", "s", "restart: x"), line(9, "act", "s", "start: y"), line(10, "acted", "s"), line(12, "done", "s")]
        killed, again = list_acts(parse_lines(text).lines)
        assert (killed.to_ms, killed.settled_ms) == (None, None)
        assert (again.verb, again.to_ms, again.settled_ms) == ("start", 10000, 12000)
        assert list(unsettled_acts([killed, again])) == []

    def test_an_act_of_which_nothing_more_was_written_is_unsettled(self) -> None:
        text = [line(1, "act", "a", "restart: x"), line(2, "acted", "a"), line(3, "act", "b", "stop: y")]
        assert [act.step for act in unsettled_acts(list_acts(parse_lines(text).lines))] == ["a", "b"]

    def test_runs_do_not_answer_for_each_other(self) -> None:
        text = [line(1, "act", "s", "x: y", run="one"), line(2, "done", "s", run="two")]
        assert [act.run for act in unsettled_acts(list_acts(parse_lines(text).lines))] == ["one"]


def test_alarms() -> None:
    [alarm] = list_alarms(parse_lines([line(1, "alarm", "s", "[G05] x"), line(2, "done", "s")]).lines)
    assert (alarm.at_ms, alarm.step, alarm.text) == (1000, "s", "[G05] x")


class TestNodes:
    def test_the_newest_act_on_each_node_whatever_its_step(self) -> None:
        text = [
            line(1, "act", "broker 1 to migration", "restart: x"),
            line(2, "act", "provision controller 3000", "provision: x"),
            line(3, "act", "controller failover", "fail over the controller: x"),
            line(5, "act", "roll back broker 1 to zookeeper", "restart: y", run="back"),
            line(4, "act", "broker 11 to migration", "restart: x"),
        ]
        found = journal_lines.last_act_by_node(list_acts(parse_lines(text).lines))
        assert {node: (act.run, act.from_ms) for node, act in found.items()} == {
            "broker 1": ("back", 5000),
            "broker 11": ("r", 4000),
            "controller 3000": ("r", 2000),
        }

    def test_when_kmigrate_acted(self) -> None:
        """M13: preflight took what a rollback's own failover had written for another tool's changes."""
        text = [line(10, "act", "a", "stop: x"), line(12, "acted", "a"), line(20, "done", "a"), line(30, "act", "b", "start: y")]
        assert journal_lines.act_times(list_acts(parse_lines(text).lines)) == ((10.0, 80.0), (30.0, 90.0))

    def test_how_long_a_restart_took_is_the_median_of_brokers_that_came_back(self) -> None:
        text = []
        for broker, took in enumerate((645, 30, 40, 50)):  # the first one baked
            step = f"broker {broker} to kraft"
            text += [line(1000 * broker, "act", step, "restart: x"), line(1000 * broker + took, "done", step)]
        text += [line(9000, "act", "broker 9 to kraft", "restart: x")]  # killed
        text += [line(9100, "act", "finalize controller 3000", "restart: x"), line(9101, "done", "finalize controller 3000")]
        text += [line(9200, "act", "broker 8 to kraft", "rewrite: x"), line(9201, "done", "broker 8 to kraft")]
        assert journal_lines.median_restart_seconds(list_acts(parse_lines(text).lines), 600.0) == 42.5
        assert journal_lines.median_restart_seconds(list_acts(parse_lines(text[:2]).lines), 600.0) == 45.0, "one that baked"
        assert journal_lines.median_restart_seconds((), 600.0) is None

    def test_the_newest_runs_restarts_say_how_long_the_next_one_takes(self) -> None:
        text = [line(1, "act", "broker 0 to kraft", "restart: x"), line(301, "done", "broker 0 to kraft")]
        step = "roll back broker 0 to migration"
        text += [line(400, "act", step, "restart: x", run="back"), line(420, "done", step, run="back")]
        assert journal_lines.median_restart_seconds(list_acts(parse_lines(text).lines), 0.0) == 20.0


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], None),
        (["ready"], ("ready", 0.0)),
        (["ready", "degraded", "lost", "degraded"], ("degraded", 1.0)),
        (["degraded", "ready", "degraded"], ("degraded", 2.0)),
        (["degraded", "ready", "ready"], ("ready", 1.0)),
    ],
)
def test_since_when_a_rollback_is_not_assured(verdicts: list[str], expected: tuple[str, float] | None) -> None:
    text = [line(at, journal_lines.readiness_kind(verdict), "watch") for at, verdict in enumerate(verdicts)]
    assert journal_lines.last_readiness(parse_lines([*text, line(99, "done", "soak")]).lines) == expected
