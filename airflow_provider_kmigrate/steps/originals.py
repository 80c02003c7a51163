"""`python -m airflow_provider_kmigrate.steps.originals BACKUP BROKER FILE`: a broker's original in the backup takes in an edit.

BACKUP is the folder `<folder>/backup/<cluster>_<cluster id>`, FILE the original with the edit made. The one before is kept beside it. Ends
with 0 where it is stored, 1 where it is refused. Looks at no node: its file must have the same edit, by whoever made it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.core.cluster import HostSpec, NodeSpec, Role
from airflow_provider_kmigrate.core.files.config_matrix import Stage, node_id, stage_of
from airflow_provider_kmigrate.core.files.properties import diff, parse
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused
from airflow_provider_kmigrate.steps.backup import BackupStore

_ID = 22  # characters of a cluster id


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m airflow_provider_kmigrate.steps.originals", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("backup", type=Path, metavar="BACKUP", help="<folder>/backup/<cluster>_<cluster id>")
    parser.add_argument("broker", type=int, metavar="BROKER", help="the broker's id")
    parser.add_argument("file", type=Path, metavar="FILE", help="its original, with the edit made")
    chosen = parser.parse_args(argv)
    try:
        sys.stdout.write(take_in(chosen.backup, chosen.broker, chosen.file))
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def take_in(backup: Path, broker: int, file: Path) -> str:
    """Store `file` as the broker's original; which keys changed, in words. Raises `Refused`, and `Failed` where it cannot be read."""
    folder = backup.resolve()
    store = BackupStore(folder.parent, folder.name[: -_ID - 1], folder.name[-_ID:])
    node = NodeSpec(broker, Role.BROKER, "", 0, HostSpec("local", ""))
    old, new = store.original(node), files.read(str(file))
    if new is None or (stage_of(parse(new)), node_id(parse(new))) != (Stage.ZOOKEEPER, node_id(parse(old))):
        raise Refused.because(_no_original(file, broker))
    kept = Path(files.backup_name(str(store.path(node)), old))
    atomic.replace(kept, old.encode(files.ENCODING))
    store.replace_original(node, new)
    changes = "".join(f"    {change}\n" for change in diff(old, new)) or "    nothing but comments or order\n"
    return f"Stored as the original of broker {broker}; the one before is {kept}:\n{changes}"


def _no_original(file: Path, broker: int) -> Reason:
    text = f"{file} is not there, or no original of broker {broker}: that is its file before the migration, with the same id."
    why = "Every later stage, and the way back, are rendered from it."
    return Reason(
        "O04", text, why, "Copy the original from the backup's folder, make your change in the copy, and name the copy."
    )


if __name__ == "__main__":
    sys.exit(main())
