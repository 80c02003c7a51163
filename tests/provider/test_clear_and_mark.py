"""*Mark as failed* and *Clear* in any order, a second run, a run that is queued: a rollback goes on, or says the one thing to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowFailException
from fastapi.testclient import TestClient

from airflow_provider_kmigrate.dag_builders import folder
from tests.provider.airflow_tasks import clear, mark, mark_run
from tests.provider.dag_tasks import tasks
from tests.provider.lock_owner import owner
from tests.provider.rollback_dag import APPROVED, DAG_ID
from tests.provider.simulated import Rehearsal
from tests.steps.phases import all_kraft, check_back

pytestmark = pytest.mark.slow
RunDag = Callable[..., Any]


class Interrupted:
    """A rollback one of whose tasks fails once, before it does anything."""

    def __init__(self, sim: Rehearsal, dag: DAG, task: str, run_dag: RunDag) -> None:
        self.sim, self.dag, self.task = sim, dag, task
        self._left = 1
        dag.get_task(task)._pre_execute_hook = self._fail_once
        self.run = run_dag(dag, run_conf=APPROVED)
        assert tasks(self.run)[task] == "failed"

    def _fail_once(self, context: Context) -> None:
        del context
        self._left -= 1
        if self._left == 0:
            raise AirflowFailException("Lost.")

    def again(self) -> DAG:
        """The DAG for another run: an object keeps the params of its last one."""
        return folder.dags_of(self.sim.path.parent)[DAG_ID]


@pytest.fixture
def interrupt(begun: Callable[..., Any], run_dag: RunDag) -> Callable[[str], Interrupted]:
    """Begin a rollback from KRaft mode that fails at a task."""
    return lambda task: Interrupted(*begun(all_kraft), task, run_dag)


ORDERS = {
    "clear it, mark it, clear it": [("clear", ""), ("mark", ""), ("clear", "")],
    "clear an earlier one": [("clear", "controller_failover.failover")],
    "mark the next one, clear an earlier one": [("mark", "rolled_back"), ("clear", "to_migration.broker_0")],
    "clear, mark the run, clear": [("clear", ""), ("mark_run", "failed"), ("clear", "")],
    "mark the run as success, clear the plan": [("mark_run", "success"), ("clear", "plan")],
}


@pytest.mark.parametrize(
    ("order", "task"),
    [*((order, "to_zookeeper.broker_1") for order in ORDERS), ("clear it, mark it, clear it", "handover.transaction")],
)
def test_a_rollback_goes_on_whatever_is_marked_and_cleared(
    interrupt: Callable[[str], Interrupted], api: TestClient, continue_run: RunDag, *, order: str, task: str
) -> None:
    rollback = interrupt(task)
    for act, subject in ORDERS[order]:
        if act == "mark_run":
            mark_run(api, DAG_ID, rollback.run.run_id, subject)
        elif act == "mark":
            mark(api, rollback.run, subject or task, "failed")
        else:
            clear(api, rollback.run, subject or task)
    ended = continue_run(rollback.dag, rollback.run)
    assert str(ended.state) == "success", tasks(ended)
    check_back(rollback.sim.cluster)
    assert owner(rollback.sim) == ""


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_second_rollback_does_the_rest_of_one_that_was_marked(
    interrupt: Callable[[str], Interrupted], api: TestClient, run_dag: RunDag, *, state: str
) -> None:
    rollback = interrupt("handover.transaction")
    mark_run(api, DAG_ID, rollback.run.run_id, state)
    ended = run_dag(rollback.again(), run_conf=APPROVED)
    assert str(ended.state) == "success", tasks(ended)
    check_back(rollback.sim.cluster)


@pytest.mark.parametrize("state", ["running", "queued"])
def test_a_rollback_beside_one_that_is_not_over_changes_nothing_until_that_is_marked_failed(
    interrupt: Callable[[str], Interrupted],
    api: TestClient,
    run_dag: RunDag,
    continue_run: RunDag,
    *,
    state: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from airflow.models.dagrun import DagRun  # noqa: PLC0415
    from airflow.utils.session import create_session  # noqa: PLC0415

    rollback = interrupt("to_migration.broker_1")
    with create_session() as session:
        first = session.get(DagRun, rollback.run.id)
        assert first is not None
        first.state = state
    before, dag = rollback.sim.restarts(), rollback.again()
    second = run_dag(dag, run_conf=APPROVED)
    assert tasks(second)["plan"] == "failed"
    assert rollback.sim.restarts() == before
    assert f"H01] The cluster is owned by run {DAG_ID}/{rollback.run.run_id}" in capsys.readouterr().out
    mark_run(api, DAG_ID, rollback.run.run_id, "failed")
    clear(api, second, "plan")
    ended = continue_run(dag, second)
    assert str(ended.state) == "success", tasks(ended)
    check_back(rollback.sim.cluster)


def test_a_task_whose_worker_died_goes_on_once_it_was_marked_failed_and_cleared(
    interrupt: Callable[[str], Interrupted], api: TestClient, continue_run: RunDag
) -> None:
    """It stands on *running*; *Clear* alone asks its process, which is gone, to restart, and the scheduler does not start it (the runbook says so)."""
    from airflow.models.taskinstance import TaskInstance  # noqa: PLC0415
    from airflow.utils.session import create_session  # noqa: PLC0415
    from sqlalchemy import select  # noqa: PLC0415

    task = "to_zookeeper.broker_1"
    rollback = interrupt(task)
    of_task = select(TaskInstance).where(TaskInstance.run_id == rollback.run.run_id, TaskInstance.task_id == task)

    def state() -> str:
        with create_session() as session:
            return str(session.scalars(of_task).one().state)

    with create_session() as session:
        session.scalars(of_task).one().state = "running"
    clear(api, rollback.run, task)
    assert state() == "restarting", "Clear alone starts nothing"
    mark(api, rollback.run, task, "failed")
    clear(api, rollback.run, task)
    assert state() == "None"
    ended = continue_run(rollback.dag, rollback.run)
    assert str(ended.state) == "success", tasks(ended)
    check_back(rollback.sim.cluster)
