"""The next move of an operator for each cluster, and which cluster needs one first: of the page Fleet, and of `kmigrate status --all`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from airflow_provider_kmigrate.core.shared.text import format_duration
from airflow_provider_kmigrate.pages.stored import ClusterStatus, Light, RollbackReason, StoredStatus

_LIGHTS: Final = tuple(Light)


class NextMove(NamedTuple):
    """`text`: empty if there is none. `code`: its entry of the runbook. `path`: of the page in Airflow where it is done; empty: the cluster's page."""

    text: str
    code: str = ""
    path: str = ""


def order_by_need(statuses: Iterable[ClusterStatus]) -> list[ClusterStatus]:
    """What needs an operator now stands first: what certainly needs one, before what may pass; the oldest request of all; then by name."""
    return sorted(
        statuses, key=lambda status: (_LIGHTS.index(status.light), _is_uncertain(status), _oldest(status), status.cluster)
    )


def _is_uncertain(status: ClusterStatus) -> bool:
    return status.light is Light.ACT and not status.has_failed and not any(alarm.is_certain for alarm in status.alarms)


def _oldest(status: ClusterStatus) -> int:
    return min((request.asked_ms for request in status.requests), default=0)


def find_next_move(status: ClusterStatus) -> NextMove:
    """What an operator does next, as the light says it."""
    moves = {
        Light.ACT: _find_act,
        Light.ASK: _find_answer,
        Light.LOOK: _find_look,
        Light.OLD: _find_silence,
        Light.UNKNOWN: _find_silence,
    }
    return moves[status.light](status) if status.light in moves else NextMove("")


def _find_act(status: ClusterStatus) -> NextMove:
    """Of a task that failed, else of an alarm, a certain one first."""
    failed = status.step if status.has_failed else None
    if failed and failed.document and failed.document.step:
        reason = next((reason for reason in failed.document.step.reasons if reason.do), None)
        path = _path_of(failed.stored)
        return NextMove(reason.do, reason.code, path) if reason else NextMove("Read the log of the task that failed.", path=path)
    alarm = min(status.alarms, key=lambda each: not each.is_certain)
    return NextMove(alarm.do if alarm.is_certain else f"If it is still so in two minutes: {alarm.do}", alarm.code)


def _find_answer(status: ClusterStatus) -> NextMove:
    request = min(status.requests, key=lambda request: request.asked_ms)
    who = ", ".join(request.users) or "a user who may edit the DAG"
    since = format_duration(max(0, status.now_ms - request.asked_ms))
    path = f"{_path_of_task(request.dag_id, request.run_id, request.task_id)}/required_actions"
    return NextMove(f"Answer the request: {request.subject} It waits for {who}, for {since}.", path=path)


def _find_look(status: ClusterStatus) -> NextMove:
    judged, watch = (status.judged.document if status.judged else None), f"kmigrate_watch__{status.observed_cluster}"
    if status.problems:
        return NextMove("Find out who wrote a stored status that no task of kmigrate can have written.")
    if judged is None or judged.rollback is None or status.is_old(status.judged):
        return NextMove(f"Unpause {watch}: it judges every ten minutes whether a rollback is possible.", path=_path_of_dag(watch))
    if judged.unread:
        return NextMove(f"Find out why this was not read: {judged.unread[0]}")
    if status.is_without_run:
        return NextMove(
            f"No run owns the cluster. {describe_start(status.observed_cluster)}",
            path=_path_of_dag(f"kmigrate_zk_to_kraft__{status.observed_cluster}"),
        )
    return _find_retry(status) or _find_lost_rollback(judged.rollback.reasons) or NextMove("Check the nodes that are not well.")


def _find_retry(status: ClusterStatus) -> NextMove | None:
    if not (status.is_tried_again and status.step and status.step.document and status.step.document.step):
        return None
    name = status.step.document.step.name
    return NextMove(f"Nothing yet: {name} failed, and Airflow runs it again.", path=_path_of(status.step.stored))


def _find_lost_rollback(reasons: Sequence[RollbackReason]) -> NextMove | None:
    if not reasons:
        return None
    return NextMove(f"Make the rollback possible again: {reasons[0].text} Fixed by: {reasons[0].fixed_by}.", reasons[0].code)


def describe_start(cluster: str) -> str:
    """What an operator does if no run continues a migration."""
    return f"Start a run of kmigrate_zk_to_kraft__{cluster} to continue, or of kmigrate_rollback__{cluster} to roll back."


def _find_silence(status: ClusterStatus) -> NextMove:
    watch = f"kmigrate_watch__{status.observed_cluster}"
    text = f"Unpause {watch}" if status.newest is None else f"Find out why {watch} has reported nothing for an hour"
    return NextMove(f"{text}: it observes the cluster every ten minutes.", path=_path_of_dag(watch))


def _path_of(stored: StoredStatus) -> str:
    return _path_of_task(stored.dag_id, stored.run_id, stored.task_id)


def _path_of_task(dag_id: str, run_id: str, task_id: str) -> str:
    return f"{_path_of_dag(dag_id)}/runs/{quote(run_id, safe='')}/tasks/{quote(task_id, safe='')}"


def _path_of_dag(dag_id: str) -> str:
    return f"/dags/{quote(dag_id, safe='')}"
