"""From the approval to the rollback: by one answer, or by a rollback that finds the migration waiting."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import DAG
from airflow.utils.session import create_session
from fastapi.testclient import TestClient
from sqlalchemy import select

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView
from airflow_provider_kmigrate.core.migration.plan import FINALIZE, ROLL_BACK
from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.operators.approval import RollbackStartedOperator
from tests.provider.airflow_tasks import clear, pause, scheduler, trigger
from tests.provider.conftest import Sleep
from tests.provider.dag_tasks import DAG_ID, tasks
from tests.provider.lock_owner import owner
from tests.provider.person import Person
from tests.provider.rollback_dag import APPROVED
from tests.provider.rollback_dag import DAG_ID as ROLLBACK_ID
from tests.provider.simulated import Rehearsal
from tests.steps.phases import all_kraft, check_back
from tests.steps.sim_nodes import CLUSTER_ID

pytestmark = pytest.mark.slow
RunDag = Callable[..., Any]


def started() -> DagRun:
    """The run of the rollback that was started last."""
    with create_session() as session:
        found = session.scalar(select(DagRun).where(DagRun.dag_id == ROLLBACK_ID).order_by(DagRun.id.desc()))
        assert found is not None
        session.expunge(found)
        return found


def test_one_answer_ends_the_migration_and_rolls_it_back(
    rehearse: Callable[..., Rehearsal],
    run_dag: RunDag,
    known: Callable[[DAG], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """M9: a rollback beside a migration that waits was refused, with advice to break a lock."""
    sim = rehearse()
    dags = folder.dags_of(sim.path.parent)
    known(dags[ROLLBACK_ID])
    with Person(DAG_ID, ROLL_BACK).at_work() as person, scheduler(ROLLBACK_ID):
        run = run_dag(dags[DAG_ID])
    states = tasks(run)
    assert str(run.state) == "success"
    assert person.asked is not None
    assert ROLL_BACK in person.asked.options
    assert (states["start_rollback"], states["rollback_started"]) == ("success", "success")
    assert {state for task, state in states.items() if task.startswith("finalize.")} == {"skipped"}
    assert not sim.cluster.finalized

    rollback_run = started()
    assert owner(sim) == f"{ROLLBACK_ID}/{rollback_run.run_id}", "the lock waits for the run that was started"
    monkeypatch.setattr(DagRun, "generate_run_id", lambda **_: rollback_run.run_id)
    ended = run_dag(dags[ROLLBACK_ID], logical_date=rollback_run.logical_date)
    assert str(ended.state) == "success", tasks(ended)
    check_back(sim.cluster)
    assert owner(sim) == ""
    journals = [path.read_text() for path in (tmp_path / "kmigrate" / "journal" / "sim").glob("*.jsonl")]
    assert sum('"kind": "approval"' in text for text in journals) == 2, "who decided stands in the journals of both runs"


BEFORE = r"(?!before_approval\.|soak$|approve$|start_rollback$|rollback_started$).*"
"""Tasks that a cluster in dual-write has behind it."""


class RollsBack(Person):
    """Answers *Roll back*; `before`: what happens between the request and the answer."""

    def __init__(self, before: Callable[[], None]) -> None:
        super().__init__(DAG_ID, ROLL_BACK)
        self._before = before

    def _answer(self) -> None:
        with create_session() as session:
            waits = self._request(session)[0] is not None
        if waits:
            self._before()
        super()._answer()


@pytest.fixture
def migration(
    begun: Callable[..., Any], known: Callable[[DAG], None], api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> tuple[Rehearsal, DAG]:
    """A cluster in dual-write, and the DAG of its migration."""
    monkeypatch.setattr(RollbackStartedOperator, "WITHIN", 1.0)
    sim, rollback = begun(all_kraft)
    known(rollback)
    pause(api, ROLLBACK_ID, paused=False)
    return sim, folder.dags_of(sim.path.parent)[DAG_ID]


@pytest.mark.parametrize("obstacle", ["paused", "another run"])
def test_an_answer_to_roll_back_fails_and_hands_nothing_over_while_no_run_would_begin(
    migration: tuple[Rehearsal, DAG], api: TestClient, run_dag: RunDag, continue_run: RunDag, *, obstacle: str
) -> None:
    """F17: the run succeeded, and the rollback stayed queued with the lock."""
    sim, dag = migration

    def hinder() -> None:
        if obstacle == "paused":
            pause(api, ROLLBACK_ID, paused=True)
        elif not runs("running"):
            trigger(api, ROLLBACK_ID, "by_hand")
            mark_all("running")

    with RollsBack(hinder).at_work():
        run = run_dag(dag, mark_success_pattern=BEFORE)
    states = tasks(run)
    assert (str(run.state), states["approve"], states["start_rollback"]) == ("failed", "success", "failed")
    assert owner(sim) == f"{DAG_ID}/{run.run_id}", "the migration's run keeps the lock"

    pause(api, ROLLBACK_ID, paused=False)
    mark_all("success")
    clear(api, run, "start_rollback")
    with scheduler(ROLLBACK_ID):
        again = continue_run(dag, run)
    assert str(again.state) == "success", tasks(again)
    assert owner(sim) == f"{ROLLBACK_ID}/{started().run_id}"


def test_a_rollback_whose_dag_is_paused_before_its_run_begins_fails_the_migration_until_it_begins(
    migration: tuple[Rehearsal, DAG], api: TestClient, run_dag: RunDag, continue_run: RunDag, capsys: pytest.CaptureFixture[str]
) -> None:
    sim, dag = migration
    with RollsBack(lambda: None).at_work():  # without a scheduler the run stays queued
        run = run_dag(dag, mark_success_pattern=BEFORE)
    assert (str(run.state), tasks(run)["start_rollback"], tasks(run)["rollback_started"]) == ("failed", "success", "failed")
    assert "The scheduler has not begun it" in capsys.readouterr().out
    assert owner(sim) == f"{ROLLBACK_ID}/{started().run_id}"

    pause(api, ROLLBACK_ID, paused=True)
    clear(api, run, "start_rollback")
    again = continue_run(dag, run)
    assert (tasks(again)["start_rollback"], tasks(again)["rollback_started"]) == ("success", "failed")
    assert f"The DAG {ROLLBACK_ID} is paused" in capsys.readouterr().out

    pause(api, ROLLBACK_ID, paused=False)
    clear(api, run, "rollback_started")
    with scheduler(ROLLBACK_ID):
        again = continue_run(dag, run)
    assert str(again.state) == "success"
    assert len(runs("running")) == 1, "a task that is cleared starts no second rollback"


def runs(state: str) -> list[str]:
    """The runs of the rollback in a state."""
    with create_session() as session:
        return list(session.scalars(select(DagRun.run_id).where(DagRun.dag_id == ROLLBACK_ID, DagRun.state == state)))


def mark_all(state: str) -> None:
    """What becomes of every queued or running run of the rollback."""
    with create_session() as session:
        active = select(DagRun).where(DagRun.dag_id == ROLLBACK_ID, DagRun.state.in_(("queued", "running")))
        for run in session.scalars(active):
            run.state = state


@pytest.fixture
def waiting(rehearse: Callable[..., Rehearsal], run_dag: RunDag, known: Callable[[DAG], None]) -> tuple[Rehearsal, DAG]:
    """A migration that waits for its approval, and the rollback's DAG."""
    sim = rehearse()
    dags = folder.dags_of(sim.path.parent)
    known(dags[ROLLBACK_ID])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sleep, "MOST", 3)
        with pytest.raises(pytest.fail.Exception, match="'approve': 'awaiting_input'"):
            run_dag(dags[DAG_ID])
    return sim, dags[ROLLBACK_ID]


