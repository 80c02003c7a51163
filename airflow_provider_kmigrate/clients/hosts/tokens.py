"""Fencing on the node's side: one lock and the highest token seen, in a folder.

The run that holds the cluster has the highest token (`clients.fence`). A run that lost the fence without noticing, such as a task
that slept through its ZooKeeper session, holds a lower one and is refused here before it can touch the node.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.clients.znode_writes import outdated
from airflow_provider_kmigrate.exceptions import Failed, Fenced, TimedOut

_LOCK_TIMEOUT = 30.0


@contextmanager
def locked(folder: Path, timeout: float = _LOCK_TIMEOUT) -> Iterator[None]:
    """Hold `folder` exclusively among threads and processes; the kernel frees it if the holder dies. Raises `TimedOut`."""
    atomic.make_folder(folder)
    handle = _open(folder / "lock")
    try:
        _lock(handle, folder, timeout)
        yield
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Failed(f"cannot open {path}: {error}") from error


def _lock(handle: int, folder: Path, timeout: float) -> None:
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
    text = files.read(str(folder / "token"))
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
