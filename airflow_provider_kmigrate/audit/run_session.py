"""A run's audit session: one Spark application that takes in event lines all the time and answers each gate of the run in seconds.

As a program: `python -m airflow_provider_kmigrate.audit.run_session FOLDER`. The folder holds `session.json`::

    {"key": {"cluster_id": "…", "run": "…", "token": "…"}, "results": "/audit/result/prod", "idle_s": 108000,
     "lease_s": 60, "request": {"spark": {…}, "sources": […]}}

and then what `core.audit.session_messages` says. The program ends once the lease says so or is not renewed, and after `idle_s` without
a request: whatever becomes of the task that started it, it does not stay. If Spark ends, it ends without an answer, and the gate does the work.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_provider_kmigrate.audit import fingerprint, job, report, request
from airflow_provider_kmigrate.audit.event_store import EventStore
from airflow_provider_kmigrate.audit.request import AuditPolicy, AuditRequest
from airflow_provider_kmigrate.audit.session import SparkEngine, start_session
from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.audit_session import BeatWatch, SessionFolder, answer_folder, hash_content
from airflow_provider_kmigrate.clients.foreign_files import NotRead
from airflow_provider_kmigrate.core.audit.session_messages import (
    ANSWERED,
    LAST_REPORTS_S,
    NO_RESULT,
    REFUSED,
    RESULT_FILES,
    SessionAnswer,
    SessionKey,
    SessionLease,
    SessionProgram,
    SessionPulse,
    SessionRequest,
    find_difference,
)
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused

_BEAT_S: Final = 1.0
_END_S: Final = 30.0  # for what it is working on, once its task is gone
_LONGEST_S: Final = 3_500.0  # for one request; a gate waits a little longer
_LONGEST_REPORT_S: Final = 300.0  # a gate that asks meanwhile waits for it
_IN_PLACE_S: Final = 30.0  # until a gate has put its verdict in place
_POLL_S: Final = 0.1
_INGEST_S: Final = 15.0
_PRACTICE_AFTER_S: Final = 5.0  # without a request
_PRACTICE, _GATES = "kmigrate-practice", "kmigrate-gates"  # groups of Spark's jobs
PRACTICES: Final = 3  # audits for nothing, so that Java has compiled most of what gates need
_say = partial(print, flush=True)  # a program's own words, at once in the log of its driver


@dataclass(frozen=True, slots=True)
class SessionStart:
    """What a session gets at its start.

    `results`: the folder below which it may write. It ends after `idle_s` seconds without a request, and after `lease_s` without a renewal.
    """

    key: SessionKey
    results: Path
    idle_s: float
    lease_s: float
    request: AuditRequest


def load_start(folder: Path) -> SessionStart:
    """The `session.json` of a folder. Raises `Refused` (X08) or `Failed`."""
    path = folder / "session.json"
    try:
        values = read_json(path.read_bytes())
        limits = float(values["idle_s"]), float(values["lease_s"])
        return SessionStart(SessionKey(**values["key"]), Path(values["results"]), *limits, request.parse(values["request"]))
    except OSError as error:
        raise Failed(f"the session's {path} cannot be read: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        text = f"The session's {path} is wrong: {error}."
        raise Refused.because(Reason.of(AuditCause.REQUEST_WRONG, text)) from None


@dataclass(frozen=True, slots=True)
class _AnsweredGate:
    """A gate that has its answer, and what is still to be done for it, by name. What is settled first, a next gate need not read."""

    request_id: str
    parts: list[tuple[str, Callable[[], None]]]

    @classmethod
    def after(cls, asked: SessionRequest, concluded: job.Concluded, verdict: str) -> _AnsweredGate:
        """`verdict`: the hash of the one that the report belongs to."""
        report_part = partial(_put_report, concluded, Path(asked.folder), verdict)
        return cls(asked.id, [("cuts", concluded.try_settle), ("report", report_part), ("tables", concluded.try_tables)])


class AuditSession:
    """Serves one run. `engine`: of an application that is started and ended elsewhere."""

    def __init__(self, folder: SessionFolder, start: SessionStart, engine: SparkEngine) -> None:
        self.ended = threading.Event()
        self.working_on, self.working_until = "", 0.0
        self._folder, self._start, self._engine = folder, start, engine
        self._seen: set[str] = set()
        self._answered: list[_AnsweredGate] = []
        self._practised = 0
        self._last_request = self._last_ingest = time.monotonic()
        self._lines = [source for source in start.request.sources if source.lines and source.store]

    def serve(self) -> None:
        """Answer and take in until the session is `ended`, or idle for too long. What an answered gate leaves to do is done while no gate waits."""
        self._ingest()
        while not self.ended.wait(_POLL_S):
            now = time.monotonic()
            if waiting := self._list_waiting():
                self._handle(waiting[0])
                self._last_request = time.monotonic()
            elif self._answered:
                self._complete(self._answered[0])
            elif now - self._last_request > self._start.idle_s:
                _say(f"The audit session ends: no request for {self._start.idle_s:g} s.")
                return
            elif now - self._last_ingest > _INGEST_S:
                sources = self._ingest()
                if not is_running(self._engine.session):
                    raise Failed("Spark has ended")
                if sources and self._practised < PRACTICES and now - self._last_request > _PRACTICE_AFTER_S:
                    self._practise(sources)
        while self._answered:
            self._complete(self._answered[0])

    def _list_waiting(self) -> list[str]:
        return [request_id for request_id in self._folder.list_requests() if request_id not in self._seen]

    def _handle(self, request_id: str) -> None:
        self._seen.add(request_id)
        try:
            asked = self._folder.read(f"requests/{request_id}.json", SessionRequest)
        except (ValueError, NotRead, OSError) as error:
            return self._answer(request_id, REFUSED, f"the request is no whole document ({type(error).__name__})")
        if asked is None:  # withdrawn
            return None
        if refusal := find_request_fault(self._start, request_id, asked):
            return self._answer(request_id, REFUSED, refusal)
        self.working_on, self.working_until = request_id, time.monotonic() + _LONGEST_S
        try:
            self._run(asked)
        finally:
            self.working_on = ""
        return None

    def _run(self, asked: SessionRequest) -> None:
        folder = answer_folder(asked)
        began = time.monotonic()
        try:
            concluded = self._run_program(asked, folder)
        except KMigrateError as error:
            if not is_running(self._engine.session):
                raise  # no answer: what ended Spark says nothing about records
            return self._answer(asked.id, NO_RESULT, str(error))
        files = {name: hash_content((folder / name).read_bytes()) for name in RESULT_FILES if (folder / name).exists()}
        if asked.id in self._folder.list_requests():  # else its gate waits no more
            self._answer(asked.id, ANSWERED, concluded.headline, files)
            if concluded.write_report is not None or concluded.settle is not None:
                self._answered.append(_AnsweredGate.after(asked, concluded, files["verdict.json"]))
        _say(f"{asked.program}: {time.monotonic() - began:.1f} s")
        return None

    def _run_program(self, asked: SessionRequest, folder: Path) -> job.Concluded:
        """Do what a submit of its own would do before its report; returns what it would print."""
        audit_request = request.parse(asked.document)
        if asked.program == SessionProgram.AUDIT:
            return job.run_audit(audit_request, self._engine, folder)
        if audit_request.logs is None:
            raise Refused.because(Reason.of(AuditCause.REQUEST_WRONG, "The request names no logs."))
        logs_request = replace(audit_request.logs, before=str(folder / "fingerprint.json"))
        snapshot = fingerprint.observe_before(self._engine.session, logs_request)
        return job.Concluded(
            f"{count_of(snapshot.logs.records, 'record')} of {count_of(len(snapshot.logs.marks), 'partition')}", None
        )

    def _complete(self, gate: _AnsweredGate) -> None:
        """Do the next part of what an answered gate leaves to do; between two parts a gate that asks has precedence."""
        began = time.monotonic()
        self.working_on, self.working_until = gate.request_id, began + _LONGEST_REPORT_S
        name, part = gate.parts.pop(0)
        try:
            part()
        except (KMigrateError, OSError) as error:
            _say(f"no {name}: {error}")
        finally:
            self.working_on = ""
        _say(f"{name}: {time.monotonic() - began:.1f} s")
        if not gate.parts:
            self._answered.remove(gate)

    def _answer(self, request_id: str, code: int, text: str, files: dict[str, str] | None = None) -> None:
        self._folder.write(f"answers/{request_id}.json", SessionAnswer(self._start.key, request_id, code, text, files or {}))

    def _ingest(self) -> list[Source]:
        """Take in what is new in files of lines; returns the sources that have any. A gate says what cannot be read, when it asks."""
        has_lines = []
        for source in self._lines:
            with suppress(KMigrateError):
                parts, *rest = EventStore(Path(source.store), lambda _: None).ingest(source.lines)
                has_lines += [source] if rest and parts else []
        self._last_ingest = time.monotonic()
        return has_lines

    def _practise(self, sources: list[Source]) -> None:
        """Audit for nothing: then Spark has compiled its questions, which is most of what a first audit costs. A gate that asks ends it."""
        self._practised += 1
        began = time.monotonic()
        with self._cancelled_for_a_request(), suppress(KMigrateError, PySparkException, Py4JError):
            job.audit_sources(sources, AuditPolicy(), self._engine)
        _say(f"practised for {time.monotonic() - began:.1f} s")

    @contextmanager
    def _cancelled_for_a_request(self) -> Iterator[None]:
        """Spark's jobs of the block are cancelled once a request waits or the session ends, again and again: the block may ask several questions."""
        over, context = threading.Event(), self._engine.session.sparkContext

        def cancel_for_a_request() -> None:
            while not over.wait(_POLL_S):
                is_wanted = self.ended.is_set() or self._list_waiting()
                if is_wanted and context.statusTracker().getActiveJobsIds():
                    context.cancelJobGroup(_PRACTICE)

        context.setJobGroup(_PRACTICE, "practice", interruptOnCancel=True)
        watch = threading.Thread(target=cancel_for_a_request, name="kmigrate-practice", daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()
            context.setJobGroup(_GATES, "gates and reports")


def _put_report(concluded: job.Concluded, folder: Path, verdict: str) -> None:
    """Make the report of an answered gate and put it beside the gate's verdict."""
    with tempfile.TemporaryDirectory(prefix="report-", dir=folder) as made:
        if concluded.try_report(Path(made)) and not place_report(Path(made), folder, verdict):
            _say("no report: the gate's folder does not hold its verdict")


def place_report(made: Path, folder: Path, verdict: str) -> bool:
    """Move a report to its verdict, whose hash is `verdict`; False if another one or none is there: a later audit's report stays.

    A gate puts its verdict there a moment after it has the answer.
    """
    deadline = time.monotonic() + _IN_PLACE_S
    while not (folder / "verdict.json").exists() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    try:
        if hash_content((folder / "verdict.json").read_bytes()) != verdict:
            return False
    except FileNotFoundError:
        return False
    for name in (report.JSON, report.HTML):
        atomic.replace(folder / name, (made / name).read_bytes(), mode=atomic.ALL_USERS)
    return True


def find_request_fault(start: SessionStart, request_id: str, asked: SessionRequest) -> str:
    """Why the session does not do what a request wants; empty if it does."""
    if difference := find_difference(start.key, asked.key):
        return difference
    if asked.id != request_id:
        return "its id is not that of its file"
    if asked.program not in tuple(SessionProgram):
        return "it names no program"
    folder = Path(asked.folder)
    if ".." in folder.parts or not folder.is_relative_to(start.results):
        return "its folder is none of the results"
    return ""


def is_running(session: SparkSession) -> bool:
    """Whether the application still is: a question may have failed because it is not."""
    try:
        context: Any = session.sparkContext._jsc  # noqa: SLF001  # pyspark has no other word for it
        return context is not None and not context.sc().isStopped()
    except (Py4JError, OSError, AttributeError):
        return False


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """Why a session ends, and the seconds that its work still gets: the last gate's report is wanted, and a busy machine makes it slowly."""

    why: str
    seconds: float


class Heart(threading.Thread):
    """Says that the session lives, and ends it with its lease, also in the middle of a question that does not end."""

    def __init__(self, folder: SessionFolder, start: SessionStart, session: AuditSession) -> None:
        super().__init__(name="kmigrate-heart", daemon=True)
        self._folder, self._key, self._lease_s, self._session = folder, start.key, start.lease_s, session

    def run(self) -> None:
        """Beat until the lease is lost."""
        watch, beat = BeatWatch(self._lease_s), 0
        while (end := self.find_end(watch)) is None:
            beat += 1
            with suppress(Failed):  # a full disk, say: gates do without the session meanwhile
                self._folder.write("pulse.json", SessionPulse(self._key, beat, self._session.working_on))
            time.sleep(_BEAT_S)
        _say(f"The audit session ends: {end.why}.")
        self._session.ended.set()
        time.sleep(end.seconds)
        os._exit(0)  # what it is working on has no reader any more

    def find_end(self, watch: BeatWatch) -> SessionEnd | None:
        """Why the session is to end now; None: it goes on."""
        lease = self._folder.read_or_none("lease.json", SessionLease)
        if lease is not None and lease.key != self._key:
            return SessionEnd("another one was started", _END_S)
        if lease is not None and lease.ended:
            return SessionEnd("its task says so", LAST_REPORTS_S)
        if self._session.working_on and time.monotonic() > self._session.working_until:
            return SessionEnd("it has worked on one request or report for too long", _END_S)
        watch.note(lease.beat if lease else None)
        return SessionEnd("its task does not renew its lease", _END_S) if watch.is_lost else None


def main(arguments: Sequence[str] | None = None) -> int:
    """0 once it was to end; 2 with the reason if it cannot begin or Spark has ended."""
    parser = argparse.ArgumentParser(description="Answers the audits of one run.")
    parser.add_argument("folder", type=Path, help="with session.json")
    options = parser.parse_args(arguments)
    try:
        start = load_start(options.folder)
        atomic.make_folder(options.folder / "answers")
        spark = start.request.spark
        with start_session(spark.master, jars=spark.jars, settings=spark.settings) as session:
            folder = SessionFolder(options.folder)
            audit_session = AuditSession(folder, start, SparkEngine(session))
            Heart(folder, start, audit_session).start()
            _say("The audit session serves.")
            audit_session.serve()
    except KMigrateError as error:
        _say(f"the audit session ends: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
