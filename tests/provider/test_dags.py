"""The DAGs as Airflow sees them: what is offered for a folder of cluster files, the shape of the graph, and whole runs of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, TriggerRule
from airflow.serialization.serialized_objects import DagSerialization
from fastapi.testclient import TestClient

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import ApproverSpec, SparkJobSpec, StopPoint
from airflow_provider_kmigrate.core.migration.plan import MIGRATION
from airflow_provider_kmigrate.dag_builders import folder, zk_to_kraft
from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec import load
from tests.provider.airflow_tasks import refused
from tests.provider.conftest import Sleep
from tests.provider.dag_tasks import APPROVED, DAG_ID, names, planned, tasks
from tests.provider.simulated import Rehearsal, document, plan_of, rehearsal
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import CLUSTER_ID

DAGS = Path(__file__).parents[2] / "dags"
ROLLBACK_ID = "kmigrate_rollback__sim"
OTHERS = ("preflight", "rollback", "clean_up", "watch", "offsets_topic", "offsets_repair")
RunDag = Callable[..., Any]
TIMEOUTS = """
import sys
from pathlib import Path
from airflow.sdk.bases.operator import DEFAULT_TASK_EXECUTION_TIMEOUT
from airflow_provider_kmigrate.dag_builders import folder
dags = folder.dags_of(Path(sys.argv[1]))
limited = [task.task_id for dag in dags.values() for task in dag.tasks if task.execution_timeout or getattr(task, "response_timeout", None)]
print(f"{len(dags)} DAGs, default {DEFAULT_TASK_EXECUTION_TIMEOUT}, limited: {limited}")
"""


def bag() -> DagBag:
    return DagBag(dag_folder=DAGS)


def dag_of(brokers: int, controllers: int, where: Path) -> DAG:
    return zk_to_kraft.build(load(rehearsal(where, SimCluster(brokers, controllers)).path))


class TestFolder:
    def test_every_good_file_gives_its_dag(self, clusters: Path) -> None:
        rehearsal(clusters, SimCluster())
        found = bag()
        assert found.import_errors == {}
        assert set(found.dags) == {DAG_ID, *(f"kmigrate_{kind}__sim" for kind in OTHERS)}

    def test_a_broken_file_is_an_import_error_that_names_it_and_hides_no_good_one(self, clusters: Path) -> None:
        rehearsal(clusters, SimCluster())
        (clusters / "broken.yaml").write_text("name: other\nclusterid: x\n")
        found = bag()
        assert set(found.dags) == {DAG_ID, *(f"kmigrate_{kind}__sim" for kind in OTHERS)}
        [(file, error)] = found.import_errors.items()
        assert Path(file).name == "kmigrate_cluster_errors.py", "not the file of the good DAGs: Airflow would take them away"
        assert f"{clusters / 'broken.yaml'}:2: clusterid" in error

    def test_all_broken_files_are_reported_at_once(self, clusters: Path) -> None:
        for name in ("one", "two"):
            (clusters / f"{name}.yaml").write_text(f"name: {name}\n")
        with pytest.raises(SpecError) as caught:
            folder.check(clusters)
        assert {reason.text.split(":")[0] for reason in caught.value.reasons} == {
            str(clusters / "one.yaml"),
            str(clusters / "two.yaml"),
        }

    def test_a_notifier_that_airflow_does_not_have_is_reported_before_it_is_needed(self, clusters: Path) -> None:
        known = {"notifier": "airflow.sdk.BaseNotifier"}
        text = document(SimCluster()) | {"notify": [known, {"notifier": "airflow.sdk.Pigeon"}, {"notifier": "no.such.Mail"}]}
        (clusters / "sim.yaml").write_text(yaml.safe_dump(text))
        with pytest.raises(SpecError) as caught:
            folder.check(clusters)
        assert [reason.code for reason in caught.value.reasons] == ["F08", "F08"]
        assert DAG_ID in bag().dags, "the DAGs stay"

    def test_two_files_of_one_cluster_give_no_dag(self, clusters: Path) -> None:
        text = yaml.safe_dump(document(SimCluster()))
        (clusters / "one.yaml").write_text(text)
        (clusters / "copy.yaml").write_text(text)
        found = bag()
        assert found.dags == {}
        assert len(found.import_errors) == 1

    @pytest.mark.slow
    def test_no_default_of_airflow_cuts_a_task_off(self, clusters: Path) -> None:
        rehearsal(clusters, SimCluster())
        hostile = {
            "DEFAULT_TASK_EXECUTION_TIMEOUT": "3600",
            "DEFAULT_TASK_RETRY_DELAY": "1",
            "PARALLELISM": "1",
            "MAX_ACTIVE_TASKS_PER_DAG": "1",
        }
        done = subprocess.run(
            [sys.executable, "-c", TIMEOUTS, str(clusters)], env=os.environ | {f"AIRFLOW__CORE__{key}": value for key, value in hostile.items()},
            stdout=subprocess.PIPE, text=True, timeout=60, check=True,
        )  # fmt: skip
        said = "7 DAGs, default 1:00:00, limited: ['watch']"  # by its own limit: it changes nothing, and the next one must run
        assert done.stdout.splitlines()[-1] == said

    def test_without_the_folder_there_is_neither_dag_nor_error(self, clusters: Path) -> None:
        clusters.rmdir()
        found = bag()
        assert (found.dags, found.import_errors) == ({}, {})

    def test_the_default_folder_lies_beside_the_dags(self, airflow_home: Path) -> None:
        assert folder.configured_folder() == airflow_home / "clusters"


class TestOneTask:
    """A process that runs one task: Airflow says of which DAG."""

    def dags(self, clusters: Path, dag_id: str) -> dict[str, DAG]:
        with pytest.MonkeyPatch.context() as patch:  # as Airflow's own does, which leaves it set
            patch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", dag_id)
            return folder.dags_of(clusters)

    def two(self, clusters: Path, **other: Any) -> None:
        rehearsal(clusters, SimCluster())
        (clusters / "sim.yaml").rename(clusters / "any.yaml")
        (clusters / "a.yaml").write_text(
            yaml.safe_dump(document(SimCluster()) | {"name": "other", "cluster_id": "x" * 22} | other)
        )

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["zk_to_kraft", *OTHERS])
    def test_a_task_process_builds_only_its_own_dag_which_is_the_one_that_all_files_give(self, clusters: Path, kind: str) -> None:
        self.two(clusters)
        dag_id = f"kmigrate_{kind}__sim"
        whole = folder.dags_of(clusters)
        assert len(whole) == 14
        alone = self.dags(clusters, dag_id)
        assert alone.keys() == {dag_id}
        assert DagSerialization.to_dict(alone[dag_id]) == DagSerialization.to_dict(whole[dag_id])

    def test_a_broken_file_beside_it_does_not_matter(self, clusters: Path) -> None:
        self.two(clusters)
        (clusters / "broken.yaml").write_bytes(b"\xff: [")
        assert self.dags(clusters, DAG_ID).keys() == {DAG_ID}

    @pytest.mark.parametrize("claims", [{"name": "sim"}, {"cluster_id": CLUSTER_ID}])
    def test_two_files_of_one_cluster_still_give_no_dag(self, clusters: Path, claims: dict[str, str]) -> None:
        self.two(clusters, **claims)
        assert self.dags(clusters, DAG_ID) == {}

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "dag_id", ["another", "kmigrate_zk_to_kraft__none", "kmigrate_audit__sim", "kmigrate_new__sim", DAG_ID]
    )
    def test_all_files_are_read_if_the_id_does_not_lead_to_one_file(self, clusters: Path, dag_id: str) -> None:
        self.two(clusters)
        text = (clusters / "any.yaml").read_text()
        (clusters / "any.yaml").write_text(text.replace("name: sim", "name: !!str sim"))  # what no search of the text finds
        assert self.dags(clusters, dag_id).keys() == folder.dags_of(clusters).keys()

    def test_a_broken_file_of_its_own_gives_what_all_files_give(self, clusters: Path) -> None:
        self.two(clusters)
        with (clusters / "any.yaml").open("a") as file:
            file.write("typo: 1\n")
        assert self.dags(clusters, DAG_ID).keys() == {f"kmigrate_{kind}__other" for kind in ("zk_to_kraft", *OTHERS)}

    def test_without_the_folder_there_is_none(self, clusters: Path) -> None:
        clusters.rmdir()
        assert self.dags(clusters, DAG_ID) == {}


class TestShape:
    @pytest.mark.parametrize(("brokers", "controllers"), [(3, 3), (1, 1), (5, 3), (2, 5)])
    def test_one_chain_with_a_task_for_each_node_and_pass(self, tmp_path: Path, brokers: int, controllers: int) -> None:
        dag = dag_of(brokers, controllers, tmp_path)
        dag.check_cycle()
        expected = planned(MIGRATION, brokers, controllers)
        begins = expected.index("approve") + 1
        expected[begins:begins] = ["start_rollback", "rollback_started"]
        assert names(dag) == expected
        assert [task.task_id for task in dag.tasks if len(task.downstream_list) > 1] == ["approve"]
        assert dag.get_task("approve").downstream_task_ids == {"start_rollback", "finalize.controller_3000"}
        assert {task.task_id for task in dag.tasks if not task.downstream_list} == {"finalize.finalized", "rollback_started"}

    def test_the_migration_dag_waits_where_the_cluster_file_stops_it(self, tmp_path: Path) -> None:
        spec = load(rehearsal(tmp_path, SimCluster()).path)
        dag = zk_to_kraft.build(replace(spec, stop_after=tuple(StopPoint), approvers=ApproverSpec(("ann",), expires=60.0)))
        ways = {str(point): dag.get_task(f"stop_after_{point}") for point in StopPoint}
        around = {point: (*task.upstream_task_ids, *task.downstream_task_ids) for point, task in ways.items()}
        assert around == {
            "first_roll": ("first_roll.registered", "copy.copied"),
            "dual_write": ("copy.equivalence", "second_roll.broker_0"),
            "hybrid": ("second_roll.broker_0", "second_roll.broker_1"),
            "soak": ("soak", "before_approval.dual_write_lag"),
        }
        assert {task.response_timeout.total_seconds() for task in (*ways.values(), dag.get_task("approve"))} == {60.0}
        assert all(task.doc_md for task in ways.values())

    @pytest.mark.slow
    @pytest.mark.parametrize("job", [False, True])
    def test_the_form_offers_the_goals_at_which_no_spark_job_is_held_and_names_a_wrong_one(
        self, tmp_path: Path, known: Callable[[DAG], None], api: TestClient, *, job: bool
    ) -> None:
        spec = load(rehearsal(tmp_path, SimCluster()).path)
        dag = zk_to_kraft.build(replace(spec, spark_jobs=(SparkJobSpec("orders", "/checkpoint"),)) if job else spec)
        goals = ["finalized", "soak", "dual_write"] if job else ["finalized", "soak", "hybrid", "dual_write", "first_roll"]
        param = DagSerialization.from_dict(DagSerialization.to_dict(dag)).params.get_param("to")
        assert (param.value, param.schema["enum"]) == ("finalized", goals)
        assert all(f"{goal}: " in param.description for goal in goals)
        known(dag)
        text = refused(api, "POST", f"dags/{DAG_ID}/dagRuns", {"logical_date": None, "conf": {"to": "hybrd"}})
        assert all(part in text for part in ("to", "hybrd", *goals))

    def test_only_what_may_follow_a_postponed_node_runs_after_a_skip(self, tmp_path: Path) -> None:
        dag = dag_of(3, 3, tmp_path)
        after_skip = {task.task_id for task in dag.tasks if task.trigger_rule == TriggerRule.NONE_FAILED}
        rolls = {f"{group}.{name}" for group in ("first_roll", "second_roll") for name in ("broker_1", "broker_2", "postponed")}
        assert after_skip >= rolls | {"finalize.controller_3001", "finalize.controller_3002", "finalize.active_last"}
        others = {task for task in dag.tasks if task.task_id not in after_skip}
        assert {task.trigger_rule for task in others} == {TriggerRule.ALL_SUCCESS}

    def test_what_asks_or_judges_is_never_retried_and_what_acts_is(self, tmp_path: Path) -> None:
        retries = {task.task_id: task.retries for task in dag_of(3, 3, tmp_path).tasks}
        assert {task for task, count in retries.items() if count == 0} == {"preflight", "approve"}

    def test_one_run_at_a_time_and_only_by_hand(self, tmp_path: Path) -> None:
        dag = dag_of(1, 1, tmp_path)
        assert (dag.max_active_runs, dag.schedule, dag.catchup) == (1, None, False)

    def test_the_migration_dag_survives_airflows_serialization_with_what_its_pages_show(self, tmp_path: Path) -> None:
        dag = dag_of(3, 3, tmp_path)
        read = DagSerialization.from_dict(DagSerialization.to_dict(dag))
        assert set(read.task_dict) == set(dag.task_dict)
        assert CLUSTER_ID in (read.doc_md or "")
        approval = read.params.get_param("approve_finalization")
        assert CLUSTER_ID in str(approval.description)
        assert (approval.value, approval.schema["type"]) == (None, ["null", "string"]), "its form can be left empty"

    def test_each_task_that_restarts_a_node_compares_with_the_plan_of_the_runs_preflight(self, tmp_path: Path) -> None:
        dag = dag_of(3, 3, tmp_path)
        bound = {task.task_id for task in dag.tasks if getattr(task, "plan_task", "") == "preflight"}
        restarting = {
            f"{pass_}.{name}"
            for pass_ in ("first_roll", "second_roll")
            for name in ("broker_0", "broker_1", "broker_2", "postponed")
        }
        controllers = {*(f"controllers.provision_{number}" for number in (3000, 3001, 3002)), "finalize.active_last"}
        assert bound == restarting | controllers | {f"finalize.controller_{number}" for number in (3000, 3001, 3002)}

    def test_every_task_says_what_it_does(self, tmp_path: Path) -> None:
        assert [task.task_id for task in dag_of(1, 1, tmp_path).tasks if not task.doc_md] == []


class TestRuns:
    @pytest.mark.slow(seconds=60)
    def test_a_whole_migration(self, rehearse: Callable[..., Rehearsal], run_dag: RunDag) -> None:
        sim = rehearse()
        reviewed = plan_of(sim)["fingerprint"]
        run = run_dag(folder.dags_of(sim.path.parent)[DAG_ID], run_conf={**APPROVED, "plan": reviewed})
        states = tasks(run)
        assert str(run.state) == "success", "bound to its plan, which no act of its own changes"
        skipped = {task for task, state in states.items() if state == "skipped"}
        last = {"first_roll.broker_0", "finalize.controller_3000"}
        assert skipped == last | {"start_rollback", "rollback_started"}, (
            "the controller of each pass goes last, and no rollback starts"
        )
        assert {state for task, state in states.items() if task not in skipped} == {"success"}
        assert sim.cluster.finalized
        assert sim.restarts() == 3 * 2 + 3
        assert not any(path.endswith("/owner") for path in sim.ensemble.znodes), "the last task releases the cluster"

    @pytest.mark.slow
    def test_a_run_ends_well_at_its_goal_and_a_later_one_does_the_rest(
        self, rehearse: Callable[..., Rehearsal], run_dag: RunDag
    ) -> None:
        sim = rehearse()

        def run_to(**conf: str) -> Any:
            return run_dag(
                folder.dags_of(sim.path.parent)[DAG_ID], run_conf=conf
            )  # a DAG object keeps the params of its last run

        for goal, restarts in (("dual_write", 3), ("hybrid", 4)):
            run = run_to(to=goal)
            assert str(run.state) == "success", (goal, tasks(run))
            assert sim.restarts() == restarts, goal
            assert not any(path.endswith("/owner") for path in sim.ensemble.znodes), "the cluster is free"
            assert tasks(run)["finalize.finalized"] == "skipped"
            if goal == "hybrid":
                assert {task for task, state in tasks(run).items() if task.startswith("second_roll.") and state == "success"} == {
                    "second_roll.broker_0"
                }
        assert str(run_to(**APPROVED).state) == "success"
        assert sim.restarts() == 4 + 2 + 3, "only what was left"
        assert sim.cluster.finalized

    @pytest.mark.slow
    def test_a_migration_waits_behind_the_first_kraft_broker_and_a_rollback_takes_its_lock(
        self, rehearse: Callable[..., Rehearsal], run_dag: RunDag
    ) -> None:
        sim = rehearse()
        sim.path.write_text(yaml.safe_dump(document(sim.cluster) | {"stop_after": ["hybrid"]}))
        dag = folder.dags_of(sim.path.parent)[DAG_ID]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Sleep, "MOST", 3)
            with pytest.raises(pytest.fail.Exception, match="'stop_after_hybrid': 'awaiting_input'"):
                run_dag(dag)
        modes = sim.cluster.observe(None).modes()
        assert [modes[broker] for broker in range(3)] == [BrokerMode.KRAFT, BrokerMode.MIGRATION, BrokerMode.MIGRATION]
        assert (
            str(run_dag(folder.dags_of(sim.path.parent)[ROLLBACK_ID], run_conf={"approve_rollback": CLUSTER_ID}).state)
            == "success"
        )
        assert not any(path.endswith("/owner") for path in sim.ensemble.znodes)

    @pytest.mark.slow
    def test_a_refused_step_fails_the_run_before_the_rest_and_the_next_run_does_the_rest(
        self, rehearse: Callable[..., Rehearsal], run_dag: RunDag
    ) -> None:
        sim = rehearse(SimCluster(live_groups=("legacy",)))
        sim.path.write_text(sim.path.read_text() + "later_groups: [legacy]\n")
        dag = folder.dags_of(sim.path.parent)[DAG_ID]
        run = run_dag(dag, run_conf=APPROVED)
        states, order = tasks(run), names(dag)
        failed = order.index("second_roll.broker_2")
        assert str(run.state) == "failed"
        assert states[order[failed]] == "failed"
        assert {states[task] for task in order[failed + 1 :]} == {"upstream_failed"}
        assert "failed" not in {states[task] for task in order[:failed]}
        [instance] = [each for each in run.get_task_instances() if each.task_id == order[failed]]
        assert instance.try_number == 1, "a refusal is no accident: a retry would see the same"
        assert sim.cluster.observe(None).modes()[2] is BrokerMode.MIGRATION

        before = sim.restarts()
        sim.cluster.live_groups = ()
        assert str(run_dag(dag, run_conf=APPROVED).state) == "success"
        assert sim.restarts() == before + 1 + 3, "only the broker that was left, and the controllers"
