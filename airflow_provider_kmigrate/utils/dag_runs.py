"""What keeps a run of another DAG from beginning or going on: its DAG is paused, another run is under way, or it failed. It may own the cluster.

Each text says what was seen and the one thing to do. What Airflow does not answer is a reason, too: unread is not unpaused.
`ti` is the task instance that asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def why_paused(ti: Any, dag_id: str) -> str:
    """Why runs of this DAG do not begin; empty if they do, or if this Airflow cannot say it (3.1): a run that stays queued is seen by itself."""
    if not _may_say_paused(ti):
        return ""
    try:
        is_paused = ti.get_dag(dag_id).is_paused
    except Exception as error:  # noqa: BLE001 - of whatever kind
        return (
            f"Airflow did not say whether {dag_id} is paused ({error}). Check that this DAG is there and the API server answers."
        )
    return f"The DAG {dag_id} is paused: none of its runs begins. Unpause it." if is_paused else ""


def _may_say_paused(ti: Any) -> bool:
    return hasattr(ti, "get_dag")  # since Airflow 3.2


def why_no_run_begins(ti: Any, dag_id: str) -> str:
    """Why a run of this DAG that is made now would not begin; empty if it would."""
    if why := why_paused(ti, dag_id):
        return why
    if ti.get_dr_count(dag_id=dag_id, states=["running"]):
        return f"Another run of {dag_id} is under way. Answer its request, wait until it ends, or mark it failed."
    return ""


def why_queued(ti: Any, run: str) -> str:
    """Why a run, `<DAG id>/<run id>`, has not begun; empty if it has begun or is over."""
    dag_id, _, run_id = run.partition("/")
    state = state_of(ti, run)
    if not state:
        return f"Airflow does not know run {run_id} of {dag_id}, or does not answer. Check the API server."
    if state != "queued":
        return ""
    unknown = "" if _may_say_paused(ti) else f"Airflow 3.1 does not say whether {dag_id} is paused: unpause it if so. "
    return f"Run {run_id} is queued. {why_no_run_begins(ti, dag_id) or f'{unknown}The scheduler has not begun it: check the scheduler.'}"


def why_run_stalled(ti: Any, run: str) -> tuple[str, bool]:
    """Why a run, `<DAG id>/<run id>`, does not go on, empty if it does or ended well; and whether waiting changes nothing."""
    dag_id, _, run_id = run.partition("/")
    if not dag_id or not run_id:  # a program without Airflow
        return "", False
    match state_of(ti, run):
        case "success":
            return "", False
        case "failed":
            return f"Run {run_id} of {dag_id} failed. Clear its failed task, and it goes on.", True
        case "running":
            why = why_paused(ti, dag_id)
            return why.replace("none of its runs begins", "no further task of its run begins"), bool(why)
        case _:
            return why_queued(ti, run), bool(why_paused(ti, dag_id))


def state_of(ti: Any, run: str) -> str:
    """The state of a run as Airflow names it; empty if Airflow does not know the run, or does not answer."""
    dag_id, _, run_id = run.partition("/")
    try:
        return ti.get_dagrun_state(dag_id=dag_id, run_id=run_id)  # type: ignore[no-any-return]  # equal to a word; its `str` is not one
    except Exception:  # noqa: BLE001 - of whatever kind
        return ""


def read_task_states(ti: Any, dag_id: str, run_id: str) -> Mapping[str, str | None] | None:
    """The states of a run's tasks, by id; None: Airflow does not say."""
    try:
        states: Mapping[str, str | None] = ti.get_task_states(dag_id=dag_id, run_ids=[run_id]).get(run_id, {})
    except Exception:  # noqa: BLE001 - of whatever kind
        return None
    return states


def is_asking(ti: Any, run: str, task: str) -> bool | None:
    """Whether a task of a run waits for an answer; None: Airflow does not say."""
    dag_id, _, run_id = run.partition("/")
    states = read_task_states(ti, dag_id, run_id)
    if states is None:
        return None
    return states.get(task) in {"awaiting_input", "deferred"}
