"""Keeps one streaming query running, and holds it between two batches while a hold is requested.

A gate keeps a batch from beginning: the sink's function runs for whole batches or not at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from airflow_provider_kmigrate.core.spark.hold import HOLD, STATE, Hold, JobReport, JobState, kafka_offset, read_hold, report_text
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from airflow_provider_kmigrate.sparkjobs.files import Files, HadoopFiles, join, read_checkpoint

WriteBatch = Callable[[Any, int], None]  # (data frame, number of the batch), as `foreachBatch` takes it


class BatchNotBegun(Exception):
    """Ends the query between two batches; nothing of this one was written. Spark runs it first when the query resumes."""


class Gate:
    """Wraps the function of `foreachBatch`; one gate for one query.

    A query whose batches follow each other without a pause has no moment at which it could be stopped from outside (measured:
    stopping at any time repeated a batch in 5 of 5 runs). A closed gate makes one: the current batch is committed, the next one
    is planned and not begun.
    """

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._refused: int | None = None

    def __call__(self, write: WriteBatch) -> WriteBatch:
        def guarded(frame: Any, number: int) -> None:
            if self._closed.is_set():
                self._refused = number
                raise BatchNotBegun(f"batch {number} waits: the job will be held")
            write(frame, number)

        return guarded

    @property
    def refused(self) -> int | None:
        """The batch that was kept from beginning since the gate was closed."""
        return self._refused

    def close(self) -> None:
        """Let no further batch begin."""
        self._refused = None
        self._closed.set()

    def open(self) -> None:
        """Let batches begin again."""
        self._closed.clear()


FOLDER = "_kmigrate"  # below the checkpoint; Spark does not look at it
BEAT_MS = 10_000  # between two heartbeats


class Query(Protocol):
    """The part of pyspark's StreamingQuery that is used."""

    @property
    def id(self) -> Any: ...
    @property
    def isActive(self) -> bool: ...  # noqa: N802  # Spark's name
    @property
    def status(self) -> dict[str, Any]: ...
    @property
    def lastProgress(self) -> Any: ...  # noqa: N802
    def exception(self) -> Exception | None: ...
    def stop(self) -> None: ...


class JobClock(Protocol):
    """Time as an argument, so that tests need not wait; seconds."""

    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clock."""

    now = staticmethod(time.time)
    sleep = staticmethod(time.sleep)


def keep_running(
    start: Callable[[], Query],
    checkpoint: str,
    *,
    gate: Gate | None = None,
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
    changes nothing: a running query goes on, a held one stays held. `poll` in seconds.
    """
    desk = _HoldFiles(files or _session_files(), hold_folder or join(checkpoint, FOLDER), checkpoint, clock or SystemClock())
    keeper = _QueryRunner(start, desk, gate, stop, poll)
    while not keeper.kept_back():
        if keeper.run():
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
    hold: Hold | None = None
    _last_report: JobReport | None = None

    def held(self) -> bool:
        """True if a hold is there. One that cannot be looked for is as before; an unreadable one is a hold all the same."""
        try:
            text = self.files.read(join(self.folder, HOLD))
            self.hold = None if text is None else read_hold(text)
        except Unavailable:
            pass
        except Refused:
            self.hold = Hold("unreadable", "", "", 0)
        return self.hold is not None

    def tell(self, **changes: Any) -> None:
        """Write the state when it changes, and as a heartbeat; one that cannot be written now is written later."""
        self.report = replace(self.report, **changes)
        now = self.now()
        if self._last_report and now - self._last_report.at_ms < BEAT_MS and _same(self._last_report, self.report):
            return
        self.report = replace(self.report, at_ms=now)
        try:
            self.files.write(join(self.folder, STATE), report_text(self.report))
            self._last_report = self.report
        except Unavailable:
            pass

    def batches(self) -> dict[str, int | None]:
        """The newest planned and committed batches; as last known if they cannot be read."""
        try:
            found = read_checkpoint(self.files, self.checkpoint)
        except Unavailable:
            return {}
        return {"planned": found.planned, "committed": found.committed}

    def now(self) -> int:
        return round(1000 * self.clock.now())


def _same(one: JobReport, other: JobReport) -> bool:
    """Equal but for the times; the first progress is a change."""
    known = {(report.progress_ms is None) for report in (one, other)}
    return len(known) == 1 and replace(one, at_ms=0, progress_ms=0) == replace(other, at_ms=0, progress_ms=0)


@dataclass
class _QueryRunner:
    """One query's life: released, running, held, released again."""

    start: Callable[[], Query]
    desk: _HoldFiles
    gate: Gate | None
    stop: Callable[[], bool]
    poll: float

    def kept_back(self) -> bool:
        """Wait until the hold is gone; true if the job must end instead."""
        while self.desk.held() and not self.stop():
            self.desk.tell(state=JobState.HELD, hold=self.desk.hold.id if self.desk.hold else None)
            self.desk.clock.sleep(self.poll)
        return self.stop()

    def run(self) -> bool:
        """Start the query and watch it. True if the job is over, false if it is held."""
        if self.gate:
            self.gate.open()
        self.desk.tell(state=JobState.RUNNING, resumed_at={}, progress_ms=None, error="", begun=True)
        query = self._started()
        while query.isActive:
            self._look(query)
            if self.stop() or self.desk.held():
                self._drain(query)
                return self.stop()
            self.desk.clock.sleep(self.poll)
        self._raise(query)
        self.desk.tell(state=JobState.ENDED, **self.desk.batches())
        return True

    def _started(self) -> Query:
        try:
            query = self.start()
        except Exception as error:
            self.desk.tell(state=JobState.FAILED, error=_first_line(error))
            raise
        self.desk.tell(query=str(query.id))
        return query

    def _look(self, query: Query) -> None:
        """Note progress: a new batch, or a query of the brokers that found nothing new."""
        last, report = query.lastProgress or {}, self.desk.report
        number, status = last.get("batchId"), query.status
        looked = not status.get("isTriggerActive") and "waiting for data" in str(status.get("message", "")).lower()
        changes: dict[str, Any] = {}
        if looked or (number is not None and (number != report.committed or report.progress_ms is None)):
            changes["progress_ms"] = self.desk.now()
        if number is not None:
            changes["committed"] = number
            changes["resumed_at"] = report.resumed_at or _begins(last)
        self.desk.tell(**changes)

    def _drain(self, query: Query) -> None:
        """Let the current batch be committed, begin no other, stop."""
        if self.gate:
            self.gate.close()
        while query.isActive and query.status.get("isTriggerActive"):
            self.desk.tell()
            self.desk.clock.sleep(min(self.poll, 0.05))
        if query.isActive:
            query.stop()
        if self.gate is None or self.gate.refused is None:
            self._raise(query)
        batches = self.desk.batches()
        half_done = self.gate is None and batches.get("planned") != batches.get("committed")
        self.desk.tell(state=JobState.HELD, hold=self.desk.hold.id if self.desk.hold else None, begun=half_done, **batches)

    def _raise(self, query: Query) -> None:
        error = query.exception()
        if error is not None:
            self.desk.tell(state=JobState.FAILED, error=_first_line(error), **self.desk.batches())
            raise error


def _begins(progress: Any) -> dict[Any, int]:
    """The start of a batch, of all its Kafka sources."""
    offsets = (kafka_offset(source.get("startOffset")) for source in progress.get("sources", ()))
    return {where: offset for source in offsets for where, offset in source.items()}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:500]
