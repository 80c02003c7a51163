"""The event log of audited clients: events numbered per writer without a gap, sinks to write them, readers.

A writer whose only purpose is the record (the probe) ends when it cannot write. A wrapper around a user's consumer must
never end: with `must_write=False` an event that cannot be written is given up, its number stays unused, and the stop gives the
reason; the audit is then incomplete and says so.

Files: one a writer, one for all ownership changes, in one folder. Lines reach the operating system before `append` returns: a
killed process loses none. The marker `<writer>.done` appears atomically after a writer's last event.

Kafka topic: a record a line, its key the writer. It must keep all records: retention.ms and retention.bytes -1, no compaction. A
writer's events stay in one partition, in order. So do a group's ownership changes, each acknowledged before the member continues:
the record's offset is then an order that needs no clock, which readers set as `position`. Other events are sent without waiting,
so that a stalled audit topic does not stall the application; a killed process may leave missing numbers, never missing records.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.admin import error_of
from airflow_provider_kmigrate.core.events.lines import BadEvent, decode, encode
from airflow_provider_kmigrate.core.events.model import (
    Event,
    Heartbeat,
    Ownership,
    OwnershipChange,
    Remark,
    Stamp,
    Stop,
    TopicPartition,
)
from airflow_provider_kmigrate.core.shared.text import count_of, describe_hidden
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, TimedOut, Unavailable


class SteadyClock:
    """Milliseconds since the epoch that never jump: the wall clock at creation, continued by the monotonic clock."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        """Milliseconds since the epoch; they never run backwards."""
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000

    def at_ms(self, monotonic: float) -> int:
        """The value of `now_ms` at this time of `time.monotonic`."""
        return (int(monotonic * 1_000_000_000) + self._offset_ns) // 1_000_000


class Sink(Protocol):
    """A destination of lines. Every method raises only our exceptions; the lines are then not written."""

    def append(self, writer: str, lines: Sequence[str]) -> None:
        """Append lines; they survive the death of this process as far as the sink promises."""

    def write_ownership(self, event: Ownership) -> None:
        """Write a change of ownership before returning, ordered among those of all members of its group."""

    def close(self, writer: str, events: int, *, clean: bool) -> None:
        """Finish a writer after its last event; `events` were numbered."""


def new_writer_name(name: str) -> str:
    """A unique writer's name for this incarnation, fit for a file name: the name, host, pid and a random part."""
    plain = re.sub(r"[^\w.-]", "_", f"{name}@{socket.gethostname()}")
    return f"{plain}-{os.getpid()}-{os.urandom(3).hex()}"


