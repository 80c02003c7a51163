"""The DAG that moves one cluster from ZooKeeper to KRaft: one task per node and pass, chained; the graph is the migration.

After a failed task none of the later ones starts, and the run fails; a cleared task observes what is left to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param, chain

from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, HoldPolicy, NodeSpec, StopPoint
from airflow_provider_kmigrate.core.migration.gates import consumers_dag_id
from airflow_provider_kmigrate.core.migration.plan import MIGRATION, StepRow, find_step
from airflow_provider_kmigrate.core.shared.text import Count
from airflow_provider_kmigrate.dag_builders import audit, spark_jobs
from airflow_provider_kmigrate.dag_builders.chaining import (
    AFTER_SKIPS,
    GROUPS_MOVED,
    RETRIED,
    StageTasks,
    Tasks,
    approval_param,
    chain_plan,
    cluster_asset,
    cluster_dag,
)
from airflow_provider_kmigrate.dag_builders.task_docs import render_task_page
from airflow_provider_kmigrate.operators.approval import (
    ApproveFinalizationOperator,
    ContinueOperator,
    RollbackStartedOperator,
    StartRollbackOperator,
    approval_arguments,
)
from airflow_provider_kmigrate.operators.goal import END, end_run_at_goal

_GATES = ("after_first_roll", "after_second_roll", "before_approval", "after_finalization")
_DOC = """\
### {name}: ZooKeeper to KRaft

Moves cluster `{cluster_id}` live (KIP-866). Until **finalize** everything can be rolled back.

| group | what happens | done when |
| --- | --- | --- |
| preflight, backup | reads only; originals and ZooKeeper's tree are saved | no blocking finding |
| controllers | {controllers:KRaft controller starts|KRaft controllers start} with the migration flag | one leader, all answer with the flag |
| first_roll | each broker restarts in migration mode | back in every ISR |
| copy | metadata is copied, dual-write begins | ZooKeeper and KRaft store the same |
| second_roll | each broker restarts in KRaft mode | back in every ISR |
| soak | dual-write for {soak} with every gate healthy | the time has passed |
| approve | an operator decides | **point of no return** |
| finalize | controllers restart without the flag, the active one last | nothing is written to ZooKeeper |

Any task may be cleared at any time: it observes the cluster and does what is left. A broker that is the ZooKeeper controller is
skipped in the first roll and rolled at its end.
"""

_GOALS = {
    END: "to the end; an approver decides before the point of no return",
    StopPoint.SOAK: "every broker in KRaft mode, and the soak is over",
    StopPoint.HYBRID: "the first broker in KRaft mode, the others in migration mode",
    StopPoint.DUAL_WRITE: "metadata is copied, every broker in migration mode",
    StopPoint.FIRST_ROLL: "every broker in migration mode; the copy begins by itself",
}
_START_ROLLBACK = "start_rollback"
_SHOWN = {kind: find_step(MIGRATION, kind, group).full_id() for kind, group in (
    ("soak", ""), ("equivalent", "before_approval"), ("lag", "before_approval"), ("rollback plan", "before_approval"),
    ("readiness", "before_approval"),
)}  # fmt: skip
_EQUAL, _VERDICT = _SHOWN["equivalent"], f"audit_{_GATES[2]}.verdict"
_EVIDENCE = f"""\
* soak: {{{{ ti.xcom_pull(task_ids='{_SHOWN["soak"]}') }}}}
* metadata: {{{{ ti.xcom_pull(task_ids='{_EQUAL}') }}}}
* dual-write: {{{{ ti.xcom_pull(task_ids='{_SHOWN["lag"]}') }}}}
* is a rollback possible:

{{{{ ti.xcom_pull(task_ids='{_SHOWN["readiness"]}') | as_markdown | indent(2, first=True) }}}}

* the rollback, which becomes impossible after this step:

