"""Copies of what a rollback needs: every broker's original properties file and ZooKeeper's tree, each with its hash.

One folder a cluster id, readable by its owner only (the files hold secrets)::

    <folder>/<name>_<cluster id>/manifest.json            {"version": 1, "cluster": ..., "files": {"broker-0.properties": sha256, ...}}
    <folder>/<name>_<cluster id>/broker-0.properties      the original, byte for byte
    <folder>/<name>_<cluster id>/broker-0.written         SHA-256 of each file that kmigrate put in its place, one a line
    <folder>/<name>_<cluster id>/metadata.version         what brokers speak among each other, as controllers are formatted
    <folder>/<name>_<cluster id>/zookeeper.jsonl          one znode a line: {"path": ..., "data": base64 or null}
    <folder>/<name>_<cluster id>/handover-7.jsonl        the same of the znodes that a rollback deleted or replaced
    <folder>/<name>_<cluster id>/offsets-repair-7.json   commits that a repair of `__consumer_offsets` imports, and copies that it removes
    <folder>/<name>_<cluster id>/offsets-topic-20.json   offsets of groups that an expansion moves, behind a line with their SHA-256
    <folder>/<name>_<cluster id>/copy/offsets-topic-20.json  the same

An original is written once and never overwritten: a run that begins again finds files of a later stage on the hosts. Only an
expansion of `__consumer_offsets` sets its count in it. The tree stays, too, once a broker has moved: it shows what was changed since.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.clients.state_folder import SharedFolder, StateFolder
from airflow_provider_kmigrate.clients.zookeeper import read_topics
from airflow_provider_kmigrate.core.cluster_state.model import (
    BackupFacts,
    ClusterView,
    Inventory,
    Migration,
    NodeFiles,
    PropertyChange,
    Reason,
    StoredKind,
)
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_of
from airflow_provider_kmigrate.core.node_files.properties import (
    RenderFacts,
    compare_properties,
    diff_properties,
    parse_properties,
    render_broker_file,
    render_controller_file,
)
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import summarize
from airflow_provider_kmigrate.exceptions import Failed, Refused, Unavailable
from airflow_provider_kmigrate.observe import stored

_VERSION = "metadata.version"
_TREE = "zookeeper.jsonl"
_INSTALLED = "installed"


class KeptTree:
    """A stored tree of znodes, read as ZooKeeper is read. Versions are not stored: each is 0."""

    def __init__(self, lines: str) -> None:
        self._data: dict[str, str | None] = {node["path"]: node["data"] for node in map(read_json, lines.splitlines())}
        self._names: dict[str, list[str]] = {}
        for path in self._data:
            folder, _, name = path.rpartition("/")
            self._names.setdefault(folder, []).append(name)

    def read(self, path: str) -> tuple[bytes, int] | None:
        """A znode's data; None if it is absent."""
        return (base64.b64decode(self._data[path] or ""), 0) if path in self._data else None

    def children(self, path: str) -> list[str]:
        """The names below a znode, sorted; none if it is absent."""
        return sorted(self._names.get(path, ()))

    def read_children(self, folder: str, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Name and data of those children of a folder that exist."""
        named_znodes = ((name, self.read(f"{folder}/{name}")) for name in names)
        return ((name, znode[0]) for name, znode in named_znodes if znode is not None)

    def children_by_path(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        """Each of these znodes that exists, with the names below it, sorted."""
        return ((path, self.children(path)) for path in paths if path in self._data)


class BackupStore:
    """The backup of one cluster. Raises `Refused` if a file is missing, altered or unreadable, `Failed` if it cannot be written."""

    def __init__(self, folder: Path, cluster: str, cluster_id: str, state: StateFolder | None = None) -> None:
        # A cluster id may begin with a dash, which commands would take for an option; hence the name in front.
        self.folder = folder / f"{cluster}_{cluster_id}"
        self._cluster, self.state = cluster, state or SharedFolder()
        self.compared: dict[
            tuple[NodeSpec, str | None], tuple[object, tuple[PropertyChange, ...]]
        ] = {}  # by `compare_files`, while `stamp` is the same

    def keep_original(self, node: NodeSpec, text: str) -> str:
        """Store a broker's original unless one exists; returns its SHA-256. Refuses one with other settings; comments do not count."""
        if self._read_manifest().get(_original_name(node)) is None:
            return self.replace_original(node, text)
        original = self.read_original(node)
        if keys := tuple(change.key for change in diff_properties(original, text)):
            raise Refused.because(edited_file_reason(node, keys, self.original_path(node)))
        return files.sha256(original)

    def replace_original(self, node: NodeSpec, text: str) -> str:
        """Store a broker's original, replacing an earlier one; returns its SHA-256."""
        self._write(_original_name(node), text.encode(files.ENCODING))
        return files.sha256(text)

    def read_original(self, node: NodeSpec) -> str:
        """The original's text; its hash is checked."""
        return self._read_verified(_original_name(node)).decode(files.ENCODING)

    def read_digest(self, node: NodeSpec) -> str:
        """The SHA-256 of a broker's original, which is read."""
        return _hash_bytes(self._read_verified(_original_name(node)))

    def original_path(self, node: NodeSpec) -> Path:
        """The path of a broker's original."""
        return self.folder / _original_name(node)

    def keep_written(self, node: NodeSpec, text: str) -> None:
        """Record the hash of a file before it replaces a node's: that of a killed run may be on either side of its write."""
        self._change_list(node, lambda lines: [*lines, files.sha256(text)])

    def confirm_written(self, node: NodeSpec, text: str) -> None:
        """Record that this file is the node's: from now on no other one is."""
        self._change_list(node, lambda _: [f"{files.sha256(text)} {_INSTALLED}"])

    def is_installed(self, node: NodeSpec, digest: str) -> bool:
        """Whether the file with this hash is the one that kmigrate installed on the node last.

        While an installation was begun and not confirmed, also the one before it; of an earlier release, which confirmed none, any.
        """
        lines = (self._read_bytes(self._list_path(node)) or b"").decode(errors="replace").splitlines()
        return digest in {line.partition(" ")[0] for line in lines}

    def change_stamp(self, node: NodeSpec) -> object:
        """What changes if a file is stored or installed: comparing again costs a rendering, and observations are frequent."""
        return tuple(_file_stamp(path) for path in (self._list_path(node), self.folder / "manifest.json"))

    def _change_list(self, node: NodeSpec, change: Callable[[list[str]], list[str]]) -> None:
        def make(present: bytes | None) -> bytes | None:
            old = (present or b"").decode(errors="replace").splitlines()
            new = change(old)
            return None if new == old else "".join(f"{line}\n" for line in new).encode()

        self.state.replace(self._list_path(node), make)

    def _list_path(self, node: NodeSpec) -> Path:
        return self.folder / f"{node.role}-{node.id}.written"

    def keep_metadata_version(self, version: str) -> None:
        """Store the brokers' metadata version, such as `3.9-IV0`; a KRaft broker cannot be asked for it any more."""
        self._write(_VERSION, version.encode())

    def version(self) -> str:
        """The metadata version that controllers are formatted with and brokers in migration mode speak."""
        return self._read_verified(_VERSION).decode()

    def keep_tree(self, nodes: Iterable[tuple[str, bytes | None]], *, once: bool = False) -> int:
        """Store ZooKeeper's tree as it is now; returns the number of znodes. `once`: a tree that was stored earlier stays."""
        if once and _TREE in self._read_manifest():
            return len(self._read_verified(_TREE).splitlines())
        return self._write_znodes(_TREE, nodes)

    def read_inventory(self) -> Inventory:
        """All metadata of the stored tree. Raises `Refused` (O01) if it is missing or altered, `Failed` if a znode is malformed."""
        tree = KeptTree(self._read_verified(_TREE).decode())
        owner = tree.read("/migration")
        copied = znodes.parse_migration(*owner) if owner else None
        late = copied is not None and not (isinstance(copied, Migration) and copied.metadata_offset <= 0)
        at = (self.folder / _TREE).stat().st_mtime
        return Inventory(at, read_topics(tree), {kind: stored.read_kind(tree, kind) for kind in StoredKind}, late)

    def keep_znodes(self, znodes: Mapping[str, bytes], token: int) -> Path:
        """Store what a handover is about to delete, under the token of its run; returns the file's path."""
        name = f"handover-{token}.jsonl"
        self._write_znodes(name, znodes.items())
        return self.folder / name

    def keep_repair(self, plan: Mapping[str, object], token: int) -> Path:
        """Store what a repair of `__consumer_offsets` imports and removes, under the token of its run; returns the file's path."""
        name = f"offsets-repair-{token}.json"
        self._write(name, json.dumps(plan, indent=1).encode())
        return self.folder / name

    def _write_znodes(self, name: str, nodes: Iterable[tuple[str, bytes | None]]) -> int:
        lines = [
            json.dumps({"path": path, "data": None if data is None else base64.b64encode(data).decode()}) for path, data in nodes
        ]
        self._write(name, ("\n".join(lines) + "\n").encode())
        return len(lines)

    def keep_export(self, partitions: int, export: Mapping[str, Any]) -> Path:
        """Store the offsets of an expansion to so many partitions in two files, each with its SHA-256; returns the first's path."""
        body = json.dumps(export, indent=1).encode()
        first, second = self._export_paths(partitions)
        for path in (first, second):
            self.state.replace(path, lambda _: f"sha256 {_hash_bytes(body)}\n".encode() + body)
        return first

    def read_export(self, partitions: int) -> dict[str, Any]:
        """The one of the two files with the higher `number`: they differ if a task was killed between them.

        Raises `Refused` (O10) unless both are as they were written.
        """
        exports = {path: self._read_export_file(path) for path in self._export_paths(partitions)}
        good = [content for content in exports.values() if content is not None]
        if len(good) < len(exports):
            bad, intact = (
                summarize(path for path, content in exports.items() if (content is None) is lost) for lost in (True, False)
            )
            text = f"The export {bad} is missing or was altered. {f'Intact: {intact}.' if intact else 'No copy is intact.'}"
            raise Refused.because(Reason("O10", text))
        return max(good, key=lambda export: int(export["number"]))

    def _export_paths(self, partitions: int) -> tuple[Path, Path]:
        name = f"offsets-topic-{partitions}.json"
        return self.folder / name, self.folder / "copy" / name

    def _read_export_file(self, path: Path) -> dict[str, Any] | None:
        head, _, body = (self._read_bytes(path) or b"").partition(b"\n")
        if head != f"sha256 {_hash_bytes(body)}".encode():
            return None
        export: dict[str, Any] = read_json(body)
        return export

    def prove_writable(self) -> None:
        """Prove that something can be stored. Raises `Refused` (O05) if that fails."""
        try:
            self.state.prove_writable(self.folder)
        except (Failed, Unavailable, OSError) as error:
            text = f"The backup folder {self.folder} cannot be written on this worker: {error}."
            raise Refused.because(Reason("O05", text)) from error

    def verify(self) -> tuple[str, ...]:
        """Read every file and compare it with its hash; returns the verified names. Raises `Refused` at the first mismatch."""
        names = tuple(sorted(self._read_manifest()))
        for name in names:
            self._read_verified(name)
        return names

    def _read_manifest(self) -> dict[str, str]:
        path = self.folder / "manifest.json"
        return _parse_hashes(path, self._read_bytes(path))

    def _read_bytes(self, path: Path) -> bytes | None:
        """The file's bytes, None if it does not exist. Raises `Refused` if it is unreadable, such as another user's."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            text = f"This task's user cannot read {path} of the backup: {error}."
            raise Refused.because(Reason("O05", text)) from error

    def _write(self, name: str, data: bytes) -> None:
        """Replace a file. The manifest names both hashes meanwhile: a process killed in between leaves a file that one of them proves."""
        old_digest, digest = self._read_manifest().get(name), _hash_bytes(data)
        if old_digest not in {None, digest}:
            self._note_digest(name, f"{old_digest} {digest}")
        self.state.replace(self.folder / name, lambda _: data)
        self._note_digest(name, digest)

    def _note_digest(self, name: str, digest: str) -> None:
        path = self.folder / "manifest.json"

        def make(present: bytes | None) -> bytes:
            document = {"version": 1, "cluster": self._cluster, "files": {**_parse_hashes(path, present), name: digest}}
            return json.dumps(document, indent=1).encode()

        self.state.replace(path, make)

    def _read_verified(self, name: str) -> bytes:
        known_digests = self._read_manifest().get(name)
        path = self.folder / name
        data = self._read_bytes(path)
        if known_digests is None or data is None:
            raise _lost_file_refusal(path, "is missing")
        if _hash_bytes(data) not in known_digests.split():
            raise _lost_file_refusal(path, "was altered")
        return data


def _parse_hashes(path: Path, data: bytes | None) -> dict[str, str]:
    if data is None:
        return {}
    try:
        hashes = read_json(data)["files"]
        if not all(isinstance(digests, str) for digests in hashes.values()):
            raise ValueError("a hash is no text")  # noqa: TRY301
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _lost_file_refusal(path, "was altered") from error
    return dict(hashes)


def _file_stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _lost_file_refusal(path: Path, how: str) -> Refused:
    return Refused.because(Reason("O01", f"The backup {path} {how}."))


def edited_file_reason(node: NodeSpec, keys: Iterable[str], original: Path) -> Reason:
    """O03: a broker's file that was edited since the backup was made."""
    text = f"The properties of {node.name} were edited after the backup: {', '.join(keys)}. The original is {original}."
    return Reason("O03", text)


def _original_name(node: NodeSpec) -> str:
    return f"{node.role}-{node.id}.properties"


def _hash_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def render_file(spec: ClusterSpec, backup: BackupStore, node: NodeSpec, stage: FileStage) -> str:
    """The whole file of a stage. Raises `Refused` if the original is missing, altered or cannot be rendered from."""
    return render_from(spec, backup, node, stage, backup.read_original(node if node.role is NodeRole.BROKER else spec.brokers[0]))


def render_from(spec: ClusterSpec, backup: BackupStore, node: NodeSpec, stage: FileStage, original: str) -> str:
    """The file of a stage that this original leads to; of a controller: the first broker's."""
    facts = RenderFacts.of(spec, backup.version())
    if node.role is NodeRole.BROKER:
        return render_broker_file(original, stage, facts)
    return render_controller_file(original, node, stage, facts)


def find_edits(
    spec: ClusterSpec, backup: BackupStore, node: NodeSpec, keys: Mapping[str, str], digest: str | None
) -> tuple[PropertyChange, ...]:
    """How a node's file, by its keys and its SHA-256, differs from the one that kmigrate installed, or before that from its original.

    A file that kmigrate would install now is no edit either: an administrator may have changed the original and the file. A file of
    another role has no right content. Raises `Refused` if nothing to compare with is in the backup.
    """
    if digest is not None and backup.is_installed(node, digest):
        return ()
    stage = stage_of(keys)
    if node.role is NodeRole.CONTROLLER and (stage is None or not stage.of_controller):
        return ()
    if node.role is NodeRole.BROKER and stage not in {FileStage.MIGRATION, FileStage.KRAFT}:
        stage = FileStage.ZOOKEEPER
    return compare_properties(parse_properties(render_file(spec, backup, node, stage or FileStage.ZOOKEEPER)), keys)


def compare_files(spec: ClusterSpec, backup: BackupStore, view: ClusterView) -> ClusterView:
    """The view with each properties file that it holds compared with what the node should have (`NodeFiles.edited`)."""
    brokers, controllers = dict(view.brokers), dict(view.controllers)
    for node in spec.nodes():
        nodes: dict[int, Any] = brokers if node.role is NodeRole.BROKER else controllers
        observed = nodes.get(node.id)
        if observed is not None and observed.files.properties is not None:  # else nothing to compare: its files stay as they are
            nodes[node.id] = replace(observed, files=_compare_with_backup(spec, backup, node, observed.files))
    return replace(view, brokers=brokers, controllers=controllers)


def _compare_with_backup(spec: ClusterSpec, backup: BackupStore, node: NodeSpec, node_files: NodeFiles) -> NodeFiles:
    assert node_files.properties is not None  # noqa: S101 - its caller has looked
    stamp, cached = backup.change_stamp(node), backup.compared.get((node, node_files.sha256))
    if cached is not None and cached[0] == stamp and node_files.sha256 is not None:
        return replace(node_files, edited=cached[1])
    with suppress(Refused):  # `rollback_prerequisites` has the reason
        changes = find_edits(spec, backup, node, node_files.properties, node_files.sha256)
        backup.compared[node, node_files.sha256] = stamp, changes
        return replace(node_files, edited=changes)
    return node_files


def rollback_prerequisites(spec: ClusterSpec, backup: BackupStore, brokers: Iterable[NodeSpec]) -> tuple[Reason, ...]:
    """Reasons why these brokers could not be rolled back: an original is missing, altered (by its hash) or cannot be rendered from.

    The rollback itself writes what a machine's meta.properties misses.
    """
    reasons: list[Reason] = []
    for node in brokers:
        try:
            render_file(spec, backup, node, FileStage.ZOOKEEPER)
        except Refused as refused:
            reasons += [replace(reason, node=node.name) for reason in refused.reasons]
    return tuple(reasons)


def read_backup_facts(spec: ClusterSpec, backup: BackupStore) -> BackupFacts:
    """What the backup holds for a rollback, as this process finds it; tries to write into its folder."""
    originals: dict[int, str] = {}
    unwritable: tuple[Reason, ...] = ()
    for node in spec.brokers:
        with suppress(Refused):  # `rollback_prerequisites` has the reason
            originals[node.id] = backup.read_digest(node)
    try:
        backup.prove_writable()
    except Refused as refused:
        unwritable = refused.reasons
    return BackupFacts(originals, rollback_prerequisites(spec, backup, spec.brokers), unwritable)