def test_a_rollback_takes_the_lock_of_a_migration_that_waits_and_a_later_answer_finalizes_nothing(
    waiting: tuple[Rehearsal, DAG], run_dag: RunDag
) -> None:
    sim, rollback = waiting
    assert owner(sim).startswith(DAG_ID)
    run = run_dag(rollback, run_conf=APPROVED)
    assert str(run.state) == "success", tasks(run)
    check_back(sim.cluster)
    assert not sim.cluster.finalized


@pytest.mark.parametrize("state", ["running", "queued"])
def test_a_migration_at_work_keeps_its_lock(waiting: tuple[Rehearsal, DAG], run_dag: RunDag, state: str) -> None:
    sim, rollback = waiting
    with create_session() as session:
        asked = select(TaskInstance).where(TaskInstance.dag_id == DAG_ID, TaskInstance.state == "awaiting_input")
        for found in session.scalars(asked):
            found.state = state
    before = sim.restarts()
    run = run_dag(rollback, run_conf=APPROVED)
    assert tasks(run)["plan"] == "failed"
    assert sim.restarts() == before


def test_an_answer_comes_too_late_once_another_run_owns_the_cluster(
    rehearse: Callable[..., Rehearsal], run_dag: RunDag, known: Callable[[DAG], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = rehearse()
    dags = folder.dags_of(sim.path.parent)
    dag = dags[DAG_ID]
    known(dags[ROLLBACK_ID])
    answered = Person._answer

    def taken(person: Person) -> None:
        for path, znode in sim.ensemble.znodes.items():
            if path.endswith("/owner"):
                znode.data = json.dumps({"owner": "kmigrate_rollback__sim/other", "since": "", "host": ""}).encode()
        answered(person)

    monkeypatch.setattr(Person, "_answer", lambda person: taken(person) if waits() else None)
    with Person(dag.dag_id, FINALIZE).at_work():
        run = run_dag(dag)
    assert tasks(run)["approve"] == "failed"
    assert not sim.cluster.finalized


def waits() -> bool:
    return tasks_in("awaiting_input") > 0


def tasks_in(state: str, *tasks: str) -> int:
    """How many tasks of all runs of the migration, or how many of these, are in this state."""
    with create_session() as session:
        found = session.scalars(select(TaskInstance).where(TaskInstance.dag_id == DAG_ID, TaskInstance.state == state))
        return sum(not tasks or each.task_id in tasks for each in found)


class BegunAgain:
    """Observes a cluster whose migration was rolled back, and begun again a minute later, once the approval was given."""

    def __init__(self, sim: Rehearsal) -> None:
        self._observe, self._approved = sim.observe, tasks_in("success", "approve")  # by runs of earlier tests

    def __call__(self, *what: Any, **more: Any) -> ClusterView:
        view = self._observe(*what, **more)
        if view.zk is None or view.migration is None or tasks_in("success", "approve") == self._approved:
            return view
        later = replace(view.migration, created_at=view.migration.created_at + 60.0)
        return replace(view, zk=replace(view.zk, migration=later))


def test_an_approval_of_another_migration_finalizes_nothing(rehearse: Callable[..., Rehearsal], run_dag: RunDag) -> None:
    """The finalization recognises that by the time at which `/migration` was created."""
    sim = rehearse()
    sim.observe = BegunAgain(sim)  # type: ignore[method-assign]
    states = tasks(run_dag(folder.dags_of(sim.path.parent)[DAG_ID], run_conf={"approve_finalization": CLUSTER_ID}))
    assert (states["approve"], states["finalize.controller_3000"]) == ("success", "failed")
    assert not sim.cluster.finalized
