"""Fingerprints of logs and commits taken by Spark (level L0): nothing in any client is changed for it.

`python -m airflow_provider_kmigrate.audit.fingerprint REQUEST` leaves the observation before the step where the request's
`logs.before` says; the audit with the same request compares.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka import IsolationLevel
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_provider_kmigrate.audit import request
from airflow_provider_kmigrate.audit.kafka_source import Spans, options_for, read_spans
from airflow_provider_kmigrate.audit.offsets_rows import TRACKS, track_batches
from airflow_provider_kmigrate.audit.request import LogsRequest, OffsetsRequest, StreamRequest
from airflow_provider_kmigrate.audit.session import start_session
from airflow_provider_kmigrate.audit.spark_calls import ship_package, spark_errors
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.admin import list_topics, log_ends_at, read_cluster_id, read_marks
from airflow_provider_kmigrate.core.audit import commit_tracks, fingerprint
from airflow_provider_kmigrate.core.audit.commit_tracks import (
    PATIENCE,
    CommitSnapshot,
    Ends,
    Tracks,
    Waiting,
    end_of_records,
    find_stalled_groups,
    judge_commits,
)
from airflow_provider_kmigrate.core.audit.fingerprint import (
    BLOCK,
    Fingerprint,
    LogSample,
    Print,
    plan_renewal,
    select_stretches,
    spans_to_hash_again,
)
from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, LevelHealth
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.member.registration import OFFSETS_TOPIC
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused

_OURS: Final = ("__", "kmigrate-")  # Kafka's own topics, and kmigrate's
_FEW: Final = 1_000  # offsets that are read to see whether any of them is a record's
_TRIES: Final = 3  # a read fails if retention removes what it is reading; then the logs' beginnings are read again

# Null and empty are distinguished by their lengths; xxhash64 skips nulls, so that without them a key could pass for a value.
_PRINTS: Final = """
SELECT topic, partition, offset DIV {block} AS number, count(*) AS records, bit_xor(hash) AS exclusive,
       sum(hash & 4294967295) AS low, sum(shiftrightunsigned(hash, 32)) AS high
