"""Keeps a streaming query running, and holds it between two batches while Kafka is restarted; it resumes exactly where it stopped.

A job that reads Kafka with Structured Streaming survives a clean roll of the brokers without this (measured). It fails if a
partition has no leader for longer than its retries last; and a careless stop repeats a batch. With two more lines kmigrate's
DAGs, or an administrator, can hold it between two batches::

    from airflow_provider_kmigrate.applications.spark_hold import BatchGate, keep_running

    gate = BatchGate()
    keep_running(lambda: writer.foreachBatch(gate(write_batch)).start(), CHECKPOINT, gate=gate)

A gate keeps a batch from beginning: the sink's function runs for whole batches or not at all. Imports pyspark only through the
session that the job has. Its other side: `steps.spark_jobs`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.hadoop_files import HadoopFiles
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.spark import hold as spark_hold
from airflow_provider_kmigrate.core.spark.hold import (
    HOLD,
    STATE,
    Checkpoint,
    JobReport,
    JobState,
    SparkHold,
    kafka_offset,
    read_hold,
    report_text,
)
from airflow_provider_kmigrate.exceptions import Failed, Refused, Unavailable

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Value = TypeVar("Value")


class Files(Protocol):
    """Paths are absolute, or URIs. Raises `Unavailable` if the file system does not answer, `Refused` if it cannot be used."""

    def read(self, path: str) -> str | None:
        """The text; None if there is no such file."""

    def write(self, path: str, text: str) -> None:
        """Make or replace the file; readers see the old text or the new one, on object stores too. Makes its folder."""

    def delete(self, path: str) -> None:
        """Ensure that it is absent."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder; empty if there is no such folder."""


def join_path(folder: str, *parts: str) -> str:
    """A path below a folder."""
    return "/".join([folder.rstrip("/"), *parts])


class LocalFiles:
    """Files of this machine, or of its mounts."""

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""
        return _access_file(path, lambda: _local_path(path).read_text(encoding="utf-8"), None)

    def write(self, path: str, text: str) -> None:
        """Replace a file atomically; makes its folder."""
        target = _local_path(path)
        try:
            atomic.make_folder(target.parent)
            atomic.replace(target, text.encode(), mode=atomic.ALL_USERS)
        except Failed as error:
            raise Unavailable(str(error)) from error

    def delete(self, path: str) -> None:
        """Delete a file; nothing happens if there is none."""
        _access_file(path, lambda: _local_path(path).unlink(missing_ok=True), None)

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none if there is no such folder."""
        return _access_file(folder, lambda: [entry.name for entry in _local_path(folder).iterdir()], [])


def _local_path(path: str) -> Path:
    parts = urlsplit(path)
    if parts.scheme not in {"", "file"}:
        raise Refused.because(Reason("J05", f"{path} is not a path on this machine."))
    return Path(unquote(parts.path) if parts.scheme else path)


def _access_file(path: str, act: Callable[[], Value], missing: Value) -> Value:
    try:
        return act()
    except FileNotFoundError:
        return missing
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror or error}") from error


def read_checkpoint(files: Files, folder: str) -> Checkpoint:
    """The checkpoint now; of a running query it may be one batch old. Raises `Refused` (J05) if it is no checkpoint."""
    committed = spark_hold.batch_numbers(files.names(join_path(folder, "commits")))
    planned = spark_hold.batch_numbers(files.names(join_path(folder, "offsets")))
    metadata = files.read(join_path(folder, "metadata"))
    newest = committed[-1] if committed else None
    text = None if newest is None else files.read(join_path(folder, "offsets", str(newest)))
    return Checkpoint(
        query=spark_hold.query_id(metadata) if metadata else None,
        planned=planned[-1] if planned else None,
        committed=newest,
        offsets=spark_hold.batch_offsets(text) if text else {},
    )


WriteBatch = Callable[[Any, int], None]  # (data frame, number of the batch), as `foreachBatch` takes it


class BatchNotBegun(Exception):
    """Ends the query between two batches; nothing of this one was written. Spark runs it first when the query resumes."""


class BatchGate:
    """Wraps the function of `foreachBatch`; one gate for one query.

    A query whose batches follow each other without a pause has no moment at which it could be stopped from outside (measured:
    stopping at any time repeated a batch in 5 of 5 runs). A closed gate makes one: the current batch is committed, the next one
    is planned and not begun.
    """

    def __init__(self) -> None:
        self._closed = threading.Event()
        self.refused: int | None = None  # the batch that was kept from beginning since the gate was closed

    def __call__(self, write: WriteBatch) -> WriteBatch:
        """`write` as a function of batches that raises `BatchNotBegun` once the gate is closed."""

        def guarded(frame: Any, number: int) -> None:
            if self._closed.is_set():
                self.refused = number
                raise BatchNotBegun(f"batch {number} waits: the job will be held")
            write(frame, number)

        return guarded

    def close(self) -> None:
        """Let no further batch begin. The current one is not interrupted."""
        self.refused = None
        self._closed.set()

    def open(self) -> None:
        """Let batches begin again; `refused` keeps the number of the one that was kept back."""
        self._closed.clear()


FOLDER = "_kmigrate"  # below the checkpoint; Spark does not look at it
BEAT_MS = 10_000  # between two heartbeats


@dataclass(frozen=True, slots=True)
class JobClock:
    """The machine's clock, in seconds since the epoch; an argument, so that tests need not wait."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


