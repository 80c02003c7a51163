"""`kmigrate why CLUSTER.yaml`: the condition that holds a cluster's migration, how long that usually takes, and when it becomes an alarm.

Reads only. What to do is said only if an operator must act. Exit code 0: nothing holds it, or the wait is usual; 1: an operator must act, or not all was
read; 2: the cluster could not be observed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_kmigrate.commands.arguments import add_connection_arguments, add_format_argument


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate why", description=(__doc__ or "").replace("\n", " "))
    parser.add_argument("cluster", type=Path, metavar="CLUSTER.yaml")
    add_connection_arguments(parser)
    add_format_argument(parser)
    options = parser.parse_args(argv)

    from airflow_provider_kmigrate.commands.explaining import explain_cluster  # noqa: PLC0415  # its help must not wait for it
    from airflow_provider_kmigrate.core.monitoring.explanation import HoldState, render_explanation  # noqa: PLC0415

    explanation = explain_cluster(options.cluster, options.connections, options.folder)
    sys.stdout.write(f"{json.dumps(explanation)}\n" if options.output == "json" else render_explanation(explanation))
    return 1 if HoldState(explanation["state"]).is_alarm else 0
