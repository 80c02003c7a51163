"""A task alone: its DAG, as little of its context as it reads, and the store of its state."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG, BaseOperator

from airflow_provider_kmigrate.core.migration.progress import StepProgress

_numbers = itertools.count()


def alone(operator: type[BaseOperator], path: Path, **arguments: Any) -> DAG:
    """A DAG with this one task."""
    with DAG(dag_id=f"alone_{next(_numbers)}", schedule=None) as dag:
        waits = {"deferrable": True} if hasattr(operator, "resume") else {}
        operator(task_id="task", cluster_file=str(path), **waits | arguments)
    return dag


def context(dag: DAG) -> dict[str, Any]:
    """As little of a task's context as an operator reads before it observes the cluster."""
    return {"dag": dag, "run_id": "manual__1", "ti": SimpleNamespace(xcom_push=lambda **_: None), "task_state_store": {}}


class PushedXComs(dict[str, Any]):
    """A task instance that keeps the XComs which its task pushes."""

    def xcom_push(self, key: str, value: Any) -> None:
        self[key] = value


class Memory(dict[str, Any]):
    """A task's state store."""

    def set(self, key: str, value: Any, retention: Any = None) -> None:
        self[key] = value


def kept(**progress: Any) -> Memory:
    """A store with what an earlier process of the task has learned."""
    return Memory(progress=StepProgress(**progress).to_json())
