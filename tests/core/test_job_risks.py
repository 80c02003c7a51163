"""Risks of a Spark job, every flag alone and none on a good one; and when users' own DAGs may begin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Done, Wait
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Partition
from airflow_provider_kmigrate.core.cluster_state.spec import HoldPolicy, SparkJobSpec
from airflow_provider_kmigrate.core.monitoring.journal_lines import JournalLine
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.core.spark.job_risks import RECENT_MS, Holder, decide_quiet, find_job_risks, leaderless_reasons

JOB = SparkJobSpec("orders", "/c", ("t",))
WELL = Partition("t", 0, 0, (0, 1, 2), (0, 1, 2))
VIEW = ClusterView(0.0, partitions=(WELL,), min_insync={"t": 2})
NEVER = HoldPolicy.NEVER


def flags(*jobs: SparkJobSpec, view: ClusterView = VIEW) -> list[str]:
    return [f"{risk.reason.code} {risk.severity}" for risk in find_job_risks(jobs, view)]


def with_options(**options: str) -> SparkJobSpec:
    return replace(JOB, options={key.replace("__", "."): value for key, value in options.items()})


def on(partition: Partition) -> ClusterView:
    return replace(VIEW, partitions=(partition,))


def test_a_job_on_defaults_over_healthy_topics_has_none() -> None:
    assert flags(JOB) == []
    assert flags(replace(JOB, hold=NEVER)) == []


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (with_options(failOnDataLoss="false"), ["J20 warn"]),
        (with_options(failondataloss=" FALSE "), ["J20 warn"]),
        (with_options(failOnDataLoss="true"), []),
        (with_options(zookeeper__connect="zk:2181"), ["J22 block"]),
        (with_options(fetchOffset__numRetries="1"), ["J20 warn"]),
        (with_options(fetchoffset__numretries="1"), ["J20 warn"]),
        (with_options(fetchOffset__numRetries="10"), []),
        (with_options(fetchOffset__numRetries="²"), []),
        (with_options(kafka__default__api__timeout__ms="3000"), ["J20 warn"]),
        (with_options(partition__metadata__cache__ttl__ms="60000"), ["J20 warn"]),
        (with_options(partition__metadata__cache__ttl__ms="-1"), []),
        (replace(JOB, topics=()), ["J24 warn"]),
        (replace(JOB, topics=("t", "other")), ["J24 warn"]),
    ],
)
def test_each_flag_alone(job: SparkJobSpec, expected: list[str]) -> None:
    assert flags(job) == expected


@pytest.mark.parametrize(
    ("view", "hold", "expected"),
    [
        (on(Partition("t", 0, 0, (0,), (0,))), HoldPolicy.RISKY, ["J24 warn"]),
        (on(Partition("t", 0, 0, (0,), (0,))), NEVER, ["J24 block"]),
        (on(replace(WELL, isr=(0, 1))), HoldPolicy.RISKY, ["S02 warn"]),
        (on(replace(WELL, isr=(0, 1))), NEVER, ["S02 warn"]),
        (replace(VIEW, partitions=None), HoldPolicy.RISKY, ["J24 warn"]),
        (replace(VIEW, min_insync=None), HoldPolicy.RISKY, ["J24 warn"]),
    ],
)
def test_topics_that_may_lose_their_leader(view: ClusterView, hold: HoldPolicy, expected: list[str]) -> None:
    assert flags(replace(JOB, hold=hold), view=view) == expected


@pytest.mark.parametrize(
    ("view", "topics", "codes"),
    [
        (VIEW, ("t",), []),
        (on(replace(WELL, isr=(0, 1))), ("t",), []),
        (on(Partition("t", 0, 0, (0,), (0,))), ("t",), ["J24"]),
        (on(Partition("other", 0, 0, (0,), (0,))), ("t",), ["J24"]),
        (VIEW, (), ["J24"]),
        (replace(VIEW, partitions=None), ("t",), ["J24"]),
    ],
)
def test_what_may_leave_a_job_without_a_leader_in_a_clean_roll(
    view: ClusterView, topics: tuple[str, ...], codes: list[str]
) -> None:
    assert [reason.code for reason in leaderless_reasons(replace(JOB, topics=topics), view)] == codes


def test_a_shared_group_is_a_flag_of_every_job_that_shares_it() -> None:
    one, deprecated = with_options(kafka__group__id="g"), with_options(kafka__group__id="g", useDeprecatedOffsetFetching="true")
    assert flags(one) == []
    assert flags(one, replace(deprecated, name="two")) == ["J20 warn", "J20 block"]
    assert [risk.severity for risk in find_job_risks([one], VIEW)] == []
    assert Severity.BLOCK in {risk.severity for risk in find_job_risks([one, deprecated], VIEW)}


NOW, CALM = 10_000_000, 30_000
IN_SYNC = (Partition("t", 0, 0, (0, 1), (0, 1)),)
BEHIND = (Partition("t", 0, 0, (0, 1), (0,)),)
LEADERLESS = (Partition("t", 0, -1, (0, 1), (0, 1)),)
OURS = Holder("dag/run")


def line(kind: str, at_ms: int, run: str = "dag/run") -> JournalLine:
    return JournalLine(at_ms, run, kind, "broker 0 to kraft", "restart: x")


def act(ago_ms: int, settled: bool = True, run: str = "dag/run") -> list[JournalLine]:
    return [line(kind, NOW - ago_ms, run) for kind in ("act", "acted", "done")[: 3 if settled else 2]]


BEGAN = [line("began", 0)]


@pytest.mark.parametrize(
    ("partitions", "lines", "holder", "codes"),
    [
        (IN_SYNC, [], Holder(), []),
        (LEADERLESS, act(5, settled=False), Holder(), []),  # no run is active: not kmigrate's doing
        (IN_SYNC, [], OURS, ["O05"]),
        (IN_SYNC, BEGAN, OURS, []),
        (IN_SYNC, act(5, run="dag/earlier"), OURS, ["O05"]),
        (IN_SYNC, act(30_000), OURS, []),
        (IN_SYNC, act(29_999), OURS, ["Q01"]),
        (IN_SYNC, act(60_000, settled=False), OURS, ["Q01"]),
        (IN_SYNC, act(5, settled=False), OURS, ["Q01", "Q01"]),
        (IN_SYNC, [*act(5, settled=False, run="dag/earlier"), *BEGAN], OURS, []),
        (BEHIND, act(60_000), OURS, ["Q01"]),
        (LEADERLESS, BEGAN, OURS, ["Q01"]),
        (None, BEGAN, OURS, ["Q01"]),
        (None, [], Holder(known=False), []),
        (None, act(60_000, settled=False), Holder(known=False), ["Q01"]),
        (None, act(RECENT_MS, settled=False), Holder(known=False), []),
    ],
)
def test_quiet(partitions: tuple[Partition, ...] | None, lines: list[JournalLine], holder: Holder, codes: list[str]) -> None:
    decision = decide_quiet(ClusterView(0.0, partitions=partitions), lines, holder, NOW, CALM)
    assert isinstance(decision, Wait if codes else Done)
    assert [reason.code for reason in getattr(decision, "reasons", ())] == codes
