"""One leg of a way, forward or back, to its end: every step of it in turn, as the DAG's tasks are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from airflow_provider_kmigrate.core.back.rollback import postponed_stop
from airflow_provider_kmigrate.core.cluster import NodeSpec, Role
from airflow_provider_kmigrate.core.decision import Done, Wait
from airflow_provider_kmigrate.core.forward.provision import postponed_controller
from airflow_provider_kmigrate.core.legs import Leg
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.in_turn import active_last, one_by_one
from airflow_provider_kmigrate.steps.run import Step, World, run_step

_POSTPONED = {"stop controller": postponed_stop, "finalize": postponed_controller}


def run_leg(world: World, leg: Leg, asked: Mapping[str, Any]) -> Done | Wait:
    """What the last step of a leg said; raises as its steps do. `asked`: arguments of the steps beside node and target, such as a way back's terms."""
    step = partial(_step, world, leg, asked)
    if leg.rest and leg.target is not None:
        return one_by_one(world, leg.target, step)
    if leg.rest:
        return active_last(world, _POSTPONED[leg.kind], step)
    nodes = {Role.BROKER: world.spec.brokers, Role.CONTROLLER: world.spec.controllers}[leg.each] if leg.each else (None,)
    return [run_step(step(node), world) for node in nodes][-1]


def _step(world: World, leg: Leg, asked: Mapping[str, Any], node: NodeSpec | None) -> Step:
    of_node = {} if node is None else {"node": node.id}
    return build(world.spec, leg.kind, {**asked, **of_node, **({"target": leg.target} if leg.target else {})})
