"""What tasks leave for operators, in real runs of DAGs on the simulated cluster: stored by Airflow, valid, and without any effect on a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonschema
from airflow.models.xcom import XComModel
from airflow.sdk import DAG
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.pages.stored import StoredStatus, status_schema
from airflow_provider_kmigrate.sensors.step import WaitAllBrokersRegisteredSensor
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
