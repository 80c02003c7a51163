"""When a restart may begin, and how long a phase may last."""

from __future__ import annotations

from datetime import datetime

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.migration.phase import Phase
from airflow_provider_kmigrate.core.migration.waits import (
    deadline_key,
    is_window_open,
    next_window_opening,
    overdue_reasons,
    wait_for_window,
)

NIGHT = ("22:00-04:00",)


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-27T{clock}:00+00:00")


@pytest.mark.parametrize(
    ("window", "clock", "there"),
    [
        ("22:00-04:00", "22:00", True),
        ("22:00-04:00", "03:59", True),
        ("22:00-04:00", "04:00", False),
        ("22:00-04:00", "12:00", False),
        ("08:00-10:00", "08:00", True),
        ("08:00-10:00", "10:00", False),
        ("00:00-00:00", "12:00", True),
        ("", "12:00", True),
    ],
)
def test_a_window_is_open(window, clock, there):
    assert is_window_open(window, at(clock)) is there


@pytest.mark.parametrize(
    ("windows", "clock", "opens"),
    [
        (NIGHT, "12:00", "27T22:00"),
        (NIGHT, "23:00", None),
        (NIGHT, "04:00", "27T22:00"),
        (("08:00-10:00",), "10:00", "28T08:00"),
        ((*NIGHT, "08:00-10:00"), "05:00", "27T08:00"),
        ((), "12:00", None),
    ],
)
def test_when_the_next_window_opens(windows, clock, opens):
    assert next_window_opening(windows, at(clock)) == (opens and datetime.fromisoformat(f"2026-11-{opens}:00+00:00"))


@pytest.mark.parametrize("phase", Phase)
def test_only_the_beginning_of_a_restart_that_can_wait_waits(phase):
    urgent = phase in {Phase.SPLIT, Phase.LEFT_BEHIND, Phase.FINALIZING, Phase.ENDED, Phase.FINALIZED}
    decided = {verb: wait_for_window(Act(verb, "why"), phase, NIGHT, at("12:00")) for verb in Verb}
    waiting = {verb: decision for verb, decision in decided.items() if not isinstance(decision, Act)}
    assert set(waiting) == (set() if urgent else {Verb.RESTART})
    for decision in waiting.values():
        assert isinstance(decision, Wait)
        assert [reason.code for reason in decision.reasons] == ["T07"]
        assert decision.healthy, "its patience does not run out until the night"


@pytest.mark.parametrize(("windows", "clock"), [(NIGHT, "23:00"), ((), "12:00"), ((*NIGHT, "11:00-13:00"), "12:00")])
def test_in_a_window_or_without_one_nothing_waits(windows, clock):
    act = Act(Verb.RESTART, "why")
    assert wait_for_window(act, Phase.HYBRID, windows, at(clock)) is act


@pytest.mark.parametrize("decision", [Done("done"), Refuse(()), Wait(())])
def test_what_is_no_act_stays_as_it_is(decision):
    assert wait_for_window(decision, Phase.HYBRID, NIGHT, at("12:00")) is decision


@pytest.mark.parametrize(
    ("stage", "hours", "late"),
    [("copy", 0.4, False), ("copy", 0.6, True), ("dual_write", 99.0, False), ("", 99.0, False)],
)
def test_a_phase_that_lasts_too_long(stage, hours, late):
    found = overdue_reasons(stage, 1000.0, {"copy": 1800.0}, 1000.0 + 3600 * hours)
    assert [reason.code for reason in found] == (["T08"] if late else [])


def test_only_phases_between_zookeeper_mode_and_the_finalization_have_a_deadline():
    without = {phase for phase in Phase if not deadline_key(phase)}
    assert without == {Phase.ZOOKEEPER, Phase.FINALIZED, Phase.UNKNOWN, Phase.STALE, Phase.SPLIT, Phase.LEFT_BEHIND}
    assert {deadline_key(phase, "copy") for phase in without} == {"", "copy"}
    assert {phase for phase in without if not deadline_key(phase, "copy")} == {Phase.ZOOKEEPER, Phase.FINALIZED}, (
        "the copy is over"
    )
    assert deadline_key(Phase.HYBRID) == deadline_key(Phase.DUAL_WRITE_ZOOKEEPER) == "second_roll", "one stage of a migration"
