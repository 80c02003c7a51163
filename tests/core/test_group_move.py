"""What may be done next with a group, from what is seen of it: by tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, InstanceSpec
from airflow_provider_kmigrate.core.groups.members import ABSENT, map_instances, unknown_group_reasons
from airflow_provider_kmigrate.core.groups.move import (
    Goal,
    check_switch_order,
    decide_clean_up,
    decide_set_mode,
    decide_switch,
    describe_plan,
    done_if_beyond,
    done_if_mode_not_needed,
    has_left_zookeeper,
    next_rollback_move,
)
from airflow_provider_kmigrate.core.groups.scan import is_other_wave, not_in_file_reasons
from airflow_provider_kmigrate.core.member.group_seen import (
    GroupSeen,
    KafkaGroup,
    MemberKind,
    MemberSeen,
    StoredOffset,
    ZkGroup,
)
from airflow_provider_kmigrate.core.member.registration import Flaw, Mode, Unreadable
from airflow_provider_kmigrate.core.migration.waits import is_window_open
from tests.core.group_facts import (
    KAFKA,
    MIGRATING,
    SPEC,
    STATIC,
    T0,
    T1,
    ZOOKEEPER,
    changed,
    codes,
    group,
    observations,
    progress_in,
    verdict,
)


@pytest.mark.parametrize(
    ("seen", "target", "expected"),
    [
        (group("z", "z"), MIGRATING, "switch"),
        (group("m", "z"), MIGRATING, "done"),
        (group("m", "m"), ZOOKEEPER, "switch"),
        (group("m", "m", "kafka"), KAFKA, "switch"),
        (group("k", "k", "kafka"), MIGRATING, "switch"),
        (group("k", "m", "kafka"), KAFKA, "done"),
        (group("z", "z"), KAFKA, "never K58"),
        (group("m", "z"), KAFKA, "never K58"),
        (group("z", "k", "kafka"), MIGRATING, "never K58"),
        (group("k", "z", "kafka"), MIGRATING, "switch"),
        (group("m", "m"), KAFKA, "never K45"),
        (group("m", "m", "kafka"), ZOOKEEPER, "never K45"),
        (group("z", "m", "kafka"), MIGRATING, "never K45"),
        (group("z", ""), MIGRATING, "wait K55"),
        (group("", "z"), MIGRATING, "switch"),
        (group("z", "z", kafka=None), MIGRATING, "wait K30"),
        (group("z", "z", zk=None), MIGRATING, "wait K30"),
        (group("z", "z", committed=None), MIGRATING, "wait K30"),
        (None, MIGRATING, "wait K30"),
        (group("z", "z", kafka=KafkaGroup("PreparingRebalance")), MIGRATING, "wait K52"),
        (changed(group("z", "z"), owners={T0: "g_a-0"}), MIGRATING, "wait K44"),
        (changed(group("z", "m"), progress={"g_b": progress_in(None, {"b": "m"}, settled=False)}), MIGRATING, "wait K52"),
        (changed(group("z", "m"), progress={"g_b": None}), MIGRATING, "wait K52"),
        (changed(group("m", "m", "kafka"), mode_epoch=8), KAFKA, "wait K52"),
        (changed(group("z", "z"), registrations={"g_a": STATIC, "g_b": Unreadable(Flaw.NOT_JSON, "x")}), MIGRATING, "never K31"),
        (changed(group("z", "z"), registrations={"g_a": STATIC, "g_b": STATIC, "g_c": STATIC}), MIGRATING, "never K56"),
        (changed(group("m", "m"), registrations={"g_a": STATIC, "g_b": STATIC, "g_c": STATIC}), ZOOKEEPER, "switch"),
    ],
)  # fmt: skip
def test_an_instance(seen: GroupSeen | None, target: MemberKind, expected: str) -> None:
    assert verdict(decide_switch(observations(seen), SPEC, "a", target)) == expected


@pytest.mark.parametrize(
    ("seen", "instance", "target", "expected"),
    [
        (group("", ""), "a", MIGRATING, "wait K55"),
        (group("", "", "kafka"), "a", KAFKA, "wait K55"),
        (None, "a", MIGRATING, "wait K55"),
        (group("", "z"), "a", MIGRATING, None),
        (group("z", "z"), "a", MIGRATING, None),
        (group("z", "z"), "b", MIGRATING, "never K58"),
        (group("m", "z"), "b", MIGRATING, None),
        (group("k", "m", "kafka"), "b", MIGRATING, None),
        (group("m", "m", "kafka"), "b", KAFKA, "never K58"),
        (group("k", "m", "kafka"), "b", KAFKA, None),
    ],
)
def test_the_way_forward_begins_with_the_first_instance_and_starts_no_stopped_application(
    seen: GroupSeen | None, instance: str, target: MemberKind, expected: str | None
) -> None:
    kept = check_switch_order(observations(seen), SPEC, instance, target)
    assert (verdict(kept) if kept else None) == expected


def test_an_instance_that_was_restarted_is_waited_for_and_not_restarted_again() -> None:
    for seen in (group("", "z"), group("z", "z")):
        assert verdict(decide_switch(observations(seen), SPEC, "a", MIGRATING, restart_requested=True)) == "wait K55"
    assert verdict(decide_switch(observations(group("", "z"), age=ABSENT - 1), SPEC, "a", MIGRATING)) == "wait K55"


def test_an_instance_switched_because_it_is_unstable_does_not_wait_for_stability() -> None:
    rebalancing = changed(group("m", "z"), owners={T0: "g_a-0"})
    assert verdict(decide_switch(observations(rebalancing), SPEC, "a", ZOOKEEPER)) == "wait K44"
    assert verdict(decide_switch(observations(rebalancing), SPEC, "a", ZOOKEEPER, hurry=True)) == "switch"


@pytest.mark.parametrize(
    ("seen", "mode", "code", "named"),
    [
        (group("m", "z"), Mode.KAFKA, "K58", ["g_b"]),
        (group("z", "z"), Mode.KAFKA, "K58", ["g_a", "g_b"]),
        (group("m", "k"), Mode.KAFKA, "K58", ["b"]),
        (group("m", "k", "kafka"), Mode.ZOOKEEPER, "K58", ["b"]),
        (group("k", "k", "kafka"), Mode.ZOOKEEPER, "K58", ["a", "b"]),
    ],
)
def test_a_mode_is_refused_by_the_names_of_those_who_cannot_follow(
    seen: GroupSeen, mode: Mode, code: str, named: list[str]
) -> None:
    decision = decide_set_mode(observations(seen), SPEC, mode)
    assert isinstance(decision, Refuse)
    (text,) = [reason.text for reason in decision.reasons if reason.code == code]
    assert sorted(text.rpartition(": ")[2].removesuffix(".").split(", ")) == named


@pytest.mark.parametrize(
    ("seen", "mode", "expected"),
    [
        (group("m", "m"), Mode.KAFKA, "set mode"),
        (group("m", "m", "kafka"), Mode.KAFKA, "done"),
        (group("m", "m", "kafka\n"), Mode.KAFKA, "set mode"),
        (group("m", "m", "kafka"), Mode.ZOOKEEPER, "set mode"),
        (group("m", "z"), Mode.KAFKA, "never K58"),
        (group("m", "k"), Mode.KAFKA, "never K58"),
        (group("m", "k", "kafka"), Mode.ZOOKEEPER, "never K58"),
        (group("k", "k", "kafka"), Mode.ZOOKEEPER, "never K58"),
        (group("k", "k"), Mode.KAFKA, "set mode"),
        (group("m", ""), Mode.KAFKA, "wait K55"),
        (group("", ""), Mode.KAFKA, "wait K55"),
        (group("k", ""), Mode.KAFKA, "set mode"),
        (group("m", "", "kafka"), Mode.ZOOKEEPER, "set mode"),
        (changed(group("m", "m", "kafka"), owners={}), Mode.ZOOKEEPER, "set mode"),
        (changed(group("m", "m", "kafka"), mode_epoch=9), Mode.KAFKA, "wait K52"),
        (group("m", "m", zk=None), Mode.KAFKA, "wait K30"),
        (group("m", "m", kafka=None), Mode.ZOOKEEPER, "wait K30"),
        (group("m", "m", "kafka", committed=None), Mode.ZOOKEEPER, "set mode"),
        (group("z", "z", "kafka\n"), Mode.ZOOKEEPER, "set mode"),
        (group("z", "z", "zookeeper"), Mode.ZOOKEEPER, "done"),
        (group("z", "z", ""), Mode.ZOOKEEPER, "done"),
        (group("z", "z"), Mode.ZOOKEEPER, "done"),
    ],
)
def test_the_mode(seen: GroupSeen, mode: Mode, expected: str) -> None:
    assert verdict(decide_set_mode(observations(seen), SPEC, mode)) == expected


def test_a_person_may_set_the_mode_back_without_the_members_in_kafka() -> None:
    unread = group("m", "m", "kafka", kafka=None)
    assert verdict(decide_set_mode(observations(unread), SPEC, Mode.ZOOKEEPER, blind=True)) == "set mode"
    assert verdict(decide_set_mode(observations(group("k", "m", "kafka")), SPEC, Mode.ZOOKEEPER, blind=True)) == "never K58"
    assert verdict(decide_set_mode(observations(group("m", "m", zk=None)), SPEC, Mode.ZOOKEEPER, blind=True)) == "wait K30"


@pytest.mark.parametrize(
    ("seen", "known"),
    [
        (GroupSeen("g", ZkGroup(), KafkaGroup("Dead"), {}, {}), False),
        (GroupSeen("g", ZkGroup(), None, None, None), False),
        (GroupSeen("g", ZkGroup(), KafkaGroup("Empty"), {}, {}), True),
        (GroupSeen("g", ZkGroup(), KafkaGroup("Dead"), {T0: 1}, {}), True),
        (GroupSeen("g", ZkGroup(offsets={T0: StoredOffset(1, 0.0)}), KafkaGroup("Dead"), {}, {}), True),
        (group("z", ""), True),
    ],
)
def test_a_group_that_neither_side_knows(seen: GroupSeen, known: bool) -> None:
    assert codes(unknown_group_reasons(seen)) == ([] if known else ["F09"])


@pytest.mark.parametrize(
    ("wave", "names", "expected"),
    [
        (None, [], []),
        (2, ["a"], []),
        ("1", [], []),
        (7, [], ["wave 7"]),
        (0, [], ["wave 0"]),
        (None, ["a", "bilings"], ["group bilings"]),
        (7, ["x"], ["group x", "wave 7"]),
    ],
)
def test_a_run_for_what_the_file_does_not_have(wave: object, names: list[str], expected: list[str]) -> None:
    found = not_in_file_reasons([GroupSpec("a", (), wave=1), GroupSpec("b", (), wave=2)], wave, names)
    assert [part for part in expected if part in str(found)] == expected
    assert codes(found) == ["F09"] * bool(expected)


@pytest.mark.parametrize(
    ("seen", "goal", "move"),
    [
        (group("k", "k"), Goal.ZOOKEEPER_CONSUMERS, ("", Mode.KAFKA)),
        (group("k", "k", "kafka"), Goal.KAFKA_MODE, ("b", MIGRATING)),
        (group("k", "m", "kafka"), Goal.ZOOKEEPER_CONSUMERS, ("a", MIGRATING)),
        (group("m", "m", "kafka"), Goal.KAFKA_MODE, None),
        (group("m", "m", "kafka"), Goal.ZOOKEEPER_MODE, ("", Mode.ZOOKEEPER)),
        (group("m", "m"), Goal.ZOOKEEPER_MODE, None),
        (group("m", "m"), Goal.ZOOKEEPER_CONSUMERS, ("b", ZOOKEEPER)),
        (group("m", "z"), Goal.ZOOKEEPER_CONSUMERS, ("a", ZOOKEEPER)),
        (group("m", "z"), Goal.ZOOKEEPER_MODE, None),
        (group("z", "z"), Goal.ZOOKEEPER_CONSUMERS, None),
        (group("z", ""), Goal.ZOOKEEPER_CONSUMERS, ("b", ZOOKEEPER)),
        (group("m", "", "kafka"), Goal.KAFKA_MODE, ("b", MIGRATING)),
        (group("z", ""), Goal.ZOOKEEPER_MODE, ("b", ZOOKEEPER)),
        (group("m", ""), Goal.ZOOKEEPER_CONSUMERS, ("b", ZOOKEEPER)),
    ],
)
def test_the_next_move_back(seen: GroupSeen, goal: Goal, move: object) -> None:
    assert next_rollback_move(observations(seen), SPEC, goal) == move


@pytest.mark.parametrize("unread", [{"zk": None}, {"kafka": None}])
def test_no_move_back_is_chosen_from_half_an_observation(unread: dict[str, None]) -> None:
    assert next_rollback_move(observations(replace(group("k", "k"), **unread)), SPEC, Goal.ZOOKEEPER_CONSUMERS) is None


@pytest.mark.parametrize(
    ("seen", "forward", "back"),
    [
        (group("z", "z"), ["a, b become migrating", "mode kafka", "a, b become Kafka consumers", "leftovers"], []),
        (group("m", "z"), ["b become migrating", "mode kafka", "a, b become Kafka consumers"], ["a become ZooKeeper consumers"]),
        (
            group("k", "m", "kafka"),
            ["b become Kafka consumers", "leftovers"],
            ["a become migrating", "mode zookeeper", "b, a become ZooKeeper consumers"],
        ),
        (group("k", "k", "kafka"), ["leftovers"], ["b, a become migrating", "mode zookeeper"]),
        (group("k", "k"), [], ["mode kafka, b, a become migrating", "mode zookeeper"]),
    ],
)
def test_the_plan_in_words(seen: GroupSeen, forward: list[str], back: list[str]) -> None:
    for goal, expected in ((None, forward), (Goal.ZOOKEEPER_CONSUMERS, back)):
        said = describe_plan(seen, SPEC, goal)
        assert all(part in said for part in expected), said
        assert expected or "Nothing to do" in said


def test_strangers_stand_in_the_plan_where_they_keep_the_group_from_it() -> None:
    strange = changed(group("m", "m"), registrations={"g_a": STATIC, "g_b": STATIC, "g_c": STATIC})
    assert "[K56]" in describe_plan(strange, SPEC)
    assert "b, a become ZooKeeper consumers" in describe_plan(strange, SPEC, Goal.ZOOKEEPER_CONSUMERS)


@pytest.mark.parametrize(
    ("seen", "expected", "off"),
    [
        (group("k", "k", "kafka"), "clean up", False),
        (group("k", "k"), "done", True),
        (group("m", "k", "kafka"), "never K58", False),
        (group("k", ""), "done", False),
        (group("k", "", "kafka"), "wait K55", False),
        (group("", "", "kafka"), "wait K55", False),
        (group("", ""), "done", True),  # its application is stopped
        (group("", "", committed={}), "done", False),
        (group("", "", committed={T0: 10, T1: 9}), "done", False),
        (group("", "", committed=None), "wait K30", False),
        (group("k", "k", kafka=None), "wait K30", False),
    ],
)
def test_leftovers(seen: GroupSeen, expected: str, off: bool) -> None:
    assert verdict(decide_clean_up(seen, SPEC)) == expected
    assert has_left_zookeeper(seen, SPEC) is off


@pytest.mark.parametrize(
    ("name", "instance"),
    [
        ("g_a", "a"), ("g_a-1795226356133-c69eb14b", "a"), ("a", "a"), ("a-rdkafka", "a"), ("g_b-0", "b"),
        ("g_g_c", "g_c"), ("g_c", "g_c"), ("g_c-rdkafka", "g_c"), ("g_ab", None), ("rdkafka", None), ("b2", None), ("other_a", None),
    ],
)  # fmt: skip
def test_a_member_belongs_to_the_instance_that_its_name_says(name: str, instance: str | None) -> None:
    found = map_instances([MemberSeen(name, ZOOKEEPER)], GroupSpec("g", (*SPEC.instances, InstanceSpec("g_c"))))
    assert [each for each, members in found.instances.items() if members] == ([instance] if instance else [])
    assert bool(found.unmapped) is (instance is None)


@pytest.mark.parametrize(
    ("seen", "target", "stays"),
    [
        (group("k", "k", "kafka"), MIGRATING, True),
        (group("k", "m", "kafka"), MIGRATING, True),
        (group("k", "m"), MIGRATING, False),  # it died as a migrating one, and Kafka keeps it for its session
        (group("k", "k"), MIGRATING, True),  # cleaned up
        (group("k", "k", "kafka"), KAFKA, False),
        (group("m", "k", "kafka"), MIGRATING, False),
        (group("z", "m"), MIGRATING, False),
        (group("", "k", "kafka"), MIGRATING, False),
        (group("k", "k", "kafka", zk=None), MIGRATING, False),
        (None, MIGRATING, False),
    ],
)
def test_an_instance_that_has_come_further_stays(seen: GroupSeen | None, target: MemberKind, stays: bool) -> None:
    assert isinstance(done_if_beyond(seen, SPEC, "a", target), Done) is stays


@pytest.mark.parametrize(
    ("seen", "mode", "stays"),
    [
        (group("k", "k"), Mode.KAFKA, True),
        (group("k", "k", "kafka"), Mode.KAFKA, True),
        (group("k", "k"), Mode.ZOOKEEPER, False),
        (group("k", "m"), Mode.KAFKA, False),
        (group("k", ""), Mode.KAFKA, False),
        (group("m", "m"), Mode.KAFKA, False),
        (group("k", "k", kafka=None), Mode.KAFKA, False),
        (None, Mode.KAFKA, False),
    ],
)
def test_a_group_of_kafka_consumers_gets_no_mode(seen: GroupSeen | None, mode: Mode, stays: bool) -> None:
    assert isinstance(done_if_mode_not_needed(seen, SPEC, mode), Done) is stays


@pytest.mark.parametrize(
    ("window", "hour", "minute", "expected"),
    [
        ("", 3, 0, True), ("22:00-04:00", 22, 0, True), ("22:00-04:00", 3, 59, True), ("22:00-04:00", 4, 0, False),
        ("22:00-04:00", 12, 0, False), ("08:00-10:30", 10, 29, True), ("08:00-10:30", 10, 30, False), ("05:00-05:00", 1, 1, True),
    ],
)  # fmt: skip
def test_windows(window: str, hour: int, minute: int, expected: bool) -> None:
    assert is_window_open(window, datetime(2026, 11, 22, hour, minute)) is expected  # noqa: DTZ001


def test_waves() -> None:
    assert [is_other_wave(asked, 2) for asked in (None, 2, "2", 1, 0)] == [False, False, False, True, True]
    assert not is_other_wave(1, 0)


def test_waits_and_refusals_say_what_to_do() -> None:
    never = decide_switch(observations(group("z", "z")), SPEC, "a", KAFKA)
    assert isinstance(never, Refuse)
    assert all(reason.meaning and reason.next_step for reason in never.reasons)
    assert isinstance(decide_switch(observations(group("z", "")), SPEC, "a", MIGRATING), Wait)
