"""The whole way back in one go, from wherever the cluster is: `core.back.sequence` leg by leg, as the DAG's tasks are."""

from __future__ import annotations

from functools import partial
from typing import Any

from airflow_provider_kmigrate.core.back.losses import SAFE, Terms
from airflow_provider_kmigrate.core.back.rollback import postponed_stop
from airflow_provider_kmigrate.core.back.sequence import WAY_BACK, Leg
from airflow_provider_kmigrate.core.cluster import NodeSpec, Role
from airflow_provider_kmigrate.core.model import Done, Wait
from airflow_provider_kmigrate.steps.catalog import asked_by, build
from airflow_provider_kmigrate.steps.in_turn import active_last, one_by_one
from airflow_provider_kmigrate.steps.rollback import run_plan
from airflow_provider_kmigrate.steps.run import Step, World, run_step


def run_rollback(world: World, terms: Terms = SAFE) -> Done:
    """The whole way back in its order; raises as its steps do. Killed and run again it goes on; at its end it lets go of the cluster."""
    steps = run_plan(world)
    ends = [run_leg(world, leg, asked_by(world.spec, terms)) for leg in WAY_BACK if terms.failover or not leg.heals]
    world.fence.release()
    return Done(f"{getattr(ends[-1], 'text', '')} Steps taken: {len(steps)}.")


def run_leg(world: World, leg: Leg, asked: dict[str, Any]) -> Done | Wait:
    """Every step of one leg, in turn; what the last one said. `asked`: the terms, as a run's conf states them."""
    step = partial(_step, world, leg, asked)
    if leg.rest and leg.target is not None:
        return one_by_one(world, leg.target, step)
    if leg.rest:
        return active_last(world, postponed_stop, step)
    nodes = {Role.BROKER: world.spec.brokers, Role.CONTROLLER: world.spec.controllers}[leg.each] if leg.each else (None,)
    return [run_step(step(node), world) for node in nodes][-1]


def _step(world: World, leg: Leg, asked: dict[str, Any], node: NodeSpec | None) -> Step:
    of_node = {} if node is None else {"node": node.id}
    return build(world.spec, leg.kind, {**asked, **of_node, **({"target": leg.target} if leg.target else {})})
