"""Reads the JSON lines of Kafka's VerifiableProducer and VerifiableConsumer (KIP-25, measured with 3.9.2) as our events.

Both tools mix log lines into their output; lines that do not begin with a brace are skipped. A line that begins as JSON and
cannot be read may have been anything: it leaves a hole in the writer's numbers, and the ledger stays incomplete.

With `--verbose` the VerifiableConsumer prints each record of a poll before the poll's sum. Only then are the records known that a
poll over gaps held (3.9.2's `onRecordsReceived`).

These tools do not report generations, whose records were delivered, or when a record was sent (only its acknowledgement).
Ownership changes are ordered by time alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from airflow_provider_kmigrate.core.events.intervals import count_numbers, union
from airflow_provider_kmigrate.core.events.model import (
    Ack,
    Commit,
    DeliveryRun,
    Event,
    Ownership,
    OwnershipChange,
    Position,
    Remark,
    SendFailure,
    Stamp,
    Start,
    Stop,
    TopicPartition,
    WriterRole,
)
from tests.kit.judge import GROUP, Foreign

UNREADABLE: Final = "verifiable-unreadable"
UNKNOWN: Final = "verifiable-unknown"

_Json = Mapping[str, Any]
_Translate = Callable[[_Json], Iterable[Event]]


def producer_events(lines: Iterable[str], producer: str) -> Iterator[Event]:
    """The output of one VerifiableProducer; `producer` is a name unique to this run of it."""
    return _ProducerTool(producer).read(lines)


def consumer_events(
    lines: Iterable[str], member: str, group: str, topics: Sequence[str], reset: str = "earliest"
) -> Iterator[Event]:
    """The output of one VerifiableConsumer; `topics` and `reset` as at its start (`--topic`, `--reset-policy`)."""
    return _ConsumerTool(member, group, topics, reset).read(lines)


def events_of(load: Foreign) -> Iterator[Event]:
    """What a load of these tools has said so far."""
    yield from producer_events(load.lines("producer"), "producer")
    for member in load.members:
        yield from consumer_events(load.lines(member), member, GROUP, [load.topic])


class _Tool:
    """The common part of both tools: numbering, and unreadable lines."""

    def __init__(self, writer: str, translators: Mapping[str, _Translate]) -> None:
        self.writer = writer
        self._translators = translators
        self._next = 0
        self._last_ms = 0

    def read(self, lines: Iterable[str]) -> Iterator[Event]:
        """The events of the tool's lines of output; lines that are no JSON are passed over."""
        for line in lines:
            if line.lstrip().startswith("{"):
                yield from self._read_line(line)

    def _read_line(self, line: str) -> list[Event]:
        try:
            value = json.loads(line)
            translate = self._translators.get(value["name"], self._unknown)
            events = list(translate(value))
            flaws = [flaw for event in events if (flaw := event.flaw())]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            flaws = [repr(error)]
        if not flaws:
            return events
        self._next += 1  # the hole: whatever this line was, it is missing
        return [Remark(self._stamp({}), UNREADABLE, f"{flaws[0]} in {line.strip()[:200]}")]

    def _stamp(self, value: _Json) -> Stamp:
        self._last_ms = int(value.get("timestamp", self._last_ms))
        self._next += 1
        return Stamp(self.writer, self._next - 1, self._last_ms)

    def _unknown(self, value: _Json) -> Iterable[Event]:
        return [Remark(self._stamp(value), UNKNOWN, f"{value['name']!r} is no event that we know")]


