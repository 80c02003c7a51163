"""Operators and sensors in Airflow's own machinery: refused, deferred, resumed, retried; on the simulated cluster and on none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.models.variable import Variable
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.utils.session import create_session
from sqlalchemy import text

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.exceptions import KMigrateError, Unavailable, Unreachable
from airflow_provider_kmigrate.operators.migration import (
    BackupOperator,
    FinalizeControllerOperator,
    MigrationStepOperator,
    PreflightOperator,
    ProvisionControllersOperator,
    ReadinessOperator,
    RollbackPlanOperator,
    RollBrokerOperator,
    SoakOperator,
)
from airflow_provider_kmigrate.sensors.step import (
    CoordinatorConsistencySensor,
    StepSensor,
    VerifyDualWriteLagSensor,
    WaitAllBrokersRegisteredSensor,
)
from airflow_provider_kmigrate.steps.controllers import ProvisionController
from airflow_provider_kmigrate.steps.run import run_step
from airflow_provider_kmigrate.utils.status_xcom import STATUS
from airflow_provider_kmigrate.utils.step_context import PLAN, state_folder
from tests.kit.ports import closed_port
from tests.provider.dag_tasks import tasks
from tests.provider.lone_tasks import Memory, PushedXComs, _numbers, alone, context, kept
from tests.provider.simulated import Rehearsal, in_dual_write
from tests.steps.phases import all_kraft
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import Health, Killed

Rehearse = Callable[..., Rehearsal]
RunDag = Callable[..., Any]


def result(run: Any) -> tuple[str, TaskInstance]:
    [instance] = run.get_task_instances()
    return str(instance.state), instance


def plan_of(sim: Rehearsal) -> object:
    """What the rollback's first task says."""
    dag = alone(RollbackPlanOperator, sim.path)
    return dag.get_task("task").execute({**context(dag), "params": {}})


@contextmanager
def variables_gone() -> Iterator[None]:
    """Airflow's API server cannot read Variables: their table has another name."""

    def rename(old: str, new: str) -> None:
        with create_session() as session:
            session.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))

    rename("variable", "variable_gone")
    try:
        yield
    finally:
        rename("variable_gone", "variable")


def late(_: int) -> Health:
    return Health(seconds=1.5)


def leaving(observation: int) -> Health:
    return Health(in_sync=observation % 7 != 0)


def refusal(operator: type[BaseOperator], path: Path) -> str:
    """How the task fails, as Airflow shows it."""
    dag = alone(operator, path)
    with pytest.raises((AirflowFailException, KMigrateError)) as caught:
        dag.get_task("task").execute(context(dag))
    return f"{caught.type.__name__}: {caught.value}"


CLUSTER_FILE = """\
name: prod
cluster_id: {cluster_id}
zookeeper: {{conn_id: zk}}
kafka: {{conn_id: kf}}
hosts: {{driver: agent, properties: /p, connect: node}}
brokers: [{{id: 0, host: 127.0.0.1, port: {port}}}]
controllers: [{{id: 3000, host: ctl0, log_dir: /l}}]
"""


