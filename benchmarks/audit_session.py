"""What a run's audit session costs and how soon it answers: `python -m benchmarks.audit_session EVENTS FOLDER`. Runs in Spark's environment.

Prints JSON: seconds until it has practised; of the report that comes after each answer, too; of each of three gates, the first two with half of the lines that `EVENTS` holds, the seconds and those of
processors; what it takes between gates, of one core, while 290 lines a second come (500 records/s of the demo's mix); memory of all its processes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from airflow_provider_kmigrate.audit.run_session import PRACTICES
from airflow_provider_kmigrate.clients.audit_session import SessionFolder, SessionLimits, ask_session, new_key, read_answer_file
from airflow_provider_kmigrate.core.audit.session_messages import SessionLease
from airflow_provider_kmigrate.core.audit.spark_words import SESSION_JAVA
from tests.kit import spark_classes

_LINES_A_SECOND, _WATCHED_S = 290, 60.0
_PRACTISED_S = 600.0
_OF_RUN = ("cluster", "run")


def main(events: Path, folder: Path) -> dict[str, Any]:
    """The figures of one session."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "events").mkdir(parents=True)
    rest = _copy_half(events, folder / "events")
    source = {"level": "L3", "lines": [str(folder / "events")], "store": str(folder / "store")}
    session, key = SessionFolder(folder / "session"), new_key(*_OF_RUN)
    session.write("lease.json", SessionLease(key, 0))
    java = {spark_classes.OPTIONS: f"{SESSION_JAVA} {spark_classes.option()}"}  # as the session's task has it
    spark = {"master": "local[2]", "settings": {"spark.ui.showConsoleProgress": "false", **java}}
    start = {
        "key": {"cluster_id": "cluster", "run": "run", "token": key.token},
        "results": str(folder),
        "idle_s": 3_600,
        "lease_s": 60,
    }
    (session.folder / "session.json").write_text(json.dumps({**start, "request": {"spark": spark, "sources": [source]}}))
    done = threading.Event()
    threading.Thread(target=_renew, args=(session, SessionLease(key, 0), done), daemon=True).start()
    began = time.monotonic()
    command = [sys.executable, "-m", "airflow_provider_kmigrate.audit.run_session", str(session.folder)]
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": "--driver-memory 1g pyspark-shell"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(PRACTICES):
            next(line for line in process.stdout if line.startswith("practised"))
        ready_s = round(time.monotonic() - began, 1)
        gates, reports = [_gate(session, process.pid, source, folder / "one")], [_wait_for_report(process.pid, folder / "one")]
        gates.append(_gate(session, process.pid, source, folder / "two"))
        reports.append(_wait_for_report(process.pid, folder / "two"))
        cores = _standing_cores(process.pid, folder / "events", rest)
        for name, lines in rest.items():
            with (folder / "events" / name).open("ab") as file:
                file.writelines(lines)
        gates.append(_gate(session, process.pid, source, folder / "three"))
        reports.append(_wait_for_report(process.pid, folder / "three"))
        mib = {member.pid: f"{member.name()} {member.memory_info().rss >> 20}" for member in _family(process.pid)}
        done.set()
        session.write("lease.json", SessionLease(key, 0, ended=True))
        process.wait(60)
    return {
        "session_ready_s": ready_s,
        "gate_warm_s": [seconds for seconds, _ in gates],
        "gate_warm_cpu_s": [cpu for _, cpu in gates],
        "report_s": [seconds for seconds, _ in reports],
        "report_cpu_s": [cpu for _, cpu in reports],
        "standing_cores": cores,
        "session_mib": sum(int(text.split()[1]) for text in mib.values()),
        "session_mib_each": list(mib.values()),
        "load": round(os.getloadavg()[0], 1),
    }


def _copy_half(events: Path, target: Path) -> dict[str, list[bytes]]:
    """The first half of each file's lines; returns the others."""
    rest = {}
    for file in sorted(events.iterdir()):
        lines = file.read_bytes().splitlines(keepends=True)
        (target / file.name).write_bytes(b"".join(lines[: len(lines) // 2]))
        rest[file.name] = lines[len(lines) // 2 :]
    return rest


def _renew(session: SessionFolder, lease: SessionLease, done: threading.Event) -> None:
    beat = 0
    while not done.wait(2.0):
        beat += 1
        session.write("lease.json", SessionLease(lease.key, beat))


def _gate(session: SessionFolder, pid: int, source: dict[str, Any], result: Path) -> tuple[float, float]:
    result.mkdir()
    began, used = time.monotonic(), _cpu_s(pid)
    document = {"sources": [source], "report": {"cluster": "benchmark"}}
    request = {"program": "job", "document": document, "folder": str(result)}
    with ask_session(session, _OF_RUN, request, SessionLimits(), sys.stderr.write) as answer:
        if answer is None or answer.code:
            raise SystemExit(f"the session gave no result: {answer}")
        (result / "verdict.json").write_bytes(read_answer_file(result, answer, "verdict.json"))
        return round(time.monotonic() - began, 1), round(_cpu_s(pid) - used, 1)


def _wait_for_report(pid: int, result: Path) -> tuple[float, float]:
    """Seconds and processors' seconds from a gate's answer to its report."""
    began, used = time.monotonic(), _cpu_s(pid)
    while not (result / "report.html").exists() and time.monotonic() < began + _PRACTISED_S:
        time.sleep(0.05)
    return round(time.monotonic() - began, 1), round(_cpu_s(pid) - used, 1)


def _standing_cores(pid: int, events: Path, rest: dict[str, list[bytes]]) -> float:
    """The processors that it takes while lines come, on average; without idle Python workers that end meanwhile."""
    members, began = [(member, sum(member.cpu_times()[:2])) for member in _family(pid)], time.monotonic()
    while (passed := time.monotonic() - began) < _WATCHED_S:
        for name, lines in rest.items():
            few = [lines.pop(0) for _ in range(min(len(lines), max(1, _LINES_A_SECOND // len(rest))))]
            with (events / name).open("ab") as file:
                file.writelines(few)
        time.sleep(max(0.0, 1.0 - (time.monotonic() - began - passed)))
    taken = sum(sum(member.cpu_times()[:2]) - used for member, used in members if member.is_running())
    return round(taken / (time.monotonic() - began), 3)


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _cpu_s(pid: int) -> float:
    """Of all of them, and of Python workers that have ended meanwhile."""
    return float(sum(sum(member.cpu_times()[:4]) for member in _family(pid)))


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
