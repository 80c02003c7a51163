"""Changes of files in `[kmigrate] folder`, which outlive the machine: originals, journals, progress of tasks.

Reading is reading files. Every change goes through a `StateFolder`, since not every Airflow has a folder that its workers share:

- `SharedFolder`: the folder itself is shared by all workers, such as NFS.
- `clients.object_log.StoredFolder`: the folder is this machine's copy of what an object store has.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.exceptions import Failed

PRIVATE = 0o700
_PROBED = 65_536  # bytes: more than the handover saves


class StateFolder(Protocol):
    """Where a change of a file is complete for every worker once the call returns. Paths are absolute, and below the folder."""

    def refresh(self) -> None:
        """Make the files what other workers have made them. Raises `Unavailable` or `Refused` (O05): then they prove nothing."""

    def replace(self, path: Path, make: Callable[[bytes | None], bytes | None]) -> None:
        """Replace a file with what `make` makes of its present content (None: there is no file); None changes nothing.

        `make` may be called again if another worker changed something meanwhile. Raises `Failed`, `Unavailable` or `Refused`.
        """

    def append(self, path: Path, make: Callable[[IO[bytes]], bytes]) -> None:
        """Append what `make` makes of the open file. As `replace`, and raises `OSError` of the file."""

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with all that is in it; nothing happens if there is none."""

    def prove_writable(self, folder: Path) -> None:
        """Raises `Failed`, `OSError`, `Unavailable` or `Refused` if nothing can be stored in that folder."""


class SharedFolder:
    """A file system that all workers share; what is written is there."""

    def refresh(self) -> None:
        """Nothing: it is read directly."""

    def replace(self, path: Path, make: Callable[[bytes | None], bytes | None]) -> None:
        """Atomically and synced. The caller alone writes this file: the fence, or a name of its own, ensures that."""
        content = make(read_or_none(path))
        if content is not None:
            atomic.make_folder(path.parent, PRIVATE)
            atomic.replace(path, content)

    def append(self, path: Path, make: Callable[[IO[bytes]], bytes]) -> None:
        """Flushed to disk before this returns; a new file's name is there before its content."""
        with path.open("a+b") as file:
            if file.seek(0, os.SEEK_END) == 0:
                atomic.sync_folder(path.parent)
            with contextlib.suppress(OSError):  # a file system without locks: one process at a time writes there
                fcntl.flock(file, fcntl.LOCK_EX)
            file.write(make(file))
            file.flush()
            os.fsync(file.fileno())

    def remove(self, path: Path) -> None:
        """Best effort: what stays is removed the next time."""
        remove_path(path)

    def prove_writable(self, folder: Path) -> None:
        """Write a probe file and delete it."""
        probe = folder / f".probe-{os.getpid()}"
        atomic.make_folder(folder, PRIVATE)
        atomic.replace(probe, bytes(_PROBED))
        probe.unlink()


def read_or_none(path: Path) -> bytes | None:
    """A file's content; None if there is no file. Raises `Failed` if it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Failed(f"cannot read {path}: {error}") from error


def remove_path(path: Path) -> None:
    """Remove a file or a whole folder, as far as that is possible."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
