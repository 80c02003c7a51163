"""What the canary's judge is given: which times are compared, and what counts as not known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.audit.canary import Arm, CanaryPolicy
from airflow_provider_kmigrate.core.audit.canary_series import CanaryPlan, Life, Times, series, times, unseen
from airflow_provider_kmigrate.core.audit.verdict import Ground, Outcome
from airflow_provider_kmigrate.core.model import Reason

PLAN = CanaryPlan("g", ("a0",), ("a1", "a2", "a3"), policy=CanaryPolicy(window=40))
OTHERS = tuple(Life(f"g_a{n}-x", 0, 500_000) for n in (1, 2, 3))
CANARY = (Life("a0-old", 0, 201_000), Life("a0-new", 204_000, 500_000))
S = 1_000


def test_before_the_canary_left_and_after_it_had_settled() -> None:
    assert times((*OTHERS, *CANARY), PLAN) == Times(5 * S, 201 * S, 214 * S, before=38, after=40)


def test_a_try_before_this_one_is_no_part_of_the_time_before() -> None:
    """It had been taken back, and the restart after that is as cold as the next one."""
    found = times((*OTHERS, replace(CANARY[0], last_ms=90 * S), Life("a0-back", 100 * S, 201 * S), CANARY[1]), PLAN)
    assert found is not None
    assert (found.left_ms, found.before) == (201 * S, 18)


def test_a_canary_that_died_and_came_back_was_changed_before() -> None:
    """Else it would be compared with itself as it is since."""
    died = (CANARY[0], replace(CANARY[1], last_ms=300 * S), Life("a0-again", 310 * S, 500 * S))
    found = [times((*OTHERS, *died), PLAN, since) for since in (None, 203 * S, 400 * S)]
    assert [(one.left_ms, one.settled_ms) for one in found if one] == [(300 * S, 320 * S), (201 * S, 214 * S), (300 * S, 320 * S)]


def test_twice_the_window_is_looked_back_at_most() -> None:
    long = [replace(life, start_ms=-900 * S) if life.start_ms == 0 else life for life in (*OTHERS, *CANARY)]
    found = times(long, PLAN)
    assert found is not None
    assert found.before == 80


@pytest.mark.parametrize("lives", [OTHERS, (*OTHERS, CANARY[1])])
def test_a_canary_that_was_not_seen_before_cannot_be_compared(lives: tuple[Life, ...]) -> None:
    assert times(lives, PLAN) is None
    broken = Ground(Outcome.FAIL, Reason("A08", "Two owners."))
    assert unseen(PLAN, []).outcome is Outcome.INCONCLUSIVE
    verdict = unseen(PLAN, [broken])
    assert (verdict.outcome, [ground.reason.code for ground in verdict.grounds]) == (Outcome.FAIL, ["A08", "V28"])


def test_who_is_a_little_behind_is_waited_for_and_who_is_silent_is_not() -> None:
    """Or its intervals would look as if it had been delivered nothing, or nobody's would ever be compared."""
    behind = [*OTHERS[1:], replace(OTHERS[0], last_ms=480 * S), *CANARY]
    silent = [*OTHERS[1:], replace(OTHERS[0], last_ms=300 * S), *CANARY]
    policy = replace(PLAN, policy=CanaryPolicy(window=100))
    assert [found.after for lives in (behind, silent) if (found := times(lives, policy))] == [53, 57]


def test_what_no_life_covers_is_not_known_and_what_was_not_delivered_is_nothing() -> None:
    found = Times(5 * S, 201 * S, 214 * S, before=2, after=3)
    measured = {("a0", 191 * S): (10, 7.0), ("a0", 219 * S): (12, 8.0), ("a1", 214 * S): (9, None), ("a2", 214 * S): (5, 1.0)}
    lives = [*CANARY, OTHERS[0], Life("a2-1", 0, 216 * S), Life("a3-1", 0, 900 * S, whole=False)]
    members = {member.member: member for member in series(lives, measured, found, PLAN).members}
    assert [member.arm for member in members.values()] == [Arm.CANARY, *[Arm.BASELINE] * 3]
    assert (members["a0"].before.records, members["a0"].before.values) == ((10, 0), (7.0, None))
    assert (members["a0"].after.records, members["a0"].after.values) == ((0, 12, 0), (None, 8.0, None))
    assert (members["a1"].after.records, members["a1"].after.values) == ((9, 0, 0), (None, None, None))
    assert members["a2"].after.records == (None, None, None), "its last sign is in the first of them"
    assert members["a3"].unaccounted == 1.0, "some of its events are missing"


@given(st.integers(-500 * S, 900 * S), st.integers(0, 20), st.integers(0, 20), st.integers(1, 50 * S))
def test_a_time_is_in_the_interval_that_it_is_put_into(t_ms: int, before: int, after: int, interval_ms: int) -> None:
    found = Times(interval_ms, 201 * S, 214 * S, before, after)
    around = [begin for begins in found.spans() for begin in begins if begin <= t_ms < begin + interval_ms]
    assert around == ([] if (begin := found.begin_of(t_ms)) is None else [begin])


@pytest.mark.parametrize(
    ("writer", "instance"), [("a1", "a1"), ("a1-host-7", "a1"), ("g_a1-7", "a1"), ("a11-7", None), ("b", None), ("h_a1", None)]
)
def test_a_process_belongs_to_the_instance_that_it_is_called_by(writer: str, instance: str | None) -> None:
    assert PLAN.instance(writer) == instance
