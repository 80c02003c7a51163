"""The assignors on examples worked out by hand, their laws on random groups; the old consumer's own classes judge in tests/old_consumer."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import (
    Assigned,
    Frozen,
    KafkaMember,
    Strategy,
    assign,
    assign_streams,
    foreign_partitions,
    java_order,
)
from airflow_provider_kmigrate.core.member.registration import (
    Flaw,
    Registration,
    Unreadable,
    consumer_of,
    read_registration,
)


def static(**topics: int) -> Registration:
    return Registration("static", topics)


def assigned(strategy: Strategy, registrations: Mapping[str, Registration], topics: Mapping[str, Collection[int]]) -> Assigned:
    found = assign(strategy, registrations, topics)
    assert isinstance(found, Assigned)
    return found


def rows(found: Assigned) -> dict[str, str]:
    return {f"{place.topic}-{place.partition}": owner for place, owner in found.owners.items()}


def test_range_gives_consecutive_shares_and_the_rest_to_the_first() -> None:
    group = ({"b": static(t=1), "a": static(t=2)}, {"t": range(8)})

    assert rows(assigned(Strategy.RANGE, *group)) == {
        **dict.fromkeys(("t-0", "t-1", "t-2"), "a-0"),
        **dict.fromkeys(("t-3", "t-4", "t-5"), "a-1"),
        **dict.fromkeys(("t-6", "t-7"), "b-0"),
    }


def test_range_orders_streams_as_text() -> None:
    """a-10 comes before a-2, so with 11 streams and 12 partitions the one more goes to a-0, and a-10 owns partition 3."""
    owners = rows(assigned(Strategy.RANGE, {"a": static(t=11)}, {"t": range(12)}))
    assert [owners[f"t-{i}"] for i in range(5)] == ["a-0", "a-0", "a-1", "a-10", "a-2"]


def test_more_streams_than_partitions_leave_some_without() -> None:
    assert rows(assigned(Strategy.RANGE, {"a": static(t=3)}, {"t": (0,)})) == {"t-0": "a-0"}


def test_round_robin_goes_by_hash_and_skips_who_does_not_want_the_topic() -> None:
    """hash("t-0") .. hash("t-2") ascend by one; "u-" comes after "t-"."""
    group = ({"a": static(t=1), "b": static(t=1, u=1)}, {"t": range(3), "u": range(2)})
    assert rows(assigned(Strategy.ROUND_ROBIN, *group)) == {"t-0": "a-0", "t-1": "b-0", "t-2": "a-0", "u-0": "b-0", "u-1": "b-0"}


def test_hashes_are_signed() -> None:
    """hash("topic-0") is below zero and hash("a-0") above: the longer name comes first."""
    group = ({"a": static(a=1, topic=1), "b": static(a=1, topic=1)}, {"a": (0,), "topic": (0,)})
    assert rows(assigned(Strategy.ROUND_ROBIN, *group)) == {"topic-0": "a-0", "a-0": "b-0"}


def test_the_two_key_formats_disagree() -> None:
    """Twelve partitions, three streams: as measured, no owner is the same."""
    group = ({"a": static(topic=3)}, {"topic": range(12)})
    new, old = (rows(assigned(strategy, *group)) for strategy in (Strategy.ROUND_ROBIN, Strategy.ROUND_ROBIN_0_10))
    assert new.keys() == old.keys()
    assert new != old


def test_ties_of_hashes_are_reported() -> None:
    """ "Aa" and "BB" have one hash in Java."""
    group = ({"a": static(Aa=1, BB=1)}, {"Aa": (0,), "BB": (0,)})
    assert assigned(Strategy.ROUND_ROBIN, *group).ties == ((TopicPartition("Aa", 0), TopicPartition("BB", 0)),)
    assert assigned(Strategy.RANGE, *group).ties == ()


def test_java_orders_text_by_utf_16() -> None:
    assert sorted(["\uffff", "\U0001f600", "b", "a-2", "a-10"], key=java_order) == ["a-10", "a-2", "b", "\U0001f600", "\uffff"]


@pytest.mark.parametrize("strategy", [Strategy.RANGE, Strategy.ROUND_ROBIN])
def test_a_topic_that_does_not_exist_hinders_no_member(strategy: Strategy) -> None:
    found = assigned(strategy, {"a": static(t=1, gone=1), "b": static(t=1)}, {"t": range(2)})
    assert rows(found) == {"t-0": "a-0", "t-1": "b-0"}


@pytest.mark.parametrize(
    ("entry", "flaw"),
    [(read_registration(b"t1"), Flaw.NOT_JSON), (Registration("white_list", {"*": 1}), Flaw.BAD_WILDCARD)],
)
@pytest.mark.parametrize("strategy", list(Strategy))
def test_one_bad_registration_freezes_all(strategy: Strategy, entry: Registration | Unreadable, flaw: Flaw) -> None:
    found = assign(strategy, {"a": static(t=1), "bad": entry}, {"t": range(2)})
    assert isinstance(found, Frozen)
    assert {name: each.flaw for name, each in found.flaws.items()} == {"bad": flaw}


def test_an_empty_group_owns_nothing() -> None:
    for strategy in Strategy:
        assert assigned(strategy, {}, {"t": range(2)}) == Assigned({})


registrations = st.builds(
    Registration,
    st.just("static"),
    st.dictionaries(st.sampled_from(["t", "u", "topic"]), st.integers(1, 12), max_size=3),
) | st.builds(
    Registration,
    st.sampled_from(["white_list", "black_list"]),
    st.dictionaries(st.sampled_from(["t", "t|u", ".*", "to.*"]), st.integers(1, 3), min_size=1, max_size=1),
)
groups = st.dictionaries(st.sampled_from(["g_a-1", "g_a-10", "g_b-1", "g_ü-1", "g_\U0001f600"]), registrations, max_size=5)
existing = st.fixed_dictionaries({name: st.integers(1, 30).map(range) for name in ("t", "u", "topic")})


@settings(deadline=None)
@given(groups, existing, st.sampled_from(Strategy), st.randoms(use_true_random=False))
def test_every_wanted_partition_has_one_owner_who_wants_it(
    group: dict[str, Registration], partitions: dict[str, range], strategy: Strategy, rng: random.Random
) -> None:
    found = assigned(strategy, group, partitions)
    shuffled = list(group.items())
    rng.shuffle(shuffled)

    wanted = {name: _wanted(entry) for name, entry in group.items()}
    topics = set().union(*wanted.values())
    assert set(found.owners) == {TopicPartition(t, p) for t in topics for p in partitions[t]}
    assert all(place.topic in wanted[consumer_of(owner)] for place, owner in found.owners.items())
    assert assigned(strategy, dict(shuffled), partitions) == found, "the order in which members are read matters"


def _wanted(entry: Registration) -> set[str]:
    """The wildcards above, by hand."""
    everything = {"t": {"t"}, "t|u": {"t", "u"}, ".*": {"t", "u", "topic"}, "to.*": {"topic"}}
    if entry.pattern == "static":
        return set(entry.subscription)
    (wildcard,) = entry.subscription
    return everything[wildcard] if entry.pattern == "white_list" else {"t", "u", "topic"} - everything[wildcard]


@given(st.integers(1, 5), st.integers(1, 60))
def test_range_is_even_to_one(streams: int, partitions: int) -> None:
    owners = assigned(Strategy.RANGE, {"a": static(t=streams)}, {"t": range(partitions)}).owners
    shares = [Counter(owners.values())[f"a-{i}"] for i in range(streams)]
    assert max(shares) - min(shares) <= 1


def places(topic: str, *partitions: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, partition) for partition in partitions)


def test_a_kafka_members_partitions_go_round_its_streams() -> None:
    """The KIP: relative partitions of each topic, in order, round the streams that want the topic."""
    found = assign_streams("c", {"t": 2, "u": 1}, places("t", 3, 8, 5) | places("u", 7))

    assert found == {("t", 3): "c-0", ("t", 5): "c-1", ("t", 8): "c-0", ("u", 7): "c-0"}


def test_a_partition_of_a_topic_that_it_does_not_want_is_still_somebodys() -> None:
    assert assign_streams("c", {}, places("t", 1)) == {("t", 1): "c-0"}


def test_members_are_matched_by_their_client_id() -> None:
    members = [
        KafkaMember("ours-uuid", "g_a", places("t", 0, 1)),
        KafkaMember("plain-uuid", "rdkafka", places("t", 2)),
        KafkaMember("twin-1", "g_b", places("t", 3)),
        KafkaMember("twin-2", "g_b", places("t", 4)),
    ]
    assert foreign_partitions(members, {"g_a", "g_b"}) == places("t", 2, 3, 4)


def test_a_member_that_changes_its_assignors_is_in_the_group_twice_for_a_moment() -> None:
    both = [KafkaMember("old", "g_a", places("t", 0), "/10.0.0.1"), KafkaMember("new", "g_a", places("t", 1), "/10.0.0.1")]
    third = KafkaMember("third", "g_a", places("t", 2), "/10.0.0.1")
    elsewhere = KafkaMember("elsewhere", "g_a", places("t", 3), "/10.0.0.2")

    assert foreign_partitions(both, {"g_a"}) == frozenset()
    assert foreign_partitions([*both, third], {"g_a"}) == places("t", 0, 1, 2)
    assert foreign_partitions([both[0], elsewhere], {"g_a"}) == places("t", 0, 3)


def test_a_wildcard_takes_kafkas_own_topics_only_where_the_application_asks_for_them() -> None:
    registrations = {"g_a": Registration("white_list", {".*": 1})}
    topics = {"orders": (0,), "__consumer_offsets": (0,)}
    shown = [assign(Strategy.RANGE, registrations, topics), assign(Strategy.RANGE, registrations, topics, internal=True)]
    assert [{partition.topic for partition in found.owners} for found in shown if isinstance(found, Assigned)] == [
        {"orders"},
        {"orders", "__consumer_offsets"},
    ]
