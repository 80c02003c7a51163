"""What differs among the releases of Airflow that kmigrate runs on, 3.1.8 and later, in one place.

| Airflow | missing | instead |
| --- | --- | --- |
| 3.1, 3.2 | a store of a task's state | files in `[kmigrate] folder` (`open_task_state`) |
| 3.1, 3.2 | the list of Variables' names | the answer of the API server for one name (`find_stored_variables`) |
| 3.1, 3.2 | functions of the metrics, without a class | that class |
| 3.1 | requests of a triggerer's threads to its supervisor: they use locks of the loop | threads that asgiref connects with the loop |
| 3.1 | whether a DAG is paused | a run that stays queued (`utils.dag_runs`) |
| 3.1 | exceptions of tasks in the SDK | those of Airflow's core |
| 3.1 | commands of providers (`airflow kmigrate`) | `kmigrate` alone |
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from airflow.sdk import Variable

from airflow_provider_kmigrate.clients.state_folder import StateFolder
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused

try:
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        DownstreamTasksSkipped,
    )
except ImportError:  # Airflow 3.1
    from airflow.exceptions import (  # type: ignore[attr-defined,no-redef]
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        DownstreamTasksSkipped,
    )

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "DownstreamTasksSkipped",
    "find_stored_variables",
    "may_threads_ask_airflow",
    "open_task_state",
    "send_gauge",
]


_log = logging.getLogger(__name__)
_STATE: Final = "task_state_store"  # in a task's context, since Airflow 3.3
_KEY: Final = "progress"  # in Airflow's store


class TaskState(Protocol):
    """One JSON value of a task of a run. It outlives each process of the task, and no other task or run reads it."""

    def read(self) -> object:
        """What earlier processes of this task stored; None if nothing is stored."""

    def write(self, value: object) -> None:
        """Store a value; on return, the next process of the task reads it."""


def open_task_state(context: Any, folder: Path, state: StateFolder, *, resumed: bool = False) -> TaskState:
    """The store that this Airflow has, or files below `folder` of `state`. `resumed`: after a deferral, so an earlier process stored something."""
    return _AirflowState(context[_STATE]) if _STATE in context else _FileState(context, folder, state, resumed=resumed)


class _AirflowState:
    """Airflow's own store: each read and write is a request to its API."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def read(self) -> object:
        """The stored value; None if there is none."""
        return self._store.get(_KEY, None)

    def write(self, value: object) -> None:
        """Store a value, which stays until the run is deleted."""
        from airflow.sdk.execution_time.context import NEVER_EXPIRE  # noqa: PLC0415  # not in every release

        self._store.set(_KEY, value, retention=NEVER_EXPIRE)


class _FileState:
    """Files of `[kmigrate] folder`. A refusal fails the task without retries: each would see the same. Else raises as `ProgressFiles`."""

    def __init__(self, context: Any, folder: Path, state: StateFolder, *, resumed: bool) -> None:
        from airflow_provider_kmigrate.clients.progress_files import ProgressFiles, TaskOfRun  # noqa: PLC0415  # not needed since 3.3

        ti, run = context["ti"], context["dag_run"]
        task = TaskOfRun(
            ti.dag_id, ti.run_id, run.run_after.isoformat(), ti.task_id, -1 if ti.map_index is None else ti.map_index
        )
        self._files, self._resumed = ProgressFiles(folder, task, ti.try_number, state), resumed
        self._folder, self._task, self._state, self._ti = folder, task, state, ti

    def read(self) -> object:
        """The value of this task's last process, None if there is none; the run's first task removes the files of runs that have succeeded."""
        _log.info("This Airflow has no store of a task's state: the progress of this task is in %s.", self._files.folder)
        is_first_of_run = not self._files.folder.parent.is_dir()
        with _failing_task():
            value = self._files.take(resumed=self._resumed)
        if is_first_of_run:
            self._remove_finished_runs()
        return value

    def _remove_finished_runs(self) -> None:
        from airflow_provider_kmigrate.clients.progress_files import remove_finished_runs  # noqa: PLC0415  # not needed since 3.3

        try:
            if removed := remove_finished_runs(self._folder, self._task, self._state, self._has_succeeded):
                _log.info("Removed the progress of runs that have succeeded: %s.", ", ".join(removed))
        except (KMigrateError, OSError) as error:  # it only takes space
            _log.warning("The progress of earlier runs was not removed: %s", error)

    def _has_succeeded(self, run_id: str) -> bool:
        try:
            return bool(self._ti.get_dagrun_state(dag_id=self._task.dag_id, run_id=run_id) == "success")
        except Exception:  # noqa: BLE001  # whatever the API answers about a run it does not know: it stays
            return False

    def write(self, value: object) -> None:
        """Store a value; refused once a later process of the task has begun."""
        with _failing_task():
            self._files.write(value)


@contextmanager
def _failing_task() -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise AirflowFailException(str(error)) from None


def find_stored_variables(names: Sequence[str], prefix: str) -> list[str]:
    """Those of the names that Airflow's database has a Variable of, as the API server says. All of them begin with `prefix`.

    Raises whatever Airflow raises if that is not known; unlike `Variable.get`, which then returns its default.
    """
    if hasattr(Variable, "keys"):
        existing_names = set(Variable.keys(prefix=prefix))
        return [name for name in names if name in existing_names]
    return [name for name in names if _is_variable_stored(name)]


def _is_variable_stored(name: str) -> bool:
    """By the request that Airflow's own secrets backend sends, which takes every error for an absent Variable."""
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType  # noqa: PLC0415  # not needed since 3.3
    from airflow.sdk.execution_time.comms import ErrorResponse, GetVariable, VariableResult  # noqa: PLC0415
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS  # noqa: PLC0415  # exists in a task's process only

    answer = SUPERVISOR_COMMS.send(GetVariable(key=name))
    if isinstance(answer, VariableResult):
        return True
    if isinstance(answer, ErrorResponse) and answer.error == ErrorType.VARIABLE_NOT_FOUND:
        return False
    if isinstance(answer, ErrorResponse):
        raise AirflowRuntimeError(answer)
    raise TypeError(f"Airflow answered with {type(answer).__name__}")


def may_threads_ask_airflow() -> bool:
    """Whether any thread of the triggerer may ask Airflow for a connection or a Variable.

    Airflow 3.1 answers only a thread that asgiref started for the loop: others fail with "bound to a different event loop", and take the
    answers of other triggers (seen in `TriggerCommsDecoder` of 3.1.8).
    """
    return hasattr(Variable, "keys")


def send_gauge(name: str, value: float, tags: Mapping[str, str], *, plain_name: str) -> None:
    """Send a gauge through Airflow's metrics twice: by `name` with tags, and by `plain_name` for a backend that knows none."""
    try:
        from airflow.sdk.observability import stats  # noqa: PLC0415  # which of the two exists depends on the release
    except ImportError:  # Airflow 3.1
        from airflow import stats  # type: ignore[no-redef]  # noqa: PLC0415
    sender: Any = stats if hasattr(stats, "gauge") else stats.Stats
    normalize = getattr(stats, "normalize_name_for_stats", None)
    sender.gauge(normalize(plain_name, log_warning=False) if normalize else plain_name, value)
    sender.gauge(name, value, tags=dict(tags))
