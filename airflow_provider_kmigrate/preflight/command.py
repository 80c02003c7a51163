"""`kmigrate preflight CLUSTER.yaml --connections FILE`: may this cluster be migrated? Without Airflow.

Exit code 0: nothing blocks; 1: a blocker; 2: the observation failed. Reads only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.clients.connections import lookup_in, read_connections, settings_for
from airflow_provider_kmigrate.clients.fence import ReadOnlyFence
from airflow_provider_kmigrate.clients.tools import opened
from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.observe import Observer
from airflow_provider_kmigrate.preflight.page import PreflightOutcome, as_document, outcome_of, write
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.backup import BackupStore
from airflow_provider_kmigrate.steps.journal import NoJournal
from airflow_provider_kmigrate.steps.prepare import Preflight, observe_preflight
from airflow_provider_kmigrate.steps.run import StepContext


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate preflight", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cluster", type=Path, metavar="CLUSTER.yaml")
    parser.add_argument("--connections", type=Path, required=True, help="JSON file written by `airflow connections export`")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write preflight.html and preflight.json there")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="sentences, or one JSON object")
    chosen = parser.parse_args(argv)
    try:
        result = read_preflight(load(chosen.cluster), read_connections(chosen.connections))
        if chosen.out:
            write(result, chosen.out)
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(as_document(result), indent=1) + "\n" if chosen.output == "json" else _sentences(result))
    return 1 if outcome_of(result.found) is PreflightOutcome.BLOCKED else 0


def read_preflight(spec: ClusterSpec, connections: Mapping[str, Any]) -> Preflight:
    """One preflight through connections that are not Airflow's. Raises as `settings_for` and `Observer.observe`."""
    with opened(settings_for(spec, lookup_in(connections, spec))) as tools, Observer(spec, tools) as observer:
        backup = BackupStore(Path(), spec.name, spec.cluster_id)  # never written to
        return observe_preflight(StepContext(spec, observer, tools, ReadOnlyFence(), NoJournal(), backup, lambda _: None))


def _sentences(result: Preflight) -> str:
    found = result.found
    counts = ", ".join(f"{sum(each.severity is severity for each in found)} {severity}" for severity in Severity)
    return "".join(f"{finding}\n" for finding in found) + f"{outcome_of(found)}: {counts}; {result.took:.1f} s\n"
