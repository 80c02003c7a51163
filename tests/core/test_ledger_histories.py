"""The ledger on random histories: the same as a count record by record; and how long it takes."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.events.model import Ack, DeliveryRun, Event, Stamp, Start, Stop, WriterRole
from airflow_provider_kmigrate.core.ledger import balance
from airflow_provider_kmigrate.core.ledger.records import REPEAT_MS
from tests.core.fine_histories import cut, fine_histories
from tests.core.histories import History, Truth, by_records, counts
from tests.verdicts import verdict_of


@st.composite
def messy_histories(draw: st.DrawFn) -> list[Event]:
    """Complete histories in which anything may go wrong with the data, on two partitions."""
    history = History()
    history.consumer("m", "g")
    history.consumer("n", "g")
    history.producer("p")
    for partition in (0, 1):
        for first, count in cut(draw(st.integers(0, 12)), draw):
            history.ack("p", partition, first + draw(st.sampled_from([0, 0, 0, 20])), first, count)
    for _ in range(draw(st.integers(0, 8))):
        member, partition = draw(st.sampled_from("mn")), draw(st.integers(0, 1))
        first, count = draw(st.integers(0, 30)), draw(st.integers(1, 6))
        known = draw(st.sampled_from([None, first, first - 20 if first >= 20 else first]))
        history.generation += draw(st.sampled_from([0, 0, 1]))
        history.now += draw(st.sampled_from([0, 0, REPEAT_MS]))
        history.deliver("g", member, partition, first, count, known)
        if draw(st.booleans()):
            history.commit("g", member, partition, draw(st.integers(0, 34)), draw(st.booleans()))
    return history.end()


@settings(max_examples=200, deadline=None)
@given(messy_histories(), st.randoms(use_true_random=False))
def test_intervals_say_what_records_say(events: list[Event], rng: random.Random) -> None:
    """The ledger against a record by record count, with files read in any order and one of them twice."""
    truth = by_records(events)
    shuffled = [*events, *rng.sample(events, 3)]
    rng.shuffle(shuffled)
    facts = balance(shuffled)
    found = Truth(
        facts.lost.count,
        facts.unseen.count,
        facts.redelivered.count,
        facts.client_repeats.count,
        facts.reordered.count,
        facts.commit_gap.count,
        facts.stored_twice.count,
        facts.diverged.count,
    )
    assert found == truth
    assert facts == balance(events)


@settings(max_examples=100, deadline=None)
@given(fine_histories())
def test_what_is_lawful_is_clean(history: History) -> None:
    facts = balance(history.end())
    assert (verdict_of(facts), facts.reasons, counts(facts)) == (AuditOutcome.PASS, (), {})


@settings(max_examples=100, deadline=None)
@given(fine_histories(), st.data())
def test_no_event_can_vanish_unnoticed(history: History, data: st.DataObject) -> None:
    events = history.end()
    gone = data.draw(st.sampled_from(events))
    facts = balance([event for event in events if event is not gone])
    assert not facts.complete
    assert verdict_of(facts) is AuditOutcome.INCONCLUSIVE


def many(records: int, step: int) -> list[Event]:
    """So many records over 100 partitions, acknowledged and delivered in runs of `step`."""
    events: list[Event] = [
        Start(Stamp("p", 0, 0), WriterRole.PRODUCER),
        Start(Stamp("m", 0, 0), WriterRole.CONSUMER, group="g", topics=("t",)),
    ]
    number = 1
    for first in range(0, records // 100, step):
        for partition in range(100):
            t, last = 1_000 + first * 10, first + step - 1
            events.append(Ack(Stamp("p", number, t), "p", "t", partition, first, last, step, first, last, t, t))
            events.append(DeliveryRun(Stamp("m", number, t), "g", "m", 1, "t", partition, first, last, step, first, t, t))
            number += 1
    return [*events, Stop(Stamp("p", number, 99_999), clean=True), Stop(Stamp("m", number, 99_999), clean=True)]


@pytest.mark.parametrize(("records", "step"), [(200_000, 10), (20_000, 1)])
def test_two_hundred_thousand_records_take_a_moment(records: int, step: int) -> None:
    """0.3 s of processor on the machine this was written on; the limit allows for a slower one."""
    events = many(records, step)
    began = time.process_time()
    facts = balance(events)
    assert time.process_time() - began < 6.0
    assert (verdict_of(facts), facts.acked) == (AuditOutcome.PASS, records)
