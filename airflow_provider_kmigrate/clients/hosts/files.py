"""Files of this machine as they are read: properties with every byte, records in JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec, simplify_path
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.exceptions import Failed

ENCODING = "iso-8859-1"  # Java's encoding of properties; every byte has a character, so nothing is lost


def sha256(text: str) -> str:
    """The hash that identifies a properties file, in hex. Raises `Failed`."""
    try:
        return hashlib.sha256(text.encode(ENCODING)).hexdigest()
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

    A controller without properties has the directory that the cluster file names. As `kmigrate-node` names them: without what does not
    change where a path leads.
    """
    if keys is None:
        return (node.log_dir,) if node.log_dir else ()
    data = keys.get("log.dirs") or keys.get("log.dir") or "/tmp/kafka-logs"  # noqa: S108  # Kafka's default
    dirs = [part.strip() for part in data.split(",")] + [keys.get("metadata.log.dir", "").strip()]
    return tuple(dict.fromkeys(simplify_path(part) for part in dirs if part))


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, None if there is no file; raises `Failed` for anything else."""
    text = read(str(path))
    if text is None:
        return None
    try:
        value = read_json(text)
    except ValueError as error:
        raise Failed(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise Failed(f"{path} is damaged: an object was expected")
    return value