{{{{ ti.xcom_pull(task_ids='{_SHOWN["rollback plan"]}') | as_markdown | indent(2, first=True) }}}}
"""
_AUDITED = f"* audit: {{{{ ti.xcom_pull(task_ids='{_VERDICT}') }}}}"


def build(spec: ClusterSpec) -> DAG:
    """The DAG `kmigrate_zk_to_kraft__<cluster>`, for manual runs, one at a time; its tasks are the steps of `core.migration.plan.MIGRATION`."""
    soak, if_left_empty = timedelta(seconds=spec.policy.min_soak), "Leave it empty to be asked before the point of no return."
    text = _DOC.format(name=spec.name, cluster_id=spec.cluster_id, controllers=Count(len(spec.controllers)), soak=soak)
    params = {
        "to": _goal_param(spec),
        "plan": Param(
            None,
            type=["null", "string"],
            title="Only the plan that was reviewed",
            description="The fingerprint that `kmigrate plan` shows. If something that decides what is done has changed since, the run is refused before it "
            "changes anything, and again before each restart (H16). Leave it empty to run whatever the plan is now.",
        ),
        "approve_finalization": approval_param(spec, "Approve finalization beforehand", if_left_empty),
    }
    kind = "kmigrate_zk_to_kraft"
    with cluster_dag(spec, kind, text, partial(_render_page, spec), params=params, default_args=RETRIED) as dag:
        chain_plan(
            spec, MIGRATION, partial(_make_approval_task, spec), partial(_step_arguments, spec), _tasks_around_stages(spec)
        )
        _stop_at_canary(dag, spec)
        audit.run_probe_beside(dag, spec, "check_probe")
        if session_tasks := audit.session_tasks(spec):
            chain(dag.task_group.children["backup"], *session_tasks)
    return dag


def _allowed_goals(spec: ClusterSpec) -> list[StopPoint]:
    """The stages behind which a run may end; without those at which a Spark job of the cluster file is held."""
    return [point for point in StopPoint if not spec.spark_jobs or point in {StopPoint.DUAL_WRITE, StopPoint.SOAK}]


def _goal_param(spec: ClusterSpec) -> Param:
    goals = _allowed_goals(spec)
    return Param(
        END,
        enum=[END, *(str(point) for point in reversed(goals))],
        title="Migrate to",
        description="A run that has reached its goal succeeds, skips what follows and frees the cluster; a later run does what is left. "
        + "; ".join(f"{goal}: {_GOALS[goal]}" for goal in (END, *reversed(goals)))
        + ".",
    )


def _goal_end_arguments(spec: ClusterSpec, point: StopPoint) -> dict[str, Any]:
    """Arguments of each task of which any, once it has succeeded, shows that a stage is over, with its audit and its Spark jobs."""
    return {"post_execute": partial(end_run_at_goal, spec.path, point)} if point in _allowed_goals(spec) else {}


def _stage_end_arguments(spec: ClusterSpec, step: StepRow) -> dict[str, Any]:
    """`_goal_end_arguments` of a step that ends a stage; of one that nothing follows in its stage."""
    holds_jobs = any(job.hold is not HoldPolicy.NEVER for job in spec.spark_jobs)
    ends = {
        find_step(MIGRATION, "registered", "first_roll"): None if spec.audit else StopPoint.FIRST_ROLL,
        find_step(MIGRATION, "equivalent", "copy"): None if holds_jobs else StopPoint.DUAL_WRITE,
        find_step(MIGRATION, "roll", "second_roll"): StopPoint.HYBRID,
        find_step(MIGRATION, "soak"): StopPoint.SOAK,
    }
    point = ends.get(step)
    return _goal_end_arguments(spec, point) if point else {}


def _stop_at_canary(dag: DAG, spec: ClusterSpec) -> None:
    """Put the request between the first broker of the second roll and the next one, if the cluster file stops there."""
    first_broker_task = dag.get_task(_first_task_id("roll", "second_roll", spec.brokers))
    next_tasks = list(first_broker_task.downstream_list)
    skipped = f"`{first_broker_task.task_id}` was skipped: another broker goes first, and none has restarted in this roll yet."
    outcome_template = f"{{{{ ti.xcom_pull(task_ids='{first_broker_task.task_id}') or '{skipped}' }}}}"
    for stop in _stop_request_tasks(spec, StopPoint.HYBRID, outcome_template):
        chain(first_broker_task, stop, next_tasks)


def _render_page(spec: ClusterSpec, task: str) -> str:
    """A task's page; if a group on ZooKeeper holds it up (G21), with a link to the DAG that migrates consumer groups."""
    if not spec.groups or not (task in {"preflight", "soak"} or task.startswith("second_roll.")):
        return render_task_page(task, MIGRATION)
    moves = f"[{consumers_dag_id(spec.name)}](/dags/{consumers_dag_id(spec.name)}) moves the consumer groups that use ZooKeeper"
    first = f" first; `kmigrate://{spec.name}/{GROUPS_MOVED}` is the asset that it updates then" if task == "preflight" else ""
    return f"{render_task_page(task, MIGRATION)}\n\n{moves}{first}."


