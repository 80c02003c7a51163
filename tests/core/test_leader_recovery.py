"""Recoveries of a broker that is up but out of its ISRs, or without leaders: each after its hold time, one per observation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core import rollback as rollback_recovery
from airflow_provider_kmigrate.core.decision import Act, Decision, Verb, Wait
from airflow_provider_kmigrate.core.migration import recovery
from airflow_provider_kmigrate.core.migration.recovery import (
    CAUGHT_UP,
    OUT_OF_ISR_FOR,
    STUCK_FOR,
    Recoveries,
    leader_to_restart,
    reason_not_to_elect,
)
from airflow_provider_kmigrate.core.migration.roll import LEFT_OUT_FOR
from airflow_provider_kmigrate.core.model import Cause, ClusterView, Partition, Reason
from tests.core.back_views import DUAL, handed_over
from tests.core.views import ZK

OUT = Wait((Reason("R05", "out of its ISRs", cause=Cause.OUT_OF_ISR),))
MORE = Wait((Reason("R05", "out of its ISRs", cause=Cause.OUT_OF_ISR), Reason("R01", "another broker is down")))


def rows(view: ClusterView, **changes: object) -> ClusterView:
    """Broker 0's first partition differs so; the others are well."""
    seen = tuple(replace(p, **changes) if p.index == 0 else p for p in view.partitions or () if p.index in {0, 2})
    return replace(view, partitions=seen)


STUCK, LEADERLESS = rows(DUAL, isr=(1, 2), leader=1), rows(DUAL, leader=-1)
OUT_OF_ISR = rows(handed_over([ZK] * 3), isr=(1, 2), leader=-1)  # no leader: nobody is stuck
WELL = rows(DUAL)
CASES = {
    Verb.RESTART_LEADER: (STUCK, STUCK_FOR),
    Verb.ELECT: (LEADERLESS, LEFT_OUT_FOR),
    Verb.RAISE: (OUT_OF_ISR, OUT_OF_ISR_FOR),
}


def history(
    looks: list[tuple[float, ClusterView, Decision]], recoveries: Recoveries | None = None
) -> tuple[list[Verb | None], Recoveries]:
    """Which cure is decided on at each look; as the steps do, a cure that is decided on is done."""
    done, recoveries = [], recoveries or Recoveries()
    for at, view, decision in looks:
        judged = rollback_recovery.recover(replace(view, taken_at=at), 0, decision, recoveries)
        found, recoveries = judged.decision, judged.recoveries
        assert isinstance(found, Act) or found == decision
        done.append(found.verb if isinstance(found, Act) else None)
        recoveries = recoveries.acted(found.verb) if isinstance(found, Act) else recoveries
    return done, recoveries


@pytest.mark.parametrize("verb", CASES)
def test_each_comes_after_its_patience_and_twice_as_late_the_second_time(verb: Verb) -> None:
    view, patience = CASES[verb]
    times = (0.0, patience - 0.1, patience, patience + 1, 3 * patience, 3 * patience + 1)
    done, recoveries = history([(at, view, OUT) for at in times])
    assert done == [None, None, verb, None, None, verb]
    assert recoveries.tried


@pytest.mark.parametrize("verb", CASES)
@pytest.mark.parametrize("between", [(WELL, OUT), (None, MORE)])
def test_a_look_between_in_which_it_is_not_so_begins_anew(verb: Verb, between: tuple[ClusterView | None, Decision]) -> None:
    view, patience = CASES[verb]
    if verb is Verb.RAISE and between[0] is WELL:
        between = (replace(OUT_OF_ISR, zk=WELL.zk), OUT)  # KRaft owns the cluster
    other = (patience / 2, between[0] or view, between[1])
    done, _ = history([(0.0, view, OUT), other, (patience, view, OUT), (patience * 1.4, view, OUT)])
    assert done == [None] * 4


def test_the_way_forward_has_no_controller_elected_that_tells_states() -> None:
    recoveries = Recoveries()
    for at in (0.0, OUT_OF_ISR_FOR, 3 * OUT_OF_ISR_FOR):
        judged = recovery.recover(replace(OUT_OF_ISR, taken_at=at), 0, OUT, recoveries)
        assert judged.decision == OUT
        recoveries = judged.recoveries


def test_what_speaks_against_the_leaders_restart_is_said_behind_the_wait() -> None:
    unresponsive = replace(STUCK, brokers={**STUCK.brokers, 2: replace(STUCK.brokers[2], mode=None)})
    recoveries = recovery.recover(replace(unresponsive, taken_at=0.0), 0, OUT, Recoveries()).recoveries
    judged = recovery.recover(replace(unresponsive, taken_at=STUCK_FOR), 0, OUT, recoveries)
    assert isinstance(judged.decision, Wait)
    assert [reason.code for reason in judged.decision.reasons] == ["R05", "R01"]


LAGS = {("t", 0): 0, ("t", 2): 0}


@pytest.mark.parametrize(
    ("view", "lags", "leader", "message"),
    [
        (STUCK, LAGS, 1, ""),
        (STUCK, {**LAGS, ("t", 0): CAUGHT_UP + 1}, "catching up", "catching up"),
        (STUCK, {}, "Could not read how far", "Could not read how far"),
        (replace(STUCK, partitions=None), LAGS, "No leader keeps", "Could not read how far"),
        (WELL, LAGS, "No leader keeps", "back in its ISRs"),
    ],
)
def test_it_is_asked_once_more_just_before(
    view: ClusterView, lags: dict[tuple[str, int], int], leader: int | str, message: str
) -> None:
    found, why_not = leader_to_restart(view, 0, lags), reason_not_to_elect(view, 0, lags)
    assert found == leader if isinstance(leader, int) else leader in str(found)
    assert message in why_not if message else not why_not


def test_a_partition_of_others_says_nothing_of_this_broker() -> None:
    others = Partition("u", 0, 1, (1, 2), (1, 2))
    assert leader_to_restart(replace(STUCK, partitions=(*(STUCK.partitions or ()), others)), 0, LAGS) == 1
