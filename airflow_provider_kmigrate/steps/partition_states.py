"""Partition states raised above what brokers remember of KRaft; `clients.partition_states` says why."""

from __future__ import annotations

from airflow_provider_kmigrate.clients.partition_states import raise_versions
from airflow_provider_kmigrate.clients.znode_writes import Delete
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.exceptions import AuthenticationFailed
from airflow_provider_kmigrate.steps.run import StepContext


def raise_states(world: StepContext) -> None:
    """Without the right to it one goes on: a leader that is not heard can be restarted."""
    try:
        count, times = raise_versions(world.tools.zk, world.fence)
    except (AuthenticationFailed, Changed) as error:
        world.say(f"Partition states could not all be raised above KRaft's partition epochs: {error}")
        return
    world.say(f"{count} partition states written again as they are, {times} times: above KRaft's partition epochs.")


def elect_anew(world: StepContext) -> None:
    """Raise them under a ZooKeeper controller that works, and have one elected that reads them anew and tells every broker.

    An election costs less than a second, in which no leader can move (measured). It comes also where not all could be raised: the
    controller goes by the versions that it has read, and could not change a partition whose state was raised any more.
    """
    owner = world.tools.zk.read("/controller")
    raise_states(world)
    if owner is None:
        return
    try:
        world.tools.zk.commit([Delete("/controller", owner[1])], holding=world.fence)
    except AuthenticationFailed as error:
        world.say(f"No controller was elected: {error}")
    except Changed:
        world.say("Another controller was elected meanwhile; it has read the states.")
