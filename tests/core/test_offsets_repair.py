"""The repair of `__consumer_offsets`: one key by hand, and whole plans against a model that knows only pairs of records."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
    BrokerMode,
    ClusterView,
    CoordinatorFacts,
    FetchedOffset,
    HostedGroup,
)
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.migration.coordinator import hash_group
from airflow_provider_kmigrate.core.offsets_topic import offsets_repair
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import (
    CopyState,
    Doubt,
    GroupLog,
    GroupLogs,
    StoredCommit,
    StoredGroup,
    StrayRecord,
    build_trails,
    is_interleaved,
    judge_copies,
    sort_by_commit_time,
)
from airflow_provider_kmigrate.exceptions import Refused
from tests.core.views import cluster
from tests.kit.offsets_placed import misplaced

COUNT, OLD = 15, 10
GROUP = next(
    name for number in range(9999) if hash_group(name := f"group-{number}") % COUNT == 12 and hash_group(name) % OLD == 2
)
KEY = GroupPartition(GROUP, "orders", 0)
HOME, THERE = 12, 2


def commits(*rows: tuple[int, int, int | None]) -> list[StoredCommit]:
    """Of (place, commit time, offset), in the order in which they were written."""
    at: dict[int, int] = {}
    found = []
    for place, t_ms, offset in rows:
        at[place] = at.get(place, 100 * (place == THERE)) + 1
        found.append(StoredCommit(place, at[place], t_ms, t_ms, offset, key=b"k%d" % place))
    return found


CASES = {
    "only at home": ([(HOME, 1, 5), (HOME, 2, 6)], CopyState.IN_PLACE, 6, ()),
    "moved, and continued": ([(THERE, 1, 5), (HOME, 2, 6)], CopyState.IGNORED, 6, ()),
    "the topic's own count is not in use yet": ([(THERE, 1, 5), (THERE, 2, 6)], CopyState.MISPLACED, None, ()),
    "nothing at home any more": ([(HOME, 1, 4), (HOME, 2, None), (THERE, 3, 6)], CopyState.MISPLACED, None, ()),
    "a broker went back to the old count": ([(HOME, 1, 5), (THERE, 2, 6)], CopyState.AHEAD, 5, ()),
    "acknowledged, ignored, and read again": (
        [(THERE, 1, 111), (HOME, 2, 999), (HOME, 3, 112)],
        CopyState.REVIVED,
        112,
        (),
    ),
    "the newer one is smaller": ([(THERE, 1, 111), (HOME, 2, 0)], CopyState.IGNORED, 0, (Doubt.WENT_BACK,)),
    "two coordinators": (
        [(THERE, 1, 5), (HOME, 2, 6), (THERE, 3, 7)],
        CopyState.SPLIT,
        6,
        (Doubt.INTERLEAVED,),
    ),
    "two coordinators that agree": ([(THERE, 1, 5), (HOME, 2, 7), (THERE, 3, 7)], CopyState.SPLIT, 7, ()),
    "one millisecond": ([(THERE, 1, 5), (HOME, 1, 6)], CopyState.IGNORED, 6, (Doubt.EQUAL_TIME,)),
    "deleted under the new count": ([(THERE, 1, 5), (HOME, 2, 6), (HOME, 3, None)], CopyState.REMOVED, None, (Doubt.REMOVED,)),
    "deleted under the old count": ([(THERE, 1, 5), (THERE, 2, None), (HOME, 3, 6)], CopyState.IN_PLACE, 6, ()),
    "it went on from exactly the older commit": ([(THERE, 1, 111), (HOME, 2, 999), (HOME, 3, 111)], CopyState.REVIVED, 111, ()),
    "set back below the older commit": (
        [(THERE, 1, 111), (HOME, 2, 999), (HOME, 3, 50)],
        CopyState.IGNORED,
        50,
        (Doubt.WENT_BACK,),
    ),
    "set back in its own partition": (
        [(THERE, 1, 100), (HOME, 2, 5), (HOME, 3, 9), (HOME, 4, 6)],
        CopyState.IGNORED,
        6,
        (Doubt.WENT_BACK,),
    ),
    "it moved within a millisecond": ([(THERE, 1, 5), (THERE, 3, 6), (HOME, 3, 7), (HOME, 5, 8)], CopyState.IGNORED, 8, ()),
    "three copies, two of them alike": ([(7, 1, 5), (THERE, 2, 6), (HOME, 3, 6)], CopyState.IGNORED, 6, ()),
    "deleted everywhere": ([(THERE, 1, 5), (THERE, 2, None), (HOME, 3, None)], CopyState.IN_PLACE, None, ()),
}


@pytest.mark.parametrize("name", CASES)
def test_one_key(name: str) -> None:
    rows, state, current, doubts = CASES[name]
    judged = judge_copies(KEY, reversed(commits(*rows)), COUNT)
    assert (judged.home, judged.state, judged.doubts) == (HOME, state, doubts)
    assert (judged.current.offset if judged.current else None) == current


@pytest.mark.parametrize(("there", "state"), [(3, CopyState.STALE), (4, CopyState.IGNORED), (5, CopyState.IGNORED)])
def test_a_newer_commit_is_taken_only_if_it_lies_further_on_in_its_log(there: int, state: CopyState) -> None:
    """By a broker that leads both: Kafka replaces a commit in memory only if the new one's record has the higher offset."""
    records = [StoredCommit(THERE, there, 1, 1, 5), StoredCommit(HOME, 4, 2, 2, 6)]
    assert judge_copies(KEY, records, COUNT).state is state


