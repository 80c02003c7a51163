"""A task of a run that is bound to a plan, on the simulated cluster: what has changed since is named, and stops all but a rollback."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.migration.plan import EXPANSION, MIGRATION, PLANS, ROLLBACK, Access, Plan, list_step_tasks
from airflow_provider_kmigrate.core.migration.plan_binding import parse_bound_plan
from airflow_provider_kmigrate.core.migration.plan_document import PlanOf
from airflow_provider_kmigrate.core.monitoring.journal_lines import OBSERVATIONS
from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.exceptions import Unavailable
from airflow_provider_kmigrate.operators.groups import RollbackGroupsOperator, SwitchInstanceOperator
from airflow_provider_kmigrate.operators.migration import MigrationStepOperator, ProvisionControllersOperator
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps import expansion, groups, rollback
from airflow_provider_kmigrate.steps.backup import BackupStore
from airflow_provider_kmigrate.steps.plan_binding import require_same_plan
from airflow_provider_kmigrate.utils.step_context import read_only_context, state_folder
from tests.provider.group_dags import BACK, FORWARD, dag_of
from tests.provider.lone_tasks import Memory, alone, context
from tests.provider.simulated import Rehearsal, plan_of
from tests.provider.simulated_groups import GroupRehearsal
from tests.steps.phases import some_kraft
from tests.steps.sim import SimCluster
from tests.steps.sim_group import MIGRATING, OLD, SimGroup
from tests.steps.sim_nodes import CLUSTER_ID

Rehearse = Callable[..., Rehearsal]
pytestmark = pytest.mark.usefixtures("no_variables")


def edit_cluster_file(sim: Rehearsal | GroupRehearsal) -> None:
    sim.path.write_text(sim.path.read_text() + "stop_after: [hybrid]\n")


def edit_original(sim: Rehearsal) -> None:
    sim.cluster.nodes[NodeRole.BROKER, 1].text += "num.io.threads=9\n"


def change_version(sim: Rehearsal) -> None:
    BackupStore(state_folder() / "backup", "sim", CLUSTER_ID).keep_metadata_version("3.8-IV0")


DRIFTS: dict[str, tuple[Callable[[Rehearsal], None], str]] = {
    "the cluster file": (edit_cluster_file, "The cluster file has changed"),
    "an original": (edit_original, "The original file of broker 1 has changed"),
    "the version": (change_version, "The inter.broker.protocol.version has changed"),
}


def provision(sim: Rehearsal, plan: dict[str, Any], reviewed: str) -> Any:
    """Run the task of the first controller, whose run's preflight has made `plan`; each time a task of the same run."""
    dag = alone(ProvisionControllersOperator, sim.path, controller=3000, plan_task="preflight", deferrable=False)
    dag.dag_id = "kmigrate_zk_to_kraft__sim"

    def pull(*, task_ids: str, key: str = "return_value") -> Any:
        return (
            {"fingerprint": plan["fingerprint"], "inputs": plan["inputs"]} if (task_ids, key) == ("preflight", "plan") else None
        )

    ti = SimpleNamespace(xcom_push=lambda **_: None, xcom_pull=pull)
    found = context(dag) | {"ti": ti, "params": {"plan": reviewed}, "task_state_store": Memory()}
    return dag.get_task("task").execute(found)


@pytest.fixture
def sim(rehearse: Callable[..., Rehearsal]) -> Rehearsal:
    """A cluster whose backup is there."""
    made = rehearse()
    kept = BackupStore(state_folder() / "backup", "sim", CLUSTER_ID)
    kept.keep_metadata_version("3.9-IV0")
    for node in made.cluster.spec.brokers:
        kept.keep_original(node, made.cluster.nodes[NodeRole.BROKER, node.id].text)
    return made


