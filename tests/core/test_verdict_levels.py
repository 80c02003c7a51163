"""A level that is proven by the events of a higher one."""

from __future__ import annotations

from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditOutcome, Level, LevelHealth, combine
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.reasons.entry import AuditCause

BOTH = LevelHealth(Level.PRODUCER, 10, includes=(Level.CONSUMER,))
LOST = AuditFinding(AuditOutcome.FAIL, Reason.of(AuditCause.LOST, "lost"), Level.PRODUCER)


def test_both_are_named() -> None:
    found = combine([], [BOTH])
    assert (found.outcome, found.proven) == (AuditOutcome.PASS, (Level.CONSUMER, Level.PRODUCER))


def test_what_is_found_speaks_against_both() -> None:
    assert combine([LOST], [BOTH]).levels == {Level.CONSUMER: AuditOutcome.FAIL, Level.PRODUCER: AuditOutcome.FAIL}


def test_a_lower_level_of_its_own_says_its_own() -> None:
    own = LevelHealth(Level.LOG, 10)
    assert combine([LOST], [BOTH, own]).levels[Level.LOG] is AuditOutcome.PASS
