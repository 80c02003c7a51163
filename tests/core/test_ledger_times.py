"""Ownership, gaps and stalls: what the ledger says of time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.events.model import Ack, DeliveryRun, Event, Latencies, OwnershipChange, Slow, SlowRecord
from airflow_provider_kmigrate.core.ledger import balance
from tests.core.histories import TOPIC, History, calm, counts
from tests.kit.load import Produce, produce_of, stalls_between
from tests.verdicts import verdict_of


def test_a_hand_over_in_log_order_is_no_double_ownership_whatever_the_clocks() -> None:
    history = calm()
    history.consumer("n", "g")
    history.own("g", "m", OwnershipChange.RELEASED)
    history.now -= 60_000  # the other machine is a minute behind
    history.own("g", "n", OwnershipChange.ACQUIRED)
    history.own("g", "n", OwnershipChange.RELEASED)
    history.now += 60_000
    assert verdict_of(balance(history.end())) is AuditOutcome.PASS


def test_without_positions_only_an_overlap_beyond_the_skew_counts() -> None:
    events = []
    for apart in (99, 102):
        history = History()
        history.consumer("m", "g")
        history.consumer("n", "g")
        history.own("g", "m", OwnershipChange.ACQUIRED, ordered=False)
        history.own("g", "n", OwnershipChange.ACQUIRED, ordered=False)
        history.now += apart - 1_000
        history.own("g", "m", OwnershipChange.RELEASED, ordered=False)
        history.own("g", "n", OwnershipChange.RELEASED, ordered=False)
        events.append(balance(history.end()).double_owned)
    assert [finding.count for finding in events] == [0, 102]
    assert events[1].cases[0].members == ("m", "n")


def test_a_killed_owner_owns_until_its_last_sign_of_life() -> None:
    history = calm()
    history.consumer("n", "g")
    history.own("g", "n", OwnershipChange.ACQUIRED)
    history.own("g", "n", OwnershipChange.RELEASED)
    facts = balance(history.end("m"))
    assert (verdict_of(facts), counts(facts)) == (AuditOutcome.INCONCLUSIVE, {})


def test_the_longest_gap_counts_only_while_a_record_waits() -> None:
    history = calm()
    history.now += 60_000  # nothing is sent for a minute
    history.ack("p", 0, 30, 30, 1)
    sent = history.now - 5
    history.now += 7_000
    history.deliver("g", "m", 0, 30, 1, 30)
    run = history.events[-1]
    assert isinstance(run, DeliveryRun)
    history.events[-1] = replace(run, t_sent_ms=sent)
    gap = balance(history.end()).longest_gap
    assert gap is not None
    assert (gap.ms, gap.from_ms, gap.open) == (8_005, sent, False)


def test_a_gap_that_never_ended_is_open() -> None:
    history = calm()
    history.ack("p", 0, 30, 30, 1)
    history.now += 60_000
    gap = balance(history.end()).longest_gap
    assert gap is not None
    assert gap.open
    assert gap.ms > 60_000


def produced(values: tuple[int, ...], slow: tuple[SlowRecord, ...] = ()) -> list[Event]:
    history = calm(len(values), len(values))
    history.events.append(Latencies(history.stamp("p"), "p", history.now - 1_000, values))
    history.events.append(Slow(history.stamp("p"), "p", 100_000, slow))
    return history.end()


def test_produce_latencies_are_exact() -> None:
    stall = SlowRecord(TOPIC, 0, 7, 7, 1_000, 1_500_000)
    events = produced((*range(1_000, 1_998), 250_000, 1_500_000), (stall,))
    assert balance(events).longest_stall_ms == 1500.0
    assert produce_of(events) == Produce(1_000, 1500.0, 250.0, 1.75)


def test_too_few_latencies_are_not_exact() -> None:
    events = produced((1_000,) * 30)
    assert produce_of(events).exact
    short = [replace(event, values_us=event.values_us[1:]) if isinstance(event, Latencies) else event for event in events]
    assert not produce_of(short).exact


def test_histograms_serve_where_there_is_no_list() -> None:
    produce = produce_of(calm().end())
    assert (produce.records, produce.exact) == (30, False)
    assert produce.longest_ms == pytest.approx(5.0, rel=0.01)


def test_a_tool_without_send_times_shows_no_latency() -> None:
    events = [
        replace(event, latency=(), latency_max_us=None, t_sent_ms=None) if isinstance(event, Ack) else event
        for event in calm().end()
    ]
    produce = produce_of(events)
    assert (produce.longest_ms, produce.exact) == (None, False)
    assert balance(events).longest_stall_ms is None


def test_a_benchmark_sees_the_stalls_between_two_times() -> None:
    slow = tuple(SlowRecord(TOPIC, 0, i, i, 10_000 * i, 200_000 + i) for i in range(5))
    window = stalls_between(produced((5_000,) * 25, slow), 20_000, 40_000)
    assert (window.records, window.longest_ms, window.stalled_record_s) == (2, 200.003, 0.400005)
