"""Fingerprints find every broker's count, and groups are classed, as a brute-force model does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Done, waits_for
from airflow_provider_kmigrate.core.cluster_state.model import Cause, ClusterView, CoordinatorFacts, Partition
from airflow_provider_kmigrate.core.member.registration import java_hash
from airflow_provider_kmigrate.core.migration import coordinator
from airflow_provider_kmigrate.core.migration.coordinator import (
    OFFSETS,
    Agreement,
    Coordinators,
    GroupClass,
    find_calmest_order,
    forecast_roll,
    hash_group,
    judge_counts,
    narrow_counts,
    possible_counts,
    probe_groups,
)
from airflow_provider_kmigrate.core.migration.gates import GateState
from airflow_provider_kmigrate.core.shared.text import summarize
from tests.core.views import ZK, cluster


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
    assert hash_group(group) % count == expected


def answers_of(count: int, leaders: Mapping[int, int]) -> dict[str, int | None]:
    """What FindCoordinator says on a broker that uses this count."""
    names = probe_groups(tuple(leaders[partition] for partition in sorted(leaders)))
    found = {name: leaders.get(hash_group(name) % count, -1) for name in names}
    return {name: None if leader < 0 else leader for name, leader in found.items()}


ROWS = st.lists(st.integers(-1, 5), min_size=1, max_size=70)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(1, 140))
def test_the_true_count_is_always_possible_and_every_possible_one_explains_the_answers(rows: list[int], count: int) -> None:
    leaders = dict(enumerate(rows))
    answers = answers_of(count, leaders)

    possible = possible_counts(answers, leaders)

    named = any(broker is not None for broker in answers.values())
    assert possible == {n for n in range(1, 1001) if named and answers_of(n, leaders) == answers}
    assert not named or count in possible


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_names_that_were_left_out_would_show_nothing_more(rows: list[int]) -> None:
    """The few names chosen leave no count beside the topic's that all names of the pool would rule out."""
    leaders = dict(enumerate(rows))
    every = {f"__coord_probe_{number}": hash_group(f"__coord_probe_{number}") for number in range(128)}
    asked = {name: leaders.get(number % len(rows), -1) for name, number in every.items()}
    chosen = probe_groups(tuple(rows))
    assert set(chosen) <= set(every)
    assert len(chosen) < 40 or -1 in rows
    for n in range(1, 200):
        same = {name: leaders.get(number % n, -1) == asked[name] for name, number in every.items()}
        assert all(same[name] for name in chosen) == all(same.values())


@pytest.mark.parametrize("count", [50, 49, 25, 7, 1])
def test_leaders_spread_over_three_brokers_give_the_count_away(count: int) -> None:
    leaders = {p: (p + 2) % 3 for p in range(50)}
    assert possible_counts(answers_of(count, leaders), leaders) == {count}


def test_regular_leaders_do_not_distinguish_multiples() -> None:
    leaders = {p: p % 3 for p in range(48)}
    assert {24, 48} <= possible_counts(answers_of(48, leaders), leaders)


@pytest.mark.parametrize(
    ("registered", "expected"), [(24, {24}), (48, {24, 48}), (30, {24, 48}), (0, {24, 48}), (None, {24, 48})]
)
def test_a_broker_that_registered_before_the_topic_grew_has_the_smaller_count(registered: int | None, expected: set[int]) -> None:
    assert narrow_counts(frozenset({24, 48}), 48, registered) == expected


def test_counts_above_the_limit_are_tried_when_the_topic_has_them() -> None:
    leaders = {p: p % 7 for p in range(1200)}
    assert 1200 in possible_counts(answers_of(1200, leaders), leaders)


def test_the_only_broker_of_a_large_topic_still_answers_something() -> None:
    leaders = dict.fromkeys(range(1000), 0)
    assert 1000 in possible_counts(answers_of(1000, leaders), leaders)


def test_answers_from_before_a_leader_moved_fit_no_count() -> None:
    leaders = {p: p % 3 for p in range(50)}
    moved = leaders | {p: (leader + 1) % 3 for p, leader in leaders.items() if p < 25}
    assert possible_counts(answers_of(50, leaders), moved) == frozenset()


