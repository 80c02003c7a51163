"""`kmigrate render CLUSTER BACKUP ROLE ID STAGE`: print a node's properties file of a stage.

For a machine that replaces a lost one, whose file cannot be edited any more. CLUSTER is the cluster file, BACKUP the folder
`<folder>/backup/<cluster>_<cluster id>`, ROLE `broker` or `controller`, STAGE zookeeper, migration or kraft, for a controller
migration or final. The file may hold secrets. Ends with 0, or with 1 and the reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.backup import BackupStore, render_file
from airflow_provider_kmigrate.steps.catalog import find_node

_STAGES = {
    NodeRole.BROKER: {"zookeeper": FileStage.ZOOKEEPER, "migration": FileStage.MIGRATION, "kraft": FileStage.KRAFT},
    NodeRole.CONTROLLER: {"migration": FileStage.CONTROLLER_MIGRATION, "final": FileStage.CONTROLLER_FINAL},
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate render", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cluster", type=Path, metavar="CLUSTER", help="the cluster file")
    parser.add_argument("backup", type=Path, metavar="BACKUP", help="<folder>/backup/<cluster>_<cluster id>")
    parser.add_argument("role", choices=[str(role) for role in NodeRole])
    parser.add_argument("id", type=int, metavar="ID", help="the node's id")
    parser.add_argument("stage", choices=sorted({name for stages in _STAGES.values() for name in stages}))
    options = parser.parse_args(argv)
    role = NodeRole(options.role)
    if options.stage not in _STAGES[role]:
        parser.error(f"a {role} has no stage {options.stage}: {', '.join(_STAGES[role])}")
    try:
        spec = load(options.cluster)
        store = BackupStore(options.backup.resolve().parent, spec.name, spec.cluster_id)
        sys.stdout.write(render_file(spec, store, find_node(spec, role, options.id), _STAGES[role][options.stage]))
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
