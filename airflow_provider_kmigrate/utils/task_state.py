"""Where a task keeps its progress between its processes: in Airflow's store of its state, or in files where Airflow has none (3.1 and 3.2)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from airflow.sdk import Context

from airflow_provider_kmigrate.airflow_releases import AirflowFailException
from airflow_provider_kmigrate.clients.progress_files import ProgressFiles, TaskOfRun
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.utils.step_context import state_folder

_log = logging.getLogger(__name__)
_STATE: Final = "task_state_store"  # in a task's context, since Airflow 3.3
_KEY: Final = "progress"  # in Airflow's store


class TaskState(Protocol):
    """One JSON value of a task of a run. It outlives each process of the task, and no other task or run reads it."""

    def read(self) -> object:
        """What earlier processes of this task stored; None if nothing is stored."""

    def write(self, value: object) -> None:
        """Store a value; on return, the next process of the task reads it."""


def open_task_state(context: Context, *, resumed: bool = False) -> TaskState:
    """The store that this Airflow has. `resumed`: after a deferral, so an earlier process certainly stored something."""
    state: Any = context
    return _AirflowState(state[_STATE]) if _STATE in state else _FileState(state, resumed=resumed)


class _AirflowState:
    """Airflow's own store: each read and write is a request to its API."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def read(self) -> object:
        return self._store.get(_KEY, None)

    def write(self, value: object) -> None:
        from airflow.sdk.execution_time.context import NEVER_EXPIRE  # noqa: PLC0415  # not in every release

        self._store.set(_KEY, value, retention=NEVER_EXPIRE)


class _FileState:
    """Files of `[kmigrate] folder`. A refusal fails the task without retries: each would see the same. Else raises as `ProgressFiles`."""

    def __init__(self, context: Any, *, resumed: bool) -> None:
        ti, run = context["ti"], context["dag_run"]
        task = TaskOfRun(
            ti.dag_id, ti.run_id, run.run_after.isoformat(), ti.task_id, -1 if ti.map_index is None else ti.map_index
        )
        self._files, self._resumed = ProgressFiles(state_folder() / "progress", task, ti.try_number), resumed

    def read(self) -> object:
        _log.info("This Airflow has no store of a task's state: the progress of this task is in %s.", self._files.folder)
        with _failing_task():
            return self._files.take(resumed=self._resumed)

    def write(self, value: object) -> None:
        with _failing_task():
            self._files.write(value)


@contextmanager
def _failing_task() -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise AirflowFailException(str(error)) from None
