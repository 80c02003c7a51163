"""Run a plan in one task, and roll over nodes: which are postponed, and which are left at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from airflow_provider_kmigrate.core.cluster import NodeSpec, Role
from airflow_provider_kmigrate.core.decision import Done, Wait
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.migration.controllers import postponed_controller
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Fields
from airflow_provider_kmigrate.core.plan import APPROVE, MIGRATION, ROLLBACK, Plan, PlanStep, after_approval
from airflow_provider_kmigrate.core.rollback.conditions import SAFE, RollbackTerms
from airflow_provider_kmigrate.core.rollback.rollback import postponed_stop
from airflow_provider_kmigrate.core.text import join_ids
from airflow_provider_kmigrate.steps.brokers import ROLL_LOOKS
from airflow_provider_kmigrate.steps.catalog import asked_by, build, node_of, one_of
from airflow_provider_kmigrate.steps.prepare import run_backup, run_preflight
from airflow_provider_kmigrate.steps.rollback import planned, planned_forward
from airflow_provider_kmigrate.steps.run import Step, StepContext, run_step

Arguments = Mapping[str, Any]
_NONE: Arguments = MappingProxyType({})
_QUORUM = Fields.CONTROLLERS | Fields.QUORUM
_ACTIVE_LAST = {"stop controller": postponed_stop, "finalize": postponed_controller}
_WITHOUT_LOOP: Mapping[str, Callable[[StepContext], object]] = {
    "preflight": run_preflight,
    "backup": run_backup,
    "plan": planned,
    "show rollback": planned_forward,
    APPROVE: lambda _world: None,  # only a DAG waits for approval
}


def run_rollback(world: StepContext, terms: RollbackTerms = SAFE) -> Done:
    """Run the whole rollback as its DAG does, without approval, and release the fence at its end.

    Raises as its steps do. Killed and run again, it observes the cluster and does what is left.
    """
    steps, _ = planned(world)
    end = run_plan(world, after_approval(ROLLBACK), asked_by(world.spec, terms))
    world.fence.release()
    return Done(f"{getattr(end, 'text', '')} Steps taken: {len(steps)}.")


def run_plan(world: StepContext, plan: Plan, arguments: Arguments = _NONE) -> object:
    """Run every step of a plan in order, without approval; returns the last result. Raises as the steps do.

    `arguments`: of all steps beside node and target, such as the terms of a rollback.
    """
    skipped = arguments.get("skip_failover")
    return [_run_row(world, step, arguments) for step in plan if not (skipped and step.failover)][-1]


def _run_row(world: StepContext, row: PlanStep, arguments: Arguments) -> object:
    if row.kind in _WITHOUT_LOOP:
        return _WITHOUT_LOOP[row.kind](world)
    asked = {**arguments, "target": row.target} if row.target else arguments
    rest = run_rest(world, row.kind, asked) if row.last else None
    if rest is not None and not row.target:
        return rest  # it ran every controller
    # brokers already in the mode, too: only their own step finds what a dead run left on their machines
    nodes = {Role.BROKER: world.spec.brokers, Role.CONTROLLER: world.spec.controllers}[row.each] if row.each else (None,)
    return [run_step(_step(world, row.kind, asked, node), world) for node in nodes][-1]


def has_last(kind: str, arguments: Arguments) -> bool:
    """True if a plan postpones nodes of this step, so that they run at its end."""
    return _postponing(kind, arguments) is not None


def _postponing(kind: str, arguments: Arguments) -> PlanStep | None:
    target = arguments.get("target") or None
    rows = (row for row in (*MIGRATION, *ROLLBACK) if row.last and row.kind == kind)
    return next((row for row in rows if row.target == (target and one_of(BrokerMode, "target", target))), None)


def postponed(world: StepContext, kind: str, arguments: Arguments) -> str:
    """Why the node of a step runs after its others; empty if it does not. Observes the cluster only if the plan postpones such nodes.

    Raises `Refused` (F09) if the cluster file has no such node.
    """
    row = _postponing(kind, arguments)
    if row is None or row.each is None:
        return ""
    node = node_of(world.spec, row.each, arguments.get("node")).id
    if row.target:
        return roll.postponed(world.observer.look(ROLL_LOOKS), node, [each.id for each in world.spec.brokers], row.target)
    return _ACTIVE_LAST[kind](world.observer.look(_QUORUM), node)


def run_rest(world: StepContext, kind: str, arguments: Arguments) -> Done | Wait:
    """Run a step on every node that is left, postponed ones last.

    `arguments` as `run_plan`'s, with `target`. Raises as the step does.
    """
    step = partial(_step, world, kind, arguments)
    target = arguments.get("target")
    return roll_all(world, BrokerMode(target), step) if target else roll_active_last(world, _ACTIVE_LAST[kind], step)


def _step(world: StepContext, kind: str, arguments: Arguments, node: NodeSpec | None) -> Step:
    return build(world.spec, kind, arguments if node is None else {**arguments, "node": node.id})


def roll_all(world: StepContext, target: BrokerMode, step: Callable[[NodeSpec], Step]) -> Done:
    """Run `step` for every broker not in `target` yet: one already begun first, the ZooKeeper controller last.

    Raises as the steps do.

    The cluster is observed before each, since the ZooKeeper controller moves.
    """
    nodes, done = {node.id: node for node in world.spec.brokers}, []
    while (number := roll.next_to_roll(world.observer.look(ROLL_LOOKS), list(nodes), target)) is not None:
        run_step(step(nodes[number]), world)
        done.append(number)
    text = f"Restarted last: {join_ids(done)}." if done else "No broker was left."
    world.say(f"Done: {text}")
    return Done(text)


def roll_active_last(world: StepContext, why: Callable[[ClusterView, int], str], step: Callable[[NodeSpec], Step]) -> Done | Wait:
    """Run `step` for every controller, those with a reason `why` last; returns the last result. Raises as the steps do."""
    view = world.observer.look(_QUORUM)
    nodes = sorted(world.spec.controllers, key=lambda node: bool(why(view, node.id)))
    return [run_step(step(node), world) for node in nodes][-1]
