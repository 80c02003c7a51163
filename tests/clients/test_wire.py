"""The wire client against a node of our own: real frames, every answer and every failure that a node can give."""

from __future__ import annotations

import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from fake_node import CLOSE, HANG, KRAFT, ZOOKEEPER, FakeNode, api_versions
from kafka.errors import kafka_errors
from kafka.protocol.admin import (
    DescribeClusterResponse,
    DescribeConfigsResponse,
    DescribeQuorumResponse,
    ListConfigResourcesResponse,
    ListGroupsResponse,
)
from kafka.protocol.metadata import ApiVersionsResponse, FindCoordinatorResponse, MetadataResponse

from airflow_provider_kmigrate.clients import admin as ours
from airflow_provider_kmigrate.clients.wire import (
    _LONGEST_OF,
    NodeMetadata,
    NotLeader,
    PartitionLeader,
    Wire,
    describe_log_dirs,
)
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Partition, Quorum
from airflow_provider_kmigrate.exceptions import (
    AuthenticationFailed,
    Failed,
    TimedOut,
    Unavailable,
    Unreachable,
    WrongCluster,
)

METADATA, FIND_COORDINATOR, LIST_GROUPS, API_VERSIONS, CONFIGS, QUORUM, CLUSTER, LIST_CONFIGS = 3, 10, 16, 18, 32, 55, 60, 74
QUICK = 0.3  # seconds; a deadline that a test waits out
SLOW_MACHINE = 10.0  # seconds that a busy machine may add; what these tests are against takes 60 s or for ever


def wire(node: FakeNode, timeout: float = 5.0) -> Wire:
    return Wire("127.0.0.1", node.port, timeout=timeout)


def metadata(**fields: object) -> MetadataResponse:
    peers = [MetadataResponse.MetadataResponseBroker(node_id=i, host="h", port=1, rack=None) for i in (0, 1)]
    return MetadataResponse(**{"brokers": peers, "cluster_id": "c", "controller_id": 1, "topics": [], **fields})


class TestMode:
    @pytest.mark.parametrize(
        ("keys", "flag", "mode"),
        [
            (ZOOKEEPER, False, BrokerMode.ZOOKEEPER),
            (ZOOKEEPER, True, BrokerMode.MIGRATION),
            (KRAFT, False, BrokerMode.KRAFT),
        ],
    )
    def test_key_55_and_tag_3_tell_the_mode(self, keys: dict[int, tuple[int, int]], flag: bool, mode: BrokerMode) -> None:
        with FakeNode({API_VERSIONS: api_versions(keys, zk_migration_ready=flag)}) as node, wire(node) as client:
            assert client.api_versions().mode is mode

    def test_a_controller_shows_its_flag_and_the_metadata_version(self) -> None:
        level = ApiVersionsResponse.FinalizedFeatureKey(name="metadata.version", max_version_level=21, min_version_level=21)
        answer = api_versions(KRAFT, zk_migration_ready=True, finalized_features=[level], finalized_features_epoch=7)
        with FakeNode({API_VERSIONS: answer}) as node, wire(node) as client:
            seen = client.api_versions()
        assert (seen.migration_ready, seen.metadata_version) == (True, 21)

    def test_features_without_an_epoch_are_no_features(self) -> None:
        level = ApiVersionsResponse.FinalizedFeatureKey(name="metadata.version", max_version_level=21, min_version_level=21)
        with FakeNode({API_VERSIONS: api_versions(KRAFT, finalized_features=[level])}) as node, wire(node) as client:
            assert client.api_versions().metadata_version is None

    def test_a_node_that_knows_no_v3_is_asked_in_v0(self) -> None:
        def old(request: object) -> ApiVersionsResponse:
            code = 35 if request.API_VERSION == 3 else 0
            entry = ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=2)
            return ApiVersionsResponse(version=0, error_code=code, api_keys=[entry])

        with FakeNode({API_VERSIONS: old}) as node, wire(node) as client:
            assert client.api_versions().mode is BrokerMode.ZOOKEEPER


