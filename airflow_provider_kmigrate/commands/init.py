"""`kmigrate init NAME`: write the first cluster file of a cluster, from what it reports.

Reads only, and writes one new file. What no machine can know (where the controllers go, the full release) is marked with FILL_IN, and
`kmigrate check` names each mark. Exit code 0: the file was written; 1: it exists already, and nothing was written; 2: the cluster could not be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_kmigrate.commands.arguments import parse_cluster_name
from airflow_provider_kmigrate.core.shared.text import count_of, printable
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = _build_parser().parse_args(argv)
    from airflow_provider_kmigrate.clients import atomic  # noqa: PLC0415  # its help must not wait for them
    from airflow_provider_kmigrate.commands.first_reading import read_first_facts  # noqa: PLC0415
    from airflow_provider_kmigrate.core.preflight.first_file import render_first_file  # noqa: PLC0415

    target = options.out or Path(f"{options.name}.yaml")
    try:
        if target.exists() or target.is_symlink():
            raise Failed(f"{target} exists already. Nothing was read or written.")
        facts = read_first_facts(options)
        atomic.create(target, render_first_file(facts).encode(), mode=atomic.ALL_USERS)
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 1 if target.exists() or target.is_symlink() else 2
    brokers = len(facts.brokers)
    sys.stdout.write(f"{target}: written, of cluster {facts.cluster_id} with {count_of(brokers, 'broker')}.\n")
    for broker in facts.brokers:
        sys.stdout.write("".join(f"  broker {broker.id}: {printable(doubt)}\n" for doubt in broker.doubts))
    sys.stdout.write(f"Replace each FILL_IN; `kmigrate check {target}` names those that are left.\n")
    return 0


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kmigrate init", description=" ".join((__doc__ or "").split("\n\n")[:2]))
    parser.add_argument(
        "name", type=parse_cluster_name, metavar="NAME", help="what the cluster will be called: letters, digits, `-`, `_` and `.`"
    )
    parser.add_argument("--zookeeper", required=True, metavar="CONN_ID", help="the Airflow connection to ZooKeeper")
    parser.add_argument("--kafka", required=True, metavar="CONN_ID", help="the Airflow connection to Kafka")
    parser.add_argument(
        "--ssh", default="", metavar="CONN_ID", help="the Airflow SSH connection to the machines; their agents are asked"
    )
    parser.add_argument(
        "--connections",
        type=Path,
        metavar="FILE",
        help="JSON file written by `airflow connections export`; default: Airflow's own",
    )
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="where to write it; default: NAME.yaml")
    return parser
