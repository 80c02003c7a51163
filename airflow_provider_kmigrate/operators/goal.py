"""The goal of a migration's run, its param `to`: a run that has reached it ends well, and a later run does what is left."""

from __future__ import annotations

from typing import Any, Final

from airflow.sdk import BaseOperator, Context
from airflow.sdk.bases.xcom import BaseXCom

from airflow_provider_kmigrate.airflow_releases import AirflowFailException, DownstreamTasksSkipped
from airflow_provider_kmigrate.core.cluster_state.spec import StopPoint
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.utils.step_context import acting_context

END: Final = "finalized"
"""The goal of a run that names no other."""


def end_run_at_goal(cluster_file: str, point: StopPoint, context: Context, result: object = None) -> None:
    """Free the cluster and skip everything behind the task, which has succeeded, if `point` is the goal of the run: its `post_execute`.

    Killed, it leaves nothing: the task that is run again finds its own work done. Fails if the cluster cannot be freed.
    """
    if context["params"].get("to") != str(point):
        return
    task: BaseOperator = context["task"]  # type: ignore[assignment]  # no mapped task has a goal
    try:
        with acting_context(cluster_file, context, task.log.info) as step_context:
            step_context.fence.release()
            step_context.journal.write("goal", str(point), "The run has reached its goal; the cluster is free.")
    except KMigrateError as error:
        raise AirflowFailException(str(error)) from None
    ti: Any = context["ti"]
    ti.xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=result)  # Airflow stores no return value of a task that skips others
    task.log.info("The goal of this run, %s, is reached. A later run does what is left.", point)
    raise DownstreamTasksSkipped(tasks=sorted(task.get_flat_relative_ids(upstream=False)))  # type: ignore[no-untyped-call]
