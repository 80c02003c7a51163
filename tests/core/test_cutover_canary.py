"""What the canary of a cutover is asked, and what it proves, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Verb
from airflow_provider_kmigrate.core.cluster_state.spec import GroupWay
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.cutover import decide_cutover, decide_cutover_rollback, describe_plan
from airflow_provider_kmigrate.core.groups.cutover_canary import CANARY, CANARY_PASSED
from airflow_provider_kmigrate.core.groups.cutover_state import STOPPED, CanaryWatch, CutoverState, CutoverTurn, InstanceRequest
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.cutover_note import CanaryPhase, CutoverNote
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup, StoredOffset
from tests.core import group_facts
from tests.core.group_facts import KAFKA, T0, T1, changed, group, verdict

SPEC = replace(group_facts.SPEC, way=GroupWay.CUTOVER, side_by_side=True, bake=150.0)
U0 = TopicPartition("u", 0)
RUNS = CutoverNote("run", 1000, frozenset({T0, T1}), canary=CanaryPhase.RUNS)
PASSED, OVER = replace(RUNS, canary=CanaryPhase.PASSED), replace(RUNS, canary=CanaryPhase.OVER)
LONG = 300.0  # past nine tenths of switch_timeout
BOTH = {T0: "g_b-0", T1: "g_b-0"}
READ_ALL = {T0: 10, T1: 10}
BEHIND, FURTHER = {T0: 5, T1: 5}, {T0: 6, T1: 6}


def beside(
    canary: str = "",
    *,
    committed: object = READ_ALL,
    holds: frozenset[TopicPartition] = frozenset({T0, T1}),
    note: object = RUNS,
    life: str = "a1",
    **zk: object,
) -> GroupSeen:
    """`b` is the old version and owns all; the canary `a` is z(ookeeper), k(afka) or absent."""
    members = (KafkaMember(life, "a", holds),) if canary == "k" else ()
    kafka = KafkaGroup("Stable" if members else "Empty", members)
    registered = group("z" if canary == "z" else "", "z", kafka=kafka, committed=committed)
    return changed(registered, **{"cutover": note, "owners": BOTH, "partitions": frozenset({T0, T1}), **zk})


def asked(kind: str, error: str = "") -> CutoverState:
    return CutoverState(requests={"a": InstanceRequest(kind, 0.0, error)}, started_at=0.0)


def watched(joined_at: float = 0.0, offsets: object = BEHIND, **fields: object) -> CutoverState:
    state = asked(KAFKA)
    watch = CanaryWatch(frozenset({"a1"}), joined_at, offsets, {T0: 10, T1: 10}, offsets, {T0: joined_at, T1: joined_at})  # type: ignore[arg-type]
    return replace(state, canary=replace(watch, has_joined=True, **fields))  # type: ignore[arg-type]


def take(state: CutoverState, observed: GroupSeen, at: float = 1.0, *, back: bool = False) -> CutoverTurn:
    return (decide_cutover_rollback if back else decide_cutover)(state, observed, at, SPEC)


def say(turn: CutoverTurn) -> str:
    """The verdict, with what it is about, or the codes for which it is turned back."""
    about = f" {turn.decision.about}" if isinstance(turn.decision, Act) and turn.decision.about and not turn.failed else ""
    return f"{verdict(turn.decision)}{about}" + "".join(f" {reason.code}" for reason in turn.failed)


BOTH_IN_KAFKA = KafkaGroup("Stable", (KafkaMember("a1", "a", frozenset({T0})), KafkaMember("b1", "b", frozenset({T1}))))
STOP, START, BACK = f"{Verb.STOP_INSTANCES} {CANARY}", f"{Verb.START_INSTANCES} {CANARY}", Verb.ROLL_BACK


@pytest.mark.parametrize(
    ("state", "observed", "at", "expected"),
    [
        (CutoverState(), beside("z", note=None), 0.0, STOP),
        (CutoverState(), beside("z"), 0.0, STOP),
        (asked(STOPPED), beside("z"), 1.0, "wait K91"),
        (asked(STOPPED), beside("z"), LONG, f"{BACK} K91"),
        (asked(STOPPED, "exit code 1"), beside("z"), 1.0, f"{BACK} K91"),
        (replace(asked(STOPPED), stopped=frozenset({"a"})), beside("z"), 1.0, f"{BACK} K91"),
        (asked(STOPPED), beside(owners={T1: "g_b-0"}), 1.0, "wait K44"),
        (replace(CutoverState(), canary=CanaryWatch(unstable_at=0.0)), beside(owners={T1: "g_b-0"}), LONG, f"{BACK} K44"),
        (asked(STOPPED), beside(committed=BEHIND), 1.0, Verb.COPY_OFFSETS),
        (replace(CutoverState(), canary=CanaryWatch(copied=True)), beside(), 1.0, START),
        (asked(KAFKA), beside(), 1.0, "wait K93"),
        (asked(KAFKA), beside(), LONG, f"{BACK} K93"),
        (asked(KAFKA, "exit code 1"), beside(), 1.0, f"{BACK} K93"),
        (watched(), beside(), 1.0, f"{BACK} V30"),
        (asked(KAFKA), beside("k"), 1.0, "wait T01"),
        (watched(), beside("k", life="a2"), 1.0, f"{BACK} V30"),
        (watched(), beside("k", holds=frozenset({T0})), 1.0, "wait K93"),
        (watched(), beside("k", holds=frozenset({T0})), 101.0, f"{BACK} K93"),
        (watched(), replace(beside("k", holds=frozenset({T0, T1, U0})), ends={T0: 10, T1: 10, U0: 0}), 1.0, f"{BACK} K93"),
        (watched(), beside("k", owners={T1: "g_b-0"}), 1.0, "wait K44"),
        (watched(), beside("k", committed=BEHIND), 99.0, "wait T01"),
        (watched(), beside("k", committed=BEHIND), 100.0, f"{BACK} V30"),
        (watched(), beside("k", committed=FURTHER), 149.0, "wait T01"),
        (watched(), beside("k", committed=FURTHER), 150.0, f"note {CANARY_PASSED}"),
        (watched(offsets={T0: 9, T1: 10}), beside("k", committed={T0: 9, T1: 10}), 99.0, "wait T01"),
        (watched(offsets={T0: 9, T1: 10}), beside("k", committed={T0: 9, T1: 10}), 150.0, f"note {CANARY_PASSED}"),
        (watched(offsets={}), beside("k", committed={}), 99.0, "wait T01"),
        (watched(offsets={}), beside("k", committed={}), 100.0, f"{BACK} V30"),
        (CutoverState(), replace(beside("z"), kafka=beside("k").kafka), 1.0, f"{BACK} K91"),
        (watched(), replace(beside("k"), kafka=BOTH_IN_KAFKA), 1.0, f"{BACK} K93"),
        (CutoverState(), beside(note=PASSED), 1.0, Verb.STOP_INSTANCES),
        (CutoverState(), replace(beside(note=PASSED), kafka=KafkaGroup("PreparingRebalance")), 1.0, STOP),
        (asked(STOPPED), replace(beside(note=PASSED), kafka=KafkaGroup("PreparingRebalance")), 1.0, "wait K52"),
        (CutoverState(), beside("k", note=PASSED), 1.0, STOP),
        (asked(STOPPED), beside("k", note=PASSED), 1.0, "wait K91"),
        (asked(STOPPED), beside("k", note=PASSED), LONG, f"{BACK} K91"),
        (asked(STOPPED, "exit code 1"), beside("k", note=PASSED), 1.0, f"{BACK} K91"),
        (asked(STOPPED), beside("z", note=PASSED), 1.0, f"{BACK} K91"),
        (asked(STOPPED), beside(note=PASSED, owners={T1: "g_b-0"}), 1.0, "wait K44"),
        (asked(STOPPED), beside(note=PASSED, owners={T1: "g_b-0"}), LONG, f"{BACK} K44"),
        (asked(STOPPED), beside(note=PASSED), 1.0, Verb.STOP_INSTANCES),
        (asked(STOPPED), beside("k", note=OVER), 1.0, f"{BACK} K91"),
        (replace(CutoverState(), canary=CanaryWatch(has_joined=True)), beside(), 1.0, f"{BACK} V30"),
        (
            replace(CutoverState(), canary=CanaryWatch(has_baked=True)),
            beside("k", committed=BEHIND),
            1.0,
            f"note {CANARY_PASSED}",
        ),
    ],
)
def test_the_canary(state: CutoverState, observed: GroupSeen, at: float, expected: str) -> None:
    turn = take(state, observed, at)
    assert say(turn) == expected
    assert turn.may_defer == (expected == "wait T01"), "another process may watch it bake, and do nothing else"


def test_without_a_bake_no_other_process_watches_it() -> None:
    turn = decide_cutover(watched(), beside("k", committed=BEHIND), 1.0, replace(SPEC, bake=0.0))
    assert (verdict(turn.decision), turn.may_defer) == ("wait T01", False)


def test_one_offset_that_is_left_is_a_marker_only_after_a_time() -> None:
    state, observed = watched(offsets={T0: 9, T1: 10}), beside("k", committed={T0: 9, T1: 10})
    said = [say(decide_cutover(state, observed, at, replace(SPEC, bake=0.0))) for at in (99.0, 100.0)]
    assert said == ["wait T01", f"note {CANARY_PASSED}"]


def test_what_was_seen_of_a_canary_does_not_count_for_the_next_cutover() -> None:
    turn = take(watched(has_baked=True), beside("z", note=None))
    assert (say(turn), turn.state.canary) == (STOP, CanaryWatch())


def test_a_member_that_the_file_does_not_know_turns_it_back() -> None:
    stranger = KafkaGroup("Stable", (KafkaMember("x", "x", frozenset({T0, T1})),))
    assert say(take(CutoverState(), replace(beside(), kafka=stranger))) == f"{BACK} K56"


def test_it_begins_at_zookeepers_offsets_even_if_kafkas_are_ahead() -> None:
    third = T1._replace(partition=2)
    note = replace(RUNS, partitions=RUNS.partitions | {third})
    observed = beside(committed={T0: 12, T1: 3}, note=note)
    turn = take(CutoverState(), replace(observed, ends={T0: 20, T1: 20, third: 0}))
    assert {write.where: write.offset for write in turn.writes.writes} == {T0: 10, T1: 10, third: 0}


def test_offsets_that_no_canary_can_begin_at_turn_it_back() -> None:
    beyond = replace(beside(committed=BEHIND), ends={T0: 9, T1: 20})
    assert say(take(CutoverState(), beyond)) == f"{BACK} K42"


def test_offsets_of_the_canary_never_decide_where_the_new_version_begins() -> None:
    alone = changed(group("", "", kafka=KafkaGroup("Empty"), committed={T0: 15, T1: 3}, ends={T0: 20, T1: 20}), cutover=OVER)
    state = CutoverState()
    for at in range(7):
        turn = take(state, alone, float(at))
        state = turn.state
        if verdict(turn.decision) == Verb.COPY_OFFSETS:
            break
    assert {write.where: write.offset for write in turn.writes.writes} == {T0: 10, T1: 10}


def test_in_a_rollback_what_the_canary_left_is_set_back_before_the_note_is_deleted() -> None:
    stable = beside("z", committed={T0: 15, T1: 3})
    turn = take(CutoverState(), replace(stable, ends={T0: 20, T1: 20}), back=True)
    assert {write.where: write.offset for write in turn.writes.writes} == {T0: 10}
    assert verdict(take(CutoverState(), beside("z"), back=True).decision) == Verb.NOTE
    other = changed(
        beside("z", committed={**READ_ALL, U0: 5}),
        offsets={where: StoredOffset(10, 0.0) for where in READ_ALL} | {U0: StoredOffset(1, 0.0)},
    )
    assert verdict(take(CutoverState(), other, back=True).decision) == Verb.NOTE, (
        "what the group did not read is not the canary's"
    )


@pytest.mark.parametrize(
    ("observed", "note", "expected"),
    [
        ("", RUNS, "wait K30"),
        ("", PASSED, "wait K30"),
        ("", OVER, Verb.START_INSTANCES),
        ("z", OVER, "wait K30"),
        ("z", replace(OVER, canary=CanaryPhase.NONE), Verb.NOTE),
    ],
)
def test_without_kafka_a_rollback_starts_nothing_beside_a_canary_and_keeps_the_note(
    observed: str, note: CutoverNote, expected: str
) -> None:
    unread = replace(beside(observed, note=note, committed=None), kafka=None)
    assert verdict(take(CutoverState(), unread, back=True).decision) == expected


def test_a_rollback_stops_the_canary_and_starts_its_old_version() -> None:
    stop = take(CutoverState(), beside("k"), back=True)
    stop_unseen = take(CutoverState(), beside(), back=True)
    start = take(asked(STOPPED), beside(), back=True)
    assert [(verdict(turn.decision), turn.instances, turn.kind) for turn in (stop, stop_unseen, start)] == [
        (Verb.STOP_INSTANCES, ("a",), STOPPED),
        (Verb.STOP_INSTANCES, ("a",), STOPPED),
        (Verb.START_INSTANCES, ("a",), "zookeeper"),
    ]


def test_the_plan_says_that_records_are_processed_twice() -> None:
    assert "a second time" in describe_plan(beside("z", note=None), SPEC)
    assert "a second time" not in describe_plan(beside("z", note=None), replace(SPEC, side_by_side=False))
