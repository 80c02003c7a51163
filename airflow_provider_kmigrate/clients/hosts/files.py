"""A node's files: replaced whole, read into `NodeFiles`, checked before a directory is formatted or wiped; and the fence beside them.

The fence on the node's side is one lock and the highest token seen, in a folder. The run that holds the cluster has the highest token (`clients.fence`). A run that lost the fence without noticing, such as a task
that slept through its ZooKeeper session, holds a lower one and is refused here before it can touch the node.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.atomic import locked
from airflow_provider_kmigrate.clients.znodes import outdated
from airflow_provider_kmigrate.core.cluster import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.files import properties
from airflow_provider_kmigrate.core.files.config_matrix import in_use, owner
from airflow_provider_kmigrate.core.model import Controller, NodeFiles, Process, ProcessState, Reason
from airflow_provider_kmigrate.core.text import summarize
from airflow_provider_kmigrate.exceptions import Failed, Fenced, Refused

ENCODING = "iso-8859-1"  # Java's encoding of properties; every byte has a character, so nothing is lost
_TAIL_BYTES = 65_536
META = "meta.properties"
_METADATA_LOG = "__cluster_metadata-0/quorum-state"


def sha256(text: str) -> str:
    """The hash that identifies a properties file, in hex. Raises `Failed`."""
    return hashlib.sha256(_encoded(text)).hexdigest()


def backup_name(path: str, text: str) -> str:
    """The path of the backup of the replaced `text`; named by its content, so that a repeated step keeps it once."""
    return f"{path}.{sha256(text)[:12]}.bak"


def put(path: Path, text: str) -> str:
    """Replace a properties file, keeping the old one beside it; returns the new SHA-256. Raises `Failed`."""
    data, digest = _encoded(text), sha256(text)
    old = read(str(path))
    if old is None:
        atomic.make_folder(path.parent)
        atomic.replace(path, data)
    elif old != text:
        like = path.stat()
        atomic.replace(Path(backup_name(str(path), old)), _encoded(old), like)
        atomic.replace(path, data, like)
    return digest


def _encoded(text: str) -> bytes:
    try:
        return text.encode(ENCODING)
    except UnicodeEncodeError as error:
        raise Failed(f"a properties file cannot hold {error.object[error.start]!r} unless it is escaped") from error


def read(path: str) -> str | None:
    """A local file's text, None if it does not exist; raises `Failed` if that is unknown."""
    try:
        return Path(path).read_bytes().decode(ENCODING)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Failed(f"cannot read {path}: {error}") from error


def log_dirs(node: NodeSpec, keys: Mapping[str, str] | None) -> tuple[str, ...]:
    """The directories that hold a meta.properties, as Kafka finds them (`log.dirs`, else `log.dir`, else /tmp/kafka-logs).

    A controller without properties has the directory that the cluster file names.
    """
    if keys is None:
        return (node.log_dir,) if node.log_dir else ()
    data = keys.get("log.dirs") or keys.get("log.dir") or "/tmp/kafka-logs"  # noqa: S108  # Kafka's default
    dirs = [part.strip() for part in data.split(",")] + [keys.get("metadata.log.dir", "").strip()]
    return tuple(dict.fromkeys(part for part in dirs if part))


def read_files(node: NodeSpec) -> NodeFiles:
    """A node's files on this machine.

    An absent properties file has no keys and no hash; raises `Failed` if something exists but is unreadable.
    """
    text = read(node.hosts.properties)
    keys = None if text is None else properties.parse(text)
    dirs = log_dirs(node, keys)
    return NodeFiles(
        properties=keys,
        meta={path: properties.parse(read(f"{path}/{META}") or "") for path in dirs} if dirs else None,
        kept_by=None if text is None else properties.kept_by(text),
        has_metadata_log=any(read(f"{path}/{_METADATA_LOG}") is not None for path in dirs) if dirs else None,
    )