def test_a_broker_that_names_no_coordinator_for_a_led_partition_uses_another_count() -> None:
    leaders = {p: (p + 2) % 3 for p in range(50)}
    assert 50 not in possible_counts(answers_of(60, leaders), leaders)
    assert possible_counts(dict.fromkeys(answers_of(50, leaders)), leaders) == frozenset(), "it named no broker at all"


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
        ({0: frozenset({25}), 1: frozenset({25})}, Agreement.BROKEN, ["K01"]),
        ({0: frozenset({25}), 1: frozenset({24})}, Agreement.BROKEN, ["K01", "K01"]),
        ({1: frozenset({25})}, Agreement.BROKEN, ["K01"]),
    ],
    ids=[
        "all",
        "ambiguous",
        "empty",
        "missing",
        "unread",
        "not uniform",
        "uniform but not the topic's",
        "two others",
        "wrong and missing",
    ],
)
def test_verdict(counts: dict[int, frozenset[int]] | None, agreement: Agreement, codes: list[str]) -> None:
    verdict = judge_counts(counts, 50, (0, 1))

    assert verdict.agreement is agreement
    assert [reason.code for reason in verdict.reasons] == codes


@pytest.mark.parametrize(
    ("others", "shown"),
    [(range(51, 57), "51 or 52 or 53 or 54 or 55 or 56."), (range(51, 58), "51 or 52 or 53 or 54 or 55 or 56 or more.")],
)
def test_at_most_six_other_counts_are_named(others: range, shown: str) -> None:
    (reason,) = judge_counts({0: FIFTY, 1: frozenset({50, *others})}, 50, (0, 1)).reasons
    assert reason.text.endswith(shown)


@pytest.mark.parametrize(
    ("configured", "agreement"),
    [({0: 50, 1: 50}, Agreement.PROVEN), ({0: 50, 1: 24}, Agreement.DEGENERATE), ({0: 50}, Agreement.DEGENERATE)],
)
def test_an_unchanged_topic_and_the_configuration_settle_what_answers_cannot(
    configured: dict[int, int], agreement: Agreement
) -> None:
    assert judge_counts({0: BOTH, 1: BOTH}, 50, (0, 1), configured).agreement is agreement


def test_configuration_never_outweighs_an_answer() -> None:
    assert judge_counts({0: frozenset({24})}, 50, (0,), {0: 50}).agreement is Agreement.BROKEN


def test_no_broker_at_all_is_unknown() -> None:
    assert judge_counts({}, 50, ()).agreement is Agreement.UNKNOWN


@dataclass
class Model:
    """Brokers as Kafka's are: each one names the leader of hash mod its count, and accepts the groups of the partitions it leads."""

    counts: dict[int, int]
    leaders: dict[int, int]

    def partition(self, broker: int, group: str) -> int:
        number = java_hash(group)
        return (0 if number == -(2**31) else abs(number)) % self.counts[broker]

    def named_by(self, broker: int, group: str) -> int:
        return self.leaders[self.partition(broker, group)]

    def acceptors(self, group: str) -> list[int]:
        return [broker for broker in self.counts if self.named_by(broker, group) == broker]

    def kind(self, group: str, topic: int) -> GroupClass:
        """By the table of what was measured, for brokers with the topic's count and with one older count."""
        old, new = (abs(java_hash(group)) % count for count in (min(self.counts.values()), topic))
        x, y = self.leaders[old], self.leaders[new]
        if old == new or set(self.counts.values()) == {topic}:
            return GroupClass.INVARIANT
        x_new, y_new = (self.counts[broker] == topic for broker in (x, y))
        if x != y and x_new != y_new:
            return GroupClass.SPLIT if y_new else GroupClass.BLACKOUT
        return GroupClass.MOVED if y_new else GroupClass.REDIRECT


@st.composite
def rolls(draw: st.DrawFn) -> tuple[int, int, list[int], list[int]]:
    """(old count, new count, leader of each partition, brokers in the order of their restarts)."""
    brokers, old = draw(st.integers(1, 6)), draw(st.integers(1, 20))
    new = old + draw(st.integers(1, 25))
    leaders = draw(st.lists(st.integers(0, brokers - 1), min_size=new, max_size=new))
    return old, new, leaders, draw(st.permutations(range(brokers)))


GROUPS = [f"team-{number}.app" for number in range(40)]