def keep_running(
    start: Callable[[], StreamingQuery],
    checkpoint: str,
    *,
    gate: BatchGate | None = None,
    hold_folder: str = "",
    files: Files | None = None,
    stop: Callable[[], bool] = lambda: False,
    poll: float = 1.0,
    clock: JobClock | None = None,
) -> None:
    """Run the query that `start` starts until it ends; hold it between two batches while `hold.json` is in the hold folder.

    Use it in place of `start()` and `awaitTermination()`, in a thread for each query of a job with several. `start` is called
    again after each hold and must build the same query with this `checkpoint`. The hold folder is `<checkpoint>/_kmigrate` unless
    given; it is reached as the session of the job reaches its own checkpoint, or through `files`.

    With a `gate` in its `foreachBatch` a job is held exactly whatever its trigger. Without one the query needs a processing-time
    trigger, and is stopped in the pause between two batches; a batch that is planned in that very moment is done again later,
    which file sinks and other idempotent ones do not notice.

    `stop` true: end as for a hold, and return. Raises what the query failed with. A hold folder that cannot be read for a while
    changes nothing: a running query continues, a held one stays held. Raises `Unavailable` if it cannot be read at the start: a
    job that restarts during a hold must not begin. `poll` in seconds.
    """
    folder = hold_folder or join_path(checkpoint, FOLDER)
    hold_files = _HoldFiles(files or _session_files(), folder, checkpoint, clock or JobClock())
    runner = _QueryRunner(start, hold_files, gate, stop, poll)
    while not runner.must_end_after_hold():
        if runner.run():
            return


def _session_files() -> Files:
    from pyspark.sql import SparkSession  # noqa: PLC0415  # only where a job runs

    return HadoopFiles(SparkSession.active())


@dataclass
class _HoldFiles:
    """The files of the hold folder: what the job reads there, and what it writes."""

    files: Files
    folder: str
    checkpoint: str
    clock: JobClock
    report: JobReport = field(default_factory=lambda: JobReport(JobState.RUNNING, 0))
    hold: SparkHold | None = None
    _hold_read: bool = False
    _last_report: JobReport | None = None

    @property
    def hold_id(self) -> str | None:
        """The id of the hold; None if there is none."""
        return self.hold.id if self.hold else None

    def is_held(self) -> bool:
        """True if a hold is there; an unreadable one is a hold anyway. If no answer comes, the last one counts."""
        try:
            text = self.files.read(join_path(self.folder, HOLD))
            self.hold = None if text is None else read_hold(text)
        except Unavailable:
            if not self._hold_read:
                raise
        except Refused:
            self.hold = SparkHold("unreadable", "", "", 0)
        self._hold_read = True
        return self.hold is not None

    def report_state(self, **changes: Any) -> None:
        """Write the state when it changes, and as a heartbeat; one that cannot be written now is written later."""
        self.report = replace(self.report, **changes)
        now = self.now_ms()
        if self._last_report and now - self._last_report.at_ms < BEAT_MS and _is_same_report(self._last_report, self.report):
            return
        self.report = replace(self.report, at_ms=now)
        try:
            self.files.write(join_path(self.folder, STATE), report_text(self.report))
            self._last_report = self.report
        except Unavailable:
            pass

    def read_batches(self) -> dict[str, int | None]:
        """The newest planned and committed batches; as last known if they cannot be read."""
        try:
            checkpoint = read_checkpoint(self.files, self.checkpoint)
        except Unavailable:
            return {}
        return {"planned": checkpoint.planned, "committed": checkpoint.committed}

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return round(1000 * self.clock.now())


