"""Whether a member may begin where its store stands, by tables of both stores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Refuse
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.members import ABSENT, OFFSETS_SETTLE, GroupObservations
from airflow_provider_kmigrate.core.groups.move import decide_switch
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import KafkaGroup, MemberKind, StoredOffset
from airflow_provider_kmigrate.core.member.registration import Flaw, Unreadable
from tests.core.group_facts import KAFKA, MIGRATING, SPEC, T0, T1, ZOOKEEPER, changed, group, observations, verdict


@pytest.mark.parametrize(
    ("zookeeper", "kafka", "target", "age", "expected"),
    [
        (10, 10, ZOOKEEPER, 0.0, "switch"),
        (8, 10, ZOOKEEPER, OFFSETS_SETTLE - 1, "wait K60"),
        (8, 10, ZOOKEEPER, OFFSETS_SETTLE, "copy offsets"),
        (12, 10, ZOOKEEPER, 0.0, "switch"),
        (10, 8, KAFKA, 0.0, "wait K60"),
        (10, 8, KAFKA, 100.0, "wait K60"),
        (8, 10, KAFKA, 0.0, "switch"),
    ],
)
def test_no_member_begins_behind_what_was_committed(
    zookeeper: int, kafka: int, target: MemberKind, age: float, expected: str
) -> None:
    seen = group("m", "m", "kafka" if target is KAFKA else None, committed={T0: kafka, T1: 10})
    seen = changed(seen, offsets={T0: StoredOffset(zookeeper, 0.0), T1: StoredOffset(10, 0.0)})
    assert verdict(decide_switch(observations(seen, age=age), SPEC, "a", target)) == expected


@pytest.mark.parametrize("hole", ["zk", "kafka", "committed"])
@pytest.mark.parametrize(("target", "mode"), [(KAFKA, "kafka"), (ZOOKEEPER, None)])
def test_an_incomplete_observation_is_not_compared_with(target: MemberKind, mode: str | None, hole: str) -> None:
    behind = group("m", "m", mode, committed={T0: 5, T1: 10} if target is KAFKA else {T0: 15, T1: 10})
    first = replace(behind, **{hole: None})
    assert verdict(decide_switch(observations(behind, first, 1.0), SPEC, "a", target)) == "wait K60"
    even, history = group("m", "m", mode), GroupObservations()
    for at, seen in ((0.0, even), (3.0, replace(even, **{hole: None})), (9.0, even)):
        history = history.with_observation(seen, at, SPEC)
    assert verdict(decide_switch(history, SPEC, "a", target)) == "switch", "an earlier one serves"


@pytest.mark.parametrize(
    ("members", "zookeeper", "kafka", "expected"),
    [
        ("zz", 10, {T0: 1000}, "never K64"),  # taken back once, and then set back in ZooKeeper
        ("zz", 10, {T0: 10}, "switch"),
        ("zz", 10, {T0: 5}, "switch"),
        ("zz", 10, {}, "switch"),
        ("zz", -1, {T0: 1000}, "switch"),  # an old consumer's that never committed: as if it had none
        ("zm", 10, {T0: 1000}, "done"),
        ("mz", 10, {T0: 1000}, "switch"),  # of a group that has begun: its members hold both stores alike
        ("kk", 1000, {T0: 10}, "never K64"),  # set back in Kafka
        ("kk", 10, {T0: 10}, "switch"),
        ("kk", 5, {T0: 10}, "switch"),
        ("kk", 1000, {}, "switch"),  # Kafka's may have expired
        ("mk", 1000, {T0: 10}, "switch"),
    ],
)
def test_the_first_migrating_member_skips_nothing(
    members: str, zookeeper: int, kafka: dict[TopicPartition, int], expected: str
) -> None:
    seen = group(*members, "kafka" if "k" in members else None, committed={**kafka, T1: 10})
    seen = changed(seen, offsets={T0: StoredOffset(zookeeper, 0.0), T1: StoredOffset(10, 0.0)})
    assert verdict(decide_switch(observations(seen), SPEC, "b", MIGRATING)) == expected
    early = verdict(decide_switch(observations(seen, age=SPEC.commit_within - 1), SPEC, "b", MIGRATING))
    assert early == expected.replace("never", "wait"), "its members may pass it"


@pytest.mark.parametrize(
    ("members", "zookeeper", "kafka", "leftover"), [("zz", 10, 1000, "kafka"), ("kk", 1000, 10, "zookeeper")]
)
def test_the_leftover_offsets_are_the_ones_to_be_overwritten(members: str, zookeeper: int, kafka: int, leftover: str) -> None:
    """The other way round the remedy would skip the records that it is there to save."""
    seen = group(*members, "kafka" if "k" in members else None, committed={T0: kafka, T1: 10})
    seen = changed(seen, offsets={T0: StoredOffset(zookeeper, 0.0), T1: StoredOffset(10, 0.0)})
    decision = decide_switch(observations(seen), SPEC, "b", MIGRATING)
    assert isinstance(decision, Refuse)
    assert f"{leftover}'s leftover offsets of t-0 are ahead" in decision.reasons[0].text
    assert f"copy-offsets --to {leftover} --reset" in decision.reasons[0].text


def test_what_a_dead_migrating_member_held_is_not_compared() -> None:
    """Its partitions are read on by an old one, which commits to ZooKeeper alone; Kafka keeps its place, and what it had committed."""
    seen = group("", "z", committed={T0: 10})
    dead = KafkaMember("life", "g_a", frozenset({T0}))
    seen = changed(replace(seen, kafka=KafkaGroup("Stable", (dead,))), offsets={T0: StoredOffset(500, 0.0)})
    assert (
        verdict(decide_switch(observations(seen, age=ABSENT - 1), replace(SPEC, commit_within=1.0), "a", MIGRATING)) == "switch"
    )


def test_zookeeper_consumers_that_commit_to_kafka_leave_nothing_over_there() -> None:
    """`offsets.storage=kafka`; with `dual.commit.enabled` ZooKeeper's follow, without they stand."""
    first = group("z", "z", committed={T0: 900, T1: 10})
    now = replace(first, committed={T0: 1000, T1: 10})
    assert verdict(decide_switch(observations(now, first), SPEC, "a", MIGRATING)) == "switch"
    assert verdict(decide_switch(observations(now, now), SPEC, "a", MIGRATING)) == "never K64"


