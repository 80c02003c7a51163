from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from airflow_provider_kmigrate.applications.migrating import MigratingConsumer
from tests.consumer.memory_group_zookeeper import MemoryZooKeeper
from tests.consumer.migrating_group import Member
from tests.consumer.mock_kafka import COORDINATOR, MODE, MockKafka, WatchedKafka
from tests.consumer.wire_log import Api
from tests.waiting import wait_until


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as mock:
        yield mock


@pytest.fixture
def watched() -> Iterator[WatchedKafka]:
    with WatchedKafka() as mock:
        yield mock


@pytest.fixture
def zookeeper(watched: WatchedKafka) -> MemoryZooKeeper:
    """Of a group that Kafka coordinates."""
    watched.topic("t", 4)
    watched.coordinate("g", COORDINATOR)
    found = MemoryZooKeeper({"t": 4})
    found.put(MODE, b"kafka")
    return found


@pytest.fixture
def properties(watched: WatchedKafka) -> dict[str, Any]:
    """The mock rebalances for a second less than the session's time-out."""
    return {
        "bootstrap.servers": watched.bootstrap,
        "group.id": "g",
        "zookeeper.connect": "memory",
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "coordination.migration.enabled": True,
        "session.timeout.ms": 2000,
        "log_level": 0,
    }


@pytest.fixture
def joins(watched: WatchedKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any], tmp_path: Path) -> Callable[..., Member]:
    del watched
    return lambda **more: Member({**properties, **more}, tmp_path, ["t"], zookeeper.connect)


@pytest.fixture
def alone(joins: Callable[..., Member], watched: WatchedKafka) -> Iterator[Member]:
    """One member that has every partition and is well."""
    with joins() as member:
        wait_until(lambda: len(member.owned) == 4, "it has all")
        wait_until(lambda: watched.sent(Api.HEARTBEAT), "it is in the group")
        yield member


@pytest.fixture
def consumer(watched: WatchedKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any]) -> Iterator[MigratingConsumer]:
    """One that has been handed three records, and commits only on request."""
    watched.fill("t", {0: 3})
    with MigratingConsumer({**properties, "enable.auto.commit": False}, connect=zookeeper.connect) as made:
        made.subscribe(["t"])
        got = list[Message]()
        wait_until(lambda: got.extend(made.consume(10, 0.2)) or len(got) == 3, "three records")
        wait_until(lambda: made.consume(1, 0.1) == [] and watched.sent(Api.HEARTBEAT), "it is in the group")
        yield made