class TestRefusals:
    """Each of them ends the task with what is wrong, before anything is touched."""

    @pytest.fixture
    def path(self, clusters: Path) -> Path:
        path = clusters / "prod.yaml"
        path.write_text(CLUSTER_FILE.format(cluster_id="q1Sh-9_ISia_zwGINzRvyQ", port=closed_port()))
        return path

    @pytest.mark.parametrize("operator", [PreflightOperator, WaitAllBrokersRegisteredSensor])
    def test_a_missing_connection(self, path: Path, airflow_db: None, operator: type[BaseOperator]) -> None:
        message = refusal(operator, path)
        assert message.startswith("AirflowFailException: [N03]")
        assert "airflow connections add kf --conn-type kafka" in message

    def test_an_address_without_a_server(self, path: Path, connection: Callable[..., str], airflow_db: None) -> None:
        address = f"127.0.0.1:{closed_port()}"
        connection("zk", "kmigrate_zookeeper", host=address, extra={"connect_timeout": 1})
        connection("kf", "kafka", extra={"bootstrap.servers": address})
        message = refusal(BackupOperator, path)
        assert message.startswith("TimedOut: "), "it may be a moment's trouble: the task is retried"
        assert address in message

    def test_another_cluster_in_zookeeper(self, rehearse: Rehearse) -> None:
        sim = rehearse()
        sim.ensemble.cluster_id = "another-cluster"
        message = refusal(BackupOperator, sim.path)
        assert message.startswith("AirflowFailException: ")
        assert "another-cluster" in message
        assert sim.cluster.spec.cluster_id in message
        assert set(sim.ensemble.znodes) == {""}, "nothing was written there"

    def test_another_cluster_answers(self, rehearse: Rehearse) -> None:
        sim = rehearse()
        sim.path.write_text(sim.path.read_text().replace(sim.cluster.spec.cluster_id, "q1Sh-9_ISia_zwGINzRvyQ"))
        assert "[I01]" in refusal(PreflightOperator, sim.path)

    def test_preflight_writes_nothing(self, rehearse: Rehearse) -> None:
        sim = rehearse()
        dag, pushed = alone(PreflightOperator, sim.path), PushedXComs()
        assert dag.get_task("task").execute(context(dag) | {"ti": pushed}) == []
        assert Path(pushed[PLAN]["page"]).is_file()
        assert set(sim.ensemble.znodes) == {""}

    def test_preflight_leaves_the_plan_and_takes_no_other_than_the_reviewed_one(self, rehearse: Rehearse) -> None:
        sim = rehearse()
        dag = alone(PreflightOperator, sim.path)
        dag.get_task("task").execute(context(dag) | {"ti": PushedXComs()})
        (plan,) = state_folder().glob("preflight/*/plan.json")
        reviewed = json.loads(plan.read_text())["fingerprint"]
        bound = alone(PreflightOperator, sim.path, plan=reviewed)
        assert bound.get_task("task").execute(context(bound) | {"ti": PushedXComs()}) == []
        sim.path.write_text(sim.path.read_text() + "stop_after: [hybrid]\n")
        with pytest.raises(AirflowFailException, match=rf"\[H16\].*{reviewed}"):
            bound.get_task("task").execute(context(bound) | {"ti": PushedXComs()})
        assert set(sim.ensemble.znodes) == {""}, "nothing was changed"

    def test_a_broken_cluster_file(self, clusters: Path) -> None:
        path = clusters / "broken.yaml"
        path.write_text("name: prod\nclusterid: x\n")
        assert refusal(PreflightOperator, path).startswith(f"AirflowFailException: {path}: ")

    def test_a_run_that_holds_the_cluster(self, rehearse: Rehearse) -> None:
        sim = rehearse()
        first, second = (alone(BackupOperator, sim.path) for _ in range(2))
        first.get_task("task").execute(context(first))
        stored = PushedXComs()
        with pytest.raises(AirflowFailException, match="H01"):
            second.get_task("task").execute(context(second) | {"ti": stored})
        (reason,) = stored[STATUS]["step"]["reasons"]
        assert (stored[STATUS]["cluster"], reason["code"]) == (sim.path.stem, "H01"), "the pages show why it stopped"
        assert reason["do"]

    def test_a_rollback_names_the_owner_of_the_cluster_before_an_administrator_is_asked(self, rehearse: Rehearse) -> None:
        sim = rehearse()
        forward = alone(BackupOperator, sim.path)
        forward.get_task("task").execute(context(forward))
        before = set(sim.ensemble.znodes)
        with pytest.raises(AirflowFailException, match=r"\[H01\].*owned by run alone_"):
            plan_of(sim)
        assert set(sim.ensemble.znodes) == before

    def test_a_rollback_of_nothing_makes_no_request(self, rehearse: Rehearse) -> None:
        sim = rehearse()
        with pytest.raises(AirflowFailException, match=r"\[P13\].*no trace of a migration.*Was another cluster meant"):
            plan_of(sim)
        assert set(sim.ensemble.znodes) == {""}, "nothing was written there"


