"""Checks that an events topic arrives whole in an output: nothing may be missing between the topic, the checkpoint and the output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditOutcome
from airflow_provider_kmigrate.core.events import LogMark, TopicPartition
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Refused

Marks = Mapping[TopicPartition, LogMark]
_COMPACT: Final = ".compact"  # of every tenth file of what Spark's file sink keeps of its batches


def newest_written(names: Iterable[str]) -> int | None:
    """The last batch in an output or a checkpoint, by the files of its `_spark_metadata`, `offsets` or `commits`."""
    bare = (name.removesuffix(_COMPACT) for name in names)
    return max((int(name) for name in bare if name.isdigit()), default=None)


def misfit(begun: int | None, done: int | None, written: int | None) -> str:
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


def refuse_removed(marks: Marks, place: Mapping[TopicPartition, int]) -> None:
    """Raises `Refused` (X12) if a log begins after the offset up to which it was read."""
    gone = [(where, marks[where].start, at) for where, at in sorted(place.items()) if where in marks and marks[where].start > at]
    if gone:
        (where, start, at), more = gone[0], f", and {len(gone) - 1} more partitions" if len(gone) > 1 else ""
        text = (
            f"Events were removed before an audit ingested them: {where.name} begins at {start}, and was read up to {at}{more}."
        )
        raise Refused.because(Reason.of(AuditCause.EVENTS_REMOVED, text))


def limits(topic: str, marks: Marks) -> list[AuditFinding]:
    """What the topic's own settings will remove, or may have removed."""
    if any(mark.compacted for mark in marks.values()):
        text = f"The events topic {topic} is compacted: of each writer only the last event remains."
        return [AuditFinding.of(AuditOutcome.INCONCLUSIVE, AuditCause.EVENTS_EXPIRE, text)]
    kept = {(mark.retention_ms, mark.retention_bytes) for mark in marks.values() if not mark.unread} - {(-1, -1), (None, None)}
    if not kept:
        return []
    ms, size = min(kept, key=str)
    text = f"The events topic {topic} keeps events for a limited time or size: retention.ms {ms}, retention.bytes {size}."
    return [AuditFinding.of(AuditOutcome.PASS, AuditCause.EVENTS_EXPIRE, text)]
