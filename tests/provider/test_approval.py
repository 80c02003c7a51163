"""The gate before the point of no return: asked, answered, passed by beforehand, and never by accident."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param

from airflow_provider_kmigrate.core.migration.controllers import VERDICT_HOLDS
from airflow_provider_kmigrate.core.migration.plan import FINALIZE, STAY
from airflow_provider_kmigrate.core.migration.rollback_plan import plan_rollback
from airflow_provider_kmigrate.dag_builders import zk_to_kraft
from airflow_provider_kmigrate.operators.approval import ApproveFinalizationOperator
from airflow_provider_kmigrate.operators.migration import FinalizeControllerOperator
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.utils.step_context import JUDGED_AT
from tests.core.plan_facts import facts_of
from tests.core.preflight_views import healthy
from tests.provider.conftest import Sleep
from tests.provider.dag_tasks import tasks
from tests.provider.person import Person
from tests.provider.simulated import Rehearsal, rehearsal
from tests.steps.phases import all_kraft
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import CLUSTER_ID

RunDag = Callable[..., Any]
_numbers = itertools.count()


def gate(sim: Rehearsal, **arguments: Any) -> DAG:
    """A DAG with nothing but the gate."""
    params = {"approve_finalization": Param("", type="string")}
    given = {
        "cluster": "sim", "cluster_id": CLUSTER_ID, "cluster_file": str(sim.path), "evidence": "* soak: {{ 40 + 2 }} h", **arguments,
    }  # fmt: skip
    with DAG(dag_id=f"gate_{next(_numbers)}", schedule=None, params=params, default_args={"retries": 2}) as dag:
        ApproveFinalizationOperator(task_id="approve", **given)
    return dag


@pytest.fixture
def sim(begun: Callable[..., Any]) -> Rehearsal:
    """A cluster in dual-write."""
    return begun(all_kraft)[0]


def answered(
    sim: Rehearsal, run_dag: RunDag, option: str, rehearsal: bool = True, **arguments: Any
) -> tuple[str, HITLDetail | None, TaskInstance]:
    """The run's state, what was asked, and the gate's task."""
    dag = gate(sim, rehearsal=rehearsal)
    with Person(dag.dag_id, option).at_work() as person:
        run = run_dag(dag, **arguments)
    [instance] = run.get_task_instances()
    return str(run.state), person.asked, instance


@pytest.mark.slow
def test_finalize_passes(sim: Rehearsal, run_dag: RunDag) -> None:
    state, asked, _ = answered(sim, run_dag, FINALIZE)
    assert state == "success"
    assert asked is not None
    assert asked.options == [STAY, FINALIZE]
    assert not asked.defaults, "silence is never taken for a yes"
    assert CLUSTER_ID in (asked.body or "")
    assert "* soak: 42 h" in (asked.body or ""), "the evidence is rendered"
    assert "**What was observed:**\n\n* soak: 42 h" in (asked.body or ""), "no answer is a point in the list of the evidence"


def test_without_an_answer_it_waits(sim: Rehearsal, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sleep, "MOST", 3)
    with pytest.raises(pytest.fail.Exception, match=r"the run does not end, its tasks are {'approve': 'awaiting_input'}"):
        run_dag(gate(sim))


@pytest.mark.slow
def test_stay_fails_without_asking_again(sim: Rehearsal, run_dag: RunDag) -> None:
    state, _, instance = answered(sim, run_dag, STAY)
    assert (state, instance.try_number) == ("failed", 1)


@pytest.mark.slow(seconds=50)
def test_the_log_of_an_approval_says_which_user_gave_which_answer(
    sim: Rehearsal, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ApproveFinalizationOperator, "log", log := Mock())
    answered(sim, run_dag, FINALIZE)
    log.info.assert_any_call("Answered %s by %s.", FINALIZE, "Ann")


def test_a_run_that_names_the_cluster_is_not_asked(sim: Rehearsal, run_dag: RunDag) -> None:
    state, asked, _ = answered(sim, run_dag, STAY, run_conf={"approve_finalization": CLUSTER_ID})
    assert (state, asked) == ("success", None)


@pytest.mark.slow
def test_only_a_rehearsal_is_approved_by_a_runs_conf(sim: Rehearsal, run_dag: RunDag) -> None:
    state, asked, _ = answered(sim, run_dag, STAY, rehearsal=False, run_conf={"approve_finalization": CLUSTER_ID})
    assert state == "failed"
    assert asked is not None


@pytest.mark.slow
@pytest.mark.parametrize("text", ["yes", CLUSTER_ID.lower(), f"{CLUSTER_ID} "])
def test_any_other_text_is_no_approval(sim: Rehearsal, run_dag: RunDag, text: str) -> None:
    state, asked, _ = answered(sim, run_dag, STAY, run_conf={"approve_finalization": text})
    assert state == "failed"
    assert asked is not None


OLDER = {
    "soak": "The migration is finalized already: there is nothing left to soak for.",
    "before_approval.rollback_plan": "Open.\n\n1. stop controllers\n2. hand over",
    "before_approval.readiness": "A rollback is possible now.\n\nFingerprint: `0123`",
    "before_approval.equivalence": "The same.",
    "before_approval.dual_write_lag": "None.",
}


SAID = OLDER | {
    "before_approval.rollback_plan": plan_rollback(facts_of(healthy()), ["stop controllers", "hand over"], ["Kept: all."]),
    "before_approval.readiness": {
        "kind": "readiness", "version": 1, "summary": "A rollback is possible now.", "reasons": [], "fingerprint": "0123",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "plan"),
    [
        (OLDER, "  Open.\n\n  1. stop controllers\n  2. hand over\n"),
        (SAID, "  1. stop controllers\n  2. hand over\n\n  Kept: all.\n"),
    ],
    ids=["texts of a run that an older kmigrate began", "documents"],
)
def test_the_evidence_of_an_approval_is_what_earlier_tasks_said_and_nothing_else(
    tmp_path: Path, said: dict[str, Any], plan: str
) -> None:
    """On a finalization that has begun the soak has seen nothing, and a rollback may be impossible: neither is claimed."""
    dag = zk_to_kraft.build(load(rehearsal(tmp_path, SimCluster()).path))
    task = dag.get_task("approve")
    task.render_template_fields({"ti": SimpleNamespace(xcom_pull=lambda task_ids: said[task_ids])})  # type: ignore[typeddict-item]
    shown = task.body
    assert "* soak: The migration is finalized already: there is nothing left to soak for.\n" in shown
    assert f"* the rollback, which becomes impossible after this step:\n\n{plan}" in shown
    assert "* is a rollback possible:\n\n  A rollback is possible now.\n\n  Fingerprint: `0123`\n" in shown
    assert not [
        claim
        for claim in ("KRaft mode", "ISR", "backup", "hash", "flag,")
        if claim in shown.split("* **Finalize (irreversible)**")[0]
    ]


def test_the_approval_task_is_never_retried_whatever_the_dag_says(sim: Rehearsal) -> None:
    assert gate(sim).get_task("approve").retries == 0


def judged(at: float, ti: Any) -> None:
    ti.xcom_push(JUDGED_AT, at)


@pytest.mark.slow
@pytest.mark.parametrize(("left", "finalized"), [(600.0, False), (40_000.0, True)])
def test_an_audit_that_grows_too_old_while_a_window_is_awaited_finalizes_nothing(
    begun: Callable[..., Any], run_dag: RunDag, left: float, finalized: bool
) -> None:
    """The simulated clock begins at 00:16 UTC; `left`: seconds for which the audit still counts then."""
    sim, _ = begun(all_kraft)
    sim.cluster.clock.time += 2 * 86_400.0  # an audit of the day before has a time after 1970
    sim.path.write_text(yaml.safe_dump(yaml.safe_load(sim.path.read_text()) | {"windows": ["02:00-23:00"]}))
    with DAG(dag_id=f"gate_{next(_numbers)}", schedule=None) as dag:
        verdict = PythonOperator(
            task_id="verdict", python_callable=judged, op_args=[sim.cluster.clock.now() - VERDICT_HOLDS + left]
        )
        finalize = FinalizeControllerOperator(task_id="finalize", cluster_file=str(sim.path), verdict="verdict")
        verdict >> finalize
    before = sim.restarts()
    states = tasks(run_dag(dag))
    assert states["finalize"] == ("success" if finalized else "failed")
    assert (sim.restarts() > before) is finalized


@pytest.mark.slow
def test_a_migration_that_is_held_and_approved_later_ends_in_a_second_run(
    rehearse: Callable[..., Rehearsal], run_dag: RunDag, known: Callable[[DAG], None]
) -> None:
    from airflow_provider_kmigrate.dag_builders import folder  # noqa: PLC0415

    sim = rehearse()
    dags = folder.dags_of(sim.path.parent)
    dag = dags["kmigrate_zk_to_kraft__sim"]
    known(dags["kmigrate_rollback__sim"])
    with Person(dag.dag_id, STAY).at_work() as person:
        run = run_dag(dag)
    states = tasks(run)
    assert str(run.state) == "failed"
    assert not sim.cluster.finalized
    assert {task for task, state in states.items() if state == "upstream_failed"} == {
        "start_rollback",
        "rollback_started",
        *(f"finalize.controller_300{node}" for node in range(3)),
        "finalize.active_last",
        "finalize.finalized",
    }
    body = person.asked.body if person.asked else ""
    assert "Every gate stayed healthy" in (body or "")
    assert "brokers 0, 1, 2 in KRaft mode and none fenced" in (body or "")
    assert "A rollback is possible now." in (body or "")
    assert "restart brokers 0, 1, 2 with their original files" in (body or "")
    assert "A rollback is possible now. It would take about" in (body or ""), "M14: nowhere that a rollback is possible"
    assert "None" not in (body or ""), "every piece of evidence is there"
    before = sim.restarts()
    with Person(dag.dag_id, FINALIZE).at_work():
        run = run_dag(dag)
    assert str(run.state) == "success"
    assert sim.cluster.finalized
    assert sim.restarts() == before + 3, "only the controllers"
