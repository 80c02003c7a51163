"""All of `__consumer_offsets` through Spark: bytes as brokers write them in, the groups at risk and their report out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the audit has its own environment")

from pyspark.sql import SparkSession

from airflow_provider_kmigrate.audit import offsets_history
from airflow_provider_kmigrate.audit.offsets_history import OffsetsFrames, build_frames
from airflow_provider_kmigrate.audit.offsets_rows import HISTORY, JUDGED, stored_commit
from airflow_provider_kmigrate.audit.report import render_page
from airflow_provider_kmigrate.core.audit import commit_copies
from airflow_provider_kmigrate.core.audit.commit_copies import OffsetsFacts
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, combine
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.migration.coordinator import hash_group
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import CopyState, Doubt
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from tests.audit import reports
from tests.core.offsets_bytes import Log
from tests.pages.rules import check_whole

OLD, NEW = 10, 15
GROUPS = [f"team-{number:02}" for number in range(60)]
MOVING = [group for group in GROUPS if hash_group(group) % OLD != hash_group(group) % NEW]
SPLIT, REVIVED, STALE, REMOVED, LEFT, AHEAD, LANDMINE = MOVING[:7]


def test_a_log_with_records_that_a_transaction_hides_is_not_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The newest commits may be among them: an older one would pass for the last."""

    def hidden(_: object) -> None:
        raise Unavailable("[K81] Open transactions hide records of partitions of __consumer_offsets: 3 from offset 50 on.")

    monkeypatch.setattr(offsets_history, "whole_marks", hidden)
    with pytest.raises(Refused, match=r"X02.*K81") as refused:
        offsets_history.read_history(None, {}, str(tmp_path))  # type: ignore[arg-type]
    assert [reason.cause for reason in refused.value.reasons] == [AuditCause.OFFSETS_UNREAD]


def key(group: str, partition: int = 0) -> GroupPartition:
    return GroupPartition(group, "orders", partition)


def before() -> Log:
    """60 groups committed 111 under the old count."""
    log = Log()
    for group in GROUPS:
        log.group(hash_group(group) % OLD, group, 900)
        for partition in range(3):
            log.commit(hash_group(group) % OLD, key(group, partition), 111, 1_000, "märk")
    return log


def after() -> Log:
    """The topic was expanded, one broker restarted, and seven groups had each its own accident; the others came along well."""
    log = before()
    old, new = {group: hash_group(group) % OLD for group in GROUPS}, {group: hash_group(group) % NEW for group in GROUPS}
    for group in MOVING:
        if group not in {SPLIT, REVIVED, STALE, REMOVED, LEFT, AHEAD}:
            for partition in range(3):
                log.commit(old[group], key(group, partition), None, 1_500)
                log.commit(new[group], key(group, partition), 111, 1_600)
            log.group(old[group], group, 1_500, there=group == LANDMINE)
        for partition in range(1, 3):
            log.commit(old[group], key(group, partition), None, 1_700)
    log.commit(new[SPLIT], key(SPLIT), 112, 2_000)
    log.commit(old[SPLIT], key(SPLIT), 113, 2_100)
    log.commit(new[SPLIT], key(SPLIT), 114, 2_200)
    for offset, t_ms in ((999, 2_000), (112, 2_100), (113, 2_200)):
        log.commit(new[REVIVED], key(REVIVED), offset, t_ms)
    for number in range(60):  # until its log has grown past the old one
        log.commit(new[STALE], key(STALE), 120 + number, 2_000 + number)
    log.commit(new[REMOVED], key(REMOVED), 130, 2_000)
    log.commit(new[REMOVED], key(REMOVED), None, 2_500)
    log.commit(new[AHEAD], key(AHEAD), 105, 800)
    log.put(3, 2_000, b"\0\1\0", b"?")
    return log


def asked(spark: SparkSession, log: Log, count: int, folder: Path) -> OffsetsFrames:
    raw = [(one.partition, one.offset, one.t_ms, one.key, one.value) for one in log.records]
    frame = spark.createDataFrame(raw, "partition int, offset long, t_ms long, key binary, value binary").repartition(3)
    offsets_history.decode_history(frame).write.mode("overwrite").parquet(str(folder))
    return build_frames(spark, spark.read.parquet(str(folder)), count)


