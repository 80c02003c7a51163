"""An expansion of `__consumer_offsets` on real brokers, asleep and after one restart: Spark finds the groups, and the repair mends them.

One cluster on its way: the tests are the stations, in their order. Which groups two coordinators serve is asked of the brokers, by
a commit that each of them accepts or refuses; nothing of that is known to the job or to the plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("py4j", reason="Spark's own environment has it: make test")

from confluent_kafka import ElectionType
from confluent_kafka.admin import NewPartitions
from kafka.protocol.consumer.group import OffsetCommitRequest
from pyspark.sql import SparkSession

from airflow_provider_kmigrate.audit.offsets_history import build_frames, read_history
from airflow_provider_kmigrate.clients.admin import connect
from airflow_provider_kmigrate.clients.identity import security_from_kafka
from airflow_provider_kmigrate.clients.offsets_log import OffsetsLog
from airflow_provider_kmigrate.clients.settings import KafkaSettings
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.clients.wire_groups import Brokers, fetch_offsets
from airflow_provider_kmigrate.core.audit.commit_copies import OffsetsFacts
from airflow_provider_kmigrate.core.cluster_state.model import Partition
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.member.registration import OFFSETS_TOPIC
from airflow_provider_kmigrate.core.migration.coordinator import hash_group
from airflow_provider_kmigrate.core.offsets_topic import offsets_repair
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import CopyState, Doubt
from airflow_provider_kmigrate.exceptions import KMigrateError
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.agents import agent_of
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.kit.offsets_placed import misplaced
from tests.waiting import wait_for, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(350)]

OLD, NEW = 10, 15
GROUPS = tuple(f"team-{number:02}" for number in range(60))
MOVING = {group for group in GROUPS if hash_group(group) % OLD != hash_group(group) % NEW}
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16


def key(group: str) -> GroupPartition:
    return GroupPartition(group, "orders", 0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lent(tmp_path_factory.mktemp("copies") / "cluster", Shape(name="copies", controllers=1)) as there:
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan("orders", 1, 3)])
        yield there


@pytest.fixture(scope="module")
def properties(cluster: LocalCluster) -> Mapping[str, str]:
    return {"bootstrap.servers": cluster.bootstrap}


def commit_at(node: NodeSpec, group: str, offset: int) -> int:
    """Kafka's error code of a commit that is sent to this very broker, once it has loaded the group."""
    of_topic = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = of_topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=0, committed_metadata=f"m{offset}"
    )
    topics = [of_topic(name="orders", partitions=[partition])]

    def ask() -> int:
        answer = wire.ask(OffsetCommitRequest, 2, 8, group_id=group, member_id="", topics=topics)
        return int(answer.topics[0].partitions[0].error_code)

    with Wire(
        node.host, node.port, security_from_kafka(KafkaSettings({"bootstrap.servers": f"{node.host}:{node.port}"}))
    ) as wire:
        return wait_for(ask, lambda code: code not in {COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE}, "it has loaded")


def commit_everywhere(cluster: LocalCluster, first: int) -> dict[str, list[int]]:
    """Each group's commit is sent to every broker in turn; the offsets that were accepted, in their order."""
    found: dict[str, list[int]] = {group: [] for group in GROUPS}
    for turn, node in enumerate(cluster.plan.brokers):
        time.sleep(0.002)  # commit times are milliseconds
        for group in GROUPS:
            code = commit_at(node, group, first + turn)
            assert code in {0, NOT_COORDINATOR}, code
            found[group] += [first + turn] if code == 0 else []
    return found


def restart(cluster: LocalCluster, node: NodeSpec) -> None:
    with agent_of(node, cluster.plan.cluster_id) as host:
        host.stop(node, 1)
    cluster.up()
    settle(cluster)


def settle(cluster: LocalCluster) -> None:
    """Every replica is in sync and its preferred one leads, in the eyes of every broker."""

    def seen() -> list[Partition]:
        with Brokers({"bootstrap.servers": cluster.bootstrap}, 10.0) as brokers:
            return [row.partition for node in cluster.plan.brokers for row in brokers.wire_to(node.host, node.port).partitions()]

    def everywhere(holds: Callable[[Partition], bool], what: str) -> None:
        wait_until(lambda: all(map(holds, seen())), what, 90.0, despite=(KMigrateError,))

    everywhere(lambda one: set(one.replicas) == set(one.isr), "all replicas in sync")
    admin = connect({"bootstrap.servers": cluster.bootstrap})  # a client that nothing refers to ends with its requests
    admin.elect_leaders(ElectionType.PREFERRED, None).result(60)
    everywhere(lambda one: one.leader == one.replicas[0], "preferred leaders")


