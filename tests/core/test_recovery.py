"""Recoveries: of a stalled dual-write, and of a broker that is up but out of its ISRs or without leaders."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Cause, ClusterView, Fields, NodeFiles, Partition, Reason
from airflow_provider_kmigrate.core.migration import recovery, rollback
from airflow_provider_kmigrate.core.migration.gates import GateState
from airflow_provider_kmigrate.core.migration.recovery import (
    CAUGHT_UP,
    CONTROLLER_DOWN_FIELDS,
    OUT_OF_ISR_FOR,
    STUCK_FOR,
    HoldTimer,
    Recoveries,
    StalledDualWrite,
    explain_stalled_dual_write,
    find_stuck_leader,
    leader_to_restart,
    may_restart_leader,
    reason_not_to_elect,
    recover_dual_write,
)
from airflow_provider_kmigrate.core.migration.roll import LEFT_OUT_FOR
from airflow_provider_kmigrate.core.migration.rollback import find_down_controller
from tests.core.back_views import DUAL, FLAG_FILE, handed_over
from tests.core.views import DOWN, KRAFT, MIG, UP, ZK, cluster, with_broker, with_controller, with_zk

# Hold times


@pytest.mark.parametrize(
    ("seen", "at", "due"),
    [
        ([], 100.0, False),
        ([(0.0, True)], 9.9, False),
        ([(0.0, True)], 10.0, True),
        ([(0.0, True), (5.0, True)], 10.0, True),  # the later observation does not begin it again
        ([(0.0, True), (5.0, False)], 10.0, False),
        ([(0.0, True), (5.0, False), (6.0, True)], 15.9, False),
        ([(0.0, True), (5.0, False), (6.0, True)], 16.0, True),
    ],
)
def test_a_hold_timer_expires_after_ten_seconds_without_a_break(seen: list[tuple[float, bool]], at: float, due: bool) -> None:
    timer = HoldTimer(10.0)
    for when, there in seen:
        timer = timer.add_sample(when, holds=there)
    assert timer.expired(at) is due


def test_after_an_act_it_takes_twice_as_long() -> None:
    assert HoldTimer(10.0, since=3.0).back_off() == HoldTimer(20.0)
    assert HoldTimer(10.0).back_off().back_off().patience == 40.0


# Controllers that an earlier recovery left down


DONE = Done("All is well.")
WAIT = Wait((Reason("R03", "not yet"),))
REFUSE = Refuse((Reason("P01", "never"),))
ONE_DOWN = with_controller(DUAL, 3001, process=DOWN, answers=False, files=NodeFiles(FLAG_FILE, has_metadata_log=True))
NEVER_ACTED, ACTED = StalledDualWrite(), StalledDualWrite(times=1)


@pytest.mark.parametrize(
    ("view", "stalled", "decision", "verb"),
    [
        (DUAL, ACTED, WAIT, None),
        (ONE_DOWN, NEVER_ACTED, WAIT, None),  # down, and not by this step
        (ONE_DOWN, ACTED, WAIT, Verb.START_CONTROLLER),
        (ONE_DOWN, ACTED, DONE, Verb.START_CONTROLLER),
        (ONE_DOWN, ACTED, REFUSE, None),
    ],
)
def test_a_controller_that_an_earlier_act_left_down_is_started(
    view: ClusterView, stalled: StalledDualWrite, decision: Done | Wait | Refuse, verb: Verb | None
) -> None:
    found = recover_dual_write(view, decision, stalled, find_down_controller(view))[0]
    if verb is None:
        assert found == decision
    else:
        assert isinstance(found, Act)
        assert found.verb is verb


@pytest.mark.parametrize(
    ("view", "stalled", "wants"),
    [
        (DUAL, NEVER_ACTED, Fields(0)),
        (DUAL, ACTED, Fields(0)),  # all answer
        (ONE_DOWN, NEVER_ACTED, Fields(0)),
        (ONE_DOWN, ACTED, CONTROLLER_DOWN_FIELDS),
        (replace(ONE_DOWN, controllers={}), ACTED, Fields(0)),
    ],
)
def test_what_is_observed_beside_the_steps_own(view: ClusterView, stalled: StalledDualWrite, wants: Fields) -> None:
    assert recover_dual_write(view, WAIT, stalled, find_down_controller(view))[2] & CONTROLLER_DOWN_FIELDS == wants


LACKS = Reason("E02", "ZooKeeper lacks topic t.", cause=Cause.ZOOKEEPER_MISSES)


@pytest.mark.parametrize(
    ("reasons", "view", "stalled", "acts"),
    [
        ((LACKS,), DUAL, NEVER_ACTED, True),
        ((LACKS, Reason("E03", "Topic u is in ZooKeeper only.")), DUAL, NEVER_ACTED, False),  # a new leader would overwrite it
        ((LACKS,), replace(DUAL, client_metrics=("lag",)), NEVER_ACTED, False),
        ((LACKS,), DUAL, StalledDualWrite(times=recovery.MAX_RECOVERIES), False),
    ],
)
def test_a_new_leader_writes_only_what_zookeeper_misses(
    reasons: tuple[Reason, ...], view: ClusterView, stalled: StalledDualWrite, acts: bool
) -> None:
    refusal = Refuse(reasons)
    found, decision = stalled.repair_difference(view, refusal)
    if acts:
        assert isinstance(decision, Act)
        assert (decision.verb, found.times) == (Verb.CONTROLLER_FAILOVER, stalled.times + 1)
    else:
        assert (decision, found) == (refusal, stalled)


# A started broker without metadata


ON3, OUT = (True, True, True), Wait((Reason("R05", "out of ISRs"),))


def view_of(*modes: Any, offset: Any = 95) -> Any:
    return cluster(modes, ON3, offset)


def earlier(view: Any) -> Any:
    """As it was when /migration stood further back."""
    found = replace(view.zk.migration, metadata_offset=90)
    return replace(view, zk=replace(view.zk, migration=found))


@pytest.mark.parametrize(
    ("modes", "target", "message"),
    [
        ((MIG, KRAFT, KRAFT), MIG, True),  # rolled back: it knows no topic
        ((KRAFT, MIG, MIG), KRAFT, True),  # the others do not learn that it is back
        ((MIG, MIG, MIG), MIG, True),  # the last one of the first roll, after the takeover
        ((KRAFT, KRAFT, KRAFT), KRAFT, False),  # every broker reads the log
        ((None, KRAFT, MIG), KRAFT, False),  # it starts, and will read the log
        ((None, KRAFT, KRAFT), MIG, False),  # it is down
        ((MIG, MIG, MIG), KRAFT, False),  # it was not restarted yet: other gates
    ],
)
def test_a_stalled_dual_write_is_named_only_for_brokers_that_depend_on_it(modes: Any, target: Any, message: Any) -> None:
    view = view_of(*modes)
    decision: Any = explain_stalled_dual_write(view, view, 0, target, OUT)
    assert [reason.code for reason in decision.reasons] == (["R05", "G07"] if message else ["R05"])


def test_an_unresponsive_one_may_wait_for_metadata() -> None:
    view = view_of(None, KRAFT, KRAFT)
    started = {**view.brokers, 0: replace(view.brokers[0], process=UP)}
    found: Any = explain_stalled_dual_write(replace(view, brokers=started), view, 0, MIG, OUT)
    assert [reason.code for reason in found.reasons] == ["R05", "G07"]


def test_one_that_moves_is_not_the_cause() -> None:
    view = view_of(MIG, KRAFT, KRAFT)
    assert explain_stalled_dual_write(view, earlier(view), 0, MIG, OUT) is OUT


@pytest.mark.parametrize("modes", [(MIG, ZK, ZK), (MIG, MIG, MIG)])
def test_before_the_takeover_there_is_none(modes: Any) -> None:
    view = view_of(*modes, offset=-1)
    assert explain_stalled_dual_write(view, view, 0, MIG, OUT) is OUT


@pytest.mark.parametrize(
    "decision", [Done("back"), Act(Verb.RESTART, "may stop"), Wait((Reason("T01", "it bakes"),), healthy=True)]
)
def test_what_does_not_wait_for_it_is_left_as_it_is(decision: Any) -> None:
    view = view_of(MIG, KRAFT, KRAFT)
    assert explain_stalled_dual_write(view, view, 0, MIG, decision) is decision


def test_an_observation_without_zookeeper_or_the_quorum_blames_nothing_but_that() -> None:
    view = view_of(MIG, KRAFT, KRAFT)
    assert explain_stalled_dual_write(replace(view, zk=None), view, 0, MIG, OUT) is OUT
    found: Any = explain_stalled_dual_write(replace(view, quorum=None), view, 0, MIG, OUT)
    assert [reason.code for reason in found.reasons] == ["R05", "G00"]


# A broker out of its ISRs, or without leaders


OUT_OF_ISRS = Wait((Reason("R05", "out of its ISRs", cause=Cause.OUT_OF_ISR),))
MORE = Wait((Reason("R05", "out of its ISRs", cause=Cause.OUT_OF_ISR), Reason("R01", "another broker is down")))


def rows(view: ClusterView, **changes: Any) -> ClusterView:
    """Broker 0's first partition differs so; the others are well."""
    seen = tuple(replace(p, **changes) if p.index == 0 else p for p in view.partitions or () if p.index in {0, 2})
    return replace(view, partitions=seen)


