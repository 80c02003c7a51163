"""The DAG that only observes, as Airflow sees it, and the report that it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.operators.migration import BackupOperator
from tests.provider.dag_tasks import tasks
from tests.provider.lone_tasks import alone, context
from tests.provider.simulated import Rehearsal
from tests.steps.sim import SimCluster

DAG_ID = "kmigrate_preflight__sim"
RunDag = Callable[..., Any]
Rehearse = Callable[..., Rehearsal]


def dag_of(sim: Rehearsal) -> DAG:
    return folder.dags_of(sim.path.parent)[DAG_ID]


def left(tmp_path: Path) -> dict[str, Any]:
    found = tmp_path / "kmigrate" / "preflight" / "sim"
    assert "<h1>Preflight of sim" in (found / "preflight.html").read_text()
    return json.loads((found / "preflight.json").read_text())  # type: ignore[no-any-return]


def test_one_task_by_hand_that_is_never_retried_and_survives_serialization(rehearse: Rehearse) -> None:
    dag = dag_of(rehearse())
    (task,) = dag.tasks
    assert (dag.schedule, task.task_id, task.retries) == (None, "preflight", 0)
    assert task.doc_md
    assert set(DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_dict) == {"preflight"}


def test_a_good_cluster_succeeds_and_nothing_was_changed(rehearse: Rehearse, run_dag: RunDag, tmp_path: Path) -> None:
    sim = rehearse()
    before = dict(sim.ensemble.znodes)
    assert tasks(run_dag(dag_of(sim))) == {"preflight": "success"}
    assert sim.ensemble.znodes == before, "no lock, no token"
    assert sim.restarts() == 0
    assert left(tmp_path)["outcome"] == "READY"


def test_what_blocks_fails_it_and_is_on_the_page(rehearse: Rehearse, run_dag: RunDag, tmp_path: Path) -> None:
    sim = rehearse(SimCluster(live_groups=("legacy",), state_epoch=9))
    before = dict(sim.ensemble.znodes)
    assert tasks(run_dag(dag_of(sim))) == {"preflight": "failed"}
    assert sim.ensemble.znodes == before
    document = left(tmp_path)
    assert (document["outcome"], document["counts"]["block"]) == ("BLOCKED", 2)
    assert [finding["code"] for finding in document["findings"]] == ["G02", "G21"]
    assert "(the DAG kmigrate_consumers__sim moves them): legacy" in document["findings"][1]["seen"]


def test_the_preflight_dag_may_observe_while_another_run_owns_the_cluster(
    rehearse: Rehearse, run_dag: RunDag, tmp_path: Path
) -> None:
    sim = rehearse()
    holding = alone(BackupOperator, sim.path)
    holding.get_task("task").execute(context(holding))
    assert any(path.endswith("/owner") for path in sim.ensemble.znodes)
    assert tasks(run_dag(dag_of(sim))) == {"preflight": "success"}
    assert left(tmp_path)["counts"]["block"] == 0
