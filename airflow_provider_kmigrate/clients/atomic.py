"""Replace files atomically, also if the process or machine crashes, and lock folders among processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_kmigrate.exceptions import Failed, TimedOut

_LOCK_TIMEOUT = 30.0  # seconds
OWNER, ALL_USERS = 0o600, 0o666  # a new file's mode before the umask


def replace(path: Path, data: bytes, mode: int = OWNER, *, durable: bool = True) -> None:
    """Write `data` to `path`: after a crash it has the old content or the new one, never a part. Raises `Failed`.

    The file is for its owner only (it may hold passwords), or has `mode` less the umask. `durable` false does not wait for the disk:
    readers still see whole files, but the machine's crash may leave an empty one.
    """
    path = Path(os.path.realpath(path))  # a link stays a link
    new = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        _write_new_file(new, data, mode, durable=durable)
        new.replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # if it was never created
            new.unlink()
        raise Failed(f"cannot write {path}: {error}") from error


def create(path: Path, data: bytes, mode: int = OWNER) -> None:
    """As `replace`, and raises `Failed` if `path` exists: of two that create it at once, one fails."""
    new = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        _write_new_file(new, data, mode, durable=True)
        os.link(new, path, follow_symlinks=False)
        sync_folder(path.parent)
    except FileExistsError:
        raise Failed(f"{path} exists already. Nothing was written.") from None
    except OSError as error:
        raise Failed(f"cannot write {path}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            new.unlink()


def _write_new_file(path: Path, data: bytes, mode: int, *, durable: bool) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(handle)


def sync_folder(folder: Path) -> None:
    """Have the disk keep the folder's names. Raises `OSError`."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder (`mode` less the umask) and its parents, if missing: they are on disk before what is written there. Raises `Failed`."""
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True, mode=mode)
        for folder in missing:
            sync_folder(folder.parent)
    except OSError as error:
        raise Failed(f"cannot create the folder {path}: {error}") from error


@contextlib.contextmanager
def locked(folder: Path, timeout: float = _LOCK_TIMEOUT) -> Iterator[None]:
    """Hold `folder` exclusively among threads and processes; the kernel frees it if the holder dies. Raises `TimedOut`."""
    make_folder(folder)
    handle = _open_lock(folder / "lock")
    try:
        _acquire_lock(handle, folder, timeout)
        yield
    finally:
        os.close(handle)


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Failed(f"cannot open {path}: {error}") from error


def _acquire_lock(handle: int, folder: Path, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise TimedOut(f"{folder / 'lock'} was held by another process for {timeout:.0f} s") from error
            time.sleep(0.01)
        else:
            return