def test_of_two_equal_commits_of_one_millisecond_the_one_at_home_stays() -> None:
    records = [StoredCommit(THERE, 9, 1, 1, 5, metadata="there", key=b"k"), StoredCommit(HOME, 4, 1, 1, 5, metadata="home")]
    plan = offsets_repair.plan_repair({GROUP: log_of_records(records)}, COUNT)
    assert (plan.imports, len(plan.strays)) == ({}, 1)


@pytest.mark.parametrize("changed", [{"metadata": "x"}, {"leader_epoch": 2}])
def test_epoch_and_metadata_are_part_of_a_commit(changed: dict[str, object]) -> None:
    home = StoredCommit(HOME, 4, 1, 1, 5)
    records = [home, home._replace(place=THERE, commit_ms=2, **changed)]
    assert offsets_repair.plan_repair({GROUP: log_of_records(records)}, COUNT).imports


def test_the_same_records_under_another_count() -> None:
    judged = judge_copies(KEY, commits((THERE, 1, 5), (HOME, 2, 6)), OLD)
    assert (judged.current and judged.current.offset, judged.state) == (5, CopyState.AHEAD)


def log_of(*rows: tuple[int, int, int | None], states: Sequence[int] = ()) -> dict[str, GroupLog]:
    return logs_of([(KEY, record) for record in commits(*rows)], {place: StoredGroup(place, 1, b"s") for place in states})


def logs_of(
    records: Iterable[tuple[GroupPartition, StoredCommit]], states: Mapping[int, StoredGroup] | None = None
) -> dict[str, GroupLog]:
    logs = GroupLogs()
    for key, record in records:
        logs.add_commit(key, record)
    for place, state in (states or {}).items():
        logs.add_state(GROUP, place, state)
    return logs.build()


def log_of_records(records: Iterable[StoredCommit]) -> GroupLog:
    return GroupLog({KEY: build_trails(records)})


def test_the_newest_commit_is_imported_and_the_other_copies_go() -> None:
    plan = offsets_repair.plan_repair(log_of((HOME, 1, 5), (THERE, 2, 6), states=(THERE, HOME)), COUNT)
    assert {key: commit.offset for key, commit in plan.imports.items()} == {KEY: 6}
    assert plan.strays == (StrayRecord(GROUP, KEY, THERE, b"k2"), StrayRecord(GROUP, None, THERE, b"s"))
    assert (plan.stop, plan.undecided) == ((GROUP,), ())
    shown = json.loads(json.dumps(plan.as_dict()))
    assert shown["strays"] == [{"group": GROUP, "place": THERE, "key": key.hex()} for key in (b"k2", b"s")]


