"""`kmigrate permissions CLUSTER.yaml`: the rights that kmigrate's user needs in Kafka, as commands of `kafka-acls.sh`.

Reads the cluster file alone; grants nothing. A user in the brokers' `super.users` needs none of them. Exit code 0: here they are; 2: the cluster file
is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from airflow_provider_kmigrate.commands.arguments import add_format_argument

_ALSO = """\
# Beside Kafka's ACLs:
# - the controllers' listener: the same user in the controllers' super.users, which have no ACLs before the copy
# - ZooKeeper: the identity of the brokers
# - each machine: a line of sudoers for kmigrate-node alone, which `kmigrate node install` writes
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate permissions", description=(__doc__ or "").replace("\n", " "))
    parser.add_argument("cluster", type=Path, metavar="CLUSTER.yaml")
    parser.add_argument(
        "--principal", default="User:kmigrate", help="of kmigrate's user, as brokers know it; default: User:kmigrate"
    )
    parser.add_argument("--expansion", action="store_true", help="also to expand __consumer_offsets")
    add_format_argument(parser)
    options = parser.parse_args(argv)

    from airflow_provider_kmigrate.core.preflight.permissions import list_permissions, render_commands  # noqa: PLC0415
    from airflow_provider_kmigrate.spec import load  # noqa: PLC0415  # its help must not wait for them

    spec = load(options.cluster)
    permissions = list_permissions(spec, expansion=options.expansion)
    if options.output == "json":
        sys.stdout.write(f"{json.dumps([asdict(permission) for permission in permissions])}\n")
        return 0
    bootstrap = f"{spec.brokers[0].host}:{spec.brokers[0].port}"
    for permission, command in zip(permissions, render_commands(permissions, options.principal, bootstrap), strict=True):
        sys.stdout.write(f"# {permission.why}\n{command}\n")
    sys.stdout.write(_ALSO)
    return 0
