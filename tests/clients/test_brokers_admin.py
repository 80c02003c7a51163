"""Elections and new partitions: with a node of our own, and on real brokers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from fake_node import KRAFT, FakeNode, api_versions
from kafka.protocol.admin import CreatePartitionsResponse, ElectLeadersResponse
from kafka.protocol.metadata import MetadataResponse
from tenacity import wait_none

from airflow_provider_kmigrate.clients import brokers_admin
from airflow_provider_kmigrate.clients.brokers_admin import Admin
from airflow_provider_kmigrate.clients.settings import KafkaSettings
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster_state.model import Partition
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, Fenced, KMigrateError, Unavailable, Unreachable
from tests.kit.held import Held
from tests.kit.localcluster.cluster import LocalCluster
from tests.waiting import wait_until

METADATA, CREATE, ELECT = 3, 37, 43
ROWS = [Partition("t", place, 1, (0, 1), (0, 1)) for place in range(3)]
elect = Admin.elect_preferred.retry_with(wait=wait_none())  # type: ignore[attr-defined]


class Controller:
    """A broker that is the controller, and answers each election with the next code for all its partitions."""

    def __init__(self, *codes: int, known: bool = True, whole: int = 0) -> None:
        self.codes, self.known, self.whole = list(codes), known, whole
        self.asked = list[Any]()
        self.handlers = {
            18: api_versions({**KRAFT, CREATE: (0, 3), ELECT: (0, 2)}),
            METADATA: self._metadata,
            ELECT: self._elect,
            CREATE: self._create,
        }

    def serve(self) -> FakeNode:
        self.node = FakeNode(self.handlers)
        return self.node

    def _metadata(self, _: Any) -> MetadataResponse:
        here = MetadataResponse.MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self.node.port, rack=None)
        return MetadataResponse(brokers=[here], cluster_id="c", controller_id=0 if self.known else -1, topics=[])

    def _elect(self, request: Any) -> ElectLeadersResponse:
        self.asked.append(request)
        code, of_topic = self.codes.pop(0), ElectLeadersResponse.ReplicaElectionResult
        results = [
            of_topic(
                topic=topic.topic,
                partition_result=[
                    of_topic.PartitionResult(partition_id=index, error_code=code, error_message=None)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions
        ]
        return ElectLeadersResponse(throttle_time_ms=0, error_code=self.whole, replica_election_results=results)

    def _create(self, request: Any) -> CreatePartitionsResponse:
        self.asked.append(request)
        of_topic = CreatePartitionsResponse.CreatePartitionsTopicResult
        results = [of_topic(name=topic.name, error_code=self.codes.pop(0), error_message="because") for topic in request.topics]
        return CreatePartitionsResponse(throttle_time_ms=0, results=results)


def admin_of(node: FakeNode) -> Admin:
    return Admin(KafkaSettings({"bootstrap.servers": f"127.0.0.1:{node.port}"}), timeout=5.0)


@pytest.mark.parametrize(
    ("codes", "asked", "error"),
    [
        ([0], 1, None),
        ([84], 1, None),
        ([3], 1, None),
        ([41, 41, 0], 3, None),
        ([41, 80], 2, Unavailable),
        ([80, 0], 1, Unavailable),
        ([31, 0], 1, AuthenticationFailed),
        ([41] * 9, 6, Unavailable),
    ],
    ids=[
        "elected",
        "leads already",
        "deleted",
        "moved twice",
        "then no preferred leader",
        "no preferred leader",
        "no right",
        "moves for ever",
    ],
)
def test_only_a_controller_that_moved_is_looked_up_again(codes: Sequence[int], asked: int, error: type[Exception] | None) -> None:
    controller = Controller(*codes)
    with controller.serve() as node, nullcontext() if error is None else pytest.raises(error):
        elect(admin_of(node), ROWS, Held())
    assert len(controller.asked) == asked
    assert [(topic.topic, topic.partitions) for topic in controller.asked[0].topic_partitions] == [("t", [0, 1, 2])]


@pytest.mark.parametrize(("whole", "asked", "error"), [(41, 6, Unavailable), (31, 1, AuthenticationFailed)])
def test_a_refusal_of_the_whole_request_is_one(whole: int, asked: int, error: type[Exception]) -> None:
    controller = Controller(*[0] * 9, whole=whole)
    with controller.serve() as node, pytest.raises(error):
        elect(admin_of(node), ROWS, Held())
    assert len(controller.asked) == asked


def test_nothing_is_asked_for_no_partitions() -> None:
    controller = Controller(0)
    with controller.serve() as node:
        admin_of(node).elect_preferred([], Held())
    assert controller.asked == []


def test_new_partitions_have_their_replicas_and_are_asked_for_once() -> None:
    controller = Controller(0, 37)
    with controller.serve() as node:
        admin_of(node).add_partitions("t", [(0, 1), (1, 0)], 3, Held())
        (topic,) = controller.asked[0].topics
        assert (topic.name, topic.count, [row.broker_ids for row in topic.assignments]) == ("t", 5, [[0, 1], [1, 0]])
        with pytest.raises(Failed, match=r"CreatePartitions of t: INVALID_PARTITIONS .because"):
            admin_of(node).add_partitions("t", [(0, 1)], 3, Held())
    assert len(controller.asked) == 2


def test_without_a_controller_nothing_is_sent() -> None:
    controller = Controller(0, known=False)
    with controller.serve() as node, pytest.raises(Unavailable, match="knows no controller"):
        admin_of(node).elect_preferred(ROWS, Held())
    assert controller.asked == []


@pytest.mark.parametrize("bootstrap", ["", "127.0.0.1:1"])
def test_no_broker_that_answers(bootstrap: str) -> None:
    with pytest.raises((Unreachable, KMigrateError)):
        Admin(KafkaSettings({"bootstrap.servers": bootstrap}), timeout=0.3).elect_preferred(ROWS, Held())


class TestOfANewerRun:
    """Kafka's requests carry no token: the fence is read again right before each."""

    def test_nothing_is_sent(self) -> None:
        controller = Controller(0, 0)
        with controller.serve() as node:
            with pytest.raises(Fenced):
                admin_of(node).elect_preferred(ROWS, Held(checks=0))
            with pytest.raises(Fenced):
                admin_of(node).add_partitions("t", [(0, 1)], 1, Held(checks=0))
        assert controller.asked == []

    def test_the_fence_is_read_before_each_batch_of_elections(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(brokers_admin, "_ELECTIONS", 1)
        controller = Controller(0, 0, 0)
        with controller.serve() as node, pytest.raises(Fenced):
            admin_of(node).elect_preferred(ROWS, Held(checks=2))
        assert len(controller.asked) == 2


@pytest.mark.cluster
def test_real_brokers_elect_and_add(cluster: LocalCluster) -> None:
    topic, settings = "admin-test", KafkaSettings({"bootstrap.servers": cluster.bootstrap})
    creator = AdminClient(dict(settings.properties))
    creator.create_topics([NewTopic(topic, 2, 3, config={"min.insync.replicas": "2", "retention.ms": "7"})])[topic].result(30)
    wires = [Wire(node.host, node.port) for node in cluster.plan.brokers]

    def partitions(wire: Wire) -> int:
        return len(described.partitions) if (described := wire.topics().get(topic)) else 0

    wait_until(lambda: {partitions(wire) for wire in wires} == {2}, "every broker knows the topic")
    described = [wire.topics()[topic] for wire in wires]
    assert described[0] == described[1] == described[2]
    assert described[0].configs == {"min.insync.replicas": "2", "retention.ms": "7"}
    Admin(settings).add_partitions(topic, [(2, 1, 0)], 2, Held())
    wait_until(lambda: {partitions(wire) for wire in wires} == {3}, "every broker knows the new partition")
    rows = [
        Partition(topic, index, each.leader, each.replicas, each.isr)
        for index, each in wires[0].topics()[topic].partitions.items()
    ]
    Admin(settings).elect_preferred([*rows, Partition("deleted-meanwhile", 0, -1, (0,), (0,))], Held())
    assert all(each.leader == each.replicas[0] for each in wires[0].topics()[topic].partitions.values())