def test_a_state_alone_in_an_old_partition_would_hide_the_group_and_goes_too() -> None:
    plan = offsets_repair.plan_repair(log_of((HOME, 1, 5), states=(THERE, HOME)), COUNT)
    assert (plan.stop, plan.imports, len(plan.strays)) == ((GROUP,), {}, 1)


def test_nothing_to_do() -> None:
    assert offsets_repair.plan_repair(log_of((HOME, 1, 5), states=(HOME,)), COUNT).empty
    assert offsets_repair.plan_repair(log_of((THERE, 1, 5), (THERE, 2, None), (HOME, 3, 6)), COUNT).empty


@pytest.mark.parametrize(
    ("decision", "imports"), [({KEY: 111}, {KEY: 111}), ({KEY: 0}, {}), ({KEY: 50}, None), ({KEY: None}, None), ({}, None)]
)
def test_a_doubt_is_an_operators_and_only_for_a_value_that_is_there(
    decision: Mapping[GroupPartition, int | None], imports: Mapping[GroupPartition, int] | None
) -> None:
    plan = offsets_repair.plan_repair(log_of((THERE, 1, 111), (HOME, 2, 0)), COUNT, decision)
    if imports is None:
        assert [one.doubts for one in plan.undecided] == [(Doubt.WENT_BACK,)]
        assert "111" in json.dumps(plan.as_dict())
        assert (plan.stop, plan.imports, plan.strays) == ((GROUP,), {}, ())
    else:
        assert {key: commit.offset for key, commit in plan.imports.items()} == imports
        assert len(plan.strays) == 1


def test_a_removed_offset_stays_removed_only_if_an_operator_says_so() -> None:
    log = log_of((THERE, 1, 5), (HOME, 2, 6), (HOME, 3, None))
    assert offsets_repair.plan_repair(log, COUNT).undecided
    kept = offsets_repair.plan_repair(log, COUNT, {KEY: None})
    assert (kept.imports, len(kept.strays), kept.undecided) == ({}, 1, ())
    assert {key: one.offset for key, one in offsets_repair.plan_repair(log, COUNT, {KEY: 5}).imports.items()} == {KEY: 5}


def test_copies_of_a_topic_that_is_gone_are_removed_without_a_question_and_not_imported() -> None:
    doubt = log_of((THERE, 1, 111), (HOME, 2, 0))
    plan = offsets_repair.plan_repair(doubt, COUNT, gone={KEY.topic})
    assert (plan.undecided, plan.imports, [one.place for one in plan.strays], plan.stop) == ((), {}, [THERE], (GROUP,))


def test_one_doubt_holds_back_its_whole_group_and_no_other() -> None:
    other = GroupPartition(GROUP, "orders", 1)
    clear = [(other, record) for record in commits((HOME, 1, 5), (THERE, 2, 6))]
    doubt = [(KEY, record) for record in commits((THERE, 1, 111), (HOME, 2, 0))]
    away = GroupPartition("g0", "orders", 0)
    lost = [(away, StoredCommit((hash_group("g0") + 1) % COUNT, 1, 1, 1, 9))]
    plan = offsets_repair.plan_repair(logs_of([*clear, *doubt, *lost]), COUNT)
    assert (set(plan.imports), {one.group for one in plan.strays}) == ({away}, {"g0"})
    assert set(plan.stop) == {GROUP, "g0"}