def _is_same_report(report: JobReport, other: JobReport) -> bool:
    """Equal but for the times; the first progress is a change."""
    progressed_alike = (report.progress_ms is None) == (other.progress_ms is None)
    return progressed_alike and replace(report, at_ms=0, progress_ms=0) == replace(other, at_ms=0, progress_ms=0)


@dataclass
class _QueryRunner:
    """One query's life: released, running, held, released again."""

    start: Callable[[], StreamingQuery]
    hold_files: _HoldFiles
    gate: BatchGate | None
    is_stop_requested: Callable[[], bool]
    poll: float

    def must_end_after_hold(self) -> bool:
        """Wait until the hold is gone; true if the job must end instead."""
        while self.hold_files.is_held() and not self.is_stop_requested():
            self.hold_files.report_state(state=JobState.HELD, hold=self.hold_files.hold_id)
            self.hold_files.clock.sleep(self.poll)
        return self.is_stop_requested()

    def run(self) -> bool:
        """Start the query and watch it. True if the job is over, false if it is held."""
        if self.gate:
            self.gate.open()
        self.hold_files.report_state(state=JobState.RUNNING, resumed_at={}, progress_ms=None, error="", begun=True)
        query = self._start_query()
        while query.isActive:
            self._note_progress(query)
            if self.is_stop_requested() or self.hold_files.is_held():
                self._stop_between_batches(query)
                return self.is_stop_requested()
            self.hold_files.clock.sleep(self.poll)
        self._raise_query_error(query)
        self.hold_files.report_state(state=JobState.ENDED, **self.hold_files.read_batches())
        return True

    def _start_query(self) -> StreamingQuery:
        try:
            query = self.start()
        except Exception as error:  # the job's own, and raised again
            self.hold_files.report_state(state=JobState.FAILED, error=_first_line(error))
            raise
        self.hold_files.report_state(query=str(query.id))
        return query

    def _note_progress(self, query: StreamingQuery) -> None:
        """Note progress: a new batch, or a query of the brokers that found nothing new."""
        last: Any = query.lastProgress or {}
        report, number, status = self.hold_files.report, last.get("batchId"), query.status
        has_queried_brokers = not status.get("isTriggerActive") and "waiting for data" in str(status.get("message", "")).lower()
        changes: dict[str, Any] = {}
        if has_queried_brokers or (number is not None and (number != report.committed or report.progress_ms is None)):
            changes["progress_ms"] = self.hold_files.now_ms()
        if number is not None:
            changes["committed"] = number
            changes["resumed_at"] = report.resumed_at or _start_offsets(last)
        self.hold_files.report_state(**changes)

    def _stop_between_batches(self, query: StreamingQuery) -> None:
        """Let the current batch be committed, begin no other, stop."""
        if self.gate:
            self.gate.close()
        while query.isActive and query.status.get("isTriggerActive"):
            self.hold_files.report_state()
            self.hold_files.clock.sleep(min(self.poll, 0.05))
        if query.isActive:
            query.stop()
        if self.gate is None or self.gate.refused is None:
            self._raise_query_error(query)
        batches = self.hold_files.read_batches()
        half_done = self.gate is None and batches.get("planned") != batches.get("committed")
        self.hold_files.report_state(state=JobState.HELD, hold=self.hold_files.hold_id, begun=half_done, **batches)

    def _raise_query_error(self, query: StreamingQuery) -> None:
        error = query.exception()
        if error is not None:
            self.hold_files.report_state(state=JobState.FAILED, error=_first_line(error), **self.hold_files.read_batches())
            raise error


def _start_offsets(progress: Any) -> dict[Any, int]:
    """The start of a batch, of all its Kafka sources."""
    offsets = (kafka_offset(source.get("startOffset")) for source in progress.get("sources", ()))
    return {topic_partition: offset for source in offsets for topic_partition, offset in source.items()}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:500]
