"""A cluster's DAG, a plan's steps as its tasks, and how each task follows the one before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from airflow.sdk import DAG, BaseOperator, Param, TaskGroup, TriggerRule, chain

from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.plan import APPROVE, EXPANSION, Plan, PlanStep, after_approval, stages
from airflow_provider_kmigrate.hooks.notify import on_failure
from airflow_provider_kmigrate.operators.migration import (
    BackupOperator,
    ExpansionPlanOperator,
    FinalizeControllerOperator,
    MigrationStepOperator,
    PreflightOperator,
    ProvisionControllersOperator,
    ReadinessOperator,
    RollbackPlanOperator,
    RollBrokerOperator,
    SoakOperator,
)
from airflow_provider_kmigrate.operators.step import EXPAND
from airflow_provider_kmigrate.sensors.step import StepSensor, VerifyDualWriteLagSensor, WaitAllBrokersRegisteredSensor
from airflow_provider_kmigrate.steps.catalog import OBSERVING

Stage = BaseOperator | TaskGroup
Tasks = Sequence[Any]
Arguments = Mapping[str, Any]
_NAMED: Mapping[str, Callable[..., BaseOperator]] = {
    "preflight": PreflightOperator,
    "backup": BackupOperator,
    "provision": ProvisionControllersOperator,
    "roll": RollBrokerOperator,
    "registered": WaitAllBrokersRegisteredSensor,
    "lag": VerifyDualWriteLagSensor,
    "soak": SoakOperator,
    "plan": RollbackPlanOperator,
    "rollback plan": partial(RollbackPlanOperator, in_migration=True),
    "readiness": ReadinessOperator,
    "finalize": FinalizeControllerOperator,
    "expansion plan": ExpansionPlanOperator,
}


RETRIED: Final = {"retries": 1, "retry_delay": timedelta(seconds=15)}
"""Default arguments of the tasks that act."""

UNPAUSED: Final = {"is_paused_upon_creation": False}
"""Arguments of a DAG that rolls back, whatever Airflow's default: a run that somebody needs must not stay queued. It asks before it acts."""

AFTER_SKIPS: Final[Mapping[str, Any]] = {"trigger_rule": TriggerRule.NONE_FAILED}
"""Arguments of a task that runs although one before it was skipped (a postponed node, an unwanted step); a failed one stops it."""

ASKED_WITH_PLAN: Final = "Leave it empty to see the plan and be asked before anything is changed."


@contextmanager
def cluster_dag(
    spec: ClusterSpec,
    kind: str,
    text: str,
    page: Callable[[str], str],
    *,
    tags: Sequence[str] = (),
    schedule: Any = None,
    default_args: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Iterator[DAG]:
    """The DAG `<kind>__<cluster>`, one run at a time. `text`: its own page; `page`: the page of a task, by its id."""
    with DAG(
        dag_id=f"{kind}__{spec.name}",
        schedule=schedule,
        catchup=False,
        max_active_runs=1,
        # Airflow's own default would end a restart between its stop and its start, and an approval that waits.
        default_args={"execution_timeout": None, **on_failure(spec), **(default_args or {})},
        tags=["kmigrate", "kafka", *tags, spec.name],
        doc_md=text,
        **arguments,
    ) as dag:
        yield dag
    for task in dag.tasks:
        if isinstance(task, BaseOperator):
            task.doc_md = page(task.task_id)


def approval_param(spec: ClusterSpec, title: str, asked: str) -> Param:
    """The param that approves a run beforehand. `asked`: what happens without it."""
    beforehand = (
        f"To continue without being asked, enter the cluster id {spec.cluster_id}."
        if spec.rehearsal
        else f"Cluster {spec.cluster_id} is no `rehearsal`: what is entered here is not an approval."
    )
    return Param(
        None,
        type=["null", "string"],  # Airflow's form would not accept an empty string
        title=title,
        description=f"{asked} {beforehand}",
    )


class StageTasks(NamedTuple):
    """Tasks around one stage of a plan."""

    before: Tasks = ()
    after: Tasks = ()
    beside: Tasks = ()  # they begin with the stage, and what follows waits for both


def chain_plan(
    spec: ClusterSpec,
    plan: Plan,
    approve: Callable[..., BaseOperator],
    given: Callable[[PlanStep, int | None], Arguments],
    around: Mapping[str, StageTasks],
) -> None:
    """Make the tasks of a plan in the current DAG, chained.

    `approve` makes the approval task, from its `task_id`. `given`: further arguments of the task of a step, and of its node. `around`:
    tasks around a stage of the plan, by the stage's name.
    """

    def make(step: PlanStep, task_id: str, node: int | None) -> BaseOperator:
        if step.kind == APPROVE:
            return approve(task_id=task_id)
        arguments = {**_rules_of(plan, step), **given(step, node)}
        return _task(step, node, cluster_file=spec.path, task_id=task_id, deferrable=True, **arguments)

    line: list[Any] = []
    for name, steps in stages(plan):
        more, made = around.get(name, StageTasks()), _stage(spec, steps, make)
        line += [*more.before, [made, *more.beside] if more.beside else made, *more.after]
    chain(*line)


def _stage(spec: ClusterSpec, steps: Plan, make: Callable[[PlanStep, str, int | None], BaseOperator]) -> Stage:
    if not steps[0].group:
        return make(steps[0], steps[0].task_id(), None)
    with TaskGroup(steps[0].group) as group:
        chain(*(make(*each) for step in steps for each in tasks_of(spec, step)))
    return group


def tasks_of(spec: ClusterSpec, step: PlanStep) -> Iterator[tuple[PlanStep, str, int | None]]:
    """Each task of a step: (step, task id in its group, node); a step with postponed nodes has one more, without a node."""
    nodes: Mapping[NodeRole | None, Sequence[NodeSpec]] = {NodeRole.BROKER: spec.brokers, NodeRole.CONTROLLER: spec.controllers}
    for node in nodes.get(step.each, ()):
        yield step, step.task_id(node.id), node.id
    if step.each is None:
        yield step, step.task_id(), None
    if step.last:
        yield step, step.last, None


def _task(step: PlanStep, node: int | None, **arguments: Any) -> BaseOperator:
    """The task of a step, or of one of its nodes, with its own operator if it has one."""
    target = {"target": step.target} if step.target else {}
    if step.kind in _NAMED:
        return _NAMED[step.kind](**({} if node is None else {str(step.each): node}), **target, **arguments)
    if step.kind in OBSERVING:
        return StepSensor(step=step.kind, **arguments)
    own = {**({} if node is None else {"node": node}), **target}
    return MigrationStepOperator(step=step.kind, step_kwargs=own, skip_if=step.skip_if, **arguments)


def _rules_of(plan: Plan, step: PlanStep) -> Arguments:
    """Further arguments of a step's task. After the approval an act requires its answer; only some steps may follow a skip."""
    if step in after_approval(plan):
        return AFTER_SKIPS if step.kind in OBSERVING else approved(EXPAND if plan is EXPANSION else None)
    return AFTER_SKIPS if step.last else {}


def approved(answer: str | None = None) -> dict[str, Any]:
    """As `AFTER_SKIPS`, after the run's `approve`: an earlier skip also skips that task without a failure, so its answer is required.

    `answer`: the one that it must be, if the step belongs to other plans, too.
    """
    return {"approved_by": APPROVE, **({"answer": answer} if answer else {}), **AFTER_SKIPS}