@pytest.mark.parametrize(
    ("rows", "states", "wanted", "counts", "said"),
    [
        ([(HOME, 2, 6)], (HOME,), 6, (COUNT,), ""),
        ([(THERE, 1, 5), (THERE, 2, None), (HOME, 3, 6)], (), 6, (COUNT,), ""),
        ([(THERE, 1, 6)], (THERE,), 6, (7, OLD), ""),
        ([(THERE, 1, 5), (THERE, 2, None)], (), None, (), ""),
        ([(THERE, 1, 6), (HOME, 2, 6)], (), 6, (COUNT,), "must be offset 6, and offset 6 .* and offset 6 .* is stored"),
        ([(THERE, 1, 6)], (), 6, (COUNT,), "must be offset 6, and offset 6 .record 101 of partition 2"),
        ([(HOME, 1, 6)], (), 7, (COUNT,), "must be offset 7, and offset 6"),
        ([(HOME, 1, 6), (HOME, 2, None)], (), 6, (COUNT,), "must be offset 6, and nothing is stored"),
        ([(HOME, 1, 6)], (), None, (COUNT,), "must be nothing, and offset 6"),
        ([(HOME, 1, None)], (HOME,), None, (), f"{GROUP} is stored as a group in partition {HOME}"),
        ([(HOME, 1, 6)], (THERE,), 6, (COUNT,), f"{GROUP} is stored as a group in partition {THERE}"),
    ],
)
def test_how_the_log_differs_from_what_it_must_hold(
    rows: list[tuple[int, int, int | None]], states: tuple[int, ...], wanted: int | None, counts: tuple[int, ...], said: str
) -> None:
    expected = {} if wanted is None else {KEY: FetchedOffset(wanted)}
    found = offsets_repair.find_log_mismatches(log_of(*rows, states=states), expected, counts)
    assert len(found) == bool(said)
    assert re.search(said, "".join(found))


def test_the_question_to_an_operator_shows_control_characters_of_a_group_as_text() -> None:
    key = GroupPartition("a\n[K01] forged", "orders", 0)
    home = hash_group(key.group) % COUNT
    rows = [(key, StoredCommit(home, 1, 2, 2, 0)), (key, StoredCommit((home + 1) % COUNT, 1, 1, 1, 9))]
    decision = offsets_repair.decide_repair(offsets_repair.plan_repair(logs_of(rows), COUNT), seen({}))
    assert "a\\n[K01] forged orders-0" in "".join(reason.text for reason in getattr(decision, "reasons", ()))


def test_a_leader_epoch_or_metadata_that_differs_is_another_commit() -> None:
    for other in (FetchedOffset(6, 1), FetchedOffset(6, -1, "m")):
        assert offsets_repair.find_log_mismatches(log_of((HOME, 2, 6)), {KEY: other}, (COUNT,))
    assert offsets_repair.find_log_mismatches({}, {KEY: FetchedOffset(6)}, (COUNT,)) == [
        f"{GROUP} orders-0 must be offset 6, and nothing is stored"
    ]


def test_the_reader_after_a_repair_names_what_is_wrong() -> None:
    log = log_of((THERE, 1, 5), (HOME, 2, 6))
    assert misplaced(log_of((HOME, 2, 6)), COUNT, {KEY: 6}) == ()
    (text,) = misplaced(log, COUNT, {KEY: 6})
    assert "has a copy: offset 5" in text
    assert "must be 7; stored is offset 6" in " ".join(misplaced(log, COUNT, {KEY: 7}))
    assert "not stored" in misplaced({}, COUNT, {KEY: 7})[0]
    assert misplaced(log_of((HOME, 2, 6), states=(THERE, HOME)), COUNT, {KEY: 6}) == (f"{GROUP} has its state in {THERE}",)


# Whole plans. The model looks at pairs of records only, and knows nothing of sorting, of states or of the plan's fields.

Rows = list[tuple[int, int, int | None]]
ROWS = st.lists(
    st.tuples(st.sampled_from([HOME, THERE, 7]), st.integers(1, 6), st.one_of(st.none(), st.integers(0, 3))), max_size=9
)


def last(records: Sequence[StoredCommit]) -> list[StoredCommit]:
    return [one for one in records if not any(other.place == one.place and other.at > one.at for other in records)]


def model_doubtful(records: Sequence[StoredCommit]) -> bool:
    """Some pair of copies, or a copy and the home's removal, that time does not order, or orders against the offsets."""
    records = without_import(records)
    copies = [one for one in last(records) if one.offset is not None]
    gone = [one for one in last(records) if one.offset is None and one.place == HOME]
    if gone and copies and all(gone[0].t_ms >= copy.commit_ms for copy in copies):
        return True
    if all(one.offset == other.offset for one, other in itertools.combinations(copies, 2)):
        return False
    newest = max(copy.commit_ms for copy in copies)
    for one, other in itertools.permutations(copies, 2):
        if one.commit_ms == other.commit_ms == newest and one.offset != other.offset:
            return True
        if one.commit_ms == newest > other.commit_ms and (other.offset or 0) > (one.offset or 0):
            return True
    places = {copy.place for copy in copies}
    written = [one for one in records if one.offset is not None and one.place in places]
    return any(
        one.place == third.place != other.place and one.commit_ms < other.commit_ms < third.commit_ms
        for one, other, third in itertools.permutations(written, 3)
    )


