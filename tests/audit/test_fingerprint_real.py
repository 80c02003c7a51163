"""Fingerprints by Spark over real brokers: unchanged through a restart, and every planted damage found by its own code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("py4j", reason="Spark's own environment has it: make test")

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from airflow_provider_kmigrate.audit import fingerprint
from airflow_provider_kmigrate.audit.fingerprint import LogSnapshot, compare, take_snapshot
from airflow_provider_kmigrate.audit.kafka_source import translate_properties
from airflow_provider_kmigrate.audit.request import LogsRequest
from airflow_provider_kmigrate.clients.admin import log_ends_at, read_marks
from airflow_provider_kmigrate.core.audit.commit_tracks import Track
from airflow_provider_kmigrate.core.audit.fingerprint import LogSample, Print
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, combine
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Refused
from tests.kit.load import create_topic_again
from tests.kit.localcluster.agents import agent_of
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape, folder_of
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster
COUNT, PARTITIONS = 3_000, 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lent(tmp_path_factory.mktemp("fingerprint"), Shape(name="prints", brokers=1, controllers=1, racks=0)) as found:
        yield found


@pytest.fixture(scope="module")
def spark(spark_session: SparkSession) -> SparkSession:
    return spark_session


@pytest.fixture(scope="module")
def properties(cluster: LocalCluster) -> Mapping[str, str]:
    return {"bootstrap.servers": cluster.bootstrap}


def create(properties: Mapping[str, str], name: str, **config: str) -> None:
    topic = NewTopic(name, PARTITIONS, 1, config={key.replace("_", "."): value for key, value in config.items()})
    admin = AdminClient(dict(properties))  # a client that nothing refers to ends with its requests
    admin.create_topics([topic])[name].result(30)


def fill(properties: Mapping[str, str], topic: str, count: int = COUNT) -> None:
    producer = Producer({**properties, "linger.ms": 20})
    for number in range(count):
        headers = [("n", str(number).encode()), ("none", None)] if number % 2 else None
        producer.produce(topic, f"value {number}", f"key {number}" if number % 3 else None, number % PARTITIONS, headers=headers)
    assert producer.flush(30) == 0


def commit(properties: Mapping[str, str], group: str, offset: int) -> None:
    consumer = Consumer({**properties, "group.id": group})
    try:
        consumer.commit(offsets=[KafkaPartition("t", 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def causes(before: LogSnapshot, after: LogSnapshot) -> dict[object, int]:
    findings, _ = compare(before, after)
    return {finding.reason.cause: finding.count for finding in findings}


@pytest.fixture(scope="module")
def before(spark: SparkSession, properties: Mapping[str, str]) -> LogSnapshot:
    create(properties, "t")
    fill(properties, "t")
    commit(properties, "g", 500)
    found = take_snapshot(spark, properties, ["t"], block=100)
    assert found.logs.records == COUNT
    return fingerprint.from_dict(json.loads(json.dumps(fingerprint.as_dict(found))))


def test_equal_through_a_restart_and_new_records(
    spark: SparkSession, cluster: LocalCluster, properties: Mapping[str, str], before: LogSnapshot
) -> None:
    node = cluster.plan.brokers[0]
    with agent_of(node, cluster.plan.cluster_id) as host:
        host.stop(node, 1)
    cluster.up()
    fill(properties, "t", 300)
    commit(properties, "g", 700)
    after = take_snapshot(spark, properties, ["t"], before=before)
    findings, health = compare(before, after)
    assert causes(before, after) == {AuditCause.UNCHANGED: COUNT}
    assert health.events == COUNT
    assert combine(findings, [health]).outcome is AuditOutcome.PASS
    assert after.logs.marks[TopicPartition("t", 0)].leader_epoch is not None
    (track,) = after.commits.tracks.values()
    assert (track.first, track.last) == (700, 700)


def test_one_changed_byte_in_one_record(spark: SparkSession, properties: Mapping[str, str], before: LogSnapshot) -> None:
    """The log cannot be changed from outside, so what is compared is another topic whose records differ in one byte, or places."""
    options = translate_properties(properties)
    create(properties, "same")
    create(properties, "other")
    fill(properties, "same", 9)
    producer = Producer(dict(properties))
    for number in range(9):
        headers = [("n", str(number).encode()), ("none", None)] if number % 2 else None
        key = f"key {number}" if number % 3 else None
        producer.produce("other", f"valu{'E' if number == 4 else 'e'} {number}", key, number % 3, headers=headers)
    assert producer.flush(30) == 0
    prints = {}
    for topic in ("same", "other"):
        marks = read_marks(properties, [topic])
        spans = {where: [(mark.start, mark.end)] for where, mark in marks.items()}
        prints[topic] = fingerprint.hash_logs(spark, options, spans, 100)
    assert {found[0].records for topic in prints.values() for found in topic.values()} == {3}
    assert prints["same"][TopicPartition("same", 1)] != prints["other"][TopicPartition("other", 1)]


def test_records_that_are_deleted_below_and_a_commit_that_goes_back(
    spark: SparkSession, properties: Mapping[str, str], before: LogSnapshot
) -> None:
    admin = AdminClient(dict(properties))
    for future in admin.delete_records([KafkaPartition("t", 1, 250)]).values():
        future.result(30)
    commit(properties, "g", 100)
    found = causes(before, take_snapshot(spark, properties, ["t"], before=before))
    assert found[AuditCause.RETENTION] == 250, "named as retention"
    assert found[AuditCause.UNCHANGED] == COUNT - 300, "the block that it reached is left out"
    assert found[AuditCause.COMMIT_WENT_BACK] == 1
    assert AuditCause.LOG_SHRUNK not in found


def test_planted_damage(spark: SparkSession, properties: Mapping[str, str], before: LogSnapshot) -> None:
    """What was there before is made up: it is as if the log of now had lost it."""
    where = TopicPartition("t", 2)
    prints = {**before.logs.prints, where: {**before.logs.prints[where]}}
    prints[where][3] = Print(101, *prints[where][3][1:])
    marks = {**before.logs.marks}
    marks[TopicPartition("t", 0)] = replace(marks[TopicPartition("t", 0)], end=9_999)
    marks[TopicPartition("gone", 0)] = replace(marks[where])
    planted = replace(before, logs=replace(before.logs, prints=prints, marks=marks))
    found = causes(planted, take_snapshot(spark, properties, ["t", "gone"], before=planted))
    assert found[AuditCause.LOG_SHRUNK] == 1
    assert found[AuditCause.LOG_TRUNCATED] == 9_999 - 1_100
    assert AuditCause.PARTITIONS_GONE in found


def test_a_sample_reads_what_it_says(spark: SparkSession, properties: Mapping[str, str], before: LogSnapshot) -> None:
    seen = take_snapshot(spark, properties, ["t"], LogSample(share=0.2, pieces=2, tail=200), block=100)
    assert 3 * 200 <= seen.logs.records < 3 * 600
    findings, _ = compare(seen, take_snapshot(spark, properties, ["t"], before=seen))
    assert [finding.reason.cause for finding in findings] == [AuditCause.UNCHANGED]
    assert "every offset" not in findings[0].reason.text


def test_transactions_leave_gaps_that_are_none(spark: SparkSession, properties: Mapping[str, str]) -> None:
    create(properties, "tx")
    producer = Producer({**properties, "transactional.id": "x"})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for number in range(10):
            producer.produce("tx", str(number), partition=0)
        producer.flush(10)
        end(30)
    seen = take_snapshot(spark, properties, ["tx"], block=100)
    assert seen.logs.records == 30
    assert seen.logs.marks[TopicPartition("tx", 0)].end == 33
    assert causes(seen, take_snapshot(spark, properties, ["tx"], before=seen)) == {AuditCause.UNCHANGED: 30}


def test_offsets_that_a_transaction_did_not_commit(
    spark: SparkSession, properties: Mapping[str, str], before: LogSnapshot
) -> None:
    """Exactly once: 200 is committed, 400 aborted, 300 committed. An aborted one is no commit that the next could go back behind."""
    producer = Producer({**properties, "transactional.id": "eos"})
    consumer = Consumer({**properties, "group.id": "eos"})
    producer.init_transactions(30)
    try:
        for offset, end in (
            (200, producer.commit_transaction),
            (400, producer.abort_transaction),
            (300, producer.commit_transaction),
        ):
            producer.begin_transaction()
            producer.send_offsets_to_transaction([KafkaPartition("t", 0, offset)], consumer.consumer_group_metadata(), 30)
            end(30)
        seen = take_snapshot(spark, properties, ["t"], before=before)
        track = seen.commits.tracks[GroupPartition("eos", "t", 0)]
        assert (track.first, track.last, track.count, track.back_count) == (200, 300, 2, 0)
        assert seen.commits.refused == 0
        producer.begin_transaction()
        producer.send_offsets_to_transaction([KafkaPartition("t", 0, 350)], consumer.consumer_group_metadata(), 30)
        still = take_snapshot(spark, properties, ["t"], before=seen)
        assert GroupPartition("eos", "t", 0) not in still.commits.tracks, "it is open yet"
        producer.commit_transaction(30)
        after = take_snapshot(spark, properties, ["t"], before=still)
        assert after.commits.tracks[GroupPartition("eos", "t", 0)].last == 350, "the observation goes on where the open one began"
    finally:
        consumer.close()


def test_a_group_that_has_read_a_transactional_log_waits_for_nothing(spark: SparkSession, properties: Mapping[str, str]) -> None:
    """It committed behind the last record; behind that lies the transaction's marker, then what another one aborted."""
    create(properties, "rests")
    place, producer = TopicPartition("rests", 0), Producer({**properties, "transactional.id": "rests"})
    producer.init_transactions(30)

    def transaction(end: Callable[[float], None]) -> None:
        producer.begin_transaction()
        for _ in range(5):
            producer.produce("rests", "v", partition=0)
        producer.flush(30)
        end(30)

    transaction(producer.commit_transaction)
    first = take_snapshot(spark, properties, ["rests"])
    track = {GroupPartition("rests", *place): Track.of(5, first.commits.taken_ms)}
    before = replace(
        first, commits=replace(first.commits, tracks=track, members={"rests": 1}, taken_ms=first.commits.taken_ms - 70_000)
    )
    transaction(producer.abort_transaction)
    after = take_snapshot(spark, properties, ["rests"], before=before)
    assert (after.logs.marks[place].end, after.ends[place]) == (12, 5)
    assert AuditCause.GROUP_STALLED not in causes(before, after)
    transaction(producer.commit_transaction)
    waits = take_snapshot(spark, properties, ["rests"], before=before)
    assert waits.ends[place] == 17
    assert causes(before, waits)[AuditCause.GROUP_STALLED] == 1


