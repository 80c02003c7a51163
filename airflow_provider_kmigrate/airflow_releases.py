"""What differs among the releases of Airflow that kmigrate runs on, 3.1 and later, in one place.

| Airflow | lacks | instead |
| --- | --- | --- |
| 3.1, 3.2 | a store of a task's state | files in `[kmigrate] folder` (`utils.task_state`) |
| 3.1, 3.2 | the list of Variables' names | the answer of the API server for one name (`is_variable_stored`) |
| 3.1, 3.2 | functions of the metrics, without a class | that class |
| 3.1 | requests of a triggerer's threads to its supervisor: they use locks of the loop | threads that asgiref connects with the loop |
| 3.1 | exceptions of tasks in the SDK | those of Airflow's core |
| 3.1 | commands of providers (`airflow kmigrate`) | `kmigrate` alone |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Variable

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
    "send_gauge",
]


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
