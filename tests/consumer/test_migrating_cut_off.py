"""A migrating member that is cut off from ZooKeeper, or from the broker, while another one is not: real ones, under load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from airflow_provider_kmigrate.applications.event_log import read_events
from tests.consumer.cut_off import BROKER, ZOOKEEPER, Cut
from tests.consumer.migrating_group import Load, Member, again_after_commit, at_once, delivered, facts, places
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster
from tests.system.proxy import BLACK_HOLE
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=45)]
PARTITIONS = 6


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cut]:
    folder = tmp_path_factory.mktemp("cut") / "cluster"
    try:
        with Cut(folder) as made:
            yield made
    finally:
        LocalCluster(folder).clean()


@pytest.mark.parametrize(("mode", "name"), [("zookeeper", ZOOKEEPER), ("kafka", ZOOKEEPER), ("kafka", BROKER)])
def test_an_isolated_member_delivers_nothing_of_what_another_member_has(cut: Cut, tmp_path: Path, mode: str, name: str) -> None:
    """In Kafka mode no member takes over from one that only ZooKeeper does not reach: it keeps its place in the Kafka group."""
    group, cluster = f"cut-{mode}-{name}-{uuid4().hex[:6]}", cut.cluster
    create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan(group, PARTITIONS, 1)])
    put_mode(cluster, group, mode)
    near: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "zookeeper.connect": cluster.zookeeper,
        "zookeeper.session.timeout.ms": 6000,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 500,
        "coordination.migration.stage": "migrating",
        "coordination.migration.session.timeout.ms": 6000,
        "log_level": 0,
    }
    with (
        Member({**near, **cut.properties}, tmp_path, [group]) as far,
        Member(near, tmp_path, [group]) as other,
        Load(cluster.bootstrap, tmp_path, group, PARTITIONS) as load,
    ):
        wait_until(lambda: len(far.owned) == len(other.owned) == PARTITIONS // 2, "each owns half")
        wait_until(lambda: delivered(tmp_path) > 500, "records come")
        theirs = {where.partition for where in far.owned}
        with cut.links.broken(BLACK_HOLE, name):
            if (mode, name) == ("kafka", ZOOKEEPER):
                wait_until(lambda: not cluster_has_owners(cluster, group, theirs), "its session is over")
            else:
                wait_until(lambda: len(other.owned) == PARTITIONS, "the other one owns everything")
            before = {place for place in places(tmp_path) if place[1] not in theirs}
            wait_until(lambda: {place for place in places(tmp_path) if place[1] not in theirs} > before, "the rest is delivered")
        wait_until(lambda: len(far.owned) == len(other.owned) == PARTITIONS // 2, "each owns half again")
        load.end()
        wait_until(lambda: delivered(tmp_path) == load.sent, "the rest comes")
    found = facts(tmp_path)
    assert found.complete, found.reasons
    assert found.violations.keys() <= {"redelivered"}
    assert again_after_commit(read_events(tmp_path).events) == [], "only what was not committed when the link broke"
    assert far.late == other.late == at_once(tmp_path) == []


def put_mode(cluster: LocalCluster, group: str, mode: str) -> None:
    client = KazooClient(cluster.zookeeper)
    client.start()
    client.create(f"/consumers/{group}/migration/mode", mode.encode(), makepath=True)
    client.stop()
    client.close()


def cluster_has_owners(cluster: LocalCluster, group: str, partitions: set[int]) -> bool:
    """Of any of these."""
    client = KazooClient(cluster.zookeeper)
    client.start()
    try:
        return any(client.exists(f"/consumers/{group}/owners/{group}/{number}") for number in partitions)
    finally:
        client.stop()
        client.close()
