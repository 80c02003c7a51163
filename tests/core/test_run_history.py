"""What the journals say that runs have done."""

from __future__ import annotations

import json

from airflow_provider_kmigrate.core.monitoring.journal_lines import parse_lines
from airflow_provider_kmigrate.core.monitoring.run_history import describe_history, render_history


def line(at: float, kind: str, step: str, text: str = "x", run: str = "dag/one", **facts: object) -> str:
    return json.dumps({"at": at, "run": run, "kind": kind, "step": step, "text": text, **facts})


LINES = [
    line(100.0, "began", "run"),
    line(100.0, "act", "broker 1 to kraft", "restart: it"),
    line(104.0, "acted", "broker 1 to kraft"),
    line(110.0, "done", "broker 1 to kraft"),
    line(120.0, "act", "broker 2 to kraft", "restart: it"),
    line(150.0, "alarm", "broker 2 to kraft", "[G45] no controller"),
    line(200.0, "act", "handover", "hand over: it", run="dag/two"),
    "{torn",
]


def test_each_run_has_its_acts_its_restarts_and_its_alarms() -> None:
    document = describe_history("prod", "id", parse_lines(LINES))
    one, two = document["runs"]
    assert (one["run"], two["run"], document["unreadable"]) == ("dag/one", "dag/two", 1)
    assert one["restarts"] == {"count": 1, "median_seconds": 10.0, "longest_seconds": 10.0}
    assert [act["settled_ms"] for act in one["acts"]] == [110_000, None]
    assert [event["text"] for event in one["events"]] == ["[G45] no controller"]
    assert two["restarts"]["median_seconds"] is None


def test_a_restart_without_an_end_is_not_told_as_healthy() -> None:
    shown = render_history(describe_history("prod", "id", parse_lines(LINES)))
    assert "broker 1 to kraft: restart, all healthy after 10.0 s" in shown
    assert "broker 2 to kraft: restart, its end was not recorded" in shown
    assert "Lines that could not be read, and are left out: 1." in shown


def test_hostile_lines_are_one_line_each() -> None:
    hostile = line(1.0, "alarm", "s\x1b", "a\nforged", run="r\nforged")
    shown = render_history(describe_history("prod", "id", parse_lines([hostile])))
    assert "\x1b" not in shown
    assert "\nforged" not in shown


def test_no_journal_is_no_run() -> None:
    assert describe_history("prod", "id", parse_lines([]))["runs"] == []
