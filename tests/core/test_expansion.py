"""Which groups an expansion moves, where its partitions go, and what the plan says; the steps are in tests/steps/test_expansion.py."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
    ClusterView,
    CoordinatorFacts,
    Expansion,
    ExpansionStage,
    FetchedOffset,
    HostedGroup,
    NodeFiles,
    Partition,
    Process,
    ZkController,
    ZkView,
)
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.migration.coordinator import (
    OFFSETS,
    TRANSACTIONS,
    Coordinators,
    GroupClass,
    assign_new_replicas,
    hash_group,
    possible_counts,
    probe_groups,
)
from airflow_provider_kmigrate.core.offsets_topic import expansion
from airflow_provider_kmigrate.core.offsets_topic.expansion import Export, parse_export
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import GroupLog, StoredCommit, build_trails
from tests.core.views import DOWN, KRAFT, ZK, cluster

GROUPS = tuple(f"team-{number}" for number in range(60))
RACKS = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}


def topic(brokers: int, count: int, factor: int) -> tuple[Partition, ...]:
    rows = [tuple((p + r) % brokers for r in range(factor)) for p in range(count)]
    return tuple(Partition(OFFSETS.name, p, row[0], row, row) for p, row in enumerate(rows))


def seen(count: int = 10, used: frozenset[int] | None = None, **changes: object) -> ClusterView:
    """Three brokers that use `used`, or the topic's own count; each group at its coordinator, with one offset."""
    found, rows = used or frozenset({count}), topic(3, count, 3)
    homes = {group: rows[hash_group(group) % max(found)].leader for group in GROUPS}
    offsets = {TopicPartition("t", 0): FetchedOffset(1)}
    hosted = {b: {group: HostedGroup("Empty", 0, offsets) for group, home in homes.items() if home == b} for b in range(3)}
    view = replace(
        cluster([ZK, ZK, ZK]),
        partitions=(*rows, Partition("t", 0, 0, (0,), (0,))),
        coordinators=CoordinatorFacts({OFFSETS.name: dict.fromkeys(range(3), found)}, GROUPS),
        hosted=hosted,
        moving=(),
    )
    return replace(view, **changes)


def plan_of(view: ClusterView, target: int) -> Expansion:
    found = expansion.decide_plan(view, target)
    assert isinstance(found, Expansion), found
    return found


def described(view: ClusterView, target: int) -> str:
    steps, consequences = expansion.describe_expansion(view, plan_of(view, target), undo=False)
    return "\n".join((*steps, *consequences))


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 6), st.integers(1, 40), st.integers(2, 4), st.integers(1, 3))
def test_new_partitions_are_spread_and_their_leaders_distinguish_the_counts(
    brokers: int, old: int, times: int, factor: int
) -> None:
    assume(factor <= brokers)
    rows, racks = topic(brokers, old, factor), {broker: RACKS[broker] for broker in range(brokers)}
    found = assign_new_replicas(rows, racks, times * old, [old])
    assert len(found) == (times - 1) * old
    assert all(len(set(row)) == len(row) == factor for row in found)
    leads = Counter([row.replicas[0] for row in rows] + [row[0] for row in found])
    assert max(leads.values()) - min(leads[broker] for broker in range(brokers)) <= 1
    even = assign_new_replicas(rows, dict.fromkeys(racks), times * old, [old])  # racks of different sizes hold different numbers
    held = Counter(broker for row in (*(row.replicas for row in rows), *even) for broker in row)
    assert max(held.values()) - min(held[broker] for broker in range(brokers)) <= factor
    if len(set(racks.values())) >= factor:
        assert all(len({racks[broker] for broker in row}) == factor for row in found)
    leaders = dict(enumerate([*(row.leader for row in rows), *(row[0] for row in found)]))
    if old > 1 or brokers > 1:
        names = probe_groups(tuple(leaders.values()))
        answers = {name: leaders[hash_group(name) % old] for name in names}
        assert times * old not in possible_counts(answers, leaders), "a broker that has not restarted is seen"


