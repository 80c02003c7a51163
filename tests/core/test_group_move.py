"""What may be done next with a group, from what is seen of it: by tables."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import pytest

from airflow_provider_kmigrate.core.cluster import GroupSpec, InstanceSpec
from airflow_provider_kmigrate.core.coordination.assignors import KafkaMember
from airflow_provider_kmigrate.core.coordination.group_seen import (
    GroupSeen,
    KafkaGroup,
    MemberKind,
    MemberSeen,
    StoredOffset,
    ZkGroup,
)
from airflow_provider_kmigrate.core.coordination.registration import Flaw, MemberProgress, Mode, Registration, Unreadable
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.groups.members import ABSENT, GroupObservations, map_instances, unknown_group
from airflow_provider_kmigrate.core.groups.move import (
    Goal,
    already_beyond,
    clean_up,
    mode_not_needed,
    moved,
    next_rollback,
    plan,
    set_mode,
    switch,
    switch_blocked,
)
from airflow_provider_kmigrate.core.groups.scan import not_in_file, other_wave
from airflow_provider_kmigrate.core.migration.waits import is_open

OLD, MIGRATING, PLAIN = MemberKind.ZOOKEEPER, MemberKind.MIGRATING, MemberKind.KAFKA
SPEC = GroupSpec("g", (InstanceSpec("a"), InstanceSpec("b")), commit_within=100.0)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
PLACES = {"a": T0, "b": T1}
STATIC = Registration("static", {"t": 1})


def group(a: str = "", b: str = "", mode: str | None = None, **fields: object) -> GroupSeen:
    """Instances by letters: o(ld), m(igrating), p(lain), empty for none; each holds one partition, all at rest."""
    zk = {name: kind for name, kind in (("a", a), ("b", b)) if kind in {"o", "m"}}
    progress = {f"g_{name}": progress_in(mode, zk) for name, kind in zk.items() if kind == "m"}
    tree = ZkGroup(
        {f"g_{name}": STATIC for name in zk},
        progress,
        mode.encode() if mode is not None else None,
        0 if mode is not None else -1,
        7 if mode is not None else 0,
        {PLACES[name]: f"g_{name}-0" for name in zk},
        {where: StoredOffset(10, 0.0) for where in (T0, T1)},
        frozenset(PLACES[name] for name in zk),
    )
    members = [
        KafkaMember(name, f"g_{name}" if kind == "m" else name, frozenset({PLACES[name]}))
        for name, kind in (("a", a), ("b", b))
        if kind in {"m", "p"}
    ]
    known = {"zk": tree, "kafka": KafkaGroup("Stable", tuple(members)), "committed": {T0: 10, T1: 10}, "ends": {T0: 10, T1: 10}}
    return GroupSeen("g", **{**known, **fields})  # type: ignore[arg-type]


def progress_in(mode: str | None, zk: dict[str, str], *, settled: bool = True) -> MemberProgress:
    effective = Mode.KAFKA if mode == "kafka" and set(zk.values()) == {"m"} else Mode.ZOOKEEPER
    return MemberProgress(7 if mode is not None else 0, effective, settled=settled)


def changed(seen: GroupSeen, **fields: object) -> GroupSeen:
    """The same with other fields of its ZooKeeper side."""
    assert seen.zk is not None
    tree = ZkGroup(**{**{name: getattr(seen.zk, name) for name in ZkGroup.__dataclass_fields__}, **fields})  # type: ignore[arg-type]
    return GroupSeen(seen.name, tree, seen.kafka, seen.committed, seen.ends)


def observations(seen: GroupSeen | None, first: GroupSeen | None = None, age: float = 100.0) -> GroupObservations:
    return GroupObservations().observe(first or seen, 1000.0, SPEC).observe(seen, 1000.0 + age, SPEC)


def verdict(decision: Decision) -> str:
    """`Done`, the act's verb, or the codes of a wait or refusal."""
    if isinstance(decision, Done):
        return "done"
    if isinstance(decision, Act):
        return decision.verb
    return f"{'never' if isinstance(decision, Refuse) else 'wait'} {' '.join(codes(decision.reasons))}"