@pytest.mark.parametrize("name", DRIFTS)
def test_an_act_of_a_bound_run_is_refused_by_name_if_its_plan_has_drifted(sim: Rehearsal, name: str) -> None:
    change, sentence = DRIFTS[name]
    plan = plan_of(sim)
    change(sim)
    with pytest.raises(AirflowFailException, match=rf"nothing was changed.*\[H16\].*{sentence}"):
        provision(sim, plan, plan["fingerprint"])
    assert sim.cluster.nodes[NodeRole.CONTROLLER, 3000].running is None
    (journal,) = Path(state_folder() / "journal" / "sim").glob("*.jsonl")
    assert sentence in journal.read_text()


def test_a_run_that_is_bound_acts_while_its_plan_is_the_same(sim: Rehearsal) -> None:
    plan = plan_of(sim)
    provision(sim, plan, plan["fingerprint"])
    assert sim.cluster.nodes[NodeRole.CONTROLLER, 3000].running is not None


def test_a_run_that_is_bound_to_no_plan_notes_the_drift_and_acts(sim: Rehearsal) -> None:
    plan = plan_of(sim)
    edit_original(sim)
    provision(sim, plan, "")
    assert sim.cluster.nodes[NodeRole.CONTROLLER, 3000].running is not None
    assert "The original file of broker 1 has changed" in next((state_folder() / "journal" / "sim").glob("*.jsonl")).read_text()


def test_a_controller_that_was_up_before_and_is_down_is_started_whatever_has_changed(sim: Rehearsal) -> None:
    plan = plan_of(sim)
    provision(sim, plan, plan["fingerprint"])
    node = sim.cluster.nodes[NodeRole.CONTROLLER, 3000]
    node.running = None
    edit_original(sim)
    provision(sim, plan, plan["fingerprint"])
    assert node.running is not None


def test_an_input_that_cannot_be_read_now_is_tried_again(rehearse: Callable[..., Rehearsal]) -> None:
    sim = rehearse()  # without a backup, which has the brokers' version
    plan = plan_of(sim)
    with pytest.raises(Unavailable, match=r"nothing was changed.*was not read: the inter.broker.protocol.version"):
        provision(sim, plan, plan["fingerprint"])
    assert sim.cluster.nodes[NodeRole.CONTROLLER, 3000].running is None


WAITS = {
    "first_roll.leaders", "second_roll.leaders", "copy.copied", "soak", "backup", "finalize.finalized",
    "controller_failover.equivalence", "handover.zookeeper_leads", "to_zookeeper.leaders", "rolled_back",
    "restart.leaders", "restart.one_coordinator", "import.offsets", "import.verify", "progress",
}  # fmt: skip
"""Rows that may act and compare no plan: they elect preferred leaders, wait, or complete what cannot stay half done."""


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan[-1].task)
def test_whatever_acts_on_a_node_or_on_groups_compares_with_the_plan(plan: Plan) -> None:
    acting = {row.full_id() for row in plan if row.access in {Access.ACT, Access.ACT_OVER_WAITING}}
    assert {row.full_id() for row in plan if row.follows_plan} == acting - WAITS
    assert all(row.follows_plan for row in plan if row.each)


@pytest.mark.parametrize(
    ("dag_id", "plan"),
    [("kmigrate_zk_to_kraft__sim", MIGRATION), ("kmigrate_rollback__sim", ROLLBACK), ("kmigrate_offsets_topic__sim", EXPANSION)],
)
def test_each_task_of_such_a_row_knows_which_task_made_its_plan(rehearse: Rehearse, dag_id: str, plan: Plan) -> None:
    sim = rehearse()
    dag = folder.dags_of(sim.path.parent)[dag_id]
    spec = load(sim.path)
    following = {task for row in plan if row.follows_plan for _, task, _ in list_step_tasks(spec, row)}
    groups = {row.group for row in plan if row.follows_plan}
    bound = {task.task_id.rpartition(".")[2] for task in dag.tasks if getattr(task, "plan_task", "")}
    assert bound == following
    assert {task.task_id.rpartition(".")[0] for task in dag.tasks if getattr(task, "plan_task", "")} == groups
    assert {task.plan_task for task in dag.tasks if getattr(task, "plan_task", "")} == {plan[0].full_id()}


