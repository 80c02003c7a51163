"""What one process remembers of a cutover: since when nothing was read or nobody was there, what was asked, and what came back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.groups.cutover_state import (
    SHARE,
    STOPPED,
    CutoverState,
    InstanceRequest,
    QuietTimer,
    is_kafka_used,
    list_zookeeper_members,
)
from airflow_provider_kmigrate.core.groups.members import ABSENT
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup, StoredOffset
from tests.core.group_facts import KAFKA, SPEC, T0, T1, ZOOKEEPER, changed, group

NOBODY = group("", "", None, kafka=KafkaGroup("Empty"))
LEAVING = group("", "", None, kafka=KafkaGroup("PreparingRebalance"))
UNREAD = GroupSeen("g", NOBODY.zk)


def add(*observations: GroupSeen | None, state: CutoverState | None = None) -> CutoverState:
    """Add observations, a second apart."""
    state = state or CutoverState()
    for at, observed in enumerate(observations):
        state = state.add(observed, float(at), SPEC)
    return state


@pytest.mark.parametrize(
    ("observations", "unread_at"),
    [((NOBODY, UNREAD, None), 1.0), ((UNREAD, NOBODY), None), ((UNREAD, NOBODY, UNREAD), 2.0), ((NOBODY,), None)],
)
def test_what_is_unread_is_so_since_the_first_observation_without_a_break(
    observations: tuple[GroupSeen | None, ...], unread_at: float | None
) -> None:
    assert add(*observations).unread_at == unread_at


def test_it_begins_with_the_first_complete_observation() -> None:
    assert add(None, UNREAD).started_at is None
    assert add(None, NOBODY, NOBODY).started_at == 1.0


@pytest.mark.parametrize(
    "somebody",
    [
        group("z", "", None, kafka=KafkaGroup("Empty")),
        changed(NOBODY, progress={"g_a": None}),
        changed(NOBODY, owners={T0: "g_a-0"}),
        group("k", ""),
        LEAVING,
        UNREAD,
        replace(NOBODY, committed=None),
        replace(NOBODY, zk=None),
        None,
    ],
)
def test_nobody_is_there_only_if_no_side_shows_anyone(somebody: GroupSeen | None) -> None:
    assert add(NOBODY, NOBODY, NOBODY).quiet.reads == 3
    assert add(somebody, somebody, somebody).quiet.reads == 0
    assert add(NOBODY, NOBODY, somebody, NOBODY).quiet == QuietTimer(add(NOBODY).quiet.offsets, 3.0, 1)


def test_kafka_is_quiet_whatever_zookeeper_has() -> None:
    old = group("z", "z", None, kafka=KafkaGroup("Empty"))
    assert add(old, replace(old, zk=None)).quiet_in_kafka.reads == 2
    assert add(group("k", "k")).quiet_in_kafka.reads == 0


def test_the_quiet_time_has_several_observations_and_begins_again_when_an_offset_moves() -> None:
    quiet = add(NOBODY, NOBODY).quiet
    assert not quiet.holds(100.0, 1.0)
    quiet = add(NOBODY, NOBODY, NOBODY).quiet
    assert [quiet.holds(at, 5.0) for at in (4.9, 5.0)] == [False, True]
    moved = changed(NOBODY, offsets={T0: StoredOffset(11, 0.0), T1: StoredOffset(10, 0.0)})
    quiet = add(NOBODY, NOBODY, NOBODY, moved).quiet
    assert (quiet.since, quiet.reads, quiet.changes) == (3.0, 1, 1)
    assert add(NOBODY, moved, LEAVING, moved).quiet.changes == 1, "what moved before a member came was seen already"


def test_an_instance_was_stopped_if_it_was_asked_and_has_no_member() -> None:
    state = CutoverState().with_requests(["a", "b"], STOPPED, 0.0, {})
    one_left = add(group("z", "", None, kafka=KafkaGroup("Empty")), state=state)
    assert one_left.stopped == {"b"}
    assert add(group("z", "z", None, kafka=KafkaGroup("Empty")), state=one_left).stopped == {"b"}, "it is back"
    assert add(NOBODY, state=CutoverState().with_requests(["a"], KAFKA, 0.0, {})).stopped == set()
    assert one_left.with_requests(["b"], STOPPED, 1.0, {}).stopped == set()
    assert add(UNREAD, state=state).stopped == set()


def test_a_request_counts_its_tries_until_another_kind_is_asked_for() -> None:
    state = CutoverState().with_requests(["a"], STOPPED, 0.0, {"a": "exit code 1"}).with_requests(["a"], STOPPED, 7.0, {}, {"a"})
    assert state.asked("a", STOPPED) == InstanceRequest(STOPPED, 7.0, is_unknown=True, tries=2)
    assert (state.asked("a", KAFKA), state.asked("b", STOPPED)) == (None, None)
    again = state.with_requests(["a"], KAFKA, 8.0, {}).asked("a", KAFKA)
    assert again == InstanceRequest(KAFKA, 8.0)
    assert [
        asked.is_done for asked in (again, InstanceRequest(KAFKA, 0.0, "no"), InstanceRequest(KAFKA, 0.0, is_unknown=True))
    ] == [
        True,
        False,
        False,
    ]


def test_what_refused_is_asked_again_after_a_while() -> None:
    refused = CutoverState().with_requests(["a"], STOPPED, 10.0, {"a": "exit code 1"})
    said = [refused.is_due("a", STOPPED, at) for at in (10.0 + ABSENT - 1, 10.0 + ABSENT)]
    assert said == [False, True]
    assert not CutoverState().with_requests(["a"], STOPPED, 10.0, {}).is_due("a", STOPPED, 10.0 + ABSENT)
    assert refused.is_due("a", ZOOKEEPER, 10.0)
    assert refused.is_due("b", STOPPED, 10.0)


def test_it_is_late_a_time_after_the_last_request_or_after_its_beginning() -> None:
    limit = SHARE * SPEC.switch_timeout
    assert not CutoverState().is_late(1e6, SPEC), "it has not begun"
    begun = add(NOBODY)
    assert [begun.is_late(at, SPEC) for at in (limit - 0.1, limit)] == [False, True]
    asked = begun.with_requests(["a"], STOPPED, 3.0, {}).with_requests(["b"], STOPPED, 9.0, {})
    assert [asked.is_late(at, SPEC) for at in (limit + 8.9, limit + 9.0)] == [False, True]


@pytest.mark.parametrize(
    ("state", "is_quiet"),
    [
        (add(NOBODY), True),
        (add(replace(NOBODY, zk=None)), True),
        (add(group("k", "k")), False),
        (add(NOBODY).with_requests(["a"], STOPPED, 0.0, {}), True),
        (add(NOBODY).with_requests(["a"], STOPPED, 0.0, {}).with_requests(["b"], KAFKA, 0.0, {}), False),
    ],
)
def test_it_observes_more_often_while_nothing_starts(state: CutoverState, is_quiet: bool) -> None:
    assert state.is_quiet is is_quiet


def test_a_side_that_was_not_read_shows_no_member() -> None:
    assert (list_zookeeper_members(GroupSeen("g")), is_kafka_used(GroupSeen("g"))) == ([], False)
    assert list_zookeeper_members(changed(NOBODY, progress={"g_a": None}, owners={T0: "g_b-0"})) == ["g_a"]
    assert [is_kafka_used(observed) for observed in (NOBODY, LEAVING, group("k", "k"))] == [False, True, True]