def codes(reasons: Iterable[object]) -> list[str]:
    return [reason.code for reason in reasons]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("seen", "target", "expected"),
    [
        (group("o", "o"), MIGRATING, "switch"),
        (group("m", "o"), MIGRATING, "done"),
        (group("m", "m"), OLD, "switch"),
        (group("m", "m", "kafka"), PLAIN, "switch"),
        (group("p", "p", "kafka"), MIGRATING, "switch"),
        (group("p", "m", "kafka"), PLAIN, "done"),
        (group("o", "o"), PLAIN, "never K58"),
        (group("m", "o"), PLAIN, "never K58"),
        (group("o", "p", "kafka"), MIGRATING, "never K58"),
        (group("p", "o", "kafka"), MIGRATING, "switch"),
        (group("m", "m"), PLAIN, "never K45"),
        (group("m", "m", "kafka"), OLD, "never K45"),
        (group("o", "m", "kafka"), MIGRATING, "never K45"),
        (group("o", ""), MIGRATING, "wait K55"),
        (group("", "o"), MIGRATING, "switch"),
        (group("o", "o", kafka=None), MIGRATING, "wait K30"),
        (group("o", "o", zk=None), MIGRATING, "wait K30"),
        (group("o", "o", committed=None), MIGRATING, "wait K30"),
        (None, MIGRATING, "wait K30"),
        (group("o", "o", kafka=KafkaGroup("PreparingRebalance")), MIGRATING, "wait K52"),
        (changed(group("o", "o"), owners={T0: "g_a-0"}), MIGRATING, "wait K44"),
        (changed(group("o", "m"), progress={"g_b": progress_in(None, {"b": "m"}, settled=False)}), MIGRATING, "wait K52"),
        (changed(group("o", "m"), progress={"g_b": None}), MIGRATING, "wait K52"),
        (changed(group("m", "m", "kafka"), mode_epoch=8), PLAIN, "wait K52"),
        (changed(group("o", "o"), registrations={"g_a": STATIC, "g_b": Unreadable(Flaw.NOT_JSON, "x")}), MIGRATING, "never K31"),
        (changed(group("o", "o"), registrations={"g_a": STATIC, "g_b": STATIC, "g_c": STATIC}), MIGRATING, "never K56"),
        (changed(group("m", "m"), registrations={"g_a": STATIC, "g_b": STATIC, "g_c": STATIC}), OLD, "switch"),
    ],
)  # fmt: skip
def test_an_instance(seen: GroupSeen | None, target: MemberKind, expected: str) -> None:
    assert verdict(switch(observations(seen), SPEC, "a", target)) == expected


@pytest.mark.parametrize(
    ("seen", "instance", "target", "expected"),
    [
        (group("", ""), "a", MIGRATING, "wait K55"),
        (group("", "", "kafka"), "a", PLAIN, "wait K55"),
        (None, "a", MIGRATING, "wait K55"),
        (group("", "o"), "a", MIGRATING, None),
        (group("o", "o"), "a", MIGRATING, None),
        (group("o", "o"), "b", MIGRATING, "never K58"),
        (group("m", "o"), "b", MIGRATING, None),
        (group("p", "m", "kafka"), "b", MIGRATING, None),
        (group("m", "m", "kafka"), "b", PLAIN, "never K58"),
        (group("p", "m", "kafka"), "b", PLAIN, None),
    ],
)
def test_the_way_forward_begins_with_the_first_instance_and_starts_no_stopped_application(
    seen: GroupSeen | None, instance: str, target: MemberKind, expected: str | None
) -> None:
    kept = switch_blocked(observations(seen), SPEC, instance, target)
    assert (verdict(kept) if kept else None) == expected


def test_an_instance_that_was_restarted_is_waited_for_and_not_restarted_again() -> None:
    for seen in (group("", "o"), group("o", "o")):
        assert verdict(switch(observations(seen), SPEC, "a", MIGRATING, asked=True)) == "wait K55"
    assert verdict(switch(observations(group("", "o"), age=ABSENT - 1), SPEC, "a", MIGRATING)) == "wait K55"


