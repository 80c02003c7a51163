"""Kafka's znodes as they are, and as they must not be: a broken one is a finding, never an exception."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.core.cluster_state.model import (
    BrokerMode,
    Expansion,
    ExpansionStage,
    Malformed,
    Migration,
    PartitionMetadata,
    TopicMetadata,
    ZkController,
)
from airflow_provider_kmigrate.exceptions import Failed

PARSERS: dict[str, Callable[[bytes], Any]] = {
    "cluster id": znodes.parse_cluster_id,
    "controller": lambda data: znodes.parse_controller(data, ephemeral=True),
    "migration": lambda data: znodes.parse_migration(data, 3),
    "topic": lambda data: znodes.parse_topic("t", data),
    "state": lambda data: znodes.parse_partition_state("/s", data),
    "configs": lambda data: znodes.parse_configs("/config/topics/t", data),
}


class TestAsKafkaWrites:
    def test_cluster_id(self) -> None:
        assert znodes.parse_cluster_id(b'{"version":"1","id":"8KsVXPxQQ"}') == "8KsVXPxQQ"

    def test_a_zookeeper_controller(self) -> None:
        data = b'{"version":2,"brokerid":1,"timestamp":"1700000000000","kraftControllerEpoch":-1}'
        assert znodes.parse_controller(data, ephemeral=True) == ZkController(1, -1, ephemeral=True)

    def test_a_controller_from_before_kip_866(self) -> None:
        assert znodes.parse_controller(b'{"version":1,"brokerid":1}', ephemeral=True) == ZkController(1, -1, ephemeral=True)

    def test_a_kraft_controller(self) -> None:
        data = b'{"version":2,"brokerid":3000,"timestamp":"1","kraftControllerEpoch":4}'
        seen = znodes.parse_controller(data, ephemeral=False)
        assert isinstance(seen, ZkController)
        assert seen.is_kraft

    def test_migration(self) -> None:
        data = (
            b'{"version":0,"kraft_controller_id":3000,"kraft_controller_epoch":4,'
            b'"kraft_metadata_offset":1234,"kraft_metadata_epoch":3}'
        )
        assert znodes.parse_migration(data, 7) == Migration(3000, 4, 1234, 3, version=7)

    @pytest.mark.parametrize(("data", "epoch"), [(b"7", 7), (b"", None), (b"seven", None)])
    def test_controller_epoch(self, data: bytes, epoch: int | None) -> None:
        assert znodes.parse_controller_epoch(data) == epoch

    @pytest.mark.parametrize(
        ("data", "who"),
        [
            (b'{"0": "zookeeper", "2": "migration"}', {0: BrokerMode.ZOOKEEPER, 2: BrokerMode.MIGRATION}),
            (b"{}", {}),
        ],
    )
    def test_our_note_of_who_was_taken_back(self, data: bytes, who: dict[int, BrokerMode]) -> None:
        assert znodes.parse_rolled_back(data) == who

    @pytest.mark.parametrize("data", [b"", b"[0]", b'{"0": "elsewhere"}', b'{"zero": "zookeeper"}'])
    def test_an_unreadable_note_is_not_taken_for_none(self, data: bytes) -> None:
        with pytest.raises(Failed, match="rolled back"):
            znodes.parse_rolled_back(data)

    @pytest.mark.parametrize("stage", ExpansionStage)
    def test_our_note_of_an_expansion_is_read_as_it_was_written(self, stage: ExpansionStage) -> None:
        note = Expansion((5, 10), 20, stage)
        assert znodes.parse_expansion(json.dumps(znodes.expansion_note(note)).encode()) == note

    @pytest.mark.parametrize(
        "data", [b"", b"{}", b'{"from": 10, "to": 20, "stage": "begun"}', b'{"from": [10], "to": 20, "stage": "x"}']
    )
    def test_an_unreadable_note_of_an_expansion_is_not_taken_for_none(self, data: bytes) -> None:
        with pytest.raises(Failed, match="offsets-topic"):
            znodes.parse_expansion(data)

    @pytest.mark.parametrize("data", [b"", b"[]", b'{"__consumer_offsets": "50"}', b'{"": 50}', b'{"__consumer_offsets": true}'])
    def test_an_unreadable_note_of_partition_counts_is_not_taken_for_none(self, data: bytes) -> None:
        assert znodes.parse_partition_counts(b'{"__consumer_offsets": 50}') == {"__consumer_offsets": 50}
        with pytest.raises(Failed, match="partition-counts"):
            znodes.parse_partition_counts(data)

    def test_a_topic(self) -> None:
        data = b'{"removing_replicas":{},"partitions":{"0":[1,2]},"topic_id":"abc","adding_replicas":{},"version":3}'
        assert znodes.parse_topic("t", data) == TopicMetadata("t", "abc", {0: PartitionMetadata((1, 2), leader=-1)})

    def test_a_topic_from_before_topic_ids(self) -> None:
        seen = znodes.parse_topic("t", b'{"version":2,"partitions":{}}')
        assert isinstance(seen, TopicMetadata)
        assert seen.topic_id is None

    def test_a_partition_state(self) -> None:
        data = b'{"controller_epoch":1,"leader":-1,"version":1,"leader_epoch":2,"isr":[2]}'
        assert znodes.parse_partition_state("/s", data) == (-1, (2,), 1)
        assert znodes.parse_partition_state("/s", data.replace(b"controller_epoch", b"other")) == (-1, (2,), None)
        assert znodes.parse_state_epoch("/s", data) == 1

    def test_configs(self) -> None:
        assert znodes.parse_configs("/c", b'{"version":1,"config":{"retention.ms":"1"}}') == {"retention.ms": "1"}
        assert znodes.parse_configs("/c", b'{"version":1,"config":{}}') == {}


class TestBroken:
    @pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
    @pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b"7", b'"x"', b"{", b"\xff\xfe", b'{"id":7,"isr":0}'])
    def test_is_malformed(self, parse: Callable[[bytes], Any], data: bytes) -> None:
        assert isinstance(parse(data), Malformed)

    @pytest.mark.slow
    @pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
    @given(data=st.binary(max_size=64))
    def test_no_bytes_at_all_raise(self, parse: Callable[[bytes], Any], data: bytes) -> None:
        found = parse(data)
        assert isinstance(found, Malformed) or found == parse(data)

    @pytest.mark.parametrize("partitions", ['{"0": {}}', '{"0": ""}', '{"-1": [1]}', '{" 1": [1]}', '{"1_0": [1]}', '{"x": [1]}'])
    def test_partitions_that_kafka_does_not_write(self, partitions: str) -> None:
        assert isinstance(znodes.parse_topic("t", f'{{"partitions": {partitions}}}'.encode()), Malformed)

    def test_a_number_in_quotes_is_no_number(self) -> None:
        data = b'{"brokerid":"1","kraftControllerEpoch":-1}'
        assert isinstance(znodes.parse_controller(data, ephemeral=True), Malformed)

    def test_null_data_is_shown_as_empty(self) -> None:
        assert znodes.parse_migration(b"", 0) == Malformed("/migration", "")

    def test_content_is_cut(self) -> None:
        seen = znodes.parse_cluster_id(b"x" * 10_000)
        assert isinstance(seen, Malformed)
        assert len(seen.content) < 1_000
