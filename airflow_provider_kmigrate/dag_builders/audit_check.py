"""`kmigrate audit check CLUSTER.yaml`: whether Spark can do the audits of a cluster file, before a migration needs them.

It submits what the migration's tasks submit: with `audit.spark`, Airflow's connections, and the folders of `audit`. Run it where Airflow's workers
run, as their user. Exit code 0: Spark can; 1: something is missing, and it is named; 2: the file cannot be used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.spec import load


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate audit", description=(__doc__ or "").split("\n")[0])
    acts = parser.add_subparsers(required=True, metavar="check")
    check = acts.add_parser(
        "check", help="have Spark do a small audit whose result is known, and read the newest records of the cluster"
    )
    check.add_argument("cluster", type=Path, metavar="CLUSTER.yaml")
    check.add_argument("-o", "--output", choices=("text", "json"), default="text", help="sentences, or one JSON object")
    options = parser.parse_args(argv)
    try:
        spec = load(options.cluster)
    except KMigrateError as error:
        sys.stderr.write(f"{options.cluster}: {error}\n")
        return 2
    if spec.audit is None:
        sys.stderr.write(f"{options.cluster}: it has no section `audit`, so that no audit runs.\n")
        return 2
    # Airflow takes seconds to import
    from airflow_provider_kmigrate.airflow_releases import AirflowFailException  # noqa: PLC0415
    from airflow_provider_kmigrate.dag_builders.audit import check_tasks  # noqa: PLC0415

    done, fault = [], ""
    for task in check_tasks(spec):
        try:
            done.append(_run(task))
        except (AirflowFailException, KMigrateError) as error:
            fault = str(error)
            break
    if options.output == "json":
        sys.stdout.write(f"{json.dumps({'cluster': spec.name, 'done': done, 'fault': fault})}\n")
    else:
        sys.stdout.write("".join(f"{text}\n" for text in (*done, fault) if text))
    return 1 if fault else 0


def _run(task: Any) -> str:
    """Execute a task outside a run of Airflow, which lets only its own runner do that."""
    from airflow.sdk.bases.operator import ExecutorSafeguard  # noqa: PLC0415

    token = ExecutorSafeguard.tracker.set(task)
    try:
        return str(task.execute({}))
    finally:
        ExecutorSafeguard.tracker.reset(token)
