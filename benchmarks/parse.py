"""What a task pays for its DAG file before it starts: with one cluster file in the folder, and with forty.

`one_file_s`, `forty_files_s`: a process that runs one task of `kmigrate_zk_to_kraft__c0` imports the DAG file and builds that DAG.
`forty_files_all_s`: the DAG processor builds every DAG of forty files. `imports`: modules of this package in the task's process.
All are medians of seconds of CPU, each run in a fresh process that has imported Airflow's task runner before; the kinds alternate.
Nine brokers and three controllers a cluster.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TASK_OF = "kmigrate_zk_to_kraft__c0"
_CLUSTERS = 40
_HOSTS = """\
hosts:
  driver: agent
  properties: /etc/kafka/server.properties
  connect: ssh -T -o BatchMode=yes {host} sudo -n /usr/local/sbin/kmigrate-node serve
"""


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The flat figures of `parse.json`."""
    parser = argparse.ArgumentParser(prog="parse")
    parser.add_argument("--runs", type=int, default=7)
    chosen = parser.parse_args(arguments)
    folders = {count: _written(build / "parse" / f"{count}", count) for count in (1, _CLUSTERS)}
    kinds = {"one_file": (1, _TASK_OF), "forty_files": (_CLUSTERS, _TASK_OF), "forty_files_all": (_CLUSTERS, "")}
    _measured(build / "parse", folders[1], "")  # writes the compiled modules and Airflow's settings
    runs = [
        {kind: _measured(build / "parse", folders[count], dag) for kind, (count, dag) in kinds.items()}
        for _ in range(chosen.runs)
    ]
    figures: dict[str, object] = {f"{kind}_s": statistics.median(run[kind]["seconds"] for run in runs) for kind in kinds}
    ratio = statistics.median(run["forty_files"]["seconds"] / run["one_file"]["seconds"] for run in runs)
    last = runs[-1]
    return figures | {
        "forty_to_one": round(ratio, 2),
        "imports": last["forty_files"]["imports"],
        "dags_all": last["forty_files_all"]["dags"],
        "runs": chosen.runs,
    }


def _written(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        cluster_id = base64.urlsafe_b64encode(hashlib.sha256(str(number).encode()).digest()).decode()[:22]
        brokers = "".join(f"  - {{id: {i}, host: k{number}-{i}}}\n" for i in range(9))
        controllers = "".join(f"  - {{id: {3000 + i}, host: c{number}-{i}, log_dir: /var/lib/kraft}}\n" for i in range(3))
        head = (
            f"name: c{number}\ncluster_id: {cluster_id}\nzookeeper: {{conn_id: zk{number}}}\nkafka: {{conn_id: kafka{number}}}\n"
        )
        (folder / f"c{number}.yaml").write_text(f"{head}{_HOSTS}brokers:\n{brokers}controllers:\n{controllers}")
    return folder


def _measured(home: Path, clusters: Path, dag_id: str) -> dict[str, float]:
    settings = {
        "AIRFLOW_HOME": str((home / "airflow").resolve()),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__KMIGRATE__CLUSTERS_FOLDER": str(clusters.resolve()),
    }
    command = [sys.executable, __file__, *filter(None, [dag_id])]
    inherited = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }  # or each would compile all
    done = subprocess.run(command, env=inherited | settings, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _child(dag_id: str) -> None:
    """In the fresh process: what `airflow.sdk.execution_time.task_runner.parse` does, without a task."""
    from airflow.dag_processing.dagbag import BundleDagBag
    from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager
    from airflow.sdk.execution_time import task_runner  # noqa: F401

    began = time.process_time()
    with _airflow_parsing_context_manager(dag_id=dag_id) if dag_id else nullcontext():
        bag = BundleDagBag(
            dag_folder=str(ROOT / "dags" / "kmigrate_clusters.py"),
            safe_mode=False,
            load_op_links=False,
            bundle_path=ROOT,
            bundle_name="b",
        )
    seconds = time.process_time() - began
    if bag.import_errors or (dag_id or _TASK_OF) not in bag.dags:
        raise SystemExit(f"no {dag_id or _TASK_OF}; {bag.import_errors}")
    ours = sum(name.split(".")[0] == "airflow_provider_kmigrate" for name in sys.modules)
    print(json.dumps({"seconds": round(seconds, 3), "dags": len(bag.dags), "imports": ours}))


if __name__ == "__main__":
    _child("".join(sys.argv[1:]))
