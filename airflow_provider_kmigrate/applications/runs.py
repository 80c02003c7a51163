"""What audited clients share: their event log, heartbeats between polls, runs of records, the content of numbered records."""

from __future__ import annotations

import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple, Self

from airflow_provider_kmigrate.applications.event_log import EventLog
from airflow_provider_kmigrate.core.events import model as events
from airflow_provider_kmigrate.core.events.model import (
    UNKNOWN_OFFSET,
    Ack,
    DeliveryRun,
    Event,
    Latencies,
    SendFailure,
    Slow,
    SlowRecord,
    Stamp,
    TopicPartition,
)

BEAT_S: Final = 5.0  # many times within an audit's `max_lag`


class AuditedClient(ABC):
    """A client whose event log is written every `batch_s` seconds while it is polled, and else every `beat_s` by its pulse.

    The pulse, a thread that the subclass starts, gives heartbeats of a client that is alive but not polled: a web application
    between two requests, a consumer that processes a batch. It keeps neither the client nor the process alive. A forked child has
    none: its parent's clients are not its own.
    """

    def __init__(self, log: EventLog, batch_s: float, beat_s: float) -> None:
        self.log = log
        self._batch_s = batch_s
        self._next_write = time.monotonic() + batch_s
        self._lock = threading.RLock()
        self._stopped = threading.Event()  # set and read under the lock, so that nothing is written after the last event
        pulse_arguments = (weakref.WeakMethod(self._beat_if_not_polled), self._stopped, beat_s)
        self._pulse = threading.Thread(target=_run_pulse, args=pulse_arguments, daemon=True, name="kmigrate-pulse")

    @abstractmethod
    def close(self) -> None:
        """Write the last event."""

    @abstractmethod
    def _drain_events(self) -> Iterable[Event]:
        """The events of all records since the last call."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def writer(self) -> str:
        """The name of this incarnation in the events."""
        return self.log.writer

    def _write_events(self) -> None:
        with self._lock:
            self.log.write(*self._drain_events())
            self.log.flush()

    def _write_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._next_write:
            self._next_write = now + self._batch_s
            self.log.write_heartbeat()
            self._write_events()

    def _beat_if_not_polled(self) -> None:
        """Write records, then a heartbeat: a heartbeat says that nothing older is unwritten."""
        with self._lock:
            if not self._stopped.is_set() and time.monotonic() > self._next_write + self._batch_s:
                self._write_events()
                self.log.write_heartbeat()
                self.log.flush()


def _run_pulse(beat: weakref.WeakMethod[Any], stopped: threading.Event, every_s: float) -> None:
    while not stopped.wait(every_s):
        live_beat = beat()
        if live_beat is None:
            return
        live_beat()
        del live_beat  # else the wait would keep the client


_HEADER = Struct(">4sBqq")  # magic, length of the producer's name, number, time sent; then the name, then padding
_MAGIC = b"kmw1"


class Content(NamedTuple):
    """A record's content. `seq` counts the producer's records of this partition from 0; `t_sent_ms` is on its steady clock."""

    producer: str
    seq: int
    t_sent_ms: int


def pack_content(producer: bytes, seq: int, t_sent_ms: int, size: int) -> bytes:
    """A record's value, padded to `size` bytes."""
    return (_HEADER.pack(_MAGIC, len(producer), seq, t_sent_ms) + producer).ljust(size, b".")


def unpack_content(value: bytes | None) -> Content | None:
    """Read a record's value; None for a record that is not ours."""
    if value is None or len(value) < _HEADER.size:
        return None
    magic, length, seq, t_sent_ms = _HEADER.unpack_from(value)
    if magic != _MAGIC:
        return None
    return Content(_decode_name(value[_HEADER.size : _HEADER.size + length]), seq, t_sent_ms)


@lru_cache(maxsize=256)
def _decode_name(raw: bytes) -> str:
    return raw.decode(errors="replace")


SLOW_US: Final = 100_000
NewStamp = Callable[[], Stamp]


@dataclass(slots=True)
class _Acked:
    """An ack run that may still grow."""

    first: int
    seq: int
    t_sent_ms: int
    t_acked_ms: int = 0
    latencies: list[int] = field(default_factory=list)

    def is_continued_by(self, offset: int, seq: int) -> bool:
        """True if this offset and number follow the run's last ones."""
        count = len(self.latencies)
        located = self.first + count == offset or (self.first == offset == UNKNOWN_OFFSET)
        return located and self.seq + count == seq