STUCK, LEADERLESS = rows(DUAL, isr=(1, 2), leader=1), rows(DUAL, leader=-1)
OUT_OF_ISR = rows(handed_over([ZK] * 3), isr=(1, 2), leader=-1)  # no leader, so none is stuck
WELL = rows(DUAL)
CASES = {
    Verb.RESTART_LEADER: (STUCK, STUCK_FOR),
    Verb.ELECT: (LEADERLESS, LEFT_OUT_FOR),
    Verb.RAISE: (OUT_OF_ISR, OUT_OF_ISR_FOR),
}


def history(
    observations: list[tuple[float, ClusterView, Decision]], recoveries: Recoveries | None = None
) -> tuple[list[Verb | None], Recoveries]:
    """Which recovery is decided at each observation; as in the steps, a decided recovery is done."""
    done, recoveries = [], recoveries or Recoveries()
    for at, view, decision in observations:
        judged = rollback.recover(replace(view, taken_at=at), 0, decision, recoveries)
        found, recoveries = judged.decision, judged.recoveries
        assert isinstance(found, Act) or found == decision
        done.append(found.verb if isinstance(found, Act) else None)
        recoveries = recoveries.back_off(found.verb) if isinstance(found, Act) else recoveries
    return done, recoveries


UNDER_REPLICATED = Wait((Reason("S02", "replicas are out of their ISRs", cause=Cause.UNDER_REPLICATED),))