def test_without_racks_and_with_fewer_brokers_than_replicas() -> None:
    rows = topic(3, 2, 3)
    assert assign_new_replicas(rows, {0: None, 1: None}, 3, [2]) == [[0, 1]]


@pytest.mark.parametrize(("target", "stay"), [(20, 1 / 2), (30, 1 / 3), (40, 1 / 4)])
def test_an_integer_factor_k_leaves_one_group_in_k(target: int, stay: float) -> None:
    names = [sha256(str(number).encode()).hexdigest() for number in range(3000)]
    staying = [name for name in names if not expansion.is_moved_by(name, Expansion((10,), target))]
    assert abs(len(staying) / len(names) - stay) < 0.03


@pytest.mark.parametrize("target", [15, 20, 30])
def test_the_groups_that_stay_are_the_invariant_ones_of_every_state_of_a_roll(target: int) -> None:
    leaders = dict(enumerate(row.leader for row in topic(3, target, 3)))
    staying = {group for group in GROUPS if not expansion.is_moved_by(group, Expansion((10,), target))}
    for done in range(4):
        counts = {broker: target if broker < done else 10 for broker in range(3)}
        classes = Coordinators(counts, leaders, target).classify_groups(staying)
        assert sorted(classes[GroupClass.INVARIANT]) == sorted(staying)


def test_where_several_counts_explain_the_answers_a_group_moves_if_it_moves_from_any() -> None:
    view = seen(12, frozenset({3, 6, 12}))
    plan = plan_of(view, 24)
    assert plan == Expansion((3, 6, 12), 24)
    numbers = {group: {hash_group(group) % count for count in (3, 6, 12, 24)} for group in GROUPS}
    assert expansion.moving_groups(view, plan) == sorted(group for group, each in numbers.items() if len(each) > 1)
    unchanged = replace(view, zk=replace(view.zk or ZkView(), topic_versions={OFFSETS.name: 0}))
    files = {
        b.id: replace(b, files=replace(b.files, properties={**b.files.properties, OFFSETS.setting: "12"}))
        for b in view.brokers.values()
    }
    assert plan_of(replace(unchanged, brokers=files), 24) == Expansion((12,), 24), "never changed, and configured so"


def test_the_plan_names_who_must_stop_and_what_is_done() -> None:
    view = seen()
    moving = sorted(group for group in GROUPS if hash_group(group) % 10 != hash_group(group) % 20)
    home = next(broker for broker, groups in (view.hosted or {}).items() if moving[0] in groups)
    joined = {**(view.hosted or {}), home: {**(view.hosted or {})[home], moving[0]: HostedGroup("Stable", 2)}}
    text = described(replace(view, hosted=joined), 20)
    assert f"**{len(moving)} groups move and must stop now**" in text
    assert all(group in text for group in moving)
    assert f"With members now: `{moving[0]}` (2)." in text
    assert f"{60 - len(moving)} groups stay" in text
    assert "10: " in text
    assert "19: " in text


def test_a_group_with_a_name_like_a_link_is_code_in_the_plan() -> None:
    view, name = (
        seen(),
        next(n for k in range(99) if expansion.is_moved_by(n := f"[{k}](http://x)\n**go**", Expansion((10,), 20))),
    )
    text = described(replace(view, coordinators=replace(view.coordinators, groups=(*GROUPS, name))), 20)  # type: ignore[type-var]
    assert f"`{name[:-7].replace('](', '] (').replace('//', '/ /')}\\n**go**`" in text


@pytest.mark.parametrize(
    ("view", "target", "kind", "code"),
    [
        (seen(partitions=None), 20, Wait, "G00"),
        (seen(zk=None), 20, Wait, "G00"),
        (seen(coordinators=None), 20, Wait, "K02"),
        (seen(hosted=None), 20, Wait, "K02"),
        (seen(hosted={0: {}, 1: {}}), 20, Wait, "K02"),
        (seen(moving=None), 20, Wait, "G00"),
        (seen(partitions=()), 20, Refuse, "K83"),
        (seen(20, frozenset({10})), 19, Refuse, "K83"),
        (seen(20, frozenset({10})), 25, Refuse, "K83"),
        (seen(coordinators=CoordinatorFacts({OFFSETS.name: {0: frozenset({10}), 1: frozenset({10}), 2: frozenset({10, 5})}})), 20, Refuse, "K01"),
    ],
)  # fmt: skip
def test_nothing_begins_on_an_unknown(view: ClusterView, target: int, kind: type, code: str) -> None:
    found = expansion.decide_plan(view, target)
    assert isinstance(found, kind)
    assert code in {reason.code for reason in getattr(found, "reasons", ())}


