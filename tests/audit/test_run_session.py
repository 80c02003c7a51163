"""A run's audit session on a real Spark, a process of its own: it answers as a job would, and ends with its lease, its Spark or its task."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

pytest.importorskip("py4j", reason="the audit has its own environment")

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from airflow_provider_kmigrate.clients.audit_session import (
    BeatWatch,
    SessionFolder,
    SessionLimits,
    ask_session,
    hash_content,
    new_key,
    read_answer_file,
)
from airflow_provider_kmigrate.core.audit.session_messages import (
    LAST_REPORTS_S,
    NO_RESULT,
    REFUSED,
    SessionAnswer,
    SessionLease,
    SessionPulse,
    SessionRequest,
)
from airflow_provider_kmigrate.core.events.lines import encode
from airflow_provider_kmigrate.core.ledger import balance
from tests.audit.random_histories import packed
from tests.kit import spark_classes
from tests.waiting import wait_until

_HISTORIES, _SEED = 40, 5
_LEASE_S = 8.0
_LIMITS = SessionLimits(start=120.0, beat=10.0, answer=240.0)
_OF_RUN = ("cluster", "run")
reported_verdicts: list[bytes] = []


class Running:
    """A session's process with its task's part, the lease."""

    def __init__(self, folder: Path, *, idle_s: float = 600.0) -> None:
        self.root, self.folder, self.key = folder, SessionFolder(folder / "session"), new_key(*_OF_RUN)
        self.events = folder / "events"
        self.events.mkdir(exist_ok=True)
        self.source = {"level": "L3", "lines": [str(self.events)], "store": str(folder / "store")}
        self.folder.write("lease.json", SessionLease(self.key, 0))
        spark = {"master": "local[2]", "settings": {"spark.ui.showConsoleProgress": "false", **spark_classes.settings()}}
        start = {
            "key": {"cluster_id": "cluster", "run": "run", "token": self.key.token},
            "results": str(folder),
            "idle_s": idle_s,
        }
        start |= {"lease_s": _LEASE_S, "request": {"spark": spark, "sources": [self.source]}}
        (self.folder.folder / "session.json").write_text(json.dumps(start))
        program = [sys.executable, "-m", "airflow_provider_kmigrate.audit.run_session", str(self.folder.folder)]
        environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": "--driver-memory 700m pyspark-shell"}
        self.process = subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._stopped = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True)
        self._renewing.start()

    def _renew(self) -> None:
        beat = 0
        while not self._stopped.wait(0.5):
            beat += 1
            self.folder.write("lease.json", SessionLease(self.key, beat))

    def stop_renewing(self) -> None:
        self._stopped.set()
        self._renewing.join(10)

    def java(self) -> psutil.Process:
        return next(child for child in psutil.Process(self.process.pid).children(recursive=True) if child.name() == "java")

    def working_on(self) -> str:
        pulse = self.folder.read_or_none("pulse.json", SessionPulse)
        return pulse.working_on if pulse is not None and pulse.key == self.key else ""

    def ended(self, seconds: float = 60.0) -> int:
        return self.process.wait(seconds)

    def close(self) -> None:
        self.stop_renewing()
        children = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        for process in (*children, self.process):
            process.kill()
        self.process.communicate(timeout=30)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.close()


def write_events(folder: Path, *, of: slice = slice(None)) -> None:
    """A file of lines for each writer; of a part of each, if so asked."""
    lines: dict[str, list[str]] = {}
    for event in packed(_HISTORIES, seed=_SEED):
        lines.setdefault(event.stamp.writer, []).append(encode(event))
    for number, written in enumerate(lines.values()):
        with (folder / f"{number}.jsonl").open("a") as file:
            file.writelines(f"{line}\n" for line in written[of])


def ask(running: Running, name: str = "gate", **document: Any) -> tuple[SessionAnswer | None, Any, list[str]]:
    """A gate: the answer, the facts in it, and what the gate's log would say."""
    result, said = running.root / name, list[str]()
    result.mkdir(exist_ok=True)
    request = {"program": "job", "document": {"sources": [running.source], **document}, "folder": str(result)}
    with ask_session(running.folder, _OF_RUN, request, _LIMITS, said.append) as answer:
        facts = json.loads(read_answer_file(result, answer, "facts.json"))["sources"] if answer and answer.files else None
        if answer and answer.files:
            reported_verdicts.append(read_answer_file(result, answer, "verdict.json"))
    return answer, facts, said


