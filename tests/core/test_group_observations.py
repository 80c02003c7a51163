"""What many observations of a group show: which instances are missing, which members may be dead, what is compared with what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.groups.members import ABSENT, OFFSETS_SETTLE, GroupObservations
from airflow_provider_kmigrate.core.groups.move import decide_set_mode, decide_switch
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup, MemberKind, StoredOffset
from airflow_provider_kmigrate.core.member.registration import Mode
from tests.core.group_facts import KAFKA, MIGRATING, SPEC, T0, T1, ZOOKEEPER, changed, group, observations, verdict


def test_offsets_are_compared_with_an_observation_as_old_as_they_take_to_settle_and_no_older() -> None:
    """Kafka's commits stopped in the middle of a long wait for stability: what ZooKeeper had when it began says nothing."""
    seen, now = group("m", "m", "kafka"), GroupObservations()
    for at in range(300):
        seen = changed(seen, offsets={T0: StoredOffset(10 + max(0, at - 250), 0.0), T1: StoredOffset(10, 0.0)})
        now = now.with_observation(seen, float(at), SPEC)
        assert now.whole[0][0] == max(0.0, at - OFFSETS_SETTLE)
        assert len(now.whole) <= OFFSETS_SETTLE + 1
    assert verdict(decide_switch(now, SPEC, "a", KAFKA)) == "wait K60"


def test_an_instance_is_missing_since_it_was_last_observed() -> None:
    history = GroupObservations()
    there, gone = group("z", "z"), group("", "z")
    for at, seen in ((0.0, there), (100.0, there), (101.0, gone), (110.0, None), (120.0, gone), (130.0, replace(gone, zk=None))):
        history = history.with_observation(seen, at, SPEC)
    history = history.with_observation(gone, 140.0, SPEC)
    assert [history.seconds_missing(name) for name in ("a", "b")] == [39.0, 0.0]
    assert verdict(decide_switch(history, SPEC, "a", MIGRATING)) == "wait K55"
    assert verdict(decide_switch(history.with_observation(gone, 146.0, SPEC), SPEC, "a", MIGRATING)) == "switch"
    assert history.with_observation(there, 150.0, SPEC).missing_since == {}


def in_kafka(seen: GroupSeen, *names: str) -> GroupSeen:
    """With these places in Kafka, each an incarnation of its own."""
    assert seen.kafka is not None
    added = tuple(KafkaMember(f"life-{name}", name, frozenset()) for name in names)
    return replace(seen, kafka=replace(seen.kafka, members=(*seen.kafka.members, *added)))


class TestTheKafkaPlaceOfADeadMember:
    """It looks like a Kafka consumer's, for a session whose length the application sets and no request reports."""

    @pytest.mark.parametrize(
        ("seen", "instance", "target", "code"),
        [
            (in_kafka(group("", "z"), "g_a"), "b", MIGRATING, "K58"),
            (in_kafka(group("", "m"), "g_a"), "b", ZOOKEEPER, "K58"),
            (in_kafka(group("m", "m"), "g_gone-1"), "b", ZOOKEEPER, "K58"),
            (in_kafka(group("z", "z"), "g_gone-1"), "b", MIGRATING, "K56"),
            (in_kafka(group("", "m"), "g_a"), "", Mode.KAFKA, "K58"),
            (in_kafka(group("", "m", "kafka"), "g_a"), "", Mode.ZOOKEEPER, "K58"),
        ],
    )
    def test_a_dead_members_kafka_place_is_waited_for_before_a_step_is_refused(
        self, seen: GroupSeen, instance: str, target: MemberKind | Mode, code: str
    ) -> None:
        def at(age: float) -> str:
            found = observations(seen, age=age)
            decision = (
                decide_set_mode(found, SPEC, target) if isinstance(target, Mode) else decide_switch(found, SPEC, instance, target)
            )
            return verdict(decision)

        assert at(ABSENT) == "wait K66"
        assert at(SPEC.switch_timeout - 1) == "wait K66", "a session may well be minutes"
        assert at(SPEC.switch_timeout).startswith("never")
        assert code in at(SPEC.switch_timeout)

    def test_an_operator_who_knows_that_it_is_dead_need_not_wait(self) -> None:
        seen = in_kafka(group("", "m", "kafka"), "g_a")
        assert verdict(decide_set_mode(observations(seen, age=1.0), SPEC, Mode.ZOOKEEPER, blind=True)) == "set mode"
        assert (
            verdict(decide_set_mode(observations(in_kafka(seen, "x"), age=1.0), SPEC, Mode.ZOOKEEPER, blind=True)) == "never K58"
        )

    def test_beside_other_kafka_consumers_in_mode_kafka_it_counts_as_one(self) -> None:
        seen = in_kafka(group("", "k", "kafka"), "g_a")
        assert verdict(decide_set_mode(observations(seen, age=1.0), SPEC, Mode.ZOOKEEPER)) == "never K58"

    def test_one_with_another_name_is_a_kafka_consumer(self) -> None:
        assert verdict(decide_set_mode(observations(in_kafka(group("m", "m"), "x"), age=1.0), SPEC, Mode.ZOOKEEPER)) == "done"
        assert verdict(decide_switch(observations(in_kafka(group("m", "m"), "x"), age=1.0), SPEC, "a", ZOOKEEPER)) == "never K58"

    def test_a_restarted_instances_former_kafka_place_is_not_its_new_kafka_consumer(self) -> None:
        seen = in_kafka(group("", "m", "kafka"), "g_a")
        asked = {"restart_requested": True, "former": {"life-g_a"}}
        assert verdict(decide_switch(observations(seen), SPEC, "a", KAFKA, **asked)) == "wait K55"  # type: ignore[arg-type]
        assert verdict(decide_switch(observations(in_kafka(seen, "a")), SPEC, "a", KAFKA, **asked)) == "done"  # type: ignore[arg-type]
        assert verdict(decide_switch(observations(in_kafka(seen, "a")), SPEC, "a", ZOOKEEPER, **asked)) == "wait K55"  # type: ignore[arg-type]


def test_no_zookeeper_consumer_beside_a_kafka_consumer_that_the_file_does_not_know() -> None:
    seen = in_kafka(group("m", "m"), "console-consumer")
    assert verdict(decide_switch(observations(seen), SPEC, "a", ZOOKEEPER)) == "never K58"


def test_a_missing_instance_waits_until_the_others_are_stable() -> None:
    shared = group("", "z", kafka=KafkaGroup("PreparingRebalance"))
    assert verdict(decide_switch(observations(shared), SPEC, "a", MIGRATING)) == "wait K52"
    assert verdict(decide_switch(observations(shared), SPEC, "a", MIGRATING, hurry=True)) == "switch"
