"""Brokers with two log directories (JBOD, KIP-858): there, back and there again, with all records and a name of each directory.

The oldest release that may be migrated, and the newest; what has no ids of directories yet is refused before anything is restarted.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.node_files.properties import parse_properties
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.prepare import run_preflight
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Shape, folder_of
from tests.system import evidence

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow(seconds=120), pytest.mark.timeout(900)]

PARTITIONS = 8
PLAN = TopicPlan("orders", PARTITIONS, config={"min.insync.replicas": "2"})


def read_directories(cluster: LocalCluster) -> list[tuple[str, int, str]]:
    """Of each directory of each broker: its name, how many partitions of orders it has, and its id, empty without one."""
    return [
        (
            f"{node.name} {folder.name}",
            len(list(folder.glob("orders-*"))),
            parse_properties((folder / "meta.properties").read_text()).get("directory.id", ""),
        )
        for node in cluster.plan.brokers
        for folder in sorted(folder_of(node).glob("data*"))
        if (folder / "meta.properties").exists()
    ]


def write_records(bootstrap: str, count: int, first: int) -> int:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for number in range(first, first + count):
        producer.produce(PLAN.name, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return first + count


def read_records(bootstrap: str) -> list[int]:
    """All numbers, sorted."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    numbers: list[int] = []
    for partition in range(PARTITIONS):
        low, high = consumer.get_watermark_offsets(TopicPartition(PLAN.name, partition), timeout=30)
        consumer.assign([TopicPartition(PLAN.name, partition, low)])
        wanted = len(numbers) + high - low
        while len(numbers) < wanted:
            numbers += [int(message.value() or b"-1") for message in consumer.consume(wanted - len(numbers), 30.0)]
    consumer.close()
    return sorted(numbers)


@pytest.mark.parametrize("release", ["", "3.7.2"])
def test_there_and_back_and_there_again_with_two_directories_each(tmp_path: Path, release: str) -> None:
    cluster = LocalCluster(tmp_path / "cluster")
    cluster.end_with_this_process()
    shape = Shape(name="jbod", brokers=3, controllers=1, kafka_release=release, log_dirs=2)
    try:
        cluster.up(shape)
        create_topics({"bootstrap.servers": cluster.bootstrap}, [PLAN])
        written = write_records(cluster.bootstrap, 1_000, 0)
        before = read_directories(cluster)
        assert [count for _, count, _ in before] == [PARTITIONS // 2] * 6
        with direct.context(cluster) as here:
            direct.to_hybrid(here)
            written = write_records(cluster.bootstrap, 1_000, written)
            run_rollback(here)
        with direct.context(cluster, acting=False) as here:
            view = here.observer.observe(evidence.EVERYTHING)
        assert position_of(view).phase is Phase.ZOOKEEPER
        assert view.modes() == dict.fromkeys(range(3), BrokerMode.ZOOKEEPER)
        assert read_records(cluster.bootstrap) == list(range(written))
        with direct.context(cluster) as here:
            direct.forward(here)
            view = here.observer.observe(evidence.EVERYTHING)
            assert position_of(view).phase is Phase.FINALIZED
            assert view.modes() == dict.fromkeys(range(3), BrokerMode.KRAFT)
        written = write_records(cluster.bootstrap, 1_000, written)
        assert read_records(cluster.bootstrap) == list(range(written))
        after = read_directories(cluster)
        assert [row[:2] for row in after] == [row[:2] for row in before], "no partition has moved"
        assert len({directory for _, _, directory in after} - {""}) == 6, after
    finally:
        cluster.clean()


@pytest.mark.parametrize(("release", "protocol"), [("3.6.2", "3.6-IV2"), ("3.7.2", "3.6-IV2"), ("3.7.2", "3.7-IV1")])
def test_brokers_without_ids_of_directories_are_refused_before_anything_is_restarted(
    tmp_path: Path, release: str, protocol: str
) -> None:
    """A broker in KRaft mode would not register: by its release, or by the protocol version that it still has."""
    cluster = LocalCluster(tmp_path / "cluster")
    cluster.end_with_this_process()
    shape = Shape(name="jbod", brokers=1, controllers=1, racks=0, kafka_release=release, log_dirs=2)
    try:
        cluster.plan_with(shape, {"inter.broker.protocol.version": protocol})
        cluster.up(shape)
        with direct.context(cluster, acting=False) as here, pytest.raises(Refused) as refusal:
            run_preflight(here)
        said = [str(reason) for reason in refusal.value.reasons if reason.code == "B1b"]
        assert [
            text
            for text in said
            if f"several log directories and a version below 3.7-IV2: broker 0 with 2, on {protocol}" in text
        ], said
    finally:
        cluster.clean()