def test_an_observation_that_is_left_for_the_next_audit(spark: SparkSession, properties: Mapping[str, str]) -> None:
    create(properties, "grows")
    fill(properties, "grows", 900)
    first = take_snapshot(spark, properties, ["grows"], block=100)
    fill(properties, "grows", 600)
    after = take_snapshot(spark, properties, ["grows"], before=first)
    assert after.logs.records == 900, "only what is compared"
    second = fingerprint.refresh_snapshot(spark, properties, first, after)
    assert second.logs.records == 1_500
    fill(properties, "grows", 300)
    third = take_snapshot(spark, properties, ["grows"], before=second)
    assert causes(second, third) == {AuditCause.UNCHANGED: 1_500}
    mark = second.logs.marks[TopicPartition("grows", 0)]
    assert (mark.retention_ms, mark.retention_bytes, mark.compacted) == (604_800_000, -1, False)
    assert 0 <= second.logs.taken_ms - (mark.newest_ms or 0) < 600_000
    offsets = [mark for where, mark in second.commits.marks.items() if where.topic == "__consumer_offsets"]
    assert {(mark.retention_ms, mark.compacted) for mark in offsets} == {(-1, True)}


def test_each_audit_compares_with_what_the_last_one_left(
    spark: SparkSession, properties: Mapping[str, str], tmp_path: Path
) -> None:
    create(properties, "gates")
    fill(properties, "gates", 300)
    (tmp_path / "kafka.json").write_text(json.dumps(dict(properties)))
    places = [str(tmp_path / name / "fingerprint.json") for name in ("first", "gate1", "gate2")]
    wanted = LogsRequest(str(tmp_path / "kafka.json"), ("gates",), places[0], tuple(places[1:]))
    fingerprint.observe_before(spark, wanted)
    fill(properties, "gates", 300)
    (tmp_path / "gate1").mkdir()
    fingerprint.compare_since(spark, wanted).keep_snapshot(spark, wanted, Path(places[1]))
    found = fingerprint.compare_since(spark, wanted)
    assert (found.before.logs.records, found.health.events) == (600, 600)
    assert [finding.reason.cause for finding in found.findings if finding.outcome is not AuditOutcome.PASS] == []
    unresponsive = replace(found.after.logs, marks={where: LogMark(unread="no leader") for where in found.after.logs.marks})
    replace(found, after=replace(found.after, logs=unresponsive)).keep_snapshot(spark, wanted, Path(places[2]))
    assert not Path(places[2]).exists(), "the observation before is the better one"


