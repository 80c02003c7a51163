"""What binds a run to the plan that it began with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Process
from airflow_provider_kmigrate.core.migration.plan_binding import BoundPlan, describe_drift_since, judge_drift, parse_bound_plan
from airflow_provider_kmigrate.core.migration.plan_document import NOT_READ, hash_values
from airflow_provider_kmigrate.core.migration.plan_facts import PlanFacts, hash_inputs
from tests.core.plan_facts import BEFORE, DRIFTS, facts_of
from tests.core.preflight_views import broker_1, healthy

REVIEWED = hash_inputs(BEFORE)
BOUND = BoundPlan(hash_values(REVIEWED), REVIEWED)
UNBOUND = BoundPlan("", REVIEWED)


def judge(facts: PlanFacts, bound: BoundPlan = BOUND, *, is_node_stopped: bool = False) -> Refuse | Wait | None:
    return judge_drift(bound, hash_inputs(facts), is_node_stopped=is_node_stopped)


@pytest.mark.parametrize("name", DRIFTS)
def test_each_kind_of_input_that_changes_stops_a_bound_run_and_is_named(name: str) -> None:
    facts, sentence = DRIFTS[name]
    decision = judge(facts)
    assert isinstance(decision, Wait if "is not read now" in sentence else Refuse)
    (reason,) = decision.reasons
    assert reason.code == "H16"
    subject = sentence.split(" was ")[0] if isinstance(decision, Wait) else sentence.removesuffix(".")
    assert subject.lower() in reason.text.lower()


@pytest.mark.parametrize("name", DRIFTS)
def test_a_run_that_is_bound_to_no_plan_shows_the_drift_and_continues(name: str) -> None:
    facts, sentence = DRIFTS[name]
    assert sentence in describe_drift_since(UNBOUND, hash_inputs(facts))
    assert judge(facts, UNBOUND) is None


@pytest.mark.parametrize("name", DRIFTS)
def test_a_node_that_an_earlier_try_has_stopped_is_started_again_whatever_has_changed(name: str) -> None:
    facts, _ = DRIFTS[name]
    assert judge(facts, is_node_stopped=True) is None


@pytest.mark.parametrize("name", DRIFTS)
def test_no_difference_holds_a_rollback_and_each_is_named(name: str) -> None:
    facts, sentence = DRIFTS[name]
    now = hash_inputs(facts)
    assert judge_drift(BOUND, now, is_node_stopped=False, is_rollback=True) is None
    assert sentence in describe_drift_since(BOUND, now)


def test_the_same_inputs_stop_nothing() -> None:
    assert judge(BEFORE) is judge(BEFORE, UNBOUND) is None
    assert describe_drift_since(BOUND, REVIEWED) == ()


def test_an_agent_that_does_not_respond_is_waited_for_and_a_change_beside_it_is_refused() -> None:
    view = broker_1(process=Process())(*healthy())[0]
    unread = replace(BEFORE, view=view)
    decision = judge(unread)
    assert isinstance(decision, Wait)
    assert "the unit of broker 1" in decision.reasons[0].text
    decision = judge(replace(unread, made_by="1.1"))
    assert isinstance(decision, Refuse)
    assert "Kmigrate has changed." in decision.reasons[0].text
    assert "unit" not in decision.reasons[0].text


def test_inputs_that_were_altered_explain_nothing_and_the_run_is_refused() -> None:
    forged = {**REVIEWED, "kmigrate": "1.1"}
    now = replace(BEFORE, made_by="1.1")
    decision = judge(now, BoundPlan(BOUND.reviewed, forged))
    assert isinstance(decision, Refuse)
    assert "is not known" in decision.reasons[0].text
    assert judge(BEFORE, BoundPlan(BOUND.reviewed, forged)) is None, "the fingerprint of the conf decides"


@pytest.mark.parametrize(
    ("reviewed", "stored", "bound"),
    [
        ("", None, None),
        (None, "text", None),
        ("abc", None, BoundPlan("abc", {})),
        ("", {"fingerprint": "abc", "inputs": {"kmigrate": "1"}}, BoundPlan("", {"kmigrate": "1"})),
        ("", {"fingerprint": "abc", "inputs": {"kmigrate": 1}}, None),
        ("", {"fingerprint": "abc", "inputs": [["kmigrate"]]}, None),
        ("abc", {"inputs": {"kmigrate": {"a": 1}}}, BoundPlan("abc", {})),
    ],
)
def test_what_a_preflight_stored_is_read_or_counts_as_nothing(reviewed: Any, stored: Any, bound: BoundPlan | None) -> None:
    assert parse_bound_plan(reviewed, stored) == bound


def test_what_has_changed_writes_nothing_to_the_terminal_but_text() -> None:
    bound = BoundPlan("", {**REVIEWED, "x\x1b[2J\ny": "1"})
    assert not any(sign in line for line in describe_drift_since(bound, REVIEWED) for sign in "\x1b\n")


def test_a_machine_without_a_service_manager_is_none_and_one_that_does_not_respond_is_not_read() -> None:
    silent = hash_inputs(facts_of(broker_1(process=Process())(*healthy())))
    assert silent["the unit of broker 1"] == NOT_READ
    assert hash_inputs(facts_of(healthy()))["the unit of broker 0"] == "none"
