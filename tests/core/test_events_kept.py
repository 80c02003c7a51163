"""An events topic, a checkpoint and an output: when they belong together, and what the topic's settings remove."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.audit.events_kept import (
    check_retention,
    explain_mismatch,
    newest_batch,
    refuse_removed_events,
)
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Refused, Unavailable

P0, P1 = TopicPartition("e", 0), TopicPartition("e", 1)


@pytest.mark.parametrize(
    ("begun", "done", "written", "word"),
    [
        (None, None, None, ""),  # new
        (0, None, None, ""),  # killed in its first batch, before and behind the sink
        (0, None, 0, ""),
        (8, 8, 8, ""),
        (9, 8, 8, ""),
        (9, 8, 9, ""),
        (5, 5, 8, "an older one"),  # a checkpoint that was restored
        (6, 5, 8, "an older one"),
        (None, None, 3, "an older one"),
        (8, 8, 5, "an older one"),  # an output that was restored
        (8, 8, None, "is gone"),
        (120, 120, None, "is gone"),  # Spark has removed the first of its own files by then
    ],
)
def test_a_checkpoint_and_its_output(begun: int | None, done: int | None, written: int | None, word: str) -> None:
    found = explain_mismatch(begun, done, written)
    assert word in found
    assert bool(word) == bool(found)


def test_the_last_batch_of_an_output() -> None:
    assert newest_batch(["0", "9.compact", "10", ".10.crc", "_tmp"]) == 10
    assert newest_batch(["9.compact"]) == 9
    assert newest_batch([]) is None


def test_events_that_were_removed_before_they_were_taken_in() -> None:
    marks = {P0: LogMark(start=10, end=20), P1: LogMark(start=7, end=9)}
    refuse_removed_events(marks, {P0: 10, P1: 8})
    refuse_removed_events(marks, {})
    with pytest.raises(Refused, match="e-0 begins at 10, and was read up to 9") as error:
        refuse_removed_events(marks, {P0: 9, P1: 8})
    assert [reason.cause for reason in error.value.reasons] == [AuditCause.EVENTS_REMOVED]


@pytest.mark.parametrize(
    ("read_id", "now", "is_refused"),
    [
        ("one", "one", False),
        ("one", "two", True),  # deleted and created again: its offsets begin at 0, and may be beyond those that were read
        (None, "two", False),  # nobody noted which it was
        ("one", None, False),  # the cluster does not say
    ],
)
def test_a_topic_that_was_created_again(read_id: str | None, now: str | None, is_refused: bool) -> None:
    marks = {P0: LogMark(end=20, topic_id=now), P1: LogMark(end=9, topic_id=now)}
    if not is_refused:
        refuse_removed_events(marks, {P0: 10}, read_id)
        return
    with pytest.raises(Refused, match="deleted and created again: its id is two, and events of one were read") as error:
        refuse_removed_events(marks, {P0: 10}, read_id)
    assert [reason.cause for reason in error.value.reasons] == [AuditCause.EVENTS_REMOVED]


@pytest.mark.parametrize("marks", [{}, {P1: LogMark(end=9)}], ids=["the topic", "a partition"])
def test_what_was_read_and_is_not_reported_is_unavailable(marks: dict[TopicPartition, LogMark]) -> None:
    with pytest.raises(Unavailable, match="does not report e-0"):
        refuse_removed_events(marks, {P0: 3, P1: 4})
    refuse_removed_events(marks, {})


@pytest.mark.parametrize(
    ("mark", "outcome"),
    [
        (LogMark(retention_ms=-1, retention_bytes=-1), None),
        (LogMark(retention_ms=604_800_000, retention_bytes=-1), AuditOutcome.PASS),
        (LogMark(retention_ms=-1, retention_bytes=1_000), AuditOutcome.PASS),
        (LogMark(retention_ms=-1, retention_bytes=-1, compacted=True), AuditOutcome.INCONCLUSIVE),
        (LogMark(unread="no leader"), None),
    ],
)
def test_what_the_topic_does_not_keep_is_said(mark: LogMark, outcome: AuditOutcome | None) -> None:
    found = check_retention("e", {P0: mark, P1: LogMark(retention_ms=-1, retention_bytes=-1)})
    assert [(finding.reason.cause, finding.outcome) for finding in found] == (
        [(AuditCause.EVENTS_EXPIRE, outcome)] if outcome else []
    )
