"""Spouts of Storm are found by what they write, wherever that is in the ensemble."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from kazoo.client import KazooClient

from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.storm_spouts import find_storm_spouts, is_spout
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.exceptions import TimedOut

#: As storm-kafka's PartitionManager writes it.
SPOUT = b'{"topology":{"id":"5f","name":"clicks"},"offset":17,"partition":0,"broker":{"host":"kafka0","port":9092},"topic":"t"}'


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        (SPOUT, True),
        (b"", False),
        (b"17", False),
        (b"[" * 9000, False),
        (b'{"offset":17,"partition":0}', False),
        (b'["topology","offset","partition"]', False),
        (b"\xff", False),
    ],
)
def test_a_spout_is_known_by_what_it_writes(data: bytes, is_one: bool) -> None:
    assert is_spout(data) is is_one


class Silent:
    """A session whose server stops to answer."""

    def client(self) -> Any:
        return Mock()

    def wait_for_result(self, what: str, _: Any) -> Any:
        raise TimedOut(f"{what}: no answer")


def test_a_missing_answer_is_not_known_and_no_error_of_what_blocks() -> None:
    assert find_storm_spouts(Silent(), ()) is None  # type: ignore[arg-type]


@pytest.fixture
def root(servers: str) -> Iterator[KazooClient]:
    client = KazooClient(servers)
    client.start()
    try:
        yield client
        client.delete("/storm-spouts", recursive=True)
    finally:
        client.stop()
        client.close()


@pytest.mark.cluster
def test_spouts_outside_the_chroot_are_found(own_chroot: ZooKeeperSettings, root: KazooClient) -> None:
    for folder in ("brokers/topics", "config"):
        root.ensure_path(f"{own_chroot.chroot}/{folder}")
    root.create("/storm-spouts/clicks/partition_0", SPOUT, makepath=True)
    root.create("/storm-spouts/team/orders/tpartition_12", SPOUT, makepath=True)
    root.create("/storm-spouts/other/partition_0", json.dumps({"offset": 1}).encode(), makepath=True)
    root.create(f"{own_chroot.chroot}/consumers/partition_0/partition_0", SPOUT, makepath=True)
    with ZooKeeper(own_chroot) as client:
        tree = client.read_tree()
    assert tree.storm_spouts == ("/storm-spouts/clicks", "/storm-spouts/team/orders"), (
        "what is below the cluster's chroot is Kafka's"
    )
