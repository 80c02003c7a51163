"""Partition states raised above what brokers remember of KRaft; `clients.partition_states` says why."""

from __future__ import annotations

from airflow_provider_kmigrate.clients.partition_states import raise_versions
from airflow_provider_kmigrate.clients.zookeeper import Delete
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.exceptions import AuthenticationFailed
from airflow_provider_kmigrate.steps.run import World


def raise_states(world: World) -> bool:
    """Whether all were written. Without the right to it one goes on: a leader that is not heard can be restarted."""
    try:
        count, times = raise_versions(world.tools.zk, world.fence)
    except (AuthenticationFailed, Changed) as error:
        world.say(f"Partition states could not all be raised above KRaft's partition epochs: {error}")
        return False
    world.say(f"{count} partition states written again as they are, {times} times: above KRaft's partition epochs.")
    return True


def elect_anew(world: World) -> None:
    """Raise them under a ZooKeeper controller that works, and have one elected that reads them anew and tells every broker.

    An election costs less than a second, in which no leader can move (measured).
    """
    owner = world.tools.zk.read("/controller")
    if not raise_states(world) or owner is None:
        return
    try:
        world.tools.zk.commit([Delete("/controller", owner[1])], holding=world.fence)
    except Changed:
        world.say("Another controller was elected meanwhile; it has read the states.")
