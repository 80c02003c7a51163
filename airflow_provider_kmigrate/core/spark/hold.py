"""Holds and resumes a Spark streaming job: its checkpoint, the files that job and operator exchange, and what may be done next.

::

    <hold folder>/hold.json    written to request the hold; while it exists, no batch begins
    <hold folder>/state.json   written by the job: running, held, ended or failed; its last commit; a heartbeat
    <hold folder>/held.json    written by the requester once the job is held: its checkpoint's positions

Of a job that two commands hold there is no state.json: that it stands still is seen by its positions alone.

A job is held when its query has stopped with no batch half done: every planned batch (`offsets/` in the checkpoint) is committed
(`commits/`), or the last planned one had not begun when the hold was requested. Spark then continues from the checkpoint. The job
may resume if the query did not run meanwhile, and its logs lost no records: neither read ones (a log that ends before the job's
position was truncated) nor unread ones (a log that begins after it).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, NoReturn, TypeVar

from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import count_of, summarize
from airflow_provider_kmigrate.exceptions import Refused

VERSION: Final = 1
HOLD, STATE, HELD = "hold.json", "state.json", "held.json"
UNRESPONSIVE_MS: Final = 60_000  # a job whose heartbeat is older does not run
_VOID = "-"  # Spark's mark of a source that has nothing yet

Offsets = Mapping[TopicPartition, int]
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class SparkHold:
    """A request to hold. `id` distinguishes holds, `by` is the requester, `since_ms` is ms since the epoch."""

    id: str
    by: str
    why: str
    since_ms: int


class JobState(StrEnum):
    """The state that a job reports."""

    RUNNING = "running"
    HELD = "held"
    ENDED = "ended"  # its query ended by itself
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JobReport:
    """The job's own report. `hold`: id of the hold it follows, or followed last.

    `committed` and `planned` are numbers of batches in its checkpoint; `begun`: the planned one may have written something.
    `at_ms`: its heartbeat. `progress_ms`: when its query last polled the brokers or committed a batch, as observed.
    `resumed_at`: the offsets from which the query continued after the last hold, by its own report.
    """

    state: JobState
    at_ms: int
    hold: str | None = None
    query: str | None = None
    committed: int | None = None
    planned: int | None = None
    begun: bool = True
    progress_ms: int | None = None
    resumed_at: Offsets = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a checkpoint. `offsets`: where the newest committed batch ended, of all its Kafka sources."""

    query: str | None
    planned: int | None
    committed: int | None
    offsets: Offsets = field(default_factory=dict)

    @property
    def is_settled(self) -> bool:
        """True if every planned batch is committed."""
        return self.planned == self.committed


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """What was found when a hold took effect, at `at_ms`. `state`: the job's own report then; `topic_ids`: those known then."""

    hold: str
    at_ms: int
    state: JobState
    checkpoint: Checkpoint
    topic_ids: Mapping[str, str] = field(default_factory=dict)


def hold_text(hold: SparkHold) -> str:
    """The text that `read_hold` reads."""
    return json.dumps({"version": VERSION, **asdict(hold)})


def read_hold(text: str) -> SparkHold:
    """Read a hold. Raises `Refused` (J05) if the text is no hold of this version."""

    def build_hold(document: dict[str, Any]) -> SparkHold:
        return SparkHold(str(document["id"]), str(document["by"]), str(document["why"]), int(document["since_ms"]))

    return _parse(text, HOLD, build_hold)


def report_text(report: JobReport) -> str:
    """The text that `read_report` reads."""
    return json.dumps({"version": VERSION, **asdict(report), "resumed_at": _nest_offsets(report.resumed_at)})


def read_report(text: str) -> JobReport:
    """Read a report. Raises `Refused` (J05) if the text is no report of this version."""

    def build_report(document: dict[str, Any]) -> JobReport:
        return JobReport(
            **{**document, "state": JobState(document["state"]), "resumed_at": _flatten_offsets(document["resumed_at"])}
        )

    return _parse(text, STATE, build_report)