def expected_facts() -> Any:
    return json.loads(json.dumps([{"level": "L3", **balance(packed(_HISTORIES, seed=_SEED)).as_dict()}]))


@pytest.mark.timeout(600)
def test_gates_are_answered_as_by_jobs_of_their_own(session: Running) -> None:
    """What comes between two gates is in the second; two gates at once are answered one after the other; what is wrong is refused."""
    write_events(session.events, of=slice(None, 3))
    first, facts, _ = ask(session)
    assert first is not None
    assert facts != expected_facts()
    write_events(session.events, of=slice(3, None))
    found: list[Any] = []
    gates = [threading.Thread(target=lambda name=name: found.append(ask(session, name))) for name in ("one", "two")]
    for gate in gates:
        gate.start()
    for gate in gates:
        gate.join(300)
    assert [facts for _, facts, _ in found] == [expected_facts()] * 2
    # A request that a job, too, could not do.
    wrong, _, _ = ask(session, sources=[{**session.source, "lines": [str(session.root / "nowhere")]}])
    assert wrong is not None
    assert (wrong.code, "no such file" in wrong.text) == (NO_RESULT, True)
    unknown, _, _ = ask(session, nonsense=1)
    assert unknown is not None
    assert (unknown.code, "X08" in unknown.text) == (NO_RESULT, True)
    for number, (asked, said) in enumerate(_foreign_requests(session)):
        request_id = f"{number:032x}"
        path = session.folder.folder / "requests" / f"{request_id}.json"
        if isinstance(asked, bytes):
            path.write_bytes(asked)
        else:
            session.folder.write(f"requests/{path.name}", asked)
        wait_until(lambda name=path.name: (session.folder.folder / "answers" / name).exists(), "a refusal", 30.0)
        answer = session.folder.read(f"answers/{path.name}", SessionAnswer)
        assert answer is not None
        assert (answer.code, answer.files, said in answer.text) == (REFUSED, {}, True), answer.text
    assert not list(session.root.rglob("answer-*")), "nothing of an answer stays"
    _check_last_report(session)


def _check_last_report(session: Running) -> None:
    """It is made after the answer, beside the verdict that the gate has put in place, also if the session is to end meanwhile."""
    reported, _, _ = ask(session, "reported", report={"cluster": "prod"})
    assert reported is not None
    assert "report.html" not in reported.files
    folder = session.root / "reported"
    assert not (folder / "report.html").exists(), "a gate does not wait for the report"
    session.stop_renewing()
    session.folder.write("lease.json", SessionLease(session.key, 0, ended=True))
    (folder / "verdict.json").write_bytes(reported_verdicts[-1])
    assert session.ended() == 0
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "report.json", "verdict.json"]