class EventLog:
    """One writer's events. Lines are kept until `flush`; `close` writes the stop. Threads may share it."""

    def __init__(self, sink: Sink, writer: str, *, must_write: bool = True) -> None:
        self.writer = writer
        self.clock = SteadyClock()
        self._sink = sink
        self._must_write = must_write
        self._next = 0
        self._lines: list[str] = []
        self._lock = threading.RLock()
        self._given_up = 0
        self._why = ""

    def stamp(self) -> Stamp:
        """Number the next event; an event that is stamped must be written."""
        with self._lock:
            self._next += 1
            return Stamp(self.writer, self._next - 1, self.clock.now_ms())

    def write(self, *events: Event) -> None:
        """Queue events until the next flush."""
        with self._lock:
            self._lines += [encode(event) for event in events]

    def remark(self, code: str, text: str) -> None:
        """Queue a remark: a condition that an audit must know of."""
        self.write(Remark(self.stamp(), code, text))

    def write_heartbeat(self) -> None:
        """Queue a heartbeat."""
        with self._lock:
            self.write(Heartbeat(self.stamp(), time.time_ns() // 1_000_000))

    def flush(self) -> None:
        """Append the queued lines to the sink. If that fails: raises with `must_write`, else gives them up."""
        with self._lock:
            lines, self._lines = self._lines, []
            if lines:
                self._write_or_give_up(lambda: self._sink.append(self.writer, lines), len(lines))

    def write_ownership(
        self,
        group: str,
        generation: int | None,
        change: OwnershipChange,
        partitions: Sequence[TopicPartition],
        *,
        until_ms: int | None = None,
        starts: Sequence[int] = (),
    ) -> None:
        """Write a change of ownership at once, after all earlier events. `until_ms`, `starts` as in the event."""
        with self._lock:
            self.flush()
            stamp = self.stamp()
            until_ms = None if until_ms is None else min(until_ms, stamp.t_ms)
            topic_partitions = tuple(partitions)
            event = Ownership(stamp, group, self.writer, generation, change, topic_partitions, None, until_ms, tuple(starts))
            self._write_or_give_up(lambda: self._sink.write_ownership(event), 1)

    def _write_or_give_up(self, write: Callable[[], None], events: int) -> None:
        try:
            write()
        except KMigrateError as error:
            if self._must_write:
                raise
            self._given_up += events
            self._why = f"{count_of(self._given_up, 'event')} could not be written: {error}"

    def close(self, *, clean: bool, reason: str = "") -> None:
        """Write the last event."""
        with self._lock:
            if self._given_up:
                clean, reason = False, f"{reason}; {self._why}".lstrip("; ")
            self.write(Stop(self.stamp(), clean, reason))
            self.flush()
            self._write_or_give_up(lambda: self._sink.close(self.writer, self._next, clean=clean), 0)


_OWNERSHIP: Final = "ownership.jsonl"
_LOCK_S: Final = 10.0
_APPEND: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class FileSink:
    """A sink in the folder `folder`, made if missing. Members on one machine, or on a file system with locks, may share it.

    Once the folder is removed no audit will read it: everything is dropped then, and nothing recreates it.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._handles: dict[str, int] = {}
        atomic.make_folder(self.folder)

    def append(self, writer: str, lines: Sequence[str]) -> None:
        """Append to the writer's file. Raises `Failed`."""
        if writer not in self._handles and not self.folder.is_dir():
            return
        data = "".join(f"{line}\n" for line in lines).encode()
        with _os_errors_as_failed(f"cannot write the events of {writer}"):
            if writer not in self._handles:  # a second process of the same name fails instead of mixing its numbers in
                self._handles[writer] = os.open(self.folder / f"{writer}.jsonl", _APPEND | os.O_EXCL, 0o644)
            _write_all(self._handles[writer], data)

    def write_ownership(self, event: Ownership) -> None:
        """Write it, and set `position` to its place in the file. Raises `Failed` or `TimedOut`."""
        if not self.folder.is_dir():
            return  # taking the lock would recreate it
        with atomic.locked(self.folder, _LOCK_S), _os_errors_as_failed("cannot write to the ownership log"):
            handle = os.open(self.folder / _OWNERSHIP, _APPEND, 0o644)
            try:
                end = os.fstat(handle).st_size
                torn = end > 0 and os.pread(handle, 1, end - 1) != b"\n"  # by a member that was killed while it wrote
                _write_all(handle, ("\n" * torn + encode(replace(event, position=end)) + "\n").encode())
            finally:
                os.close(handle)

    def close(self, writer: str, events: int, *, clean: bool) -> None:
        """Write the marker of a finished writer. Raises `Failed`."""
        handle = self._handles.pop(writer, None)
        if handle is None:
            return
        with _os_errors_as_failed(f"cannot end the events of {writer}"):
            os.fsync(handle)
            os.close(handle)
            if self.folder.is_dir():
                atomic.replace(self.folder / f"{writer}.done", json.dumps({"events": events, "clean": clean}).encode())


def list_open_writers(folder: Path) -> list[Path]:
    """The files of a folder's writers that have not written their stop."""
    return [
        path
        for path in sorted(folder.glob("*.jsonl"))
        if path.name != _OWNERSHIP and not path.with_name(f"{path.stem}.done").exists()
    ]


def _write_all(handle: int, data: bytes) -> None:
    """Write all of it: a disk that is nearly full takes a part of it without an error."""
    while data:
        data = data[os.write(handle, data) :]


@contextmanager
def _os_errors_as_failed(action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Failed(f"{action}: {error}") from error


@dataclass(slots=True)
class FolderEvents:
    """Every event of a folder, and the lines that were not events (`file reason`)."""

    events: list[Event] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class EventReader:
    """Reads a folder's events, and on each further `read` the new ones.

    A line without its end is left for later: it is being written, or its writer was killed and will leave no stop.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at: dict[Path, int] = {}

    def read(self) -> FolderEvents:
        """Read the new events. Raises `Failed` if the folder cannot be read."""
        reading = FolderEvents()
        with _os_errors_as_failed(f"cannot read the events in {self._folder}"):
            for path in sorted(self._folder.glob("*.jsonl")):
                self._read_file(path, reading)
        return reading

    def _read_file(self, path: Path, reading: FolderEvents) -> None:
        start = self._at.get(path, 0)
        with path.open("rb") as file:
            file.seek(start)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._at[path] = start + end
        for line in data[:end].split(b"\n")[:-1]:
            try:
                reading.events.append(decode(line.decode(errors="replace")))
            except BadEvent as error:
                reading.refused.append(f"{path.name} {describe_hidden(len(line), sha256(line).hexdigest())}: {error}")


def read_events(folder: Path) -> FolderEvents:
    """Everything written so far to the event files of a folder; a line without its end is left out."""
    return EventReader(folder).read()


_FIXED: Final = {"enable.idempotence": "true", "acks": "all", "linger.ms": "20", "compression.type": "zstd"}
_POLL_S: Final = 0.1
_OWN_S: Final = 5.0  # that a rebalance may wait for the acknowledgement of a change of ownership
_CLOSE_S: Final = 30.0
_Delivered = Callable[[KafkaError | None, Message], None]


class TopicSink:
    """A sink in an events topic, which must exist. It has its own producer: give it a `client.id` and, if needed, an identity."""

    def __init__(self, properties: Mapping[str, str], topic: str) -> None:
        self.topic, self._what = topic, f"the events topic {topic}"
        self._failed: KMigrateError | None = None
        try:
            self._producer = Producer({**properties, **_FIXED})
            self._partitions = self._count_partitions()
        except KafkaException as error:
            raise error_of(error.args[0], self._what) from error

    def _count_partitions(self) -> int:
        topic_metadata = self._producer.list_topics(self.topic, timeout=30.0).topics[self.topic]
        if topic_metadata.error is not None:
            raise error_of(topic_metadata.error, self._what)
        return len(topic_metadata.partitions)

    def append(self, writer: str, lines: Sequence[str]) -> None:
        """Queue lines without waiting. Raises if lines cannot be queued, or if earlier ones were given up."""
        partition = self._choose_partition(writer)
        for line in lines:
            self._send(writer, line, partition, self._record_delivery_error)
        self._producer.poll(0)
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _choose_partition(self, name: str) -> int:
        return crc32(name.encode()) % self._partitions

    def _send(self, writer: str, line: str, partition: int, on_delivery: _Delivered) -> None:
        try:
            self._producer.produce(self.topic, line, writer, partition, on_delivery=on_delivery)
        except BufferError as error:
            raise Unavailable(f"the queue to {self._what} is full") from error
        except KafkaException as error:
            raise error_of(error.args[0], self._what) from error

    def _record_delivery_error(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed = error_of(error, self._what)

    def write_ownership(self, event: Ownership) -> None:
        """Send it and wait. Raises `TimedOut` if it is not acknowledged in time; it may be written anyway."""
        answers: list[KafkaError | None] = []
        self._send(event.stamp.writer, encode(event), self._choose_partition(event.group), lambda error, _: answers.append(error))
        deadline = time.monotonic() + _OWN_S
        while not answers:
            if time.monotonic() > deadline:
                raise TimedOut(f"{self._what} did not acknowledge within {_OWN_S:g} s")
            self._producer.poll(_POLL_S)
        if answers[0] is not None:
            raise error_of(answers[0], self._what)

    def close(self, writer: str, events: int, *, clean: bool) -> None:  # noqa: ARG002  # the stop says it
        """Wait for outstanding acknowledgements; raises `TimedOut`."""
        unacknowledged = self._producer.flush(_CLOSE_S)
        if unacknowledged:
            raise TimedOut(
                f"{count_of(unacknowledged, f'event of {writer} was', f'events of {writer} were')} not acknowledged within {_CLOSE_S:g} s"
            )
