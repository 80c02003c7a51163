"""How long tasks took, by journals: from the end of the task before to their own end, without what waited for a person or a window."""

from __future__ import annotations

import json

import pytest

from airflow_provider_kmigrate.core.migration.durations import Work
from airflow_provider_kmigrate.core.monitoring.journal_lines import parse_lines
from airflow_provider_kmigrate.core.monitoring.task_times import list_task_seconds

Line = tuple[float, str, str] | tuple[float, str, str, str]


def seconds_of(*rows: Line) -> dict[Work, list[float]]:
    """The seconds of rows of (at, kind, step, run if it is another)."""
    texts = [
        json.dumps(
            {
                "at": row[0],
                "kind": row[1],
                "step": row[2],
                "run": row[3] if len(row) > 3 else "r",
                "text": "restart: x",
                "seconds": 1.0,
            }
        )
        for row in rows
    ]
    return {work: seconds for work, seconds in list_task_seconds(parse_lines(texts).lines).items() if seconds}


def test_a_task_is_counted_from_the_end_of_the_one_before_with_airflows_start_and_the_waits_before_its_act() -> None:
    assert seconds_of(
        (10.0, "done", "backup"),
        (13.0, "act", "provision controller 3000"),
        (17.0, "done", "provision controller 3000"),
        (19.0, "done", "controllers ready"),
        (25.0, "act", "broker 0 to migration"),
        (40.0, "done", "broker 0 to migration"),
        (44.0, "done", "metadata copy"),
        (46.0, "act", "finalize controller 3000"),
        (56.0, "done", "finalize controller 3000"),
        (60.0, "act", "roll back broker 1 to zookeeper"),
        (70.0, "done", "roll back broker 1 to zookeeper"),
    ) == {
        Work.PROVISION: [7.0],
        Work.CHECK: [2.0],
        Work.RESTART: [21.0, 14.0],
        Work.COPY: [4.0],
        Work.FINALIZE: [12.0],
    }


def test_a_node_that_was_skipped_in_its_place_was_not_restarted() -> None:
    rows: list[Line] = [(10.0, "done", "backup"), (11.0, "done", "broker 0 to migration"), (12.0, "act", "broker 1 to migration")]
    assert seconds_of(*rows, (30.0, "done", "broker 1 to migration")) == {Work.RESTART: [19.0]}


def test_runs_are_counted_apart() -> None:
    rows: list[Line] = [(10.0, "done", "backup"), (12.0, "done", "backup", "other"), (15.0, "act", "broker 1 to kraft")]
    assert seconds_of(*rows, (16.0, "done", "controllers ready", "other"), (30.0, "done", "broker 1 to kraft")) == {
        Work.CHECK: [4.0],
        Work.RESTART: [20.0],
    }


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(
            [(10.0, "done", "backup"), (10_000.0, "act", "broker 1 to kraft")], id="a window, or the next day's attempt"
        ),
        pytest.param(
            [(9_000.0, "asked", "approve"), (10_000.0, "approval", "approve"), (10_000.0, "act", "broker 1 to kraft")],
            id="a person",
        ),
        pytest.param([(10_000.0, "act", "broker 1 to kraft")], id="nothing before it"),
        pytest.param([(10_000.0, "act", "broker 1 to kraft"), (10_005.0, "act", "broker 1 to kraft")], id="two acts"),
    ],
)
def test_what_waits_for_a_person_a_window_or_another_day_is_left_out(before: list[Line]) -> None:
    assert seconds_of(*before, (10_020.0, "done", "broker 1 to kraft")) == {Work.RESTART: [20.0]}


def test_steps_of_other_dags_and_the_soak_are_no_checks() -> None:
    rows: list[Line] = [
        (at, "done", step) for at, step in enumerate(("soak in dual-write", "cut over group a", "clean up", "backup"))
    ]
    assert seconds_of(*rows) == {}


def test_an_act_that_never_ended_counts_for_nothing() -> None:
    assert seconds_of((1.0, "act", "broker 1 to kraft")) == {}