def test_what_is_switched_for_its_unrest_does_not_wait_for_rest() -> None:
    rebalancing = changed(group("m", "o"), owners={T0: "g_a-0"})
    assert verdict(switch(observations(rebalancing), SPEC, "a", OLD)) == "wait K44"
    assert verdict(switch(observations(rebalancing), SPEC, "a", OLD, hurry=True)) == "switch"


@pytest.mark.parametrize(
    ("seen", "mode", "code", "named"),
    [
        (group("m", "o"), Mode.KAFKA, "K58", ["g_b"]),
        (group("o", "o"), Mode.KAFKA, "K58", ["g_a", "g_b"]),
        (group("m", "p"), Mode.KAFKA, "K58", ["b"]),
        (group("m", "p", "kafka"), Mode.ZOOKEEPER, "K58", ["b"]),
        (group("p", "p", "kafka"), Mode.ZOOKEEPER, "K58", ["a", "b"]),
    ],
)
def test_a_mode_is_refused_by_the_names_of_those_who_cannot_follow(
    seen: GroupSeen, mode: Mode, code: str, named: list[str]
) -> None:
    decision = set_mode(observations(seen), SPEC, mode)
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
        (group("m", "o"), Mode.KAFKA, "never K58"),
        (group("m", "p"), Mode.KAFKA, "never K58"),
        (group("m", "p", "kafka"), Mode.ZOOKEEPER, "never K58"),
        (group("p", "p", "kafka"), Mode.ZOOKEEPER, "never K58"),
        (group("p", "p"), Mode.KAFKA, "set mode"),
        (group("m", ""), Mode.KAFKA, "wait K55"),
        (group("", ""), Mode.KAFKA, "wait K55"),
        (group("p", ""), Mode.KAFKA, "set mode"),
        (group("m", "", "kafka"), Mode.ZOOKEEPER, "set mode"),
        (changed(group("m", "m", "kafka"), owners={}), Mode.ZOOKEEPER, "set mode"),
        (changed(group("m", "m", "kafka"), mode_epoch=9), Mode.KAFKA, "wait K52"),
        (group("m", "m", zk=None), Mode.KAFKA, "wait K30"),
        (group("m", "m", kafka=None), Mode.ZOOKEEPER, "wait K30"),
        (group("m", "m", "kafka", committed=None), Mode.ZOOKEEPER, "set mode"),
        (group("o", "o", "kafka\n"), Mode.ZOOKEEPER, "set mode"),
        (group("o", "o", "zookeeper"), Mode.ZOOKEEPER, "done"),
        (group("o", "o", ""), Mode.ZOOKEEPER, "done"),
        (group("o", "o"), Mode.ZOOKEEPER, "done"),
    ],
)
def test_the_mode(seen: GroupSeen, mode: Mode, expected: str) -> None:
    assert verdict(set_mode(observations(seen), SPEC, mode)) == expected


def test_a_person_may_set_the_mode_back_without_the_members_in_kafka() -> None:
    unread = group("m", "m", "kafka", kafka=None)
    assert verdict(set_mode(observations(unread), SPEC, Mode.ZOOKEEPER, blind=True)) == "set mode"
    assert verdict(set_mode(observations(group("p", "m", "kafka")), SPEC, Mode.ZOOKEEPER, blind=True)) == "never K58"
    assert verdict(set_mode(observations(group("m", "m", zk=None)), SPEC, Mode.ZOOKEEPER, blind=True)) == "wait K30"


@pytest.mark.parametrize(
    ("seen", "known"),
    [
        (GroupSeen("g", ZkGroup(), KafkaGroup("Dead"), {}, {}), False),
        (GroupSeen("g", ZkGroup(), None, None, None), False),
        (GroupSeen("g", ZkGroup(), KafkaGroup("Empty"), {}, {}), True),
        (GroupSeen("g", ZkGroup(), KafkaGroup("Dead"), {T0: 1}, {}), True),
        (GroupSeen("g", ZkGroup(offsets={T0: StoredOffset(1, 0.0)}), KafkaGroup("Dead"), {}, {}), True),
        (group("o", ""), True),
    ],
)
def test_a_group_that_neither_side_knows(seen: GroupSeen, known: bool) -> None:
    assert codes(unknown_group(seen)) == ([] if known else ["F09"])


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
    found = not_in_file([GroupSpec("a", (), wave=1), GroupSpec("b", (), wave=2)], wave, names)
    assert [part for part in expected if part in str(found)] == expected
    assert codes(found) == ["F09"] * bool(expected)