def noted(view: ClusterView, stage: ExpansionStage, old: int = 10, new: int = 20) -> ClusterView:
    return replace(view, zk=replace(view.zk or ZkView(), expansion=Expansion((old,), new, stage)))


def test_an_import_waits_until_every_broker_and_every_group_agree() -> None:
    whole = noted(seen(20), ExpansionStage.DELETING)
    saved = Export(groups={group: {TopicPartition("t", 0): FetchedOffset(1)} for group in GROUPS})
    assert isinstance(expansion.decide_import(whole, 20, saved), Done)
    facts = {0: frozenset({20}), 1: frozenset({10}), 2: frozenset({20})}
    for wrong in (
        replace(whole, coordinators=CoordinatorFacts({OFFSETS.name: facts}, GROUPS)),
        replace(whole, coordinators=CoordinatorFacts({OFFSETS.name: {**facts, 1: frozenset()}}, GROUPS)),
        replace(whole, hosted={**(whole.hosted or {}), 0: {**(whole.hosted or {})[1], **(whole.hosted or {})[0]}}),
        replace(whole, hosted={**(whole.hosted or {}), 0: {}}),
    ):
        assert isinstance(expansion.decide_import(wrong, 20, saved), Wait)


def hosting(**changes: object) -> ClusterView:
    """An expansion has begun, and a group that moves is not as it was."""
    view = noted(seen(), ExpansionStage.BEGUN)
    home = next(broker for broker, groups in (view.hosted or {}).items() if MOVES in groups)
    groups = (view.hosted or {})[home]
    return replace(view, hosted={**(view.hosted or {}), home: {**groups, MOVES: replace(groups[MOVES], **changes)}})


MOVES = next(group for group in GROUPS if expansion.is_moved_by(group, Expansion((10,), 20)))


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (hosting(), "Act"),
        (hosting(state="Stable", members=1), "K79"),
        (hosting(unstable=True), "K81"),
        (replace(hosting(), hosted=None), "K02"),
    ],
)
def test_nothing_is_exported_or_deleted_while_a_group_may_commit(view: ClusterView, expected: str) -> None:
    offsets = {TopicPartition("t", 0): FetchedOffset(1)}
    saved = Export(groups={group: offsets for group in GROUPS if expansion.is_moved_by(group, Expansion((10,), 20))})
    for decision in (expansion.decide_export(view, 20, Export()), expansion.decide_delete(view, 20, saved)):
        codes = [reason.code for reason in getattr(decision, "reasons", ())]
        assert codes == ([] if expected == "Act" else [expected])
        assert isinstance(decision, Act if expected == "Act" else Wait)


def test_an_undo_leaves_offsets_of_partitions_that_no_longer_exist_where_they_are() -> None:
    """A group that was not deleted yet still has them."""
    view = noted(seen(10), ExpansionStage.DELETING)
    offsets = {TopicPartition("t", 0): FetchedOffset(1), TopicPartition("gone", 0): FetchedOffset(2)}
    hosted = {b: {g: replace(one, offsets=offsets) for g, one in groups.items()} for b, groups in (view.hosted or {}).items()}
    done = expansion.decide_import(replace(view, hosted=hosted), 20, Export(groups=dict.fromkeys(GROUPS[:2], offsets)), undo=True)
    assert isinstance(done, Done), done


