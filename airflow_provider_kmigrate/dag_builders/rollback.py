"""The DAG that rolls one cluster back to ZooKeeper from any phase, as long as the migration is not finalized."""

from __future__ import annotations

from functools import partial
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration.plan import APPROVE, ROLLBACK, StepRow, find_step
from airflow_provider_kmigrate.dag_builders import audit, spark_jobs
from airflow_provider_kmigrate.dag_builders.chaining import (
    ASKED_WITH_PLAN,
    RETRIED,
    UNPAUSED,
    StageTasks,
    approval_param,
    approved_task_arguments,
    chain_plan,
    cluster_dag,
    plan_param,
)
from airflow_provider_kmigrate.dag_builders.task_docs import render_task_page
from airflow_provider_kmigrate.operators.approval import ApproveRollbackOperator, approval_arguments

_DOC = """\
### {name}: back to ZooKeeper

Rolls a migration of cluster `{cluster_id}` back from any phase before finalization, while clients continue. Each task observes the
cluster and does what is left. If there is nothing to roll back, `plan` refuses and no approval is asked for.

| group | what happens | done when |
| --- | --- | --- |
| plan, approve | reads only; refused if another run owns the cluster; the request lists the steps | the operator (or the run's conf) approves |
| evidence | with a section `audit` in the cluster file: the probe's records arrive, Spark takes a fingerprint of the logs | taken, or given up |
| controller_failover | controllers that lost their flag get it back; the active one is restarted | ZooKeeper and KRaft store the same |
| hold_for, resume_after | Spark jobs of the cluster file are held meanwhile | the job runs again from where it stopped |
| to_migration | each KRaft broker restarts as a ZooKeeper broker in migration mode | back in every ISR |
| handover | controllers stop, only while ZooKeeper and KRaft are the same; one transaction: `/controller_epoch` raised, `/migration` and `/controller` deleted | a ZooKeeper controller leads |
| wipe | the controllers' directories are set aside: a controller that started again would take the cluster over | empty |
| to_zookeeper | each broker restarts with its original file | back in every ISR |
| audit_after_rollback | with a section `audit`: Spark compares logs and records with those before | PASS |

One run at a time owns the cluster. A migration that only waits (for an answer, or in its soak) need not be ended: this run takes its lock.
One at work must be over first; mark it as failed. A new run continues an interrupted rollback. Before `handover` the migration may
continue instead.
"""

_FIRST = find_step(ROLLBACK, "roll back broker", "to_migration")


def build(spec: ClusterSpec) -> DAG:
    """The DAG `kmigrate_rollback__<cluster>`, for manual runs, one at a time; its tasks are the steps of `core.migration.plan.ROLLBACK`."""
    text = _DOC.format(name=spec.name, cluster_id=spec.cluster_id)
    approve = partial(ApproveRollbackOperator, **approval_arguments(spec, ROLLBACK[0].full_id()))
    dag_arguments: dict[str, Any] = {"params": _rollback_params(spec), "default_args": RETRIED, **UNPAUSED}
    with cluster_dag(spec, "kmigrate_rollback", text, partial(render_task_page, plan=ROLLBACK), **dag_arguments) as dag:
        chain_plan(spec, ROLLBACK, approve, partial(_step_arguments, spec), _tasks_around_stages(spec))
        audit.run_probe_beside(dag, spec, "evidence.check_probe", **audit.SKIPPABLE)
        # `evidence` between them ends whatever the answer is
        dag.task_dict[APPROVE] >> dag.task_group.children["controller_failover"]
    return dag


def _tasks_around_stages(spec: ClusterSpec) -> dict[str, StageTasks]:
    final_tasks = [*audit.probe_stop_tasks(spec), *audit.rollback_gate(spec, after=_FIRST.full_id(spec.brokers[0].id))]
    return {
        APPROVE: StageTasks(after=audit.rollback_evidence(spec)),
        "to_migration": StageTasks(spark_jobs.hold_tasks(spec, "to_migration", required=False, **approved_task_arguments())),
        # a job that does not resume must not leave the rollback unproven
        ROLLBACK[-1].task: StageTasks(after=final_tasks, beside=spark_jobs.resume_tasks(spec, "to_zookeeper")),
    }


def _step_arguments(spec: ClusterSpec, step: StepRow, node: int | None) -> dict[str, Any]:
    if step.kind == "plan":
        return {"retries": 0, "plan": "{{ params.plan or '' }}"}
    return audit.start_time_arguments(spec) if step == _FIRST and node == spec.brokers[0].id else {}


def _rollback_params(spec: ClusterSpec) -> dict[str, Param]:
    skip_audit = Param(
        False,
        type="boolean",
        title="Roll back without an audit",
        description="Saves the minutes that Spark takes before the first broker restarts. Then nothing shows that no record was lost.",
    )
    return {
        **({audit.SKIP_AUDIT: skip_audit} if spec.audit else {}),
        "approve_rollback": approval_param(spec, "Approve the rollback beforehand", ASKED_WITH_PLAN),
        "plan": plan_param("rollback"),
        "skip_failover": Param(
            False,
            type="boolean",
            title="Do not fail the controllers over",
            description="Only if no controller can be started any more. Then no failover is made, but both sides are still compared.",
        ),
        "accept_loss": Param(
            None,
            type=["null", "string"],
            title="Roll back without what is missing in ZooKeeper",
            description="Only together with the box above, and only once `controller_failover.equivalence` has named what would be lost for good. To accept "
            f"that, enter the cluster id {spec.cluster_id}.",
        ),
        "accept_split_groups": Param(
            None,
            type=["null", "string"],
            title="Roll back although groups move to other coordinators",
            description="Only if K01 holds the rollback: brokers use different counts of `__consumer_offsets`, and each restart moves groups, without their offsets. "
            f"The plan names them. To accept that, enter the cluster id {spec.cluster_id}.",
        ),
        "leave_broker": Param(
            None,
            type=["null", "string"],
            title="Brokers to leave as they are",
            description="Only if a broker that the cluster file does not name (G36, G39) holds the rollback and cannot be stopped: its id, several with commas. The "
            "plan says what it leads. In KRaft mode it is isolated by the handover.",
        ),
    }