class TestQuorum:
    @staticmethod
    def answer(code: int = 0, level: str = "partition", high_watermark: int = 90) -> DescribeQuorumResponse:
        topic = DescribeQuorumResponse.TopicData
        replica = topic.PartitionData.ReplicaState
        state = topic.PartitionData(
            partition_index=0,
            error_code=code if level == "partition" else 0,
            leader_id=3001,
            leader_epoch=4,
            high_watermark=high_watermark,
            current_voters=[replica(replica_id=i, log_end_offset=o) for i, o in ((3000, 89), (3001, 91))],
            observers=[replica(replica_id=0, log_end_offset=88)],
        )
        return DescribeQuorumResponse(
            error_code=code if level == "top" else 0, topics=[topic(topic_name="__cluster_metadata", partitions=[state])]
        )

    def test_the_leader_describes_voters_and_observers(self) -> None:
        with FakeNode({QUORUM: self.answer()}) as node, wire(node) as client:
            assert client.describe_quorum() == Quorum(3001, 4, 90, {3000: 89, 3001: 91}, {0: 88})

    @pytest.mark.parametrize("level", ["partition", "top"])
    def test_the_others_say_that_they_do_not_lead(self, level: str) -> None:
        with FakeNode({QUORUM: self.answer(6, level)}) as node, wire(node) as client, pytest.raises(NotLeader):
            client.describe_quorum()

    def test_a_leader_without_a_high_watermark_is_not_ready(self) -> None:
        with FakeNode({QUORUM: self.answer(high_watermark=-1)}) as node, wire(node) as client:
            with pytest.raises(Unavailable) as early:
                client.describe_quorum()
            assert early.type is not NotLeader

    def test_a_zookeeper_broker_has_no_quorum(self) -> None:
        with FakeNode({API_VERSIONS: api_versions(ZOOKEEPER)}) as node, wire(node) as client, pytest.raises(Failed):
            client.describe_quorum()

    def test_controllers_are_described_by_their_own_kind(self) -> None:
        entry = DescribeClusterResponse.DescribeClusterBroker(broker_id=3000, host="h", port=9093, rack=None)
        answer = DescribeClusterResponse(error_code=0, cluster_id="c", controller_id=3000, brokers=[entry])
        with FakeNode({CLUSTER: answer}) as node, wire(node) as client:
            assert client.describe_cluster() == ("c", 3000, {3000: ("h", 9093)})
        assert node.seen[-1].endpoint_type == 2


class TestMetadata:
    def test_peers_and_controller_cost_no_topics(self) -> None:
        with FakeNode({METADATA: metadata()}) as node, wire(node) as client:
            assert client.metadata() == NodeMetadata("c", 1, frozenset({0, 1}))
        assert (node.seen[-1].topics, node.seen[-1].allow_auto_topic_creation) == ([], False)

    def test_no_controller_is_none(self) -> None:
        with FakeNode({METADATA: metadata(controller_id=-1)}) as node, wire(node) as client:
            assert client.metadata().controller_id is None

    def test_a_broker_that_knows_nothing_yet_is_no_witness(self) -> None:
        with FakeNode({METADATA: metadata(brokers=[])}) as node, wire(node) as client:
            for call in (client.metadata, client.partitions):
                with pytest.raises(Unavailable):
                    call()

    def test_partitions_carry_their_leader_epoch(self) -> None:
        with FakeNode({METADATA: metadata(topics=[self.topic("t")])}) as node, wire(node) as client:
            assert client.partitions() == (PartitionLeader(7, Partition("t", 0, 2, (2, 1), (2,))),)

    def test_a_topic_that_cannot_be_read_spoils_the_answer(self) -> None:
        with (
            FakeNode({METADATA: metadata(topics=[self.topic("t", code=29)])}) as node,
            wire(node) as client,
            pytest.raises(AuthenticationFailed),
        ):
            client.partitions()

    def test_leaders_of_one_topic(self) -> None:
        with FakeNode({METADATA: metadata(topics=[self.topic("t")])}) as node, wire(node) as client:
            assert client.leaders("t") == {0: (2, 7)}
        assert not node.seen[-1].allow_auto_topic_creation

    def test_a_topic_that_does_not_exist_has_none(self) -> None:
        with FakeNode({METADATA: metadata(topics=[self.topic("t", code=3)])}) as node, wire(node) as client:
            assert client.leaders("t") is None

    @staticmethod
    def topic(name: str, code: int = 0) -> MetadataResponse.MetadataResponseTopic:
        kind = MetadataResponse.MetadataResponseTopic
        state = kind.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=2, leader_epoch=7, replica_nodes=[2, 1], isr_nodes=[2], offline_replicas=[]
        )
        return kind(error_code=code, name=name, partitions=[] if code else [state])


