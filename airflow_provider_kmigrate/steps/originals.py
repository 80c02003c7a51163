"""`kmigrate originals BACKUP BROKER [FILE]`: store an edited original of a broker.

BACKUP is the folder `<folder>/backup/<cluster>_<cluster id>`, FILE the edited original; without it an editor opens on a copy. The
previous original is kept beside it. With `--lost` FILE is the first original of a backup that is gone. Ends with 0 if it is stored, 1
if it is refused. No node is contacted: the operator must make the same edit in the node's file. Run it as Airflow's user, who owns
these files.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.core.cluster import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.files.config_matrix import FileStage, node_id, stage_of
from airflow_provider_kmigrate.core.files.properties import diff, parse
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused
from airflow_provider_kmigrate.steps.backup import BackupStore

_ID = 22  # characters of a cluster id


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    chosen = _parser().parse_intermixed_args(argv)
    try:
        _refuse_other_user(chosen.backup)
        store, node = _store(chosen.backup), NodeSpec(chosen.broker, NodeRole.BROKER, "", 0, HostSpec("agent"))
        if chosen.lost:
            text = store_first(store, node, chosen.file, chosen.metadata_version)
        elif chosen.file is not None:
            text = store_edit(store, node, chosen.file)
        else:
            with _edited(store.original(node)) as copy:
                text = store_edit(store, node, copy)
        sys.stdout.write(text)
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kmigrate originals", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("backup", type=Path, metavar="BACKUP", help="<folder>/backup/<cluster>_<cluster id>")
    parser.add_argument("broker", type=int, metavar="BROKER", help="the broker's id")
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help="its edited original; without it $EDITOR opens")
    parser.add_argument("--lost", action="store_true", help="the backup is lost, and FILE is the new first original")
    parser.add_argument(
        "--metadata-version", metavar="V", help="with --lost: what `kafka-features.sh describe` shows, such as 3.9-IV0"
    )
    return parser


def store_edit(store: BackupStore, node: NodeSpec, file: Path) -> str:
    """Store `file` as the broker's original; returns a text with the changed keys. Raises `Refused`, and `Failed` if it is unreadable."""
    old = store.original(node)
    new = _original(node, file, node_id(parse(old)))
    if new == old:
        return f"This is already the original of broker {node.id}; nothing was changed.\n"
    kept = Path(f"{store.path(node)}.{files.sha256(old)[:12]}.bak")
    atomic.replace(kept, old.encode(files.ENCODING))
    store.replace_original(node, new)
    changes = "".join(f"    {change}\n" for change in diff(old, new)) or "    only comments or order\n"
    return f"Stored as the original of broker {node.id}; the previous one is {kept}:\n{changes}"


def store_first(store: BackupStore, node: NodeSpec, file: Path | None, version: str | None) -> str:
    """Store `file` as the broker's first original, with the metadata version if given. Raises `Refused` if an original exists."""
    if file is None or store.path(node).exists():
        text = f"{store.path(node)} exists already, or FILE is missing. Omit --lost to store an edit, or name the file."
        raise Refused.because(Reason("O01", text))
    new = _original(node, file, node.id)
    if version is not None:
        store.keep_version(version)
    digest = store.replace_original(node, new)
    return f"Stored as the original of broker {node.id} in {store.folder}, SHA-256 {digest}.\n"


def _store(backup: Path) -> BackupStore:
    folder = backup.resolve()
    if folder.name[-_ID - 1 : -_ID] != "_":
        raise Refused.because(Reason("O01", f"{folder} is not a backup folder. Name <folder>/backup/<cluster>_<cluster id>."))
    return BackupStore(folder.parent, folder.name[: -_ID - 1], folder.name[-_ID:])


def _original(node: NodeSpec, file: Path, expected: int | None) -> str:
    new = files.read(str(file))
    if new is None or (stage_of(parse(new)), node_id(parse(new))) != (FileStage.ZOOKEEPER, expected):
        text = (
            f"{file} does not exist, or is not the original of broker {node.id}: its file before the migration, with the same id."
        )
        raise Refused.because(Reason("O01", text))
    return new


@contextmanager
def _edited(original: str) -> Iterator[Path]:
    """A private copy for the operator to edit; deleted afterwards, because it may hold secrets."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "original.properties"
        atomic.replace(copy, original.encode(files.ENCODING))
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        subprocess.run([*shlex.split(editor), str(copy)], check=False)
        yield copy


def _refuse_other_user(backup: Path) -> None:
    """Refuse to run as another user: Airflow's user could not read root's files, and every later task would fail."""
    owner = next(place for place in (backup.resolve(), *backup.resolve().parents) if place.exists()).stat().st_uid
    if owner == os.geteuid():
        return
    text = f"{backup} belongs to user {_name(owner)}, but this process runs as {_name(os.geteuid())}."
    raise Refused.because(Reason("O05", f"{text} Run it as that user: sudo -u {_name(owner)} ..."))


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"