def test_offsets_of_partitions_that_no_longer_exist_are_left_out_and_counted() -> None:
    view = noted(seen(20), ExpansionStage.DELETING)
    saved = {
        group: {TopicPartition("t", 0): FetchedOffset(1), TopicPartition("gone", 0): FetchedOffset(2)} for group in GROUPS[:2]
    }
    done = expansion.decide_import(view, 20, Export(groups=saved))
    assert isinstance(done, Done)
    assert done.text.endswith("2 offsets are of partitions that no longer exist.")


@given(
    st.dictionaries(
        st.text(min_size=1),
        st.dictionaries(
            st.tuples(st.text(min_size=1), st.integers(0, 99)).map(lambda row: TopicPartition(*row)),
            st.builds(FetchedOffset, st.integers(0), st.integers(-1, 9), st.text()),
        ),
    )
)
def test_an_export_is_read_as_it_was_written(groups: dict[str, dict[TopicPartition, FetchedOffset]]) -> None:
    export = Export(
        ("a",), groups, 3, {key: 1_700_000_000_000 + place for place, key in enumerate(expansion.commits_by_partition(groups))}
    )
    assert parse_export(json.loads(json.dumps(export.to_json()))) == export
    timeless = replace(export, times={})
    assert parse_export(json.loads(json.dumps(timeless.to_json()))) == timeless


def test_an_offset_that_a_killed_deletion_committed_again_keeps_its_time() -> None:
    view, place = seen(), TopicPartition("t", 0)
    expansion_, log = Expansion((10,), 20), {}
    for group in (group for group in GROUPS if expansion.is_moved_by(group, Expansion((10,), 20))):
        stored = StoredCommit(hash_group(group) % 10, 9, 5_000, 5_000, 1)
        log[group] = GroupLog({GroupPartition(group, *place): build_trails([stored])})
    first, second = sorted(log)[:2]
    before = Export(
        groups={first: {place: FetchedOffset(1)}, second: {place: FetchedOffset(0)}},
        times={GroupPartition(first, *place): 1_000, GroupPartition(second, *place): 1_000},
    )
    made = expansion.build_export(view, expansion_, before, log)
    assert isinstance(made, Export), made
    assert made.times == dict.fromkeys((GroupPartition(group, *place) for group in log), 5_000) | {
        GroupPartition(first, *place): 1_000
    }


def test_an_export_of_the_format_before_is_read() -> None:
    """It is the only store of the offsets of groups that were deleted."""
    assert parse_export({"version": 2, "number": 1, "alive": ["a"], "groups": {}}) == Export(("a",), number=1)


EMPTY_EXPORT = Export().to_json()