def tail(path: Path, lines: int) -> str:
    """The last lines of a log, under its path; empty if no log can be read."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join([f"the end of {path}:", *text.splitlines()[-lines:]])


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, None if there is no file; raises `Failed` for anything else."""
    text = read(str(path))
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Failed(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise Failed(f"{path} is damaged: an object was expected")
    return value


def must_format(node: NodeSpec, seen: NodeFiles, cluster_id: str) -> bool:
    """False if every directory is already formatted for this cluster and node.

    Raises `Refused` for directories of another cluster or node and for a metadata log without meta.properties, and `Failed` if
    they cannot be read.
    """
    if seen.properties is None or not seen.meta:
        raise Failed(
            f"{node.name}: cannot read what its directories hold; check that {node.hosts.properties} exists and is readable"
        )
    for path, meta in seen.meta.items():
        if meta and owner(meta) != (cluster_id, str(node.id)):
            text = f"{path} is formatted for cluster and node {owner(meta)}, not for {(cluster_id, str(node.id))}"
            raise _refused(node, text)
    if seen.has_metadata_log and not all(seen.meta.values()):
        text = "a directory has a metadata log but no meta.properties"
        raise _refused(node, text)
    return not all(seen.meta.values())


def refuse_data(node: NodeSpec, seen: NodeFiles) -> None:
    """Raise `Refused` if a directory of this machine is not formatted but holds something."""
    for path, meta in (seen.meta or {}).items():
        held = [] if meta or not Path(path).is_dir() else sorted({found.name for found in Path(path).iterdir()} - {"lost+found"})
        if held:
            raise _refused(node, f"{path} is not formatted but holds {summarize(held)}")


def must_wipe(node: NodeSpec, seen: NodeFiles, process: Process, cluster_id: str) -> tuple[str, ...]:
    """The directories of a stopped controller that hold its quorum's data; never another node's, never while its process may run.

    Raises `Refused` for a directory of another or an unknown cluster.
    """
    if node.role is not NodeRole.CONTROLLER or process.state is not ProcessState.STOPPED:
        text = f"its directories were not wiped: its process is {process.state}"
        reason = Reason(
            "G26",
            f"{node.name}: {text}.",
        )
        raise Refused.because(reason)
    if seen.meta is None:
        raise Failed(
            f"{node.name}: cannot read what its directories hold; check that {node.hosts.properties} exists and is readable"
        )
    ours = in_use(Controller(node.id, files=seen))
    for folder in ours:
        if seen.meta[folder] and owner(seen.meta[folder]) != (cluster_id, str(node.id)):
            text = f"{folder} was not moved away: it belongs to cluster and node {owner(seen.meta[folder])}"
            raise _refused(node, text)
    return ours


def set_aside(node: NodeSpec, folder: str) -> None:
    """Rename a directory of this machine; nothing in it is deleted. Raises `Failed`."""
    number, path = 1, Path(folder)
    while (aside := path.with_name(f"{path.name}.rolled-back-{number}")).exists():
        number += 1
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Failed(f"{node.name}: cannot move {folder} away: {error}") from error


def _refused(node: NodeSpec, text: str) -> Refused:
    return Refused.because(Reason("M01", f"{node.name}: {text}."))


@contextmanager
def admitted(folder: Path, token: int) -> Iterator[None]:
    """`locked`, and `token` is now the highest seen; raises `Fenced` for a lower one.

    What runs inside cannot be overtaken: a newer run waits for the lock before it may act on this node.
    """
    with locked(folder):
        _raise_to(folder / "token", token)
        yield


def highest(folder: Path) -> int:
    """The highest token seen, 0 before any."""
    text = read(str(folder / "token"))
    try:
        return 0 if text is None else int(text)
    except ValueError as error:
        raise Failed(f"{folder / 'token'} is damaged: no number in it; write the last run's token there, or remove it") from error


def _raise_to(path: Path, token: int) -> None:
    seen = highest(path.parent)
    if token < seen:
        raise Fenced.because(outdated(f"token {token} is older than {seen}, which {path.parent} has seen"))
    if token > seen:
        atomic.replace(path, f"{token}\n".encode())
