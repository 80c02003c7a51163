"""The DAG that moves one cluster from ZooKeeper to KRaft: one task per node and pass, chained; the graph is the migration.

After a failed task none of the later ones starts, and the run fails; a cleared task observes what is left to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param, chain

from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec, StopPoint
from airflow_provider_kmigrate.core.gates import mover
from airflow_provider_kmigrate.core.plan import MIGRATION, PlanStep, find
from airflow_provider_kmigrate.dag_builders import audit, spark_jobs
from airflow_provider_kmigrate.dag_builders.chaining import (
    AFTER_SKIPS,
    RETRIED,
    StageTasks,
    approval_param,
    chain_plan,
    cluster_dag,
)
from airflow_provider_kmigrate.dag_builders.task_docs import doc
from airflow_provider_kmigrate.operators.approval import (
    ApproveFinalizationOperator,
    ContinueOperator,
    RollbackStartedOperator,
    StartRollbackOperator,
    asked_of,
)
from airflow_provider_kmigrate.operators.goal import END, end_at

_GATES = ("after_first_roll", "after_second_roll", "before_approval", "after_finalization")
_DOC = """\
### {name}: ZooKeeper to KRaft

Moves cluster `{cluster_id}` live (KIP-866). Until **finalize** everything can be rolled back.

| group | what happens | done when |
| --- | --- | --- |
| preflight, backup | reads only; originals and ZooKeeper's tree are saved | no blocking finding |
| controllers | {controllers} KRaft controllers start with the migration flag | one leader, all answer with the flag |
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
_SHOWN = {kind: find(MIGRATION, kind, group).full_id() for kind, group in (
    ("soak", ""), ("equivalent", "before_approval"), ("lag", "before_approval"), ("rollback plan", "before_approval"),
    ("readiness", "before_approval"),
)}  # fmt: skip
_EQUAL, _VERDICT = _SHOWN["equivalent"], f"audit_{_GATES[2]}.verdict"
_EVIDENCE = f"""\
* soak: {{{{ ti.xcom_pull(task_ids='{_SHOWN["soak"]}') }}}}
* metadata: {{{{ ti.xcom_pull(task_ids='{_EQUAL}') }}}}
* dual-write: {{{{ ti.xcom_pull(task_ids='{_SHOWN["lag"]}') }}}}
* can we still go back:

{{{{ ti.xcom_pull(task_ids='{_SHOWN["readiness"]}') | indent(2, first=True) }}}}

* the rollback, which becomes impossible after this step:

{{{{ ti.xcom_pull(task_ids='{_SHOWN["rollback plan"]}') | indent(2, first=True) }}}}
"""
_AUDITED = f"* audit: {{{{ ti.xcom_pull(task_ids='{_VERDICT}') }}}}"


def build(spec: ClusterSpec) -> DAG:
    """The DAG `kmigrate_zk_to_kraft__<cluster>`, for manual runs, one at a time; its tasks are the steps of `core.plan.MIGRATION`."""
    soak, asked = timedelta(seconds=spec.policy.min_soak), "Leave it empty to be asked before the point of no return."
    text = _DOC.format(name=spec.name, cluster_id=spec.cluster_id, controllers=len(spec.controllers), soak=soak)
    params = {"to": _goal_param(spec), "approve_finalization": approval_param(spec, "Approve finalization beforehand", asked)}
    kind = "kmigrate_zk_to_kraft"
    with cluster_dag(spec, kind, text, partial(_page, spec), params=params, default_args=RETRIED) as dag:
        chain_plan(spec, MIGRATION, partial(_approve, spec), partial(_given, spec), _around(spec))
        _stop_at_canary(dag, spec)
        for point in _goals(spec):
            for task in _ends(dag, spec, point):
                task._post_execute_hook = partial(end_at, task, spec.path, point)  # noqa: SLF001 - BaseOperator's argument `post_execute`
    return dag


def _goals(spec: ClusterSpec) -> list[StopPoint]:
    """The stages behind which a run may end; without those at which a Spark job of the cluster file is held."""
    return [point for point in StopPoint if not spec.spark_jobs or point in {StopPoint.DUAL_WRITE, StopPoint.SOAK}]


def _goal_param(spec: ClusterSpec) -> Param:
    goals = _goals(spec)
    return Param(
        END,
        enum=[END, *(str(point) for point in reversed(goals))],
        title="Migrate to",
        description="A run that has reached its goal succeeds, skips what follows and frees the cluster; a later run does what is left. "
        + "; ".join(f"{goal}: {_GOALS[goal]}" for goal in (END, *reversed(goals)))
        + ".",
    )


def _ends(dag: DAG, spec: ClusterSpec, point: StopPoint) -> list[BaseOperator]:
    """The tasks of which any, once it has succeeded, shows that a stage is over, with its audit and its Spark jobs."""
    resumed = [task for task in dag.task_dict if task.startswith("resume_after_copy.")]
    ends = {
        StopPoint.FIRST_ROLL: [
            f"audit_{_GATES[0]}.verdict" if spec.audit else find(MIGRATION, "registered", "first_roll").full_id()
        ],
        StopPoint.DUAL_WRITE: resumed or [find(MIGRATION, "equivalent", "copy").full_id()],
        StopPoint.HYBRID: [find(MIGRATION, "roll", "second_roll").full_id(broker.id) for broker in spec.brokers],
        StopPoint.SOAK: [_SHOWN["soak"]],
    }
    return [dag.get_task(task) for task in ends[point]]  # type: ignore[misc]


