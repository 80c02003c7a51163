"""Checks that an events topic arrives whole in an output: nothing may be missing between the topic, the checkpoint and the output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditOutcome
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import Refused, Unavailable

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


def refuse_removed_events(marks: Marks, read_offsets: Mapping[TopicPartition, int], read_id: str | None = None) -> None:
    """Raises `Refused` (X12) if the topic is another one than was read, or a log begins after the offset up to which it was read.

    `read_id`: id of the topic that was read, None if that is not known. A topic that was deleted and created again has offsets from 0:
    its first events would be taken for ones that were read. Raises `Unavailable` for a partition that was read and is not
    reported: a broker that has just started may not know its topics yet.
    """
    other_ids = sorted({mark.topic_id for mark in marks.values() if mark.topic_id and read_id and mark.topic_id != read_id})
    if other_ids:
        (topic,) = {topic_partition.topic for topic_partition in marks}
        text = (
            f"The events topic {topic} was deleted and created again: its id is {other_ids[0]}, and events of {read_id} were read. "
            "Events of the earlier one that no audit had read are lost."
        )
        raise Refused.because(Reason.of(AuditCause.EVENTS_REMOVED, text))
    if missing := sorted(topic_partition.name for topic_partition in read_offsets.keys() - marks.keys()):
        text = (
            f"the cluster does not report {missing[0]}, of which events were read; {count_of(len(missing), 'partition')} in all"
        )
        raise Unavailable(f"{text}: was the events topic deleted?")
    removed = [
        (topic_partition, marks[topic_partition].start, offset)
        for topic_partition, offset in sorted(read_offsets.items())
        if marks[topic_partition].start > offset
    ]
    if removed:
        (topic_partition, start, offset), more = (
            removed[0],
            f", and {count_of(len(removed) - 1, 'more partition')}" if len(removed) > 1 else "",
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