class TestRuns:
    @pytest.mark.parametrize("name", ["kmigrate_stop__sim", "kmigrate_stop"])
    def test_the_kill_switch_stops_it_before_its_act(
        self, rehearse: Rehearse, run_dag: RunDag, tmp_path: Path, name: str
    ) -> None:
        sim = rehearse()
        run_dag(alone(BackupOperator, sim.path))
        context = sim.cluster.context(tmp_path)
        for node in sim.cluster.spec.controllers:
            run_step(ProvisionController(node, sim.cluster.spec.cluster_id), context)
        sim.cluster.token = 0  # tokens come from the fence of the run from here on
        dag = alone(RollBrokerOperator, sim.path, broker=1, target=BrokerMode.MIGRATION)
        Variable.set(name, "Ann: disk full")
        try:
            state, _ = result(run_dag(dag))
        finally:
            Variable.delete(name)
        assert state == "failed"
        assert sim.restarts() == 0
        said = [path.read_text() for path in (tmp_path / "kmigrate" / "journal" / "sim").glob("*.jsonl")]
        assert any('"kind": "stopped"' in text and "Ann: disk full" in text for text in said)
        state, _ = result(run_dag(dag))
        assert state == "success"
        assert sim.restarts() == 1

    @pytest.mark.slow
    def test_a_kill_switch_that_cannot_be_read_stops_it_too(self, rehearse: Rehearse, run_dag: RunDag) -> None:
        sim = rehearse()
        dag = alone(BackupOperator, sim.path)
        run_dag(dag)
        controller = sim.cluster.nodes[NodeRole.CONTROLLER, 3000]
        provision = alone(ProvisionControllersOperator, sim.path, controller=3000)
        with variables_gone():
            state, _ = result(run_dag(provision))
        assert (state, controller.text, controller.formatted, controller.starts) == ("failed", "", None, 0)
        state, _ = result(run_dag(provision))
        assert (state, controller.starts) == ("success", 1)

    def test_a_refusal_is_not_retried(self, rehearse: Rehearse, run_dag: RunDag) -> None:
        sim = rehearse()
        dag = alone(RollBrokerOperator, sim.path, broker=1, target=BrokerMode.KRAFT, retries=3)
        state, instance = result(run_dag(dag))
        assert (state, instance.try_number) == ("failed", 1)
        assert sim.restarts() == 0

    def test_no_answer_is_retried(self, rehearse: Rehearse, run_dag: RunDag) -> None:
        sim = rehearse()
        sim.failure = Unreachable("no server there")
        state, instance = result(run_dag(alone(BackupOperator, sim.path, retries=1, retry_delay=0.0)))
        assert (state, instance.try_number) == ("failed", 2)

    @pytest.mark.parametrize("deferrable", [True, False])
    def test_a_long_wait_ends_as_a_short_one(self, rehearse: Rehearse, run_dag: RunDag, deferrable: bool) -> None:
        sim = rehearse()
        sim.blind_observations = 200  # about 60 s here, so that the task defers after 30 of them
        state, _ = result(run_dag(alone(WaitAllBrokersRegisteredSensor, sim.path, deferrable=deferrable)))
        assert state == "success"
        assert sim.opened == (3 if deferrable else 1), "task, trigger, task again"

    def test_brokers_that_disagree_on_coordinators_fail_the_sensor_at_once(self, rehearse: Rehearse, run_dag: RunDag) -> None:
        sim = rehearse()
        sim.cluster.offsets_partitions, sim.cluster.counts = 15, dict.fromkeys(sim.cluster.counts, 10)
        state, instance = result(run_dag(alone(CoordinatorConsistencySensor, sim.path, retries=3)))
        assert (state, instance.try_number) == ("failed", 1)
        sim.cluster.counts = dict.fromkeys(sim.cluster.counts, 15)
        state, _ = result(run_dag(alone(CoordinatorConsistencySensor, sim.path)))
        assert state == "success"

    def test_a_wait_that_never_ends_fails_however_often_it_was_deferred(self, rehearse: Rehearse, run_dag: RunDag) -> None:
        sim = rehearse()
        began = sim.cluster.clock.time
        state, _ = result(run_dag(alone(StepSensor, sim.path, step="controllers ready")))
        assert state == "failed"
        assert 180.0 <= sim.cluster.clock.time - began < 200.0

    def test_a_broker_that_never_comes_back_fails_its_task(self, rehearse: Rehearse, run_dag: RunDag, tmp_path: Path) -> None:
        sim = rehearse()
        context = sim.cluster.context(tmp_path)
        for node in sim.cluster.spec.controllers:
            run_step(ProvisionController(node, sim.cluster.spec.cluster_id), context)
        sim.cluster.stop(sim.cluster.spec.brokers[2])
        began = sim.cluster.clock.time
        state, _ = result(run_dag(alone(RollBrokerOperator, sim.path, broker=1, target=BrokerMode.MIGRATION)))
        assert state == "failed"
        assert 600.0 <= sim.cluster.clock.time - began < 640.0
        assert sim.restarts() == 1, "only the broker that had been stopped"

    @pytest.mark.slow
    @pytest.mark.parametrize(("ill", "code"), [(late, "V23"), (leaving, "V23")], ids=["late", "leaving its ISRs"])
    def test_a_first_broker_that_turns_bad_while_the_triggerer_watches_is_rolled_back(
        self, rehearse: Rehearse, run_dag: RunDag, tmp_path: Path, ill: Callable[[int], Health], code: str
    ) -> None:
        """What the triggerer saw in minutes the task that it wakes cannot see again in the seconds before it defers."""
        sim = rehearse(canary_bake=600.0)
        run_dag(alone(BackupOperator, sim.path))
        context = sim.cluster.context(tmp_path)
        for node in sim.cluster.spec.controllers:
            run_step(ProvisionController(node, sim.cluster.spec.cluster_id), context)
        sim.cluster.token = 0  # tokens come from the fence of the run from here on
        bad_from = sim.cluster.clock.time + 100.0

        def health(broker: int, mode: BrokerMode, observation: int) -> Health:
            worse = mode is BrokerMode.MIGRATION and sim.cluster.clock.time > bad_from
            return ill(observation // 3) if worse and broker == 1 else Health()

        sim.cluster.health = health
        dag = alone(RollBrokerOperator, sim.path, broker=1, target=BrokerMode.MIGRATION, retries=3)
        state, instance = result(run_dag(dag))
        assert (state, instance.try_number) == ("failed", 1)
        assert sim.opened == 4, "backup, task, trigger, task again"
        assert [node.stops for node in sim.cluster.nodes.values()] == [0, 2, 0, 0, 0, 0]
        assert sim.cluster.disasters == []
        said = "".join(path.read_text() for path in (tmp_path / "kmigrate" / "journal" / "sim").glob("*alone*.jsonl"))
        assert '"kind": "acted", "step": "roll back canary broker 1 to zookeeper", "text": "restart"' in said

    def test_the_broker_that_is_the_controller_is_skipped(self, rehearse: Rehearse, run_dag: RunDag) -> None:
        sim = rehearse()
        state, _ = result(run_dag(alone(RollBrokerOperator, sim.path, broker=0, target=BrokerMode.MIGRATION)))
        assert state == "skipped"

    def test_every_act_is_in_the_journal_with_what_allowed_it(self, rehearse: Rehearse, run_dag: RunDag, tmp_path: Path) -> None:
        sim = rehearse()
        run = run_dag(alone(BackupOperator, sim.path))
        [journal] = (tmp_path / "kmigrate" / "journal" / "sim").glob("*.jsonl")
        assert run.dag_id in journal.name
        assert '"kind": "backup"' in journal.read_text()


class TestSoak:
    """The soaked time outlives deferrals and retries, and nothing else."""

    @pytest.fixture
    def sim(self, rehearse: Rehearse, tmp_path: Path) -> Rehearsal:
        sim = rehearse(min_soak=500.0)
        in_dual_write(sim, tmp_path / "kmigrate" / "backup")
        return sim

    @pytest.mark.parametrize(("lose", "code"), [(Path.unlink, "O01"), (lambda path: path.write_text("broker.id=1"), "O01")])
    def test_an_original_that_is_lost_meanwhile_ends_it(
        self, sim: Rehearsal, tmp_path: Path, lose: Callable[[Path], object], code: str
    ) -> None:
        """Also while the triggerer watches, whose machine need not have the backup; the time soaked so far is kept."""
        task = (dag := alone(SoakOperator, sim.path)).get_task("task")
        there = context(dag) | {"task_state_store": kept(healthy_seconds=100.0)}
        event = {"outcome": "waiting", "text": "", "progress": StepProgress(healthy_seconds=400.0).to_json()}
        with pytest.raises(TaskDeferred):
            task.resume(there, event)
        lose(next((tmp_path / "kmigrate" / "backup").rglob("broker-1.properties")))
        for again in (lambda: task.resume(there, event), lambda: task.execute(there)):
            with pytest.raises(AirflowFailException, match=f"a rollback is not possible any more.*{code}"):
                again()
        assert there["task_state_store"]["progress"]["healthy_seconds"] == 400.0
        [journal] = (tmp_path / "kmigrate" / "journal" / "sim").glob("*manual__1.jsonl")
        assert '"kind": "lost"' in journal.read_text()

    def test_the_soak_misses_no_original_once_the_migration_has_ended(self, sim: Rehearsal, tmp_path: Path) -> None:
        """A rollback is no longer possible; what is left of the finalization is not held up for it."""
        for node in sim.cluster.spec.controllers:
            sim.cluster.nodes[node.role, node.id].running = "process.roles=controller\n"
        sim.cluster.finalized = True
        next((tmp_path / "kmigrate" / "backup").rglob("broker-1.properties")).unlink()
        task = (dag := alone(SoakOperator, sim.path)).get_task("task")
        assert "finalized already" in task.execute(context(dag) | {"task_state_store": Memory()})

    def test_the_soaked_time_is_kept_across_deferrals(self, sim: Rehearsal, run_dag: RunDag) -> None:
        began = sim.cluster.clock.time
        state, _ = result(run_dag(alone(SoakOperator, sim.path)))
        assert state == "success"
        assert sim.opened == 4, "task, trigger, trigger again after the time was stored, task"
        assert 500.0 <= sim.cluster.clock.time - began < 530.0

    def test_the_soaked_time_is_kept_in_the_state_store_and_cleared_at_the_end(self, sim: Rehearsal) -> None:
        dag = alone(SoakOperator, sim.path, deferrable=False)
        store = kept(healthy_seconds=480.0)
        began = sim.cluster.clock.time
        dag.get_task("task").execute(context(dag) | {"task_state_store": store})
        assert 20.0 <= sim.cluster.clock.time - began < 30.0
        assert store["progress"]["healthy_seconds"] == 0.0, "a task that is cleared soaks again"

    def test_lost_health_resets_it_before_the_wait_continues(self, sim: Rehearsal) -> None:
        dag = alone(SoakOperator, sim.path)
        store = kept(healthy_seconds=480.0)
        sim.cluster.stop(sim.cluster.spec.controllers[0])
        sim.cluster.stop(sim.cluster.spec.controllers[1])
        with pytest.raises(TaskDeferred) as deferred:
            dag.get_task("task").execute(context(dag) | {"task_state_store": store})
        assert store["progress"]["healthy_seconds"] == 0.0
        assert deferred.value.trigger.progress["healthy_seconds"] == 0.0

    def test_time_that_is_void_is_not_left_in_the_store_by_a_process_that_is_killed(self, sim: Rehearsal) -> None:
        store, left, died, observe = kept(healthy_seconds=480.0), dict[str, Any](), sim.observations + 10, sim.cluster.observe

        def dies(*asked: Any) -> ClusterView:
            if sim.observations == died:
                left.update(store["progress"])
                raise Killed
            return observe(*asked)

        sim.cluster.observe = dies  # type: ignore[method-assign]
        for node in sim.cluster.spec.controllers[:2]:
            sim.cluster.stop(node)
        with pytest.raises(Killed):
            (dag := alone(SoakOperator, sim.path)).get_task("task").execute(context(dag) | {"task_state_store": store})
        assert left["healthy_seconds"] == 0.0

    @pytest.mark.parametrize("stored", [{"version": 2, "anything": 1}, {"held": 480.0}, "garbage"])
    def test_progress_that_cannot_be_read_is_refused_and_left_as_it_is(self, sim: Rehearsal, stored: Any) -> None:
        """It may hold a verdict: a fresh start could go on in spite of it."""
        store, before = Memory(progress=stored), sim.observations
        task = (dag := alone(ProvisionControllersOperator, sim.path, controller=3000)).get_task("task")
        there = context(dag) | {"task_state_store": store}
        for tried in (
            lambda: task.execute(there),
            lambda: task.resume(there, {"outcome": "ready", "text": "", "progress": stored}),
        ):
            with pytest.raises(AirflowFailException, match="H09"):
                tried()
        assert (store["progress"], sim.observations) == (stored, before)


class TestArguments:
    """What a user gets wrong ends in a refusal that says what there is; templates arrive as text."""

    @pytest.mark.parametrize(
        ("operator", "arguments", "message"),
        [
            (RollBrokerOperator, {"broker": 9, "target": "kraft"}, "has no broker 9; it has 0, 1, 2."),
            (RollBrokerOperator, {"broker": "one", "target": "kraft"}, "has no broker 'one'; it has 0, 1, 2."),
            (RollBrokerOperator, {"broker": 3000, "target": "kraft"}, "has no broker 3000; it has 0, 1, 2."),
            (RollBrokerOperator, {"broker": 1, "target": "raft"}, "has no target 'raft'; it has zookeeper, migration, kraft."),
            (ProvisionControllersOperator, {"controller": 1}, "has no controller 1; it has 3000, 3001, 3002."),
            (FinalizeControllerOperator, {"controller": 1}, "has no controller 1; it has 3000, 3001, 3002."),
            (VerifyDualWriteLagSensor, {"limit": "few"}, "limit is 'few', and must be a whole number."),
            *(
                (
                    MigrationStepOperator,
                    {"step": step, "step_kwargs": {"node": 7}},
                    "has no controller 7; it has 3000, 3001, 3002.",
                )
                for step in ("provision", "restore flag", "wipe", "finalize")
            ),
            (MigrationStepOperator, {"step": "wipe"}, "has no controller None; it has 3000, 3001, 3002."),
            (
                MigrationStepOperator,
                {"step": "roll back broker", "step_kwargs": {"target": "migration"}},
                "has no broker None; it has 0, 1, 2.",
            ),
            *(
                (
                    MigrationStepOperator,
                    {"step": step, "step_kwargs": {"group": "billing"}},
                    "has no consumer group 'billing'; it has none.",
                )
                for step in ("switch", "mode", "watch group", "roll back group", "clean up")
            ),
        ],
    )
    def test_what_the_cluster_file_does_not_have_is_refused(
        self, rehearse: Rehearse, operator: type[BaseOperator], arguments: dict[str, Any], message: str
    ) -> None:
        sim = rehearse()
        dag = alone(operator, sim.path, **arguments)
        with pytest.raises(AirflowFailException) as caught:
            dag.get_task("task").execute(context(dag))
        assert message in str(caught.value)
        assert "[F09]" in str(caught.value)
        assert "Next: Correct the argument" in str(caught.value)
        assert sim.restarts() == 0

    def test_templates_are_rendered_before_they_are_read(self, rehearse: Rehearse, run_dag: RunDag) -> None:
        sim = rehearse()
        with DAG(dag_id=f"alone_{next(_numbers)}", schedule=None, params={"node": 0, "file": str(sim.path)}) as dag:
            RollBrokerOperator(task_id="task", cluster_file="{{ params.file }}", broker="{{ params.node }}", target="migration")
        assert result(run_dag(dag))[0] == "skipped", "broker 0 is the ZooKeeper controller, and postponed"

    def test_whether_a_task_is_deferred_is_airflows_default_or_said(self, tmp_path: Path) -> None:
        plain = WaitAllBrokersRegisteredSensor(task_id="wait", cluster_file="x"), SoakOperator(task_id="soak", cluster_file="x")
        assert [task.deferrable for task in plain] == [False, False], "[operators] default_deferrable is false here"
        one_process = MigrationStepOperator(task_id="one", cluster_file="x", step="controller failover", deferrable=True)
        assert one_process.deferrable is False


class TestKilled:
    """Airflow ends a task: it begins nothing more, and its next try does the rest."""

    def test_no_further_act_begins(self, rehearse: Rehearse, no_variables: None) -> None:
        sim = rehearse()
        dag = alone(ProvisionControllersOperator, sim.path, controller=3000)
        task = dag.get_task("task")
        observe = sim.cluster.observe

        def killed(*given: Any) -> Any:
            task.on_kill()
            return observe(*given)

        sim.cluster.observe = killed  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="Airflow ends this task"):
            task.execute(context(dag))
        assert sim.cluster.nodes[NodeRole.CONTROLLER, 3000].formatted is None
        assert any(path.endswith("/owner") for path in sim.ensemble.znodes), "the run still owns the cluster"

    def test_an_act_that_was_begun_is_completed(self, rehearse: Rehearse, no_variables: None, tmp_path: Path) -> None:
        sim = rehearse()
        sim.cluster.context(tmp_path / "kmigrate" / "backup")  # has the originals
        sim.cluster.token = 0  # tokens come from the fence of the run from here on
        dag = alone(ProvisionControllersOperator, sim.path, controller=3000)
        task, node = dag.get_task("task"), sim.cluster.nodes[NodeRole.CONTROLLER, 3000]
        start = sim.cluster.start

        def killed(spec: Any) -> Any:
            task.on_kill()
            return start(spec)

        sim.cluster.start = killed  # type: ignore[method-assign]
        task.execute(context(dag))
        assert (node.starts, node.running is None) == (1, False)


