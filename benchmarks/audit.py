"""How long the audit of a hundred million deliveries takes, on Spark and on DuckDB, and whether it finds what was planted.

`python -m benchmarks audit [RECORDS]`. The work is done in Spark's environment, one engine after the other, two threads each. The
data is made once and stays in build/. Not in the figures: the sessions' start, but for `demo_size_process_seconds`, which is a whole
process as the DAG submits it, over as many polls as the demo has.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RECORDS, POLLS, DEMO_POLLS, BROKEN = 100_000_000, 200_000, 20_000, 1_000_000
PYTHON = Path(".venv-spark/bin/python")


def main(arguments: Sequence[str], build: Path) -> dict[str, Any]:
    records = int(arguments[0]) if arguments else RECORDS
    if not PYTHON.exists():
        sys.exit("Spark's environment is missing: make setup-spark")
    hour = _data(build / f"audit-{records}", f"generate(Path(sys.argv[1]), {records})")
    polls = _data(build / "audit-polls", f"generate_polls(Path(sys.argv[1]), {POLLS})")
    small = _data(build / "audit-demo-size", f"generate_polls(Path(sys.argv[1]), {DEMO_POLLS})")
    broken = _data(build / "audit-broken", f"generate(Path(sys.argv[1]), {min(BROKEN, records)}, broken=True)")
    spark, duckdb = _run("spark", hour, 3), _run("duckdb", hour, 3)
    stream = _run("stream", hour, 2)
    spark_polls, spark_broken = _run("spark", polls, 3), _run("spark", broken, 1)
    return {
        "events": records,
        "spark_seconds": min(spark["seconds"][1:]),
        "spark_cold_seconds": spark["seconds"][0],
        "duckdb_seconds": min(duckdb["seconds"][1:]),
        "spark_over_duckdb_ratio": round(min(spark["seconds"][1:]) / min(duckdb["seconds"][1:]), 2),
        "floor_spark_seconds": min(spark["floor_seconds"]),
        "floor_duckdb_seconds": min(duckdb["floor_seconds"]),
        "streaming_ledger_events_per_s": round(stream["events"] / min(stream["seconds"])),
        "peak_mib": spark["peak_mib"],
        "facts_planted": spark["facts_planted"],
        "facts_found": min(spark["facts_found"], duckdb["facts_found"]),
        "facts_invented": max(spark["facts_invented"], duckdb["facts_invented"]),
        "polls": POLLS,
        "polls_seconds": min(spark_polls["seconds"][1:]),
        "demo_size_process_seconds": min(_process(small, build / "audit-demo-size-result") for _ in range(2)),
        "broken_events": min(BROKEN, records),
        "broken_seconds": spark_broken["seconds"][0],
        "runs": {"spark": spark, "duckdb": duckdb, "stream": stream, "spark_polls": spark_polls, "spark_broken": spark_broken},
    }


def _data(folder: Path, call: str) -> Path:
    """Made once; a folder that was not finished is made anew."""
    if not (folder / "truth.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        program = f"import sys; from pathlib import Path; from benchmarks.audit_data import *; {call}"
        subprocess.run([PYTHON, "-c", program, str(folder)], check=True, timeout=1_800)
    return folder


def _run(engine: str, folder: Path, runs: int) -> dict[str, Any]:
    command = [PYTHON, "-m", "benchmarks.audit_run", engine, str(folder), str(runs)]
    done = subprocess.run(command, check=True, timeout=1_800, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _process(folder: Path, result: Path) -> float:
    """Seconds of the job's process, from its start to its end."""
    request = folder / "request.json"
    archive = subprocess.run(
        [PYTHON, "-m", "tests.kit.spark_classes"], check=True, timeout=600, stdout=subprocess.PIPE, text=True
    )
    spark = {"master": "local[2]", "settings": {"spark.driver.extraJavaOptions": archive.stdout.strip()}}
    request.write_text(json.dumps({"spark": spark, "sources": [{"level": "L2", "ledgers": [str(folder / "events")]}]}))
    began = time.monotonic()
    subprocess.run(
        [PYTHON, "-m", "airflow_provider_kmigrate.audit.job", str(request), str(result)],
        check=True,
        timeout=600,
        stdout=subprocess.DEVNULL,
    )
    return round(time.monotonic() - began, 1)
