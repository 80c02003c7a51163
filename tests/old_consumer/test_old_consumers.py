"""Our assignment against Kafka's real old consumer 1.1.1: its own classes on hundreds of groups, and live members' owner znodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import Assigned, Strategy, assign
from airflow_provider_kmigrate.core.member.registration import (
    GroupPaths,
    Registration,
    read_registration,
    write_registration,
)
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.old_consumer.old_consumers import BEFORE_1_0, LATEST, Member, asked, console_consumer, members
from tests.old_consumer.random_groups import groups, put
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=55)]
TOPICS = {"orders": 12, "payments": 5, "app.a": 3, "appxa": 2, "one": 1}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker in ZooKeeper mode."""
    with lent(tmp_path_factory.mktemp("cluster"), Shape(name="old", brokers=1, controllers=1)) as there:
        admin = AdminClient({"bootstrap.servers": there.bootstrap})
        made = admin.create_topics([NewTopic(*topic, 1) for topic in TOPICS.items()])
        for each in made.values():
            each.result(30)
        yield there


@pytest.fixture(scope="module")
def zookeeper(cluster: LocalCluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


# ------------------------------------------------------------------------------------------------- its own classes, asked

_CHROOTS = itertools.count()


@pytest.mark.parametrize(
    ("version", "java_name", "strategy", "count"),
    [
        (LATEST, "range", Strategy.RANGE, 200),
        (LATEST, "roundrobin", Strategy.ROUND_ROBIN, 200),
        (BEFORE_1_0, "roundrobin", Strategy.ROUND_ROBIN_0_10, 100),
    ],
)
def test_random_groups_are_shared_out_as_the_old_consumers_own_classes_do(
    cluster: LocalCluster, version: str, java_name: str, strategy: Strategy, count: int
) -> None:
    number = next(_CHROOTS)
    chroot, made = f"/oracle-{number}", list(groups(count, number, odd=version == LATEST))
    put(cluster.zookeeper, chroot, made)

    questions = [(group.name, consumer, java_name) for group in made for consumer in sorted(group.data)]
    answers = dict(zip(questions, asked(f"{cluster.zookeeper}{chroot}", questions, version), strict=True))

    for group in made:
        theirs = {consumer: answers[group.name, consumer, java_name] for consumer in group.data}
        assert group.owned(strategy) == theirs, f"{group.data}"
    owned = [answer for answer in answers.values() if answer]
    assert len(owned) > count, "hardly any of these groups owns anything"
    assert (None in answers.values()) == (version == LATEST), "no group was broken"


# ---------------------------------------------------------------------------------------------------------- live members


def _ids(zookeeper: KazooClient, group: str) -> dict[str, bytes]:
    paths = GroupPaths(group)
    return {name: zookeeper.get(f"{paths.ids}/{name}")[0] for name in zookeeper.get_children(paths.ids)}


def _owners(zookeeper: KazooClient, group: str) -> dict[TopicPartition, str]:
    """What stands in the owner znodes now; one may go at any moment."""
    found = {}
    for topic, count in TOPICS.items():
        for partition in range(count):
            where = TopicPartition(topic, partition)
            with suppress(NoNodeError):
                found[where] = zookeeper.get(GroupPaths(group).owner(where))[0].decode()
    return found


def _ours(zookeeper: KazooClient, group: str, strategy: str) -> dict[TopicPartition, str]:
    registrations = {name: read_registration(data) for name, data in _ids(zookeeper, group).items()}
    kind = Strategy.RANGE if strategy == "range" else Strategy.ROUND_ROBIN
    found = assign(kind, registrations, {topic: range(count) for topic, count in TOPICS.items()})
    assert isinstance(found, Assigned)
    return dict(found.owners)


def _groups(strategy: str) -> list[list[Member]]:
    """Shapes of groups: equal and unequal streams, several topics, wildcards that select different topics, one that selects none."""
    shapes: list[list[tuple[str, dict[str, int]]]] = [
        [("static", {"orders": 1})] * 3,
        [("static", {"orders": 3}), ("static", {"orders": 11}), ("static", {"orders": 1, "payments": 2})],
        [("static", {"one": 2}), ("static", {"one": 1, "app.a": 1})],
        [("white_list", {".*": 2}), ("white_list", {"app.a": 1}), ("black_list", {"orders|one": 1})],
        [("white_list", {"orders,payments": 1}), ("static", {"orders": 2}), ("white_list", {r"app\.a": 1})],
    ]
    return [
        [Member(f"{strategy}-{g}", f"m{m}", strategy, pattern, wanted) for m, (pattern, wanted) in enumerate(shape)]
        for g, shape in enumerate(shapes)
    ]


def test_live_members_own_what_we_reckon(cluster: LocalCluster, zookeeper: KazooClient, tmp_path: Path) -> None:
    made = [*_groups("range"), *_groups("roundrobin")]
    with members(cluster.zookeeper, [member for group in made for member in group], tmp_path / "members.log"):
        for group in made:
            name, strategy = group[0].group, group[0].strategy
            assert len(_ids(zookeeper, name)) == len(group)
            expected = _ours(zookeeper, name, strategy)
            assert expected, "a group that owns nothing shows nothing"
            wait_until(
                lambda name=name, expected=expected: _owners(zookeeper, name) == expected,
                f"the owners of {name} are {expected}",
                30,
            )


def test_a_console_consumer_registers_the_bytes_that_we_would_write(
    cluster: LocalCluster, zookeeper: KazooClient, tmp_path: Path
) -> None:
    """Beside a member with a static subscription; the escaped dot is escaped once more by its own writer, so it selects nothing."""
    group, log = f"console-{uuid4().hex[:6]}", tmp_path / "console.log"
    beside = Member(group, "m", "range", "static", {"orders": 2})
    with (
        members(cluster.zookeeper, [beside], tmp_path / "members.log"),
        console_consumer(cluster.zookeeper, group, r"orders,app\.a", log, "rebalance.max.retries=15"),
    ):
        wait_until(lambda: len(_ids(zookeeper, group)) == 2, f"both members are registered; see {log}", 30)
        expected = _ours(zookeeper, group, "range")
        assert {thread.rpartition("-")[0] for thread in expected.values()} == set(_ids(zookeeper, group))
        wait_until(lambda: _owners(zookeeper, group) == expected, f"its owners are {expected}; see {log}", 30)
        for data in _ids(zookeeper, group).values():
            read = read_registration(data)
            assert isinstance(read, Registration)
            assert write_registration(read) == data
        assert [w for w in expected if w.topic == "app.a"] == []