class TestCoordinators:
    @pytest.mark.parametrize(("code", "named"), [(0, 2), (14, None), (15, None)])
    def test_many_groups_in_one_request(self, code: int, named: int | None) -> None:
        entry = FindCoordinatorResponse.Coordinator
        answer = FindCoordinatorResponse(
            coordinators=[entry(key=k, node_id=2, host="h", port=1, error_code=code, error_message=None) for k in "ab"]
        )
        with FakeNode({FIND_COORDINATOR: answer}) as node, wire(node) as client:
            assert client.find_coordinators("ab", 1) == {"a": named, "b": named}
        assert node.keys_seen().count(FIND_COORDINATOR) == 1
        assert node.seen[-1].key_type == 1, "of transactional ids"

    def test_one_request_a_group_before_v4(self) -> None:
        def answer(request: object) -> FindCoordinatorResponse:
            return FindCoordinatorResponse(error_code=0, node_id={"a": 1, "b": 2}[request.key], host="h", port=1)

        old = {**ZOOKEEPER, FIND_COORDINATOR: (0, 3)}
        with FakeNode({API_VERSIONS: api_versions(old), FIND_COORDINATOR: answer}) as node, wire(node) as client:
            assert client.find_coordinators("ab") == {"a": 1, "b": 2}

    @pytest.mark.parametrize("code", [0, 29])
    def test_the_groups_that_a_broker_lists(self, code: int) -> None:
        entry = ListGroupsResponse.ListedGroup
        listed = [entry(group_id=group, protocol_type="consumer", group_state="Empty", group_type="") for group in "ab"]
        refused = nullcontext() if code == 0 else pytest.raises(AuthenticationFailed)
        answer = ListGroupsResponse(error_code=code, groups=listed)
        with FakeNode({LIST_GROUPS: answer}) as node, wire(node) as client, refused:
            assert client.groups() == ("a", "b")


class TestConfigs:
    def test_one_key_of_every_topic_in_batches(self) -> None:
        def answer(request: object) -> DescribeConfigsResponse:
            result = DescribeConfigsResponse.DescribeConfigsResult
            entry = result.DescribeConfigsResourceResult(name="k", value="v", read_only=False, is_sensitive=False, synonyms=[])
            return DescribeConfigsResponse(
                results=[
                    result(
                        error_code=3 if asked.resource_name == "t7" else 0,
                        error_message=None,
                        resource_type=2,
                        resource_name=asked.resource_name,
                        configs=[entry],
                    )
                    for asked in request.resources
                ]
            )

        with FakeNode({CONFIGS: answer}) as node, wire(node) as client:
            seen = client.topic_configs("k", (f"t{i}" for i in range(501)))
        assert (len(seen), seen["t500"], "t7" in seen) == (500, "v", False)
        assert [len(request.resources) for request in node.seen if request.API_KEY == CONFIGS] == [500, 1]

    def test_client_metrics_are_listed_where_they_exist(self) -> None:
        entry = ListConfigResourcesResponse.ConfigResource
        answer = ListConfigResourcesResponse(error_code=0, config_resources=[entry(resource_name=n) for n in ("b", "a")])
        with FakeNode({LIST_CONFIGS: answer}) as node, wire(node) as client:
            assert client.client_metrics() == ("a", "b")

    def test_a_zookeeper_broker_cannot_list_client_metrics(self) -> None:
        with FakeNode({API_VERSIONS: api_versions(ZOOKEEPER)}) as node, wire(node) as client:
            assert client.client_metrics() is None


