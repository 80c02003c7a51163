"""The read-only DAG that reports whether a cluster may be migrated."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.dag_builders.task_docs import doc
from airflow_provider_kmigrate.operators.migration import PreflightOperator

_DOC = """\
### {name}: may it be migrated?

Checks whether cluster `{cluster_id}` may move from ZooKeeper to KRaft. It takes no lock and changes nothing, so it may
run at any time. **Failed** means that something blocks the migration. The log has every finding with its remedy, and names the page with all of
them. The migration's first task checks the same again.
"""


def build(spec: ClusterSpec) -> DAG:
    """The DAG `kmigrate_preflight__<cluster>`, for manual runs."""
    with DAG(
        dag_id=f"kmigrate_preflight__{spec.name}",
        schedule=None,
        catchup=False,
        max_active_runs=1,
        tags=["kmigrate", "kafka", spec.name],
        doc_md=_DOC.format(name=spec.name, cluster_id=spec.cluster_id),
    ) as dag:
        PreflightOperator(cluster_file=spec.path, task_id="preflight", retries=0, doc_md=doc("preflight"))
    return dag