def run_step_of(sim: Rehearsal, plan: dict[str, Any], reviewed: str, step: str, **step_kwargs: Any) -> Any:
    """Run one task of the DAG of a plan, whose first task returned `plan`."""
    arguments = {"step": step, "step_kwargs": step_kwargs, "plan_task": "plan", "plan_of": plan["of"], "deferrable": False}
    dag = alone(MigrationStepOperator, sim.path, **arguments)
    dag.dag_id = {"rollback": "kmigrate_rollback__sim", "expansion": "kmigrate_offsets_topic__sim"}[plan["of"]]

    def pull(*, task_ids: str, key: str = "return_value") -> Any:
        return plan if (task_ids, key) == ("plan", "return_value") else None

    ti = SimpleNamespace(xcom_push=lambda **_: None, xcom_pull=pull)
    params = {"plan": reviewed, **({"partitions": 20} if plan["of"] == "expansion" else {})}
    return dag.get_task("task").execute(context(dag) | {"ti": ti, "params": params, "task_state_store": Memory()})


def read_journals() -> str:
    return "".join(path.read_text() for path in (state_folder() / "journal" / "sim").glob("*.jsonl"))


def test_what_observes_only_writes_to_the_run_that_durations_give_to_the_run_before_it() -> None:
    assert inspect.signature(read_only_context).parameters["run"].default == OBSERVATIONS


class TestRollback:
    @pytest.fixture
    def rolling(self, begun: Callable[..., Any]) -> Rehearsal:
        sim, _ = begun(some_kraft)
        return sim

    @staticmethod
    def plan(sim: Rehearsal) -> dict[str, Any]:
        with read_only_context(str(sim.path)) as step_context:
            return rollback.plan_from_here(step_context)

    @staticmethod
    def roll_back_first(sim: Rehearsal, plan: dict[str, Any]) -> bool:
        """Roll the first broker in KRaft mode back by its task; whether it is in migration mode then."""
        modes = sim.cluster.observe(None).modes()
        number = next(number for number, mode in modes.items() if mode is BrokerMode.KRAFT)
        run_step_of(sim, plan, plan["fingerprint"], "roll back broker", node=number, target="migration")
        return sim.cluster.observe(None).modes()[number] is BrokerMode.MIGRATION

    def test_a_difference_is_named_and_the_rollback_goes_on(self, rolling: Rehearsal) -> None:
        plan = self.plan(rolling)
        edit_cluster_file(rolling)
        assert self.roll_back_first(rolling, plan)
        assert "The cluster file has changed. The rollback goes on." in read_journals()

    def test_what_a_broker_would_not_start_with_is_refused_by_the_step_and_not_by_the_plan(self, rolling: Rehearsal) -> None:
        plan = self.plan(rolling)
        change_version(rolling)
        with pytest.raises(AirflowFailException, match=r"\[C04\]"):
            self.roll_back_first(rolling, plan)
        assert "version has changed. The rollback goes on." in read_journals()

    def test_without_a_difference_nothing_is_said(self, rolling: Rehearsal) -> None:
        assert self.roll_back_first(rolling, self.plan(rolling))
        assert '"drift"' not in read_journals()

    @pytest.mark.parametrize("error", [Unavailable("no answer"), OSError("disk full")])
    def test_what_cannot_be_compared_holds_no_rollback(self, rolling: Rehearsal, error: Exception) -> None:
        plan, said = self.plan(rolling), list[str]()

        def fail(*_: Any) -> Any:
            raise error

        bound = parse_bound_plan(plan["fingerprint"], plan)
        assert bound is not None
        with read_only_context(str(rolling.path), said.append) as step_context:
            broken = replace(step_context, observer=SimpleNamespace(observe=fail))
            require_same_plan(broken, "task", bound, PlanOf.ROLLBACK, is_rollback=True)
            with pytest.raises(type(error)):
                require_same_plan(broken, "task", bound, PlanOf.ROLLBACK)
        assert said == [f"The plan of this run was not compared: {error}. The rollback goes on."]