class TestConnection:
    def test_one_connection_serves_many_calls(self) -> None:
        with FakeNode({METADATA: metadata()}) as node, wire(node) as client:
            client.metadata()
            client.metadata()
        assert (node.connections, node.keys_seen()) == (1, [18, 3, 3])

    def test_a_connection_that_the_node_closed_is_opened_again(self) -> None:
        with FakeNode({METADATA: metadata()}) as node, wire(node) as client:
            client.metadata()
            node.drop_connections()
            assert client.metadata().cluster_id == "c"
        assert node.connections == 2

    def test_a_node_that_closes_every_connection_is_unreachable_and_asked_twice_at_most(self) -> None:
        with FakeNode({METADATA: metadata()}) as node, wire(node) as client:
            client.metadata()
            node.handlers[METADATA] = CLOSE
            with pytest.raises(Unreachable):
                client.metadata()
        assert node.connections == 2

    def test_no_listener(self) -> None:
        with FakeNode() as node:
            port = node.port
        with pytest.raises(Unreachable):
            Wire("127.0.0.1", port).metadata()

    def test_an_unknown_host(self) -> None:
        with pytest.raises((Unreachable, TimedOut)):
            Wire("no-such-host.invalid", 9092, timeout=QUICK).metadata()

    def test_a_node_that_hangs_costs_the_timeout_once(self) -> None:
        with FakeNode({METADATA: HANG}) as node, wire(node, timeout=QUICK) as client:
            began = time.monotonic()
            with pytest.raises(TimedOut):
                client.metadata()
            assert QUICK <= time.monotonic() - began < QUICK + SLOW_MACHINE
            assert node.connections == 1
            node.handlers[METADATA] = metadata()
            assert client.metadata().cluster_id == "c", "a late answer must not be read as this one's"

    def test_a_node_that_drips_bytes_meets_the_same_deadline(self) -> None:
        closed = threading.Event()

        def slowly(_: object) -> Iterator[bytes]:
            yield struct.pack(">i", 1000)
            while not closed.wait(QUICK / 5):
                yield b"\0"

        began = time.monotonic()
        with FakeNode({METADATA: slowly}) as node, wire(node, timeout=QUICK) as client, pytest.raises(TimedOut):
            client.metadata()
        closed.set()
        assert time.monotonic() - began < QUICK + SLOW_MACHINE

    def test_threads_take_turns_but_not_for_ever(self) -> None:
        with FakeNode({METADATA: HANG}) as node, wire(node, timeout=QUICK) as client:
            outcomes: list[type[BaseException]] = []

            def call() -> None:
                with pytest.raises(TimedOut) as caught:
                    client.metadata()
                outcomes.append(caught.type)

            threads = [threading.Thread(target=call) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(5)
        assert outcomes == [TimedOut] * 3

    def test_calls_that_are_answered_one_by_one_may_wait_longer_than_one_call_may_take(self) -> None:
        """Ten at once over a link of 0.2 s each way: the last one waited longer than its own time, and a roll for ever (measured)."""

        def late(_: object) -> MetadataResponse:
            time.sleep(0.4)
            return metadata()

        answers = list[str | None]()
        with FakeNode({METADATA: late}) as node, wire(node, timeout=1.0) as client:
            threads = [threading.Thread(target=lambda: answers.append(client.metadata().cluster_id)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
        assert answers == ["c"] * 8

    @pytest.mark.parametrize(
        ("answer", "why"),
        [
            (struct.pack(">ii", 8, 999) + bytes(4), "answer 999 to request"),  # another request's
            (struct.pack(">ii", 8, 2) + b"\xff" * 4, "not Kafka's protocol"),  # cut short
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame of"),
            (struct.pack(">i", -1), "a frame of"),
            (struct.pack(">i", 2**31 - 1), "a frame of"),
            (struct.pack(">i", (4 << 20) + 1), "a frame of"),
        ],
        ids=["correlation", "garbage", "http", "negative", "huge", "too long"],
    )
    def test_what_is_not_kafka_is_unreachable(self, answer: bytes, why: str) -> None:
        with FakeNode({METADATA: answer}) as node, wire(node) as client, pytest.raises(Unreachable, match=why):
            client.metadata()

    @pytest.mark.slow
    def test_a_list_of_smallest_elements_takes_no_more_than_64_mib(self) -> None:
        """Five bytes are a group: four empty texts and no tags. Measured on a part."""
        groups, part = _LONGEST_OF[ListGroupsResponse.API_KEY] // 5, 40_000
        body = bytes(6) + bytes([part + 1 & 127 | 128, part + 1 >> 7 & 127 | 128, part + 1 >> 14]) + b"\1\1\1\1\0" * part + b"\0"
        tracemalloc.start()
        try:
            found = ListGroupsResponse.decode(memoryview(body), version=5)
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert len(found.groups) == part
        assert taken / part * groups < 64 << 20

    def test_versions_that_do_not_meet(self) -> None:
        with (
            FakeNode({API_VERSIONS: api_versions({**KRAFT, METADATA: (13, 14)})}) as node,
            wire(node) as client,
            pytest.raises(Failed),
        ):
            client.metadata()


def _answers(*fields: dict[str, Any]) -> Callable[..., SimpleNamespace]:
    """A node's answers to one request after another."""
    left = iter(fields)
    return lambda *_, **__: SimpleNamespace(**next(left))


_BROKERS = {"brokers": [SimpleNamespace(node_id=0)]}
_REFUSED = {"error_code": 31, "error_message": "no permission"}
_TOPIC = SimpleNamespace(name="t", error_code=0, topic_id=None, partitions=[])
_CONFIGS = SimpleNamespace(**_REFUSED, resource_name="t", configs=[])


@pytest.mark.parametrize(
    ("ask", "answers"),
    [
        (Wire.describe_cluster, [{**_REFUSED, "cluster_id": "c", "controller_id": 1, "brokers": []}]),
        (Wire.topics, [{**_BROKERS, "topics": [SimpleNamespace(name="t", error_code=31, partitions=[])]}]),
        (Wire.topics, [{**_BROKERS, "topics": [_TOPIC]}, {"results": [_CONFIGS]}]),
        (lambda wire: wire.leaders("t"), [{**_BROKERS, "topics": [SimpleNamespace(error_code=31, partitions=[])]}]),
        (lambda wire: wire.topic_configs("k", ["t"]), [{"results": [_CONFIGS]}]),
        (Wire.client_metrics, [{**_REFUSED, "config_resources": []}]),
        (Wire.describe_quorum, [{**_REFUSED, "topics": []}]),
        (lambda wire: wire._coordinator_id(SimpleNamespace(**_REFUSED, node_id=1)), []),
        (describe_log_dirs, [{"error_code": 31, "results": [SimpleNamespace(log_dir="/d", error_code=0)]}]),
    ],
    ids=["cluster", "topics", "their configs", "leaders", "configs", "metrics", "quorum", "coordinator", "directories"],
)
def test_what_our_user_may_not_read_is_not_taken_for_absent(
    ask: Callable[[Wire], object], answers: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Wire("broker", 9092)
    monkeypatch.setattr(client, "ask", _answers(*answers))
    monkeypatch.setattr(client, "serves", lambda _: True)
    with pytest.raises(AuthenticationFailed):
        ask(client)


def test_a_node_that_serves_no_api_versions_is_refused() -> None:
    refused = ApiVersionsResponse(version=0, error_code=31, api_keys=[])
    with FakeNode({API_VERSIONS: refused}) as node, wire(node) as client, pytest.raises(AuthenticationFailed):
        client.api_versions()


def test_a_call_waits_for_the_one_before_it_no_longer_than_its_own_time() -> None:
    client = Wire("broker", 9092, timeout=0.05)
    assert client._lock.acquire(timeout=1)
    with pytest.raises(TimedOut, match=r"the previous call did not end within 0\.05 s"):
        client.metadata()


class TestErrorCodes:
    def test_every_code_is_ours_and_keeps_its_name(self) -> None:
        for code in filter(None, kafka_errors):
            error = ours.error_for(code, "h:1 X")
            assert isinstance(error, (Unavailable, AuthenticationFailed, Failed, WrongCluster)), code
            assert kafka_errors[code].message in str(error)

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            (7, TimedOut),
            (5, Unavailable),
            (41, Unavailable),
            (31, AuthenticationFailed),
            (58, AuthenticationFailed),
            (104, WrongCluster),
            (42, Failed),
            (-1, Failed),
        ],
    )
    def test_what_the_caller_may_do(self, code: int, kind: type[Exception]) -> None:
        assert type(ours.error_for(code, "h:1 X")) is kind

    def test_a_code_of_a_newer_kafka_keeps_its_number(self) -> None:
        assert "ERROR_9999" in str(ours.error_for(9999, "h:1 X"))

    def test_no_error_is_no_exception(self) -> None:
        ours.check(0, "h:1 X")
        with pytest.raises(ours.KMigrateError):
            ours.check(1, "h:1 X")
