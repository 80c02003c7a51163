"""Which move of a cutover and of its rollback is next, as tables; and its note."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Verb
from airflow_provider_kmigrate.core.cluster_state.spec import GroupWay
from airflow_provider_kmigrate.core.groups.cutover import (
    MOVED,
    ROLLED_BACK,
    decide_cutover,
    decide_cutover_rollback,
    describe_plan,
    find_empty_partitions,
    returned_reasons,
    unreachable_goal_reasons,
)
from airflow_provider_kmigrate.core.groups.cutover_state import STOPPED, CutoverState, CutoverTurn, InstanceRequest, QuietTimer
from airflow_provider_kmigrate.core.groups.move import Goal, decide_clean_up, has_left_zookeeper
from airflow_provider_kmigrate.core.member.cutover_note import (
    CanaryPhase,
    CutoverNote,
    UnreadableNote,
    read_cutover,
    write_cutover,
)
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup, Store, StoredOffset
from tests.core import group_facts
from tests.core.group_facts import KAFKA, T0, T1, changed, group, verdict

SPEC = replace(group_facts.SPEC, way=GroupWay.CUTOVER)
NOTE = CutoverNote("run", 1000, frozenset({T0, T1}))
COPIED, MOVED_NOTE = replace(NOTE, copied=True), replace(NOTE, copied=True, moved_ms=9000)
FAILED = replace(NOTE, failed=(("K91", "it did not stop"),))
BEHIND = {"committed": {T0: 5, T1: 5}}
NOBODY_KAFKA = {"kafka": KafkaGroup("Empty")}
LONG = 300.0  # past nine tenths of switch_timeout


def seen(a: str = "", b: str = "", note: object = None, **fields: object) -> GroupSeen:
    if not {"k", "m"} & {a, b}:
        fields = {**NOBODY_KAFKA, **fields}
    return changed(group(a, b, None, **fields), cutover=note)


def take(state: CutoverState, observed: GroupSeen | None, *, at: float = 0.0, times: int = 1, back: bool = False) -> CutoverTurn:
    """Decide `times` times on the same observation, a second apart."""
    decide = decide_cutover_rollback if back else decide_cutover
    for n in range(times):
        turn = decide(state, observed, at + n, SPEC)
        state = turn.state
    return turn


def asked(kind: str, at: float = 0.0, error: str = "", *names: str) -> CutoverState:
    return CutoverState(requests={name: InstanceRequest(kind, at, error) for name in names or ("a", "b")}, started_at=at)


TRIED_TWICE = CutoverState({name: InstanceRequest(STOPPED, 0.0, "exit code 1", tries=2) for name in ("a", "b")}, started_at=0.0)
UNREAD = GroupSeen("g")
QUIET = 6  # observations, a second apart, that are more than `quiet`


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (None, "wait K30"),
        (UNREAD, "wait K30"),
        (seen("z", "z"), Verb.STOP_INSTANCES),
        (seen("z", ""), "wait K55"),
        (seen(), "wait K55"),
        (seen("k", "k"), "done"),
        (seen("z", "k"), "never K38"),
        (seen("z", "m"), "never K58"),
        (seen("z", "z", ends={T0: 10}), "wait K30"),
        (seen("z", "z", ends={T0: 10, T1: 9}), "never K42"),
        (seen("z", "z", committed={T0: 11, T1: 10}), "never K64"),
        (seen("z", "z", committed={}), Verb.STOP_INSTANCES),
        (changed(seen("z", "z"), offsets={T0: StoredOffset(10, 0.0)}), "wait K42"),
        (changed(seen("z", "z"), owners={T0: "g_a-0"}), "wait K44"),
        (changed(seen("z", "z"), resets={T0: 5}), "never K46"),
        (seen("z", "z", UnreadableNote("{}")), "never K94"),
    ],
)
def test_before_the_stop(observed: GroupSeen | None, expected: str) -> None:
    assert verdict(take(CutoverState(), observed).decision) == expected


@pytest.mark.parametrize(
    ("state", "observed", "at", "expected"),
    [
        (CutoverState(), seen("z", "z", NOTE), 0.0, Verb.STOP_INSTANCES),
        (asked(STOPPED), seen("z", "", NOTE), 1.0, "wait K91"),
        (asked(STOPPED), seen("z", "", NOTE), LONG, Verb.ROLL_BACK),
        (asked(STOPPED, 0.0, "exit code 1"), seen("z", "", NOTE), 1.0, Verb.ROLL_BACK),
        (replace(asked(STOPPED), stopped=frozenset({"a"})), seen("z", "", NOTE), 1.0, Verb.ROLL_BACK),
        (CutoverState(), changed(seen("z", "z", NOTE), registrations={"g_x": group_facts.STATIC}), 0.0, Verb.ROLL_BACK),
        (CutoverState(), seen("z", "", COPIED), 0.0, Verb.ROLL_BACK),
        (CutoverState(), seen("z", "k", COPIED), 0.0, Verb.ROLL_BACK),
        (CutoverState(), seen("k", "k", NOTE), 0.0, Verb.ROLL_BACK),
        (CutoverState(), seen("", "", NOTE), 0.0, "wait T01"),
        (CutoverState(), changed(seen("", "", NOTE), owners={T0: "g_a-0"}), 0.0, "wait K52"),
        (CutoverState(unread_at=0.0), GroupSeen("g", seen("", "", NOTE).zk), LONG, Verb.ROLL_BACK),
        (CutoverState(), GroupSeen("g", seen("", "", NOTE).zk), 0.0, "wait K30"),
        (asked(KAFKA), seen("", "", COPIED), 1.0, "wait K93"),
        (asked(KAFKA), seen("", "", COPIED), LONG, Verb.ROLL_BACK),
        (asked(KAFKA, 0.0, "exit code 1"), seen("", "", COPIED), 1.0, Verb.ROLL_BACK),
        (asked(KAFKA), seen("k", "", COPIED), 1.0, "wait K93"),
        (CutoverState(), seen("k", "", COPIED), 1.0, Verb.START_INSTANCES),
        (asked(KAFKA), seen("k", "", COPIED), LONG, Verb.ROLL_BACK),
        (asked(KAFKA), seen("k", "k", COPIED), 1.0, Verb.NOTE),
        (asked(KAFKA), seen("k", "k", COPIED, ends={T0: 12, T1: 12}), 1.0, "wait T01"),
        (replace(asked(KAFKA), joined_at=0.0), seen("k", "k", COPIED, ends={T0: 12, T1: 12}), 101.0, Verb.ROLL_BACK),
        (
            replace(asked(KAFKA), joined_at=0.0, joined_ends={T0: 11, T1: 11}),
            seen("k", "k", COPIED, ends={T0: 11, T1: 11}),
            101.0,
            Verb.NOTE,
        ),
        (asked(KAFKA), seen("k", "k", COPIED, committed={T0: 11, T1: 11}, ends={T0: 20, T1: 20}), 1.0, Verb.NOTE),
        (asked(KAFKA), seen("k", "k", COPIED, committed={T0: 12}, ends={T0: 12, T1: 12}), 1.0, "wait T01"),
        (
            replace(asked(KAFKA), joined_at=0.0, joined_ends={T0: 12, T1: 12}),
            seen("k", "k", COPIED, committed={T0: 12}, ends={T0: 12, T1: 12}),
            101.0,
            Verb.ROLL_BACK,
        ),
        (asked(STOPPED), seen("", "", NOTE), LONG, "wait T01"),
        (CutoverState(unread_at=0.0), GroupSeen("g", seen("k", "k", MOVED_NOTE).zk), LONG, "wait K30"),
        (CutoverState(), seen("k", "k", MOVED_NOTE), 0.0, "done"),
        (CutoverState(), seen("k", "", MOVED_NOTE), 0.0, "wait K55"),
        (CutoverState(), seen("z", "k", MOVED_NOTE), 0.0, "never V30"),
    ],
)
def test_after_the_stop(state: CutoverState, observed: GroupSeen, at: float, expected: str) -> None:
    assert verdict(take(state, observed, at=at).decision) == expected


def test_nobody_for_long_enough_then_a_copy_then_the_start() -> None:
    behind = seen("", "", NOTE, **BEHIND)
    state = CutoverState()
    early = take(state, behind, times=3)
    assert verdict(early.decision) == "wait T01"
    copy = take(early.state, behind, at=5.0)
    assert verdict(copy.decision) == Verb.COPY_OFFSETS
    assert {write.where: write.offset for write in copy.writes.writes} == {T0: 10, T1: 10}
    start = take(copy.state, seen("", "", NOTE), at=6.0)
    assert verdict(start.decision) == Verb.START_INSTANCES, "what was written is read back, and nobody else wrote"
    assert (start.instances, start.kind) == (("a", "b"), KAFKA)
    again = take(copy.state, behind, at=6.0)
    assert verdict(again.decision) == "wait T01", "it reads back differently: the time starts again"


def test_an_unread_side_starts_the_quiet_time_again() -> None:
    state = take(CutoverState(), seen("", "", NOTE), times=QUIET).state
    state = take(state, GroupSeen("g", seen("", "", NOTE).zk), at=8.0).state
    assert verdict(take(state, seen("", "", NOTE), at=9.0).decision) == "wait T01"


def test_offsets_that_move_without_a_member_turn_it_back() -> None:
    state, offset = CutoverState(), 0
    for offset in range(4):
        moving = changed(seen("", "", NOTE), offsets={T0: StoredOffset(offset, float(offset)), T1: StoredOffset(10, 0.0)})
        turn = take(state, moving, at=float(offset))
        state = turn.state
    assert verdict(turn.decision) == Verb.ROLL_BACK
    assert [reason.code for reason in turn.failed] == ["K92"]


def test_one_offset_that_moved_without_a_member_turns_it_back_when_its_time_is_over() -> None:
    state = take(asked(STOPPED), seen("", "", NOTE)).state
    moved = changed(seen("", "", NOTE), offsets={T0: StoredOffset(11, 1.0), T1: StoredOffset(10, 0.0)})
    early = take(state, moved, at=1.0)
    assert verdict(early.decision) == "wait T01"
    late = take(early.state, changed(moved, owners={T0: "g_a-0"}), at=LONG)
    assert [reason.code for reason in late.failed] == ["K92"], "it says more than an owner that was left behind"


def test_without_a_canary_all_instances_stop_at_once() -> None:
    turn = take(CutoverState(), seen("z", "z"))
    assert isinstance(turn.decision, Act)
    assert (turn.instances, turn.decision.about) == (("a", "b"), "")


def test_a_new_version_has_its_time_from_when_all_of_it_has_joined() -> None:
    idle = seen("k", "k", COPIED, ends={T0: 12, T1: 12})
    joined = take(asked(KAFKA), idle, at=50.0)
    assert verdict(take(joined.state, idle, at=149.0).decision) == "wait T01"
    assert [reason.code for reason in take(joined.state, idle, at=150.0).failed] == ["V30"]


def test_a_rollback_is_over_when_the_old_version_is_stable() -> None:
    assert verdict(take(CutoverState(), changed(seen("z", "z", COPIED), owners={}), back=True).decision) == "wait K44"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"ends": {T0: 10, T1: 9}}, "K42"),
        ({"committed": {T0: 11, T1: 10}, "ends": {T0: 20, T1: 20}}, "K64"),
        ({"ends": {T0: 10}}, "K42"),
    ],
)
def test_offsets_that_cannot_be_copied_turn_it_back(fields: dict[str, object], code: str) -> None:
    turn = take(CutoverState(), seen("", "", NOTE, **fields), times=QUIET)
    assert verdict(turn.decision) == Verb.ROLL_BACK
    assert [reason.code for reason in turn.failed] == [code]


def test_a_partition_that_lost_its_offset_turns_it_back() -> None:
    note = replace(NOTE, partitions=NOTE.partitions | {THIRD})
    lost = seen("", "", note, ends={T0: 10, T1: 10, THIRD: 5})
    for observed in (lost, changed(lost, **GROWN)):
        turn = take(CutoverState(), observed, times=QUIET)
        assert [reason.code for reason in turn.failed] == ["K42"]
    empty = take(CutoverState(), seen("", "", note, ends={T0: 10, T1: 10, THIRD: 0}), times=QUIET)
    assert [(write.where, write.offset) for write in empty.writes.writes] == [(THIRD, 0)]


THIRD = T1._replace(partition=2)
WAS_EMPTY = replace(NOTE, partitions=NOTE.partitions | {THIRD}, empty=frozenset({THIRD}))
GROWN = {"cutover_partitions": frozenset({T0, T1, THIRD})}


@pytest.mark.parametrize(
    ("note", "tree"), [(WAS_EMPTY, {}), (NOTE, GROWN)], ids=["was empty when it began", "did not exist when it began"]
)
def test_first_records_that_came_during_the_cutover_are_read_by_the_new_version_and_by_the_old_one(
    note: CutoverNote, tree: dict[str, object]
) -> None:
    """Neither has an offset there, and `auto.offset.reset` might be the end."""
    observed = changed(seen("", "", note, ends={T0: 10, T1: 10, THIRD: 5}), **tree)
    forward = take(CutoverState(), observed, times=QUIET)
    assert verdict(forward.decision) == Verb.COPY_OFFSETS
    assert [(write.where, write.offset) for write in forward.writes.writes] == [(THIRD, 0)]
    back = take(CutoverState(), observed, back=True)
    assert verdict(back.decision) == Verb.COPY_OFFSETS
    assert back.writes.to is Store.ZOOKEEPER
    assert [(write.where, write.offset) for write in back.writes.writes] == [(THIRD, 0)]
    known = changed(observed, offsets={where: StoredOffset(3, 0.0) for where in (T0, T1, THIRD)})
    assert verdict(take(CutoverState(), known, back=True).decision) == Verb.START_INSTANCES


def test_an_offset_that_kafka_alone_has_counts_unless_a_canary_left_it() -> None:
    in_kafka = {"committed": {T0: 10, T1: 10, THIRD: 4}, "ends": {T0: 10, T1: 10, THIRD: 5}}
    known = take(CutoverState(), seen("", "", replace(NOTE, partitions=NOTE.partitions | {THIRD}), **in_kafka), times=QUIET)
    assert verdict(known.decision) == Verb.START_INSTANCES
    of_canary = take(CutoverState(), seen("", "", replace(WAS_EMPTY, canary=CanaryPhase.OVER), **in_kafka), times=QUIET)
    assert [(write.where, write.offset) for write in of_canary.writes.writes] == [(THIRD, 0)]


def test_leftover_offsets_of_what_the_group_does_not_read_hold_nothing() -> None:
    observed = seen("z", "z", committed={T0: 10, T1: 10, THIRD: 4}, ends={T0: 10, T1: 10, THIRD: 5})
    stored = {T0: StoredOffset(10, 0.0), T1: StoredOffset(10, 0.0), THIRD: StoredOffset(3, 0.0)}
    unread = changed(observed, offsets=stored)
    assert verdict(take(CutoverState(), unread).decision) == Verb.STOP_INSTANCES
    read = changed(unread, partitions=frozenset({T0, T1, THIRD}))
    assert verdict(take(CutoverState(), read).decision) == "never K64"


def test_what_is_empty_when_the_cutover_begins_is_known() -> None:
    observed = changed(seen("z", "z", ends={T0: 10, T1: 0, THIRD: 0}), partitions=frozenset({T0, T1, THIRD}))
    assert find_empty_partitions(observed) == {THIRD}, "T1 has an offset, and T0 records"


def test_owners_that_stay_without_a_member_turn_it_back() -> None:
    left = changed(seen("", "", NOTE), owners={T0: "g_a-0"})
    turn = take(asked(STOPPED), left, at=LONG)
    assert [reason.code for reason in turn.failed] == ["K91"]


def test_a_new_version_that_never_settles_turns_it_back() -> None:
    moving = seen("k", "k", COPIED)
    assert moving.kafka is not None
    moving = replace(moving, kafka=replace(moving.kafka, state="PreparingRebalance"))
    assert verdict(take(asked(KAFKA), moving, at=1.0).decision) == "wait K52"
    assert [reason.code for reason in take(asked(KAFKA), moving, at=LONG).failed] == ["K52"]


def test_other_topics_and_missing_partitions_turn_it_back() -> None:
    fewer = replace(COPIED, partitions=frozenset({T0}))
    more = replace(COPIED, partitions=frozenset({T0, T1, T1._replace(partition=2)}))
    for note, at, expected in [(fewer, 1.0, Verb.NOTE), (more, 1.0, "wait K93"), (more, 20.0, Verb.ROLL_BACK)]:
        state = replace(asked(KAFKA), joined_at=0.0)
        assert verdict(take(state, seen("k", "k", note), at=at).decision) == expected
    other = replace(COPIED, partitions=frozenset({T0._replace(topic="u")}))
    assert verdict(take(asked(KAFKA), seen("k", "k", other), at=1.0).decision) == Verb.ROLL_BACK


@pytest.mark.parametrize(
    ("state", "observed", "at", "expected"),
    [
        (CutoverState(), None, 0.0, "wait K30"),
        (CutoverState(), GroupSeen("g", seen("", "", COPIED).zk), 0.0, "wait K30"),
        (CutoverState(), GroupSeen("g", seen("", "", FAILED).zk), 0.0, Verb.START_INSTANCES),
        (CutoverState(), GroupSeen("g", seen("z", "z", FAILED).zk), 0.0, Verb.NOTE),
        (CutoverState(), seen("k", "k", COPIED), 0.0, Verb.STOP_INSTANCES),
        (asked(STOPPED), seen("k", "", COPIED), 1.0, "wait K91"),
        (asked(STOPPED, 0.0, "exit code 1"), seen("k", "", COPIED), 50.0, Verb.STOP_INSTANCES),
        (replace(asked(STOPPED), stopped=frozenset("b")), seen("k", "", COPIED), 1.0, "wait K91"),
        (replace(asked(STOPPED), stopped=frozenset("a")), seen("k", "", COPIED), 1.0, Verb.STOP_INSTANCES),
        (CutoverState(), seen("", "", COPIED, kafka=KafkaGroup("PreparingRebalance")), 0.0, "wait K91"),
        (CutoverState(), seen("", "", COPIED, committed={T0: 10, T1: 12}, ends={T0: 20, T1: 20}), 0.0, "wait T01"),
        (CutoverState(), seen("", "", FAILED, committed={T0: 10, T1: 12}, ends={T0: 20, T1: 20}), 0.0, Verb.START_INSTANCES),
        (CutoverState(), seen("", "", COPIED), 0.0, Verb.STOP_INSTANCES),
        (CutoverState(), seen("", ""), 0.0, Verb.STOP_INSTANCES),
        (asked(STOPPED), seen("", "", COPIED), 0.0, Verb.START_INSTANCES),
        (asked(STOPPED, 0.0, "exit code 1"), seen("", "", COPIED), 1.0, "wait K91"),
        (asked(STOPPED, 0.0, "exit code 1"), seen("", "", COPIED), 6.0, Verb.STOP_INSTANCES),
        (TRIED_TWICE, seen("", "", COPIED), 1.0, Verb.START_INSTANCES),
        (asked("zookeeper"), seen("z", "", COPIED), 1.0, "wait K55"),
        (asked("zookeeper", 0.0, "exit code 1"), seen("z", "", COPIED), 50.0, Verb.START_INSTANCES),
        (CutoverState(), seen("z", "", COPIED), 1.0, Verb.STOP_INSTANCES),
        (CutoverState(), seen("z", "z", COPIED), 1.0, Verb.NOTE),
        (CutoverState(), seen("z", "z", FAILED, committed={T0: 12, T1: 10}, ends={T0: 20, T1: 20}), 1.0, Verb.NOTE),
        (CutoverState(), seen("z", "z"), 1.0, "done"),
        (CutoverState(), seen("m", "z"), 1.0, "never K58"),
        (CutoverState(), seen("z", "z", UnreadableNote("{}")), 1.0, "never K94"),
    ],
)
def test_the_rollback(state: CutoverState, observed: GroupSeen | None, at: float, expected: str) -> None:
    assert verdict(take(state, observed, at=at, back=True).decision) == expected


def test_what_the_new_version_processed_is_copied_back_and_what_is_beyond_a_log_is_not() -> None:
    ahead = seen("", "", COPIED, committed={T0: 15, T1: 12}, ends={T0: 14, T1: 20})
    turn = take(CutoverState(), ahead, times=QUIET, back=True)
    assert verdict(turn.decision) == Verb.COPY_OFFSETS
    assert {write.where: write.offset for write in turn.writes.writes} == {T1: 12}


def test_the_acts_say_what_the_note_becomes() -> None:
    moved, back = (
        take(asked(KAFKA), seen("k", "k", COPIED)).decision,
        take(CutoverState(), seen("z", "z", NOTE), back=True).decision,
    )
    assert isinstance(moved, Act)
    assert isinstance(back, Act)
    assert (moved.about, back.about) == (MOVED, ROLLED_BACK)


def test_the_pause_is_told() -> None:
    done = take(CutoverState(), seen("k", "k", MOVED_NOTE)).decision
    assert isinstance(done, Done)
    assert "stopped for 8.0 s" in done.text


@pytest.mark.parametrize(
    ("observed", "returned"),
    [
        (seen("k", "k", MOVED_NOTE), False),
        (seen("k", "k", COPIED), False),
        (seen("z", "k", COPIED), False),
        (seen("z", "k"), False),
        (seen("z", "k", UnreadableNote("{}")), False),
        (GroupSeen("g", kafka=KafkaGroup("Empty")), False),
        (seen("z", "k", MOVED_NOTE), True),
        (changed(seen("k", "k", MOVED_NOTE), offsets={T0: StoredOffset(10, 7.0)}), True),
        (changed(seen("k", "k", replace(MOVED_NOTE, written_at=7.0)), offsets={T0: StoredOffset(10, 7.0)}), False),
    ],
)
def test_what_is_back_in_zookeeper_after_the_cutover(observed: GroupSeen, returned: bool) -> None:
    assert bool(returned_reasons(observed, SPEC)) is returned
    assert not returned_reasons(observed, group_facts.SPEC), "migrating consumers are allowed there"


@pytest.mark.parametrize(
    ("observed", "expected", "left"),
    [
        (seen("k", "k", MOVED_NOTE), Verb.CLEAN_UP, False),
        (seen("k", "k", COPIED), "never K58", False),
        (seen("k", "k"), "done", True),
        (seen("", "", NOTE), "never K58", False),
    ],
)
def test_the_note_is_deleted_once_the_group_has_moved(observed: GroupSeen, expected: str, left: bool) -> None:
    assert verdict(decide_clean_up(observed, SPEC)) == expected
    assert has_left_zookeeper(observed, SPEC) is left


@pytest.mark.parametrize(
    ("observed", "goal", "said"),
    [
        (seen("z", "z"), None, "a, b stop at once, 2 offsets are copied to Kafka"),
        (seen("k", "k"), None, "Nothing to do"),
        (seen("k", "k", MOVED_NOTE), None, "Then the leftovers in ZooKeeper are deleted"),
        (
            seen("k", "k", MOVED_NOTE),
            Goal.ZOOKEEPER_CONSUMERS,
            "a, b stop at once, and what only Kafka has is copied back, a, b start",
        ),
        (seen("z", "z"), Goal.ZOOKEEPER_CONSUMERS, "Nothing to do"),
    ],
)
def test_the_plan_in_words(observed: GroupSeen, goal: Goal | None, said: str) -> None:
    assert said in describe_plan(observed, SPEC, goal)
    assert "stop at once" not in describe_plan(observed, group_facts.SPEC, goal)


def test_only_the_old_version_is_a_goal_of_its_rollback() -> None:
    assert [bool(unreachable_goal_reasons(SPEC, goal)) for goal in Goal] == [False, True, True]


def test_a_quiet_timer_counts_what_moved() -> None:
    timer = QuietTimer()
    for at, offsets in enumerate([None, 1, 1, 1, 2]):
        timer = timer.add(offsets, float(at))
    assert (timer.changes, timer.reads, timer.since) == (1, 1, 4.0)
    assert not timer.holds(100.0, 5.0), "one observation proves nothing"


class TestNote:
    @pytest.mark.parametrize("note", [NOTE, COPIED, MOVED_NOTE, FAILED, WAS_EMPTY, replace(NOTE, canary=CanaryPhase.PASSED)])
    def test_a_note_is_read_as_it_was_written(self, note: CutoverNote) -> None:
        assert read_cutover(write_cutover(note), 3.0) == replace(note, written_at=3.0)

    @pytest.mark.parametrize(
        "change",
        [
            {"version": 2},
            {"began_ms": True},
            {"topics": {"t": ["0"]}},
            {"topics": {"t": [-1]}},
            {"topics": []},
            {"copied": 1},
            {"failed": [["K91"]]},
            {"failed": [["K91", 1]]},
            {"failed": "no"},
            {"run": None},
            {"canary": "sings"},
            {"empty": {"t": ["0"]}},
            {"empty": 7},
        ],
    )
    def test_anything_else_is_unreadable(self, change: dict[str, object]) -> None:
        values = json.loads(write_cutover(NOTE)) | change
        assert isinstance(read_cutover(json.dumps(values).encode()), UnreadableNote)

    def test_a_note_of_a_former_version_has_no_canary_and_knows_of_no_empty_partition(self) -> None:
        values = json.loads(write_cutover(NOTE))
        del values["canary"], values["empty"]
        assert read_cutover(json.dumps(values).encode()) == NOTE

    @pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"1", b"[" * 600])
    def test_bytes_of_others_are_unreadable(self, data: bytes) -> None:
        assert isinstance(read_cutover(data), UnreadableNote)
