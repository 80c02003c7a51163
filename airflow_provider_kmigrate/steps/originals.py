"""`kmigrate originals BACKUP BROKER [FILE]`: store an edited original of a broker. What its node has now: `kmigrate node accept`.

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
from airflow_provider_kmigrate.clients.object_log import refuse_copy
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, read_node_id, stage_of
from airflow_provider_kmigrate.core.node_files.properties import (
    compare_properties,
    diff_properties,
    edit_properties,
    parse_properties,
)
from airflow_provider_kmigrate.core.shared.text import summarize
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused
from airflow_provider_kmigrate.steps.backup import BackupStore, find_edits, render_from

_ID = 22  # characters of a cluster id


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = _build_parser().parse_intermixed_args(argv)
    try:
        refuse_other_user(options.backup)
        store, node = _open_store(options.backup), NodeSpec(options.broker, NodeRole.BROKER, "", 0, HostSpec("agent"))
        if options.lost:
            text = store_first(store, node, options.file, options.metadata_version)
        elif options.file is not None:
            text = store_edit(store, node, options.file)
        else:
            with _edit_copy(store.read_original(node)) as copy:
                text = store_edit(store, node, copy)
        sys.stdout.write(text)
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _build_parser() -> argparse.ArgumentParser:
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
    old = store.read_original(node)
    new = _read_original(node, file, read_node_id(parse_properties(old)))
    if new == old:
        return f"This is already the original of broker {node.id}; nothing was changed.\n"
    return replace_original(store, node, old, new)


def replace_original(store: BackupStore, node: NodeSpec, old: str, new: str) -> str:
    """Store the new original and keep the old one beside it; returns a text with the changed keys."""
    previous_path = Path(f"{store.original_path(node)}.{files.sha256(old)[:12]}.bak")
    store.state.replace(previous_path, lambda _: old.encode(files.ENCODING))
    store.replace_original(node, new)
    changes = "".join(f"    {change}\n" for change in diff_properties(old, new)) or "    only comments or order\n"
    return f"Stored as the original of broker {node.id}; the previous one is {previous_path}:\n{changes}"


def find_accepted_original(spec: ClusterSpec, store: BackupStore, node: NodeSpec, present: str) -> tuple[str, str]:
    """A broker's original, and the one that leads to its present file: with each key that was edited there.

    Raises `Refused` (O03) for keys that no original decides, since kmigrate does in this stage; and for a controller, which has no original.
    """
    keys = parse_properties(present)
    edits = find_edits(spec, store, node, keys, None)
    if node.role is NodeRole.CONTROLLER:
        text = f"{node.name} has no original. Write what is wanted as `quorum.properties` of the cluster file, with the file's values: {summarize(edits) or 'nothing differs'}."
        raise Refused.because(Reason("O03", text))
    original = store.read_original(node)
    edited = {edit.key for edit in edits}
    accepted = edit_properties(original, {key: keys[key] for key in edited & keys.keys()}, edited - keys.keys())
    stage = stage_of(keys)
    stage = stage if stage in {FileStage.MIGRATION, FileStage.KRAFT} else FileStage.ZOOKEEPER
    is_same_node = read_node_id(parse_properties(accepted)) == read_node_id(parse_properties(original))
    is_original = stage_of(parse_properties(accepted)) is FileStage.ZOOKEEPER
    left = (
        edits
        if not (is_same_node and is_original)
        else compare_properties(parse_properties(render_from(spec, store, node, stage, accepted)), keys)
    )
    if left:
        text = (
            f"The present file of {node.name} cannot be its original: kmigrate itself decides {summarize((edit.key for edit in left), 30)} "
            f"in stage '{stage}'. Write the right file again (`kmigrate render`), or take these edits out of it."
        )
        raise Refused.because(Reason("O03", text))
    return original, accepted


def store_first(store: BackupStore, node: NodeSpec, file: Path | None, version: str | None) -> str:
    """Store `file` as the broker's first original, with the metadata version if given. Raises `Refused` if an original exists."""
    if file is None or store.original_path(node).exists():
        text = f"{store.original_path(node)} exists already, or FILE is missing. Omit --lost to store an edit, or name the file."
        raise Refused.because(Reason("O01", text))
    new = _read_original(node, file, node.id)
    if version is not None:
        store.keep_metadata_version(version)
    digest = store.replace_original(node, new)
    return f"Stored as the original of broker {node.id} in {store.folder}, SHA-256 {digest}.\n"


def _open_store(backup: Path) -> BackupStore:
    folder = backup.resolve()
    refuse_copy(folder.parent.parent)
    if folder.name[-_ID - 1 : -_ID] != "_":
        raise Refused.because(Reason("O01", f"{folder} is not a backup folder. Name <folder>/backup/<cluster>_<cluster id>."))
    return BackupStore(folder.parent, folder.name[: -_ID - 1], folder.name[-_ID:])


def _read_original(node: NodeSpec, file: Path, expected: int | None) -> str:
    new = files.read(str(file))
    if new is None or (stage_of(parse_properties(new)), read_node_id(parse_properties(new))) != (FileStage.ZOOKEEPER, expected):
        text = (
            f"{file} does not exist, or is not the original of broker {node.id}: its file before the migration, with the same id."
        )
        raise Refused.because(Reason("O01", text))
    return new


@contextmanager
def _edit_copy(original: str) -> Iterator[Path]:
    """A private copy for the operator to edit; deleted afterwards, because it may hold secrets."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "original.properties"
        atomic.replace(copy, original.encode(files.ENCODING))
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        subprocess.run([*shlex.split(editor), str(copy)], check=False)
        yield copy


def refuse_other_user(backup: Path) -> None:
    """Refuse to run as another user: Airflow's user could not read root's files, and every later task would fail."""
    owner = next(place for place in (backup.resolve(), *backup.resolve().parents) if place.exists()).stat().st_uid
    if owner == os.geteuid():
        return
    text = f"{backup} belongs to user {_user_name(owner)}, but this process runs as {_user_name(os.geteuid())}."
    raise Refused.because(Reason("O05", f"{text} Run it as that user: sudo -u {_user_name(owner)} ..."))


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"
