"""The DAG that checks a cluster every ten minutes: a failed or waiting migration run raises no alarm of its own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.dag_builders.task_docs import doc
from airflow_provider_kmigrate.operators.migration import WatchOperator

_EVERY = timedelta(minutes=10)
_DOC = """\
### {name}: is anything wrong?

Checks cluster `{cluster_id}` every ten minutes, takes no lock and changes nothing. **Failed** means that someone must act: a forbidden
state, brokers in migration mode for longer than `policy.max_hybrid`, or a missing original that a rollback would need. It also fails if nodes
do not respond, or a finalization stays incomplete, in three checks. Unpause it before the migration and alert on its failures; pause it afterwards.
"""


def build(spec: ClusterSpec) -> DAG:
    """The DAG `kmigrate_watch__<cluster>`, every ten minutes once it is unpaused."""
    with DAG(
        dag_id=f"kmigrate_watch__{spec.name}",
        schedule=_EVERY,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=True,
        tags=["kmigrate", "kafka", spec.name],
        doc_md=_DOC.format(name=spec.name, cluster_id=spec.cluster_id),
    ) as dag:
        retries = {"retries": 2, "retry_delay": timedelta(minutes=1)}
        WatchOperator(cluster_file=spec.path, task_id="watch", doc_md=doc("watch"), **retries)
    return dag
