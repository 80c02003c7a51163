"""Airflow lets a user set any task to *skipped*, and counts that as no failure: nothing behind an approval may run for it."""

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.dag_builders import folder
from tests.provider.dag_tasks import DAG_ID, tasks
from tests.steps.phases import all_kraft
from tests.steps.sim_nodes import CLUSTER_ID


def skipped(dag, name):
    def skip(_context):
        raise AirflowSkipException("an operator set it to skipped")

    dag.get_task(name).pre_execute = skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["soak", "approve", "before_approval.rollback_plan", "second_roll.leaders"])
def test_nothing_is_finalized_without_an_approval(rehearse, run_dag, name):
    sim = rehearse()
    dag = folder.dags_of(sim.path.parent)[DAG_ID]
    skipped(dag, name)
    run = run_dag(dag)
    assert not sim.cluster.finalized
    assert tasks(run)["finalize.controller_3000"] == "failed"
    assert str(run.state) == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plan", "approve"])
def test_nothing_is_rolled_back_without_an_approval(begun, run_dag, name):
    sim, dag = begun(all_kraft)
    skipped(dag, name)
    run = run_dag(dag)
    assert tasks(run)["controller_failover.restore_flag_3000"] == "failed"
    assert sim.cluster.observe(Fields(0)).modes() == dict.fromkeys(range(3), BrokerMode.KRAFT)


@pytest.mark.slow
def test_a_flag_that_is_lost_in_the_soak_fails_it(rehearse, run_dag):
    """A standby that comes back without its flag: the next election finalizes, without a soak and an approval."""
    sim = rehearse(min_soak=86_400.0)
    dag = folder.dags_of(sim.path.parent)[DAG_ID]
    cluster, observe, since = sim.cluster, sim.cluster.observe, []

    def without_flag(*args, **kwargs):
        view = observe(*args, **kwargs)
        if position_of(view).phase is Phase.DUAL_WRITE:
            since.append(cluster.clock.time)
        if since and cluster.clock.time > since[0] + 100:
            standby = next(node for node in cluster.spec.controllers if node.id != cluster.leader)
            node = cluster.nodes[NodeRole.CONTROLLER, standby.id]
            if node.stage is not FileStage.CONTROLLER_FINAL:
                node.text = node.running = "process.roles=controller\nnode.id=1\n"
        return view

    cluster.observe = without_flag
    run = run_dag(dag, run_conf={"approve_finalization": CLUSTER_ID})
    assert tasks(run)["soak"] == "failed"
    assert not cluster.finalized
