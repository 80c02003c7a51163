"""How long tasks took, by journals: from the end of the task before to their own end, without what waited for a person or a window."""

from __future__ import annotations

import json

import pytest

from airflow_provider_kmigrate.core.migration.durations import Work
from airflow_provider_kmigrate.core.monitoring.journal_lines import parse_lines
from airflow_provider_kmigrate.core.monitoring.task_times import list_task_seconds

Line = tuple[float, str, str] | tuple[float, str, str, str]


def seconds_of(*rows: Line, bake: float = 0.0) -> dict[Work, list[float]]:
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
    return {work: seconds for work, seconds in list_task_seconds(parse_lines(texts).lines, bake).items() if seconds}


def test_a_task_is_counted_from_the_end_of_the_one_before_with_airflows_start_and_the_waits_before_its_act() -> None:
    assert seconds_of(
        (10.0, "done", "backup"),
        (13.0, "act", "provision controller 3000"),
        (17.0, "done", "provision controller 3000"),
        (19.0, "done", "controllers ready"),
        (20.5, "done", "preferred leaders"),
        (25.0, "act", "broker 0 to migration"),
        (40.0, "done", "broker 0 to migration"),
        (44.0, "done", "metadata copy"),
        (46.0, "act", "finalize controller 3000"),
        (56.0, "done", "finalize controller 3000"),
        (60.0, "act", "roll back broker 1 to zookeeper"),
        (70.0, "done", "roll back broker 1 to zookeeper"),
    ) == {
        Work.PROVISION: [7.0],
        Work.READY: [2.0],
        Work.CHECK: [1.5],
        Work.RESTART: [19.5, 14.0],
        Work.COPY: [4.0],
        Work.FINALIZE: [12.0],
    }


def test_a_node_that_was_skipped_in_its_place_was_not_restarted() -> None:
    rows: list[Line] = [(10.0, "done", "backup"), (11.0, "done", "broker 0 to migration"), (12.0, "act", "broker 1 to migration")]
    assert seconds_of(*rows, (30.0, "done", "broker 1 to migration")) == {Work.RESTART: [19.0]}


def test_runs_are_counted_apart() -> None:
    rows: list[Line] = [(10.0, "done", "backup"), (12.0, "done", "backup", "other"), (15.0, "act", "broker 1 to kraft")]
    assert seconds_of(*rows, (16.0, "done", "migration phase", "other"), (30.0, "done", "broker 1 to kraft")) == {
        Work.CHECK: [4.0],
        Work.RESTART: [20.0],
    }


def test_a_run_goes_by_its_own_restarts_as_soon_as_it_has_one() -> None:
    rows: list[Line] = []
    for place in range(6):  # on a busy night
        rows += [(100.0 * place, "act", f"broker {place} to kraft"), (100.0 * place + 90, "done", f"broker {place} to kraft")]
    rows += [(590.0, "done", "dual-write lag"), (590.5, "done", "migration phase")]
    now: list[Line] = [(9_000.0, "act", "broker 1 to migration", "now"), (9_010.0, "done", "broker 1 to migration", "now")]
    assert seconds_of(*rows, *now) == {Work.RESTART: [10.0], Work.CHECK: [1.0, 1.0]}, (
        "of what it has not done yet the earlier one's"
    )


def test_the_bake_of_a_passs_first_broker_is_no_part_of_a_restart() -> None:
    rows: list[Line] = [
        (0.0, "act", "broker 0 to migration"),
        (80.0, "done", "broker 0 to migration"),
        (81.0, "act", "broker 1 to migration"),
        (101.0, "done", "broker 1 to migration"),
        (102.0, "act", "broker 0 to kraft"),
        (191.0, "done", "broker 0 to kraft"),
    ]
    assert seconds_of(*rows, bake=60.0) == {Work.RESTART: [20.0, 21.0, 30.0]}
    back: list[Line] = [(0.0, "act", "roll back broker 0 to migration"), (80.0, "done", "roll back broker 0 to migration")]
    assert seconds_of(*back, bake=60.0) == {Work.RESTART: [80.0]}, "a rollback does not bake"
    continued: list[Line] = [(0.0, "act", "broker 2 to kraft"), (30.0, "done", "broker 2 to kraft")]
    assert seconds_of(*continued, bake=60.0) == {Work.RESTART: [30.0]}, "a pass that another run continues does not bake again"


def test_what_airflows_triggerer_observed_belongs_to_the_run_that_acted_before_it() -> None:
    rows: list[Line] = [
        (10.0, "act", "provision controller 3000"),
        (20.0, "done", "provision controller 3000"),
        (21.0, "readiness: ready", "watch", "watch"),
        (28.0, "done", "controllers ready", "observations"),
        (40.0, "act", "broker 0 to migration"),
        (70.0, "done", "broker 0 to migration"),
        (73.0, "done", "all brokers registered", "observations"),
    ]
    assert seconds_of(*rows) == {
        Work.PROVISION: [10.0],
        Work.READY: [8.0],
        Work.RESTART: [42.0],
        Work.CHECK: [3.0],
    }


def test_controllers_that_follow_a_leader_already_are_not_waited_for() -> None:
    rows: list[Line] = [(1.0, "done", "backup"), (2.0, "done", "provision controller 3000"), (2.5, "done", "controllers ready")]
    assert seconds_of(*rows) == {}


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


def test_an_audit_before_the_first_restart_of_a_pass_is_no_part_of_a_restart() -> None:
    rows: list[Line] = [
        (10.0, "done", "backup"),
        (190.0, "act", "broker 0 to migration"),  # the first fingerprint took three minutes
        (210.0, "done", "broker 0 to migration"),
        (250.0, "act", "broker 1 to migration"),  # a slow scheduler's start
        (270.0, "done", "broker 1 to migration"),
    ]
    assert seconds_of(*rows) == {Work.RESTART: [20.0, 60.0]}


def test_steps_of_other_dags_and_the_soak_are_no_checks() -> None:
    rows: list[Line] = [
        (at, "done", step) for at, step in enumerate(("soak in dual-write", "cut over group a", "clean up", "backup"))
    ]
    assert seconds_of(*rows) == {}


def test_an_act_that_never_ended_counts_for_nothing() -> None:
    assert seconds_of((1.0, "act", "broker 1 to kraft")) == {}
