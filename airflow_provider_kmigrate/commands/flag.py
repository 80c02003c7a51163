"""`kmigrate flag return CLUSTER CONTROLLER --airflow-url URL`: have Airflow give a controller its migration flag back, in the run of the migration.

It clears the controller's task `controllers.provision_CONTROLLER`, which writes the file with the flag and restarts the controller if
the cluster allows it. It touches no node itself. Exit code 0: the task is cleared; 1: there is no run, or no such task; 2: Airflow did not do it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from airflow_provider_kmigrate.commands.arguments import add_airflow_argument, parse_cluster_name


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate flag", description=(__doc__ or "").replace("\n", " "))
    parser.add_argument("act", choices=("return",))
    parser.add_argument("cluster", type=parse_cluster_name, metavar="CLUSTER", help="the name in the cluster file")
    parser.add_argument("controller", type=int, metavar="CONTROLLER", help="its node id")
    add_airflow_argument(parser, required=True)
    options = parser.parse_args(argv)

    from airflow_provider_kmigrate.exceptions import Failed, KMigrateError  # noqa: PLC0415  # help comes at once
    from airflow_provider_kmigrate.pages.rest import clear_newest_task, open_client  # noqa: PLC0415

    dag, task = f"kmigrate_zk_to_kraft__{options.cluster}", f"controllers.provision_{options.controller}"
    is_asked = False
    try:
        with open_client(options.airflow_url) as client:
            is_asked = True
            run = clear_newest_task(client, dag, task)
    except KMigrateError as error:
        sys.stderr.write(f"{error} Nothing was cleared.\n")
        return 1 if is_asked and isinstance(error, Failed) else 2
    sys.stdout.write(f"Airflow runs {task} of {run} again. Wait until G05 is gone before anything else restarts.\n")
    return 0
