"""The plan of consumer groups, in the one form of every plan."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, GroupWay, InstanceSpec
from airflow_provider_kmigrate.core.groups.group_plan import plan_groups
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.migration.plan_document import describe_drift, render_request
from airflow_provider_kmigrate.preflight.plan_page import render_plan_page
from tests.core.plan_facts import facts_of
from tests.core.preflight_views import healthy

INSTANCES = (InstanceSpec("a"), InstanceSpec("b"))
BILLING = GroupSpec("billing.eu", INSTANCES, bake=60.0, switch_timeout=100.0, window="01:00-05:00")
SEARCH = GroupSpec("search", INSTANCES, way=GroupWay.CUTOVER, by_hand=True)


def plan_of(*groups: GroupSpec, goal: Goal | None = None, chosen: tuple[str, ...] = ()) -> dict[str, Any]:
    facts = facts_of(healthy())
    facts = replace(facts, spec=replace(facts.spec, groups=groups))
    return plan_groups(facts, {group.name: "Then all move." for group in groups if group.name in chosen or not chosen}, goal)


@pytest.mark.parametrize("goal", [None, *Goal])
def test_it_has_the_form_of_every_plan(goal: Goal | None) -> None:
    plan = plan_of(BILLING, SEARCH, goal=goal)
    schema = json.loads((files("airflow_provider_kmigrate") / "plan.schema.json").read_text())
    jsonschema.validate(json.loads(json.dumps(plan)), schema)
    for shown in (render_request(plan), render_plan_page(plan)):
        assert "billing.eu: Then all move." in shown


def test_each_group_bakes_and_its_steps_give_up() -> None:
    stage = plan_of(BILLING)["stages"][0]
    assert stage["seconds"] == {"low": 120.0, "expected": 120.0, "high": 520.0}


def test_what_is_waited_for_left_out_and_noticed_is_named() -> None:
    plan = plan_of(BILLING, SEARCH, chosen=("search",))
    assert any("billing.eu" in line for line in plan["not_compared"])
    assert any("by hand" in line for line in plan["uncounted"])
    assert any("no instance runs" in line for line in plan["stalls"])
    assert any("01:00-05:00" in line for line in plan_of(BILLING)["uncounted"])


def test_a_canary_beside_the_old_version_bakes_and_processes_twice_in_the_cutover_alone() -> None:
    beside = replace(SEARCH, side_by_side=True, bake=60.0)
    there, back, without = plan_of(beside), plan_of(beside, goal=Goal.ZOOKEEPER_CONSUMERS), plan_of(SEARCH)
    seconds = [plan["stages"][0]["seconds"]["expected"] for plan in (there, back, without)]
    assert seconds == [seconds[2] + 60.0, seconds[2], seconds[2]]
    assert [any("twice while the canary" in line for line in plan["stalls"]) for plan in (there, back, without)] == [
        True,
        False,
        False,
    ]


def test_only_a_request_that_is_made_has_approvers() -> None:
    assert plan_of(BILLING)["approval"]["required"] == 0
    assert "No approval is asked for." in render_request(plan_of(BILLING))
    assert plan_of(SEARCH)["approval"]["required"] == 1
    assert plan_of(BILLING, goal=Goal.KAFKA_MODE)["approval"]["required"] == 1


def test_another_goal_other_groups_and_another_file_are_other_plans() -> None:
    before = plan_of(BILLING, SEARCH)
    others = (
        plan_of(BILLING, SEARCH, goal=Goal.KAFKA_MODE),
        plan_of(BILLING, SEARCH, chosen=("search",)),
        plan_of(replace(BILLING, bake=1.0), SEARCH),
    )
    assert all(describe_drift(before, other) for other in others)
    assert len({plan["fingerprint"] for plan in (before, *others)}) == 4
