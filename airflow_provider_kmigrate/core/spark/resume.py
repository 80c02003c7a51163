"""When a held Spark job may go on, and whether it did: nothing that it had read may be gone, and nothing that it had not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_provider_kmigrate.core.audit.log_blocks import LogMark
from airflow_provider_kmigrate.core.decision import Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.listing import summarize
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.spark.hold import (
    SILENT_MS,
    Checkpoint,
    HeldRecord,
    JobReport,
    JobState,
    Offsets,
    batch,
    failed,
    silent,
)

Logs = Mapping[TopicPartition, LogMark]


def may_resume(before: Checkpoint, now: Checkpoint, logs: Logs, topic_ids: Mapping[str, str] | None = None) -> Decision:
    """May the job go on? `before`: as it was when it was held. `logs`: as they are now; one that is not in it does not exist.

    `topic_ids`: those of the job's topics when it was held, as far as known.
    """
    reasons = tuple(_moved(before, now))
    if reasons:
        return Refuse(reasons)
    broken = (*_truncated(now.offsets, logs), *_anew(now.offsets, logs, topic_ids or {}), *_passed(now.offsets, logs))
    if broken:
        return Refuse(broken)
    unknown = sorted(where.name for where in now.offsets if logs[where].unread)
    if unknown:
        text = f"Where these logs end could not be read: {summarize(unknown)}."
        return Wait((Reason("J08", text),))
    return Done(f"All {len(now.offsets)} logs hold the place where the job stopped.")


def _moved(before: Checkpoint, now: Checkpoint) -> Iterator[Reason]:
    if before.query != now.query:
        text = f"The checkpoint is of query {now.query}, and was of query {before.query} when the job was held."
        yield Reason("J09", text)
    elif (before.committed, before.planned) != (now.committed, now.planned):
        text = f"The checkpoint went on from batch {batch(before.committed)} to {batch(now.committed)} while the job was held."
        yield Reason("J09", text)


def _truncated(offsets: Offsets, logs: Logs) -> Iterator[Reason]:
    """Partitions that are gone, and logs that end before the job's own place."""
    gone = sorted(where for where in offsets if where not in logs)
    if gone:
        yield Reason("J04", f"Partitions of the job are gone: {summarize(where.name for where in gone)}.")
    short = sorted(where for where, offset in offsets.items() if (log := _read(logs, where)) and log.end < offset)
    if short:
        first = short[0]
        text = f"Logs end before the job's place: {summarize(where.name for where in short)} ({first.name} at {logs[first].end}, job at {offsets[first]})."
        yield Reason("J03", text)


def _anew(offsets: Offsets, logs: Logs, topic_ids: Mapping[str, str]) -> Iterator[Reason]:
    """A topic that was made anew has grown past the job's place if one waits long enough: only its id tells."""
    ids = {where.topic: log.topic_id for where in offsets if (log := logs.get(where)) and log.topic_id}
    other = sorted(topic for topic, known in topic_ids.items() if ids.get(topic, known) != known)
    if other:
        yield Reason("J04", f"Topics of the job were made anew: {', '.join(other)}.")


def _passed(offsets: Offsets, logs: Logs) -> Iterator[Reason]:
    late = sorted(where for where, offset in offsets.items() if (log := _read(logs, where)) and log.start > offset)
    if late:
        first = late[0]
        text = f"Logs begin behind the job's place: {summarize(where.name for where in late)} ({first.name} at {logs[first].start}, job at {offsets[first]})."
        yield Reason("J04", text)


def _read(logs: Logs, where: TopicPartition) -> LogMark | None:
    log = logs.get(where)
    return None if log is None or log.unread else log


def decide_resumed(held: HeldRecord, report: JobReport | None, now_ms: int) -> Decision:
    """Does the job run again, from exactly where it stopped?"""
    if held.state is not JobState.HELD:
        return Done(f"Nothing holds the job any more. It had {held.state} before the hold: whoever starts it starts it again.")
    if report is None or now_ms - report.at_ms > SILENT_MS:
        return Wait((silent(report, now_ms),))
    if report.state is JobState.FAILED:
        return Refuse((failed(report),))
    if report.state is not JobState.RUNNING or report.progress_ms is None or report.progress_ms < held.at_ms:
        text = f"The job is {report.state} and has made no progress since it was let go."
        return Wait((Reason("J11", text),))
    elsewhere = sorted(
        where for where, offset in report.resumed_at.items() if held.checkpoint.offsets.get(where, offset) != offset
    )
    if elsewhere:
        text = f"The job went on from other offsets than it had stopped at: {summarize(where.name for where in elsewhere)}."
        return Refuse((Reason("J12", text),))
    return Done(f"The job runs again from where it stopped, after batch {batch(held.checkpoint.committed)}.")