def read(spark: SparkSession, properties: Mapping[str, str], folder: Path) -> OffsetsFacts:
    count = read_history(spark, properties, str(folder))
    assert count == NEW
    return build_frames(spark, spark.read.parquet(str(folder)), count).collect_facts()


def test_asleep_every_moving_group_lies_where_the_old_count_puts_it(
    spark_session: SparkSession, cluster: LocalCluster, properties: Mapping[str, str], tmp_path: Path
) -> None:
    with Brokers(properties, 30.0) as brokers:
        wait_until(lambda: brokers.find_coordinator(GROUPS[0]), "a coordinator", despite=(KMigrateError,))
    settle(cluster)
    assert {len(offsets) for offsets in commit_everywhere(cluster, 100).values()} == {1}
    admin = connect(properties)
    admin.create_partitions([NewPartitions(OFFSETS_TOPIC, NEW)])[OFFSETS_TOPIC].result(60)
    settle(cluster)
    facts = read(spark_session, properties, tmp_path / "commits")
    assert facts.totals == {CopyState.MISPLACED: len(MOVING)}
    assert (facts.earlier, facts.moved, facts.groups) == ((OLD,), len(MOVING), len(GROUPS))


def test_after_one_restart_the_split_groups_are_those_that_two_brokers_serve(
    spark_session: SparkSession, cluster: LocalCluster, properties: Mapping[str, str], tmp_path: Path
) -> None:
    restart(cluster, cluster.plan.brokers[0])
    accepted = commit_everywhere(cluster, 200)
    commit_everywhere(cluster, 300)
    split = {group for group, offsets in accepted.items() if len(offsets) == 2}
    assert split, "two brokers serve some of the groups"
    assert [group for group, offsets in accepted.items() if not offsets], "and none serves some others"
    facts = read(spark_session, properties, tmp_path / "commits")
    assert {shown.judged.key.group for shown in facts.shown if shown.judged.state is CopyState.SPLIT} == split
    assert facts.totals[CopyState.SPLIT] == len(split)


def test_the_repair_leaves_one_copy_of_each_commit_which_every_later_leader_serves(
    spark_session: SparkSession, cluster: LocalCluster, properties: Mapping[str, str], tmp_path: Path
) -> None:
    for node in cluster.plan.brokers[1:]:
        restart(cluster, node)
    log = OffsetsLog(properties)
    groups = log.read(GROUPS)
    assert groups == log.read()
    open_ones = offsets_repair.plan_repair(groups, NEW)
    assert open_ones.undecided
    assert {doubt for one in open_ones.undecided for doubt in one.doubts} == {Doubt.INTERLEAVED}
    decided = {one.key: one.newest.offset for one in open_ones.undecided}
    plan = offsets_repair.plan_repair(groups, NEW, decided)
    assert plan.imports
    assert set(plan.stop) <= MOVING
    right = {}
    for group in GROUPS:
        judged = offsets_repair.find_copies(key(group), groups[group].commits[key(group)], NEW)
        right[key(group)] = judged.newest.offset or 0
    for one, pick in plan.imports.items():
        codes = [commit_at(node, one.group, pick.offset or 0) for node in cluster.plan.brokers]
        assert sorted(codes) == [0, NOT_COORDINATOR, NOT_COORDINATOR]
    again = offsets_repair.plan_repair(log.read(), NEW, decided)
    assert (again.imports, again.undecided, len(again.strays)) == ({}, (), len(plan.strays))
    log.remove(again.strays)
    assert misplaced(log.read(), NEW, right) == ()
    facts = read(spark_session, properties, tmp_path / "commits")
    assert (facts.totals, facts.states) == ({}, 0)
    for node in cluster.plan.brokers:  # until then each keeps the copies that it has loaded
        restart(cluster, node)
    served(properties, right)
    restart(cluster, cluster.plan.brokers[0])
    served(properties, right)


def served(properties: Mapping[str, str], right: Mapping[GroupPartition, int]) -> None:
    """Each coordinator answers OffsetFetch with the right offset, as soon as it answers."""
    with Brokers(properties, 30.0) as brokers:

        def ask(group: str) -> object:
            try:
                return fetch_offsets(brokers.wire_to(*brokers.find_coordinator(group)), [group])[group]
            except KMigrateError as error:
                return error

        for one, offset in right.items():
            found = wait_for(partial(ask, one.group), lambda found: not isinstance(found, KMigrateError), "a coordinator")
            assert found == {one.where: offset}
