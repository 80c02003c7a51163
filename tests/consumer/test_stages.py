"""One setting from ZooKeeper to Kafka."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from airflow_provider_kmigrate.applications.migrating import MigratingConsumer
from airflow_provider_kmigrate.applications.migrating.consumer import consumer_of, kafka_properties
from airflow_provider_kmigrate.applications.migrating.settings import ClientStage, parse_settings, stage_of
from airflow_provider_kmigrate.exceptions import Refused
from tests.consumer.memory_group_zookeeper import MemoryZooKeeper
from tests.consumer.mock_kafka import MockKafka
from tests.waiting import wait_until

STAGE, ENABLED = "coordination.migration.stage", "coordination.migration.enabled"
LEAST = {"group.id": "g", "zookeeper.connect": "memory"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ClientStage.ZOOKEEPER),
        ({ENABLED: "false"}, ClientStage.ZOOKEEPER),
        ({ENABLED: True}, ClientStage.MIGRATING),
        ({STAGE: "zookeeper"}, ClientStage.ZOOKEEPER),
        ({STAGE: "migrating"}, ClientStage.MIGRATING),
        ({STAGE: "migrating", ENABLED: True}, ClientStage.MIGRATING),
        ({STAGE: "kafka"}, ClientStage.KAFKA),
    ],
)
def test_the_stage_is_read_in_both_ways(given: dict[str, Any], expected: ClientStage) -> None:
    assert stage_of(given) is expected
    if expected is not ClientStage.KAFKA:
        assert parse_settings({**LEAST, **given}).migrates == (expected is ClientStage.MIGRATING)


@pytest.mark.parametrize("wrong", [{STAGE: "Kafka"}, {STAGE: "zookeeper", ENABLED: True}, {STAGE: "kafka", ENABLED: True}])
def test_a_stage_that_is_none_or_two_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        stage_of(wrong)


def test_a_migrating_consumer_is_none_in_the_last_stage() -> None:
    with pytest.raises(Refused):
        parse_settings({**LEAST, STAGE: "kafka"})


def test_a_plain_consumer_is_given_what_is_librdkafkas_own() -> None:
    given = {
        **LEAST,
        STAGE: "kafka",
        "coordination.migration.poll.interval.ms": 500,
        "zookeeper.session.timeout.ms": 6000,
        "consumer.id": "x",
        "exclude.internal.topics": True,
        "partition.assignment.strategy": "roundrobin",
        "auto.commit.enable": False,
        "bootstrap.servers": "b:9092",
    }
    plain = kafka_properties(given)
    assert plain == {
        "client.id": "x",
        "group.id": "g",
        "bootstrap.servers": "b:9092",
        "enable.auto.commit": False,
        "partition.assignment.strategy": "range",
    }
    assert kafka_properties({**given, "client.id": "y"}) == {**plain, "client.id": "y"}


@pytest.mark.slow(seconds=50)
def test_every_stage_goes_on_where_the_last_one_stood(kafka: MockKafka) -> None:
    kafka.topic("t", 1)
    zookeeper = MemoryZooKeeper({"t": 1})
    given = {**LEAST, "bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest", "log_level": 2}
    kinds, found = list[type](), list[list[int]]()
    for number, stage in enumerate(ClientStage):
        kafka.fill("t", {0: 3})
        consumer = consumer_of({**given, STAGE: str(stage)}, connect=zookeeper.connect)
        consumer.subscribe(["t"])
        seen = list[int]()
        wait_until(
            lambda seen=seen, it=consumer: seen.extend(m.offset() for m in it.consume(9, 0.2)) or len(seen) >= 3, "records"
        )
        if stage is ClientStage.MIGRATING:  # what a member of both takes up is known to Kafka before a plain one comes
            wait_until(lambda it=consumer: it.consume(1, 0.1) or committed(kafka) == 3 * (number + 1), "Kafka knows")  # noqa: B023
        consumer.close()
        kinds.append(type(consumer))
        found.append(seen)
    assert kinds == [MigratingConsumer, MigratingConsumer, Consumer]
    assert found == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def committed(kafka: MockKafka) -> int:
    asking = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g"})
    (found,) = asking.committed([TopicPartition("t", 0)], timeout=10.0)
    asking.close()
    return int(found.offset)
