"""Each difference has its kind; what is explained or on its way does not count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Entities, Inventory, Stored, StoredKind
from airflow_provider_kmigrate.core.migration.equivalence import (
    Difference,
    DifferenceKind,
    PartitionMetadata,
    TopicMetadata,
    compare_settings,
    compare_topics,
    describe_changes,
    find_changes,
    list_unknown_changes,
    persisting_differences,
    summarize_differences,
)

FIRST, SECOND = PartitionMetadata((0, 1, 2), 0, (0, 1, 2)), PartitionMetadata((1, 2, 0), 1, (1, 2))
ORDERS = TopicMetadata("orders", "q1Sh-9_ISia_zwGINzRvyQ", {0: FIRST, 1: SECOND}, {"retention.ms": "1000"})
ZOOKEEPER = {"orders": ORDERS}


def kinds(changed: TopicMetadata) -> list[tuple[DifferenceKind, str]]:
    return [(found.kind, found.entity) for found in compare_topics(ZOOKEEPER, {changed.name: changed})]


def test_equal_sides_have_no_difference() -> None:
    other_isr = replace(ORDERS, partitions={0: replace(FIRST, isr=(0,)), 1: SECOND})
    assert compare_topics(ZOOKEEPER, {"orders": other_isr}) == ()
    assert compare_topics({}, {}) == ()


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
    assert [found.kind for found in compare_topics(nameless, nameless)] == [DifferenceKind.TOPIC_ID]


def test_a_pending_deletion_explains_a_missing_topic_and_nothing_else() -> None:
    (missing,) = compare_topics(ZOOKEEPER, {}, pending_deletions=["orders"])
    (extra,) = compare_topics({}, ZOOKEEPER, pending_deletions=["orders"])

    assert (missing.kind, missing.is_unexplained) == (DifferenceKind.MISSING_TOPIC, False)
    assert (extra.kind, extra.is_unexplained) == (DifferenceKind.EXTRA_TOPIC, True)
    assert summarize_differences([missing]) == ()


def test_an_entity_without_settings_is_none_at_all() -> None:
    assert compare_settings(DifferenceKind.TOPIC_CONFIG, {"user a": {}}, {}) == ()
    assert compare_settings(DifferenceKind.TOPIC_CONFIG, {"user a": {"rate": "1"}}, {}) == (
        Difference(DifferenceKind.TOPIC_CONFIG, "user a rate", "1", "absent"),
    )


def test_only_a_difference_that_two_comparisons_show_persists() -> None:
    moving = Difference(DifferenceKind.LEADER, "orders-0", "0", "1")
    stays = Difference(DifferenceKind.TOPIC_CONFIG, "orders retention.ms", "1", "2")

    assert persisting_differences([moving, stays], [replace(moving, zookeeper="2"), stays]) == (stays,)
    assert persisting_differences([], [stays]) == ()


def test_differences_are_summed_up_by_kind_with_examples() -> None:
    found = compare_topics({f"t{i}": replace(ORDERS, name=f"t{i}") for i in range(7)}, {"new": ORDERS})

    missing, extra = summarize_differences(found)

    assert (missing.code, extra.code) == ("E01", "E02")
    assert missing.text.startswith("7 ")
    assert "t4" in missing.text
    assert "t5" not in missing.text


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
    found = compare_topics(one, other)

    assert (found == ()) == (one == other)
    assert len(found) == len(compare_topics(other, one))


def changed(zookeeper: dict[str, TopicMetadata], kraft: dict[str, TopicMetadata]) -> list[tuple[DifferenceKind, str, bool]]:
    found = find_changes(ClusterView(0.0, topics=(zookeeper, kraft)), Inventory(0.0, ZOOKEEPER, {}))
    return [(each.kind, each.entity, each.held) for each in found]


NEW = replace(ORDERS, name="new", topic_id="n")
WIDER = replace(ORDERS, partitions={0: FIRST, 1: SECOND, 2: FIRST})
LONGER = replace(ORDERS, configs={"retention.ms": "2000"})
AGAIN = replace(ORDERS, topic_id="again")


@pytest.mark.parametrize(
    ("zookeeper", "kraft", "expected"),
    [
        ([ORDERS], [ORDERS], []),
        ([ORDERS], [replace(ORDERS, partitions={0: replace(FIRST, leader=2), 1: SECOND})], []),
        ([ORDERS, NEW], [ORDERS, NEW], [(DifferenceKind.EXTRA_TOPIC, "new", True)]),
        ([ORDERS], [ORDERS, NEW], [(DifferenceKind.EXTRA_TOPIC, "new", False)]),
        ([ORDERS, replace(NEW, configs={})], [ORDERS, NEW], [(DifferenceKind.EXTRA_TOPIC, "new", False)]),
        ([], [], [(DifferenceKind.MISSING_TOPIC, "orders", True)]),
        ([ORDERS], [], [(DifferenceKind.MISSING_TOPIC, "orders", False)]),
        ([AGAIN], [AGAIN], [(DifferenceKind.TOPIC_ID, "orders", True)]),
        ([ORDERS], [AGAIN], [(DifferenceKind.TOPIC_ID, "orders", False)]),
        ([WIDER], [WIDER], [(DifferenceKind.PARTITIONS, "orders", True)]),
        ([ORDERS], [WIDER], [(DifferenceKind.PARTITIONS, "orders", False)]),
        ([LONGER], [LONGER], [(DifferenceKind.TOPIC_CONFIG, "orders retention.ms", True)]),
        ([ORDERS], [LONGER], [(DifferenceKind.TOPIC_CONFIG, "orders retention.ms", False)]),
        ([replace(LONGER, partitions=WIDER.partitions)], [LONGER], [(DifferenceKind.TOPIC_CONFIG, "orders retention.ms", True)]),
        ([], [LONGER], [(DifferenceKind.TOPIC_CONFIG, "orders retention.ms", False)]),
        ([], [ORDERS], []),  # ZooKeeper lost it: a difference, and no change
    ],
)
def test_a_change_of_a_topic_is_held_if_both_sides_agree_on_it(
    zookeeper: list[TopicMetadata], kraft: list[TopicMetadata], expected: list[tuple[DifferenceKind, str, bool]]
) -> None:
    assert changed(*({topic.name: topic for topic in side} for side in (zookeeper, kraft))) == expected


FORMER: Entities = {"user alice": {"rate": "1"}}
FASTER: Entities = {"user alice": {"rate": "2"}}


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (Stored(FORMER, FORMER), []),
        (Stored(FASTER, FASTER), [("user alice rate", True)]),
        (Stored(FORMER, FASTER), [("user alice rate", False)]),
        (Stored({}, {}), [("user alice rate", True)]),
        (Stored(FORMER, {}), [("user alice rate", False)]),
        (Stored(FASTER, unreported={Stored.EVERY: "no broker reports it"}), [("user alice rate", True)]),
        (Stored(FASTER, unreported={"user alice": "it does not answer"}), [("user alice rate", True)]),
        (Stored(FORMER, unreported={Stored.EVERY: "no broker reports it"}), []),
    ],
)
@pytest.mark.parametrize("kind", sorted(set(StoredKind) - {StoredKind.PRODUCER_IDS}))
def test_a_change_of_a_setting_is_held_if_both_sides_agree_on_it(
    kind: StoredKind, stored: Stored, expected: list[tuple[str, bool]]
) -> None:
    found = find_changes(ClusterView(0.0, stored={kind: stored}), Inventory(0.0, {}, {kind: FORMER}))
    assert [(each.entity, each.held) for each in found] == expected


def test_given_out_producer_ids_are_no_change() -> None:
    given = Stored({"producer ids": {"highest": "2999"}}, {"producer ids": {"highest": "5"}}, {Stored.EVERY: "no request"})
    assert find_changes(ClusterView(0.0, stored={StoredKind.PRODUCER_IDS: given}), Inventory(0.0, {}, {})) == ()


def test_changes_are_counted_by_kind() -> None:
    view = ClusterView(0.0, topics=({}, {f"t{n}": replace(NEW, name=f"t{n}") for n in range(7)} | {"orders": LONGER}))
    text = describe_changes(find_changes(view, Inventory(0.0, ZOOKEEPER, {})))
    assert (
        text
        == "topic settings (1): orders retention.ms (1000 before, 2000 now); topics created (7): t0, t1, t2, t3, t4 and 2 more"
    )


def test_what_cannot_be_seen_to_have_changed_is_named() -> None:
    read = {kind: Stored({}) for kind in StoredKind}
    assert list_unknown_changes(ClusterView(0.0, topics=({}, {}), stored=read)) == ()
    unreported = {**read, StoredKind.QUOTAS: Stored({}, unreported={Stored.EVERY: "no broker is in KRaft mode"})}
    assert list_unknown_changes(ClusterView(0.0, topics=({}, {}), stored=unreported)) == ("quotas (no broker is in KRaft mode)",)
    for kind, value in ((StoredKind.CREDENTIALS, "4096 iterations"), (StoredKind.BROKER_SETTINGS, "(hidden)")):
        (hidden,) = list_unknown_changes(
            ClusterView(0.0, topics=({}, {}), stored={**read, kind: Stored({"x": {"k": value}}, {"x": {"k": value}})})
        )
        assert "hidden settings" in hidden
    assert len(list_unknown_changes(ClusterView(0.0))) == 2
