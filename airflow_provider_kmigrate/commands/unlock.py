"""`kmigrate unlock CLUSTER.yaml --run RUN`: free a cluster from a run that is over for good and that Airflow no longer knows (H01).

Without `--run` it only says which run owns the cluster. A process of that run that still lives is refused from then on. Exit code 0: the
cluster is free; 1: another run than RUN owns it, or none was named; 2: ZooKeeper could not be asked.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_kmigrate.commands.arguments import add_connection_arguments


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate unlock", description=(__doc__ or "").replace("\n", " "))
    parser.add_argument("cluster", type=Path, metavar="CLUSTER.yaml")
    parser.add_argument("--run", default="", metavar="RUN", help="the run that owns the cluster, as H01 names it")
    add_connection_arguments(parser)
    options = parser.parse_args(argv)

    from airflow_provider_kmigrate.clients.fence import Fence  # noqa: PLC0415  # help comes at once
    from airflow_provider_kmigrate.commands.reading import open_context  # noqa: PLC0415
    from airflow_provider_kmigrate.core.shared.text import printable  # noqa: PLC0415

    with open_context(options.cluster, options.connections, options.folder) as context:
        fence = Fence(context.tools.zk, context.spec.cluster_id, "kmigrate unlock")
        owner = fence.holder()
        if owner is not None and owner.owner == options.run:
            owner = fence.break_lock(options.run)
    name = context.spec.name
    if owner is None:
        sys.stdout.write(f"No run owns {name}.\n")
        return 0
    if owner.owner == options.run:
        sys.stdout.write(f"{name} is free. A process of {printable(owner.owner)} that still lives is refused.\n")
        return 0
    run = printable(owner.owner)  # of a znode: it is pasted into a shell
    sys.stdout.write(
        f"{name} is owned by {run}. Make sure that it is over, then: {shlex.join(('kmigrate', 'unlock', str(options.cluster)))} --run {shlex.quote(run)}\n"
    )
    return 1
