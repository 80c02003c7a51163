"""One engine audits the made-up hour, several times in one process: `python -m benchmarks.audit_run ENGINE FOLDER RUNS`.

Prints JSON: seconds of each run (the first one is cold), of each question in the first and the last, of a bare group-by over the
same records (the floor of this machine), peak memory of the process and of Spark's JVM, and what was found against what was planted.
ENGINE `stream`: seconds in which Spark takes all records in as a stream, its state included. Runs in Spark's environment; sessions
start before the clock does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.audit.job import Result, run
from airflow_provider_kmigrate.audit.policy import Policy
from airflow_provider_kmigrate.audit.sources.source import RecordTables, Source
from airflow_provider_kmigrate.core.audit.verdict import Level

THREADS = 2


FLOOR = "SELECT part, tid, count(*) AS n, CAST(sum(pos) AS BIGINT) AS total FROM records GROUP BY part, tid"


def main(name: str, folder: Path, runs: int) -> dict[str, Any]:
    return _stream(folder, runs) if name == "stream" else _audits(name, folder, runs)


def _audits(name: str, folder: Path, runs: int) -> dict[str, Any]:
    with _engine(name) as (engine, processes):
        source = _source(folder)
        seconds, asked = [], []
        for _ in range(runs):
            clock = _Clocked(engine)
            began = time.monotonic()
            run([source], Policy(), clock)
            seconds.append(round(time.monotonic() - began, 2))
            asked.append(clock.asked)
        floor = _floor(engine, runs) if source.records else []
        peak = sum(_peak_mib(process) for process in processes)
        result = run([source], Policy(max_cases=sys.maxsize), engine)  # once more, and every case is kept
    truth = json.loads((folder / "truth.json").read_text())
    questions = {"asked_cold": asked[0], "asked": asked[-1]}
    return {"seconds": seconds, "floor_seconds": floor, "peak_mib": peak, **_against(truth, result), **questions}


def _floor(engine: Engine, runs: int) -> list[float]:
    clock = _Clocked(engine)
    for _ in range(runs):
        clock.ask(FLOOR)
    return [seconds for seconds, *_ in clock.asked]


def _stream(folder: Path, runs: int) -> dict[str, Any]:
    from airflow_provider_kmigrate.audit import session as sessions
    from airflow_provider_kmigrate.audit.sources import arriving
    from tests.kit import spark_classes

    session, seconds, rows = sessions.start(f"local[{THREADS}]", settings=spark_classes.settings()), [], 0
    for _ in range(runs):
        with TemporaryDirectory(dir=folder.parent) as kept:
            began = time.monotonic()
            arriving.catch_up(session, str(folder / "records"), kept, files_per_batch=2)
            seconds.append(round(time.monotonic() - began, 2))
            rows = sum(arriving.chains(session, kept)["total"].to_pylist())
    session.stop()
    return {"seconds": seconds, "events": rows}


class _Clocked:
    """An engine that notes how long each question took."""

    def __init__(self, engine: Engine) -> None:
        self.name, self._engine, self.attach = engine.name, engine, engine.attach
        self.asked: list[tuple[float, int, str]] = []

    def ask(self, question: str) -> Any:
        began = time.monotonic()
        answer = self._engine.ask(question)
        self.asked.append((round(time.monotonic() - began, 2), answer.num_rows, " ".join(question.split())[:70]))
        return answer


@contextmanager
def _engine(name: str) -> Iterator[tuple[Engine, list[str]]]:
    """The engine, and the processes that it lives in."""
    if name == "duckdb":
        from airflow_provider_kmigrate.audit.engines.duckdb_engine import DuckDBEngine

        with DuckDBEngine(threads=THREADS) as engine:
            yield engine, ["self"]
        return
    from airflow_provider_kmigrate.audit import session as sessions
    from airflow_provider_kmigrate.audit.engines.spark_engine import SparkEngine
    from tests.kit import spark_classes

    session = sessions.start(f"local[{THREADS}]", settings=spark_classes.settings())
    java = session.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # noqa: SLF001  # no other way to its memory
    yield SparkEngine(session), ["self", str(java)]
    session.stop()


def _source(folder: Path) -> Source:
    tables = RecordTables(*(str(folder / name) for name in ("records", "log", "names")))
    single = tables if (folder / "records").is_dir() else None
    return Source(Level.CONSUMER, ledgers=(str(folder / "events"),), records=single)


def _peak_mib(process: str) -> int:
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))


def _against(truth: dict[str, Any], result: Result) -> dict[str, Any]:
    """How many planted findings were found, and what was found that nobody planted."""
    (audited,) = result.sources
    planted = found = invented = 0
    for name in ("lost", "redelivered", "reordered", "double_owned"):
        wanted = {tuple(case) for case in truth[name]}
        cases = getattr(audited.facts, name).cases
        seen = {(c.topic, c.partition, c.first, c.count if name == "double_owned" else c.last) for c in cases}
        planted, found, invented = planted + len(wanted), found + len(wanted & seen), invented + len(seen - wanted)
    not_owned = sum(ground.count for ground in audited.grounds if ground.reason.code == "A09")
    unplanted = {name: item.count for name, item in audited.facts.violations.items() if name not in truth}
    return {
        "verdict": result.verdict.outcome.value,
        "complete": audited.facts.complete,
        "delivered": sum(audited.facts.delivered.values()),
        "facts_planted": planted + (truth["not_owned"] > 0),
        "facts_found": found + (not_owned == truth["not_owned"] > 0),
        "facts_invented": invented + len(unplanted) + (not_owned > truth["not_owned"]),
        "counts": {name: item.count for name, item in audited.facts.violations.items()} | {"not_owned": not_owned},
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
