"""The rollback as Airflow sees it: the graph, what an administrator is asked, and whole runs from several phases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, TriggerRule
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, TopicMetadata
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.migration.plan import LEAVE, ROLL_BACK, ROLLBACK
from airflow_provider_kmigrate.dag_builders import rollback
from airflow_provider_kmigrate.operators.migration import RollbackOperator
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.run import StepContext
from airflow_provider_kmigrate.utils.step_context import state_folder
from tests.provider.dag_tasks import names, planned, tasks
from tests.provider.person import Person
from tests.provider.rollback_dag import APPROVED
from tests.provider.simulated import Rehearsal, rehearsal
from tests.steps.phases import all_in_migration, all_kraft, check_back, finalization_begun, some_in_migration, some_kraft
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import CLUSTER_ID

RunDag = Callable[..., Any]
Rehearse = Callable[..., Rehearsal]


def one_does_not_start(cluster: SimCluster, context: StepContext) -> None:
    """As some brokers in migration mode; one of them has failed in it, which may be why one goes back."""
    some_in_migration(cluster, context)
    cluster.stop(cluster.spec.brokers[-1])


def dag_of(brokers: int, controllers: int, where_: Path) -> DAG:
    return rollback.build(load(rehearsal(where_, SimCluster(brokers, controllers)).path))


class TestShape:
    @pytest.mark.parametrize(("brokers", "controllers"), [(3, 3), (1, 1), (2, 5)])
    def test_one_chain_with_a_task_for_each_node_and_pass(self, tmp_path: Path, brokers: int, controllers: int) -> None:
        dag = dag_of(brokers, controllers, tmp_path)
        dag.check_cycle()
        assert names(dag) == planned(ROLLBACK, brokers, controllers)

    def test_what_may_be_skipped_does_not_skip_the_rest(self, tmp_path: Path) -> None:
        dag = dag_of(3, 3, tmp_path)
        strict = {task.task_id for task in dag.tasks if task.trigger_rule != TriggerRule.NONE_FAILED}
        assert strict == {"plan", "approve"}

    def test_the_rollback_dag_survives_serialization_and_says_what_its_form_wants(self, tmp_path: Path) -> None:
        read = DagSerialization.from_dict(DagSerialization.to_dict(dag_of(3, 3, tmp_path)))
        assert CLUSTER_ID in str(read.params.get_param("approve_rollback").description)
        assert read.params.get_param("skip_failover").value is False
        assert CLUSTER_ID in str(read.params.get_param("accept_loss").description)
        assert all(task.doc_md for task in dag_of(1, 1, tmp_path).tasks)


class TestRuns:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "phase", [some_in_migration, one_does_not_start, some_kraft, finalization_begun], ids=lambda phase: phase.__name__
    )
    def test_back_from_a_phase(self, begun: Callable[..., Any], run_dag: RunDag, phase: Callable[..., None]) -> None:
        sim, dag = begun(phase)
        run = run_dag(dag, run_conf=APPROVED)
        assert str(run.state) == "success", tasks(run)
        check_back(sim.cluster)
        assert not any(path.endswith("/owner") for path in sim.ensemble.znodes), "the last task releases the cluster"
        journals = (state_folder() / "journal" / "sim").glob("*.jsonl")
        assert '"drift"' not in "".join(path.read_text() for path in journals), "no act of its own changes its plan"

    @pytest.mark.slow
    def test_a_finalized_cluster_is_refused_before_an_administrator_is_asked(
        self, begun: Callable[..., Any], run_dag: RunDag
    ) -> None:
        sim, dag = begun(all_kraft)
        sim.cluster.finalized = True
        for node in sim.cluster.spec.controllers:
            sim.cluster.nodes[NodeRole.CONTROLLER, node.id].running = "process.roles=controller\n"
        assert position_of(sim.cluster.observe(None)).phase is Phase.FINALIZED
        before = sim.restarts()
        states = tasks(run_dag(dag, run_conf=APPROVED))
        assert states.pop("plan") == "failed"
        assert set(states.values()) == {"upstream_failed"}
        assert sim.restarts() == before

    @pytest.mark.slow
    @pytest.mark.parametrize("accepted", [False, True])
    def test_without_a_failover_a_loss_must_be_accepted(self, begun: Callable[..., Any], run_dag: RunDag, accepted: bool) -> None:
        sim, dag = begun(all_in_migration)
        topics = ({}, {"orders": TopicMetadata("orders", "id", {})})
        observe = sim.cluster.observe
        sim.cluster.observe = lambda *given: replace(observe(*given), topics=topics)
        conf = {**APPROVED, "skip_failover": True} | ({"accept_loss": CLUSTER_ID} if accepted else {})
        states = tasks(run_dag(dag, run_conf=conf))
        assert states["controller_failover.failover"] == "skipped"
        assert states["controller_failover.equivalence"] == ("success" if accepted else "failed")
        assert states["rolled_back"] == ("success" if accepted else "upstream_failed")

    @pytest.mark.slow
    @pytest.mark.parametrize("asked", [{"accept_loss": CLUSTER_ID}, {"skip_failover": True, "accept_loss": "mistyped"}])
    def test_a_loss_that_would_not_be_accepted_is_refused_at_the_plan(
        self, begun: Callable[..., Any], run_dag: RunDag, asked: dict[str, object]
    ) -> None:
        sim, dag = begun(all_in_migration)
        before = sim.restarts()
        states = tasks(run_dag(dag, run_conf={**APPROVED, **asked}))
        assert states.pop("plan") == "failed"
        assert set(states.values()) == {"upstream_failed"}
        assert sim.restarts() == before

    @pytest.mark.slow
    @pytest.mark.parametrize(("answer", "state"), [(LEAVE, "failed"), (ROLL_BACK, "success")])
    def test_an_administrator_sees_the_plan_and_decides(
        self, begun: Callable[..., Any], run_dag: RunDag, answer: str, state: str
    ) -> None:
        sim, dag = begun(some_in_migration)
        with Person(dag.dag_id, answer).at_work() as person:
            run = run_dag(dag)
        assert str(run.state) == state
        assert person.asked is not None
        assert "1. stop controllers 3000, 3001, 3002" in (person.asked.body or "")
        assert "Kept: everything" in (person.asked.body or "")
        rolled_back = sim.cluster.observe(None).modes() == dict.fromkeys(range(3), BrokerMode.ZOOKEEPER)
        assert rolled_back is (answer == ROLL_BACK)

    @pytest.mark.slow
    def test_one_operator_does_it_all_in_a_dag_of_ones_own(self, begun: Callable[..., Any], run_dag: RunDag) -> None:
        sim, _ = begun(some_kraft)
        with DAG(dag_id="own_rollback", schedule=None) as dag:
            RollbackOperator(task_id="back", cluster_file=str(sim.path))
        assert str(run_dag(dag).state) == "success"
        check_back(sim.cluster)
