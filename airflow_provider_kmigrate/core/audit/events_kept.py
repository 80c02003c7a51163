"""Checks that an events topic arrives whole in an output: nothing may be missing between the topic, the checkpoint and the output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditOutcome
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Refused

Marks = Mapping[TopicPartition, LogMark]
_COMPACT: Final = ".compact"  # of every tenth file of what Spark's file sink keeps of its batches


def newest_batch(names: Iterable[str]) -> int | None:
    """The last batch in an output or a checkpoint, by the files of its `_spark_metadata`, `offsets` or `commits`."""
    bare = (name.removesuffix(_COMPACT) for name in names)
    return max((int(name) for name in bare if name.isdigit()), default=None)


def explain_mismatch(begun: int | None, done: int | None, written: int | None) -> str:
    """Why a checkpoint does not belong to an output; empty if it may. Numbers of last batches, None: there was none.

    A batch is begun in the checkpoint, then written to the output, then done in the checkpoint. Spark's sink skips every batch
    that is not after the last one written, whatever is in it.
    """
    if done is not None and written is None:
        return "is gone"
    if done is not None and written is not None and written < done:
        return f"ends with batch {written}, and batch {done} was written: it is an older one"
    if written is not None and written > (-1 if begun is None else begun):
        return f"has batch {written} already, the checkpoint has none after {begun}: it is an older one"
    return ""


def refuse_removed_events(marks: Marks, read_offsets: Mapping[TopicPartition, int]) -> None:
    """Raises `Refused` (X12) if a log begins after the offset up to which it was read."""
    removed = [
        (topic_partition, marks[topic_partition].start, offset)
        for topic_partition, offset in sorted(read_offsets.items())
        if topic_partition in marks and marks[topic_partition].start > offset
    ]
    if removed:
        (topic_partition, start, offset), more = (
            removed[0],
            f", and {len(removed) - 1} more partitions" if len(removed) > 1 else "",
        )
        text = f"Events were removed before an audit ingested them: {topic_partition.name} begins at {start}, and was read up to {offset}{more}."
        raise Refused.because(Reason.of(AuditCause.EVENTS_REMOVED, text))


def check_retention(topic: str, marks: Marks) -> list[AuditFinding]:
    """What the topic's own settings will remove, or may have removed."""
    if any(mark.compacted for mark in marks.values()):
        text = f"The events topic {topic} is compacted: of each writer only the last event remains."
        return [AuditFinding.of(AuditOutcome.INCONCLUSIVE, AuditCause.EVENTS_EXPIRE, text)]
    retention_limits = {(mark.retention_ms, mark.retention_bytes) for mark in marks.values() if not mark.unread} - {
        (-1, -1),
        (None, None),
    }
    if not retention_limits:
        return []
    ms, size = min(retention_limits, key=str)
    text = f"The events topic {topic} keeps events for a limited time or size: retention.ms {ms}, retention.bytes {size}."
    return [AuditFinding.of(AuditOutcome.PASS, AuditCause.EVENTS_EXPIRE, text)]
