"""A small disk of its own for a folder, and the same disk full."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

_BALLAST = "ballast"
_PIECE = b"\0" * (1 << 20)


def why_not(scratch: Path) -> str:
    """Why no disk can be mounted here; empty where one can."""
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        _mount(scratch, 1)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"mounting a tmpfs is not permitted: {getattr(error, 'stderr', None) or error}"
    _unmount(scratch)
    return ""


@contextmanager
def on_a_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """What the folder holds lies on a tmpfs while it lasts, and is gone with it. No process may use the folder at either end."""
    aside = folder.with_name(f"{folder.name}.aside")
    folder.rename(aside)
    folder.mkdir()
    _mount(folder, megabytes)
    try:
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        shutil.rmtree(aside)
        yield
    finally:
        _unmount(folder)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Not a byte is left on the folder's disk while it lasts."""
    ballast = folder / _BALLAST
    try:
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):  # ENOSPC
            while file.write(_PIECE):
                pass
        yield
    finally:
        ballast.unlink(missing_ok=True)


def _mount(folder: Path, megabytes: int) -> None:
    argv = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    subprocess.run(argv, check=True, capture_output=True, text=True)


@retry(
    retry=retry_if_exception_type(subprocess.CalledProcessError), stop=stop_after_delay(20), wait=wait_fixed(0.5), reraise=True
)
def _unmount(folder: Path) -> None:
    """Busy for a moment after its last user has ended."""
    subprocess.run(["umount", str(folder)], check=True, capture_output=True, text=True)
