"""Replace files whole or not at all, whatever crashes meanwhile."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from airflow_provider_kmigrate.exceptions import Failed

OWNER, EVERYBODY = 0o600, 0o666  # a new file's mode before the umask


def replace(path: Path, data: bytes, like: os.stat_result | None = None, mode: int = OWNER) -> None:
    """Put `data` at `path`: after a crash the old file is there or the new one, never a part. Raises `Failed`.

    A new file is for its owner only (it may hold passwords), or has `mode` less the umask. `like` gives it another file's owner
    and mode instead, so that a service that runs as its own user can still read it.
    """
    path = Path(os.path.realpath(path))  # a link stays a link
    new = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        _write(new, data, like, mode)
        new.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # if it was never created
            new.unlink()
        raise Failed(f"cannot write {path}: {error}") from error


def _write(path: Path, data: bytes, like: os.stat_result | None, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as file:
        if like is not None:
            if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(handle, like.st_uid, like.st_gid)
            os.fchmod(handle, like.st_mode & 0o777)
        file.write(data)
        file.flush()
        os.fsync(handle)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder (`mode` less the umask) and its parents, if missing. Raises `Failed`."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=mode)
    except OSError as error:
        raise Failed(f"cannot make the folder {path}: {error}") from error