@pytest.mark.parametrize(
    ("seen", "goal", "move"),
    [
        (group("p", "p"), Goal.ZOOKEEPER_CONSUMERS, ("", Mode.KAFKA)),
        (group("p", "p", "kafka"), Goal.KAFKA_MODE, ("b", MIGRATING)),
        (group("p", "m", "kafka"), Goal.ZOOKEEPER_CONSUMERS, ("a", MIGRATING)),
        (group("m", "m", "kafka"), Goal.KAFKA_MODE, None),
        (group("m", "m", "kafka"), Goal.ZOOKEEPER_MODE, ("", Mode.ZOOKEEPER)),
        (group("m", "m"), Goal.ZOOKEEPER_MODE, None),
        (group("m", "m"), Goal.ZOOKEEPER_CONSUMERS, ("b", OLD)),
        (group("m", "o"), Goal.ZOOKEEPER_CONSUMERS, ("a", OLD)),
        (group("m", "o"), Goal.ZOOKEEPER_MODE, None),
        (group("o", "o"), Goal.ZOOKEEPER_CONSUMERS, None),
        (group("o", ""), Goal.ZOOKEEPER_CONSUMERS, ("b", OLD)),
        (group("m", "", "kafka"), Goal.KAFKA_MODE, ("b", MIGRATING)),
        (group("o", ""), Goal.ZOOKEEPER_MODE, ("b", OLD)),
        (group("m", ""), Goal.ZOOKEEPER_CONSUMERS, ("b", OLD)),
    ],
)
def test_the_next_move_back(seen: GroupSeen, goal: Goal, move: object) -> None:
    assert next_rollback(observations(seen), SPEC, goal) == move


@pytest.mark.parametrize(
    ("seen", "forward", "back"),
    [
        (group("o", "o"), ["a, b become migrating", "mode kafka", "a, b become Kafka consumers", "leftovers"], []),
        (group("m", "o"), ["b become migrating", "mode kafka", "a, b become Kafka consumers"], ["a become ZooKeeper consumers"]),
        (
            group("p", "m", "kafka"),
            ["b become Kafka consumers", "leftovers"],
            ["a become migrating", "mode zookeeper", "b, a become ZooKeeper consumers"],
        ),
        (group("p", "p", "kafka"), ["leftovers"], ["b, a become migrating", "mode zookeeper"]),
        (group("p", "p"), [], ["mode kafka, b, a become migrating", "mode zookeeper"]),
    ],
)
def test_the_plan_in_words(seen: GroupSeen, forward: list[str], back: list[str]) -> None:
    for goal, expected in ((None, forward), (Goal.ZOOKEEPER_CONSUMERS, back)):
        said = plan(seen, SPEC, goal)
        assert all(part in said for part in expected), said
        assert expected or "Nothing to do" in said


def test_strangers_stand_in_the_plan_where_they_keep_the_group_from_it() -> None:
    strange = changed(group("m", "m"), registrations={"g_a": STATIC, "g_b": STATIC, "g_c": STATIC})
    assert "[K56]" in plan(strange, SPEC)
    assert "b, a become ZooKeeper consumers" in plan(strange, SPEC, Goal.ZOOKEEPER_CONSUMERS)


@pytest.mark.parametrize(
    ("seen", "expected", "off"),
    [
        (group("p", "p", "kafka"), "clean up", False),
        (group("p", "p"), "done", True),
        (group("m", "p", "kafka"), "never K58", False),
        (group("p", ""), "done", False),
        (group("p", "", "kafka"), "wait K55", False),
        (group("", "", "kafka"), "wait K55", False),
        (group("", ""), "done", True),  # its application is stopped
        (group("", "", committed={}), "done", False),
        (group("", "", committed={T0: 10, T1: 9}), "done", False),
        (group("", "", committed=None), "wait K30", False),
        (group("p", "p", kafka=None), "wait K30", False),
    ],
)
def test_leftovers(seen: GroupSeen, expected: str, off: bool) -> None:
    assert verdict(clean_up(seen, SPEC)) == expected
    assert moved(seen, SPEC) is off


