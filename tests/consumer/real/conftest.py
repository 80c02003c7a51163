"""One broker in ZooKeeper mode, and a group with a topic of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from tests.consumer.real_group import PARTITIONS
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker in ZooKeeper mode."""
    with lent(tmp_path_factory.mktemp("migrating") / "cluster", Shape(name="mig", brokers=1, controllers=1)) as there:
        yield there


@pytest.fixture(scope="module")
def zookeeper(cluster: LocalCluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def group(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """A group with a topic of its own, both of the same name, which a second try does not share."""
    name = f"{request.node.originalname.removeprefix('test_')[:40]}-{uuid4().hex[:6]}"
    create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan(name, PARTITIONS, 1)])
    return name


@pytest.fixture
def properties(cluster: LocalCluster, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "zookeeper.connect": cluster.zookeeper,
        "zookeeper.session.timeout.ms": 6000,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 500,
        "coordination.migration.enabled": True,
        "session.timeout.ms": 10000,
        "log_level": 2,
    }
