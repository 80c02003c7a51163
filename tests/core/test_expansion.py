"""Which groups an expansion moves, where its partitions go, and what the plan says; the steps are in tests/steps/test_expansion.py."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core import expansion
from airflow_provider_kmigrate.core.coordinator import OFFSETS, Coordinators, GroupClass, magnitude, possible_counts, probe_groups
from airflow_provider_kmigrate.core.decision import Done, Refuse, Wait
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.expansion import ExpansionPlan, Export, export_of, new_replicas
from airflow_provider_kmigrate.core.model import (
    ClusterView,
    CommittedOffset,
    CoordinatorFacts,
    Expansion,
    ExpansionStage,
    HostedGroup,
    NodeFiles,
    Partition,
    ZkView,
)
from tests.core.views import ZK, cluster

GROUPS = tuple(f"team-{number}" for number in range(60))
RACKS = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}


def topic(brokers: int, count: int, factor: int) -> tuple[Partition, ...]:
    rows = [tuple((p + r) % brokers for r in range(factor)) for p in range(count)]
    return tuple(Partition(OFFSETS.name, p, row[0], row, row) for p, row in enumerate(rows))


def seen(count: int = 10, used: frozenset[int] | None = None, **changes: object) -> ClusterView:
    """Three brokers that use `used`, or the topic's own count; each group at its coordinator, with one offset."""
    found, rows = used or frozenset({count}), topic(3, count, 3)
    homes = {group: rows[magnitude(group) % max(found)].leader for group in GROUPS}
    offsets = {TopicPartition("t", 0): CommittedOffset(1)}
    hosted = {b: {group: HostedGroup("Empty", 0, offsets) for group, home in homes.items() if home == b} for b in range(3)}
    view = replace(
        cluster([ZK, ZK, ZK]),
        partitions=(*rows, Partition("t", 0, 0, (0,), (0,))),
        coordinators=CoordinatorFacts({OFFSETS.name: dict.fromkeys(range(3), found)}, GROUPS),
        hosted=hosted,
        moving=(),
    )
    return replace(view, **changes)


def plan_of(view: ClusterView, target: int) -> ExpansionPlan:
    found = expansion.decide_plan(view, target)
    assert isinstance(found, ExpansionPlan), found
    return found


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 6), st.integers(1, 40), st.integers(2, 4), st.integers(1, 3))
def test_new_partitions_are_spread_and_their_leaders_tell_the_counts_apart(
    brokers: int, old: int, times: int, factor: int
) -> None:
    assume(factor <= brokers)
    rows, racks = topic(brokers, old, factor), {broker: RACKS[broker] for broker in range(brokers)}
    found = new_replicas(rows, racks, times * old, [old])
    assert len(found) == (times - 1) * old
    assert all(len(set(row)) == len(row) == factor for row in found)
    leads = Counter([row.replicas[0] for row in rows] + [row[0] for row in found])
    assert max(leads.values()) - min(leads[broker] for broker in range(brokers)) <= 1
    even = new_replicas(rows, dict.fromkeys(racks), times * old, [old])  # racks of different sizes hold different numbers
    held = Counter(broker for row in (*(row.replicas for row in rows), *even) for broker in row)
    assert max(held.values()) - min(held[broker] for broker in range(brokers)) <= factor
    if len(set(racks.values())) >= factor:
        assert all(len({racks[broker] for broker in row}) == factor for row in found)
    leaders = dict(enumerate([*(row.leader for row in rows), *(row[0] for row in found)]))
    if old > 1 or brokers > 1:
        names = probe_groups(tuple(leaders.values()))
        answers = {name: leaders[magnitude(name) % old] for name in names}
        assert times * old not in possible_counts(answers, leaders), "a broker that has not restarted is seen"


def test_without_racks_and_with_fewer_brokers_than_replicas() -> None:
    rows = topic(3, 2, 3)
    assert new_replicas(rows, {0: None, 1: None}, 3, [2]) == [[0, 1]]


@pytest.mark.parametrize(("target", "stay"), [(20, 1 / 2), (30, 1 / 3), (40, 1 / 4)])
def test_an_integer_factor_k_leaves_one_group_in_k(target: int, stay: float) -> None:
    names = [sha256(str(number).encode()).hexdigest() for number in range(3000)]
    staying = [name for name in names if not expansion.moves(name, Expansion((10,), target))]
    assert abs(len(staying) / len(names) - stay) < 0.03


@pytest.mark.parametrize("target", [15, 20, 30])
def test_the_groups_that_stay_are_the_invariant_ones_of_every_state_of_a_roll(target: int) -> None:
    leaders = dict(enumerate(row.leader for row in topic(3, target, 3)))
    staying = {group for group in GROUPS if not expansion.moves(group, Expansion((10,), target))}
    for done in range(4):
        counts = {broker: target if broker < done else 10 for broker in range(3)}
        classes = Coordinators(counts, leaders, target).classes(staying)
        assert sorted(classes[GroupClass.INVARIANT]) == sorted(staying)


def test_where_several_counts_explain_the_answers_a_group_moves_if_it_moves_from_any() -> None:
    view = seen(12, frozenset({3, 6, 12}))
    plan = plan_of(view, 24)
    assert plan.expansion == Expansion((3, 6, 12), 24)
    numbers = {group: {magnitude(group) % count for count in (3, 6, 12, 24)} for group in GROUPS}
    assert list(plan.moving) == sorted(group for group, each in numbers.items() if len(each) > 1)
    unchanged = replace(view, zk=replace(view.zk or ZkView(), topic_versions={OFFSETS.name: 0}))
    files = {
        b.id: replace(b, files=replace(b.files, properties={**b.files.properties, OFFSETS.setting: "12"}))
        for b in view.brokers.values()
    }
    assert plan_of(replace(unchanged, brokers=files), 24).expansion == Expansion((12,), 24), "never changed, and configured so"


