"""The plan of a migration against what the migration does, on the simulated cluster."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, PropertyChange
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.readiness import forecast_rollback
from airflow_provider_kmigrate.core.node_files.properties import diff_properties, parse_properties
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.preflight.plan_page import render_plan_page
from airflow_provider_kmigrate.steps import rollback
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.prepare import observe_preflight, plan_from_here
from tests.core.plan_facts import tasks_of
from tests.steps import phases
from tests.steps.sim import SimCluster


def plan_now(cluster: SimCluster, folder: Path) -> dict[str, Any]:
    context = cluster.context(folder)
    return plan_from_here(context, observe_preflight(context))


def texts_of(cluster: SimCluster) -> dict[str, str]:
    return {node.spec.name: node.text for node in cluster.nodes.values()}


def test_each_file_gets_the_lines_that_were_planned(tmp_path: Path) -> None:
    cluster = SimCluster()
    tasks = tasks_of(plan_now(cluster, tmp_path))
    context = cluster.context(tmp_path)

    def check_stage(group: str, before: dict[str, str]) -> dict[str, str]:
        planned = {task["node"]: task["file"] for name, task in tasks.items() if name.startswith(group) and task["node"]}
        after = texts_of(cluster)
        for node, changes in planned.items():
            assert diff_properties(before[node], after[node]) == tuple(PropertyChange(**change) for change in changes), node
        return after

    texts = texts_of(cluster)
    phases.controllers(cluster, context)
    texts = check_stage("controllers.", texts)
    phases.roll(cluster, context, BrokerMode.MIGRATION)
    texts = check_stage("first_roll.", texts)
    phases.roll(cluster, context, BrokerMode.KRAFT)
    texts = check_stage("second_roll.", texts)
    phases.finalize(cluster, context)
    check_stage("finalize.", texts)


@pytest.mark.parametrize(
    ("stage", "reach"),
    [("controllers", phases.controllers), ("copy", phases.all_in_migration), ("second_roll", phases.all_kraft)],
)
def test_the_rollback_takes_what_that_readiness_forecasts_there(tmp_path: Path, stage: str, reach: Any) -> None:
    cluster = SimCluster()
    planned = {row["stage"]: row["rollback_seconds"] for row in plan_now(cluster, tmp_path)["stages"]}
    reach(cluster, cluster.context(tmp_path))
    assert planned[stage] == forecast_rollback(cluster.observe(phases.EVERYTHING)).seconds


@pytest.mark.parametrize(
    "reach", [phases.untouched, phases.controllers, phases.some_in_migration, phases.all_in_migration, phases.some_kraft]
)
def test_the_fingerprint_is_the_same_in_every_phase(tmp_path: Path, reach: Any) -> None:
    cluster = SimCluster()
    before = plan_now(cluster, tmp_path)
    reach(cluster, cluster.context(tmp_path))
    assert plan_now(cluster, tmp_path)["fingerprint"] == before["fingerprint"]


def test_an_edited_original_is_another_plan(tmp_path: Path) -> None:
    cluster = SimCluster()
    before = plan_now(cluster, tmp_path)
    cluster.nodes[NodeRole.BROKER, 1].text += "num.io.threads=9\n"
    assert plan_now(cluster, tmp_path)["fingerprint"] != before["fingerprint"]


def test_without_the_backup_a_broker_that_moved_has_no_planned_file(tmp_path: Path) -> None:
    cluster = SimCluster()
    context = cluster.context(tmp_path / "here")
    phases.some_in_migration(cluster, context)
    elsewhere = cluster.context(tmp_path / "elsewhere")
    for path in elsewhere.backup.folder.iterdir():
        path.unlink()
    task = tasks_of(plan_from_here(elsewhere, observe_preflight(elsewhere)))["second_roll.broker_2"]
    assert task["refused"] == "the original of broker 2 is not known here"


class TestTheRollback:
    """Its plan against what it does, on the simulated cluster."""

    @pytest.mark.parametrize(
        "reach", [phases.controllers, phases.some_in_migration, phases.all_in_migration, phases.some_kraft, phases.all_kraft]
    )
    def test_it_takes_what_readiness_forecasts_there(self, tmp_path: Path, reach: Any) -> None:
        cluster = SimCluster()
        context = cluster.context(tmp_path)
        reach(cluster, context)
        plan = rollback.plan_from_here(context)
        restart = plan["restart_seconds"]["expected"]
        forecast = forecast_rollback(cluster.observe(phases.EVERYTHING), restart)
        restarted = [task for task in tasks_of(plan).values() if task["node"].startswith("broker") and not task["is_done"]]
        assert len(restarted) == forecast.restarts
        assert plan["seconds"]["expected"] == pytest.approx(forecast.seconds)

    @pytest.mark.parametrize("reach", [phases.some_in_migration, phases.all_in_migration, phases.some_kraft, phases.all_kraft])
    def test_each_file_gets_the_lines_that_were_planned_for_it(self, tmp_path: Path, reach: Any) -> None:
        cluster = SimCluster()
        reach(cluster, cluster.context(tmp_path))
        texts, plan = texts_of(cluster), rollback.plan_from_here(cluster.context(tmp_path))
        run_rollback(cluster.context(tmp_path))
        after, keys = texts_of(cluster), {node: parse_properties(text) for node, text in texts.items()}
        for task in tasks_of(plan).values():
            for change in (PropertyChange(**row) for row in task["file"]):
                assert keys[task["node"]].get(change.key) == change.before, task["id"]
                if change.after is None:
                    del keys[task["node"]][change.key]
                else:
                    keys[task["node"]][change.key] = change.after
        for node in cluster.spec.brokers:
            assert keys[node.name] == parse_properties(after[node.name])

    def test_its_fingerprint_is_the_same_in_every_phase(self, tmp_path: Path) -> None:
        prints = set()
        for number, reach in enumerate((phases.controllers, phases.all_in_migration, phases.some_kraft)):
            cluster = SimCluster()
            context = cluster.context(tmp_path / str(number))
            reach(cluster, context)
            prints.add(rollback.plan_from_here(context)["fingerprint"])
        assert len(prints) == 1

    def test_it_has_the_form_of_every_plan(self, tmp_path: Path) -> None:
        cluster = SimCluster()
        phases.some_kraft(cluster, cluster.context(tmp_path))
        plan = rollback.plan_from_here(cluster.context(tmp_path))
        schema = json.loads((files("airflow_provider_kmigrate") / "plan.schema.json").read_text())
        jsonschema.validate(json.loads(json.dumps(plan)), schema)
        page = render_plan_page(plan)
        assert all(f"<code>{task}</code>" in page for task in tasks_of(plan))
        assert "back to ZooKeeper" in page

    def test_without_a_trace_of_a_migration_there_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(Refused) as refused:
            rollback.plan_from_here(SimCluster().context(tmp_path))
        assert [reason.code for reason in refused.value.reasons] == ["P13"]
