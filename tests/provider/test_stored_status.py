"""What tasks leave for operators, in real runs of DAGs on the simulated cluster: stored by Airflow, valid, and without any effect on a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from airflow.models.xcom import XComModel
from airflow.sdk import DAG
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_kmigrate.airflow_releases import AirflowSkipException
from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.operators.step import ClusterOperator
from airflow_provider_kmigrate.pages.stored import StoredStatus, status_schema
from airflow_provider_kmigrate.sensors.step import WaitAllBrokersRegisteredSensor
from airflow_provider_kmigrate.steps.run import StepContext
from airflow_provider_kmigrate.utils.status_xcom import STATUS
from tests.provider.simulated import Rehearsal
from tests.steps.phases import some_kraft


def stored_by(run: Any) -> dict[str, StoredStatus]:
    """Task -> its status, as Airflow's database has it."""
    with create_session() as session:
        rows = session.scalars(select(XComModel).where(XComModel.key == STATUS, XComModel.run_id == run.run_id)).all()
        return {
            row.task_id: StoredStatus(
                row.dag_id, row.run_id, row.task_id, round(1000 * row.timestamp.timestamp()), XComModel.deserialize_value(row)
            )
            for row in rows
            if row.dag_id == run.dag_id
        }


def test_the_watch_leaves_a_whole_judgement(begun: Callable[..., Any], run_dag: Callable[..., Any]) -> None:
    sim: Rehearsal = begun(some_kraft)[0]
    watch = folder.dags_of(sim.path.parent)["kmigrate_watch__sim"]
    stored = stored_by(run_dag(watch))["watch"]
    jsonschema.validate(stored.value, status_schema())
    assert (stored.value["rollback"]["level"], stored.value["alarms"], stored.value["step"]) == ("ready", [], None)
    assert {node["mode"] for node in stored.value["nodes"]} == {"kraft mode", "migration mode", "controller"}


def test_a_step_that_the_triggerer_watched_hands_its_status_to_the_task(
    begun: Callable[..., Any], run_dag: Callable[..., Any]
) -> None:
    sim: Rehearsal = begun(some_kraft)[0]
    with DAG("kmigrate_trial__sim", schedule=None) as dag:
        WaitAllBrokersRegisteredSensor(task_id="registered", cluster_file=str(sim.path), deferrable=True, sync_for=0.0)
    row = stored_by(run_dag(dag))["registered"]
    jsonschema.validate(row.value, status_schema())
    assert (row.value["step"]["name"], row.value["step"]["doing"]) == ("registered", "done")
    assert (row.value["phase"], row.value["rollback"]) == ("hybrid", None), "a step judges no rollback"


class Broken(ClusterOperator):
    """`where`: at which point something is raised that kmigrate does not know."""

    where = ""

    def build_arguments(self, context: Any) -> dict[str, Any]:
        if self.where == "before the cluster is opened":
            raise KeyError("canary-secret")
        return super().build_arguments(context)

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        raise AirflowSkipException("nothing to do") if self.where == "skipped" else RuntimeError("canary-secret")


@pytest.mark.parametrize("where", ["before the cluster is opened", "in the act", "skipped"])
def test_an_error_that_kmigrate_does_not_know_is_a_failed_task_too(
    begun: Callable[..., Any], run_dag: Callable[..., Any], where: str
) -> None:
    sim: Rehearsal = begun(some_kraft)[0]
    with DAG("kmigrate_trial__sim", schedule=None) as dag:
        Broken(task_id="broken", cluster_file=str(sim.path)).where = where
    stored = stored_by(run_dag(dag))
    if where == "skipped":
        assert stored == {}
        return
    step = stored["broken"].value["step"]
    name = "KeyError" if where.startswith("before") else "RuntimeError"
    assert (step["doing"], step["text"]) == ("failed", f"It ended with a {name}: its log says more.")
    assert "canary" not in str(stored["broken"].value), "its text may hold anything"


def test_an_act_without_its_approval_is_a_failed_task_with_its_code(
    begun: Callable[..., Any], run_dag: Callable[..., Any]
) -> None:
    sim: Rehearsal = begun(some_kraft)[0]
    with DAG("kmigrate_trial__sim", schedule=None) as dag:
        operator = Broken(task_id="broken", cluster_file=str(sim.path))
        operator.approved_by, operator.answer = "approve", "Finalize"
    step = stored_by(run_dag(dag))["broken"].value["step"]
    assert (step["doing"], [reason["code"] for reason in step["reasons"]]) == ("failed", ["H06"])