def test_kafka_need_not_know_the_offsets_of_unread_partitions() -> None:
    gone, left = TopicPartition("gone", 0), TopicPartition("left", 0)
    stored = {
        gone: StoredOffset(5, 0.0),
        left: StoredOffset(5, 0.0),
        T0: StoredOffset(10, 90_000.0),
        T1: StoredOffset(10, 90_000.0),
    }
    seen = changed(group("m", "m", "kafka", ends={T0: 10, T1: 10, left: 99}), offsets=stored)
    assert verdict(decide_switch(observations(seen), SPEC, "a", KAFKA)) == "switch"
    late = {**stored, left: StoredOffset(5, 80_000.0)}
    registered = changed(seen, offsets=late)
    assert verdict(decide_switch(observations(registered), SPEC, "a", KAFKA)) == "switch", (
        "every member tells what it reads, and none that"
    )
    hidden = changed(group("m", "k", "kafka", ends=seen.ends), offsets=late)
    assert verdict(decide_switch(observations(hidden), SPEC, "a", KAFKA)) == "wait K60"


def test_an_unreadable_offset_is_none() -> None:
    seen = changed(
        group("m", "m"), offsets={T0: StoredOffset(Unreadable(Flaw.NOT_A_NUMBER, "x"), 0.0), T1: StoredOffset(10, 0.0)}
    )
    assert verdict(decide_switch(observations(seen), SPEC, "a", ZOOKEEPER)) == "copy offsets"
