"""One writer's events on their way to a sink, numbered without a gap, so that a lost one shows.

Two kinds of writers use it. One whose only purpose is the record (a workload, a probe) ends when it cannot write. A wrapper around
somebody's consumer must never do that: with `must_write=False` an event that cannot be written is given up, its number stays
unused, and the stop says why; the audit is then incomplete and says so, and the application goes on.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from airflow_provider_kmigrate.core.audit.event_lines import encode
from airflow_provider_kmigrate.core.events import Change, Clock, Event, Heartbeat, Ownership, Remark, Stamp, Stop, TopicPartition
from airflow_provider_kmigrate.exceptions import KMigrateError


class SteadyClock:
    """Milliseconds since the epoch that never jump: the wall clock when this was made, carried on by the monotonic clock."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000

    def at_ms(self, monotonic: float) -> int:
        """What `now_ms` was at this time of `time.monotonic`."""
        return (int(monotonic * 1_000_000_000) + self._offset_ns) // 1_000_000

    @staticmethod
    def reading() -> Clock:
        """Both clocks as the machine has them now."""
        return Clock(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)


class Sink(Protocol):
    """Where lines go. Every method raises only our exceptions; the lines are then not written."""

    def append(self, writer: str, lines: Sequence[str]) -> None:
        """Hand lines over; what was handed over survives the death of this process as far as the sink promises."""

    def own(self, event: Ownership) -> None:
        """Write a change of ownership before returning, ordered among those of all members of its group."""

    def close(self, writer: str, events: int, *, clean: bool) -> None:
        """After the last event; `events` were numbered."""


def new_writer(name: str) -> str:
    """A writer's name unlike that of any other incarnation, fit for a file name: the name, host, pid and a random part."""
    plain = re.sub(r"[^\w.-]", "_", f"{name}@{socket.gethostname()}")
    return f"{plain}-{os.getpid()}-{os.urandom(3).hex()}"


class EventLog:
    """One writer's events. Lines are kept until `flush`; `close` writes the stop. Threads may share it."""

    def __init__(self, sink: Sink, writer: str, clock: SteadyClock | None = None, *, must_write: bool = True) -> None:
        self.writer = writer
        self.clock = clock or SteadyClock()
        self._sink = sink
        self._must_write = must_write
        self._next = 0
        self._lines: list[str] = []
        self._lock = threading.RLock()
        self._slip_s = 0.0
        self._given_up = 0
        self._why = ""

    def stamp(self) -> Stamp:
        """For the next event; an event that is stamped must be written."""
        with self._lock:
            self._next += 1
            return Stamp(self.writer, self._next - 1, self.clock.now_ms())

    def write(self, *events: Event) -> None:
        with self._lock:
            self._lines += [encode(event) for event in events]

    def remark(self, code: str, text: str) -> None:
        self.write(Remark(self.stamp(), code, text))

    def slipped(self, seconds: float) -> None:
        """The loop that writes here came back this much too late: a busy machine, not Kafka."""
        self._slip_s = max(self._slip_s, seconds)

    def beat(self) -> None:
        """A sign of life."""
        with self._lock:
            slip_s, self._slip_s = self._slip_s, 0.0
            self.write(Heartbeat(self.stamp(), self.clock.reading(), round(slip_s * 1000)))

    def flush(self) -> None:
        """To the sink."""
        with self._lock:
            lines, self._lines = self._lines, []
            if lines:
                self._try(lambda: self._sink.append(self.writer, lines), len(lines))

    def own(
        self,
        group: str,
        generation: int | None,
        change: Change,
        partitions: Sequence[TopicPartition],
        *,
        until_ms: int | None = None,
        starts: Sequence[int] = (),
    ) -> None:
        """A change of ownership, written at once and behind everything that was written before. `until_ms`, `starts` as the event has them."""
        with self._lock:
            self.flush()
            stamp = self.stamp()
            until_ms = None if until_ms is None else min(until_ms, stamp.t_ms)
            where = tuple(partitions)
            event = Ownership(stamp, group, self.writer, generation, change, where, None, until_ms, tuple(starts))
            self._try(lambda: self._sink.own(event), 1)

    def _try(self, write: Callable[[], None], events: int) -> None:
        try:
            write()
        except KMigrateError as error:
            if self._must_write:
                raise
            self._given_up += events
            self._why = f"{self._given_up} events could not be written: {error}"

    def close(self, *, clean: bool, reason: str = "") -> None:
        """The last event."""
        with self._lock:
            if self._given_up:
                clean, reason = False, f"{reason}; {self._why}".lstrip("; ")
            self.write(Stop(self.stamp(), clean, reason, self.clock.reading()))
            self.flush()
            self._try(lambda: self._sink.close(self.writer, self._next, clean=clean), 0)