@pytest.mark.parametrize(
    ("name", "instance"),
    [
        ("g_a", "a"), ("g_a-1795226356133-c69eb14b", "a"), ("a", "a"), ("a-rdkafka", "a"), ("g_b-0", "b"),
        ("g_g_c", "g_c"), ("g_c", "g_c"), ("g_c-rdkafka", "g_c"), ("g_ab", None), ("rdkafka", None), ("b2", None), ("other_a", None),
    ],
)  # fmt: skip
def test_who_is_which_instance(name: str, instance: str | None) -> None:
    found = map_instances([MemberSeen(name, OLD)], GroupSpec("g", (*SPEC.instances, InstanceSpec("g_c"))))
    assert [each for each, members in found.instances.items() if members] == ([instance] if instance else [])
    assert bool(found.unmapped) is (instance is None)


@pytest.mark.parametrize(
    ("seen", "target", "stays"),
    [
        (group("p", "p", "kafka"), MIGRATING, True),
        (group("p", "m", "kafka"), MIGRATING, True),
        (group("p", "m"), MIGRATING, False),  # it died as a migrating one, and Kafka keeps it for its session
        (group("p", "p"), MIGRATING, True),  # cleaned up
        (group("p", "p", "kafka"), PLAIN, False),
        (group("m", "p", "kafka"), MIGRATING, False),
        (group("o", "m"), MIGRATING, False),
        (group("", "p", "kafka"), MIGRATING, False),
        (group("p", "p", "kafka", zk=None), MIGRATING, False),
        (None, MIGRATING, False),
    ],
)
def test_an_instance_that_has_come_further_stays(seen: GroupSeen | None, target: MemberKind, stays: bool) -> None:
    assert isinstance(already_beyond(seen, SPEC, "a", target), Done) is stays


@pytest.mark.parametrize(
    ("seen", "mode", "stays"),
    [
        (group("p", "p"), Mode.KAFKA, True),
        (group("p", "p", "kafka"), Mode.KAFKA, True),
        (group("p", "p"), Mode.ZOOKEEPER, False),
        (group("p", "m"), Mode.KAFKA, False),
        (group("p", ""), Mode.KAFKA, False),
        (group("m", "m"), Mode.KAFKA, False),
        (group("p", "p", kafka=None), Mode.KAFKA, False),
        (None, Mode.KAFKA, False),
    ],
)
def test_a_group_of_plain_consumers_is_given_no_mode(seen: GroupSeen | None, mode: Mode, stays: bool) -> None:
    assert isinstance(mode_not_needed(seen, SPEC, mode), Done) is stays


@pytest.mark.parametrize(
    ("window", "hour", "minute", "expected"),
    [
        ("", 3, 0, True), ("22:00-04:00", 22, 0, True), ("22:00-04:00", 3, 59, True), ("22:00-04:00", 4, 0, False),
        ("22:00-04:00", 12, 0, False), ("08:00-10:30", 10, 29, True), ("08:00-10:30", 10, 30, False), ("05:00-05:00", 1, 1, True),
    ],
)  # fmt: skip
def test_windows(window: str, hour: int, minute: int, expected: bool) -> None:
    assert is_open(window, datetime(2026, 11, 22, hour, minute)) is expected  # noqa: DTZ001


def test_waves() -> None:
    assert [other_wave(asked, 2) for asked in (None, 2, "2", 1, 0)] == [False, False, False, True, True]
    assert not other_wave(1, 0)


def test_waits_and_refusals_say_what_to_do() -> None:
    never = switch(observations(group("o", "o")), SPEC, "a", PLAIN)
    assert isinstance(never, Refuse)
    assert all(reason.meaning and reason.next_step for reason in never.reasons)
    assert isinstance(switch(observations(group("o", "")), SPEC, "a", MIGRATING), Wait)
