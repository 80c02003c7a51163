"""`kmigrate status CLUSTER.yaml ...`: where clusters stand, whether they can be rolled back, and what to do.

Reads only. Several cluster files give one line each. With `--airflow-url` it observes nothing: it reads what the tasks of kmigrate have stored
in Airflow, with the token in AIRFLOW_CLI_TOKEN, and the words are names of clusters, or `--all`. Exit code 0: no action required; 1: an operator
must act, no run continues a migration, or not all was read; 2: a cluster could not be observed, or Airflow not be read.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.commands.arguments import add_connection_arguments
from airflow_provider_kmigrate.commands.reading import open_context
from airflow_provider_kmigrate.core.monitoring.status import is_well, render_row, render_status
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.steps.run import StepContext
from airflow_provider_kmigrate.steps.status import describe_assessment
from airflow_provider_kmigrate.steps.waits import assess_readiness, find_causes

_AT_ONCE = 8  # clusters; each asks all its nodes at once
_EVERY_S = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate status", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("clusters", type=Path, nargs="*", metavar="CLUSTER.yaml", help="with --airflow-url: names of clusters")
    add_connection_arguments(parser)
    parser.add_argument(
        "--airflow-url",
        metavar="URL",
        help="read what tasks have stored in this Airflow, by its REST API, with the token in AIRFLOW_CLI_TOKEN",
    )
    parser.add_argument("--all", action="store_true", help="with --airflow-url: every cluster whose DAGs you may read")
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="sentences, or one JSON object a cluster"
    )
    parser.add_argument("-w", "--watch", action="store_true", help=f"again every {_EVERY_S:g} s, until interrupted")
    options = parser.parse_args(argv)
    if options.all and not options.airflow_url:
        parser.error("--all goes with --airflow-url")
    if bool(options.clusters) == options.all:
        parser.error("name the clusters, or read --all of an Airflow")
    if options.airflow_url and (files := [path for path in options.clusters if path.suffix in {".yaml", ".yml"}]):
        parser.error(f"with --airflow-url name the cluster, not its file: {files[0].stem}, not {files[0]}")
    code = 0
    try:
        while True:
            code = _show_stored(options) if options.airflow_url else _show(options)
            if not options.watch:
                return code
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        return code


def _show(options: argparse.Namespace) -> int:
    """Observe every cluster and print it; returns the exit code."""
    observe = partial(_observe, connections=options.connections, folder=options.folder)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        started = [threads.submit(copy_context().run, observe, path) for path in options.clusters]
        outcomes = [outcome.result() for outcome in started]
    render: Callable[[dict[str, Any]], str] = (
        render_status if len(outcomes) == 1 else lambda document: f"{render_row(document)}\n"
    )
    for path, outcome in zip(options.clusters, outcomes, strict=True):
        if isinstance(outcome, KMigrateError):
            sys.stderr.write(f"{outcome}\n" if str(outcome).startswith(f"{path}: ") else f"{path}: {outcome}\n")
        else:
            sys.stdout.write(f"{json.dumps(outcome)}\n" if options.output == "json" else render(outcome))
    sys.stdout.flush()
    if any(isinstance(outcome, KMigrateError) for outcome in outcomes):
        return 2
    return 0 if all(is_well(outcome) for outcome in outcomes if isinstance(outcome, dict)) else 1


def _show_stored(options: argparse.Namespace) -> int:
    """Print what tasks have stored in Airflow; returns the exit code."""
    from airflow_provider_kmigrate.pages.rest import read_statuses  # noqa: PLC0415  # only what asks Airflow pays for its client
    from airflow_provider_kmigrate.pages.text import render_cluster, render_table, to_json  # noqa: PLC0415

    try:
        answer = read_statuses(options.airflow_url, [str(name) for name in options.clusters])
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.output == "json":
        sys.stdout.write("".join(f"{json.dumps(to_json(status))}\n" for status in answer.clusters))
    else:
        alone = len(answer.clusters) == 1 and not options.all
        sys.stdout.write(render_cluster(answer.clusters[0]) if alone else render_table(answer.clusters))
    sys.stderr.write("".join(f"{printable(note)}\n" for note in answer.notes))
    sys.stdout.flush()
    return 0 if answer.clusters and not answer.notes and all(status.light == "well" for status in answer.clusters) else 1


def _observe(path: Path, connections: Path | None, folder: Path | None) -> dict[str, Any] | KMigrateError:
    try:
        with open_context(path, connections, folder) as context:
            return read_status(context)
    except KMigrateError as error:
        return error


def read_status(context: StepContext) -> dict[str, Any]:
    """The status of one cluster (`core.monitoring.status`), from one assessment."""
    assessment = assess_readiness(context)
    return describe_assessment(context, assessment, find_causes(context.spec, assessment).roots)