@pytest.mark.parametrize(
    ("view", "decision", "verb"),
    [
        (STUCK, UNDER_REPLICATED, Verb.RESTART_LEADER),
        (STUCK, Wait((*UNDER_REPLICATED.reasons, *OUT_OF_ISRS.reasons)), Verb.RESTART_LEADER),
        (STUCK, Wait((*UNDER_REPLICATED.reasons, Reason("R01", "another broker is down"))), None),
        (WELL, UNDER_REPLICATED, None),
    ],
)
def test_a_leader_that_keeps_another_broker_out_is_restarted_before_this_one_stops(
    view: ClusterView, decision: Wait, verb: Verb | None
) -> None:
    """Seen on real brokers: broker 0 died in the handover, and the thread of its leader that asks for ISR changes died at it."""
    recoveries, found = Recoveries(), list[Decision]()
    for at in (0.0, STUCK_FOR):
        judged = recovery.recover(replace(view, taken_at=at), 2, decision, recoveries)
        found, recoveries = [*found, judged.decision], judged.recoveries
    assert found[0] == decision
    assert (found[1].verb if isinstance(found[1], Act) else None) is verb
    assert not isinstance(found[1], Act) or re.search(
        r"Broker \d alone keeps broker 0 out of the ISRs of \d partitions?:", found[1].text
    )


@pytest.mark.parametrize("verb", CASES)
def test_each_comes_after_its_patience_and_twice_as_late_the_second_time(verb: Verb) -> None:
    view, patience = CASES[verb]
    times = (0.0, patience - 0.1, patience, patience + 1, 3 * patience, 3 * patience + 1)
    done, recoveries = history([(at, view, OUT_OF_ISRS) for at in times])
    assert done == [None, None, verb, None, None, verb]
    assert recoveries.tried


@pytest.mark.parametrize("verb", CASES)
@pytest.mark.parametrize("between", [(WELL, OUT_OF_ISRS), (None, MORE)])
def test_an_observation_between_in_which_it_is_not_so_starts_again(
    verb: Verb, between: tuple[ClusterView | None, Decision]
) -> None:
    view, patience = CASES[verb]
    if verb is Verb.RAISE and between[0] is WELL:
        between = (replace(OUT_OF_ISR, zk=WELL.zk), OUT_OF_ISRS)  # KRaft owns the cluster
    other = (patience / 2, between[0] or view, between[1])
    done, _ = history([(0.0, view, OUT_OF_ISRS), other, (patience, view, OUT_OF_ISRS), (patience * 1.4, view, OUT_OF_ISRS)])
    assert done == [None] * 4


