"""The look at logs that fingerprints are made of: where each log begins and ends, and which blocks of it are hashed.

Each partition's log is cut into blocks at multiples of a number of offsets, so that blocks stay comparable when retention moves the
beginning of a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Refused

BLOCK: Final = 10_000


class Print(NamedTuple):
    """Of the records of one block: how many, the exclusive-or of their 64-bit hashes, the sums of the hashes' halves."""

    records: int
    xor: int = 0
    low: int = 0
    high: int = 0


@dataclass(frozen=True, slots=True)
class LogMark:
    """A partition's log: offsets from `start` to before `end`; `leader_epoch` of its last record, `topic_id` where known.

    `unread` says why nothing could be read, such as that there was no leader; offsets are 0 then. `retention_ms`, `retention_bytes`:
    the limits beyond which its beginning is removed, -1: none, None: not known. `newest_ms`: the latest timestamp of a record in it, from which
    retention counts; None: not told, or there is none.
    """

    start: int = 0
    end: int = 0
    leader_epoch: int | None = None
    topic_id: str | None = None
    compacted: bool = False
    unread: str = ""
    retention_ms: int | None = None
    retention_bytes: int | None = None
    newest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Which part of each log is hashed: the last `tail` offsets, which an unclean election would cut off, and `share` of the rest.

    The rest is taken in `pieces` evenly spaced stretches. `share` 1 is everything.
    """

    share: float = 1.0
    pieces: int = 4
    tail: int = 100_000

    def __post_init__(self) -> None:
        if not (0.0 <= self.share <= 1.0 and self.pieces >= 1 and self.tail >= 0):
            text = f"A sample is a share from 0 to 1, in one piece or more, and a tail: {self}."
            raise Refused.because(Reason("D15", text, "Nothing was read.", "Correct the setting."))


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One look at the logs. `prints` are by partition and number of the block (offset // `block`)."""

    taken_ms: int
    cluster_id: str
    marks: Mapping[TopicPartition, LogMark]
    prints: Mapping[TopicPartition, Mapping[int, Print]] = field(default_factory=dict)
    block: int = BLOCK

    @property
    def records(self) -> int:
        return sum(found.records for blocks in self.prints.values() for found in blocks.values())


def stretches(mark: LogMark, sample: Sample, block: int = BLOCK) -> list[tuple[int, int]]:
    """What to hash of a log, as ascending stretches from .. before. Each begins at the log's start or where a block begins."""
    if mark.start >= mark.end:
        return []
    if sample.share >= 1.0:
        return [(mark.start, mark.end)]
    tail = max(mark.start, (mark.end - sample.tail) // block * block)
    size = round((tail - mark.start) * sample.share / sample.pieces)
    found = [(tail, mark.end)]
    for piece in reversed(range(sample.pieces)) if size else ():
        begin = max(mark.start, (mark.start + piece * (tail - mark.start) // sample.pieces) // block * block)
        found.append((begin, min(-(-(begin + size) // block) * block, found[-1][0])))
    return [(begin, end) for begin, end in reversed(found) if begin < end]


def covered(mark: LogMark, blocks: Iterable[int], block: int) -> Iterator[tuple[int, int]]:
    """The offsets from .. before of each of the blocks, as far as they lay within the log."""
    for number in sorted(blocks):
        yield max(mark.start, number * block), min(mark.end, (number + 1) * block)


def remaining(before: Fingerprint, marks: Mapping[TopicPartition, LogMark]) -> dict[TopicPartition, list[tuple[int, int]]]:
    """What to hash once more, by the logs as they are now: the blocks of `before` that begin within them; cut where they end."""
    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    for where, blocks in before.prints.items():
        mark, now = before.marks[where], marks.get(where, LogMark())
        for begin, end in covered(mark, blocks, before.block):
            if now.start <= begin < now.end:
                _append(found.setdefault(where, []), (begin, min(end, now.end)))
    return found


def renewal(
    before: Fingerprint, after: Fingerprint, sample: Sample
) -> tuple[dict[TopicPartition, list[tuple[int, int]]], dict[TopicPartition, dict[int, Print]]]:
    """A whole look by the marks of `after`, so that what came since `before` is compared next time: what is left to hash for it, and
    the prints of those blocks that `after` has hashed as they are now.
    """
    spans: dict[TopicPartition, list[tuple[int, int]]] = {}
    kept: dict[TopicPartition, dict[int, Print]] = {}
    for where, mark in after.marks.items():
        was = before.marks.get(where, LogMark())
        known = after.prints.get(where, {}) if where in before.marks else {}
        for number in _blocks(stretches(mark, sample, after.block), after.block):
            (span,) = covered(mark, (number,), after.block)
            if number in known and span == next(covered(was, (number,), after.block)):
                kept.setdefault(where, {})[number] = known[number]
            else:
                _append(spans.setdefault(where, []), span)
    return spans, kept


def _blocks(spans: Iterable[tuple[int, int]], block: int) -> Iterator[int]:
    for begin, end in spans:
        yield from range(begin // block, -(-end // block))


def _append(spans: list[tuple[int, int]], span: tuple[int, int]) -> None:
    if spans and spans[-1][1] == span[0]:
        spans[-1] = (spans[-1][0], span[1])
    else:
        spans.append(span)