def test_without_a_list_the_newest_records_of_every_topic_are_compared(
    spark: SparkSession, properties: Mapping[str, str], tmp_path: Path
) -> None:
    """Also of one that is made meanwhile; Kafka's own, kmigrate's and the ignored ones may come and go."""
    admin = AdminClient(dict(properties))
    for topic in ("stays", "scratch", "kmigrate-own"):
        create(properties, topic)
        fill(properties, topic, 900)
    (tmp_path / "kafka.json").write_text(json.dumps(dict(properties)))
    places = [tmp_path / name / "fingerprint.json" for name in ("first", "gate1")]
    newest = {"exclude_topics": ("scratch",), "sample": LogSample(0.0, tail=100), "block": 100}
    wanted = LogsRequest(str(tmp_path / "kafka.json"), None, str(places[0]), (str(places[1]),), **newest)  # type: ignore[arg-type]
    first = fingerprint.observe_before(spark, wanted).logs
    names = {where.topic for where in first.marks}
    assert "stays" in names
    assert not names & {"scratch", "kmigrate-own", "__consumer_offsets"}
    prints = [first.prints[TopicPartition("stays", partition)] for partition in range(PARTITIONS)]
    assert [sorted(blocks) for blocks in prints] == [[2]] * PARTITIONS, "of 300 records the last 100"
    admin.delete_topics(["scratch"])["scratch"].result(30)
    create(properties, "made-since")
    fill(properties, "made-since", 300)
    (tmp_path / "gate1").mkdir()
    found = fingerprint.compare_since(spark, wanted)
    assert [finding.reason.cause for finding in found.findings if finding.outcome is not AuditOutcome.PASS] == []
    found.keep_snapshot(spark, wanted, places[1])
    admin.delete_topics(["made-since"])["made-since"].result(30)
    wait_until(lambda: not read_marks(properties, ["made-since"]), "it is gone", timeout=30)
    (gone,) = [finding for finding in fingerprint.compare_since(spark, wanted).findings if finding.outcome is AuditOutcome.FAIL]
    assert (gone.reason.cause, {case.topic for case in gone.examples}) == (AuditCause.PARTITIONS_GONE, {"made-since"})
    left_out = replace(wanted, exclude_topics=("scratch", "made-since"))
    assert AuditCause.NOT_REQUESTED in [finding.reason.cause for finding in fingerprint.compare_since(spark, left_out).findings]