@settings(max_examples=150, deadline=None)
@given(rolls())
def test_every_group_has_the_class_of_the_model_in_every_state_of_a_roll(roll: tuple[int, int, list[int], list[int]]) -> None:
    old, new, rows, order = roll
    counts, leaders = dict.fromkeys(order, old), dict(enumerate(rows))
    start = Coordinators(dict(counts), leaders, new)
    states = forecast_roll(start.count_moving_groups(GROUPS), (), order)
    for place, broker in enumerate([None, *order]):
        if broker is not None:
            counts[broker] = new
        model, classes = Model(dict(counts), leaders), Coordinators(dict(counts), leaders, new).classify_groups(GROUPS)
        assert sorted(chain.from_iterable(classes.values())) == sorted(GROUPS)
        for kind, names in classes.items():
            for group in names:
                number = len(model.acceptors(group))
                assert {GroupClass.SPLIT: number > 1, GroupClass.BLACKOUT: number == 0}.get(kind, number == 1)
                assert kind is model.kind(group, new)
        if broker is not None:
            assert states[place - 1] == (len(classes[GroupClass.SPLIT]), len(classes[GroupClass.BLACKOUT]))


@settings(max_examples=60, deadline=None)
@given(rolls())
def test_the_calmest_order_restarts_each_broker_once_and_is_no_worse_than_the_usual_one_at_its_first(
    roll: tuple[int, int, list[int], list[int]],
) -> None:
    old, new, rows, brokers = roll
    moving = Coordinators(dict.fromkeys(brokers, old), dict(enumerate(rows)), new).count_moving_groups(GROUPS)
    order = find_calmest_order(moving, (), brokers)
    assert sorted(order) == sorted(brokers)
    assert sum(forecast_roll(moving, (), order)[0]) == min(sum(forecast_roll(moving, (), [broker])[0]) for broker in brokers)


def test_an_order_that_pays_is_found() -> None:
    """Groups move from 0 to 1 and from 2 to 3: 0, 2, 1, 3 would keep both pairs between two coordinators at once."""
    moving = {(0, 1): 5, (2, 3): 5}
    assert find_calmest_order(moving, (), range(4)) == (0, 1, 2, 3)
    assert max(blackout for _, blackout in forecast_roll(moving, (), (0, 1, 2, 3))) == 5
    assert max(blackout for _, blackout in forecast_roll(moving, (), (0, 2, 1, 3))) == 10


def test_more_than_two_counts_are_classed_by_who_accepts() -> None:
    known = Coordinators({0: 2, 1: 3, 2: 6}, dict(enumerate([0, 1, 2, 0, 1, 2])), 6)
    model = Model(dict(known.counts), dict(known.leaders))
    for kind, names in known.classify_groups(GROUPS).items():
        for group in names:
            number = len(model.acceptors(group))
            assert (number > 1, number == 0) == (kind is GroupClass.SPLIT, kind is GroupClass.BLACKOUT)


ROTATING = tuple(Partition(OFFSETS.name, p, (p + 2) % 3, (0, 1, 2), (0, 1, 2)) for p in range(15))
TEN, FIFTEEN = frozenset({10}), frozenset({15})


def seen(counts: Mapping[int, frozenset[int]] | None, groups: tuple[str, ...] = ()) -> ClusterView:
    """Three brokers and 15 partitions of the topic."""
    facts = None if counts is None else CoordinatorFacts({OFFSETS.name: counts}, groups)
    return replace(cluster([ZK, ZK, ZK]), partitions=ROTATING, coordinators=facts)


def shape(decision: Decision) -> tuple[str, list[str]]:
    return type(decision).__name__, [reason.code for reason in getattr(decision, "reasons", ())]


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (seen(dict.fromkeys(range(3), FIFTEEN)), ("Done", [])),
        (seen(dict.fromkeys(range(3), FIFTEEN | {5})), ("Done", [])),
        (seen(dict.fromkeys(range(3), TEN)), ("Refuse", ["K01"])),
        (seen({0: FIFTEEN, 1: TEN, 2: TEN}), ("Refuse", ["K01"])),
        (seen({0: FIFTEEN, 1: FIFTEEN}), ("Wait", ["K02"])),
        (seen({0: FIFTEEN, 1: FIFTEEN, 2: frozenset()}), ("Wait", ["K02"])),
        (seen({0: TEN, 1: FIFTEEN}), ("Refuse", ["K01"])),
        (seen(None), ("Wait", ["K02"])),
        (cluster([ZK, ZK, ZK]), ("Done", [])),
        (replace(seen(None), partitions=None), ("Wait", ["G00"])),
    ],
    ids=[
        "all",
        "ambiguous",
        "asleep",
        "half",
        "unresponsive",
        "moving",
        "wrong and unresponsive",
        "unread",
        "no topic",
        "partitions unread",
    ],
)
def test_what_the_sensor_answers(view: ClusterView, expected: tuple[str, list[str]]) -> None:
    assert shape(coordinator.decide_agreement(view)) == expected


