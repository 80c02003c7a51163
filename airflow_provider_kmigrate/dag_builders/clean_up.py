"""The DAG that removes what a migration or a rollback has left behind: it lists, asks, and removes exactly what was shown."""

from __future__ import annotations

from airflow.sdk import DAG, chain

from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration.plan import APPROVE
from airflow_provider_kmigrate.dag_builders.chaining import RETRIED, cluster_dag, plan_param
from airflow_provider_kmigrate.dag_builders.task_docs import render_task_page
from airflow_provider_kmigrate.operators.approval import ApproveCleanUpOperator, approval_arguments
from airflow_provider_kmigrate.operators.migration import CleanUpOperator, LeftoversOperator

_DOC = """\
### {name}: clean up

Lists what migrations and rollbacks of cluster `{cluster_id}` have left behind, and asks before anything is removed. Nothing else ever removes it.

| left | where | may be removed |
| --- | --- | --- |
| properties files that were replaced (they may hold secrets) | the agent's folder on each machine | after a rollback, after the finalization |
| directories of controllers that were set aside | the controllers' machines | after a rollback, after the finalization |
| properties files of stopped controllers, with the migration flag | the controllers' machines | after a rollback |
| `__cluster_metadata-0` | the brokers' machines | after a rollback |
| `/_kmigrate` | ZooKeeper | never: it holds the number by which machines refuse an older run |
| the backup, with the originals | Airflow's machines | by you |
"""


def build(spec: ClusterSpec) -> DAG:
    """The DAG `kmigrate_clean_up__<cluster>`, for manual runs."""
    text = _DOC.format(name=spec.name, cluster_id=spec.cluster_id)
    with cluster_dag(
        spec, "kmigrate_clean_up", text, render_task_page, params={"plan": plan_param("clean-up")}, default_args=RETRIED
    ) as dag:
        leftovers = LeftoversOperator(cluster_file=spec.path, task_id="leftovers", retries=0, plan="{{ params.plan or '' }}")
        leftovers_template = "{{ ti.xcom_pull(task_ids='leftovers') }}"
        approval_task = ApproveCleanUpOperator(
            task_id=APPROVE, left=leftovers_template, evidence_tasks=[leftovers.task_id], **approval_arguments(spec)
        )
        chain(
            leftovers,
            approval_task,
            CleanUpOperator(cluster_file=spec.path, task_id="clean_up", listed_by=leftovers.task_id, approved_by=APPROVE),
        )
    return dag