@pytest.fixture(scope="module")
def broken(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> OffsetsFrames:
    return asked(spark_session, after(), NEW, tmp_path_factory.mktemp("after"))


@pytest.fixture(scope="module")
def facts(broken: OffsetsFrames) -> OffsetsFacts:
    return broken.collect_facts()


@pytest.fixture(scope="module")
def asleep(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> OffsetsFacts:
    return asked(spark_session, before(), NEW, tmp_path_factory.mktemp("before")).collect_facts()


def test_the_frames_are_as_their_schemas_say(broken: OffsetsFrames) -> None:
    assert broken.history.columns == HISTORY.names
    assert broken.judged.columns == JUDGED.names
    assert broken.history.schema["metadata"].dataType.simpleString() == "string"


def test_the_history_of_a_group(broken: OffsetsFrames) -> None:
    rows = broken.history.where(f"consumer_group = '{SPLIT}' AND part = 0").orderBy("commit_ms").toArrow().to_pylist()
    old, new = hash_group(SPLIT) % OLD, hash_group(SPLIT) % NEW
    assert [(row["place"], row["committed"], row["commit_ms"]) for row in rows] == [
        (old, 111, 1_000),
        (new, 112, 2_000),
        (old, 113, 2_100),
        (new, 114, 2_200),
    ]
    assert (stored_commit(rows[0]).metadata, stored_commit(rows[0]).leader_epoch, stored_commit(rows[0]).expire_ms) == (
        "märk",
        5,
        None,
    )
    (gone,) = broken.history.where(f"consumer_group = '{REMOVED}' AND NOT live AND part = 0").toArrow().to_pylist()
    assert (gone["committed"], gone["commit_ms"]) == (None, 2_500)


def test_every_accident_is_found_by_its_name_and_nothing_else(broken: OffsetsFrames, facts: OffsetsFacts) -> None:
    found = {
        row["consumer_group"]: (CopyState[row["state"]], [Doubt[name] for name in row["doubts"]])
        for row in broken.judged.toArrow().to_pylist()
    }
    assert found == {
        SPLIT: (CopyState.SPLIT, [Doubt.INTERLEAVED]),
        REVIVED: (CopyState.REVIVED, []),
        STALE: (CopyState.STALE, []),
        REMOVED: (CopyState.REMOVED, [Doubt.REMOVED]),
        LEFT: (CopyState.MISPLACED, []),
        AHEAD: (CopyState.AHEAD, []),
    }
    assert facts.totals == {state: 1 for state, _ in found.values()}
    assert (facts.concerned, facts.unreadable, facts.count) == (6, 1, NEW)
    assert facts.states == 7, "the six, and the landmine: its own state alone is left behind"
    assert (facts.groups, facts.earlier) == (60, (OLD,))
    assert facts.moved == len(MOVING)


def test_the_worst_comes_first_with_its_course(facts: OffsetsFacts) -> None:
    first = facts.shown[0]
    assert (first.judged.key, first.judged.state) == (key(SPLIT), CopyState.SPLIT)
    assert [commit.offset for commit in first.course] == [111, 112, 113, 114]
    assert len(next(shown for shown in facts.shown if shown.judged.key.group == STALE).course) == 61
    removed = next(shown for shown in facts.shown if shown.judged.key.group == REMOVED)
    assert removed.judged.removal is not None
    assert removed.judged.removal.t_ms == 2_500


def test_a_sleeping_expansion_shows_as_groups_that_all_lie_where_the_old_count_puts_them(asleep: OffsetsFacts) -> None:
    assert asleep.totals == {CopyState.MISPLACED: 3 * len(MOVING)}
    assert (asleep.earlier, asleep.moved, asleep.moving) == ((OLD,), len(MOVING), tuple(sorted(MOVING)[: offsets_history.SHOWN]))
    assert len(asleep.shown) == min(offsets_history.SHOWN, 3 * len(MOVING))
    causes = [(one.outcome, one.reason.cause) for one in commit_copies.check_commits(asleep)]
    assert (AuditOutcome.FAIL, AuditCause.COMMITS_MISPLACED) in causes


def test_a_uniform_topic_is_a_fact_that_fails_nothing(spark_session: SparkSession, tmp_path: Path) -> None:
    found = asked(spark_session, before(), OLD, tmp_path).collect_facts()
    assert (found.totals, found.concerned, found.states, found.earlier, found.commits) == ({}, 0, 0, (), 180)
    (finding,) = commit_copies.check_commits(found)
    assert (finding.outcome, finding.reason.cause, finding.count) == (AuditOutcome.PASS, AuditCause.COMMITS_READ, 180)


def test_an_empty_topic_and_none(spark_session: SparkSession, tmp_path: Path) -> None:
    assert asked(spark_session, Log(), NEW, tmp_path).collect_facts() == OffsetsFacts(NEW)
    assert "no group has ever committed" in commit_copies.check_commits(OffsetsFacts(0))[0].reason.text


def test_the_verdict_and_the_page(facts: OffsetsFacts) -> None:
    verdict = combine(commit_copies.check_commits(facts), [])
    assert verdict.outcome is AuditOutcome.FAIL
    causes = {finding.reason.cause for finding in verdict.findings}
    assert causes == {
        *(AuditCause.COORDINATORS_SPLIT, AuditCause.OFFSETS_REVIVED, AuditCause.COMMITS_MISPLACED, AuditCause.COPIES_LEFT),
        *(AuditCause.COMMITS_READ, AuditCause.COMMITS_UNKNOWN),
    }
    assert all("had 10 when" in one.reason.text for one in verdict.findings if one.reason.cause is AuditCause.COORDINATORS_SPLIT)
    page = render_page(replace(reports.passing(), verdict=verdict, offsets=facts))
    check_whole(page, links={"report.json", "#guides"})
    assert page.count('<circle class="stray"') >= 6
    assert replace(reports.passing(), offsets=facts).as_dict()["offsets"]["totals"]["SPLIT"] == 1