def _stop_at_canary(dag: DAG, spec: ClusterSpec) -> None:
    """Put the request between the first broker of the second roll and the next one, if the cluster file stops there."""
    first = dag.get_task(_begun("roll", "second_roll", spec.brokers))
    after = list(first.downstream_list)
    skipped = f"`{first.task_id}` was skipped: another broker goes first, and none has restarted in this roll yet."
    seen = f"{{{{ ti.xcom_pull(task_ids='{first.task_id}') or '{skipped}' }}}}"
    for stop in _stop(spec, StopPoint.HYBRID, seen):
        chain(first, stop, after)


def _page(spec: ClusterSpec, task: str) -> str:
    """A task's page; if a group on ZooKeeper holds it up (G21), with a link to the DAG that migrates consumer groups."""
    if not spec.groups or not (task == "soak" or task.startswith("second_roll.")):
        return doc(task)
    return f"{doc(task)}\n\n[{mover(spec.name)}](/dags/{mover(spec.name)}) moves the consumer groups that use ZooKeeper."


def _around(spec: ClusterSpec) -> dict[str, StageTasks]:
    probe = [*audit.probe_begins(spec), *audit.fingerprint(spec)]
    first, second = _begun("roll", "first_roll", spec.brokers), _begun("roll", "second_roll", spec.brokers)
    return {
        "backup": StageTasks(spark_jobs.risks(spec)),
        "first_roll": StageTasks(
            [*probe, *spark_jobs.hold(spec, "first_roll")],
            [
                *spark_jobs.progress(spec, "first_roll"),
                *audit.gate(spec, _GATES[0], after=first),
                *_stop(spec, StopPoint.FIRST_ROLL),
            ],
        ),
        # the takeover in it may leave out the leaders that a held job waits for (G13)
        "copy": StageTasks(after=[*spark_jobs.resume(spec, "copy"), *_stop(spec, StopPoint.DUAL_WRITE)]),
        "second_roll": StageTasks(
            spark_jobs.hold(spec, "second_roll"),
            [
                *spark_jobs.progress(spec, "second_roll"),
                *spark_jobs.resume(spec, "second_roll"),
                *audit.gate(spec, _GATES[1], after=second, earlier=_GATES[:1]),
            ],
        ),
        "soak": StageTasks(after=_stop(spec, StopPoint.SOAK)),
        "before_approval": StageTasks(after=audit.gate(spec, _GATES[2], after=_begun("soak"), earlier=_GATES[:2])),
        "finalize": StageTasks(
            after=[
                *audit.probe_ends(spec),
                *audit.gate(
                    spec, _GATES[3], after=_begun("finalize", "", spec.controllers), earlier=_GATES[:3], advice=audit.FINALIZED
                ),
            ]
        ),
    }


def _stop(spec: ClusterSpec, point: StopPoint, seen: str = "") -> list[BaseOperator]:
    """The request behind a stage at which the cluster file stops the migration; none if it does not."""
    if point not in spec.stop_after:
        return []
    return [ContinueOperator(task_id=f"stop_after_{point}", point=point, seen=seen, **asked_of(spec), **AFTER_SKIPS)]


def _begun(kind: str, group: str = "", nodes: Sequence[NodeSpec] = ()) -> str:
    """The id of the first task of a step."""
    return find(MIGRATION, kind, group).full_id(nodes[0].id if nodes else None)


def _given(spec: ClusterSpec, step: PlanStep, node: int | None) -> dict[str, Any]:
    first = step.kind == "soak" or node in (spec.brokers[0].id, spec.controllers[0].id)
    begins = audit.begins(spec) if first and step.kind in {"roll", "soak", "finalize"} else {}
    shown = {"evidence": _EQUAL, "readiness": _SHOWN["readiness"], "verdict": _VERDICT if spec.audit else ""}
    more: dict[str, dict[str, Any]] = {"preflight": {"retries": 0}, "finalize": shown, "readiness": {"retries": 4}}
    return {**more.get(step.kind, {}), **begins}


def _approve(spec: ClusterSpec, task_id: str) -> BaseOperator:
    """The request, and beside it the tasks that start the rollback if that is the answer."""
    evidence = _EVIDENCE + (_AUDITED if spec.audit else "")
    shown = [*_SHOWN.values(), *([_VERDICT] if spec.audit else [])]
    asked = ApproveFinalizationOperator(
        task_id=task_id, evidence=evidence, evidence_tasks=shown, rollback_task=_START_ROLLBACK, **asked_of(spec)
    )
    given = {"cluster": spec.name, "cluster_file": spec.path, "answered_by": task_id, **AFTER_SKIPS}
    starts = StartRollbackOperator(task_id=_START_ROLLBACK, **given)
    chain(asked, starts, RollbackStartedOperator(task_id="rollback_started", **given))
    return asked
