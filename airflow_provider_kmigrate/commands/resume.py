"""`kmigrate resume CLUSTER`: take the kill switch of a cluster away, Airflow's Variable `kmigrate_stop__CLUSTER`.

It starts nothing: clear the failed task, and it continues. Exit code 0: no kill switch holds the cluster; 1: that of all clusters does; 2: that
is not known.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from airflow_provider_kmigrate.commands.arguments import add_airflow_argument, parse_cluster_name


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate resume", description=(__doc__ or "").replace("\n", " "))
    parser.add_argument("cluster", type=parse_cluster_name, metavar="CLUSTER", help="the name in the cluster file")
    add_airflow_argument(parser)
    options = parser.parse_args(argv)

    from airflow_provider_kmigrate.commands.variables import OF_ALL, open_variables, switch_name  # noqa: PLC0415  # help comes at once
    from airflow_provider_kmigrate.exceptions import KMigrateError  # noqa: PLC0415
    from airflow_provider_kmigrate.masking import mask  # noqa: PLC0415

    name = switch_name(options.cluster)
    try:
        with open_variables(options.airflow_url) as variables:
            said = variables.read(name)
            if said is not None:
                variables.delete(name)
            left, of_all = variables.read(name), variables.read(OF_ALL)
    except KMigrateError as error:
        sys.stderr.write(f"{error} Whether {options.cluster} is paused is not known.\n")
        return 2
    if left is not None:
        sys.stderr.write(f"Airflow still has the Variable {name}: {options.cluster} stays paused.\n")
        return 2
    done = f"is no longer paused (it was: {mask(repr(said))})" if said is not None else "was not paused"
    sys.stdout.write(f"{options.cluster} {done}. Clear the failed task to continue.\n")
    if of_all is not None:
        sys.stderr.write(
            f"The Variable {OF_ALL} holds all clusters ({mask(repr(of_all))}): `airflow variables delete {OF_ALL}`.\n"
        )
        return 1
    return 0
