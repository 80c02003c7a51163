"""The plan of an expansion of `__consumer_offsets`, in the one form of every plan."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from airflow_provider_kmigrate.core.cluster_state.model import Expansion, Partition
from airflow_provider_kmigrate.core.migration.plan import EXPANSION
from airflow_provider_kmigrate.core.migration.plan_document import describe_drift, render_request
from airflow_provider_kmigrate.core.offsets_topic.expansion_plan import plan_expansion
from airflow_provider_kmigrate.preflight.plan_page import render_plan_page
from tests.core.plan_facts import facts_of, tasks_of
from tests.core.preflight_views import healthy


def plan_of(new: int = 4, *, undo: bool = False) -> dict[str, Any]:
    view, facts = healthy()
    rows = tuple(Partition("__consumer_offsets", number, number, (number,), (number,)) for number in range(2))
    return plan_expansion(facts_of((replace(view, partitions=rows), facts)), Expansion((2,), new), undo=undo)


@pytest.mark.parametrize("undo", [False, True])
def test_it_has_the_form_of_every_plan(undo: bool) -> None:
    plan = plan_of(undo=undo)
    jsonschema.validate(
        json.loads(json.dumps(plan)), json.loads((files("airflow_provider_kmigrate") / "plan.schema.json").read_text())
    )
    assert all(f"<code>{task}</code>" in render_plan_page(plan) for task in tasks_of(plan))


def test_each_broker_restarts_once_with_the_new_count() -> None:
    plan = plan_of()
    restarted = {name: task["file"] for name, task in tasks_of(plan).items() if task["node"]}
    assert list(restarted) == [f"restart.broker_{broker}" for broker in range(3)]
    assert all(file == [{"key": "offsets.topic.num.partitions", "before": "50", "after": "4"}] for file in restarted.values())
    assert plan["point_of_no_return"] in restarted


def test_an_undo_restarts_nothing() -> None:
    plan = plan_of(undo=True)
    assert all(task["is_done"] for task in tasks_of(plan).values() if task["node"])
    assert {name for name, task in tasks_of(plan).items() if not task["is_done"]} == {
        row.full_id() for row in EXPANSION if row.skip_if != "undo"
    }
    assert "A rollback is possible until" not in render_request(plan)


def test_another_number_and_an_undo_are_other_plans() -> None:
    assert describe_drift(plan_of(), plan_of(6))[0] == "The number of partitions has changed."
    assert describe_drift(plan_of(), plan_of(undo=True))
