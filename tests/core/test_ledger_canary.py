"""The ledger where a group is watched from the middle: members that tell nothing beside a canary that does."""

from __future__ import annotations

from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.events.model import UNKNOWN_OFFSET, OwnershipChange
from airflow_provider_kmigrate.core.ledger import Demand, balance
from airflow_provider_kmigrate.core.ledger.health import ANY_EVIDENCE
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from tests.core.histories import TOPIC, causes, counts, with_a_canary
from tests.verdicts import verdict_of

MIXED = Demand(mixed=("g",))


def test_what_old_members_read_before_a_canary_is_not_lost() -> None:
    facts = balance(with_a_canary().end(), demand=MIXED)
    assert (verdict_of(facts), counts(facts)) == (AuditOutcome.PASS, {})
    assert facts.of_others == (("g", TOPIC, 1),)
    whole = balance(with_a_canary().end())
    assert (verdict_of(whole), causes(whole), whole.lost.count) == (
        AuditOutcome.INCONCLUSIVE,
        {AuditCause.NOT_DELIVERED_YET},
        0,
    ), "who owns the other one?"
    unknown = balance(with_a_canary(UNKNOWN_OFFSET).end())
    assert unknown.lost.count == 500, "as far as is known it was to read everything"


def test_a_canary_without_a_known_start() -> None:
    facts = balance(with_a_canary(UNKNOWN_OFFSET).end(), demand=MIXED)
    assert (verdict_of(facts), counts(facts)) == (AuditOutcome.PASS, {})


def test_what_a_canary_skips_is_lost() -> None:
    history = with_a_canary()
    history.ack("p", 0, 510, 510, 5)
    history.ack("p", 0, 515, 515, 5)
    history.deliver("g", "canary", 0, 515, 5, 515)
    for demand in (MIXED, ANY_EVIDENCE):
        assert balance(history.end(), demand=demand).lost.count == 5
    history = with_a_canary(490)
    assert balance(history.end(), demand=MIXED).lost.count == 10, "between where it began and its first delivery"


def test_a_canary_that_was_away_for_a_while() -> None:
    """An old member had the partition meanwhile, and has it at the end."""
    history = with_a_canary()
    history.own("g", "canary", OwnershipChange.RELEASED)
    history.ack("p", 0, 510, 510, 90)
    history.own("g", "canary", OwnershipChange.ACQUIRED, starts=(600,))
    history.ack("p", 0, 600, 600, 10)
    history.deliver("g", "canary", 0, 600, 10, 600)
    history.own("g", "canary", OwnershipChange.RELEASED)
    history.ack("p", 0, 610, 610, 10)
    facts = balance(history.end(), demand=MIXED)
    assert (verdict_of(facts), counts(facts)) == (AuditOutcome.PASS, {})
    assert balance(history.events).lost.count == 90, "where every member writes events no member was there to read them"
