"""The note of a group's cutover, `/consumers/<group>/migration/cutover`: how far it is, and why it is rolled back.

No observation shows it: a group without members looks the same whether kmigrate stopped it or its team did. The note outlives tasks,
runs and machines.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.registration import is_number
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import printable

Value = TypeVar("Value")
_VERSION = 1
_SHOWN = 120  # characters of a note that cannot be read
_ROW = 2  # strings of a reason
_REASONS = 10  # that are written; a znode has 1 MiB
_LONGEST = 2_000  # characters of each; one takes up to six bytes of JSON


class CanaryPhase(StrEnum):
    """How far the canary of a cutover is: one instance that runs the new version beside the old one."""

    NONE = ""  # this cutover has none
    RUNS = "runs"  # it starts, or is watched
    PASSED = "passed"  # it was sound, and ends
    OVER = "over"  # it has ended, and all instances stop


@dataclass(frozen=True, slots=True)
class CutoverNote:
    """`run` began it at `began_ms`, milliseconds since the epoch; the group read `partitions` then. With a canary: when all began to stop.

    `empty`: those of them that held no record then, and of which the group had no offset: it has processed nothing before offset 0 there.

    `copied`: both stores held the same offsets while the group had no member, and the new version was started or is about to be. `moved_ms`:
    when each partition had made progress; 0: not yet. `failed`: why it is rolled back, as rows of code and text; empty: it is not. `written_at`: in
    seconds since the epoch, by ZooKeeper's clock; 0 for a note that was not read. While `canary` and not `copied`, Kafka's offsets are the
    canary's, and ZooKeeper's alone count.
    """

    run: str
    began_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    copied: bool = False
    moved_ms: int = 0
    failed: tuple[tuple[str, str], ...] = ()
    written_at: float = 0.0
    canary: CanaryPhase = CanaryPhase.NONE
    empty: frozenset[TopicPartition] = frozenset()

    @property
    def pause_s(self) -> float:
        """Seconds between the first stop and the last partition's progress; 0 if that is still to come."""
        return (self.moved_ms - self.began_ms) / 1000 if self.moved_ms else 0.0


@dataclass(frozen=True, slots=True)
class UnreadableNote:
    """What is at the note's place and cannot be read."""

    content: str


def write_cutover(note: CutoverNote) -> bytes:
    """The note's bytes; of many or long reasons the beginning, so that a note of why a group is rolled back can always be written."""
    failed = [(code, text[:_LONGEST]) for code, text in note.failed[:_REASONS]]
    values = {"run": note.run, "began_ms": note.began_ms, "topics": _by_topic(note.partitions), "empty": _by_topic(note.empty)}
    values |= {"copied": note.copied, "moved_ms": note.moved_ms, "failed": failed, "canary": note.canary}
    return json.dumps({"version": _VERSION, **values}).encode()


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic_partition in sorted(partitions):
        topics[topic_partition.topic].append(topic_partition.partition)
    return topics


def read_cutover(data: bytes, written_at: float = 0.0) -> CutoverNote | UnreadableNote:
    """Reads the note of any writer. Another version's is unreadable: it may mean more than this one knows."""
    try:
        values = read_json(data)
        if not isinstance(values, dict) or values["version"] != _VERSION:
            return _unreadable(data)
        note = CutoverNote(
            _checked(values["run"], str),
            _checked(values["began_ms"], int),
            frozenset(_read_partitions(values["topics"])),
            _checked(values["copied"], bool),
            _checked(values["moved_ms"], int),
            tuple(_read_row(row) for row in values["failed"]),
            written_at,
            CanaryPhase(values.get("canary", CanaryPhase.NONE)),  # former versions write none of these two
            frozenset(_read_partitions(values.get("empty", {}))),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _unreadable(data)
    return note


def _unreadable(data: bytes) -> UnreadableNote:
    return UnreadableNote(printable(data[:_SHOWN].decode(errors="replace")))


def _checked(value: object, kind: type[Value]) -> Value:
    """The value, if it is just of this kind: `true` is no number."""
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _read_partitions(topics: dict[str, list[object]]) -> Iterable[TopicPartition]:
    for topic, partitions in topics.items():
        for partition in partitions:
            number = _checked(partition, int)
            if not is_number(str(number)):
                raise ValueError(f"{partition!r} is no partition")
            yield TopicPartition(topic, number)


def _read_row(row: object) -> tuple[str, str]:
    if not isinstance(row, list) or len(row) != _ROW or not all(isinstance(part, str) for part in row):
        raise ValueError(f"{row!r} is no reason")
    code, text = row
    return code, text
