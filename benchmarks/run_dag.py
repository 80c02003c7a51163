"""Run DAGs of the folder `dags/` to their end with Airflow's own `dag.test`, one after another, in a home of its own.

`python -m benchmarks.run_dag --home H --clusters C --connections F --results R --run '{"dag": ID, "conf": {...}}' ...`; leaves
`<dag>.ready` in the folder R when a DAG can begin, waits for `<dag>.go` there, and in the end `<dag>.json` gets
`{"state": ..., "seconds": ..., "peak_mib": ..., "cpu_s": ..., "tasks": {task id: state}, "phases": [{"name", "seconds"}]}`. A run that
does not succeed is the last one; exit code 0 only where all did.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_POLL_S = 0.05
_GATE_S = 3_000.0  # below the limit of the whole program, whose traceback names no cause


def environment(home: Path, clusters: Path) -> dict[str, str]:
    """What an Airflow of its own needs, as environment variables."""
    return {
        "AIRFLOW_HOME": str(home.resolve()),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "180",  # a machine with a cluster and its load on it
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home.resolve()}/airflow.db",
        "AIRFLOW__KMIGRATE__CLUSTERS_FOLDER": str(clusters.resolve()),
        "AIRFLOW__KMIGRATE__FOLDER": str((home / "kmigrate").resolve()),
    }


def connected(connections: Path) -> dict[str, str]:
    """The connections of a file as environment variables, which need no database."""
    known = json.loads(connections.read_text())
    return {f"AIRFLOW_CONN_{name.upper()}": json.dumps(fields) for name, fields in known.items()}


def run_all(runs: Sequence[Mapping[str, Any]], folder: Path) -> bool:
    """Sync the DAGs to the database, and run each as soon as its go file exists; whether all succeeded."""
    import httpx
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.sdk.execution_time.supervisor import in_process_api_server
    from airflow.utils.db import initdb

    initdb()
    DagBundlesManager().sync_bundles_to_db()
    _read([each["dag"] for each in runs])
    # At the first task Airflow builds its API inside this process, which takes 5 s and is no part of the migration: a scheduler has it.
    with httpx.Client(transport=in_process_api_server().transport, base_url="http://in-process.invalid") as client:
        client.get("/health/ping").raise_for_status()
    return all(_run(each["dag"], each.get("conf", {}), folder) for each in runs)


def _read(dag_ids: Sequence[str]) -> list[Any]:
    """These DAGs as their cluster files are now, in the database too."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    bag = DagBag(dag_folder=os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    missing = [dag_id for dag_id in dag_ids if dag_id not in bag.dags]
    if missing:
        raise SystemExit(f"DAGs that are not there: {missing}; import errors: {bag.import_errors}; found: {sorted(bag.dags)}")
    sync_bag_to_db(bag, "dags-folder", None)
    return [bag.dags[dag_id] for dag_id in dag_ids]


def _run(dag_id: str, conf: Mapping[str, Any], folder: Path) -> bool:
    gate(folder / f"{dag_id}.ready", folder / f"{dag_id}.go")
    (dag,) = _read([dag_id])
    result = measured(dag, conf)
    part = folder / f"{dag_id}.part"
    part.write_text(json.dumps(result, indent=1))
    part.rename(part.with_suffix(".json"))
    return result["state"] == "success"


def measured(dag: Any, conf: Mapping[str, Any]) -> dict[str, object]:
    """Run one DAG in this process, and measure it."""
    began, worked = time.monotonic(), time.process_time()
    dag_run = dag.test(run_conf=dict(conf))
    seconds, cpu = time.monotonic() - began, time.process_time() - worked
    instances = sorted(
        dag_run.get_task_instances(), key=lambda instance: instance.start_date or instance.end_date or dag_run.end_date
    )
    tasks = {instance.task_id: str(instance.state) for instance in instances}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "state": str(dag_run.state),
        "seconds": round(seconds, 3),
        "peak_mib": round(peak, 1),
        "cpu_s": round(cpu, 1),
        "tasks": tasks,
        "phases": phases(instances),
    }


def gate(ready: Path, go: Path, within: float = _GATE_S) -> None:
    """Leave `ready` and wait for `go`, which the starter makes; ends the program if it does not exist `within` so many seconds."""
    ready.touch()
    deadline = time.monotonic() + within
    while not go.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"no process made {go} within {within:g} s: the one that started this is gone; the DAG was not run")
        time.sleep(_POLL_S)


def phases(instances: Iterable[Any]) -> list[dict[str, object]]:
    """Wall time of each task group, or of a task outside all groups, in the order in which they began."""
    spans: dict[str, list[Any]] = {}
    for instance in instances:
        if instance.start_date is not None:
            spans.setdefault(instance.task_id.split(".")[0], []).extend(
                (instance.start_date, instance.end_date or instance.start_date)
            )
    return [{"name": name, "seconds": round((max(times) - min(times)).total_seconds(), 3)} for name, times in spans.items()]


def main() -> int:
    """Run DAGs one after another in this process; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("home", "clusters", "connections", "results"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--run", type=json.loads, action="append", required=True, dest="runs")
    parser.add_argument("--timeout", type=float, default=3600.0)
    arguments = parser.parse_args()
    os.environ.update(environment(arguments.home, arguments.clusters) | connected(arguments.connections))
    faulthandler.dump_traceback_later(arguments.timeout, exit=True)
    return 0 if run_all(arguments.runs, arguments.results) else 1


if __name__ == "__main__":
    sys.exit(main())
