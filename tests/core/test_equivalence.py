"""Each difference has its kind; what is explained or on its way does not count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.equivalence import (
    Difference,
    DifferenceKind,
    PartitionMetadata,
    TopicMetadata,
    compare,
    compare_settings,
    lasting_differences,
    reasons,
)

FIRST, SECOND = PartitionMetadata((0, 1, 2), 0, (0, 1, 2)), PartitionMetadata((1, 2, 0), 1, (1, 2))
ORDERS = TopicMetadata("orders", "q1Sh-9_ISia_zwGINzRvyQ", {0: FIRST, 1: SECOND}, {"retention.ms": "1000"})
ZOOKEEPER = {"orders": ORDERS}


def kinds(changed: TopicMetadata) -> list[tuple[DifferenceKind, str]]:
    return [(found.kind, found.entity) for found in compare(ZOOKEEPER, {changed.name: changed})]


def test_equal_sides_have_no_difference() -> None:
    other_isr = replace(ORDERS, partitions={0: replace(FIRST, isr=(0,)), 1: SECOND})
    assert compare(ZOOKEEPER, {"orders": other_isr}) == ()
    assert compare({}, {}) == ()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (replace(ORDERS, topic_id="other"), [(DifferenceKind.TOPIC_ID, "orders")]),
        (replace(ORDERS, topic_id=None), [(DifferenceKind.TOPIC_ID, "orders")]),
        (replace(ORDERS, partitions={0: FIRST}), [(DifferenceKind.PARTITIONS, "orders")]),
        (replace(ORDERS, partitions={0: replace(FIRST, replicas=(1, 0, 2)), 1: SECOND}), [(DifferenceKind.REPLICAS, "orders-0")]),
        (replace(ORDERS, partitions={0: FIRST, 1: replace(SECOND, leader=-1)}), [(DifferenceKind.LEADER, "orders-1")]),
        (replace(ORDERS, configs={"retention.ms": "2000"}), [(DifferenceKind.TOPIC_CONFIG, "orders retention.ms")]),
        (replace(ORDERS, configs={}), [(DifferenceKind.TOPIC_CONFIG, "orders retention.ms")]),
        (replace(ORDERS, name="new"), [(DifferenceKind.EXTRA_TOPIC, "new"), (DifferenceKind.MISSING_TOPIC, "orders")]),
    ],
    ids=["id", "unknown id", "partitions", "replicas", "leader", "setting", "setting lost", "name"],
)
def test_one_change_is_one_difference(changed: TopicMetadata, expected: list[tuple[DifferenceKind, str]]) -> None:
    assert kinds(changed) == expected


def test_topics_without_an_id_on_both_sides_are_not_equal() -> None:
    nameless = {"orders": replace(ORDERS, topic_id=None)}
    assert [found.kind for found in compare(nameless, nameless)] == [DifferenceKind.TOPIC_ID]


def test_a_pending_deletion_explains_a_missing_topic_and_nothing_else() -> None:
    (missing,) = compare(ZOOKEEPER, {}, pending_deletions=["orders"])
    (extra,) = compare({}, ZOOKEEPER, pending_deletions=["orders"])

    assert (missing.kind, missing.counts) == (DifferenceKind.MISSING_TOPIC, False)
    assert (extra.kind, extra.counts) == (DifferenceKind.EXTRA_TOPIC, True)
    assert reasons([missing]) == ()


def test_an_entity_without_settings_is_none_at_all() -> None:
    assert compare_settings(DifferenceKind.TOPIC_CONFIG, {"user a": {}}, {}) == ()
    assert compare_settings(DifferenceKind.TOPIC_CONFIG, {"user a": {"rate": "1"}}, {}) == (
        Difference(DifferenceKind.TOPIC_CONFIG, "user a rate", "1", "absent"),
    )


def test_only_what_two_comparisons_show_lasts() -> None:
    moving = Difference(DifferenceKind.LEADER, "orders-0", "0", "1")
    stays = Difference(DifferenceKind.TOPIC_CONFIG, "orders retention.ms", "1", "2")

    assert lasting_differences([moving, stays], [replace(moving, zookeeper="2"), stays]) == (stays,)
    assert lasting_differences([], [stays]) == ()


def test_differences_are_summed_up_by_kind_with_examples() -> None:
    found = compare({f"t{i}": replace(ORDERS, name=f"t{i}") for i in range(7)}, {"new": ORDERS})

    missing, extra = reasons(found, shown=2)

    assert (missing.code, extra.code) == ("E01", "E02")
    assert missing.text.startswith("7 ")
    assert "t1" in missing.text
    assert "t2" not in missing.text


PARTITIONS = st.builds(PartitionMetadata, st.permutations((0, 1, 2)).map(tuple), st.integers(-1, 2))
TOPICS = st.dictionaries(
    st.sampled_from("abc"),
    st.builds(
        TopicMetadata,
        st.just("t"),
        st.sampled_from(["x", "y"]),
        st.dictionaries(st.integers(0, 2), PARTITIONS),
        st.dictionaries(st.sampled_from("kl"), st.sampled_from("12")),
    ),
)


@settings(max_examples=100, deadline=None)
@given(TOPICS, TOPICS)
def test_nothing_is_found_exactly_where_both_sides_are_equal(
    one: dict[str, TopicMetadata], other: dict[str, TopicMetadata]
) -> None:
    found = compare(one, other)

    assert (found == ()) == (one == other)
    assert len(found) == len(compare(other, one))
