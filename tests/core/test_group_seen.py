"""Which of the offsets that ZooKeeper holds count."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups import members, offsets
from airflow_provider_kmigrate.core.groups.members import GroupObservations
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup, Store, StoredOffset, ZkGroup
from airflow_provider_kmigrate.core.member.registration import Flaw, Registration, Unreadable
from tests.core.group_facts import KAFKA, SPEC

HERE = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("stored", "counts"),
    [(0, {HERE: 0}), (7, {HERE: 7}), (-1, {}), (Unreadable(Flaw.NOT_A_NUMBER, "x"), {})],
)
def test_an_offset_counts_for_all_or_for_none(stored: int | Unreadable, counts: dict[TopicPartition, int]) -> None:
    zk = ZkGroup({"g_a": Registration("static", {"t": 1})}, offsets={HERE: StoredOffset(stored, 0.0)})
    seen = GroupSeen("g", zk, KafkaGroup("Empty"), {}, {HERE: 100})
    assert seen.zookeeper_offsets == zk.committed == counts
    assert seen.positions == members.positions_with_uncommitted(seen) == counts
    assert offsets.partitions_behind(GroupObservations(seen, 1.0, ((1.0, seen),)), KAFKA, SPEC) <= counts.keys()
    planned = offsets.plan_copy(seen, Store.KAFKA)
    assert {write.where: write.offset for write in getattr(planned, "writes", ())} == counts


def test_what_was_not_read_has_none() -> None:
    assert GroupSeen("g").zookeeper_offsets == {}


def test_stores_are_compared_only_if_both_were_read() -> None:
    seen = GroupSeen("g", committed={HERE: 5})
    assert offsets.partitions_behind(GroupObservations(None, 1.0, ((1.0, seen),)), KAFKA, SPEC) == frozenset()
    assert offsets.partitions_behind(GroupObservations(seen, 1.0), KAFKA, SPEC) == frozenset()


def test_the_members_of_an_observation_are_made_once() -> None:
    observed = GroupSeen(
        "g", ZkGroup({"g_a": Registration("static", {"t": 1})}, owners={HERE: "g_a-0"}), KafkaGroup("Empty"), {}, {}
    )
    assert [member.holds for member in observed.members or ()] == [frozenset({HERE})]
    assert observed.members is observed.members, "each check of a scan asks for them, of a thousand groups"
