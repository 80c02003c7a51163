"""`kmigrate pause CLUSTER --why TEXT`: stop every act of kmigrate on a cluster, by its kill switch: the next act of any run fails with H05.

A restart that has begun ends as it would. The switch is Airflow's Variable `kmigrate_stop__CLUSTER`. Exit code 0: it is on; 2: that is not
certain.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from airflow_provider_kmigrate.commands.arguments import add_airflow_argument, parse_cluster_name


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate pause", description=(__doc__ or "").replace("\n", " "))
    parser.add_argument("cluster", type=parse_cluster_name, metavar="CLUSTER", help="the name in the cluster file")
    parser.add_argument("--why", required=True, metavar="TEXT", help="shown by each task that is refused")
    add_airflow_argument(parser)
    options = parser.parse_args(argv)

    from airflow_provider_kmigrate.clients.local_user import read_user_name  # noqa: PLC0415
    from airflow_provider_kmigrate.commands.variables import open_variables, switch_name  # noqa: PLC0415  # help comes at once
    from airflow_provider_kmigrate.exceptions import KMigrateError  # noqa: PLC0415
    from airflow_provider_kmigrate.masking import mask  # noqa: PLC0415

    name, text = switch_name(options.cluster), f"{read_user_name()}: {options.why}"
    try:
        with open_variables(options.airflow_url) as variables:
            if (earlier := variables.read(name)) is None:
                variables.write(name, text)
            shown = variables.read(name)
    except KMigrateError as error:
        sys.stderr.write(f"{error} Whether {options.cluster} is paused is not known.\n")
        return 2
    if shown is None:
        sys.stderr.write(f"Airflow took the Variable {name}, and does not show it: {options.cluster} is not paused.\n")
        return 2
    begun = "was paused before" if earlier is not None else "is paused: the next act of any run fails with H05"
    sys.stdout.write(
        f"{options.cluster} {begun} ({mask(repr(shown))}). A restart that has begun ends first. kmigrate resume {options.cluster}\n"
    )
    return 0
