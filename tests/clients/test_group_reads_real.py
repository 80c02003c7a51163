"""Groups of real old consumers and a plain one, read from a real broker and its ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from airflow_provider_kmigrate.clients.group_reads import seen, topic_settings
from airflow_provider_kmigrate.clients.group_writes import copy_offsets
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.znodes import Create
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.cluster_state.decision import Refuse
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.offsets import CopyPlan, plan_copy
from airflow_provider_kmigrate.core.groups.scan import TwoObservations, scan_group
from airflow_provider_kmigrate.core.member.group_seen import KafkaGroup, MemberKind, Store
from airflow_provider_kmigrate.core.member.registration import Registration
from airflow_provider_kmigrate.exceptions import Fenced, Refused
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.old_consumer.old_consumers import Member, members
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster
TOPIC, PLACES = "seen", frozenset(TopicPartition("seen", index) for index in range(3))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker in ZooKeeper mode, with one topic of three partitions."""
    with lent(tmp_path_factory.mktemp("groups") / "cluster", Shape(name="groups", brokers=1, controllers=1)) as there:
        config = {"compression.type": "zstd"}
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan(TOPIC, len(PLACES), 1, config)])
        yield there


@pytest.fixture
def zk(cluster: LocalCluster) -> Iterator[ZooKeeper]:
    with ZooKeeper(ZooKeeperSettings(cluster.zookeeper)) as client:
        yield client


@pytest.fixture
def properties(cluster: LocalCluster) -> dict[str, Any]:
    return {"bootstrap.servers": cluster.bootstrap}


def test_groups_that_kafka_never_heard_of(zk: ZooKeeper, properties: dict[str, Any]) -> None:
    """First, before any group has made the brokers create __consumer_offsets: librdkafka must not be asked for a coordinator."""
    found = seen(zk, properties, ["nobody"])["nobody"]
    assert (found.kafka, found.committed, found.members, found.ends) == (KafkaGroup("Dead"), {}, (), {})


class Held:
    """A fence of the test's own."""

    path = "/_kmigrate/c/epoch"

    def __init__(self, zk: ZooKeeper) -> None:
        for path in ("/_kmigrate", "/_kmigrate/c", self.path):
            with suppress(Changed):
                zk.commit([Create(path)])
        found = zk.read(self.path)
        assert found is not None
        self.token = found[1]

    def check(self) -> None:
        """Nobody else takes it."""


def planned(zk: ZooKeeper, properties: dict[str, Any], group: str, to: Store, *, reset: bool = False) -> CopyPlan:
    found = plan_copy(seen(zk, properties, [group])[group], to, reset=reset)
    assert isinstance(found, CopyPlan), found
    return found


def test_offsets_are_copied_there_and_back(zk: ZooKeeper, properties: dict[str, Any]) -> None:
    """Into a group that Kafka never heard of, on brokers that have no __consumer_offsets yet."""
    held, places = Held(zk), sorted(PLACES)
    for path in ("/consumers", "/consumers/moved", "/consumers/moved/offsets", f"/consumers/moved/offsets/{TOPIC}"):
        with suppress(Changed):
            zk.commit([Create(path)], held)
    zk.commit([Create(f"/consumers/moved/offsets/{TOPIC}/{index}", b"0") for index in (0, 1)], held)
    there = planned(zk, properties, "moved", Store.KAFKA)
    assert copy_offsets(zk, properties, there, held).committed == {places[0]: 0, places[1]: 0}
    assert planned(zk, properties, "moved", Store.KAFKA).writes == ()
    alter(properties, "moved", TOPIC, 2)
    to_zookeeper = planned(zk, properties, "moved", Store.ZOOKEEPER)
    after = copy_offsets(zk, properties, to_zookeeper, held).zk
    assert after is not None
    assert {place: stored.offset for place, stored in after.offsets.items()} == dict.fromkeys(places, 0)
    with pytest.raises(Refused) as refused:
        copy_offsets(zk, properties, replace(to_zookeeper, writes=(replace(to_zookeeper.writes[0], over=7),)), held)
    assert [reason.code for reason in refused.value.reasons] == ["K71"]
    with pytest.raises(Fenced):
        copy_offsets(zk, properties, replace(there, writes=(replace(there.writes[0], over=0),)), Outdated())


class Outdated:
    path, token = Held.path, 99

    def check(self) -> None:
        raise Fenced("another run took the fence")


def alter(properties: dict[str, Any], group: str, topic: str, partition: int) -> None:
    """Another tool's commit."""
    where = [KafkaPartition(topic, partition, 0)]
    admin = AdminClient(properties)  # a client without a reference ends with its requests
    answer = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, where)])
    answer[group].result(30)


def test_old_members_and_a_plain_one_in_one_group(
    zk: ZooKeeper, properties: dict[str, Any], cluster: LocalCluster, tmp_path: Path
) -> None:
    wanted = [Member("mixed", name, "range", "static", {TOPIC: 1}) for name in ("one", "two")]
    plain = Consumer({**properties, "group.id": "mixed", "client.id": "plain", "enable.auto.commit": False, "log_level": 2})
    with members(cluster.zookeeper, wanted, tmp_path / "old.log"):
        plain.subscribe([TOPIC])
        wait_until(lambda: plain.poll(0.2) is None and len(plain.assignment()) == len(PLACES), "the plain consumer has all")
        plain.commit(offsets=[KafkaPartition(TOPIC, 1, 0)], asynchronous=False)
        wait_until(lambda: len(owners(zk, properties)) == len(PLACES), "the old consumers have all")
        found = seen(zk, properties)["mixed"]
        for store in Store:
            refused = plan_copy(found, store)
            assert isinstance(refused, Refuse)
            assert [reason.code for reason in refused.reasons] == ["K71"]
        assert {"K38", "K40"} <= {
            finding.code for finding in scan_group(TwoObservations(found, settings=topic_settings(properties, [TOPIC]))).findings
        }
        kinds = [(member.name, member.kind) for member in found.members or ()]
        plain.close()
    assert kinds == [("mixed_one", MemberKind.ZOOKEEPER), ("mixed_two", MemberKind.ZOOKEEPER), ("plain", MemberKind.KAFKA)]
    assert found.zk is not None
    assert found.zk.registrations["mixed_one"] == Registration("static", {TOPIC: 1})
    assert (found.zk.partitions, found.zk.unowned, found.zk.mode_version) == (PLACES, frozenset(), -1)
    assert found.members_of_kind(MemberKind.KAFKA)[0].holds == PLACES
    assert found.kafka is not None
    assert (found.kafka.state, found.committed) == ("Stable", {TopicPartition(TOPIC, 1): 0})
    assert found.ends == dict.fromkeys(PLACES, 0)


def owners(zk: ZooKeeper, properties: dict[str, Any]) -> dict[TopicPartition, str]:
    found = seen(zk, properties, ["mixed"])["mixed"].zk
    return dict(found.owners) if found else {}


def test_settings_in_force(properties: dict[str, Any]) -> None:
    found = topic_settings(properties, [TOPIC, "no-such-topic"])
    assert found == {TOPIC: {"compression.type": "zstd", "message.downconversion.enable": "true"}}
