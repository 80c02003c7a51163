"""The read-only DAGs: whether a cluster may be migrated, and whether anything is wrong with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

from airflow.sdk import DAG, chain

from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration.plan import MIGRATION
from airflow_provider_kmigrate.dag_builders.audit import check_tasks
from airflow_provider_kmigrate.dag_builders.chaining import cluster_dag
from airflow_provider_kmigrate.dag_builders.task_docs import render_task_page
from airflow_provider_kmigrate.operators.migration import PreflightOperator, WatchOperator

_UNREPORTED = {"on_failure_callback": None}  # a preflight is started by hand, and a watch reports its alarms itself, once each
_PREFLIGHT = """\
### {name}: may it be migrated?

Checks whether cluster `{cluster_id}` may move from ZooKeeper to KRaft. It takes no lock and changes nothing, so it may
run at any time. **Failed** means that something blocks the migration. The log has every finding with its remedy, and names the page with all of
them. The migration's first task checks the same again. With `audit` in the cluster file, Spark is tried beside it.
"""
_WATCH = """\
### {name}: is anything wrong?

Checks cluster `{cluster_id}` every ten minutes, takes no lock and changes nothing. **Failed** means that an operator must act: a forbidden
state, brokers in migration mode for longer than `policy.max_hybrid`, brokers that compute the coordinators of groups with different partition
counts (K01), or a rollback that is not possible any more. It also fails if in three checks nodes do not respond or are out of their ISRs, a
rollback is not assured, a finalization stays incomplete, or Kafka's own gauges contradict it (G41; only with `controller_metrics`). Its result
says in every phase whether a rollback is possible. Unpause it before the migration and alert on its failures; pause it afterwards.
"""


def build_preflight(spec: ClusterSpec) -> DAG:
    """The DAG `kmigrate_preflight__<cluster>`, for manual runs."""
    text = _PREFLIGHT.format(name=spec.name, cluster_id=spec.cluster_id)
    with cluster_dag(
        spec, "kmigrate_preflight", text, partial(render_task_page, plan=MIGRATION), default_args=_UNREPORTED
    ) as dag:
        PreflightOperator(cluster_file=spec.path, task_id="preflight", retries=0)
        if spec.audit is not None:
            chain(*check_tasks(spec))
    return dag


def build_watch(spec: ClusterSpec) -> DAG:
    """The DAG `kmigrate_watch__<cluster>`, every ten minutes: a failed or waiting migration run raises no alarm of its own."""
    text = _WATCH.format(name=spec.name, cluster_id=spec.cluster_id)
    begins, every = datetime(2026, 1, 1, tzinfo=UTC), timedelta(minutes=10)
    with cluster_dag(
        spec,
        "kmigrate_watch",
        text,
        render_task_page,
        schedule=every,
        start_date=begins,
        is_paused_upon_creation=True,
        default_args=_UNREPORTED,
    ) as dag:
        # a watch that hangs must not keep the next ones from running; it changes nothing, so it may end anywhere
        WatchOperator(
            cluster_file=spec.path, task_id="watch", retries=2, retry_delay=timedelta(minutes=1), execution_timeout=every
        )
    return dag
