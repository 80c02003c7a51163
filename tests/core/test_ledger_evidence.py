"""What evidence there must be since a step began: of each partition that is written all the time, not of any one."""

from __future__ import annotations

from airflow_provider_kmigrate.core.ledger import Demand, balance
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from tests.core.histories import History
from tests.core.steady_ledger import BEGAN, steady


def messages(history: History, *, everywhere: bool) -> list[str]:
    """What L14 says, of clients that all run on."""
    facts = balance(history.events, demand=Demand(BEGAN, everywhere=everywhere), alive_since=BEGAN)
    return [reason.text for reason in facts.reasons if reason.cause == AuditCause.NO_EVIDENCE]


def test_a_sender_of_fixed_rate_has_evidence_of_each_partition() -> None:
    """As of our own probe, which stands for every broker: one partition that goes on is none of the others."""
    assert messages(steady(), everywhere=True) == []
    acked, delivered, unresponsive = messages(steady(stops=1), everywhere=True)
    assert acked == "No record of 1 of 3 partitions was acknowledged since the step began, first t-1."
    assert delivered == "Group g received no record of 1 of 3 partitions since the step began, first t-1."
    assert "t-1 by p" in unresponsive
    (delivered,) = messages(steady(dry=2), everywhere=True)
    assert "first t-2" in delivered
    only_before = [text for text in messages(steady(until=BEGAN), everywhere=True) if "partitions" in text]
    assert only_before == [], "that nothing came at all is said once"


def test_a_partition_that_was_written_steadily_and_then_not() -> None:
    """Its leader is gone, and no record was given up yet: no failure is reported, and nothing is missing."""
    (text,) = messages(steady(stops=1), everywhere=False)
    assert text.startswith("1 partition of producers had steady writes before the step and none since it began, first t-1 by p")


def test_partitions_that_may_be_silent() -> None:
    assert messages(steady(stops=1, until=BEGAN + 50_000), everywhere=False) == [], "not for long"
    assert messages(steady(stops=1, beat_ms=15_000), everywhere=False) == [], "it was not written steadily"
    assert messages(steady(stops=1, last=BEGAN - 90_000), everywhere=False) == [], "it was silent well before the step"
    ended = steady(until=BEGAN)
    ended.producer("q")
    for number in range(40):
        ended.now = BEGAN + 5_000 * number
        ended.ack("q", 0, 10_000 + number, number, 1)
        ended.deliver("g", "m", 0, 10_000 + number, 1)
    assert messages(ended, everywhere=False) == [], "its producer writes nothing any more"
    burst = History(now=BEGAN - 40_000)
    burst.consumer("m", "g")
    burst.producer("p")
    for number in range(20):
        burst.ack("p", 1, number, number, 1)
    burst.now = BEGAN + 120_000
    burst.ack("p", 0, 0, 0, 1)
    burst.deliver("g", "m", 0, 0, 1, 0)
    assert messages(burst, everywhere=False) == [], "a batch, and a batch of another partition"