def test_a_migration_elects_no_controller_to_raise_states() -> None:
    recoveries = Recoveries()
    for at in (0.0, OUT_OF_ISR_FOR, 3 * OUT_OF_ISR_FOR):
        judged = recovery.recover(replace(OUT_OF_ISR, taken_at=at), 0, OUT_OF_ISRS, recoveries)
        assert judged.decision == OUT_OF_ISRS
        recoveries = judged.recoveries


def test_what_speaks_against_the_leaders_restart_is_said_behind_the_wait() -> None:
    unresponsive = replace(STUCK, brokers={**STUCK.brokers, 2: replace(STUCK.brokers[2], mode=None)})
    recoveries = recovery.recover(replace(unresponsive, taken_at=0.0), 0, OUT_OF_ISRS, Recoveries()).recoveries
    judged = recovery.recover(replace(unresponsive, taken_at=STUCK_FOR), 0, OUT_OF_ISRS, recoveries)
    assert isinstance(judged.decision, Wait)
    assert [reason.code for reason in judged.decision.reasons] == ["R05", "R01"]


LAGS = {("t", 0): 0, ("t", 2): 0}


@pytest.mark.parametrize(
    ("view", "lags", "leader", "message"),
    [
        (STUCK, LAGS, 1, ""),
        (STUCK, {**LAGS, ("t", 0): CAUGHT_UP + 1}, "catching up", "catching up"),
        (STUCK, {}, "Could not read how far", "Could not read how far"),
        (replace(STUCK, partitions=None), LAGS, "No leader alone keeps", "Could not read how far"),
        (WELL, LAGS, "No leader alone keeps", "back in its ISRs"),
    ],
)
def test_a_recovery_checks_the_followers_lag_once_more_just_before_it_acts(
    view: ClusterView, lags: dict[tuple[str, int], int], leader: int | str, message: str
) -> None:
    found, why_not = leader_to_restart(view, 0, lags), reason_not_to_elect(view, 0, lags)
    assert found == leader if isinstance(leader, int) else leader in str(found)
    assert message in why_not if message else not why_not


def test_a_partition_of_others_says_nothing_of_this_broker() -> None:
    others = Partition("u", 0, 1, (1, 2), (1, 2))
    assert leader_to_restart(replace(STUCK, partitions=(*(STUCK.partitions or ()), others)), 0, LAGS) == 1


# The leader that keeps it out


def out_of_isr_of(leaders_without: Any, follower: Any = 0, modes: Any = (ZK, ZK, ZK)) -> Any:
    """A cluster in which `follower` is out of the ISR wherever one of these leads."""
    view = cluster(list(modes))
    rows = []
    for p in view.partitions or ():
        leader = p.leader if p.leader != follower else p.replicas[1]
        isr = tuple(b for b in p.replicas if b != follower or leader not in leaders_without)
        rows.append(replace(p, leader=leader, isr=isr))
    view = replace(view, partitions=tuple(rows))
    for node in view.brokers:
        view = with_broker(view, node, controller_id=0)
    return view


def test_one_leader_of_all_that_miss_the_follower() -> None:
    assert find_stuck_leader(out_of_isr_of({2}), 0) == 2


@pytest.mark.parametrize("leaders", [set(), {1, 2}])
def test_none_or_several_leaders_are_a_follower_that_catches_up(leaders: Any) -> None:
    assert find_stuck_leader(out_of_isr_of(leaders), 0) is None


def test_a_leader_whose_thread_died_may_keep_the_follower_in_other_isrs() -> None:
    """Seen on real brokers: of 27 partitions of the leader 9 had the follower in their ISRs since before."""
    view = out_of_isr_of({2})
    kept, *rest = [p for p in view.partitions if p.leader == 2]
    others = [p for p in view.partitions if p.leader != 2]
    view = replace(view, partitions=(replace(kept, isr=kept.replicas), *rest, *others))
    assert find_stuck_leader(view, 0) == 2


def test_partitions_without_a_leader_have_no_stuck_one() -> None:
    assert find_stuck_leader(OUT_OF_ISR, 0) is None


