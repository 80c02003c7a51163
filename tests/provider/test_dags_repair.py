"""The repair of `__consumer_offsets` as Airflow sees it: one task, its form, and whole runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_kmigrate.core.cluster_state.model import FetchedOffset
from airflow_provider_kmigrate.core.migration.coordinator import hash_group
from airflow_provider_kmigrate.dag_builders import folder
from tests.provider.dag_tasks import tasks
from tests.provider.simulated import Rehearsal
from tests.steps.repair_runs import NEW, WHERE, broken, check_repaired, moving

DAG_ID = "kmigrate_offsets_repair__sim"
RunDag = Callable[..., Any]
Rehearse = Callable[..., Rehearsal]


def dag_of(sim: Rehearsal) -> DAG:
    return folder.dags_of(sim.path.parent)[DAG_ID]


def test_one_task_with_a_page_and_a_form(rehearse: Rehearse) -> None:
    cluster, _ = broken()
    dag = dag_of(rehearse(cluster))
    assert [task.task_id for task in dag.tasks] == ["repair"]
    assert "K90" in str(dag.tasks[0].doc_md)
    assert dag.params.get_param("decisions").value == {}


@pytest.mark.slow
def test_a_run_repairs_and_releases_the_cluster(rehearse: Rehearse, run_dag: RunDag) -> None:
    cluster, right = broken()
    sim = rehearse(cluster)
    run = run_dag(dag_of(sim))
    assert str(run.state) == "success", tasks(run)
    check_repaired(cluster, right)
    assert not any(path.endswith("/owner") for path in sim.ensemble.znodes)


@pytest.mark.slow
def test_a_doubt_fails_the_run_and_its_conf_decides(rehearse: Rehearse, run_dag: RunDag) -> None:
    cluster, right = broken()
    group = moving(right)[0]
    cluster.log.read()
    cluster.offsets[hash_group(group) % NEW][group] = {WHERE: FetchedOffset(0)}
    sim = rehearse(cluster)
    assert str(run_dag(dag_of(sim)).state) == "failed"
    right[group] = FetchedOffset(0)
    run = run_dag(dag_of(sim), run_conf={"decisions": {group: {WHERE.name: 0}}})
    assert str(run.state) == "success", tasks(run)
    check_repaired(cluster, right)
