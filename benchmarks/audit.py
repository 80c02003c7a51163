"""How long Spark's audit of a million polls takes, and whether it finds what was planted and nothing else.

`python -m benchmarks audit [POLLS]`. The work is done in Spark's environment, on two cores. The data is made once and stays in build/:
the same hour with a fault in 1 % of the partitions, and with one in each. Each audit of a DAG is a process of its own: `first_s` is what it
takes, the start of the session and its first audit, whose JVM still compiles. `warm_s` is the second audit of one session, as on a Spark
server that lives on (Spark Connect); `session_s` the start alone; `process_s` a whole process, as the DAG submits it. All three with 1 % of the partitions suspect; `all_` with each of them.
`*_cpu_s` says what the second audit took of processors: beside other work the clock says little. `demo_size_process_first_s` and `_again_s` are
whole processes as the DAG submits them, over as many polls as the demo has: what the first one read of the disk, the second finds in memory.

`lines_s`: a whole process over the same hour as applications write it, in files of lines; `lines_gate_s`: the next one, after a tenth more of them.
`gate_warm_s`: three gates that the audit session of a run answers, over as many lines as the demo has, and `gate_warm_cpu_s`; `standing_cores` and `session_mib`: what the
session takes meanwhile (`benchmarks.audit_session`). `day_…`, `hour24_over_hour1`: 24 gates of a day, which read what came after settled cuts (`benchmarks.audit_day`). `ingest_lines_s`: lines a second that are read, decoded and written, alone; `ingest_mib`: what that takes of memory at most; `ledger_bytes_a_line`.
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

POLLS, DEMO_POLLS, DAY_POLLS, PARTITIONS = 1_000_000, 20_000, 864_000, 1_000
PYTHON = Path(".venv-spark/bin/python")
MUST_BE_ZERO = ("invented", "missed", "day_differs")


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
        **_times("", one_pct),
        **_times("all_", whole),
        "all_one_core_warm_s": one_core["seconds"][1],
        "two_cores_faster": round(one_core["seconds"][1] / whole["seconds"][1], 2),
        "suspects": [run["suspects"] for run in runs],
        "peak_mib": whole["peak_mib"],
        "process_s": _process(few, build / "audit-result"),
        **{f"demo_size_process_{name}_s": _process(small, build / "audit-demo-size-result") for name in ("first", "again")},
        **_lines(few, build / "audit-lines"),
        **_session(small, build / "audit-session"),
        **_day(build / "audit-day"),
        "load": [run["load"] for run in runs],
        "runs": {"suspect_1pct": one_pct, "suspect_all": whole, "suspect_all_one_core": one_core},
    }


def _times(prefix: str, run: dict[str, Any]) -> dict[str, float]:
    cold, warm = run["seconds"]
    times = {"first_s": round(run["session_s"] + cold, 2), "session_s": run["session_s"], "warm_s": warm}
    return {prefix + name: seconds for name, seconds in {**times, "warm_cpu_s": run["cpu_seconds"][1]}.items()}


def _lines(folder: Path, build: Path) -> dict[str, float]:
    """The same hour from lines: the last tenth of each file comes between two audits."""
    shutil.rmtree(build, ignore_errors=True)
    events = build / "events"
    events.mkdir(parents=True)
    rest: dict[Path, bytes] = {}
    for file in sorted((folder / "lines").iterdir()):
        data = file.read_bytes()
        cut = len(data) * 9 // 10
        (events / file.name).write_bytes(data[:cut])
        rest[events / file.name] = data[cut:]
    source = {"level": "L3", "lines": [str(events)], "store": str(build / "store")}
    first = _process(build, build / "result", source)
    for path, data in rest.items():
        with path.open("ab") as more:
            more.write(data)
    rest.clear()
    again = _process(build, build / "result", source)
    command = [PYTHON, "-m", "benchmarks.audit_ingest", str(events), str(build / "alone")]
    done = subprocess.run(command, check=True, timeout=1_800, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {"lines_s": first, "lines_gate_s": again, **figures}


def _session(folder: Path, build: Path) -> dict[str, Any]:
    """The audit session of a run, over lines of the demo's size."""
    command = [PYTHON, "-m", "benchmarks.audit_session", str(folder / "lines"), str(build)]
    done = subprocess.run(command, check=True, timeout=1_800, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _day(folder: Path) -> dict[str, Any]:
    """A day of gates, with a poll of 50 records every ten seconds of each of 100 partitions."""
    command = [PYTHON, "-m", "benchmarks.audit_day", str(folder), str(DAY_POLLS)]
    done = subprocess.run(command, check=True, timeout=7_200, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _data(build: Path, polls: int, faulty: int) -> Path:
    """Made once; a folder that was not finished is made again."""
    folder = build / f"audit-lines-and-polls-{polls}-{faulty}"
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


def _process(folder: Path, result: Path, source: dict[str, Any] | None = None) -> float:
    """Seconds of the job's process, from its start to its end. `source` None: the Parquet in the folder."""
    request = folder / "request.json"
    audited = source or {"level": "L3", "ledgers": [str(folder / "events")]}
    request.write_text(json.dumps({"spark": {"master": "local[2]"}, "sources": [audited]}))
    began = time.monotonic()
    subprocess.run(
        [PYTHON, "-m", "airflow_provider_kmigrate.audit.job", str(request), str(result)],
        check=True,
        timeout=600,
        stdout=subprocess.DEVNULL,
    )
    return round(time.monotonic() - began, 1)
