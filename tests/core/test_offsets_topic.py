"""Fingerprints find every broker's count, as a brute-force model does."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.coordination.registration import java_hash
from airflow_provider_kmigrate.core.offsets_topic import Agreement, magnitude, possible_counts, probe_groups, uniform


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("consumer_group", -306934538),
        ("grüppe", -1233264812),
        ("\U0001f600", 1772899),
        ("\ud800", 55296),
        ("a\0b", 93315),
        ("\uffff\uffff", 2097120),
        ("日本", 835047),
        ("__coord_probe_63", -1424063594),
    ],
)
def test_hashes_are_those_of_java_17(text: str, expected: int) -> None:
    assert java_hash(text) == expected


@pytest.mark.parametrize(
    ("group", "count", "expected"),
    [("polygenelubricants", 50, 0), ("consumer_group", 55, 53), ("test_consumer_group", 65, 17), ("a", 1, 0)],
)
def test_partitions_are_those_of_kafka(group: str, count: int, expected: int) -> None:
    assert magnitude(group) % count == expected


def test_probes_are_distinct_and_recognisable() -> None:
    assert len(set(probe_groups())) == 64
    assert all(name.startswith("__coord_probe_") for name in probe_groups())


def answers_of(count: int, leaders: Mapping[int, int]) -> dict[str, int | None]:
    """What FindCoordinator says on a broker that uses this count."""
    return {group: leaders.get(magnitude(group) % count) for group in probe_groups()}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=70), st.integers(1, 80), st.sets(st.integers(0, 63)))
def test_the_true_count_is_always_possible_and_every_possible_one_explains_the_answers(
    rows: list[int], count: int, unresponsive: set[int]
) -> None:
    leaders = dict(enumerate(rows))
    answers = answers_of(count, leaders) | {f"__coord_probe_{i}": None for i in unresponsive}

    possible = possible_counts(answers, leaders, limit=80)

    heard = {group: broker for group, broker in answers.items() if broker is not None}
    brute_force = {n for n in range(1, 81) if heard and all(answers_of(n, leaders)[group] == heard[group] for group in heard)}
    assert possible == brute_force
    assert not heard or count in possible


@pytest.mark.parametrize("count", [50, 49, 25, 7, 1])
def test_leaders_spread_over_three_brokers_give_the_count_away(count: int) -> None:
    leaders = {p: (p + 2) % 3 for p in range(50)}
    assert possible_counts(answers_of(count, leaders), leaders) == {count}


def test_regular_leaders_cannot_tell_multiples_apart() -> None:
    leaders = {p: p % 3 for p in range(48)}
    assert {24, 48} <= possible_counts(answers_of(48, leaders), leaders)


def test_counts_above_the_limit_are_tried_when_the_topic_has_them() -> None:
    leaders = {p: p % 7 for p in range(300)}
    assert possible_counts(answers_of(300, leaders), leaders, limit=100) == {300}


def test_answers_from_before_a_leader_moved_fit_no_count() -> None:
    leaders = {p: p % 3 for p in range(50)}
    moved = leaders | {p: (leader + 1) % 3 for p, leader in leaders.items() if p < 25}
    assert possible_counts(answers_of(50, leaders), moved) == frozenset()


FIFTY, BOTH = frozenset({50}), frozenset({24, 50})


@pytest.mark.parametrize(
    ("counts", "agreement", "codes"),
    [
        ({0: FIFTY, 1: FIFTY}, Agreement.PROVEN, []),
        ({0: FIFTY, 1: BOTH}, Agreement.DEGENERATE, ["K02"]),
        ({0: FIFTY, 1: frozenset()}, Agreement.UNKNOWN, ["K02"]),
        ({0: FIFTY}, Agreement.UNKNOWN, ["K02"]),
        (None, Agreement.UNKNOWN, ["K02"]),
        ({0: FIFTY, 1: frozenset({25})}, Agreement.BROKEN, ["K01"]),
        ({0: frozenset({25}), 1: frozenset({25})}, Agreement.BROKEN, ["K01", "K01"]),
        ({1: frozenset({25})}, Agreement.BROKEN, ["K01"]),
    ],
    ids=["all", "ambiguous", "empty", "missing", "unread", "not uniform", "uniform but not the topic's", "wrong and missing"],
)
def test_verdict(counts: dict[int, frozenset[int]] | None, agreement: Agreement, codes: list[str]) -> None:
    verdict = uniform(counts, 50, (0, 1))

    assert verdict.agreement is agreement
    assert [reason.code for reason in verdict.reasons] == codes


@pytest.mark.parametrize(
    ("configured", "agreement"),
    [({0: 50, 1: 50}, Agreement.PROVEN), ({0: 50, 1: 24}, Agreement.DEGENERATE), ({0: 50}, Agreement.DEGENERATE)],
)
def test_an_unchanged_topic_and_the_configuration_settle_what_answers_cannot(
    configured: dict[int, int], agreement: Agreement
) -> None:
    assert uniform({0: BOTH, 1: BOTH}, 50, (0, 1), configured).agreement is agreement


def test_configuration_never_outweighs_an_answer() -> None:
    assert uniform({0: frozenset({24})}, 50, (0,), {0: 50}).agreement is Agreement.BROKEN


def test_no_broker_at_all_is_unknown() -> None:
    assert uniform({}, 50, ()).agreement is Agreement.UNKNOWN
