"""A member's znodes where others have written, too."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.applications.migrating.zookeeper import GroupZnodes
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.core.coordination.registration import Registration
from airflow_provider_kmigrate.core.events import TopicPartition
from tests.consumer.memory_group_zookeeper import MemoryZooKeeper


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    return MemoryZooKeeper({"t": 2})


@pytest.fixture
def znodes(zookeeper: MemoryZooKeeper) -> GroupZnodes:
    session = zookeeper.connect(ZooKeeperSettings("memory"), lambda _: None, lambda _: None)
    session.start()
    found = GroupZnodes(session, "g", "g_a", Registration("static", {"t": 1}), migrates=True, internal_too=False)
    found.register(session.session or 0)
    return found


@pytest.mark.parametrize("name", ["²", "\u0661", "x", "-1"])
def test_an_owner_znode_that_is_no_partitions_stops_no_look(zookeeper: MemoryZooKeeper, znodes: GroupZnodes, name: str) -> None:
    """The look is in the lane in which members register: no one could join, and no one would follow a toggle."""
    zookeeper.put(f"/consumers/g/owners/t/{name}", b"")
    zookeeper.put("/consumers/g/owners/t/1", b"g_b-0")
    assert znodes.observe().owned == {TopicPartition("t", 1)}
    assert znodes.is_owner_path(f"/consumers/g/owners/t/{name}") is None
    assert znodes.is_owner_path("/consumers/g/owners/t/1") == TopicPartition("t", 1)
