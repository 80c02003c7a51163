"""Why a cluster stands where it stands: an imperative only if an operator must act, and the step that is judged."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Reason
from airflow_provider_kmigrate.core.monitoring.explanation import NextStep, explain_hold, list_steps_before, render_explanation
from tests.core.next_moves import status
from tests.core.preflight_views import healthy

WAIT = Wait((Reason("S02", "2 partitions are under-replicated."),))
REFUSE = Refuse((Reason("G02", "It must not."),))
ACT = Act(Verb.RESTART, "restart it")
ALARM = {"code": "R01", "text": "Broker 1 does not answer.", "means": "One replica fewer.", "do": "Start it.", "is_certain": True}
BUSY = [{"node": "broker 1", "text": "restart, step 'broker 1 to kraft': for 4.0 s. Usual: 6.0 s. An alarm after 2 min."}]


def next_step(decision: Decision, **changes: Any) -> NextStep:
    return NextStep("second_roll.broker_1", "Restarts it.", decision, 34.0, 600.0, **changes)


@pytest.mark.parametrize(
    ("changes", "decision", "has_begun", "state"),
    [
        ({}, WAIT, True, "waiting"),
        ({"under_way": BUSY}, WAIT, True, "working"),
        ({}, ACT, True, "ready"),
        ({"owner": None}, ACT, True, "stopped"),
        ({"owner": None}, WAIT, True, "stopped"),
        ({}, REFUSE, True, "refused"),
        ({"unread": ["The partitions were not read."]}, WAIT, True, "unknown"),
        ({"alarms": [ALARM]}, WAIT, True, "alarm"),
        ({"alarms": [ALARM], "under_way": BUSY, "unread": ["x"]}, REFUSE, True, "alarm"),
        ({"owner": None}, ACT, False, "nothing"),
        ({"owner": None, "unread": ["No controller answered."]}, None, False, "nothing"),
        ({"alarms": [ALARM]}, None, False, "alarm"),
        ({"phase": "unknown"}, WAIT, True, "unknown"),
        ({}, None, True, "nothing"),
    ],
)
def test_the_gravest_state_is_told(changes: dict[str, Any], decision: Decision | None, has_begun: bool, state: str) -> None:
    step = None if decision is None else next_step(decision)
    document = explain_hold(status(**changes), step, has_begun=has_begun)
    assert document["state"] == state
    shown = render_explanation(document)
    assert ("Next: " in shown) is (state in {"stopped", "refused", "unknown", "alarm"}), (
        "an imperative only if an operator must act"
    )


def test_a_usual_wait_has_its_condition_its_usual_time_and_its_alarm_time() -> None:
    shown = render_explanation(explain_hold(status(), next_step(WAIT), has_begun=True))
    assert "[S02] 2 partitions are under-replicated." in shown
    assert "Usually: 34.0 s." in shown
    assert "It becomes an alarm after 10 min" in shown


@pytest.mark.parametrize("is_certain", [False, True])
def test_an_operator_must_act_only_on_what_does_not_pass_by_itself(is_certain: bool) -> None:
    shown = render_explanation(explain_hold(status(alarms=[ALARM | {"is_certain": is_certain}]), next_step(WAIT), has_begun=True))
    assert ("An operator must act." in shown) is is_certain
    assert ("may pass by itself. Look again in two minutes" in shown) is not is_certain


def test_the_soak_waits_for_a_person_too() -> None:
    document = explain_hold(status(), next_step(WAIT, waits_for_person=True), has_begun=True)
    assert document["state"] == "person"


def test_the_seconds_of_a_soak_that_only_its_task_knows_are_not_told() -> None:
    soaking = Wait((Reason("T01", "Soaking: healthy for 0 of 86400 s."),), healthy=True)
    document = explain_hold(status(), next_step(soaking, waits_for_person=True), has_begun=True)
    assert (document["state"], document["conditions"]) == ("person", [])


def test_names_of_others_forge_no_line() -> None:
    hostile = Wait((Reason("S02", "x\n[R01] \x1b[31mrun"),))
    shown = render_explanation(explain_hold(status(owner={"run": "a\nb", "is_alive": True}), next_step(hostile), has_begun=True))
    assert "\x1b" not in shown
    assert not any(line.startswith(("[R01]", "b")) for line in shown.splitlines())


SPEC = healthy(3)[1].spec


@pytest.mark.parametrize(
    ("next_task", "first", "last"),
    [
        ("controllers.provision_3000", "controllers.provision_3000", "controllers.provision_3002"),
        ("first_roll.broker_0", "controllers.ready", "first_roll.broker_2"),
        ("second_roll.broker_0", "first_roll.leaders", "second_roll.broker_2"),
        ("second_roll.broker_2", "second_roll.broker_2", "second_roll.broker_2"),
        ("finalize.controller_3000", "second_roll.leaders", "soak"),
        ("", "finalize.finalized", "finalize.finalized"),
    ],
)
def test_the_waits_behind_the_last_node_and_the_nodes_of_the_next_pass_are_judged(next_task: str, first: str, last: str) -> None:
    places = [place.id for place in list_steps_before(SPEC, next_task)]
    assert places[0] == first
    assert last in places
    assert not any("approve" in place or place.startswith(("preflight", "backup")) for place in places)


def test_a_place_has_the_arguments_of_its_step() -> None:
    places = {place.id: place for place in list_steps_before(SPEC, "second_roll.broker_1")}
    assert places["second_roll.broker_1"].arguments == {"node": 1, "target": BrokerMode.KRAFT}
    assert places["second_roll.broker_1"].is_of_broker
    assert Done("x") != WAIT
