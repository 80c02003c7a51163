"""Statuses, plans and waiting requests from Airflow's own database, for the pages in its API server; each user gets what their rights on DAGs show.

What was read is kept for some seconds for all users; rights are asked for each request.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import and_, func, select

from airflow_provider_kmigrate.core.migration.plan_document import PlanOf
from airflow_provider_kmigrate.pages.stored import (
    NO_STATE,
    WAITING_STATES,
    ApprovalRequest,
    ClusterStatus,
    Entry,
    StoredStatus,
    check_stored,
    cluster_of_dag,
    combine,
)
from airflow_provider_kmigrate.utils.status_xcom import STATUS, plan_key

_KEPT_S: Final = 5.0
_OF_A_DAG: Final = 3  # newest statuses of each DAG
_DAYS: Final = 7
_PREFIX: Final = "kmigrate_"


@dataclass(frozen=True, slots=True)
class DatabaseSnapshot:
    """What was read at a monotonic time, for all users; each status is checked once."""

    statuses: Sequence[Entry]
    requests: Sequence[ApprovalRequest]
    dag_ids: frozenset[str]
    at: float


_lock = Lock()
kept: list[DatabaseSnapshot] = []
"""The newest reading, or none."""


def read_clusters(user: Any) -> list[ClusterStatus]:
    """Each cluster of which the user may read a DAG and its XComs, also one without a status yet."""
    reading = _read_all()
    permitted = _permitted(user, {entry.stored.dag_id for entry in reading.statuses} | reading.dag_ids, DagAccessEntity.XCOM)
    asked = _permitted(user, {request.dag_id for request in reading.requests}, DagAccessEntity.HITL_DETAIL)
    now_ms = round(1000 * time.time())
    statuses = combine(
        [entry for entry in reading.statuses if entry.stored.dag_id in permitted],
        [request for request in reading.requests if request.dag_id in asked],
        now_ms,
    )
    named = {status.cluster for status in statuses}
    without_status = {cluster_of_dag(dag_id) for dag_id in reading.dag_ids & permitted} - named
    return [*statuses, *(ClusterStatus(name, now_ms) for name in sorted(without_status))]


def read_plan(user: Any, cluster: str, of: PlanOf) -> StoredStatus | None:
    """The newest plan of this kind of a cluster that a task has stored; None: there is none, or the user may not read its DAG."""
    newest = _select_newest(plan_key(of), 1)
    rows = [row for row in newest if cluster_of_dag(row.dag_id) == cluster and row.dag_id.startswith(_PREFIX)]
    permitted = _permitted(user, {row.dag_id for row in rows}, DagAccessEntity.XCOM)
    return max((row for row in rows if row.dag_id in permitted), key=lambda row: row.stored_ms, default=None)


def _permitted(user: Any, dag_ids: set[str], entity: DagAccessEntity) -> set[str]:
    manager = get_auth_manager()
    readable = dag_ids & manager.get_authorized_dag_ids(user=user, method="GET") if dag_ids else set()
    return {
        dag_id
        for dag_id in readable
        if manager.is_authorized_dag(method="GET", access_entity=entity, details=DagDetails(id=dag_id), user=user)
    }


def _read_all() -> DatabaseSnapshot:
    with _lock:
        if not kept or time.monotonic() - kept[0].at > _KEPT_S:
            now_ms = round(1000 * time.time())
            checked = [check_stored(row, now_ms) for row in _select_newest(STATUS, _OF_A_DAG)]
            kept[:] = [DatabaseSnapshot(checked, _select_requests(), _select_dag_ids(), time.monotonic())]
        return kept[0]


def _select_newest(key: str, of_a_dag: int) -> list[StoredStatus]:
    since = datetime.now(UTC) - timedelta(days=_DAYS)
    rank = func.row_number().over(partition_by=XComModel.dag_id, order_by=XComModel.timestamp.desc()).label("rank")
    place = ("dag_id", "run_id", "task_id", "map_index")
    columns = (*(getattr(XComModel, name) for name in place), XComModel.timestamp, XComModel.value)
    ranked = select(*columns, rank).where(XComModel.key == key, XComModel.timestamp > since).subquery()
    is_writer = and_(*(getattr(TaskInstance, name) == ranked.c[name] for name in place))
    newest = select(ranked, TaskInstance.state).outerjoin(TaskInstance, is_writer).where(ranked.c.rank <= of_a_dag)
    with create_session() as session:
        rows = session.execute(newest).all()
    return [
        StoredStatus(
            row.dag_id, row.run_id, row.task_id, round(1000 * row.timestamp.timestamp()), row.value, str(row.state or NO_STATE)
        )
        for row in rows
    ]


def _select_requests() -> list[ApprovalRequest]:
    query = (
        select(HITLDetail, TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id)
        .join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        .where(
            HITLDetail.responded_at.is_(None),
            TaskInstance.state.in_(WAITING_STATES),
            TaskInstance.dag_id.startswith(_PREFIX, autoescape=True),
        )
    )
    with create_session() as session:
        return [
            ApprovalRequest(
                dag_id,
                run_id,
                task_id,
                detail.subject,
                round(1000 * detail.created_at.timestamp()),
                [str(user["name"]) for user in detail.assignees or ()],
            )
            for detail, dag_id, run_id, task_id in session.execute(query).all()
        ]


def _select_dag_ids() -> frozenset[str]:
    query = select(DagModel.dag_id).where(
        DagModel.dag_id.startswith(_PREFIX, autoescape=True), DagModel.dag_id.contains("__", autoescape=True), ~DagModel.is_stale
    )
    with create_session() as session:
        return frozenset(session.scalars(query).all())
