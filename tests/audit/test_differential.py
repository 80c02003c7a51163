"""Every engine says of thousands of random histories what the ledger says of their events: counts, cases, reasons, gaps, stalls."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the audit has its own environment")
pytest.importorskip("duckdb", reason="the audit has its own environment")

from airflow_provider_kmigrate.audit.job import audit_source
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import AuditPolicy
from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.events.model import DeliveryRun, Event, SendFailure
from airflow_provider_kmigrate.core.ledger import Demand
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from tests.audit.compared import ALL, differences, messages, reported_by_ledger
from tests.audit.random_histories import packed
from tests.core.histories import FINDINGS, History
from tests.core.steady_ledger import BEGAN, steady

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))]


def long_runs(*values: float) -> list[Any]:
    """Cases for the nightly: Spark takes ten seconds for each."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def of_polls(events: Sequence[Event], engine: Engine, policy: AuditPolicy = ALL) -> dict[str, Any]:
    audited = audit_source(Source(Level.CONSUMER, events=tuple(events)), policy, engine)
    assert 0 < audited.suspects < audited.partitions, "this pack shows nothing of the screen"
    return messages(audited.facts)


@pytest.mark.parametrize("seed", SEEDS)
def test_polls(engine: Engine, seed: int) -> None:
    events = packed(300, seed)
    facts = reported_by_ledger(events)
    assert all(facts[name].count for name in (*FINDINGS, "skipped")), "this pack does not ask enough"
    assert differences(of_polls(events, engine), facts) == {}


@pytest.mark.parametrize("skew_ms", [0, 39, 41, 5_000])
def test_any_skew(duck: Engine, skew_ms: int) -> None:
    policy = replace(ALL, skew_ms=skew_ms)
    events = packed(150, 10)
    assert differences(of_polls(events, duck, policy), reported_by_ledger(events, policy)) == {}


@pytest.mark.parametrize("share", [0.5, *long_runs(0.2, 0.9)])
def test_clients_that_run_on(duck_or_nightly_spark: Engine, share: float) -> None:
    """Everything up to a moment; who was heard of shortly before it runs on."""
    events = sorted(packed(100, 21), key=lambda event: event.stamp.t_ms)
    seen = events[: int(len(events) * share)]
    for since in (None, seen[-1].stamp.t_ms - 6_000):
        policy = replace(ALL, alive_since=seen[-1].stamp.t_ms - 3_000, required_evidence=Demand(since))
        facts = reported_by_ledger(seen, policy)
        assert facts != reported_by_ledger(seen), "no client runs on"
        assert differences(of_polls(seen, duck_or_nightly_spark, policy), facts) == {}


@pytest.mark.parametrize("seed", [24, *long_runs(25)])
def test_files_that_were_read_at_different_times(duck_or_nightly_spark: Engine, seed: int) -> None:
    """Of each writer what it had written by a time of its own; some run on, some were killed before the step."""
    events = sorted(packed(100, seed), key=lambda event: event.stamp.t_ms)
    draw = random.Random(seed)  # noqa: S311  # no secrets
    times = [event.stamp.t_ms for event in events]
    writers = sorted({event.stamp.writer for event in events})
    cuts = {writer: draw.choice([times[-1] + 1, draw.randint(times[0], times[-1])]) for writer in writers}
    seen = [event for event in events if event.stamp.t_ms < cuts[event.stamp.writer]]
    middle = times[len(times) // 2]
    found = set[str]()
    for alive, since in ((0, None), (middle, middle - 2_000), (times[-1], middle)):
        policy = replace(ALL, alive_since=alive, required_evidence=Demand(since))
        facts = reported_by_ledger(seen, policy)
        found |= {reason.partition(" ")[0] for reason in facts["reasons"]}
        assert differences(of_polls(seen, duck_or_nightly_spark, policy), facts) == {}
    assert found >= {AuditCause.NO_STOP, AuditCause.IN_UNREAD_EVENTS}, "this pack does not ask enough"


@pytest.mark.parametrize("stops", [None, 1])
def test_partitions_that_fell_silent(duck_or_nightly_spark: Engine, stops: int | None) -> None:
    events = [*steady(stops=stops).events, *packed(20, 26)]
    for since in (BEGAN, BEGAN + 100_000, None):
        policy = replace(ALL, alive_since=BEGAN, required_evidence=Demand(since))
        facts = reported_by_ledger(events, policy)
        assert any("steady writes" in reason for reason in facts["reasons"]) == (stops is not None and since == BEGAN)
        assert differences(of_polls(events, duck_or_nightly_spark, policy), facts) == {}


@pytest.mark.parametrize("share", [0.7, *long_runs(0.3, 1.1)])
def test_evidence_of_some_age(engine: Engine, share: float) -> None:
    events = packed(60, 22)
    times = sorted(event.stamp.t_ms for event in events)
    since = round(times[0] + share * (times[-1] - times[0]))
    groups = tuple(sorted({event.group for event in events if isinstance(event, DeliveryRun)})[::3])
    policy = replace(ALL, required_evidence=Demand(since, (*groups, "nobody")))
    failing = History(now=since - 2_000)
    failing.producer("px")
    failing.events.append(SendFailure(failing.stamp("px"), "px", "t", 0, 0, 4, "REQUEST_TIMED_OUT", None, since))
    events = [*events, *failing.end()]
    for asked in (policy, replace(policy, required_evidence=replace(policy.required_evidence, everywhere=True))):
        facts = reported_by_ledger(events, asked)
        assert {reason.partition(" ")[0] for reason in facts["reasons"]} >= {AuditCause.NO_EVIDENCE, AuditCause.SENDS_FAIL}
        assert differences(of_polls(events, engine, asked), facts) == {}
