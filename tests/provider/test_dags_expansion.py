"""An expansion of `__consumer_offsets` as Airflow sees it: the graph, what an administrator is asked, and whole runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, TriggerRule, chain, task
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.plan import EXPAND, EXPANSION, LEAVE
from airflow_provider_kmigrate.dag_builders import folder, offsets_topic
from airflow_provider_kmigrate.operators.migration import ExpandOffsetsTopicOperator, MigrationStepOperator
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps import expansion
from airflow_provider_kmigrate.utils.step_context import read_only_context
from tests.provider.dag_tasks import names, planned, tasks
from tests.provider.person import Person
from tests.provider.simulated import Rehearsal, rehearsal
from tests.steps.expansion_runs import check_expanded, meanwhile, moving, stored
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import CLUSTER_ID

DAG_ID = "kmigrate_offsets_topic__sim"
CONF = {"partitions": 20, "approve_expansion": CLUSTER_ID}
RunDag = Callable[..., Any]
Rehearse = Callable[..., Rehearsal]


@pytest.fixture
def sim(rehearse: Rehearse) -> Rehearsal:
    return rehearse(SimCluster(offsets_partitions=10))


@pytest.fixture
def dag(sim: Rehearsal) -> DAG:
    return folder.dags_of(sim.path.parent)[DAG_ID]


def test_one_chain_with_a_task_for_each_broker(tmp_path: Path) -> None:
    made = offsets_topic.build(load(rehearsal(tmp_path, SimCluster()).path))
    made.check_cycle()
    assert names(made) == planned(EXPANSION, 3, 3)
    rules = {task.task_id for task in made.tasks if task.trigger_rule != TriggerRule.NONE_FAILED}
    assert rules == {"plan", "approve"}, "a run with `undo` skips the others up to the import"
    assert all(task.doc_md for task in made.tasks)
    read = DagSerialization.from_dict(DagSerialization.to_dict(made))
    assert read.params.get_param("partitions").value is None
    assert CLUSTER_ID in str(read.params.get_param("approve_expansion").description)


@pytest.mark.slow
def test_a_run_expands_the_topic_and_releases_the_cluster(sim: Rehearsal, dag: DAG, run_dag: RunDag) -> None:
    before = stored(sim.cluster)
    with read_only_context(str(sim.path)) as context:
        reviewed = expansion.plan_from_here(context, 20)["fingerprint"]
    run = run_dag(dag, run_conf={**CONF, "plan": reviewed})
    assert str(run.state) == "success", "bound to its plan, which no act of its own changes"
    check_expanded(sim.cluster, before, 20)
    assert not any(path.endswith("/owner") for path in sim.ensemble.znodes)


@pytest.mark.slow
def test_groups_that_must_stop_and_start_are_waited_for_in_the_triggerer(sim: Rehearsal, dag: DAG, run_dag: RunDag) -> None:
    cluster, before = sim.cluster, stored(sim.cluster)
    cluster.members = dict.fromkeys(moving(), 1)
    meanwhile(cluster, 120.0, cluster.members.clear)
    meanwhile(cluster, 600.0, lambda: cluster.members.update(dict.fromkeys(moving(), 1)))
    run = run_dag(dag, run_conf=CONF)
    assert str(run.state) == "success", tasks(run)
    check_expanded(cluster, before, 20)


@pytest.mark.slow
def test_the_triggerer_needs_no_backup_to_wait_for_groups(sim: Rehearsal, dag: DAG, run_dag: RunDag, tmp_path: Path) -> None:
    """The worker hands it the names, again after each time that it has only waited."""
    cluster = sim.cluster
    cluster.members = dict.fromkeys(moving(), 1)
    meanwhile(cluster, 120.0, cluster.members.clear)
    handed: list[dict[str, Any]] = []
    defer = MigrationStepOperator._defer

    def deferred(task: MigrationStepOperator, arguments: dict[str, Any]) -> None:
        if task.task_id == "progress":
            handed.append(arguments)
            if len(handed) == 3:
                cluster.members.update(dict.fromkeys(moving(), 1))
        defer(task, arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MigrationStepOperator, "_defer", deferred)
        assert str(run_dag(dag, run_conf=CONF).state) == "success"
    assert [each["groups"] for each in handed] == [sorted(moving())] * 3


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "state"), [(LEAVE, "failed"), (EXPAND, "success")])
def test_an_administrator_sees_which_groups_must_stop_and_decides(
    sim: Rehearsal, dag: DAG, run_dag: RunDag, answer: str, state: str
) -> None:
    before = stored(sim.cluster)
    with Person(dag.dag_id, answer).at_work() as person:
        run = run_dag(dag, run_conf={"partitions": 20})
    assert str(run.state) == state
    assert person.asked is not None
    assert f"**{len(moving())} groups move and must stop now**" in (person.asked.body or "")
    if answer == EXPAND:
        check_expanded(sim.cluster, before, 20)
    else:
        assert (stored(sim.cluster), sim.restarts(), sim.cluster.expansion) == (before, 0, None)


@pytest.mark.slow
@pytest.mark.parametrize("conf", [CONF | {"partitions": 15}, {"approve_expansion": CLUSTER_ID}])
def test_a_count_that_is_not_allowed_is_refused_before_an_administrator_is_asked(
    sim: Rehearsal, dag: DAG, run_dag: RunDag, conf: dict[str, object]
) -> None:
    before = stored(sim.cluster)
    states = tasks(run_dag(dag, run_conf=conf))
    assert states.pop("plan") == "failed"
    assert set(states.values()) == {"upstream_failed"}
    assert (stored(sim.cluster), sim.restarts()) == (before, 0)


@pytest.mark.slow
def test_a_run_that_failed_before_a_restart_is_undone_by_another_one(sim: Rehearsal, dag: DAG, run_dag: RunDag) -> None:
    cluster, before = sim.cluster, stored(sim.cluster)
    node = cluster.nodes[NodeRole.BROKER, 1]
    original = node.text
    edited = f"{original}num.io.threads=3\n"
    meanwhile(cluster, lambda: b"deleted" in (cluster.expansion or b""), lambda: setattr(node, "text", edited))
    states = tasks(run_dag(dag, run_conf=CONF))
    assert (states["moving_groups.delete"], states["restart.broker_0"], states["restart.broker_1"]) == (
        "success",
        "skipped",
        "failed",
    )
    assert stored(cluster) != before
    node.text = original
    states = tasks(run_dag(dag, run_conf={**CONF, "undo": True}))
    assert {task for task, state in states.items() if state == "success"} == {
        "plan",
        "approve",
        "import.offsets",
        "import.verify",
    }
    assert (stored(cluster), sim.restarts(), cluster.expansion) == (before, 0, None)


@pytest.mark.slow
def test_one_operator_does_it_all_in_a_dag_of_ones_own(sim: Rehearsal, run_dag: RunDag) -> None:
    before = stored(sim.cluster)
    with DAG(dag_id="own_expansion", schedule=None) as own:
        ExpandOffsetsTopicOperator(task_id="expand", cluster_file=str(sim.path), partitions="20")
    assert str(run_dag(own).state) == "success"
    check_expanded(sim.cluster, before, 20)


@pytest.mark.slow
def test_tasks_of_ones_own_stop_and_start_applications_between_the_steps(sim: Rehearsal, run_dag: RunDag) -> None:
    """As the operator's guide has it."""
    cluster, before = sim.cluster, stored(sim.cluster)
    cluster.members = dict.fromkeys(moving(), 1)

    def step(kind: str, **more: object) -> MigrationStepOperator:
        arguments = {"partitions": 20, **more}
        return MigrationStepOperator(task_id=kind.replace(" ", "_"), cluster_file=str(sim.path), step=kind, step_kwargs=arguments)

    with DAG(dag_id="own_steps", schedule=None) as own:

        @task
        def stop() -> None:
            cluster.members.clear()

        @task
        def start() -> None:
            cluster.members.update(dict.fromkeys(moving(), 1))

        steps = (step(each.kind) for each in EXPANSION[2:-1])
        chain(step("expansion plan"), stop(), *steps, start(), step("groups progress", groups=moving()))
    run = run_dag(own)
    assert str(run.state) == "success", tasks(run)
    check_expanded(cluster, before, 20)
