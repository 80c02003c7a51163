"""Run a whole plan in one task, as a DAG does task by task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.decision import Done
from airflow_provider_kmigrate.core.plan import APPROVE, ROLLBACK, Plan, PlanStep, after_approval
from airflow_provider_kmigrate.steps.catalog import Arguments, run_rest, step_on, terms_of
from airflow_provider_kmigrate.steps.prepare import run_backup, run_preflight
from airflow_provider_kmigrate.steps.rollback import planned, planned_in_migration
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.steps.waits import require_rollback_assured

_NONE: Arguments = MappingProxyType({})
_WITHOUT_LOOP: Mapping[str, Callable[[StepContext], object]] = {
    "preflight": run_preflight,
    "backup": run_backup,
    "plan": planned,
    "rollback plan": planned_in_migration,
    "readiness": require_rollback_assured,
    APPROVE: lambda _context: None,  # only a DAG waits for approval
}


def run_rollback(context: StepContext, arguments: Arguments = _NONE) -> Done:
    """Run the whole rollback as its DAG does, without approval, and release the fence at its end.

    `arguments`: the terms, as a run's conf has them. Raises as its steps do. Killed and run again, it observes the cluster and does
    what is left.
    """
    terms_of(context.spec, arguments)  # refuses what would not be followed
    steps, _ = planned(context)
    end = run_plan(context, after_approval(ROLLBACK), arguments)
    context.fence.release()
    return Done(f"{getattr(end, 'text', '')} Steps taken: {len(steps)}.")


def run_plan(context: StepContext, plan: Plan, arguments: Arguments = _NONE) -> object:
    """Run every step of a plan in order, without approval; returns the last result. Raises as the steps do.

    `arguments`: of all steps beside node and target, such as the terms of a rollback.
    """
    return [_run_row(context, step, arguments) for step in plan if not arguments.get(step.skip_if)][-1]


def _run_row(context: StepContext, row: PlanStep, arguments: Arguments) -> object:
    if row.kind in _WITHOUT_LOOP:
        return _WITHOUT_LOOP[row.kind](context)
    asked = {**arguments, "target": row.target} if row.target else arguments
    rest = run_rest(context, row.kind, asked) if row.last else None
    if rest is not None and not row.target:
        return rest  # it ran every node
    # brokers already in the mode, too: only their own step finds what a dead run left on their machines
    nodes: list[NodeSpec | None] = [node for node in context.spec.nodes() if node.role is row.each] or [None]
    return [run_step(step_on(context, row.kind, asked, node), context) for node in nodes][-1]
