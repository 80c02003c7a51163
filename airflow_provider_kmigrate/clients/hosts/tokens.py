"""Fencing on the node's side: one lock and the highest token seen, in a folder.

The run that holds the cluster has the highest token (`clients.fence`). A run that lost the fence without noticing, such as a task
that slept through its ZooKeeper session, holds a lower one and is refused here before it can touch the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.atomic import locked
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.clients.znode_writes import outdated
from airflow_provider_kmigrate.exceptions import Failed, Fenced


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
