"""Spark audits the made-up hour, several times in one process: `python -m benchmarks.audit_run MASTER FOLDER RUNS`.

Prints JSON: seconds of the session's start, of each run (the first one is cold), of each question in the first and the last, peak memory of the process and of
Spark's JVM, and what was found against what was planted. Runs in Spark's environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from airflow_provider_kmigrate.audit import session as sessions
from airflow_provider_kmigrate.audit.job import Result, audit_sources
from airflow_provider_kmigrate.audit.request import AuditPolicy
from airflow_provider_kmigrate.audit.session import SparkEngine
from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.ledger import Facts

_FINDINGS = ("lost", "redelivered", "reordered", "commit_gap", "not_owned", "stored_twice", "double_owned", "diverged", "unseen")


def main(master: str, folder: Path, runs: int) -> dict[str, Any]:
    """The figures of `runs` audits of the data in a folder, on one Spark master."""
    began = time.monotonic()
    session = sessions.start_session(master)
    started = round(time.monotonic() - began, 2)
    java = session.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # noqa: SLF001  # no other way to its memory
    source = Source(Level.PRODUCER, ledgers=(str(folder / "events"),))
    seconds, cpu, asked = [], [], []
    for _ in range(runs):
        clock, began, used = _Clocked(SparkEngine(session)), time.monotonic(), _cpu_s()
        result = audit_sources([source], AuditPolicy(max_cases=sys.maxsize), clock)
        seconds.append(round(time.monotonic() - began, 2))
        cpu.append(round(_cpu_s() - used, 2))
        asked.append(clock.asked)
    peak = sum(_peak_mib(process) for process in ("self", str(java)))
    session.stop()
    truth = json.loads((folder / "truth.json").read_text())
    return {
        "session_s": started,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "load": round(os.getloadavg()[0], 1),
        "peak_mib": peak,
        **_against(truth, result),
        "asked_cold": asked[0],
        "asked": asked[-1],
    }


class _Clocked:
    """An engine that notes how long each question took."""

    def __init__(self, engine: SparkEngine) -> None:
        self._engine, self.attach = engine, engine.attach
        self.asked: list[tuple[float, int, str]] = []

    def ask(self, question: str) -> Any:
        """As the engine's, timed."""
        return self._timed(question, self._engine.ask, question)

    def apply_by_key(self, question: str, *how: Any) -> Any:
        """As the engine's, timed."""
        return self._timed(question, self._engine.apply_by_key, question, *how)

    def _timed(self, question: str, act: Callable[..., Any], *arguments: Any) -> Any:
        began = time.monotonic()
        answer = act(*arguments)
        self.asked.append((round(time.monotonic() - began, 2), answer.num_rows, " ".join(question.split())[:70]))
        return answer


def _cpu_s() -> float:
    """Of this process, Spark's JVM and its workers: on a machine with other work it says more than the clock."""
    mine = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in (mine, *mine.children(recursive=True)))


def _peak_mib(process: str) -> int:
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))


def _against(truth: dict[str, Any], result: Result) -> dict[str, Any]:
    """How many planted findings were found, and what was found that was not planted."""
    (audited,) = result.sources
    planted = found = invented = 0
    for name in _FINDINGS:
        wanted, seen = {tuple(case) for case in truth.get(name, ())}, _cases(audited.facts, name)
        planted, found, invented = planted + len(wanted), found + len(wanted & seen), invented + len(seen - wanted)
    return {
        "verdict": result.verdict.outcome.value,
        "complete": audited.facts.complete,
        "records": sum(audited.facts.delivered.values()),
        "partitions": audited.partitions,
        "suspects": audited.suspects,
        "planted": planted,
        "found": found,
        "invented": invented,
        "counts": {name: getattr(audited.facts, name).count for name in _FINDINGS},
    }


def _cases(facts: Facts, name: str) -> set[tuple[Any, ...]]:
    cases = getattr(facts, name).cases
    return {(case.topic, case.partition, case.first, case.count if name == "double_owned" else case.last) for case in cases}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