def test_groups_of_real_members_in_the_offsets_topic(
    spark: SparkSession, properties: Mapping[str, str], before: LogSnapshot
) -> None:
    settings = {**properties, "group.id": "live", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        consumer.subscribe(["t"])
        assert consumer.consume(50, timeout=30)
        consumer.commit(asynchronous=False)
        seen = take_snapshot(spark, properties, ["t"], before=before)
        assert seen.commits.members["live"] == 1
        assert any(reader.group == "live" for reader in seen.commits.tracks)
        assert seen.commits.refused == 0
    finally:
        consumer.close()


def test_where_logs_ended_at_a_time(properties: Mapping[str, str]) -> None:
    create(properties, "times", retention_ms="-1")  # or a broker deletes such old records, 30 s after its start
    producer = Producer(dict(properties))
    for when in (1_000, 2_000, 3_000):
        producer.produce("times", b"old", partition=0, timestamp=when)
    assert producer.flush(30) == 0
    wheres = [TopicPartition("times", partition) for partition in range(PARTITIONS)]
    assert log_ends_at(properties, wheres, 1_500) == {wheres[0]: 1}
    assert log_ends_at(properties, wheres, 1_000) == {wheres[0]: 0}
    assert log_ends_at(properties, wheres, 9_000) == {}, "all that is there is older"


def test_an_empty_and_an_unknown_topic(spark: SparkSession, properties: Mapping[str, str]) -> None:
    create(properties, "empty")
    with pytest.raises(Refused, match=r"X08.*unknown"):
        take_snapshot(spark, properties, ["empty", "unknown"])
    seen = take_snapshot(spark, properties, ["empty"])
    findings, health = compare(seen, take_snapshot(spark, properties, ["empty"], before=seen))
    assert combine(findings, [health]).outcome is AuditOutcome.INCONCLUSIVE


def test_logs_that_were_really_cut_and_topics_that_were_really_deleted(
    spark: SparkSession, cluster: LocalCluster, properties: Mapping[str, str]
) -> None:
    """As after a leader without the newest records took over: one log stays short, another one grows beyond its old end again."""
    topics = ["short", "grown", "deleted", "anew"]
    for topic in topics:
        create(properties, topic)
        for _ in range(3):
            fill(properties, topic, 300)
    seen = take_snapshot(spark, properties, topics, block=100)
    node = cluster.plan.brokers[0]
    with agent_of(node, cluster.plan.cluster_id) as host:
        host.stop(node, 1)
    kept = {topic: cut(folder_of(node) / "data" / f"{topic}-1") for topic in ("short", "grown")}
    cluster.up()
    wait_for_topics(properties, topics)
    admin = AdminClient(dict(properties))
    for deleted in admin.delete_topics(["deleted", "anew"], operation_timeout=30).values():
        deleted.result(30)
    create_topic_again(properties, "anew", PARTITIONS)
    fill(properties, "anew", 900)
    fill(properties, "grown", 900)
    after = take_snapshot(spark, properties, topics, before=seen)
    assert 0 < kept["short"] < 300
    findings, health = compare(seen, after)
    found = {finding.reason.cause: {(case.topic, case.partition) for case in finding.examples} for finding in findings}
    assert found.pop(AuditCause.UNCHANGED) == set()
    assert found == {
        AuditCause.LOG_CHANGED: {("grown", 1)},
        AuditCause.LOG_TRUNCATED: {("short", 1)},
        AuditCause.PARTITIONS_GONE: {("deleted", n) for n in range(PARTITIONS)},
        AuditCause.TOPIC_RECREATED: {("anew", n) for n in range(PARTITIONS)},
    }
    truncated = next(finding for finding in findings if finding.reason.cause == AuditCause.LOG_TRUNCATED)
    assert (truncated.count, truncated.examples[0].first, truncated.examples[0].last) == (300 - kept["short"], kept["short"], 299)
    assert combine(findings, [health]).outcome is AuditOutcome.FAIL


def wait_for_topics(properties: Mapping[str, str], topics: list[str]) -> None:
    """A broker that restarts answers before its controller has sent it the metadata."""

    def known() -> bool:
        return sum(not mark.unread for mark in read_marks(properties, topics).values()) == len(topics) * PARTITIONS

    wait_until(known, "the broker knows its topics again", timeout=30)


def cut(folder: Path) -> int:
    """A log that no process has open ends in its middle, between two batches; the offset at which it does."""
    (log,) = folder.glob("*.log")
    data, starts = log.read_bytes(), [0]
    while starts[-1] < len(data):  # a batch begins with its first offset, and the number of bytes that follow
        starts.append(starts[-1] + 12 + int.from_bytes(data[starts[-1] + 8 : starts[-1] + 12]))
    middle = starts[len(starts) // 2]
    log.write_bytes(data[:middle])
    for index in folder.glob("*index"):
        index.unlink()  # made again from the log
    return int.from_bytes(data[middle : middle + 8])


def test_the_fingerprint_tests_leave_no_spark_warehouse_behind() -> None:
    assert not (Path(os.curdir) / "spark-warehouse").exists()
