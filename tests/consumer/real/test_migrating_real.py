"""Migrating consumers on a real cluster: shared partitions, the toggle under load, a member that is killed, a real old consumer."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from kazoo.client import KazooClient

from airflow_provider_kmigrate.applications.migrating import MigratingConsumer
from airflow_provider_kmigrate.core.events.model import TopicPartition
from tests.consumer.migrating_group import (
    Load,
    Member,
    Plain,
    at_once,
    delivered,
    deliverers,
    facts,
    losses,
    places,
    process,
)
from tests.consumer.real_group import (
    PARTITIONS,
    goes_on,
    in_zookeeper,
    metric,
    settle,
    shares,
)
from tests.kit.localcluster.cluster import LocalCluster
from tests.old_consumer.old_consumers import console_consumer
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=100)]


@pytest.fixture
def pair(properties: dict[str, Any], group: str, tmp_path: Path) -> Iterator[tuple[Member, Member]]:
    with Member(properties, tmp_path, [group]) as one, Member(properties, tmp_path, [group]) as two:
        wait_until(lambda: len(one.owned) == len(two.owned) == PARTITIONS // 2, "each owns half")
        yield one, two


def in_kafka(properties: dict[str, Any], group: str) -> dict[int, int]:
    asking = Consumer({"bootstrap.servers": properties["bootstrap.servers"], "group.id": group})
    found = asking.committed([KafkaPartition(group, n) for n in range(PARTITIONS)], timeout=20.0)
    asking.close()
    return {one.partition: one.offset for one in found}


def test_two_members_share_a_topic_and_commit_to_both_stores(
    cluster: LocalCluster,
    zookeeper: KazooClient,
    properties: dict[str, Any],
    pair: tuple[Member, Member],
    tmp_path: Path,
) -> None:
    group = properties["group.id"]
    with Load(cluster.bootstrap, tmp_path, group, PARTITIONS) as load:
        wait_until(lambda: delivered(tmp_path) > 1000, "records come")
        wait_until(lambda: metric(pair, "KafkaOwnedPartitionsCount") == [3, 3], "Kafka has shared out, too")
        settle(pair, load, tmp_path)
    found = facts(tmp_path)
    assert found.complete, found.reasons
    assert found.delivered == {group: load.sent}
    assert not found.violations
    ends = dict.fromkeys(range(PARTITIONS), load.sent // PARTITIONS)
    assert in_zookeeper(zookeeper, group) == ends
    assert in_kafka(properties, group) == ends


def test_a_late_commit_of_a_member_is_committed_over_and_the_applications_transaction_is_not(
    cluster: LocalCluster, zookeeper: KazooClient, properties: dict[str, Any], group: str
) -> None:
    """Both leave a larger offset in Kafka than the one that the holder began with, and committed nothing since."""
    servers = {"bootstrap.servers": cluster.bootstrap}
    for partition in range(PARTITIONS):
        zookeeper.create(f"/consumers/{group}/offsets/{group}/{partition}", b"0", makepath=True)
    short = {"enable.auto.commit": False, "session.timeout.ms": 6_000}  # a commit may be late by that and 5 s
    with MigratingConsumer({**properties, **short}) as consumer:
        consumer.subscribe([group])
        wait_until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == PARTITIONS, "it owns everything")
        wait_until(
            lambda: consumer.poll(0.1) is None and in_kafka(properties, group) == dict.fromkeys(range(PARTITIONS), 0), "the start"
        )
        runner = consumer._runner
        assert runner is not None
        assert runner._kafka is not None
        assert runner._kafka.commit(TopicPartition(group, 1), 5).result(10)
        _commit_in_a_transaction(servers, KafkaPartition(group, 0, 5))
        assert in_kafka(properties, group) == {**dict.fromkeys(range(PARTITIONS), 0), 0: 5, 1: 5}
        wait_until(lambda: consumer.poll(0.1) is None and in_kafka(properties, group)[1] == 0, "it is committed over", timeout=30)
        assert in_kafka(properties, group) == {**dict.fromkeys(range(PARTITIONS), 0), 0: 5}
    assert in_zookeeper(zookeeper, group) == dict.fromkeys(range(PARTITIONS), 0)


def _commit_in_a_transaction(servers: dict[str, str], offset: KafkaPartition) -> None:
    """As an application does that keeps its offsets with its output."""
    metadata = Consumer({**servers, "group.id": offset.topic}).consumer_group_metadata()
    producer = Producer({**servers, "transactional.id": offset.topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([offset], metadata, 30)
    producer.commit_transaction(30)


def both_say_who_owns_what(pair: tuple[Member, Member], topic: str) -> bool:
    """True if both members say the same of the whole group, and it is what each of them owns."""
    one, two = (member.consumer.global_assignment() for member in pair)
    if one is None or one != two:
        return False
    return all(
        {partition for partition, thread in one[topic].items() if thread == f"{member.consumer.consumer_id}-0"}
        == {where.partition for where in member.owned}
        for member in pair
    )


@pytest.mark.parametrize("times", [2, pytest.param(10, marks=[pytest.mark.long, pytest.mark.timeout(400)])])
def test_the_mode_switches_both_ways_under_load(  # noqa: PLR0917  # fixtures
    cluster: LocalCluster,
    zookeeper: KazooClient,
    properties: dict[str, Any],
    pair: tuple[Member, Member],
    tmp_path: Path,
    times: int,
) -> None:
    """R12: twenty toggles in the long one."""
    group = properties["group.id"]
    mode = f"/consumers/{group}/migration/mode"
    zookeeper.create(mode, b"", makepath=True)
    with Load(cluster.bootstrap, tmp_path, group, PARTITIONS) as load:
        wait_until(lambda: metric(pair, "KafkaOwnedPartitionsCount") == [3, 3], "Kafka has shared out, too")
        for data, count in ((b"kafka", 1), (b"zookeeper", 0)) * times:
            before = load.sent
            zookeeper.set(mode, data)
            wait_until(lambda count=count: metric(pair, "ActiveKafkaCoordinationCount") == [count] * 2, "both follow")
            wait_until(lambda: sum(len(member.owned) for member in pair) == PARTITIONS, "all is owned")
            wait_until(lambda before=before: delivered(tmp_path) > before + 500, "records come")
            wait_until(lambda: both_say_who_owns_what(pair, group), "both know the whole group's assignment")
        settle(pair, load, tmp_path)
    found = facts(tmp_path)
    assert found.complete, found.reasons
    assert found.delivered == {group: load.sent}
    assert not found.violations
    assert pair[0].late == pair[1].late == []
    assert (
        in_zookeeper(zookeeper, group) == in_kafka(properties, group) == dict.fromkeys(range(PARTITIONS), load.sent // PARTITIONS)
    )


def test_a_member_that_is_killed_leaves_its_partitions_to_the_other(
    cluster: LocalCluster, properties: dict[str, Any], group: str, tmp_path: Path
) -> None:
    explicit = {**properties, "enable.auto.commit": False}
    killed = process(explicit, tmp_path, [group])
    try:
        with Member(properties, tmp_path, [group]) as other, Load(cluster.bootstrap, tmp_path, group, PARTITIONS) as load:
            wait_until(lambda: len(other.owned) == PARTITIONS // 2 and delivered(tmp_path) > 500, "both are delivered")
            killed.send_signal(signal.SIGKILL)
            wait_until(lambda: len(other.owned) == PARTITIONS, "the other one owns everything")
            settle((other,), load, tmp_path)
        found = facts(tmp_path)
    finally:
        killed.kill()
        killed.wait(30)
    assert (found.lost.count, found.unseen.count) == (0, 0)
    assert not found.double_owned.count
    assert found.redelivered.count <= PARTITIONS  # each record is committed before the next one is asked for


@pytest.mark.parametrize("mode", [b"zookeeper", b"kafka"])
def test_a_member_that_sleeps_past_its_sessions_wakes_to_nothing_of_its_own(  # noqa: PLR0917  # fixtures
    cluster: LocalCluster, zookeeper: KazooClient, properties: dict[str, Any], group: str, tmp_path: Path, mode: bytes
) -> None:
    """It delivers nothing more of what the other one has, and moves no offset back; then it takes part again.

    Who is stopped writes nothing: it is awake when it writes that it lost them, and until when they were its own.
    """
    zookeeper.create(f"/consumers/{group}/migration/mode", mode, makepath=True)
    sleeper = process({**properties, "enable.auto.commit": False}, tmp_path, [group])
    try:
        with Member(properties, tmp_path, [group]) as other, Load(cluster.bootstrap, tmp_path, group, PARTITIONS) as load:
            wait_until(lambda: len(deliverers(tmp_path)) == 2 and len(other.owned) == PARTITIONS // 2, "both are delivered")
            sleeper.send_signal(signal.SIGSTOP)
            wait_until(lambda: len(other.owned) == PARTITIONS, "the other one owns everything")
            before = load.sent
            wait_until(lambda: delivered(tmp_path) > before, "and delivers it")
            sleeper.send_signal(signal.SIGCONT)
            wait_until(lambda: losses(tmp_path), "it is awake, and tells what it has lost")
            wait_until(lambda: len(other.owned) == PARTITIONS // 2, "it takes part again")
            sleeper.terminate()
            wait_until(lambda: len(other.owned) == PARTITIONS, "the other one owns everything again")
            settle((other,), load, tmp_path)
        found = facts(tmp_path)
    finally:
        sleeper.kill()
        sleeper.wait(30)
    assert (found.lost.count, found.unseen.count, found.double_owned.cases) == (0, 0, ())
    assert at_once(tmp_path) == []
    assert found.redelivered.count <= 2 * PARTITIONS  # what it had in hand when it was stopped, and when it was ended
    assert in_zookeeper(zookeeper, group) == dict.fromkeys(range(PARTITIONS), load.sent // PARTITIONS)


def test_a_real_old_consumer_joins_although_kafka_coordinates_and_leaves_again(
    cluster: LocalCluster, zookeeper: KazooClient, properties: dict[str, Any], tmp_path: Path
) -> None:
    """A record's value tells its place: the old consumer prints nothing else. It may deliver some again, since it reads
    offsets before it claims; nothing may be left out.
    """
    group, audit, printed = properties["group.id"], tmp_path / "audit", tmp_path / "printed"
    zookeeper.create(f"/consumers/{group}/migration/mode", b"kafka", makepath=True)
    with Member(properties, audit, [group]) as ours, Load(cluster.bootstrap, audit, group, PARTITIONS) as load:
        wait_until(
            lambda: metric((ours,), "ActiveKafkaCoordinationCount") == [1] and len(ours.owned) == PARTITIONS, "all is ours"
        )
        with console_consumer(cluster.zookeeper, group, group, printed) as old:
            wait_until(lambda: len(ours.owned) == PARTITIONS // 2, "half is handed over")
            assert metric((ours,), "ActiveKafkaCoordinationCount") == [0], "an old member cannot follow Kafka"
            before = load.sent
            wait_until(lambda: printed.stat().st_size > 1000 and load.sent > before + 500, "it delivers")
            old.terminate()
            old.wait(30)
        wait_until(lambda: metric((ours,), "ActiveKafkaCoordinationCount") == [1] and len(ours.owned) == PARTITIONS, "it is back")
        before = load.sent
        wait_until(lambda: load.sent > before + 500, "records go on")
        load.end()
        last = {(group, partition, load.sent // PARTITIONS - 1) for partition in range(PARTITIONS)}
        wait_until(lambda: last <= places(audit), "the rest comes")
    numbers = [int(line) for line in printed.read_text().splitlines() if line.isdigit()]
    theirs = {(group, number % PARTITIONS, number // PARTITIONS) for number in numbers}
    everything = {(group, number % PARTITIONS, number // PARTITIONS) for number in range(load.sent)}
    assert len(theirs) > 100
    assert everything - theirs - places(audit) == set()
    assert len(numbers) == len(theirs)
    assert ours.late == []


def test_a_plain_consumer_takes_a_members_place_under_load_and_gives_it_back(  # noqa: PLR0917  # fixtures
    cluster: LocalCluster,
    zookeeper: KazooClient,
    properties: dict[str, Any],
    group: str,
    pair: tuple[Member, Member],
    tmp_path: Path,
) -> None:
    mode, topics = f"/consumers/{group}/migration/mode", [group]
    zookeeper.create(mode, b"kafka", makepath=True)
    with Member(properties, tmp_path, topics) as third, Load(cluster.bootstrap, tmp_path, group, PARTITIONS) as load:
        wait_until(lambda: shares(*pair, third) == [2, 2, 2], "each of three owns its share")
        third.end()
        with Plain(properties, tmp_path, topics) as plain:
            wait_until(lambda: shares(*pair, plain) == [2, 2, 2], "the plain one has its place")
            goes_on(tmp_path)
        with Member(properties, tmp_path, topics) as again:
            wait_until(lambda: shares(*pair, again) == [2, 2, 2], "a migrating one has it again")
            goes_on(tmp_path)
            zookeeper.set(mode, b"zookeeper")
            everyone = (*pair, again)
            wait_until(lambda: metric(everyone, "ActiveKafkaCoordinationCount") == [0, 0, 0], "ZooKeeper coordinates")
            wait_until(lambda: shares(*everyone) == [2, 2, 2], "each owns its share")
            goes_on(tmp_path)
            settle(everyone, load, tmp_path)
    found = facts(tmp_path)
    assert found.complete, found.reasons
    assert found.delivered == {group: load.sent}
    assert not found.violations
    assert [member.late for member in (*pair, third, plain, again)] == [[]] * 5


def test_a_plain_consumer_is_refused_while_zookeeper_coordinates_and_disturbs_no_member(
    cluster: LocalCluster, properties: dict[str, Any], group: str, pair: tuple[Member, Member], tmp_path: Path
) -> None:
    with Load(cluster.bootstrap, tmp_path, group, PARTITIONS) as load:
        wait_until(lambda: metric(pair, "KafkaOwnedPartitionsCount") == [3, 3], "Kafka has shared out, too")
        before = [set(member.owned) for member in pair]
        with Plain(properties, tmp_path, [group]) as plain:
            wait_until(lambda: KafkaError.INCONSISTENT_GROUP_PROTOCOL in plain.refused, "it is refused")
            goes_on(tmp_path)
            assert plain.owned == set()
            assert metric(pair, "KafkaOwnedPartitionsCount") == [3, 3]
            assert [member.owned for member in pair] == before
        settle(pair, load, tmp_path)
    found = facts(tmp_path)
    assert found.delivered == {group: load.sent}
    assert not found.violations


def test_what_a_plain_consumer_holds_is_left_to_it_although_zookeeper_coordinates(
    cluster: LocalCluster, zookeeper: KazooClient, properties: dict[str, Any], group: str, tmp_path: Path
) -> None:
    mode, topics = f"/consumers/{group}/migration/mode", [group]
    zookeeper.create(mode, b"kafka", makepath=True)
    with Member(properties, tmp_path, topics) as ours, Load(cluster.bootstrap, tmp_path, group, PARTITIONS) as load:
        wait_until(lambda: shares(ours) == [PARTITIONS], "all is ours")
        with Plain(properties, tmp_path, topics) as plain:
            wait_until(lambda: shares(ours, plain) == [3, 3], "the plain one has its share")
            wait_until(lambda: ours.foreign == plain.owned, "it is seen")
            zookeeper.set(mode, b"zookeeper")
            wait_until(lambda: metric((ours,), "ActiveKafkaCoordinationCount") == [0], "ZooKeeper coordinates")
            goes_on(tmp_path)
            goes_on(tmp_path)
            assert shares(ours, plain) == [3, 3], "no member disturbs it, and it disturbs no member"
        wait_until(lambda: shares(ours) == [PARTITIONS], "it left, and all is ours")
        settle((ours,), load, tmp_path)
    found = facts(tmp_path)
    assert found.complete, found.reasons
    assert found.delivered == {group: load.sent}
    assert not found.violations
