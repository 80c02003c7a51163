"""An alarm is reported when it begins and when it ends, and not in between."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import Cause, Reason
from airflow_provider_kmigrate.core.monitoring.watch import Alarms

FLAG = Reason("G05", "Controller 3000 has no flag.")
LATE = Reason("T06", "For 4.1 h.")
DOWN = Reason("G23", "Broker 1 does not answer.", cause=Cause.BROKER_UNRESPONSIVE, node="broker 1")


def codes(change):
    return [reason.code for reason in change.begun.values()], [alarm.text.split("]")[0] for alarm in change.ended.values()]


def after(change, now):
    """The alarms for the next watch, if every message was sent."""
    return change.after_reporting([*change.begun, *change.ended], now)


def test_an_alarm_begins_once_and_ends_once():
    alarms, changes = Alarms(), []
    for seen in ([], [FLAG], [FLAG, LATE], [Reason("T06", "For 4.3 h."), FLAG], [LATE], [], []):
        change = alarms.compare(seen)
        alarms = Alarms.from_json(after(change, 7.0).to_json())
        changes.append(codes(change))
    assert changes == [
        ([], []),
        (["G05"], []),
        (["T06"], []),
        ([], []),  # a new figure is no new alarm
        ([], ["[G05"]),
        ([], ["[T06"]),
        ([], []),
    ]


def test_two_things_under_one_code_are_two_alarms_and_the_same_twice_is_one():
    other = Reason("G23", "Broker 2 does not answer.", cause=Cause.BROKER_UNRESPONSIVE, node="broker 2")
    first = Alarms().compare([DOWN, DOWN])
    assert codes(first)[0] == ["G23"]
    open_ = after(first, 1.0)
    assert codes(open_.compare([DOWN, other]))[0] == ["G23"]
    assert after(open_.compare([DOWN]), 2.0) == open_, "since when it is, stays"


def test_a_watch_that_saw_nothing_ends_no_alarm():
    open_ = after(Alarms().compare([FLAG]), 1.0)
    change = open_.compare([DOWN], complete=False)
    assert codes(change) == (["G23"], [])
    assert len(after(change, 2.0).open) == 2


def test_a_message_that_was_not_sent_is_sent_by_the_next_watch():
    change = Alarms().compare([FLAG, LATE])
    open_ = change.after_reporting([name for name, reason in change.begun.items() if reason is LATE], 1.0)
    assert codes(open_.compare([FLAG, LATE])) == (["G05"], [])
    ended = open_.compare([])
    assert codes(ended) == ([], ["[T06"])
    assert codes(ended.after_reporting([], 2.0).compare([])) == ([], ["[T06"])
    assert after(ended, 2.0) == Alarms()


def test_how_long_a_stage_lasts_is_counted_from_its_first_watch():
    alarms = Alarms().with_stage("copy", 10.0).with_stage("copy", 20.0)
    assert (alarms.stage, alarms.stage_since) == ("copy", 10.0)
    assert Alarms.from_json(alarms.to_json()) == alarms
    assert alarms.with_stage("second_roll", 30.0).stage_since == 30.0


@pytest.mark.parametrize("stored", [None, "", {}, {"open": []}, {"open": {"G05": [1]}, "stage": "", "stage_since": 0}])
def test_what_cannot_be_read_makes_every_alarm_new(stored):
    assert Alarms.from_json(stored) == Alarms()