def without_import(records: Sequence[StoredCommit]) -> Sequence[StoredCommit]:
    """The records without a last commit in the home that is the newest of all and repeats the newest stray."""
    copies = [one for one in last(records) if one.offset is not None]
    strays = sorted((one for one in copies if one.place != HOME), key=lambda one: (-one.commit_ms, one.place))
    for one in copies:
        if one.place == HOME and strays and one.commit_ms > strays[0].commit_ms and one.offset == strays[0].offset:
            return [other for other in records if other is not one]
    return records


@given(ROWS)
@example(
    [(HOME, 1, 1), (HOME, 3, 1), (HOME, 5, 1), (HOME, 5, 1), (THERE, 1, 1), (THERE, 5, 1)]
)  # the same ends, one between them
@example([(HOME, 1, 1), (HOME, 5, 1), (THERE, 1, 1), (THERE, 5, 1)])
def test_times_alone_show_whether_two_coordinators_committed_alternately(rows: Rows) -> None:
    records = [StoredCommit(place, at, t_ms, t_ms, offset) for at, (place, t_ms, offset) in enumerate(rows)]
    times = [trail.times for trail in build_trails(records).values() if trail.times]
    overlap = any(one.overlaps(other) for one, other in itertools.combinations(times, 2))
    assert overlap is is_interleaved(sort_by_commit_time(records))


def test_a_repair_that_was_killed_after_its_import_is_not_taken_for_a_second_coordinator() -> None:
    """Three partitions of the topic hold copies, after two expansions; the home's own commits are older than both strays."""
    records = commits((HOME, 1, 2), (THERE, 3, 2), (7, 6, 3))
    plan = offsets_repair.plan_repair({GROUP: log_of_records(records)}, COUNT)
    assert not plan.undecided
    imported = apply(records, offsets_repair.RepairPlan(COUNT, imports=plan.imports))
    again = offsets_repair.plan_repair({GROUP: log_of_records(imported)}, COUNT)
    assert (again.undecided, again.imports, again.strays) == ((), {}, plan.strays)
    another = [*records, StoredCommit(HOME, 9, 100, 100, 2)]
    assert offsets_repair.plan_repair({GROUP: log_of_records(another)}, COUNT).undecided, "a commit of its own repeats nothing"
    before = commits((HOME, 1, 2), (7, 2, 2), (HOME, 4, 3), (THERE, 6, 3))
    assert offsets_repair.plan_repair({GROUP: log_of_records(before)}, COUNT).undecided, "an import is newer than what it repeats"


def apply(records: Sequence[StoredCommit], plan: offsets_repair.RepairPlan) -> list[StoredCommit]:
    """What the log holds once the plan was carried out; what is imported is newer than everything."""
    written, end = list(records), 1 + max((one.at for one in records), default=0)
    for key, commit in plan.imports.items():
        assert key == KEY
        written.append(commit._replace(place=HOME, at=end, t_ms=100, commit_ms=100))
    return [*written, *(StoredCommit(stray.place, end + 1, 101, 101, None) for stray in plan.strays)]


@given(ROWS)
def test_a_plan_is_the_models(rows: Rows) -> None:
    records = [StoredCommit(place, at, t_ms, t_ms, offset) for at, (place, t_ms, offset) in enumerate(rows)]
    plan = offsets_repair.plan_repair({GROUP: log_of_records(records)}, COUNT)
    copies = [one for one in last(records) if one.offset is not None]
    strays = {one.place for one in copies if one.place != HOME}
    doubtful = bool(strays) and model_doubtful(records)
    assert bool(plan.undecided) is doubtful
    assert set(plan.stop) == ({GROUP} if strays else set())
    if doubtful or not strays:
        assert (plan.imports, plan.strays) == ({}, ())
        return
    newest = max(one.commit_ms for one in copies)
    (right,) = {one.offset for one in copies if one.commit_ms == newest}
    after = last(apply(records, plan))
    assert {one.offset for one in after if one.place == HOME} == {right}
    assert {one.offset for one in after if one.place != HOME} <= {None}
    assert {stray.place for stray in plan.strays} == strays


