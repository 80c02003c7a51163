"""What is kept of the observations of a pass's first broker, and when they end its bake or take it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Reason
from airflow_provider_kmigrate.core.migration import gates
from airflow_provider_kmigrate.core.migration.roll import _KEPT, JUDGED_FOR, MIN_SAMPLES, SETTLING, CanaryBake
from tests.core.views import MIG, ZK, cluster, with_broker

BAKE = 60.0
RESTART, DONE = Act(Verb.RESTART, "restart it"), Done("It is back.")
UNSURE = Wait((Reason("S02", "12 partitions."),))
WORSE = (Reason("V23", "It is slow."),)
FLAGS = (True, True, True)
FIRST = CanaryBake(0, MIG, BAKE)


def view(at: float, mine: float = 0.005, others: float = 0.005, *, mode=MIG) -> ClusterView:
    """The first broker of the first roll, and how long each broker took to answer."""
    seen = replace(cluster([mode, ZK, ZK], FLAGS, -1), taken_at=at)
    for broker, seconds in ((0, mine), (1, others), (2, others)):
        seen = with_broker(seen, broker, answered_in=seconds)
    return seen


def after(first: CanaryBake, views: Sequence[ClusterView], decision: Decision) -> tuple[CanaryBake, Decision]:
    got: Decision = decision
    for each in views:
        first, got = first.add_view(each, decision)
    return first, got


def before(count: int) -> list[ClusterView]:
    return [view(float(number), mode=ZK) for number in range(count)]


def since(count: int, mine: float = 0.005) -> list[ClusterView]:
    return [view(100.0 + number, mine) for number in range(count)]


@pytest.mark.parametrize(
    ("observations", "restarts"), [(1, False), (MIN_SAMPLES - 1, False), (MIN_SAMPLES, True), (MIN_SAMPLES + 5, True)]
)
def test_a_first_broker_restarts_once_it_was_observed_often_enough_as_it_is(observations: int, restarts: bool) -> None:
    first, decision = after(FIRST, before(observations), RESTART)
    assert len(first.before) == observations
    if restarts:
        assert decision is RESTART
    else:
        assert isinstance(decision, Wait)
        assert (decision.reasons[0].code, decision.healthy) == ("T01", True)
        assert f"{observations} of {MIN_SAMPLES} times" in decision.reasons[0].text


def test_any_other_act_is_not_waited_with() -> None:
    start = Act(Verb.START, "start it")
    assert FIRST.add_view(view(0.0, mode=ZK), start) == (FIRST, start)


def test_another_restart_forgets_what_the_last_one_showed() -> None:
    again = replace(FIRST, worse=WORSE, held=30.0, since=after(FIRST, since(3), DONE)[0].since)
    kept, _ = again.add_view(view(0.0, mode=ZK), RESTART)
    assert (kept.worse, kept.held, kept.since, len(kept.before)) == ((), 0.0, (), 1)


def test_what_is_kept_is_bounded() -> None:
    many = tuple(after(FIRST, before(1), RESTART)[0].before * _KEPT)
    assert len(replace(FIRST, before=many).add_view(view(9.0, mode=ZK), RESTART)[0].before) == _KEPT
    judged = replace(FIRST, since=many).add_view(view(99.0), DONE)[0]
    assert len(judged.since) == _KEPT
    assert judged.since[-1].at == 99.0, "the oldest are dropped"


@pytest.mark.parametrize(
    ("first", "seen"),
    [
        (replace(FIRST, bake=0.0), view(0.0)),  # it does not bake
        (replace(FIRST, broker=1), view(0.0)),  # another one was first
    ],
)
@pytest.mark.parametrize("decision", [RESTART, DONE, UNSURE])
def test_a_broker_that_is_not_watched_is_let_alone(first: CanaryBake, seen: ClusterView, decision: Decision) -> None:
    assert first.add_view(seen, decision) == (first, decision)


def test_a_first_broker_is_observed_from_when_it_is_back() -> None:
    assert FIRST.add_view(view(0.0), UNSURE) == (FIRST, UNSURE), "not yet back"
    back, _ = FIRST.add_view(view(1.0), DONE)
    assert len(back.since) == 1
    later, decision = back.add_view(view(2.0), UNSURE)
    assert (len(later.since), decision) == (2, UNSURE), "and then always"
    found, decision = replace(FIRST, worse=WORSE).add_view(view(1.0), UNSURE)
    assert len(found.since) == 1
    assert isinstance(decision, Act), "an earlier process found it worse"


def test_a_healthy_one_is_fine_after_enough_observations() -> None:
    few, _ = after(FIRST, since(int(SETTLING) + MIN_SAMPLES - 1), DONE)
    assert not few.fine
    enough, decision = after(FIRST, since(int(SETTLING) + MIN_SAMPLES), DONE)
    assert (enough.fine, enough.worse, decision) == (True, (), DONE)
    assert replace(FIRST, bake=0.0).decide_bake(DONE, gates.MET, 0.0) is DONE, "nothing is judged"


def test_a_slow_one_is_rolled_back_and_stays_judged() -> None:
    slow, decision = after(FIRST, since(int(SETTLING + JUDGED_FOR), 1.0), DONE)
    assert [reason.code for reason in slow.worse] == ["V23"]
    assert isinstance(decision, Act)
    assert decision.verb is Verb.ROLL_BACK_CANARY
    assert decision.text == slow.worse[0].text
    better, decision = after(slow, [view(500.0 + number) for number in range(60)], DONE)
    assert better.worse == slow.worse
    assert isinstance(decision, Act)


def test_a_first_broker_that_was_slow_before_as_well_is_not_rolled_back() -> None:
    always = after(FIRST, [view(float(number), 1.0, mode=ZK) for number in range(MIN_SAMPLES)], RESTART)[0]
    assert after(always, since(int(SETTLING + JUDGED_FOR), 1.0), DONE)[1] is DONE


def test_what_earlier_processes_watched_shortens_the_settling() -> None:
    held = replace(FIRST, held=SETTLING)
    assert after(held, since(MIN_SAMPLES, 1.0), DONE)[0].worse
    assert not after(FIRST, since(MIN_SAMPLES, 1.0), DONE)[0].worse


@pytest.mark.parametrize(
    ("gate", "healthy", "fine", "done"),
    [
        (gates.MET, BAKE, True, True),
        (gates.MET, BAKE - 1, True, False),
        (gates.MET, BAKE, False, False),
        (gates.not_yet(Reason("R01", "not now")), BAKE, True, False),
    ],
)
def test_the_bake_ends_after_its_time_if_all_was_well(gate: gates.Gate, healthy: float, fine: bool, done: bool) -> None:
    decision = replace(FIRST, fine=fine).decide_bake(DONE, gate, healthy)
    if done:
        assert decision is DONE
    else:
        assert isinstance(decision, Wait)
        expected = ("T01", True) if gate.met else ("R01", False)
        assert (decision.reasons[0].code, decision.healthy) == expected
