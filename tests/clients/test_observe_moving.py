"""What an observer hears of reassignments, and from whom."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka.protocol.admin import ListPartitionReassignmentsResponse

from airflow_provider_kmigrate.clients.wire import NodeMetadata
from airflow_provider_kmigrate.core.model import Fields
from airflow_provider_kmigrate.exceptions import Unavailable
from tests.clients.fake_cluster import CLUSTER, Cluster, codes

_TOPIC = ListPartitionReassignmentsResponse.OngoingTopicReassignment
MOVING = _TOPIC(
    name="orders",
    partitions=[
        _TOPIC.OngoingPartitionReassignment(partition_index=3, replicas=[1, 2], adding_replicas=[2], removing_replicas=[])
    ],
)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    there = Cluster()
    yield there
    there.released.set()
    there.observer.close()


class TestReassignments:
    def test_none(self, cluster: Cluster) -> None:
        assert cluster.observe(Fields.REASSIGNMENTS).moving == ()

    def test_in_zookeeper_mode_the_controller_alone_knows(self, cluster: Cluster) -> None:
        for wire in cluster.wires.values():
            wire.peers = NodeMetadata(CLUSTER, 2, frozenset({1, 2, 3}))
            wire.moving = Unavailable("not me")
        cluster.wires[2].moving = ListPartitionReassignmentsResponse(0, 0, None, [MOVING])
        assert cluster.observe(Fields.REASSIGNMENTS).moving == ("orders-3",)
        assert cluster.wires[3].asked == []

    def test_nobody_knows_while_the_controller_moves(self, cluster: Cluster) -> None:
        for wire in cluster.wires.values():
            wire.moving = Unavailable("not me")
        view = cluster.observe(Fields.REASSIGNMENTS)
        assert (view.moving, codes(view)) == (None, ["U05"])