def held_text(record: HeldRecord) -> str:
    """The text that `read_held` reads."""
    checkpoint = {**asdict(record.checkpoint), "offsets": _nest_offsets(record.checkpoint.offsets)}
    fields = {"hold": record.hold, "at_ms": record.at_ms, "state": record.state, "checkpoint": checkpoint}
    return json.dumps({"version": VERSION, **fields, "topic_ids": dict(record.topic_ids)})


def read_held(text: str) -> HeldRecord:
    """Read a record of a hold. Raises `Refused` (J05) if the text is no record of this version."""

    def build_record(document: dict[str, Any]) -> HeldRecord:
        fields = document["checkpoint"]
        checkpoint = Checkpoint(**{**fields, "offsets": _flatten_offsets(fields["offsets"])})
        return HeldRecord(
            str(document["hold"]),
            int(document["at_ms"]),
            JobState(document["state"]),
            checkpoint,
            dict(document.get("topic_ids", {})),
        )

    return _parse(text, HELD, build_record)


def _parse(text: str, name: str, build: Callable[[dict[str, Any]], Found]) -> Found:
    try:
        document = read_json(text)
        if not isinstance(document, dict) or document.pop("version", None) != VERSION:
            _refuse_unreadable(f"{name} is not of version {VERSION}, the only one that this release reads")
        return build(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _refuse_unreadable(f"{name}: {error!r}")


def _nest_offsets(offsets: Offsets) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def _flatten_offsets(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    pairs = ((topic, number, offset) for topic, partitions in topics.items() for number, offset in partitions.items())
    return {TopicPartition(topic, int(number)): int(offset) for topic, number, offset in pairs}


def batch_numbers(names: Iterable[str]) -> list[int]:
    """The batches in a log of the checkpoint, ascending, from the file names in its folder."""
    return sorted(int(name) for name in names if name.isdecimal())


def query_id(text: str) -> str:
    """The query's id, from the checkpoint's `metadata` file. Raises `Refused` (J05)."""
    try:
        return str(read_json(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        _refuse_unreadable(f"metadata: {error!r}")


def batch_offsets(text: str) -> Offsets:
    """Where a batch ends, from its file in `offsets/`; sources other than Kafka are left out. Raises `Refused` (J05).

    The file (OffsetSeqLog) has its version, a line of metadata, and one line per source: the offset as JSON, or `-`. Version 2 puts
    the source's name and a colon before it. Kafka's is {"topic": {"0": 5}}. If two sources read one topic, the earlier offset
    counts.
    """
    version, *lines = text.splitlines() or [""]
    if version not in {"v1", "v2"} or not lines:
        _refuse_unreadable(f"a file of offsets begins with {version[:20]!r}; this release reads v1 and v2")
    offsets: dict[TopicPartition, int] = {}
    for line in lines[1:]:
        source = line.partition(":")[2] if version == "v2" else line
        for topic_partition, offset in kafka_offset(source).items():
            offsets[topic_partition] = min(offset, offsets.get(topic_partition, offset))
    return offsets


def kafka_offset(source: object) -> Offsets:
    """A Kafka source's offset as Spark writes it, text or parsed; empty for any other source's."""
    try:
        parsed = read_json(source) if isinstance(source, str) and source != _VOID else source
        return _flatten_offsets(parsed) if isinstance(parsed, dict) else {}
    except (ValueError, TypeError, AttributeError):
        return {}


def _refuse_unreadable(what: str) -> NoReturn:
    raise Refused.because(Reason("J05", f"The state of a Spark job could not be read: {what}."))


def decide_held(
    hold: SparkHold, report: JobReport | None, now_ms: int, *, in_effect: bool = False, needed: bool = True
) -> Decision:
    """Decides whether the job is held by this hold. `Done` says nothing about its checkpoint: see `decide_quiescent`.

    `in_effect`: this hold took effect before. If the job does not respond now, it stopped while held, and begins no batch when it
    starts again. Not `needed`: the step continues without a job that has not responded for `UNRESPONSIVE_MS`; the hold keeps it
    from starting.
    """
    if report and report.state is JobState.ENDED:
        return Done("The job's query has ended by itself; it starts no other while the hold exists.")
    if report and report.state is JobState.FAILED:
        return Done(
            f"The job failed before the hold, and starts no query while the hold exists: {report.error or 'no reason given'}"
        )
    alive = fresh_report(report, now_ms)
    if alive is None:
        if in_effect or (not needed and now_ms - hold.since_ms > UNRESPONSIVE_MS):
            return Done(f"{unresponsive_reason(report, now_ms)} Continuing without it: a job that starts later obeys the hold.")
        return Wait((unresponsive_reason(report, now_ms),))
    if alive.state is JobState.HELD and alive.hold == hold.id:
        return Done(f"The job is held after batch {format_batch(alive.committed)}.")
    return Wait((Reason("J01", f"The job still runs; its newest committed batch is {format_batch(alive.committed)}."),))


def format_batch(number: int | None) -> str:
    """A batch's number, for a message."""
    return "none" if number is None else str(number)


def fresh_report(report: JobReport | None, now_ms: int) -> JobReport | None:
    """The job's report, if it is fresh enough to show that the job runs."""
    return report if report and now_ms - report.at_ms <= UNRESPONSIVE_MS else None


def unresponsive_reason(report: JobReport | None, now_ms: int) -> Reason:
    """J05: the job has not responded for too long."""
    last_sign = (
        "has never written its state" if report is None else f"last wrote its state {(now_ms - report.at_ms) / 1000:.0f} s ago"
    )
    return Reason("J05", f"The job {last_sign}.")


def failure_reason(report: JobReport) -> Reason:
    """J11: the job reports its own failure."""
    return Reason("J11", f"The job has failed: {report.error or 'no reason given'}")


def decide_quiescent(checkpoint: Checkpoint, report: JobReport | None, *, idempotent_sink: bool = False) -> Decision:
    """Decides whether no batch is half done. `idempotent_sink`: the sink takes a repeated batch once (files, Delta, ...)."""
    if checkpoint.is_settled:
        return Done(f"Offsets and commits agree at batch {format_batch(checkpoint.committed)}.")
    planned, committed = format_batch(checkpoint.planned), format_batch(checkpoint.committed)
    if _is_one_ahead(checkpoint) and report and not report.begun and report.planned == checkpoint.planned:
        return Done(f"Batch {planned} is planned and has not begun; commits end at {committed}. The job runs it first, once.")
    if idempotent_sink and _is_one_ahead(checkpoint):
        return Done(f"Batch {planned} is planned and not committed; its sink ignores a repeated batch.")
    return Refuse((Reason("J02", f"Batch {planned} is planned in the checkpoint, but commits end at {committed}."),))


def _is_one_ahead(checkpoint: Checkpoint) -> bool:
    return checkpoint.planned == (0 if checkpoint.committed is None else checkpoint.committed + 1)


@dataclass(frozen=True, slots=True)
class Signs:
    """Signs of a live job at `at_ms`: its own report, if it gives one, and its checkpoint."""

    at_ms: int
    report: JobReport | None
    planned: int | None
    committed: int | None


def decide_progress(before: Signs, now: Signs) -> Decision:
    """Decides whether the query advanced since `before`: a batch planned since is committed, or it reports asking the brokers."""
    report = now.report
    newest = max(number for number in (before.planned, before.committed, -1) if number is not None)
    if now.committed is not None and now.committed > newest:
        return Done(f"The job has planned and committed batch {now.committed}.")
    if report and report.state is JobState.FAILED:
        return Refuse((failure_reason(report),))
    if report and report.state is JobState.ENDED:
        return Done("The job's query has ended by itself.")
    earlier = (before.report.progress_ms if before.report else None) or 0
    if report and report.progress_ms is not None and report.progress_ms > max(before.at_ms, earlier):
        return Done("The job's query has read from the brokers again.")
    text = f"The job has shown no progress yet; its newest committed batch is {format_batch(now.committed)}."
    return Wait((Reason("J11", text),))


@dataclass(frozen=True, slots=True)
class Stillness:
    """Where a job that commands hold was seen at last, and since when it stands there (ms since the epoch)."""

    checkpoint: Checkpoint
    since_ms: int

    def observe(self, checkpoint: Checkpoint, now_ms: int) -> Stillness:
        """Seen again."""
        return self if checkpoint == self.checkpoint else Stillness(checkpoint, now_ms)


def decide_still(still: Stillness, said_ms: int, now_ms: int, quiet_ms: int) -> Decision:
    """Decides whether a job stands still whose hold command ended with 0 at `said_ms`. Its last commits may come until `quiet_ms` later."""
    if still.since_ms > said_ms + quiet_ms:
        late_s = (still.since_ms - said_ms) / 1000
        return Refuse((Reason("J14", f"The hold command ended with 0, and {late_s:.0f} s later the job still moved."),))
    if now_ms - still.since_ms >= quiet_ms:
        return Done(f"The job has stood still for {quiet_ms / 1000:g} s.")
    return Wait((Reason("J01", f"The hold command ended with 0; the job must stand still for {quiet_ms / 1000:g} s."),))


def decide_reads_again(before: Offsets, now: Offsets, logs: Logs) -> Decision:
    """Decides whether a job that stood at `before` reads again; a job for which no record waits need not."""
    lower = [topic_partition for topic_partition, offset in now.items() if offset < before.get(topic_partition, offset)]
    if lower:
        return Refuse(
            (Reason("J12", f"The job went back in {summarize(topic_partition.name for topic_partition in sorted(lower))}."),)
        )
    if _moved_partitions(before, now):
        return Done("The job reads on from where it stopped.")
    if count_waiting(now, logs) == 0:
        return Done("The job is released. No record waits for it, so nothing shows yet that it reads.")
    return Wait((Reason("J11", "The job has committed nothing yet, and records wait for it."),))


def count_waiting(offsets: Offsets, logs: Logs) -> int | None:
    """How many records wait for a job that stands at these offsets; None: not all logs could be read."""
    if any(topic_partition not in logs or logs[topic_partition].unread for topic_partition in offsets):
        return None
    return sum(max(0, logs[topic_partition].end - offset) for topic_partition, offset in offsets.items())


def _moved_partitions(before: Offsets, now: Offsets) -> Offsets:
    """Where it stands now in each partition in which it stood elsewhere before."""
    return {topic_partition: offset for topic_partition, offset in now.items() if before.get(topic_partition) != offset}


Logs = Mapping[TopicPartition, LogMark]


def may_resume(before: Checkpoint, now: Checkpoint, logs: Logs, topic_ids: Mapping[str, str] | None = None) -> Decision:
    """Decides whether the job may resume. `before`: its state when held. `logs`: now; a partition not in it does not exist.

    `topic_ids`: those of the job's topics when it was held, as far as known.
    """
    reasons = tuple(_check_checkpoint_moved(before, now))
    if reasons:
        return Refuse(reasons)
    broken = (
        *_check_truncated(now.offsets, logs),
        *_check_recreated(now.offsets, logs, topic_ids or {}),
        *_check_log_starts(now.offsets, logs),
    )
    if broken:
        return Refuse(broken)
    unknown = sorted(topic_partition.name for topic_partition in now.offsets if logs[topic_partition].unread)
    if unknown:
        return Wait((Reason("J05", f"Could not read the ends of these logs: {summarize(unknown)}."),))
    return Done(f"All {count_of(len(now.offsets), 'log contains', 'logs contain')} the offset where the job stopped.")


def _check_checkpoint_moved(before: Checkpoint, now: Checkpoint) -> Iterator[Reason]:
    if before.query != now.query:
        text = f"The checkpoint belongs to query {now.query}; when the job was held it belonged to query {before.query}."
        yield Reason("J09", text)
    elif (before.committed, before.planned) != (now.committed, now.planned):
        text = f"The checkpoint advanced from batch {format_batch(before.committed)} to {format_batch(now.committed)} while the job was held."
        yield Reason("J09", text)
    elif moved := _moved_partitions(before.offsets, now.offsets):
        text = (
            f"The job's offsets moved while it was held: {summarize(topic_partition.name for topic_partition in sorted(moved))}."
        )
        yield Reason("J09", text)


def _check_truncated(offsets: Offsets, logs: Logs) -> Iterator[Reason]:
    """Partitions that no longer exist, and logs that end before the job's position."""
    missing_partitions = sorted(topic_partition for topic_partition in offsets if topic_partition not in logs)
    if missing_partitions:
        yield Reason(
            "J04",
            f"Partitions of the job do not exist any more: {summarize(topic_partition.name for topic_partition in missing_partitions)}.",
        )
    ends = {
        topic_partition: log.end for topic_partition, log in _readable_logs(offsets, logs) if log.end < offsets[topic_partition]
    }
    if ends:
        yield Reason("J03", f"Logs end before the job's offset: {_describe_logs(ends, offsets)}.")


def _check_recreated(offsets: Offsets, logs: Logs, topic_ids: Mapping[str, str]) -> Iterator[Reason]:
    """Recreated topics. Such a topic may have grown past the job's position, so only its id shows it."""
    ids = {
        topic_partition.topic: log.topic_id for topic_partition in offsets if (log := logs.get(topic_partition)) and log.topic_id
    }
    recreated_topics = sorted(topic for topic, held_id in topic_ids.items() if ids.get(topic, held_id) != held_id)
    if recreated_topics:
        yield Reason("J04", f"Topics of the job were recreated: {', '.join(recreated_topics)}.")


def _check_log_starts(offsets: Offsets, logs: Logs) -> Iterator[Reason]:
    starts = {
        topic_partition: log.start
        for topic_partition, log in _readable_logs(offsets, logs)
        if log.start > offsets[topic_partition]
    }
    if starts:
        yield Reason("J04", f"Logs begin after the job's offset: {_describe_logs(starts, offsets)}.")


def _readable_logs(offsets: Offsets, logs: Logs) -> Iterator[tuple[TopicPartition, LogMark]]:
    """The job's logs that were read."""
    return (
        (topic_partition, logs[topic_partition])
        for topic_partition in sorted(offsets)
        if topic_partition in logs and not logs[topic_partition].unread
    )


def _describe_logs(log_offsets: Offsets, offsets: Offsets) -> str:
    """Which logs, and how the first of them compares with the job's offset."""
    first = min(log_offsets)
    return f"{summarize(topic_partition.name for topic_partition in log_offsets)} ({first.name} at {log_offsets[first]}, job at {offsets[first]})"


def decide_resumed(held_record: HeldRecord, report: JobReport | None, now_ms: int) -> Decision:
    """Decides whether the job runs again, from exactly where it stopped."""
    if held_record.state is not JobState.HELD:
        return Done(f"The job is not held any more. It had {held_record.state} before the hold, so kmigrate does not start it.")
    if report is None or fresh_report(report, now_ms) is None:
        return Wait((unresponsive_reason(report, now_ms),))
    if report.state is JobState.FAILED:
        return Refuse((failure_reason(report),))
    if report.state is not JobState.RUNNING or report.progress_ms is None or report.progress_ms < held_record.at_ms:
        text = f"The job is {report.state} and has made no progress since it was released."
        return Wait((Reason("J11", text),))
    elsewhere = sorted(
        topic_partition
        for topic_partition, offset in report.resumed_at.items()
        if held_record.checkpoint.offsets.get(topic_partition, offset) != offset
    )
    if elsewhere:
        text = f"The job resumed at other offsets than those where it stopped: {summarize(topic_partition.name for topic_partition in elsewhere)}."
        return Refuse((Reason("J12", text),))
    return Done(f"The job has resumed where it stopped, after batch {format_batch(held_record.checkpoint.committed)}.")