class _ProducerTool(_Tool):
    def __init__(self, writer: str) -> None:
        translators: dict[str, _Translate] = {
            "startup_complete": self._start,
            "producer_send_success": self._ack,
            "producer_send_error": self._failure,
            "shutdown_complete": lambda _: (),  # the totals in tool_data come after it
            "tool_data": self._stop,
        }
        super().__init__(writer, translators)
        self._acked = 0
        self._failed = 0

    def _start(self, value: _Json) -> Iterable[Event]:
        return [Start(self._stamp(value), WriterRole.PRODUCER)]

    def _ack(self, value: _Json) -> Iterable[Event]:
        self._acked += 1
        stamp, seq, offset = self._stamp(value), _number(value), int(value["offset"])
        return [Ack(stamp, self.writer, *_topic_partition(value), offset, offset, 1, seq, seq, None, stamp.t_ms)]

    def _failure(self, value: _Json) -> Iterable[Event]:
        self._failed += 1
        stamp, seq = self._stamp(value), _number(value)
        error = f"{value.get('exception')}: {value.get('message')}"
        partition = int(value.get("partition", -1))  # a failed record was never given a partition
        return [SendFailure(stamp, self.writer, str(value["topic"]), partition, seq, seq, error, None, stamp.t_ms)]

    def _stop(self, value: _Json) -> Iterable[Event]:
        sent, acked = int(value["sent"]), int(value["acked"])
        if (acked, sent - acked) == (self._acked, self._failed):
            return [Stop(self._stamp(value), clean=True)]
        seen = f"{self._acked} acknowledged and {self._failed} failed are in its output"
        return [Stop(self._stamp(value), clean=False, reason=f"it sent {sent} and had {acked} acknowledged, but {seen}")]


class _ConsumerTool(_Tool):
    def __init__(self, writer: str, group: str, topics: Sequence[str], reset: str) -> None:
        translators: dict[str, _Translate] = {
            "startup_complete": self._start,
            "partitions_assigned": lambda value: self._ownership(value, OwnershipChange.ACQUIRED),
            "partitions_revoked": lambda value: self._ownership(value, OwnershipChange.RELEASED),
            "records_consumed": self._runs,
            "record_data": self._record,
            "offsets_committed": self._commit,
            "shutdown_complete": self._stop,
        }
        super().__init__(writer, translators)
        self._group, self._topics, self._reset = group, tuple(topics), reset
        self._delivered: Counter[TopicPartition] = Counter()
        self._reported: list[tuple[TopicPartition, int]] = []  # records of the poll whose sum comes next

    def _start(self, value: _Json) -> Iterable[Event]:
        return [Start(self._stamp(value), WriterRole.CONSUMER, group=self._group, topics=self._topics, reset=self._reset)]

    def _ownership(self, value: _Json, change: OwnershipChange) -> Iterable[Event]:
        partitions = tuple(_topic_partition(part) for part in value["partitions"])
        return [Ownership(self._stamp(value), self._group, self.writer, None, change, partitions)]

    def _record(self, value: _Json) -> Iterable[Event]:
        self._reported.append((_topic_partition(value), int(value["offset"])))
        return ()

    def _runs(self, value: _Json) -> Iterable[Event]:
        reported, self._reported = self._reported, []
        return [self._run(value, *run) for part in value["partitions"] for run in _islands(part, reported)]

    def _run(self, value: _Json, key: TopicPartition, first: int, last: int, count: int) -> DeliveryRun:
        stamp, seq = self._stamp(value), self._delivered[key]
        self._delivered[key] += count
        return DeliveryRun(stamp, self._group, self.writer, None, *key, first, last, count, seq, stamp.t_ms, stamp.t_ms)

    def _commit(self, value: _Json) -> Iterable[Event]:
        offsets = tuple(Position(*_topic_partition(part), int(part["offset"])) for part in value["offsets"])
        error = str(value["error"]) if value.get("error") is not None else None
        return [Commit(self._stamp(value), self._group, self.writer, None, offsets, value["success"] is True, error)]

    def _stop(self, value: _Json) -> Iterable[Event]:
        return [Stop(self._stamp(value), clean=True)]


def _islands(part: _Json, reported: Sequence[tuple[TopicPartition, int]]) -> list[tuple[TopicPartition, int, int, int]]:
    """A poll's deliveries of a partition as unbroken runs if all its records were printed; else as the one run of its sum."""
    key, count = _topic_partition(part), int(part["count"])
    first, last = int(part["minOffset"]), int(part["maxOffset"])
    offsets = [offset for where, offset in reported if where == key]
    whole = bool(offsets) and offsets == sorted(set(offsets)) and (len(offsets), offsets[0], offsets[-1]) == (count, first, last)
    return (
        [(key, *span, count_numbers([span])) for span in union((at, at) for at in offsets)]
        if whole
        else [(key, first, last, count)]
    )


def _topic_partition(part: _Json) -> TopicPartition:
    return TopicPartition(str(part["topic"]), int(part["partition"]))


def _number(value: _Json) -> int:
    """The record's number: its value, after the dot of a `--value-prefix`."""
    return int(str(value["value"]).rpartition(".")[2])