FROM (
  SELECT topic, partition, offset,
         xxhash64(offset, timestamp, coalesce(octet_length(key), -1), key, coalesce(octet_length(value), -1), value,
                  transform(headers, h -> struct(h.key, coalesce(octet_length(h.value), -1), h.value))) AS hash
  FROM {{records}}
) GROUP BY topic, partition, offset DIV {block}
"""


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """Everything of level L0 at one time.

    `settled`: before which offsets records had waited for as long as a group may; `ends`: where records end before their log
    does. Those two are not kept.
    """

    logs: Fingerprint
    commits: CommitSnapshot
    settled: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)


def take_snapshot(
    session: SparkSession,
    properties: Mapping[str, str],
    topics: Iterable[str],
    sample: LogSample | None = None,
    *,
    before: LogSnapshot | None = None,
    block: int = BLOCK,
) -> LogSnapshot:
    """Observe the logs of the topics and all commits; with `before`, what existed then, and the commits since.

    `properties` are librdkafka's. Raises ours; `Refused` (X08, X02) if an observation without `before` would leave out a topic or
    a partition, which no later one could then judge.
    """
    ship_package(session)
    options, names = options_for(session, properties), sorted(set(topics))
    block = before.logs.block if before else block
    if before is None:
        _refuse_gaps(names, read_marks(properties, names))
    commits = _take_commits(session, properties, options, before.commits if before else None)
    for tries_left in reversed(range(_TRIES)):
        marks = read_marks(properties, names, ages=True)
        readable_marks = {topic_partition: mark for topic_partition, mark in marks.items() if not mark.unread}
        whole = {
            topic_partition: select_stretches(mark, sample or LogSample(), block)
            for topic_partition, mark in readable_marks.items()
        }
        spans = spans_to_hash_again(before.logs, marks) if before else whole
        try:
            prints = hash_logs(session, options, spans, block)
        except Failed:
            if not (tries_left and _have_starts_moved(marks, read_marks(properties, names))):
                raise
            continue
        logs = Fingerprint(_now_ms(), read_cluster_id(properties), marks, prints, block)
        if before is None:
            _refuse_gaps(names, marks)
            return LogSnapshot(logs, commits)
        snapshot = LogSnapshot(logs, commits, _settled_offsets(properties, marks, commits.taken_ms))
        return without_markers(session, properties, options, before, snapshot)
    raise AssertionError("unreachable")


def _settled_offsets(
    properties: Mapping[str, str], marks: Mapping[TopicPartition, LogMark], now_ms: int
) -> dict[TopicPartition, int]:
    """Offsets before which records have waited long.

    An unresponsive partition counts whole: its records may have waited for long.
    """
    ends = {topic_partition: mark.end for topic_partition, mark in marks.items() if not mark.unread}
    return ends | {
        topic_partition: min(offset, ends[topic_partition])
        for topic_partition, offset in log_ends_at(properties, ends, now_ms - PATIENCE.stalled).items()
    }


def without_markers(
    session: SparkSession, properties: Mapping[str, str], options: Mapping[str, str], before: LogSnapshot, snapshot: LogSnapshot
) -> LogSnapshot:
    """The observation, with the ends of the records if a group seems stuck before a few offsets that may hold none."""
    spans: dict[TopicPartition, tuple[int, int]] = {}
    for case in find_stalled_groups(before.commits, snapshot.commits, *_ends_and_waiting(before, snapshot)):
        topic_partition = TopicPartition(case.topic, case.partition)
        begin, end = spans.get(topic_partition, (case.first, snapshot.logs.marks[topic_partition].end))
        spans[topic_partition] = min(case.first, begin), end
    stable = (
        read_marks(properties, {topic_partition.topic for topic_partition in spans}, isolation=IsolationLevel.READ_COMMITTED)
        if spans
        else {}
    )
    few = {
        topic_partition: (begin, end)
        for topic_partition, (begin, end) in spans.items()
        if end - begin <= _FEW
        and topic_partition in stable
        and not stable[topic_partition].unread
        and stable[topic_partition].end >= end
    }
    try:
        record_offsets = _read_record_offsets(session, options, few)
    except Failed:  # retention took them meanwhile: then they count as records
        return snapshot
    settled = {
        topic_partition: end_of_records(record_offsets[topic_partition], few[topic_partition][0], end)
        for topic_partition, end in snapshot.settled.items()
        if topic_partition in few
    }
    ends = {
        topic_partition: end_of_records(record_offsets[topic_partition], begin, end)
        for topic_partition, (begin, end) in few.items()
    }
    return replace(snapshot, settled={**snapshot.settled, **settled}, ends=ends)


def _read_record_offsets(
    session: SparkSession, options: Mapping[str, str], spans: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, list[int]]:
    """Offsets of records, neither of markers nor of aborted ones."""
    offsets: dict[TopicPartition, list[int]] = {topic_partition: [] for topic_partition in spans}
    with spark_errors("Spark could not read the ends of the logs"):
        pieces = {topic_partition: [span] for topic_partition, span in spans.items()}
        records = read_spans(session, options, pieces, isolation="read_committed") if spans else None
        table = None if records is None else records.select("topic", "partition", "offset").toArrow()
    for topic, partition, offset in zip(*(column.to_pylist() for column in table.columns), strict=True) if table else ():
        offsets[TopicPartition(topic, partition)].append(offset)
    return offsets


def _ends_and_waiting(before: LogSnapshot, snapshot: LogSnapshot) -> tuple[Ends, Waiting]:
    """The ends before which records wait, as `judge_commits` takes them."""
    ends, ends_before = (
        {topic_partition: mark.end for topic_partition, mark in log_snapshot.logs.marks.items()}
        for log_snapshot in (snapshot, before)
    )
    return {**ends, **snapshot.ends}, Waiting(ends_before, snapshot.settled)


def _refuse_gaps(topics: Sequence[str], marks: Mapping[TopicPartition, LogMark]) -> None:
    absent = sorted(set(topics) - {topic_partition.topic for topic_partition in marks})
    if absent:
        text = f"There is no topic {', '.join(absent)}, whose logs must be compared."
        raise Refused.because(Reason.of(AuditCause.TOPIC_MISSING, text))
    unread = sorted((topic_partition, mark.unread) for topic_partition, mark in marks.items() if mark.unread)
    if unread:
        (topic_partition, unread_reason), more = unread[0], f" and {len(unread) - 1} more" if len(unread) > 1 else ""
        text = f"{topic_partition.name}{more} could not be read: {unread_reason}"
        raise Refused.because(Reason.of(AuditCause.PARTITION_UNREAD, text))


def refresh_snapshot(
    session: SparkSession,
    properties: Mapping[str, str],
    before: LogSnapshot,
    after: LogSnapshot,
    sample: LogSample | None = None,
) -> LogSnapshot:
    """`after` as the observation to compare the next one with: with everything since `before`. Raises ours."""
    options, logs = options_for(session, properties), after.logs
    topics = sorted({topic_partition.topic for topic_partition in logs.marks})
    for tries_left in reversed(range(_TRIES)):
        spans, reusable_prints = plan_renewal(before.logs, logs, sample or LogSample())
        try:
            new_prints = hash_logs(session, options, spans, logs.block)
        except Failed:
            now = read_marks(properties, topics)
            if not (tries_left and _have_starts_moved(logs.marks, now)):
                raise
            logs = replace(
                logs,
                marks={
                    topic_partition: _cut_mark(mark, now.get(topic_partition, mark))
                    for topic_partition, mark in logs.marks.items()
                },
            )
            continue
        prints = {
            topic_partition: {**reusable_prints.get(topic_partition, {}), **new_prints.get(topic_partition, {})}
            for topic_partition in logs.marks
        }
        return LogSnapshot(replace(logs, prints=prints), before.commits.continued_by(after.commits))
    raise AssertionError("unreachable")


def _cut_mark(mark: LogMark, now: LogMark) -> LogMark:
    return replace(mark, start=min(mark.end, max(mark.start, now.start)))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _have_starts_moved(marks: Mapping[TopicPartition, LogMark], now: Mapping[TopicPartition, LogMark]) -> bool:
    return any(topic_partition in now and now[topic_partition].start > mark.start for topic_partition, mark in marks.items())


def hash_logs(
    session: SparkSession, options: Mapping[str, str], spans: Spans, block: int
) -> dict[TopicPartition, dict[int, Print]]:
    """The prints of all blocks in these offsets."""
    prints: dict[TopicPartition, dict[int, Print]] = {topic_partition: {} for topic_partition in spans}
    with spark_errors("Spark could not read the logs"):
        records = read_spans(session, options, spans)
        if records is None:
            return prints
        table = session.sql(_PRINTS.format(block=block), records=records).toArrow()
    for topic, partition, number, *print_fields in zip(*(column.to_pylist() for column in table.columns), strict=True):
        prints[TopicPartition(topic, partition)][number] = Print(*print_fields)
    return prints


def _take_commits(
    session: SparkSession, properties: Mapping[str, str], options: Mapping[str, str], before: CommitSnapshot | None
) -> CommitSnapshot:
    marks, stable = read_offsets_marks(properties), read_offsets_marks(properties, IsolationLevel.READ_COMMITTED)
    begins = before.ends if before else {}
    spans = {
        topic_partition: [(max(mark.start, begins.get(topic_partition.partition, 0)), mark.end)]
        for topic_partition, mark in stable.items()
    }
    tracks = read_tracks(session, options, spans)
    ends = {topic_partition.partition: mark.end for topic_partition, mark in stable.items()}
    return CommitSnapshot(_now_ms(), tracks.found, tracks.members, tracks.refused, ends, tracks.consumers, marks, tracks.left_ms)


def read_offsets_marks(
    properties: Mapping[str, str], isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
) -> dict[TopicPartition, LogMark]:
    """The logs of `__consumer_offsets`; empty without the topic. Raises `Refused` (X02) if one of them cannot be read."""
    marks = read_marks(properties, [OFFSETS_TOPIC], isolation=isolation)
    unread = [f"{topic_partition.partition}: {mark.unread}" for topic_partition, mark in marks.items() if mark.unread]
    if unread:
        text = f"Partitions of {OFFSETS_TOPIC} could not be read: {unread[0]}"
        raise Refused.because(Reason.of(AuditCause.OFFSETS_UNREAD, text))
    return marks


def read_tracks(session: SparkSession, options: Mapping[str, str], spans: Spans) -> Tracks:
    """The moves of commits in these offsets of `__consumer_offsets`.

    Offsets of an aborted transaction were never committed: they are left out.
    """
    tracks = Tracks()
    with spark_errors(f"Spark could not read {OFFSETS_TOPIC}"):
        records = read_spans(with_internal_topics(session), options, spans, isolation="read_committed")
        if records is None:
            return tracks
        columns = records.selectExpr("partition", "offset", "unix_millis(timestamp) AS t_ms", "key", "value")
        table = columns.mapInArrow(track_batches, from_arrow_schema(TRACKS)).toArrow()
    for _, _, row in sorted(zip(*(column.to_pylist() for column in table.columns), strict=True)):
        tracks.join(pickle.loads(row))  # noqa: S301  # made by `track_batches`, a moment ago
    return tracks


def with_internal_topics(session: SparkSession) -> SparkSession:
    """Spark's connector finds no partition of an internal topic when it asks by an admin client (measured, 4.2.0), by a consumer it does."""
    own = session.newSession()
    own.conf.set("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "true")
    return own


def compare(
    before: LogSnapshot, after: LogSnapshot, topics: Collection[str] | None = None, *, resetting_groups: Collection[str] = ()
) -> tuple[tuple[AuditFinding, ...], LevelHealth]:
    """The findings about logs and commits, as `core.audit.verdict.combine` takes them.

    `topics`: those still requested; None: all of `before`. `resetting_groups` as for `judge_commits`.
    """
    findings, health = fingerprint.compare(before.logs, after.logs, topics)
    of_commits = judge_commits(
        before.commits, after.commits, *_ends_and_waiting(before, after), resetting_groups=resetting_groups
    )
    return (*findings, *of_commits), health


def as_dict(snapshot: LogSnapshot) -> dict[str, Any]:
    """The observation as JSON values, for a file that keeps it until the step's end."""
    return {"logs": fingerprint.as_dict(snapshot.logs), "commits": commit_tracks.as_dict(snapshot.commits)}


def from_dict(document: Mapping[str, Any]) -> LogSnapshot:
    """Read the document of `as_dict`. Raises `Refused` (X04)."""
    try:
        return LogSnapshot(fingerprint.from_dict(document["logs"]), commit_tracks.from_dict(document["commits"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = f"A stored fingerprint is damaged: {error!r}."
        raise Refused.because(Reason.of(AuditCause.SNAPSHOT_DAMAGED, text)) from error


@dataclass(frozen=True, slots=True)
class LogComparison:
    """Two observations, and the findings about logs and commits between them."""

    before: LogSnapshot
    after: LogSnapshot
    findings: tuple[AuditFinding, ...]
    health: LevelHealth

    def keep_snapshot(self, session: SparkSession, logs_request: LogsRequest, path: Path) -> None:
        """Keep the later observation, whole, for the next audit, which compares everything written since the earlier.

        Raises ours.
        """
        if not any(mark.unread for mark in self.after.logs.marks.values()):  # else the older one stays the better one
            _write_snapshot(
                refresh_snapshot(session, read_properties(logs_request), self.before, self.after, logs_request.sample), path
            )


def compare_since(session: SparkSession, logs_request: LogsRequest) -> LogComparison:
    """Findings about logs and commits since the newest earlier observation. Raises ours."""
    existing = [path for path in logs_request.refreshed if Path(path).exists()]
    before = from_dict(_read_json_object(existing[-1] if existing else logs_request.before))
    earlier_topics, kafka_properties = (
        {topic_partition.topic for topic_partition in before.logs.marks},
        read_properties(logs_request),
    )
    after = take_snapshot(
        session,
        kafka_properties,
        {*_requested_topics(logs_request, kafka_properties), *(earlier_topics if logs_request.topics is None else ())},
        before=before,
    )
    requested_topics = (
        earlier_topics.difference(logs_request.exclude_topics) if logs_request.topics is None else logs_request.topics
    )
    findings, health = compare(before, after, requested_topics, resetting_groups=logs_request.resetting_groups)
    return LogComparison(before, after, findings, health)


def observe_before(session: SparkSession, logs_request: LogsRequest) -> LogSnapshot:
    """Observe before the step and keep the result. Raises ours."""
    kafka_properties = read_properties(logs_request)
    snapshot = take_snapshot(
        session,
        kafka_properties,
        _requested_topics(logs_request, kafka_properties),
        logs_request.sample,
        block=logs_request.block,
    )
    _write_snapshot(snapshot, Path(logs_request.before))
    return snapshot


def _requested_topics(logs_request: LogsRequest, kafka_properties: Mapping[str, str]) -> Collection[str]:
    """The named topics, or all of the users' that exist now."""
    if logs_request.topics is not None:
        return logs_request.topics
    return {name for name in list_topics(kafka_properties) if not name.startswith(_OURS)}.difference(logs_request.exclude_topics)


def _write_snapshot(snapshot: LogSnapshot, path: Path) -> None:
    atomic.make_folder(path.parent)
    atomic.replace(path, json.dumps(as_dict(snapshot)).encode(), mode=atomic.ALL_USERS)


def read_properties(kafka_request: LogsRequest | OffsetsRequest | StreamRequest) -> Mapping[str, str]:
    """Kafka's properties for the request; never log them. Raises `Failed`, or `Refused` (X04)."""
    return {str(name): str(value) for name, value in _read_json_object(kafka_request.properties).items()}


def _read_json_object(path: str) -> Mapping[str, Any]:
    try:
        document = read_json(Path(path).read_bytes())
    except OSError as error:
        raise Failed(f"the audit cannot read {path}: {error}") from error
    except ValueError:
        document = None
    if not isinstance(document, dict):
        text = f"{path} holds no JSON object."
        raise Refused.because(Reason.of(AuditCause.SNAPSHOT_DAMAGED, text))
    return document


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 with the reason if nothing could be observed."""
    parser = argparse.ArgumentParser(description="Takes a fingerprint of logs and commits before a step.")
    parser.add_argument("request", type=Path, help="JSON, see request.py; its `logs` say where the fingerprint goes")
    options = parser.parse_args(arguments)
    try:
        audit_request = request.load(options.request)
        if audit_request.logs is None:
            raise Refused.because(Reason.of(AuditCause.REQUEST_WRONG, "The request names no logs."))
        with start_session(
            audit_request.spark.master, jars=audit_request.spark.jars, settings=audit_request.spark.settings
        ) as session:
            snapshot = observe_before(session, audit_request.logs)
    except KMigrateError as error:
        print(f"no observation of the logs: {error}", file=sys.stderr)  # noqa: T201  # a program's own words
        return 2
    print(f"{count_of(snapshot.logs.records, 'record')} of {count_of(len(snapshot.logs.marks), 'partition')}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