def test_a_sleeping_expansion_is_refused_with_the_dag_that_completes_it() -> None:
    """Not once brokers differ: then groups are split already."""
    offered = {
        name: "kmigrate_offsets_topic__<cluster> completes this without loss (`partitions`: 15)" in str(decision)
        for name, counts in {"asleep": dict.fromkeys(range(3), TEN), "half": {0: FIFTEEN, 1: TEN, 2: TEN}}.items()
        if (decision := coordinator.decide_agreement(seen(counts)))
    }
    assert offered == {"asleep": True, "half": False}


def test_the_sensor_says_if_other_counts_explain_the_answers_too() -> None:
    done = coordinator.decide_agreement(seen(dict.fromkeys(range(3), FIFTEEN | {5})))
    certain = coordinator.decide_agreement(seen(dict.fromkeys(range(3), FIFTEEN)))
    assert isinstance(done, Done)
    assert certain == Done("Every broker computes coordinators with the 15 partitions of __consumer_offsets.")
    assert done.text.endswith("Brokers 0, 1, 2 use 15 partitions of __consumer_offsets or, by the same answers, 5.")


def noted(view: ClusterView, counts: Mapping[str, int] | None) -> ClusterView:
    assert view.zk is not None
    return replace(view, zk=replace(view.zk, partition_counts=counts))


ANSWERS = {
    "the topic's count alone": (FIFTEEN, None),
    "the topic's count or another one": (FIFTEEN | {30}, GateState.NEVER),
    "another count": (TEN, GateState.NEVER),
    "nothing": (frozenset[int](), GateState.NOT_YET),
}


@pytest.mark.parametrize("answers", ANSWERS)
@pytest.mark.parametrize("note", [None, {}, {OFFSETS.name: 15}, {OFFSETS.name: 10}, {"__transaction_state": 10}], ids=str)
def test_a_topic_with_another_count_than_our_note_agrees_only_if_every_answer_proves_it(
    answers: str, note: Mapping[str, int] | None
) -> None:
    counts, expanded = ANSWERS[answers]
    alone = coordinator.brokers_agree(noted(seen(dict.fromkeys(range(3), counts)), {OFFSETS.name: 15})).state
    found = coordinator.brokers_agree(noted(seen(dict.fromkeys(range(3), counts)), note))
    differs = (note or {}).get(OFFSETS.name, 15) != 15
    assert found.state is (expanded or GateState.MET if differs else alone)
    assert {reason.code for reason in found.reasons} <= {"K01", "K02"}


def test_a_hidden_expansion_is_named_with_both_counts_and_the_dag_that_completes_it() -> None:
    view = noted(seen(dict.fromkeys(range(3), FIFTEEN | {10})), {OFFSETS.name: 10})
    (reason,) = coordinator.brokers_agree(view).reasons
    assert reason.code == "K01"
    for words in ("had 10 partitions", "has 15 now", "kmigrate_offsets_topic__", "(`partitions`: 15)"):
        assert words in reason.text
    assert coordinator.brokers_agree(replace(view, zk=None)).met, "after the finalization ZooKeeper may be off"
    assert coordinator.answers_agree(view).met


@pytest.mark.parametrize(
    ("note", "counts", "to_note"),
    [
        (None, FIFTEEN | {30}, {OFFSETS.name: 15}),
        ({}, FIFTEEN | {30}, {OFFSETS.name: 15}),
        ({OFFSETS.name: 15}, FIFTEEN, {}),
        ({OFFSETS.name: 10}, FIFTEEN | {10}, {}),
        ({OFFSETS.name: 10}, TEN, {}),
        ({OFFSETS.name: 10}, FIFTEEN, {OFFSETS.name: 15}),
    ],
)
def test_a_count_is_noted_once_and_changes_only_if_all_brokers_certainly_use_another_one(
    note: Mapping[str, int] | None, counts: frozenset[int], to_note: Mapping[str, int]
) -> None:
    assert coordinator.counts_to_note(noted(seen(dict.fromkeys(range(3), counts)), note)) == to_note


def test_one_broker_that_may_use_the_old_count_keeps_the_note() -> None:
    view = noted(seen({0: FIFTEEN, 1: FIFTEEN, 2: FIFTEEN | {10}}), {OFFSETS.name: 10})
    assert coordinator.counts_to_note(view) == {}
    assert coordinator.brokers_agree(view).state is GateState.NEVER