@given(ROWS, st.data())
def test_a_plan_that_was_carried_out_leaves_nothing_to_do_wherever_it_was_interrupted(rows: Rows, data: st.DataObject) -> None:
    records = [StoredCommit(place, at, t_ms, t_ms, offset) for at, (place, t_ms, offset) in enumerate(rows)]
    first = offsets_repair.plan_repair({GROUP: log_of_records(records)}, COUNT)
    choices = [value.offset for one in first.undecided for value in one.values]
    decided = {KEY: data.draw(st.sampled_from(choices))} if choices else {}
    whole = offsets_repair.plan_repair({GROUP: log_of_records(records)}, COUNT, decided)
    assert not whole.undecided
    imported = apply(records, offsets_repair.RepairPlan(COUNT, imports=whole.imports))
    again = offsets_repair.plan_repair({GROUP: log_of_records(imported)}, COUNT, decided)
    assert not again.undecided, "the same decision holds after the import"
    assert {stray.place for stray in again.strays} == {stray.place for stray in whole.strays}
    assert offsets_repair.plan_repair({GROUP: log_of_records(apply(records, whole))}, COUNT).empty


# What the step does next, and what an operator may say


ALL: Mapping[int, Mapping[str, HostedGroup]] = {broker: {} for broker in range(3)}


def seen(hosted: Mapping[int, Mapping[str, HostedGroup]] | None = ALL) -> ClusterView:
    return replace(cluster([BrokerMode.ZOOKEEPER] * 3), coordinators=CoordinatorFacts({}), hosted=hosted)


def test_the_acts_in_their_order() -> None:
    first = offsets_repair.plan_repair(log_of((HOME, 1, 5), (THERE, 2, 6)), COUNT)
    decided = offsets_repair.decide_repair(first, seen())
    assert isinstance(decided, Act)
    assert decided.verb is Verb.IMPORT
    second = offsets_repair.plan_repair(log_of((THERE, 1, 5), (HOME, 2, 6)), COUNT)
    decided = offsets_repair.decide_repair(second, seen())
    assert isinstance(decided, Act)
    assert decided.verb is Verb.CLEAN_UP
    assert isinstance(offsets_repair.decide_repair(offsets_repair.plan_repair(log_of((HOME, 2, 6)), COUNT), seen()), Done)


def test_nothing_is_done_while_a_group_has_members_or_a_broker_does_not_report_its_groups() -> None:
    plan = offsets_repair.plan_repair(log_of((HOME, 1, 5), (THERE, 2, 6)), COUNT)
    joined = offsets_repair.decide_repair(plan, seen({**ALL, 0: {GROUP: HostedGroup("Stable", 2)}}))
    assert isinstance(joined, Wait)
    assert [reason.code for reason in joined.reasons] == ["K79"]
    for hosted in (None, {1: {}, 2: {}}):
        unread = offsets_repair.decide_repair(plan, seen(hosted))
        assert isinstance(unread, Wait)
        assert [reason.code for reason in unread.reasons] == ["K02"]


def test_decisions_as_an_operator_writes_them() -> None:
    assert offsets_repair.parse_decisions({"g": {"a-b-3": 7, "t-0": None}}) == {
        GroupPartition("g", "a-b", 3): 7,
        GroupPartition("g", "t", 0): None,
    }


@pytest.mark.parametrize(
    "wrong", [{"g": {"t": 1}}, {"g": {"-1": 1}}, {"g": {"t-0": "7"}}, {"g": {"t-0": -1}}, {"g": {"t-0": True}}]
)
def test_anything_else_is_refused(wrong: Mapping[str, Mapping[str, int | None]]) -> None:
    with pytest.raises(Refused, match="F09"):
        offsets_repair.parse_decisions(wrong)