def test_the_plan_names_who_must_stop_and_what_is_done() -> None:
    view = seen()
    moving = sorted(group for group in GROUPS if magnitude(group) % 10 != magnitude(group) % 20)
    home = next(broker for broker, groups in (view.hosted or {}).items() if moving[0] in groups)
    alive = {**(view.hosted or {}), home: {**(view.hosted or {})[home], moving[0]: HostedGroup("Stable", 2)}}
    text = expansion.describe(plan_of(replace(view, hosted=alive), 20))
    assert f"**{len(moving)} groups move and must stop now**" in text
    assert all(group in text for group in moving)
    assert f"With members now: {moving[0]} (2)." in text
    assert f"{60 - len(moving)} groups stay" in text
    assert "10: " in text
    assert "19: " in text


@pytest.mark.parametrize(
    ("view", "target", "kind", "code"),
    [
        (seen(partitions=None), 20, Wait, "G00"),
        (seen(zk=None), 20, Wait, "G00"),
        (seen(coordinators=None), 20, Wait, "K02"),
        (seen(hosted=None), 20, Wait, "K02"),
        (seen(hosted={0: {}, 1: {}}), 20, Wait, "K02"),
        (seen(moving=None), 20, Wait, "G00"),
        (seen(partitions=()), 20, Refuse, "K80"),
        (seen(20, frozenset({10})), 19, Refuse, "K78"),
        (seen(20, frozenset({10})), 25, Refuse, "K78"),
        (seen(coordinators=CoordinatorFacts({OFFSETS.name: {0: frozenset({10}), 1: frozenset({10}), 2: frozenset({10, 5})}})), 20, Refuse, "K01"),
    ],
)  # fmt: skip
def test_nothing_begins_on_an_unknown(view: ClusterView, target: int, kind: type, code: str) -> None:
    found = expansion.decide_plan(view, target)
    assert isinstance(found, kind)
    assert code in {reason.code for reason in getattr(found, "reasons", ())}


def noted(view: ClusterView, stage: ExpansionStage, old: int = 10, new: int = 20) -> ClusterView:
    return replace(view, zk=replace(view.zk or ZkView(), expansion=Expansion((old,), new, stage)))


def test_an_import_waits_until_every_broker_and_every_group_is_of_one_mind() -> None:
    whole = noted(seen(20), ExpansionStage.DELETING)
    saved = Export(groups={group: {TopicPartition("t", 0): CommittedOffset(1)} for group in GROUPS})
    assert isinstance(expansion.decide_import(whole, 20, saved), Done)
    facts = {0: frozenset({20}), 1: frozenset({10}), 2: frozenset({20})}
    for wrong in (
        replace(whole, coordinators=CoordinatorFacts({OFFSETS.name: facts}, GROUPS)),
        replace(whole, coordinators=CoordinatorFacts({OFFSETS.name: {**facts, 1: frozenset()}}, GROUPS)),
        replace(whole, hosted={**(whole.hosted or {}), 0: {**(whole.hosted or {})[1], **(whole.hosted or {})[0]}}),
        replace(whole, hosted={**(whole.hosted or {}), 0: {}}),
    ):
        assert isinstance(expansion.decide_import(wrong, 20, saved), Wait)


def test_offsets_of_partitions_that_no_longer_exist_are_left_out_and_counted() -> None:
    view = noted(seen(20), ExpansionStage.DELETING)
    saved = {
        group: {TopicPartition("t", 0): CommittedOffset(1), TopicPartition("gone", 0): CommittedOffset(2)} for group in GROUPS[:2]
    }
    done = expansion.decide_import(view, 20, Export(groups=saved))
    assert isinstance(done, Done)
    assert done.text.endswith("2 offsets are of partitions that no longer exist.")


@given(
    st.dictionaries(
        st.text(min_size=1),
        st.dictionaries(
            st.tuples(st.text(min_size=1), st.integers(0, 99)).map(lambda row: TopicPartition(*row)),
            st.builds(CommittedOffset, st.integers(0), st.integers(-1, 9), st.text()),
        ),
    )
)
def test_an_export_is_read_as_it_was_written(groups: dict[str, dict[TopicPartition, CommittedOffset]]) -> None:
    export = Export(("a",), groups, 3)
    assert export_of(json.loads(json.dumps(export.to_json()))) == export


@pytest.mark.parametrize("wrong", [{}, {"version": 2, "number": 1, "alive": [], "groups": {}}])
def test_another_format_is_no_export(wrong: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        export_of(wrong)


@pytest.mark.parametrize(("count", "kind"), [(None, Refuse), ("20", Refuse), ("10", Done)])
def test_an_undo_does_not_believe_answers_that_fit_both_counts(count: str | None, kind: type) -> None:
    """A broker's file has the new count before the broker restarts."""
    view = noted(seen(20, frozenset({10, 20})), ExpansionStage.BEGUN)
    files = {
        b.id: replace(b, files=NodeFiles(None if count is None else {OFFSETS.setting: count})) for b in view.brokers.values()
    }
    decision = expansion.decide_import(replace(view, brokers=files), 20, Export(), undo=True)
    assert isinstance(decision, kind)