def test_a_missing_note_is_not_taken_for_an_unchanged_topic() -> None:
    view = noted(seen({}), None)
    assert [reason.code for reason in coordinator.counts_noted(view).reasons] == ["K02"]
    assert coordinator.counts_noted(noted(view, {})).met


@pytest.mark.parametrize("answers", ANSWERS)
def test_without_a_note_only_answers_that_prove_the_count_let_a_restart_pass(answers: str) -> None:
    """A migration that an older release began."""
    view = noted(seen(dict.fromkeys(range(3), ANSWERS[answers][0])), None)
    assert coordinator.counts_noted(view).met is (answers == "the topic's count alone")


def test_without_a_note_brokers_are_asked() -> None:
    view = replace(noted(seen(dict.fromkeys(range(3), FIFTEEN)), None), coordinators=None)
    assert [reason.cause for reason in coordinator.counts_noted(view).reasons] == [Cause.COORDINATORS_NOT_ASKED]
    assert not coordinator.counts_noted(replace(noted(seen({}), None), partitions=None)).met


def test_an_unresponsive_broker_is_named_and_only_waited_for_if_it_must_answer() -> None:
    view = seen({0: FIFTEEN, 1: FIFTEEN})
    assert "brokers 2, or they did not answer" in coordinator.brokers_agree(view).reasons[0].text
    assert coordinator.brokers_agree(view, excused_brokers=(2,)).met
    assert coordinator.brokers_agree(seen({}), excused_brokers=(0, 1, 2)).met
    assert coordinator.brokers_agree(seen({2: TEN}), excused_brokers=(2,)).state is GateState.NEVER, "what it answers counts"


def test_the_groups_that_suffer_are_named() -> None:
    view = seen({0: FIFTEEN, 1: TEN, 2: TEN}, tuple(GROUPS))
    model = Model({0: 15, 1: 10, 2: 10}, {p.index: p.leader for p in ROTATING})
    split, blackout = (sorted(g for g in GROUPS if len(model.acceptors(g)) in number) for number in ({2, 3}, {0}))
    assert split
    assert blackout
    (*_, reason) = coordinator.decide_agreement(view).reasons  # type: ignore[union-attr]
    assert f"{len(split)} accepted by more than one broker (split brain): {summarize(split)};" in reason.text
    assert f"{len(blackout)} accepted by no broker (blackout): {summarize(blackout)};" in reason.text
    assert reason.text.endswith("if brokers restart in the order 1, 2.") or reason.text.endswith(
        "if brokers restart in the order 2, 1."
    )


def test_groups_are_not_classed_while_a_broker_does_not_answer() -> None:
    for counts in ({0: TEN, 1: FIFTEEN}, {0: TEN, 1: FIFTEEN, 2: frozenset()}):
        gate = coordinator.brokers_agree(seen(counts, tuple(GROUPS)))
        assert gate.state is GateState.NEVER
        assert not any("consumer groups" in reason.text for reason in gate.reasons)


def test_counts_with_the_same_coordinators_give_the_same_groups() -> None:
    """Three brokers that lead in turn: 3, 6, 9 and 12 partitions have the same coordinator for every group."""
    turns = {partition: partition % 3 for partition in range(20)}
    classes = [Coordinators({0: 20, 1: count, 2: count}, turns, 20).classify_groups(GROUPS) for count in (3, 6, 9, 12)]
    assert classes[0][GroupClass.SPLIT]
    for kind in (GroupClass.SPLIT, GroupClass.BLACKOUT):
        assert all(each[kind] == classes[0][kind] for each in classes)
    rows = tuple(Partition(OFFSETS.name, p, p % 3, (0, 1, 2), (0, 1, 2)) for p in range(20))
    alike = frozenset({3, 6, 9, 12})
    facts = CoordinatorFacts({OFFSETS.name: {0: frozenset({20}), 1: alike, 2: alike}}, tuple(GROUPS))
    (reason,) = coordinator.brokers_agree(replace(cluster([ZK, ZK, ZK]), partitions=rows, coordinators=facts)).reasons
    assert f"{len(classes[3][GroupClass.SPLIT])} {GroupClass.SPLIT}: {summarize(classes[3][GroupClass.SPLIT])};" in reason.text


def test_only_a_wait_for_the_coordinators_asks_for_them() -> None:
    for view, expected in ((seen(None), True), (seen({0: FIFTEEN}), False), (replace(seen(None), partitions=None), False)):
        assert waits_for(coordinator.decide_agreement(view), Cause.COORDINATORS_NOT_ASKED) is expected
