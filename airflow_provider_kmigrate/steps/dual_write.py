"""The cures of a dual-write that has ended, and the failover that a way back begins with."""

from __future__ import annotations

from airflow_provider_kmigrate.clients.half_made import half_made, make_whole
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.config_matrix import Stage
from airflow_provider_kmigrate.core.model import Look
from airflow_provider_kmigrate.core.standstill import FAIL_OVER
from airflow_provider_kmigrate.exceptions import AuthenticationFailed
from airflow_provider_kmigrate.steps.files import install
from airflow_provider_kmigrate.steps.run import World

_BEING_MADE = 5.0  # seconds, in which a topic that is just being made is whole


def cure(world: World, verb: str) -> None:
    """Complete what ZooKeeper holds in part, and where that is not all, have another controller lead."""
    _complete(world)
    if verb == FAIL_OVER:
        fail_over(world)


def _complete(world: World) -> None:
    found = half_made(world.tools.zk)
    if found:
        world.clock.sleep(_BEING_MADE)
        found = tuple(path for path in half_made(world.tools.zk) if path in found)
    if not found:
        world.say("ZooKeeper holds every topic with all its partitions.")
        return
    names = ", ".join(found[:5])
    try:
        made = make_whole(world.tools.zk, found, world.fence)
    except (AuthenticationFailed, Changed) as error:
        world.say(f"{len(found)} partitions have no state in ZooKeeper ({names}), and it could not be made: {error}")
        return
    world.say(
        f"{made} partitions had no state in ZooKeeper, at which every controller fails: made, to be written over ({names})."
    )


def fail_over(world: World) -> None:
    """Restart the active controller with the migration flag in its file; another one is elected."""
    quorum = world.observer.look(Look.QUORUM).quorum
    leader = next((node for node in world.spec.controllers if quorum is not None and node.id == quorum.leader_id), None)
    if leader is None:
        return
    host = world.tools.host(leader)
    install(world, leader, Stage.CONTROLLER_MIGRATION)
    world.say(f"{leader.name} stopped after {host.stop(leader, world.fence.token):.1f} s.")
    host.start(leader, world.fence.token)
