"""Groups in ZooKeeper's tree, as the old consumer writes them, and how they are read."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.clients.group_reads import read_groups, seen
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, StoredOffset, ZkGroup
from airflow_provider_kmigrate.core.member.registration import (
    Flaw,
    GroupHold,
    MemberProgress,
    Mode,
    Registration,
    Unreadable,
    write_hold,
    write_progress,
    write_registration,
)
from airflow_provider_kmigrate.exceptions import Failed, Unreachable
from tests.clients.group_tree import GroupTree

NO_MEMBERS = {"bootstrap.servers": "127.0.0.1:1"}
STATIC, WILDCARD = Registration("static", {"t": 1}), Registration("white_list", {"w.*": 2})
PROGRESS = MemberProgress(7, Mode.KAFKA, settled=True)
TREE = {
    "/brokers/topics/t": b'{"version":1,"partitions":{"0":[1],"1":[1]}}',
    "/brokers/topics/wide": b'{"version":1,"partitions":{"0":[1]}}',
    "/brokers/topics/__consumer_offsets": b'{"version":1,"partitions":{"0":[1]}}',
    "/consumers/g/ids/g_old": write_registration(STATIC),
    "/consumers/g/ids/g_new": write_registration(WILDCARD),
    "/consumers/g/ids/g_bad": b"t",
    "/consumers/g/migration/ids/g_new": write_progress(WILDCARD, PROGRESS),
    "/consumers/g/migration/mode": b"kafka\n",
    "/consumers/g/owners/t/1": b"g_old-0",
    "/consumers/g/owners/t/0-1": b"pykafka",
    "/consumers/g/offsets/t/0": b"12",
    "/consumers/g/migration/hold": write_hold(GroupHold("dag/run", "it was worse")),
    "/consumers/g/migration/reset/t/0": b"3",
    "/consumers/g/offsets/t/1": b"not a number",
    "/consumers/stopped/offsets/t/0": b"3",
    "/consumers/never/ids": b"",
}
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
G = ZkGroup(
    {"g_old": STATIC, "g_new": WILDCARD, "g_bad": Unreadable(Flaw.NOT_JSON, "t")},
    {"g_new": PROGRESS},
    b"kafka\n",
    3,
    7,
    {ONE: "g_old-0"},
    {ZERO: StoredOffset(12, 99.0), ONE: StoredOffset(Unreadable(Flaw.NOT_A_NUMBER, "not a number"), 99.0)},
    frozenset({ZERO, ONE, TopicPartition("wide", 0)}),
    GroupHold("dag/run", "it was worse"),
    {ZERO: 3},
    joined=True,
)


def test_everything_of_all_groups() -> None:
    stopped = ZkGroup(offsets={ZERO: StoredOffset(3, 99.0)})
    assert read_groups(GroupTree(TREE)) == {"g": G, "never": ZkGroup(joined=True), "stopped": stopped}


def test_a_member_that_joins_meanwhile_looks_like_one_that_cannot_migrate() -> None:
    tree = GroupTree(TREE)
    read_groups(tree, ["g"])
    order = [tree.reads.index(f"/consumers/g/{part}") for part in ("migration/ids", "ids", "migration/mode")]
    assert order == sorted(order)
    assert not [path for path in tree.reads if path.startswith("/consumers/stopped")]


def test_a_topic_that_cannot_be_read_is_no_topic_without_partitions() -> None:
    with pytest.raises(Failed, match="/brokers/topics/t"):
        read_groups(GroupTree(TREE | {"/brokers/topics/t": b"[]"}))


def test_a_side_that_does_not_answer_is_none() -> None:
    assert seen(GroupTree(TREE), NO_MEMBERS, ["g", "gone"]) == {
        "g": GroupSeen("g", G),
        "gone": GroupSeen("gone", ZkGroup()),
    }
    assert seen(GroupTree(TREE, unresponsive=True), NO_MEMBERS, ["g"]) == {"g": GroupSeen("g")}
    with pytest.raises(Unreachable):
        seen(GroupTree(TREE, unresponsive=True), NO_MEMBERS)


def test_no_groups() -> None:
    assert seen(GroupTree({}), NO_MEMBERS) == {}
