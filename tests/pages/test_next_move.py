"""What an operator of twelve clusters sees first, and the next move for each: from stored statuses of every light."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_kmigrate.pages.next_move import NextMove, find_next_move, order_by_need
from airflow_provider_kmigrate.pages.stored import ApprovalRequest, ClusterStatus, Light, check_stored, combine
from airflow_provider_kmigrate.pages.text import render_cluster, render_table
from tests.pages.statuses import make_document, make_row

NOW = 1_800_000_000_000
OWNER = {"run": "kmigrate_zk_to_kraft__sim/manual", "is_alive": True}
SURE = {"code": "R01", "text": "Broker 1 does not answer.", "means": "m", "do": "Start broker 1.", "is_certain": True}
PASSING = {"code": "S02", "text": "2 partitions are out of sync.", "means": "m", "do": "Wait for them.", "is_certain": False}
FAILED = {
    "name": "broker 1 to kraft", "doing": "failed", "text": "", "reasons": [{"code": "", "text": "x", "do": ""}, {"code": "G05", "text": "y", "do": "Give it the flag."}],
    "since_ms": NOW, "usual_seconds": None, "alarm_seconds": None, "seconds_left": None,
}  # fmt: skip
LOST = {
    "level": "degraded",
    "text": "",
    "seconds": 60.0,
    "loses": [],
    "reasons": [{"code": "R05", "text": "Broker 2 lags.", "fixed_by": "waiting"}],
}
REQUEST = ApprovalRequest("kmigrate_zk_to_kraft__sim", "manual__1", "approve", "Finalize sim?", NOW - 120_000, ("ann", "bob"))


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_document(tmp_path_factory.mktemp("sim"), at_ms=NOW, owner=OWNER)


def status_of(
    document: dict[str, Any], *requests: ApprovalRequest, at_ms: int = NOW, state: str = "", **changed: Any
) -> ClusterStatus:
    row = replace(make_row({**document, "at_ms": at_ms, **changed}, at_ms), state=state)
    (status,) = combine([check_stored(row, NOW)], requests, NOW)
    return status


CASES: dict[str, tuple[dict[str, Any], tuple[ApprovalRequest, ...], Light, NextMove]] = {
    "an alarm": ({"alarms": [PASSING, SURE]}, (), Light.ACT, NextMove("Start broker 1.", "R01")),
    "one that may pass": (
        {"alarms": [PASSING]},
        (),
        Light.ACT,
        NextMove("If it is still so in two minutes: Wait for them.", "S02"),
    ),
    "a task that failed": (
        {"step": FAILED, "alarms": [SURE]},
        (REQUEST,),
        Light.ACT,
        NextMove("Give it the flag.", "G05", "/dags/kmigrate_watch__sim/runs/run/tasks/watch"),
    ),
    "a request": (
        {},
        (replace(REQUEST, subject="A later one?", asked_ms=NOW), REQUEST),
        Light.ASK,
        NextMove(
            "Answer the request: Finalize sim? It waits for ann, bob, for 2 min.",
            path="/dags/kmigrate_zk_to_kraft__sim/runs/manual__1/tasks/approve/required_actions",
        ),
    ),
    "a migration that no run continues": (
        {"owner": None},
        (),
        Light.LOOK,
        NextMove(
            "No run owns the cluster. Start a run of kmigrate_zk_to_kraft__sim to continue, or of kmigrate_rollback__sim to roll back.",
            path="/dags/kmigrate_zk_to_kraft__sim",
        ),
    ),
    "no migration and no run": ({"owner": None, "phase": "zookeeper"}, (), Light.WELL, NextMove("")),
    "what was not read": (
        {"unread": ["The partitions were not read."]},
        (),
        Light.LOOK,
        NextMove("Find out why this was not read: The partitions were not read."),
    ),
    "a rollback that is not assured": (
        {"rollback": LOST},
        (),
        Light.LOOK,
        NextMove("Make the rollback possible again: Broker 2 lags. Fixed by: waiting.", "R05"),
    ),
    "nothing judged": (
        {"rollback": None},
        (),
        Light.LOOK,
        NextMove(
            "Unpause kmigrate_watch__sim: it judges every ten minutes whether a rollback is possible.",
            path="/dags/kmigrate_watch__sim",
        ),
    ),
    "silence": (
        {"at_ms": NOW - 4_000_000},
        (),
        Light.OLD,
        NextMove(
            "Find out why kmigrate_watch__sim has reported nothing for an hour: it observes the cluster every ten minutes.",
            path="/dags/kmigrate_watch__sim",
        ),
    ),
    "all well": ({}, (), Light.WELL, NextMove("")),
}


@pytest.mark.parametrize("case", CASES)
def test_each_state_has_its_next_move(document: dict[str, Any], case: str) -> None:
    changed, requests, light, move = CASES[case]
    status = status_of(document, *requests, **{"at_ms": NOW, **changed})
    assert (status.light, find_next_move(status)) == (light, move)
    shown = render_table([status])
    assert (f"sim: next: {move.text}" in shown) is bool(move.text)
    assert not move.code or f"(kmigrate runbook {move.code})" in shown


@pytest.mark.parametrize("changed", [{}, {"step": FAILED}, {"alarms": [SURE]}], ids=lambda changed: next(iter(changed), "well"))
def test_a_request_waits_however_old_the_statuses_are(document: dict[str, Any], changed: dict[str, Any]) -> None:
    """Airflow has it now; over night, with a watch that is paused, no task reports."""
    asked = replace(REQUEST, asked_ms=NOW - 40_000_000)
    (unseen,) = combine([], [asked], NOW)
    for status in (status_of(document, asked, at_ms=NOW - 4_000_000, **changed), unseen):
        assert status.light is Light.ASK
        assert find_next_move(status).text.startswith("Answer the request: Finalize sim?")
        assert "older than an hour" in render_cluster(status) or status is unseen


WAITS = {**FAILED, "doing": "waits", "text": "Broker 1 starts.", "reasons": []}


@pytest.mark.parametrize("state", ["none", "scheduled", "queued", "up_for_retry", "running", "deferred"])
def test_a_task_that_airflow_runs_again_is_no_call_for_an_operator(document: dict[str, Any], state: str) -> None:
    """It failed and has tries left, or an operator has cleared it."""
    status = status_of(document, state=state, step=FAILED)
    assert (status.light, status.has_failed) == (Light.LOOK, False)
    assert find_next_move(status) == NextMove(
        "Nothing yet: broker 1 to kraft failed, and Airflow runs it again.", path="/dags/kmigrate_watch__sim/runs/run/tasks/watch"
    )
    shown = render_cluster(status)
    assert "It failed, and Airflow runs it again." in shown or "[G05] y" in shown
    assert "Give it the flag" not in shown


@pytest.mark.parametrize("step", [WAITS, {**WAITS, "doing": "acts"}, {**WAITS, "doing": "done"}], ids=lambda step: step["doing"])
def test_a_task_that_died_without_a_word_has_failed(document: dict[str, Any], step: dict[str, Any]) -> None:
    """Its process was killed, or its run was ended: what it wrote last says that all is well."""
    status = status_of(document, state="failed", step=step)
    assert (status.light, status.has_failed) == (Light.ACT, True)
    assert find_next_move(status) == NextMove(
        "Read the log of the task that failed.", path="/dags/kmigrate_watch__sim/runs/run/tasks/watch"
    )
    assert "Airflow ended it without a word of its own. The last one was: Broker 1 starts." in render_cluster(status)


@pytest.mark.parametrize("step", [WAITS, FAILED], ids=["waits", "failed"])
@pytest.mark.parametrize("state", ["skipped", "removed", "upstream_failed", "success"])
def test_a_task_that_is_over_waits_for_nothing_and_has_not_failed(
    document: dict[str, Any], state: str, step: dict[str, Any]
) -> None:
    """An operator may have marked it."""
    status = status_of(document, state=state, step=step)
    assert status.light is Light.WELL
    assert f"broker 1 to kraft done. Airflow has it as {state}." in render_cluster(status)


@pytest.mark.parametrize("state", ["", "running", "deferred"])
def test_a_task_that_runs_does_what_it_says(document: dict[str, Any], state: str) -> None:
    status = status_of(document, state=state, step=WAITS)
    assert status.light is Light.WELL
    assert "broker 1 to kraft waits. Broker 1 starts." in render_cluster(status)


def test_each_light_but_the_good_one_has_a_next_move() -> None:
    assert {light for _, _, light, move in CASES.values() if move.text} == {*Light} - {Light.WELL, Light.UNKNOWN}
    assert find_next_move(ClusterStatus("late", NOW)) == NextMove(
        "Unpause kmigrate_watch__late: it observes the cluster every ten minutes.", path="/dags/kmigrate_watch__late"
    )


def test_a_task_that_reported_after_it_was_judged_continues_the_migration(document: dict[str, Any]) -> None:
    step = {**FAILED, "doing": "acts", "reasons": []}
    of_task = {**document, "rollback": None, "alarms": None, "unread": None, "owner": None, "under_way": None, "step": step}
    judged = make_row({**document, "owner": None, "at_ms": NOW - 300_000}, NOW - 300_000)
    rows = [judged, make_row(of_task, NOW, "kmigrate_zk_to_kraft__sim", "second_roll.broker_1")]
    (status,) = combine([check_stored(row, NOW) for row in rows], (), NOW)
    assert (status.is_without_run, status.light) == (False, Light.WELL)
    (status,) = combine([check_stored(row, NOW) for row in rows[:1]], (), NOW)
    assert (status.is_without_run, status.light) == (True, Light.LOOK)
    assert "nothing continues it.\n  Next: Start a run of kmigrate_zk_to_kraft__sim to continue" in render_cluster(status)


def test_what_needs_an_operator_now_stands_first(document: dict[str, Any]) -> None:
    cases = {
        "a passes": status_of(document, alarms=[PASSING]),
        "b sure": status_of(document, alarms=[SURE, PASSING]),
        "c new": status_of(document, replace(REQUEST, asked_ms=NOW - 1)),
        "d asked long ago": status_of(document, REQUEST),
        "e well": status_of(document),
        "f look": status_of(document, owner=None),
        "g failed": status_of(document, step=FAILED),
    }
    named = [replace(status, cluster=name) for name, status in cases.items()]
    assert [status.cluster[0] for status in order_by_need(named)] == ["b", "g", "a", "d", "c", "f", "e"]
    assert [line[:8].split()[0] for line in render_table(named).splitlines()[1:8]] == ["ACT"] * 3 + ["ANSWER"] * 2 + [
        "look",
        "ok",
    ]
