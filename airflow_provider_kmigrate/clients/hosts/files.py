"""Files of this machine as they are read: properties with every byte, ends of logs, records in JSON."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.foreign_json import read_json
from airflow_provider_kmigrate.exceptions import Failed

ENCODING = "iso-8859-1"  # Java's encoding of properties; every byte has a character, so nothing is lost
_TAIL_BYTES = 65_536


def sha256(text: str) -> str:
    """The hash that identifies a properties file, in hex. Raises `Failed`."""
    return hashlib.sha256(_encoded(text)).hexdigest()


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
        value = read_json(text)
    except ValueError as error:
        raise Failed(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise Failed(f"{path} is damaged: an object was expected")
    return value