class TestExpansion:
    @pytest.fixture
    def expanding(self, rehearse: Rehearse) -> Rehearsal:
        return rehearse(SimCluster(offsets_partitions=10))

    @staticmethod
    def plan(sim: Rehearsal) -> dict[str, Any]:
        with read_only_context(str(sim.path)) as step_context:
            return expansion.plan_from_here(step_context, 20)

    @pytest.mark.parametrize("name", ["the cluster file", "an original"])
    def test_each_difference_is_refused_by_name_before_groups_are_touched(self, expanding: Rehearsal, name: str) -> None:
        plan = self.plan(expanding)
        change, sentence = DRIFTS[name]
        change(expanding)
        with pytest.raises(AirflowFailException, match=rf"nothing was changed.*\[H16\].*{sentence}"):
            run_step_of(expanding, plan, plan["fingerprint"], "groups stopped")
        assert sentence in read_journals()

    def test_its_own_setting_in_the_originals_is_no_difference(self, expanding: Rehearsal) -> None:
        plan = self.plan(expanding)
        for node in expanding.cluster.spec.brokers:
            expanding.cluster.nodes[NodeRole.BROKER, node.id].text += "offsets.topic.num.partitions=20\n"
        assert self.plan(expanding)["fingerprint"] == plan["fingerprint"]


class TestGroups:
    @staticmethod
    def run_task(there: GroupRehearsal, operator: Any, dag_id: str, goal: Goal | None = None, **arguments: Any) -> None:
        """Run one task of a run that is bound to the plan of before the cluster file was edited."""
        with read_only_context(str(there.path)) as step_context:
            plan = groups.plan_from_here(step_context, step_context.spec.groups, goal)
        edit_cluster_file(there)
        waits = {"deferrable": False} if hasattr(operator, "resume") else {}
        dag = alone(operator, there.path, plan_task="plan", plan_of="groups", **waits, **arguments)
        dag.dag_id = dag_id
        ti = SimpleNamespace(xcom_push=lambda *_, **__: None, xcom_pull=lambda **_: plan)
        params = {"plan": plan["fingerprint"]}
        dag.get_task("task").execute(context(dag) | {"ti": ti, "params": params, "task_state_store": Memory()})

    def test_a_difference_is_refused_by_name_before_an_instance_restarts(self, made: Callable[..., GroupRehearsal]) -> None:
        there = made(SimGroup(2))
        one = {"group": "billing", "instance": "app0", "target": "migrating"}
        with pytest.raises(AirflowFailException, match=r"nothing was changed.*\[H16\].*The cluster file has changed"):
            self.run_task(there, SwitchInstanceOperator, FORWARD, **one)
        assert there.groups["billing"].kinds() == [OLD, OLD]

    def test_a_rollback_of_groups_names_it_and_goes_on(self, made: Callable[..., GroupRehearsal]) -> None:
        there = made(SimGroup(2))
        for instance in there.groups["billing"].instances.values():
            instance.kind = MIGRATING
        goal = Goal.ZOOKEEPER_CONSUMERS
        self.run_task(there, RollbackGroupsOperator, BACK, goal, groups=["billing"])
        assert there.groups["billing"].kinds() == [OLD, OLD]
        assert "The cluster file has changed. The rollback goes on." in read_journals()

    @pytest.mark.slow
    def test_a_whole_run_is_bound_to_its_plan(self, made: Callable[..., GroupRehearsal], run_dag: Callable[..., Any]) -> None:
        there = made(SimGroup(2))
        with read_only_context(str(there.path)) as step_context:
            reviewed = groups.plan_from_here(step_context, step_context.spec.groups)["fingerprint"]
        run = run_dag(dag_of(there), run_conf={"plan": reviewed})
        assert str(run.state) == "success", "which no act of its own changes"
