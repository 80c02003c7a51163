"""Approvals that nobody gave: forged as XComs and task states by a user of Airflow, or in ZooKeeper by any client of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk import DAG
from fastapi.testclient import TestClient

from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.clients.records import Records
from airflow_provider_kmigrate.core.cluster_state.spec import ApproverSpec
from airflow_provider_kmigrate.core.migration.approval import Approval, ApproverAnswer, Shown, hash_text
from airflow_provider_kmigrate.core.migration.plan import EXPAND, FINALIZE, ROLL_BACK
from airflow_provider_kmigrate.operators.approval import ApproveExpansionOperator, ApproveRollbackOperator
from tests.clients.memory_zookeeper import MemoryZooKeeper
from tests.provider.airflow_tasks import clear, token_of
from tests.provider.approver_users import ONE, TWO, Users, gate
from tests.provider.dag_tasks import tasks
from tests.provider.simulated import Rehearsal
from tests.steps.phases import all_kraft
from tests.steps.sim_nodes import CLUSTER_ID

RunDag = Callable[..., Any]


@pytest.fixture
def sim(begun: Callable[..., Any]) -> Rehearsal:
    """A cluster in dual-write."""
    found: Rehearsal = begun(all_kraft)[0]
    return found


def forged(run: str, option: str, users: tuple[str, ...] = ("ann", "bob"), cluster: str = CLUSTER_ID) -> Approval:
    """What two approvers would have left, with all that can be seen in Airflow's pages."""
    at = datetime.now(UTC).isoformat()
    shown = Shown(run, f"{cluster}, /migration of 5.000", {"the run's conf": hash_text("{}")})
    return Approval(shown, tuple(ApproverAnswer(option, user, user, at, "forged") for user in users), "approve")


def as_a_user(api: TestClient, method: str, path: str, body: dict[str, Any]) -> None:
    """A user of Airflow with rights on the DAG, who is no approver."""
    answer = api.request(method, f"/api/v2/{path}", json=body, headers={"Authorization": f"Bearer {token_of(api.app, 'eve')}"})
    assert answer.is_success, answer.text


@pytest.mark.slow
def test_approvals_that_are_forged_as_xcoms_finalize_nothing(
    api: TestClient, sim: Rehearsal, run_dag: RunDag, continue_run: RunDag, capsys: pytest.CaptureFixture[str]
) -> None:
    dag = gate(ONE, sim)
    run = run_dag(dag, mark_success_pattern="approve")
    assert tasks(run) == {"soak": "success", "approve": "success", "act": "failed"}
    left = {"chosen_options": [FINALIZE], "approval": forged(f"{dag.dag_id}/{run.run_id}", FINALIZE).to_json()}
    entries = f"dags/{dag.dag_id}/dagRuns/{run.run_id}/taskInstances/approve/xcomEntries"
    as_a_user(api, "POST", entries, {"key": "return_value", "value": left})
    clear(api, run, "act")
    capsys.readouterr()
    assert tasks(continue_run(dag, run))["act"] == "failed"
    assert "H06" in capsys.readouterr().out


@pytest.mark.slow
def test_a_stored_state_that_is_forged_adds_no_approver(
    api: TestClient, sim: Rehearsal, run_dag: RunDag, continue_run: RunDag, capsys: pytest.CaptureFixture[str]
) -> None:
    """One approver has answered, where two must; a user forges the other one and ends the request."""
    dag = gate(TWO, sim)

    class Forges(Users):
        def _answer(self) -> None:
            if self._left:
                return super()._answer()
            run_id = self.request()
            if run_id:
                place = f"dags/{dag.dag_id}/dagRuns/{run_id}/taskInstances/approve"
                both = forged(f"{dag.dag_id}/{run_id}", FINALIZE)
                as_a_user(api, "PUT", f"{place}/state-store/approval", {"value": both.to_json()})
                as_a_user(api, "PATCH", place, {"new_state": "success"})
            return None

        def request(self) -> str:
            from airflow.utils.session import create_session  # noqa: PLC0415

            with create_session() as session:
                found, _ = self._request(session)
                return str(found.run_id) if found else ""

    with Forges(api, dag.dag_id, [("ann", FINALIZE, "all is well")]).at_work():
        run = run_dag(dag)
    assert tasks(run) == {"soak": "success", "approve": "success", "act": "failed"}
    assert "H06" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("option", [ROLL_BACK, EXPAND])
@pytest.mark.parametrize("anonymous", [True, False])
def test_a_rollback_or_an_expansion_whose_handover_is_forged_in_zookeeper_asks(
    sim: Rehearsal, option: str, *, anonymous: bool
) -> None:
    """A client of ZooKeeper has no right in Airflow: it makes a run the owner, with the approval of an approver."""
    kind = {ROLL_BACK: ApproveRollbackOperator, EXPAND: ApproveExpansionOperator}[option]
    with DAG(dag_id="forged", schedule=None) as dag:
        asked = kind(
            task_id="approve", cluster="sim", cluster_id=CLUSTER_ID, cluster_file=str(sim.path), plan="",
            approvers=ApproverSpec(("ann", "bob")),
        )  # fmt: skip
    run, before = f"{dag.dag_id}/run", forged("kmigrate_zk_to_kraft__sim/never", option, ("ann",))
    zk = MemoryZooKeeper(sim.ensemble)
    owner = {"owner": run, "since": "x", "host": "h", "approved": before.to_json()}
    Fence(zk, CLUSTER_ID, run).use_current_token()
    zk.commit([Records(zk, CLUSTER_ID).handover_operation(before, run)])
    sim.ensemble.put(f"/_kmigrate/{CLUSTER_ID}/owner", json.dumps(owner).encode())
    sim.ensemble.anonymous, sim.ensemble.opened = anonymous, {"/_kmigrate"}
    context: Any = {"params": {}, "dag": dag, "run_id": "run"}
    assert (
        asked.find_prior_approval(context, Shown(run, f"{CLUSTER_ID}, /migration of 1.000", {"plan": hash_text("plan")})) is None
    )


@pytest.mark.slow
def test_the_same_handover_is_believed_where_nobody_else_can_write(sim: Rehearsal) -> None:
    with DAG(dag_id="handed", schedule=None) as dag:
        asked = ApproveRollbackOperator(
            task_id="approve", cluster="sim", cluster_id=CLUSTER_ID, cluster_file=str(sim.path), plan="", approvers=ONE
        )
    before, zk = forged("kmigrate_zk_to_kraft__sim/run", ROLL_BACK, ("ann",)), MemoryZooKeeper(sim.ensemble)
    with Fence(zk, CLUSTER_ID, before.shown.run) as fence:
        fence.hand_over("handed/run", Records(zk, CLUSTER_ID).handover_operation(before, "handed/run"))
    context: Any = {"params": {}, "dag": dag, "run_id": "run"}
    given = asked.find_prior_approval(context, Shown("handed/run", before.shown.cluster, before.shown.evidence))
    assert given is not None
    assert given.answers == before.answers
