"""`kmigrate history CLUSTER.yaml`: what runs have done to a cluster, from its journals: phases, restarts and how long each took.

Reads files only, and asks no node. Exit code 0: here it is; 1: no run has left a journal there; 2: the journals could not be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_kmigrate.commands.arguments import add_folder_argument, add_format_argument
from airflow_provider_kmigrate.core.monitoring.journal_lines import parse_lines
from airflow_provider_kmigrate.core.monitoring.run_history import describe_history, render_history
from airflow_provider_kmigrate.exceptions import Failed


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate history", description=(__doc__ or "").replace("\n", " "))
    parser.add_argument("cluster", type=Path, metavar="CLUSTER.yaml")
    add_folder_argument(parser, "default: Airflow's `[kmigrate] folder`")
    add_format_argument(parser)
    options = parser.parse_args(argv)

    from airflow_provider_kmigrate.spec import load  # noqa: PLC0415  # its help must not wait for them
    from airflow_provider_kmigrate.steps.journal import read_journal_lines  # noqa: PLC0415

    spec = load(options.cluster)
    folder = (options.folder or _find_airflow_folder()) / "journal" / spec.name
    try:
        journals = parse_lines(read_journal_lines(folder))
    except OSError as error:
        raise Failed(f"The journals in {folder} cannot be read: {error.strerror}.") from error
    history = describe_history(spec.name, spec.cluster_id, journals)
    sys.stdout.write(f"{json.dumps(history)}\n" if options.output == "json" else render_history(history))
    if not history["runs"]:
        sys.stderr.write(f"There is no journal in {folder}.\n")
        return 1
    return 0


def _find_airflow_folder() -> Path:
    from airflow_provider_kmigrate.utils.step_context import refresh_state  # noqa: PLC0415  # Airflow takes seconds to import

    return refresh_state()
