"""How long Spark's audit of a million polls takes, and whether it finds what was planted and nothing else.

`python -m benchmarks audit [POLLS]`. The work is done in Spark's environment, on two cores. The data is made once and stays in build/:
the same hour with a fault in 1 % of the partitions, and with one in each. The keys `suspect_*_s` are of the second audit of a session,
`*_cold_s` of its first, whose JVM still compiles; the sessions' start is not in them, but in `demo_size_process_s`, which is a whole process
as the DAG submits it, over as many polls as the demo has. `*_cpu_s` says what the second audit took of processors: beside other work the
clock says little.
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

POLLS, DEMO_POLLS, PARTITIONS = 1_000_000, 20_000, 1_000
PYTHON = Path(".venv-spark/bin/python")
MUST_BE_ZERO = ("invented", "missed")


def main(arguments: Sequence[str], build: Path) -> dict[str, Any]:
    """The figures; `arguments`: polls of the large history."""
    polls = int(arguments[0]) if arguments else POLLS
    if not PYTHON.exists():
        sys.exit("Spark's environment is missing: make setup-spark")
    few, every = _data(build, polls, PARTITIONS // 100), _data(build, polls, PARTITIONS)
    small = _data(build, DEMO_POLLS, PARTITIONS // 100)
    one_pct, whole, one_core = _run("local[2]", few, 2), _run("local[2]", every, 2), _run("local[1]", every, 2)
    runs = (one_pct, whole, one_core)
    return {
        "polls": polls,
        "records": min(run["records"] for run in runs),
        "planted": sum(run["planted"] for run in runs),
        "found": sum(run["found"] for run in runs),
        "missed": sum(run["planted"] - run["found"] for run in runs),
        "invented": sum(run["invented"] for run in runs),
        "suspect_1pct_s": one_pct["seconds"][1],
        "suspect_1pct_cold_s": one_pct["seconds"][0],
        "suspect_1pct_cpu_s": one_pct["cpu_seconds"][1],
        "suspect_all_s": whole["seconds"][1],
        "suspect_all_cold_s": whole["seconds"][0],
        "suspect_all_cpu_s": whole["cpu_seconds"][1],
        "suspect_all_one_core_s": one_core["seconds"][1],
        "two_cores_faster": round(one_core["seconds"][1] / whole["seconds"][1], 2),
        "suspects": [run["suspects"] for run in runs],
        "peak_mib": whole["peak_mib"],
        "demo_size_process_s": min(_process(small, build / "audit-demo-size-result") for _ in range(2)),
        "load": [run["load"] for run in runs],
        "runs": {"suspect_1pct": one_pct, "suspect_all": whole, "suspect_all_one_core": one_core},
    }


def _data(build: Path, polls: int, faulty: int) -> Path:
    """Made once; a folder that was not finished is made again."""
    folder = build / f"audit-polls-{polls}-{faulty}"
    if not (folder / "truth.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        program = f"import sys; from pathlib import Path; from benchmarks.audit_data import *; generate(Path(sys.argv[1]), {polls}, {faulty})"
        subprocess.run([PYTHON, "-c", program, str(folder)], check=True, timeout=1_800)
    return folder


def _run(master: str, folder: Path, runs: int) -> dict[str, Any]:
    command = [PYTHON, "-m", "benchmarks.audit_run", master, str(folder), str(runs)]
    done = subprocess.run(command, check=True, timeout=1_800, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _process(folder: Path, result: Path) -> float:
    """Seconds of the job's process, from its start to its end."""
    request = folder / "request.json"
    request.write_text(
        json.dumps({"spark": {"master": "local[2]"}, "sources": [{"level": "L3", "ledgers": [str(folder / "events")]}]})
    )
    began = time.monotonic()
    subprocess.run(
        [PYTHON, "-m", "airflow_provider_kmigrate.audit.job", str(request), str(result)],
        check=True,
        timeout=600,
        stdout=subprocess.DEVNULL,
    )
    return round(time.monotonic() - began, 1)