@pytest.mark.parametrize(
    "wrong", [{}, {**EMPTY_EXPORT, "version": 4, "alive": []}, {**EMPTY_EXPORT, "groups": {"g": [["t", 0, 5, -1, "m"]]}}]
)
def test_another_format_is_no_export(wrong: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        parse_export(wrong)


@pytest.mark.parametrize(("count", "kind"), [(None, Refuse), ("20", Refuse), ("10", Done)])
def test_an_undo_does_not_rely_on_answers_that_fit_both_counts(count: str | None, kind: type) -> None:
    """A broker's file has the new count before the broker restarts."""
    view = noted(seen(20, frozenset({10, 20})), ExpansionStage.BEGUN)
    files = {
        b.id: replace(b, files=NodeFiles(None if count is None else {OFFSETS.setting: count})) for b in view.brokers.values()
    }
    decision = expansion.decide_import(replace(view, brokers=files), 20, Export(), undo=True)
    assert isinstance(decision, kind)


@pytest.mark.parametrize(("undo", "expected"), [(False, {10, 15}), (True, {15, 20})])
def test_offsets_are_not_imported_while_a_broker_uses_another_count_than_all_must(undo: bool, expected: set[int]) -> None:
    """15: a broker restarted before the topic was expanded further. A group's only coordinator may be the wrong one then."""
    view = noted(seen(20, frozenset({10 if undo else 20})), ExpansionStage.DELETED)
    for count in (10, 15, 20):
        facts = {broker: frozenset({count if broker == 1 else 10 if undo else 20}) for broker in range(3)}
        decision = expansion.decide_import(
            replace(view, coordinators=CoordinatorFacts({OFFSETS.name: facts}, GROUPS)), 20, Export(), undo=undo
        )
        assert isinstance(decision, Done) is (count not in expected), count


STAYING = tuple(group for group in GROUPS if not expansion.is_moved_by(group, Expansion((10,), 20)))
HOSTED = {b: {group: one for group, one in groups.items() if group in STAYING} for b, groups in (seen().hosted or {}).items()}
ONE_MOVING = next(group for group in GROUPS if group not in STAYING)
OLD, NEW = frozenset({10}), frozenset({20})


def counted(*counts: frozenset[int], transactions: frozenset[int] | None = None) -> CoordinatorFacts:
    topics = {OFFSETS.name: dict(enumerate(counts))}
    more = {} if transactions is None else {TRANSACTIONS.name: dict.fromkeys(range(3), transactions)}
    return CoordinatorFacts({**topics, **more}, STAYING)


def expanded(**changes: object) -> ClusterView:
    """The topic has 20 partitions, brokers use 10, and nothing is left of a group that moves."""
    view = noted(seen(20, OLD), ExpansionStage.DELETED)
    facts = counted(OLD, OLD, OLD)
    return replace(view, coordinators=facts, hosted=HOSTED, min_insync={"t": 1, OFFSETS.name: 2}, **{"moving": (), **changes})


def with_file(view: ClusterView, broker: int, count: str | None, **changes: object) -> ClusterView:
    one = view.brokers[broker]
    keys = {**(one.files.properties or {}), **({} if count is None else {OFFSETS.setting: count})}
    return replace(view, brokers={**view.brokers, broker: replace(one, files=NodeFiles(keys), **changes)})


def with_transactions(view: ClusterView, count: frozenset[int]) -> ClusterView:
    rows = (*(view.partitions or ()), *(Partition(TRANSACTIONS.name, p, p % 3, (0, 1, 2), (0, 1, 2)) for p in range(5)))
    facts = counted(*(view.coordinators.counts[OFFSETS.name][b] for b in range(3)), transactions=count)  # type: ignore[union-attr]
    return replace(view, partitions=rows, coordinators=facts, min_insync={**(view.min_insync or {}), TRANSACTIONS.name: 1})


def joined(view: ClusterView, group: HostedGroup) -> ClusterView:
    return replace(view, hosted={**HOSTED, 0: {**HOSTED[0], ONE_MOVING: group}})


KRAFT_OWNS = cluster([KRAFT] * 3, [True] * 3, 50)
ONE_RESTARTED = replace(expanded(), coordinators=counted(NEW, OLD, OLD))
BEHIND = replace(expanded(), partitions=tuple(replace(p, isr=p.replicas[:1]) for p in expanded().partitions or ()))
RESTARTS = [
    ("ready", expanded(), 0, ("Act", "restart")),
    ("no note", replace(expanded(), zk=replace(expanded().zk or ZkView(), expansion=None)), 0, ("Refuse", "K83")),
    ("not expanded", noted(seen(10), ExpansionStage.DELETING), 0, ("Refuse", "K83")),
    ("the log may hold old commits", noted(expanded(), ExpansionStage.DELETING), 0, ("Refuse", "K83")),
    ("a member", joined(expanded(), HostedGroup("Stable", 1)), 0, ("Wait", "K79")),
    ("something is left", joined(expanded(), HostedGroup("Empty")), 0, ("Refuse", "K82")),
    ("groups unread", replace(expanded(), hosted={0: {}, 1: {}}), 0, ("Wait", "K02")),
    ("not asked", replace(expanded(), coordinators=None), 0, ("Wait", "K02")),
    ("out of sync", BEHIND, 0, ("Wait", "S02")),
    ("moving partitions", expanded(moving=("t-0",)), 0, ("Wait", "S04")),
    ("process unknown", with_file(expanded(), 0, None, process=Process()), 0, ("Wait", "U04")),
    ("transactions agree", with_transactions(expanded(), frozenset({5})), 0, ("Act", "restart")),
    ("transactions do not", with_transactions(expanded(), frozenset({4})), 0, ("Refuse", "K77")),
    ("once one uses the new count, whichever group has members", joined(ONE_RESTARTED, HostedGroup("Stable", 1)), 1, ("Act", "restart")),
    ("it uses the new count, and so does its file", with_file(ONE_RESTARTED, 0, "20"), 0, ("Done", "")),
    ("it uses the new count without the file", ONE_RESTARTED, 0, ("Act", "rewrite")),
    ("answers that fit both", with_file(replace(expanded(), coordinators=counted(*3 * [OLD | NEW])), 0, "20"), 0, ("Act", "restart")),
    ("does not answer", with_file(expanded(), 0, "20", mode=None), 0, ("Wait", "R01")),
    ("stopped by us", with_file(expanded(), 0, "20", mode=None, process=DOWN, in_zookeeper=False), 0, ("Act", "start")),
    ("its session is not over", with_file(expanded(), 0, "20", mode=None, process=DOWN), 0, ("Wait", "R03")),
    ("stopped by another", with_file(expanded(), 0, "10", mode=None, process=DOWN, in_zookeeper=False), 0, ("Wait", "R01")),
    ("file unread", replace(expanded(), brokers={**expanded().brokers, 0: replace(expanded().brokers[0], files=NodeFiles())}), 0, ("Wait", "G00")),
]  # fmt: skip


@pytest.mark.parametrize(("view", "broker", "expected"), [row[1:] for row in RESTARTS], ids=[row[0] for row in RESTARTS])
def test_when_a_broker_may_restart(view: ClusterView, broker: int, expected: tuple[str, str]) -> None:
    decision = expansion.decide_restart(view, broker, 20, restarted=False)
    said = decision.verb if isinstance(decision, Act) else next((reason.code for reason in getattr(decision, "reasons", ())), "")
    assert (type(decision).__name__, said) == expected


def test_a_process_relies_on_its_own_restart_if_answers_fit_both_counts() -> None:
    both = with_file(replace(expanded(), coordinators=counted(*3 * [OLD | NEW])), 0, "20")
    assert isinstance(expansion.decide_restart(both, 0, 20, restarted=True), Done)


def test_a_broker_is_not_restarted_under_an_alarm_or_without_its_controllers() -> None:
    kraft = replace(
        expanded(), **{name: getattr(KRAFT_OWNS, name) for name in ("brokers", "controllers", "quorum", "partitions")}
    )
    rows = tuple(row for row in expanded().partitions or () if row.topic == OFFSETS.name)
    kraft = replace(
        kraft, partitions=rows, zk=replace(KRAFT_OWNS.zk or ZkView(), expansion=Expansion((10,), 20, ExpansionStage.DELETED))
    )
    assert isinstance(expansion.decide_restart(kraft, 0, 20, restarted=False), Act)
    leaderless = expansion.decide_restart(replace(kraft, quorum=None), 0, 20, restarted=False)
    assert "G20" in {reason.code for reason in getattr(leaderless, "reasons", ())}


def test_the_zookeeper_controller_restarts_last() -> None:
    view = expanded()
    zk = replace(view.zk or ZkView(), broker_ids=(0, 1, 2), controller=ZkController(1, -1, ephemeral=True))
    assert [bool(roll.why_broker_restarts_last(replace(view, zk=zk), broker)) for broker in range(3)] == [False, True, False]
    assert roll.why_broker_restarts_last(replace(view, zk=replace(zk, broker_ids=(1,))), 1) == ""


def test_the_plan_needs_transactions_and_files_too() -> None:
    view = seen()
    broken = replace(
        with_transactions(view, frozenset({4})),
        coordinators=replace(counted(OLD, OLD, OLD, transactions=frozenset({4})), groups=GROUPS),
    )
    assert "K77" in {reason.code for reason in getattr(expansion.decide_plan(broken, 20), "reasons", ())}
    unread = replace(view, brokers={**view.brokers, 1: replace(view.brokers[1], files=NodeFiles())})
    assert isinstance(expansion.decide_plan(unread, 20), Wait)
