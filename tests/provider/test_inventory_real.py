"""The inventory of a real cluster's groups: in ZooKeeper, live and empty ones at the brokers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from airflow.sdk import DAG
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from airflow_provider_kmigrate.localcluster.cluster import LocalCluster, lent
from airflow_provider_kmigrate.localcluster.plan import Shape
from airflow_provider_kmigrate.operators.inventory import GroupInventoryOperator

pytestmark = pytest.mark.cluster
RECORDS = 10


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker below a chroot, with a topic of one partition and ten records."""
    with lent(
        tmp_path_factory.mktemp("cluster"), Shape(name="groups", brokers=1, controllers=1, racks=0, chroot="/kafka/main")
    ) as there:
        servers = {"bootstrap.servers": there.bootstrap}
        admin = AdminClient(servers)  # its requests end with it
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
        producer = Producer(servers)
        for number in range(RECORDS):
            producer.produce("t", str(number))
        assert producer.flush(30) == 0
        yield there


def consumer(local: LocalCluster, group: str) -> Consumer:
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 6000}
    return Consumer({"bootstrap.servers": local.bootstrap, **settings})


def test_every_group_has_its_line(
    local: LocalCluster, connection: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__KMIGRATE__FOLDER", str(tmp_path))
    for conn_id, fields in json.loads(local.plan.connections_path.read_text(encoding="utf-8")).items():
        connection(conn_id, **fields)
    empty = consumer(local, "empty")
    empty.commit(offsets=[TopicPartition("t", 0, 4)], asynchronous=False)
    empty.close()
    live = consumer(local, "live")
    live.subscribe(["t"])
    assert live.poll(60) is not None
    for _ in range(3):
        live.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        time.sleep(0.5)
    zk = KazooClient(f"{local.plan.zookeeper}/kafka/main")
    zk.start(timeout=30)
    try:
        zk.create("/consumers/old/ids/old_1", b"{}", ephemeral=True, makepath=True)
        zk.create("/consumers/old/offsets/t/0", b"7", makepath=True)
        with DAG(dag_id="inventory", schedule=None):
            task = GroupInventoryOperator(task_id="look", cluster_file=str(local.spec_path))
        for _ in range(3):
            counts = task.execute({})
    finally:
        live.close()
        zk.stop()
        zk.close()
    rows = {row["group"]: row for row in json.loads(next(tmp_path.glob("inventory/*/inventory.json")).read_text())}
    seen = {
        name: (row["protocol"], row["life"], row["lag"]["p99"], row["lag"]["looks"], row["wave"]) for name, row in rows.items()
    }
    assert seen == {
        "old": ("zookeeper", "live", RECORDS - 7, 3, 1),
        "live": ("classic", "live", RECORDS - 1, 3, 0),
        "empty": ("classic", "empty", RECORDS - 4, 3, 0),
    }
    assert counts == {"wave 0": 2, "wave 1": 1}
    assert 400 < rows["live"]["commit_interval_ms"] < 60_000, "as __consumer_offsets tells it"
    assert rows["empty"]["commit_interval_ms"] is None, "one commit"
    assert "K25" in {reason["code"] for reason in rows["live"]["reservations"]}, "its session is 6 s"
