"""Several nodes one after another, in an order that depends on what is seen: whichever moves an election along goes last."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_kmigrate.core.cluster import NodeSpec, Role
from airflow_provider_kmigrate.core.decision import Done, Wait
from airflow_provider_kmigrate.core.forward.roll import next_to_roll
from airflow_provider_kmigrate.core.listing import listed
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Look
from airflow_provider_kmigrate.steps.brokers import ROLL_LOOKS
from airflow_provider_kmigrate.steps.run import Step, World, run_step


def one_by_one(world: World, target: BrokerMode, step: Callable[[NodeSpec], Step]) -> Done:
    """Every broker that is not in `target` yet, one that is under way first, the ZooKeeper controller last; looked up anew for each.

    Raises as the steps do.
    """
    order, done = [node.id for node in world.spec.brokers], []
    while (number := next_to_roll(world.observer.look(ROLL_LOOKS), order, target)) is not None:
        run_step(step(world.spec.node(Role.BROKER, number)), world)
        done.append(number)
    text = f"Restarted at the end: {listed(done)}." if done else "No broker was left."
    world.say(f"Done: {text}")
    return Done(text)


def active_last(world: World, postponed: Callable[[ClusterView, int], str], step: Callable[[NodeSpec], Step]) -> Done | Wait:
    """Every controller, the one that is `postponed` (why, in words; empty: it is not) last. What the last one said; raises as the steps do."""
    view = world.observer.look(Look.CONTROLLERS | Look.QUORUM)
    nodes = sorted(world.spec.controllers, key=lambda node: bool(postponed(view, node.id)))
    return [run_step(step(node), world) for node in nodes][-1]