def test_an_operator_of_a_step_that_does_not_exist_is_an_error_of_its_dag(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no step 'wype'; there are .*wipe"):
        alone(MigrationStepOperator, tmp_path, step="wype")
    with pytest.raises(ValueError, match=r"one of controllers ready, .* not 'roll'"):
        alone(StepSensor, tmp_path, step="roll")


def test_the_simulated_cluster_is_the_cluster_of_its_file(rehearse: Rehearse) -> None:
    assert rehearse(SimCluster(5, 1)).cluster.spec.brokers[4].id == 4


@pytest.mark.slow
@pytest.mark.parametrize(("later", "state"), [("4.0-IV0", "failed"), ("3.9-IV0", "success")])
def test_a_finalization_compares_with_the_readiness_that_was_approved(
    begun: Callable[..., Any], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch, later: str, state: str
) -> None:
    sim, seen = begun(all_kraft)[0], ["3.9-IV0"]
    observe = sim.cluster.observe
    monkeypatch.setattr(sim.cluster, "observe", lambda *asked: replace(observe(*asked), metadata_version=seen[-1]))
    with DAG(dag_id=f"approved_{next(_numbers)}", schedule=None) as dag:
        shown = ReadinessOperator(task_id="readiness", cluster_file=str(sim.path))
        meanwhile = PythonOperator(task_id="meanwhile", python_callable=lambda: seen.append(later))
        acts = FinalizeControllerOperator(task_id="acts", cluster_file=str(sim.path), controller=3001, readiness="readiness")
        shown >> meanwhile >> acts
    states = tasks(run_dag(dag))
    assert states == {"readiness": "success", "meanwhile": "success", "acts": state}
    assert sim.cluster.nodes[NodeRole.CONTROLLER, 3001].stops == (state == "success")