def _tasks_around_stages(spec: ClusterSpec) -> dict[str, StageTasks]:
    """The tasks before and after each stage: evidence, Spark jobs that are held, the audit's gates, requests to stop."""
    evidence = [*audit.probe_check_tasks(spec), *audit.fingerprint_tasks(spec)]
    first_roll_end, copy_end = (_goal_end_arguments(spec, point) for point in (StopPoint.FIRST_ROLL, StopPoint.DUAL_WRITE))
    return {
        "backup": StageTasks(spark_jobs.risk_check_tasks(spec)),
        "first_roll": StageTasks(
            [*evidence, *spark_jobs.hold_tasks(spec, "first_roll")],
            [
                *spark_jobs.progress_tasks(spec, "first_roll"),
                *_audit_gate(spec, 0, _first_task_id("roll", "first_roll", spec.brokers), at_end=first_roll_end),
                *_stop_request_tasks(spec, StopPoint.FIRST_ROLL),
            ],
        ),
        # the takeover in it may leave out the leaders that a held job waits for (G13)
        "copy": StageTasks(
            after=[*spark_jobs.resume_tasks(spec, "copy", **copy_end), *_stop_request_tasks(spec, StopPoint.DUAL_WRITE)]
        ),
        "second_roll": StageTasks(
            spark_jobs.hold_tasks(spec, "second_roll"),
            [
                *spark_jobs.progress_tasks(spec, "second_roll"),
                *spark_jobs.resume_tasks(spec, "second_roll"),
                *_audit_gate(spec, 1, _first_task_id("roll", "second_roll", spec.brokers)),
            ],
        ),
        "soak": StageTasks(after=_stop_request_tasks(spec, StopPoint.SOAK)),
        "before_approval": StageTasks(after=_audit_gate(spec, 2, _first_task_id("soak"))),
        "finalize": StageTasks(
            after=[
                *audit.probe_stop_tasks(spec),
                *_audit_gate(spec, 3, _first_task_id("finalize", "", spec.controllers), advice=audit.FINALIZED),
            ]
        ),
    }


def _audit_gate(spec: ClusterSpec, number: int, first_task: str, **options: Any) -> Tasks:
    """The audit number `number` of `_GATES`, of what happened since `first_task` began; none without a section `audit`."""
    return audit.step_gate(spec, _GATES[number], after=first_task, earlier=_GATES[:number], **options)


def _stop_request_tasks(spec: ClusterSpec, point: StopPoint, outcome: str = "") -> list[BaseOperator]:
    """The request behind a stage at which the cluster file stops the migration; none if it does not."""
    if point not in spec.stop_after:
        return []
    return [ContinueOperator(task_id=f"stop_after_{point}", point=point, seen=outcome, **approval_arguments(spec), **AFTER_SKIPS)]


def _first_task_id(kind: str, group: str = "", nodes: Sequence[NodeSpec] = ()) -> str:
    """The id of the first task of a step."""
    return find_step(MIGRATION, kind, group).full_id(nodes[0].id if nodes else None)


def _step_arguments(spec: ClusterSpec, step: StepRow, node: int | None) -> dict[str, Any]:
    is_first_node = step.kind == "soak" or node in (spec.brokers[0].id, spec.controllers[0].id)
    start_time = audit.start_time_arguments(spec) if is_first_node and step.kind in {"roll", "soak", "finalize"} else {}
    evidence_arguments = {"evidence": _EQUAL, "readiness": _SHOWN["readiness"], "verdict": _VERDICT if spec.audit else ""}
    arguments_by_kind: dict[str, dict[str, Any]] = {
        # an inlet starts nothing: it says what comes first, and Airflow shows it
        "preflight": {
            "retries": 0,
            "plan": "{{ params.plan or '' }}",
            "inlets": [cluster_asset(spec, GROUPS_MOVED)] if spec.groups else [],
        },
        "finalize": evidence_arguments,
        "readiness": {"retries": 4},
    }
    arguments_by_kind["rollback plan"] = {"in_migration": True}
    end_arguments = _stage_end_arguments(spec, step) if node is not None or step.each is None else {}
    return {**arguments_by_kind.get(step.kind, {}), **start_time, **end_arguments}


def _make_approval_task(spec: ClusterSpec, task_id: str) -> BaseOperator:
    """The request, and beside it the tasks that start the rollback if that is the answer."""
    evidence = _EVIDENCE + (_AUDITED if spec.audit else "")
    audit_task = f"audit_{_GATES[2]}.audit" if spec.audit else ""
    evidence_tasks = [*_SHOWN.values(), *([_VERDICT, audit_task] if spec.audit else [])]
    approval_task = ApproveFinalizationOperator(
        task_id=task_id,
        evidence=evidence,
        evidence_tasks=evidence_tasks,
        rollback_task=_START_ROLLBACK,
        readiness_task=_SHOWN["readiness"],
        audit_task=audit_task,
        **approval_arguments(spec),
    )
    rollback_arguments = {"cluster": spec.name, "cluster_file": spec.path, "answered_by": task_id, **AFTER_SKIPS}
    start_rollback = StartRollbackOperator(task_id=_START_ROLLBACK, **rollback_arguments)
    chain(approval_task, start_rollback, RollbackStartedOperator(task_id="rollback_started", **rollback_arguments))
    return approval_task
