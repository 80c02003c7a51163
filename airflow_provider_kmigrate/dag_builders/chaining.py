"""A cluster's DAG, a plan's steps as its tasks, and how each task follows the one before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from airflow.sdk import DAG, Asset, BaseOperator, Param, TaskGroup, TriggerRule, chain

from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration.plan import (
    APPROVE,
    Access,
    Plan,
    StepRow,
    find_step,
    list_step_tasks,
    split_into_stages,
    steps_after_approval,
)
from airflow_provider_kmigrate.core.migration.plan_document import PlanOf
from airflow_provider_kmigrate.notifications.messages import failure_arguments
from airflow_provider_kmigrate.operators.migration import MigrationStepOperator
from airflow_provider_kmigrate.sensors.step import StepSensor

_PACKAGE = __package__.rpartition(".")[0]
Stage = BaseOperator | TaskGroup
Tasks = Sequence[Any]
Arguments = Mapping[str, Any]


RETRIED: Final = {"retries": 1, "retry_delay": timedelta(seconds=15)}
"""Default arguments of the tasks that act."""

UNPAUSED: Final = {"is_paused_upon_creation": False}
"""Arguments of a DAG that rolls back, whatever Airflow's default: a run that an operator needs must not stay queued. It asks before it acts."""

GROUPS_MOVED: Final = "groups-moved"
"""The asset that says that no consumer group keeps the migration from its first roll."""


def cluster_asset(spec: ClusterSpec, name: str, extra: Mapping[str, str] = MappingProxyType({})) -> Asset:
    """What a task updates when it succeeds, for DAGs of others; `docs/tables.md` names them."""
    uri = f"kmigrate://{spec.name}/{name}"
    return Asset(name=uri, uri=uri, extra=dict(extra))


AFTER_SKIPS: Final[Mapping[str, Any]] = {"trigger_rule": TriggerRule.NONE_FAILED}
"""Arguments of a task that runs although one before it was skipped (a postponed node, an unwanted step); a failed one stops it."""

_PLAN_OF: Final[Mapping[str, PlanOf]] = {
    "preflight": PlanOf.MIGRATION,
    "plan": PlanOf.ROLLBACK,
    "expansion plan": PlanOf.EXPANSION,
}
"""The kind of the step that makes a plan -> what that is a plan of."""

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
        default_args={"execution_timeout": None, **failure_arguments(spec), **(default_args or {})},
        tags=["kmigrate", "kafka", *tags, spec.name],
        doc_md=text,
        **arguments,
    ) as dag:
        yield dag
    for task in dag.tasks:
        if isinstance(task, BaseOperator):
            task.doc_md = page(task.task_id)


def plan_param(of: str) -> Param:
    """The param that binds a run to the plan that was reviewed. `of`: what `kmigrate plan --of` takes."""
    text = (
        f"The fingerprint that `kmigrate plan --of {of}` shows. If something that decides what is done has changed since, the first task is "
        "refused (H16). Leave it empty to run whatever the plan is now."
    )
    return Param(None, type=["null", "string"], title="Only the plan that was reviewed", description=text)


def approval_param(spec: ClusterSpec, title: str, if_left_empty: str) -> Param:
    """The param that approves a run beforehand. `if_left_empty`: what happens without it."""
    beforehand = (
        f"To continue without being asked, enter the cluster id {spec.cluster_id}."
        if spec.rehearsal
        else f"Cluster {spec.cluster_id} is no `rehearsal`: what is entered here is not an approval."
    )
    return Param(
        None,
        type=["null", "string"],  # Airflow's form would not accept an empty string
        title=title,
        description=f"{if_left_empty} {beforehand}",
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
    task_arguments: Callable[[StepRow, int | None], Arguments],
    around: Mapping[str, StageTasks],
) -> None:
    """Make the tasks of a plan in the current DAG, chained. Its first task makes the plan that later ones compare with.

    `approve` makes the approval task, from its `task_id`. `task_arguments`: further arguments of the task of a step, and of its node. `around`:
    tasks around a stage of the plan, by the stage's name.
    """

    def make_plan_task(step: StepRow, task_id: str, node: int | None) -> BaseOperator:
        if step.kind == APPROVE:
            return approve(task_id=task_id)
        planned = {"plan_task": plan[0].full_id(), "plan_of": _PLAN_OF[plan[0].kind]} if step.follows_plan else {}
        arguments = {**_trigger_rule_arguments(plan, step), **planned, **task_arguments(step, node)}
        deferrable = {"deferrable": True} if step.deferrable else {}
        return _make_step_task(step, node, cluster_file=spec.path, task_id=task_id, **deferrable, **arguments)

    chained_tasks: list[Any] = []
    for name, steps in split_into_stages(plan):
        surrounding_tasks, stage = around.get(name, StageTasks()), _make_stage(spec, steps, make_plan_task)
        chained_tasks += [
            *surrounding_tasks.before,
            [stage, *surrounding_tasks.beside] if surrounding_tasks.beside else stage,
            *surrounding_tasks.after,
        ]
    chain(*chained_tasks)


def _make_stage(spec: ClusterSpec, steps: Plan, make_task: Callable[[StepRow, str, int | None], BaseOperator]) -> Stage:
    if not steps[0].group:
        return make_task(steps[0], steps[0].task_id(), None)
    with TaskGroup(steps[0].group) as group:
        chain(*(make_task(*task) for step in steps for task in list_step_tasks(spec, step)))
    return group


def _make_step_task(step: StepRow, node: int | None, **arguments: Any) -> BaseOperator:
    """The task of a step, or of one of its nodes, with its own operator if it has one."""
    target = {"target": step.target} if step.target else {}
    if step.operator:
        module, _, name = step.operator.rpartition(".")
        operator_class: Callable[..., BaseOperator] = getattr(import_module(f"{_PACKAGE}.{module}"), name)
        return operator_class(**({} if node is None else {str(step.each): node}), **target, **arguments)
    if step.access is Access.WATCH:
        return StepSensor(step=step.kind, **arguments)
    step_kwargs = {**({} if node is None else {"node": node}), **target}
    return MigrationStepOperator(step=step.kind, step_kwargs=step_kwargs, skip_if=step.skip_if, **arguments)


def _trigger_rule_arguments(plan: Plan, step: StepRow) -> Arguments:
    """Further arguments of a step's task. After the approval an act requires its answer; only some steps may follow a skip."""
    if step in steps_after_approval(plan):
        return AFTER_SKIPS if step.access is Access.WATCH else _approved_step_arguments(plan, step)
    return AFTER_SKIPS if step.last else {}


def _approved_step_arguments(plan: Plan, step: StepRow) -> dict[str, Any]:
    """As `approved`; a step by its name may belong to several plans, so it is given the answer that it needs."""
    return approved_task_arguments() | ({} if step.operator else {"answer": find_step(plan, APPROVE).answer})


def approved_task_arguments() -> dict[str, Any]:
    """As `AFTER_SKIPS`, after the run's `approve`: an earlier skip also skips that task without a failure, so its answer is required."""
    return {"approved_by": APPROVE, **AFTER_SKIPS}
