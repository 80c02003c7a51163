"""A new run on a cluster that is finalized already has nothing to do, and says so; another cluster stays a refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_on_disk
from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.exceptions import WrongCluster
from airflow_provider_kmigrate.steps.nodes import install_file
from airflow_provider_kmigrate.steps.run import StepContext
from tests.provider.dag_tasks import APPROVED, DAG_ID, tasks
from tests.provider.simulated import Rehearsal
from tests.steps.phases import all_kraft, some_kraft
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import original_of

pytestmark = pytest.mark.slow
RunDag = Callable[..., Any]
Change = Callable[[ClusterView], ClusterView]


@pytest.fixture
def finalized(rehearse: Callable[..., Rehearsal], run_dag: RunDag) -> tuple[Rehearsal, Any]:
    sim = rehearse()
    dag = folder.dags_of(sim.path.parent)[DAG_ID]
    assert str(run_dag(dag, run_conf=APPROVED).state) == "success"
    return sim, dag


def changed(sim: Rehearsal, change: Change) -> None:
    observe = sim.cluster.observe
    sim.cluster.observe = lambda *given: change(observe(*given))  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "change",
    [lambda view: view, lambda view: replace(view, zk=None, topics=None, stored=None, state_epoch=None)],
    ids=["zookeeper is there", "zookeeper is switched off"],
)
def test_a_new_run_succeeds_and_does_nothing(finalized: tuple[Rehearsal, Any], run_dag: RunDag, change: Change) -> None:
    sim, dag = finalized
    changed(sim, change)
    before = sim.restarts()
    run = run_dag(dag)
    states = tasks(run)
    assert str(run.state) == "success"
    assert states.pop("preflight") == "success"
    assert set(states.values()) == {"skipped"}, "no request is made, nothing is soaked"
    assert sim.restarts() == before


def test_the_preflight_of_its_own_says_it_too(finalized: tuple[Rehearsal, Any], run_dag: RunDag) -> None:
    sim, _ = finalized
    alone = folder.dags_of(sim.path.parent)["kmigrate_preflight__sim"]
    assert str(run_dag(alone).state) == "success"


@pytest.mark.parametrize(
    "change",
    [
        lambda view: replace(view, kafka_cluster_id="another"),
        lambda view: replace(view, brokers={**view.brokers, 1: replace(view.brokers[1], mode=None)}),
    ],
    ids=["another cluster", "an unresponsive broker"],
)
def test_what_is_wrong_still_fails(finalized: tuple[Rehearsal, Any], run_dag: RunDag, change: Change) -> None:
    sim, dag = finalized
    changed(sim, change)
    states = tasks(run_dag(dag))
    assert states["preflight"] == "failed"


def test_another_cluster_is_refused(finalized: tuple[Rehearsal, Any], run_dag: RunDag) -> None:
    sim, dag = finalized
    sim.failure = WrongCluster("another cluster answers")
    assert tasks(run_dag(dag))["preflight"] == "failed"


def test_a_new_run_finishes_a_finalization_that_was_left_half_way(begun: Callable[..., Any], run_dag: RunDag) -> None:
    """One without the flag was elected, another one still has its flag: it has happened, and only the rest is to follow."""
    sim, _ = begun(half_finalized)
    dag = folder.dags_of(sim.path.parent)[DAG_ID]
    assert str(run_dag(dag, run_conf=APPROVED).state) == "success"
    assert position_of(sim.cluster.observe(Fields(0))).phase is Phase.FINALIZED


def test_a_new_run_takes_along_the_brokers_that_a_finalization_left_behind(begun: Callable[..., Any], run_dag: RunDag) -> None:
    """A controller lost its flag in the middle of the second roll, and it was elected."""
    sim, _ = begun(left_behind)
    assert position_of(sim.cluster.observe(Fields(0))).phase is Phase.LEFT_BEHIND
    dag = folder.dags_of(sim.path.parent)[DAG_ID]
    run = run_dag(dag)
    assert str(run.state) == "success", tasks(run)
    assert position_of(sim.cluster.observe(Fields(0))).phase is Phase.FINALIZED


@pytest.mark.parametrize("reboots", [True, False])
def test_a_new_run_recovers_a_broker_that_does_not_answer_and_asks_nobody(
    finalized: tuple[Rehearsal, Any], run_dag: RunDag, reboots: bool
) -> None:
    """Its original was put back, and its machine rebooted or not: in ZooKeeper mode it does not answer beside a finalized quorum."""
    sim, dag = finalized
    node = sim.cluster.nodes[NodeRole.BROKER, 1]
    node.text = original_of(1)
    if reboots:
        sim.cluster.stop(node.spec)
        sim.cluster.start(node.spec)
        sim.cluster.disasters.clear()  # the reboot's
    before = sim.restarts()
    run = run_dag(dag)
    assert str(run.state) == "success", tasks(run)
    view = sim.cluster.observe(Fields(0))
    assert position_of(view).phase is Phase.FINALIZED
    assert (stage_on_disk(view.brokers[1].files), sim.cluster.disasters) == (FileStage.KRAFT, [])
    assert sim.restarts() == before + reboots, "nothing else is restarted"


def left_behind(cluster: SimCluster, context: StepContext) -> None:
    some_kraft(cluster, context)
    cluster.meddled = True
    active = cluster.spec.node(NodeRole.CONTROLLER, cluster.leader)
    install_file(context, active, FileStage.CONTROLLER_FINAL)
    for others in cluster.spec.controllers:
        if others != active:
            cluster.stop(others)
    cluster.stop(active)
    for node in (active, *(other for other in cluster.spec.controllers if other != active)):
        cluster.start(node)
    assert cluster.finalized


def half_finalized(cluster: SimCluster, context: StepContext) -> None:
    all_kraft(cluster, context)
    active, standby = cluster.spec.node(NodeRole.CONTROLLER, cluster.leader), cluster.spec.controllers[-1]
    install_file(context, standby, FileStage.CONTROLLER_FINAL)
    cluster.stop(standby)
    cluster.start(standby)
    cluster.stop(active)
    cluster.lead(standby.id)
    cluster.start(active)
    assert cluster.finalized