class AckRuns:
    """One producer's acknowledgements and failures since the last `drain`.

    `each_latency`: every single one is written (exact percentiles), for rates of up to some thousand records a second; otherwise
    only the histograms of the runs.
    """

    def __init__(self, producer: str, *, each_latency: bool = True) -> None:
        self._producer = producer
        self._each_latency = each_latency
        self._open: dict[TopicPartition, _Acked] = {}
        self._runs: list[tuple[TopicPartition, _Acked]] = []
        self._failed: list[tuple[TopicPartition, int, str, int, int]] = []
        self._latencies: list[int] = []
        self._slow: list[SlowRecord] = []
        self._since_ms: int | None = None

    def add_ack(self, topic_partition: TopicPartition, offset: int, content: Content, latency_us: int) -> None:
        """Count an acknowledged record. A negative `offset`: the broker did not give it."""
        offset = max(offset, UNKNOWN_OFFSET)
        run = self._open.get(topic_partition)
        if run is None or not run.is_continued_by(offset, content.seq):
            run = self._open[topic_partition] = _Acked(offset, content.seq, content.t_sent_ms)
            self._runs.append((topic_partition, run))
        run.latencies.append(latency_us)
        run.t_acked_ms = max(run.t_acked_ms, content.t_sent_ms + latency_us // 1000)
        self._add_latency(topic_partition, offset, content, latency_us)

    def add_failure(self, topic_partition: TopicPartition, content: Content, error: str, latency_us: int) -> None:
        """Count a record that the client gave up; it may be in the log."""
        self._failed.append((topic_partition, content.seq, error, content.t_sent_ms, content.t_sent_ms + latency_us // 1000))
        self._add_latency(topic_partition, UNKNOWN_OFFSET, content, latency_us)

    def _add_latency(self, topic_partition: TopicPartition, offset: int, content: Content, latency_us: int) -> None:
        if not self._each_latency:
            return
        self._latencies.append(latency_us)
        if latency_us > SLOW_US:
            self._slow.append(SlowRecord(*topic_partition, offset, content.seq, content.t_sent_ms, latency_us))

    def drain(self, stamp: NewStamp) -> list[Event]:
        """Everything since the last time, as events."""
        events: list[Event] = [self._make_ack(stamp(), topic_partition, run) for topic_partition, run in self._runs]
        for topic_partition, seq, error, t_sent_ms, t_failed_ms in self._failed:
            events.append(SendFailure(stamp(), self._producer, *topic_partition, seq, seq, error, t_sent_ms, t_failed_ms))
        if self._each_latency:
            events += self._latency_events(stamp)
        self._open, self._runs, self._failed, self._latencies, self._slow = {}, [], [], [], []
        return events

    def _latency_events(self, stamp: NewStamp) -> Iterator[Event]:
        last = stamp()
        since, self._since_ms = last.t_ms if self._since_ms is None else self._since_ms, last.t_ms
        yield Latencies(last, self._producer, since, tuple(self._latencies))
        if self._slow:
            yield Slow(stamp(), self._producer, SLOW_US, tuple(self._slow))

    def _make_ack(self, stamp: Stamp, topic_partition: TopicPartition, run: _Acked) -> Ack:
        count = len(run.latencies)
        last = run.first if run.first == UNKNOWN_OFFSET else run.first + count - 1
        return Ack(
            stamp,
            self._producer,
            *topic_partition,
            run.first,
            last,
            count,
            run.seq,
            run.seq + count - 1,
            run.t_sent_ms,
            run.t_acked_ms,
            max(run.latencies),
            events.build_histogram(run.latencies),
        )


@dataclass(slots=True)
class _Delivered:
    """A delivery run that may still grow."""

    first: int
    seq: int
    content: Content | None
    t_sent_ms: int | None
    t_first_ms: int
    t_last_ms: int
    count: int = 1
    gap_ms: int = 0
    latencies: list[int] = field(default_factory=list)

    def is_continued_by(self, offset: int, content: Content | None) -> bool:
        """True if this offset and, if known, the producer's number follow the run's last ones."""
        if offset != self.first + self.count:
            return False
        if content is None or self.content is None:
            return content is self.content
        return content.producer == self.content.producer and content.seq == self.content.seq + self.count


class DeliveryRuns:
    """One member's deliveries since the last `drain`; counts its deliveries of each partition from its start to its end."""

    def __init__(self, group: str, member: str) -> None:
        self._group = group
        self._member = member
        self._counted: Counter[TopicPartition] = Counter()
        self._open: dict[TopicPartition, _Delivered] = {}
        self._runs: list[tuple[TopicPartition, _Delivered]] = []
        self._last_ms: dict[TopicPartition, int] = {}

    def last_delivery_ms(self, topic_partition: TopicPartition) -> int | None:
        """When its last drained record was returned; None: none ever was."""
        return self._last_ms.get(topic_partition)

    def add_delivery(
        self, topic_partition: TopicPartition, offset: int, now_ms: int, sent_ms: int | None, content: Content | None = None
    ) -> None:
        """Count a record returned to the application now; `sent_ms` None: it carries no time."""
        run = self._open.get(topic_partition)
        if run is None or not run.is_continued_by(offset, content):
            run = self._open[topic_partition] = _Delivered(
                offset, self._counted[topic_partition], content, sent_ms, now_ms, now_ms
            )
            self._runs.append((topic_partition, run))
        else:
            run.count += 1
            waited_from = run.t_last_ms if sent_ms is None else max(run.t_last_ms, sent_ms)
            run.gap_ms = max(run.gap_ms, now_ms - waited_from)
            run.t_last_ms = now_ms
        if sent_ms is not None:
            run.latencies.append(max(0, now_ms - sent_ms) * 1000)
        self._counted[topic_partition] += 1

    def drain(self, stamp: NewStamp, generation: int | None) -> Iterator[DeliveryRun]:
        """Everything since the last time, as events; call it before the generation changes."""
        runs, self._runs, self._open = self._runs, [], {}
        self._last_ms |= {topic_partition: run.t_last_ms for topic_partition, run in runs}
        for topic_partition, run in runs:
            yield DeliveryRun(
                stamp(),
                self._group,
                self._member,
                generation,
                *topic_partition,
                run.first,
                run.first + run.count - 1,
                run.count,
                run.seq,
                run.t_first_ms,
                run.t_last_ms,
                t_sent_ms=run.t_sent_ms,
                gap_ms=run.gap_ms,
                producer=None if run.content is None else run.content.producer,
                producer_seq=None if run.content is None else run.content.seq,
                latency=events.build_histogram(run.latencies),
            )