@pytest.mark.parametrize("there", ["its own", "a later one", "none"])
def test_a_report_is_put_beside_its_own_verdict_only(tmp_path: Path, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late report of an earlier audit must not stand beside the verdict of a later one."""
    from airflow_provider_kmigrate.audit import run_session  # noqa: PLC0415

    monkeypatch.setattr(run_session, "_IN_PLACE_S", 0.2)
    made, folder = tmp_path / "made", tmp_path / "gate"
    for created in (made, folder):
        created.mkdir()
    for name in ("report.html", "report.json"):
        (made / name).write_text("mine")
        (folder / name).write_text("later")
    if there != "none":
        (folder / "verdict.json").write_text(there)
    assert run_session.place_report(made, folder, hash_content(b"its own")) == (there == "its own")
    assert (folder / "report.html").read_text() == ("mine" if there == "its own" else "later")


def _foreign_requests(session: Running) -> list[tuple[SessionRequest | bytes, str]]:
    document, folder = {"sources": [session.source]}, str(session.root / "gate")
    other, older = new_key("other", "run"), new_key("cluster", "run")
    return [
        (SessionRequest(other, f"{0:032x}", "job", document, folder), "about cluster other"),
        (SessionRequest(new_key("cluster", "earlier"), f"{1:032x}", "job", document, folder), "of run earlier"),
        (SessionRequest(older, f"{2:032x}", "job", document, folder), "earlier session"),
        (SessionRequest(session.key, f"{99:032x}", "job", document, folder), "not that of its file"),
        (SessionRequest(session.key, f"{4:032x}", "rm", document, folder), "names no program"),
        (SessionRequest(session.key, f"{5:032x}", "job", document, "/etc"), "none of the results"),
        (SessionRequest(session.key, f"{6:032x}", "job", document, f"{session.root}/../x"), "none of the results"),
        (b'{"key": {', "no whole document"),
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", [pytest.param("python", marks=pytest.mark.long), "java"])
def test_a_gate_notices_a_session_that_is_killed_in_the_middle(session: Running, victim: str) -> None:
    """It answers nothing, so the gate does the work itself; a Java that is gone is no fault of the records."""
    write_events(session.events)
    found: list[Any] = []
    gate = threading.Thread(target=lambda: found.append(ask(session)))
    gate.start()
    wait_until(session.working_on, "the gate's request is worked on", 120.0)
    (psutil.Process(session.process.pid) if victim == "python" else session.java()).kill()
    gate.join(120)
    ((answer, facts, said),) = found
    assert (answer, facts) == (None, None)
    assert "ended before it answered" in said[0]
    assert session.ended() != 0
    again = ask(session)
    assert again[0] is None, "the next one is not asked either"


@pytest.mark.timeout(600)
def test_a_session_whose_spark_ends_between_two_gates_ends_too(session: Running) -> None:
    """Its task then starts another one, before a gate asks."""
    wait_until(lambda: session.folder.read_or_none("pulse.json", SessionPulse), "it serves", 120.0)
    session.java().kill()
    assert session.ended(60) != 0


def test_a_fingerprint_without_logs_is_no_result(spark: Any, tmp_path: Path) -> None:
    from airflow_provider_kmigrate.audit import request, run_session  # noqa: PLC0415

    folder, key = SessionFolder(tmp_path / "session"), new_key(*_OF_RUN)
    serving = run_session.AuditSession(
        folder, run_session.SessionStart(key, tmp_path, 9.0, 9.0, request.parse({"sources": []})), spark
    )
    folder.write(f"requests/{1:032x}.json", SessionRequest(key, f"{1:032x}", "fingerprint", {"sources": []}, str(tmp_path)))
    serving._handle(f"{1:032x}")
    answer = folder.read(f"answers/{1:032x}.json", SessionAnswer)
    assert answer is not None
    assert (answer.code, "X08" in answer.text) == (NO_RESULT, True)


@pytest.mark.timeout(600)
def test_a_session_without_its_task_ends_with_all_its_processes(session: Running) -> None:
    """A task killed with SIGKILL can't say so: its lease is not renewed any more."""
    wait_until(lambda: session.folder.read_or_none("pulse.json", SessionPulse), "it serves", 120.0)
    family = psutil.Process(session.process.pid).children(recursive=True)
    session.stop_renewing()
    began = time.monotonic()
    assert session.ended(_LEASE_S + 30) == 0
    assert time.monotonic() - began > _LEASE_S / 2
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []


@pytest.mark.timeout(600)
def test_a_session_that_nobody_asks_ends(tmp_path: Path) -> None:
    running = Running(tmp_path, idle_s=1.0)
    try:
        assert running.ended(120) == 0
        said = running.process.communicate(timeout=30)[0]
        assert "no request for 1 s" in said
    finally:
        running.close()


@pytest.mark.parametrize(
    "text", ["", "{}", '{"key": {}}', '{"key": {"cluster_id": "c", "run": "r", "token": "t"}, "results": "/x"}']
)
def test_what_is_no_start_is_refused_before_spark_starts(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    from airflow_provider_kmigrate.audit import run_session  # noqa: PLC0415

    assert run_session.main([str(tmp_path)]) == 2
    (tmp_path / "session.json").write_text(text)
    assert run_session.main([str(tmp_path)]) == 2
    assert "X08" in capsys.readouterr().err


@pytest.mark.parametrize(("ended", "lost", "seconds"), [(False, False, None), (True, False, LAST_REPORTS_S), (False, True, 30.0)])
def test_a_session_that_is_told_to_end_still_makes_its_last_report(
    tmp_path: Path, *, ended: bool, lost: bool, seconds: float | None
) -> None:
    """A busy machine took longer than half a minute for it; a task that is gone leaves no reader."""
    from airflow_provider_kmigrate.audit.request import AuditRequest  # noqa: PLC0415
    from airflow_provider_kmigrate.audit.run_session import AuditSession, Heart, SessionStart  # noqa: PLC0415

    folder, key = SessionFolder(tmp_path), new_key(*_OF_RUN)
    folder.write("lease.json", SessionLease(key, 0, ended=ended))
    start = SessionStart(key, tmp_path, 600.0, 0.0 if lost else 60.0, AuditRequest(()))
    ticks = itertools.count()
    watch = BeatWatch(start.lease_s, lambda: float(next(ticks)))
    heart = Heart(folder, start, AuditSession(folder, start, cast("Any", None)))
    heart.find_end(watch)
    end = heart.find_end(watch)
    assert (end.seconds if end else None) == seconds


@pytest.mark.timeout(120)
def test_a_gate_ends_practice(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine one practice takes minutes; here two of its questions would take an hour each."""
    from airflow_provider_kmigrate.audit import request, run_session  # noqa: PLC0415

    folder, key, ended = SessionFolder(tmp_path / "session"), new_key(*_OF_RUN), list[str]()

    def ask_slowly(*_: Any) -> None:
        for _ in range(2):
            folder.write(f"requests/{1:032x}.json", SessionRequest(key, f"{1:032x}", "job", {"sources": []}, str(tmp_path)))
            with suppress(PySparkException, Py4JError):
                spark.session.sql("SELECT java_method('java.lang.Thread', 'sleep', 3600000L) FROM range(1)").collect()
            ended.append("one")

    monkeypatch.setattr(run_session.job, "audit_sources", ask_slowly)
    start = run_session.SessionStart(key, tmp_path, 9.0, 9.0, request.parse({"sources": []}))
    run_session.AuditSession(folder, start, spark)._practise([])
    assert ended == ["one", "one"]
    assert spark.session.range(3).count() == 3, "what a gate asks is not cancelled"


def test_a_gate_does_not_wait_for_the_report_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine cuts and report took 54 s, of which the next gate waited 36 s (measured)."""
    from airflow_provider_kmigrate.audit import job, request, run_session  # noqa: PLC0415

    folder, key, done = SessionFolder(tmp_path / "session"), new_key(*_OF_RUN), list[str]()
    start = run_session.SessionStart(key, tmp_path, 9.0, 9.0, request.parse({"sources": []}))
    session = run_session.AuditSession(folder, start, cast("Any", None))

    def ask_for(gate: str) -> None:
        (tmp_path / gate).mkdir()
        document = {"sources": [], "report": {"cluster": gate, "cluster_id": "c", "run": "r", "journals": []}}
        folder.write(f"requests/{gate}.json", SessionRequest(key, gate, "job", document, str(tmp_path / gate)))

    def conclude(asked: Any, _engine: Any, result: Path) -> Any:
        gate = asked.report.cluster
        result.mkdir()
        (result / "verdict.json").write_text(gate)
        (tmp_path / gate / "verdict.json").write_text(gate)  # as a gate that has its answer does
        done.append(f"answer {gate}")

        def settle() -> list[str]:
            done.append(f"cuts {gate}")
            if gate == "a" * 32:
                ask_for("b" * 32)
            return []

        def write_report(made: Path) -> None:
            done.append(f"report {gate}")
            for name in ("report.json", "report.html"):
                (made / name).write_text(gate)

        def write_tables() -> None:
            done.append(f"tables {gate}")
            if gate == "b" * 32:
                session.ended.set()

        return job.Concluded("PASS", write_report, write_tables, settle)

    monkeypatch.setattr(job, "run_audit", conclude)
    ask_for("a" * 32)
    session.serve()
    short = [text.replace("a" * 32, "first").replace("b" * 32, "second") for text in done]
    assert short[:4] == ["answer first", "cuts first", "answer second", "report first"]
    assert (tmp_path / ("a" * 32) / "report.html").read_text() == "a" * 32
    assert short[4:] == ["tables first", "cuts second", "report second", "tables second"]