@pytest.mark.parametrize(
    ("own", "leaders", "expected"),
    [
        ({("t", 0): 95, ("t", 1): 7}, {("t", 0): 100, ("t", 1): 9}, {("t", 0): 5}),  # it is in the ISR of the second
        ({("t", 0): 101}, {("t", 0): 100}, {("t", 0): 0}),
        ({("t", 0): 95}, {}, {}),
        ({}, {("t", 0): 100}, {}),
    ],
)
def test_a_lag_is_what_both_logs_say(
    own: dict[tuple[str, int], int], leaders: dict[tuple[str, int], int], expected: dict[tuple[str, int], int]
) -> None:
    assert recovery.lags_of(STUCK, 0, own, leaders) == expected


def test_where_nobody_leads_nobody_is_ahead() -> None:
    places = {(p.topic, p.index): 9 for p in OUT_OF_ISR.missing_isr(0)}
    assert recovery.lags_of(OUT_OF_ISR, 0, places, {}) == dict.fromkeys(places, 0)


def test_a_leader_may_restart_if_other_brokers_are_in_sync() -> None:
    assert may_restart_leader(out_of_isr_of({2}), 0, 2).met


def not_yet(gate: Any) -> Any:
    assert gate.state is GateState.NOT_YET
    return {reason.code for reason in gate.reasons}


def alone(min_insync: Any) -> Any:
    """Broker 2 is the only one left in the ISRs of what it leads."""
    view = out_of_isr_of({2})
    rows = tuple(replace(p, isr=(2,)) if p.leader == 2 else p for p in view.partitions or ())
    return replace(view, partitions=rows, min_insync=min_insync)


@pytest.mark.parametrize("min_insync", [{"t": 1}, {}, None])
def test_a_leader_may_not_restart_while_only_it_is_in_sync_and_clients_may_still_write(min_insync: Any) -> None:
    assert not_yet(may_restart_leader(alone(min_insync), 0, 2)) == {"S02"}


def test_what_no_client_can_write_any_more_loses_nothing_by_its_leaders_restart() -> None:
    """Two brokers fell out at once, and the leader can take neither back: nothing else ends that."""
    assert may_restart_leader(alone({"t": 2}), 0, 2).met
    assert "R01" in not_yet(may_restart_leader(with_broker(alone({"t": 2}), 1, mode=None), 0, 2))


def test_a_leader_may_not_restart_while_another_broker_is_unresponsive() -> None:
    assert "R01" in not_yet(may_restart_leader(with_broker(out_of_isr_of({2}), 1, mode=None), 0, 2))


def test_a_leader_may_not_restart_while_it_does_not_name_the_controller() -> None:
    assert not_yet(may_restart_leader(with_broker(out_of_isr_of({2}), 2, controller_id=1), 0, 2)) == {"G28"}
    assert not_yet(may_restart_leader(with_zk(out_of_isr_of({2}), controller=None), 0, 2)) == {"G00"}


def test_a_leader_in_migration_mode_may_restart_only_if_the_controllers_answer() -> None:
    view = cluster([MIG, MIG, MIG], [True, True, True], offset=9)
    missing = tuple(replace(p, isr=tuple(b for b in p.isr if b != 0)) if p.leader == 2 else p for p in view.partitions or ())
    view = replace(view, partitions=missing)
    assert may_restart_leader(view, 0, 2).met
    unresponsive = {node: replace(c, answers=False) for node, c in view.controllers.items()}
    assert not_yet(may_restart_leader(replace(view, controllers=unresponsive), 0, 2)) == {"G28"}
    two = {node: replace(view.controllers[node], answers=node == 3000) for node in (3000, 3001)}
    assert not_yet(may_restart_leader(replace(view, controllers=two), 0, 2)) == {"G28"}, "half of them are no majority"
    assert may_restart_leader(replace(view, controllers={**view.controllers, 3002: unresponsive[3002]}), 0, 2).met


def test_whatever_else_is_wrong_is_counted_not_cut() -> None:
    """Eight names alone would read as all of them."""
    view = out_of_isr_of({2})
    wrong = tuple(replace(view.partitions[0], topic="u", index=n, replicas=(0, 1, 2), isr=(1, 2), leader=1) for n in range(20))
    gate = may_restart_leader(replace(view, partitions=(*view.partitions, *wrong)), 0, 2)
    assert "and 12 more" in gate.reasons[0].text
