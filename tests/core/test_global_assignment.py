"""The assignment of the whole group by thread, in both modes, and each reason for which it is not known."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import KafkaMember, Strategy, assign
from airflow_provider_kmigrate.core.member.messages import GroupView
from airflow_provider_kmigrate.core.member.registration import Flaw, Registration, Unreadable
from airflow_provider_kmigrate.core.member.state import Settings, UnknownAssignment, compute_global_assignment

ONE, TWO = Registration("static", {"t": 1}), Registration("static", {"t": 2})
T = [TopicPartition("t", number) for number in range(6)]
SETTINGS = Settings("g_a", ONE)


def view(mode: bytes | None = None, **fields: object) -> GroupView:
    values: dict[str, object] = {
        "registrations": {"g_a": ONE, "g_b": TWO},
        "migrating": frozenset({"g_a", "g_b"}),
        "topics": {"t": range(6)},
    }
    return GroupView(1, 0, mode, **{**values, **fields})  # type: ignore[arg-type]


def member(name: str, *partitions: TopicPartition, host: str = "/h", life: str = "") -> KafkaMember:
    return KafkaMember(f"{name}{life}", name, frozenset(partitions), host)


A, B = member("g_a", *T[:3]), member("g_b", *T[3:])


def test_in_zookeeper_mode_it_is_what_every_zookeeper_consumer_computes() -> None:
    assigned = assign(Strategy.RANGE, view().registrations, view().topics)
    owners = compute_global_assignment(SETTINGS, view(), (), None)
    assert owners == getattr(assigned, "owners", None)
    assert set(owners.values()) == {"g_a-0", "g_b-0", "g_b-1"}  # type: ignore[union-attr]


def test_in_kafka_mode_each_share_is_split_over_the_members_threads() -> None:
    owners = compute_global_assignment(SETTINGS, view(b"kafka"), T[:3], [A, B])
    assert owners == {T[0]: "g_a-0", T[1]: "g_a-0", T[2]: "g_a-0", T[3]: "g_b-0", T[4]: "g_b-1", T[5]: "g_b-0"}


def test_a_kafka_consumer_has_no_threads_and_stands_for_itself() -> None:
    only_a = view(b"kafka", registrations={"g_a": ONE}, migrating=frozenset({"g_a"}))
    owners = compute_global_assignment(SETTINGS, only_a, T[:3], [A, member("app7", *T[3:])])
    assert owners == {**dict.fromkeys(T[:3], "g_a-0"), **dict.fromkeys(T[3:], "app7")}


def test_a_member_that_changes_its_assignors_is_in_the_group_twice_and_one_member() -> None:
    twice = [member("g_a", T[0], life="1"), member("g_a", *T[1:3], life="2"), B]
    owners = compute_global_assignment(SETTINGS, view(b"kafka"), T[:3], twice)
    assert owners == compute_global_assignment(SETTINGS, view(b"kafka"), T[:3], [A, B])


BAD = Unreadable(Flaw.EMPTY, "")
WILD = Registration("white_list", {"(": 1})


@pytest.mark.parametrize(
    ("observed", "share", "members", "expected"),
    [
        (None, (), None, UnknownAssignment.NOT_OBSERVED),
        (view(registrations={"g_b": ONE}), (), None, UnknownAssignment.NOT_OBSERVED),
        (view(registrations={"g_a": ONE, "g_b": BAD}), (), None, UnknownAssignment.FROZEN),
        (view(foreign=frozenset({T[0]})), (), None, UnknownAssignment.FOREIGN),
        (view(b"kafka"), T[:3], None, UnknownAssignment.NO_ANSWER),
        (view(b"kafka"), T[:2], [A, B], UnknownAssignment.OLDER),
        (view(b"kafka"), T[:3], [A], UnknownAssignment.MEMBER_MISSING),
        (view(b"kafka", migrating=frozenset({"g_a", "g_b", "g_c"})), T[:3], [A, B, member("g_c")], UnknownAssignment.MEMBER_MISSING),
        (view(b"kafka", registrations={"g_a": ONE, "g_b": BAD}), T[:3], [A, B], UnknownAssignment.FROZEN),
        (view(b"kafka", registrations={"g_a": ONE, "g_b": WILD}), T[:3], [A, B], UnknownAssignment.FROZEN),
    ],
)  # fmt: skip
def test_what_is_not_certain_is_unknown(
    observed: GroupView | None, share: list[TopicPartition], members: list[KafkaMember] | None, expected: UnknownAssignment
) -> None:
    assert compute_global_assignment(SETTINGS, observed, share, members) is expected


def test_partitions_whose_order_only_scala_knows_are_unknown() -> None:
    """Aa and BB have one hash in Java."""
    both = Registration("static", {"Aa": 1, "BB": 1})
    alike = view(registrations={"g_a": both, "g_b": both}, topics={"Aa": (0,), "BB": (0,)})
    settings = Settings("g_a", both, Strategy.ROUND_ROBIN)
    assert compute_global_assignment(settings, alike, (), None) is UnknownAssignment.TIES
