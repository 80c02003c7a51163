"""What a person does to the tasks of a run in Airflow: *Clear* and *Mark as*, through its API as its pages do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError


def token_of(app: Any, user: str) -> str:
    """The token of a logged-in administrator."""
    return str(app.state.auth_manager.generate_jwt(SimpleAuthManagerUser(username=user, role="admin")))


def clear(api: TestClient, run: Any, *tasks: str, downstream: bool = True) -> None:
    """*Clear* these tasks, by default with what is downstream."""
    body = {
        "dry_run": False, "dag_run_id": run.run_id, "task_ids": list(tasks), "include_downstream": downstream,
        "only_failed": False, "reset_dag_runs": True,
    }  # fmt: skip
    _call(api, "POST", f"dags/{run.dag_id}/clearTaskInstances", body)


def mark(api: TestClient, run: Any, task: str, state: str) -> None:
    """*Mark task as* success or failed."""
    _call(api, "PATCH", f"dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task}", {"new_state": state})


def mark_run(api: TestClient, dag_id: str, run_id: str, state: str) -> None:
    """*Mark run as* success, failed or queued."""
    _call(api, "PATCH", f"dags/{dag_id}/dagRuns/{run_id}", {"state": state})


def trigger(api: TestClient, dag_id: str, run_id: str) -> None:
    """*Trigger*, with no params."""
    _call(api, "POST", f"dags/{dag_id}/dagRuns", {"dag_run_id": run_id, "logical_date": None})


def pause(api: TestClient, dag_id: str, *, paused: bool) -> None:
    """The switch beside a DAG's name."""
    _call(api, "PATCH", f"dags/{dag_id}", {"is_paused": paused})


@contextmanager
def scheduler(dag_id: str) -> Iterator[None]:
    """Begins queued runs of a DAG, unless it is paused, as Airflow's scheduler does. Their tasks are not run."""
    over = Event()

    def begin_runs() -> None:
        while not over.wait(0.2):
            with suppress(SQLAlchemyError), create_session() as session:  # SQLite is locked: the next time
                if session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == dag_id)):
                    continue
                for run in session.scalars(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.state == "queued")):
                    run.state = "running"

    thread = Thread(target=begin_runs)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10.0)


def refused(api: TestClient, method: str, path: str, body: dict[str, Any]) -> str:
    """Why Airflow refuses a request."""
    answer = _request(api, method, path, body)
    assert 400 <= answer.status_code < 500, answer.text
    return str(answer.text)


def _call(api: TestClient, method: str, path: str, body: dict[str, Any]) -> None:
    answer = _request(api, method, path, body)
    assert answer.status_code == 200, answer.text


def _request(api: TestClient, method: str, path: str, body: dict[str, Any]) -> Any:
    headers = {"Authorization": f"Bearer {token_of(api.app, 'ann')}"}
    return api.request(method, f"/api/v2/{path}", json=body, headers=headers)
