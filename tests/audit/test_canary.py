"""The canary's judge on events, by both engines: what its members wrote down decides, and what they did not blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="the audit has its own environment")
pytest.importorskip("duckdb", reason="the audit has its own environment")

from airflow_provider_kmigrate.audit.job import audit_sources
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import AuditPolicy, parse
from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, CanaryVerdict, Level
from airflow_provider_kmigrate.core.events import model as events
from airflow_provider_kmigrate.core.events.model import (
    DeliveryRun,
    Event,
    Ownership,
    OwnershipChange,
    Stamp,
    Start,
    TopicPartition,
    WriterRole,
)
from airflow_provider_kmigrate.core.reasons.entry import AuditCause

S = 1_000
SWITCHED, END = 300 * S, 620 * S
REQUEST = {
    "canary": {
        "group": "g",
        "canary": "a0",
        "baseline": ["a1", "a2", "a3", "a4"],
        "interval_ms": 5 * S,
        "window": 60,
        "margin": 1.5,
    }
}


def life(instance: int, name: str, begin: int, end: int, *, slower: float = 1.0, hole: bool = False) -> Iterator[Event]:
    """Ten records a second, log-normally late around 20 ms."""
    rng, writer = np.random.default_rng((instance, begin)), f"a{instance}-{name}"
    yield Start(Stamp(writer, 0, begin), WriterRole.CONSUMER, group="g", topics=("t",))
    for number, t_ms in enumerate(range(begin + S, end, S), 1):
        late = rng.lognormal(np.log(20_000 * slower), 0.4, 10).astype(int).tolist()
        first = (t_ms // S) * 10
        found = DeliveryRun(
            Stamp(writer, number, t_ms), "g", writer, 1, "t", instance, first, first + 9, 10, (number - 1) * 10, t_ms - 900, t_ms,
            latency=events.build_histogram(late),
        )  # fmt: skip
        if not (hole and number == 30):
            yield found


def group(*, slower: float = 1.0, hole: bool = False) -> list[Event]:
    """Four members that run on, and one that is restarted."""
    others = [event for n in range(1, 5) for event in life(n, "x", 0, END)]
    return [*others, *life(0, "old", 0, SWITCHED), *life(0, "new", SWITCHED + 3 * S, END, slower=slower, hole=hole)]


def judged(events: list[Event], engine: Engine) -> CanaryVerdict:
    plan = parse(REQUEST | {"sources": []}).canary
    found = audit_sources([Source(Level.CONSUMER, events=tuple(events))], AuditPolicy(), engine, canary=plan).verdict
    assert found.canary is not None
    assert set(found.canary.findings) <= set(found.findings)
    return found.canary


def causes(verdict: CanaryVerdict) -> list[AuditCause]:
    return sorted(finding.reason.cause for finding in verdict.findings if isinstance(finding.reason.cause, AuditCause))


def test_a_canary_that_is_as_good_as_the_others_passes(duck_or_nightly_spark: Engine) -> None:
    verdict = judged(group(), duck_or_nightly_spark)
    assert (verdict.outcome, causes(verdict), verdict.measured) == (AuditOutcome.PASS, [AuditCause.CANARY_WITHIN], 60)
    assert (verdict.baseline, verdict.metric) == (4, "delivery latency p95 ms")
    assert verdict.estimate == pytest.approx(1.0, abs=0.1)


def test_three_times_as_late(engine: Engine) -> None:
    verdict = judged(group(slower=3.0), engine)
    assert (verdict.outcome, causes(verdict)) == (AuditOutcome.FAIL, [AuditCause.CANARY_WORSE])
    assert verdict.estimate == pytest.approx(3.0, rel=0.1)


def test_a_hole_in_its_events_leaves_it_unjudged(duck_or_nightly_spark: Engine) -> None:
    verdict = judged(group(slower=3.0, hole=True), duck_or_nightly_spark)
    assert (verdict.outcome, AuditCause.MEMBER_EVENTS_LOST in causes(verdict)) == (AuditOutcome.INCONCLUSIVE, True)


def test_a_canary_without_earlier_events(duck_or_nightly_spark: Engine) -> None:
    verdict = judged([event for event in group() if event.stamp.writer != "a0-old"], duck_or_nightly_spark)
    assert (verdict.outcome, causes(verdict)) == (AuditOutcome.INCONCLUSIVE, [AuditCause.CANARY_UNSEEN])


def test_a_canary_is_inconclusive_before_its_window_is_over(engine: Engine) -> None:
    verdict = judged([event for event in group() if event.stamp.t_ms < SWITCHED + 40 * S], engine)
    assert (verdict.outcome, causes(verdict), verdict.measured) == (AuditOutcome.INCONCLUSIVE, [AuditCause.WINDOW_OPEN], 5)


def test_two_owners_decide_whatever_the_latencies_say(duck_or_nightly_spark: Engine) -> None:
    """Of a partition of the canary; of one of the others it is the audit's finding, not the canary's."""
    at = SWITCHED + 4 * S
    for partition, owners, found in (
        (0, ("a0-new", "a1-x"), [AuditCause.CANARY_WITHIN, AuditCause.DOUBLE_OWNED]),
        (1, ("a1-x", "a2-x"), [AuditCause.CANARY_WITHIN]),
    ):
        events = group()
        for position, writer in enumerate(owners):
            stamp = Stamp(writer, sum(event.stamp.writer == writer for event in events), at + position * S)
            events.append(Ownership(stamp, "g", writer, 1, OwnershipChange.ACQUIRED, (TopicPartition("t", partition),), position))
        assert causes(judged(events, duck_or_nightly_spark)) == found
