"""The newest hash of each journal (`core.shared.chain`), kept beside the fence: a cut end or a missing file is found by it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.znodes import ROOT, Create, Operation, Set
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.cluster_state.model import OthersRight
from airflow_provider_kmigrate.core.shared.foreign_json import read_json


class RecordTree(Protocol):
    """What records need of a `clients.zookeeper.ZooKeeper`."""

    @property
    def is_anonymous(self) -> bool:
        """Whether what is created here belongs to any client."""

    def read(self, path: str) -> tuple[bytes, int] | None:
        """A znode's data and version; None if it is absent."""

    def children(self, path: str) -> list[str]:
        """The names below a znode."""

    def find_others_right(self, path: str) -> OthersRight | None:
        """The first znode, from `/_kmigrate` down to `path`, that others may write too, or we may not; None: they are ours alone."""

    def commit(self, operations: Sequence[Operation], holding: Holding | None = None) -> list[int | None]:
        """Commit all operations or none."""


@dataclass(frozen=True, slots=True)
class JournalHead:
    """The newest hash of a run's journal, and of how many lines."""

    run: str
    chain: str
    lines: int


@dataclass(frozen=True, slots=True)
class DamagedHead:
    """A record of a journal's hash that says none: whose journal it was is not known."""

    path: str


def seal(zookeeper: RecordTree, cluster_id: str, head: JournalHead, holding: Holding) -> None:
    """Keep the newest hash of a run's journal. Raises as `ZooKeeper.commit`."""
    zookeeper.commit([seal_operation(zookeeper, cluster_id, head)], holding)


def seal_operation(zookeeper: RecordTree, cluster_id: str, head: JournalHead) -> Operation:
    """The operation that keeps it, for a transaction with others."""
    return put_operation(zookeeper, f"{ROOT}/{cluster_id}/journals", record_name(head.run), asdict(head))


def read_heads(zookeeper: RecordTree, cluster_id: str) -> Iterator[JournalHead | DamagedHead]:
    """The newest hash of each journal; one that cannot be read is no journal without a hash."""
    folder = f"{ROOT}/{cluster_id}/journals"
    for name in zookeeper.children(folder):
        znode = zookeeper.read(f"{folder}/{name}")
        try:
            head = JournalHead(**read_json(znode[0] if znode else b""))
            is_sound = (
                (type(head.run), type(head.chain), type(head.lines)) == (str, str, int)
                and head.lines >= 0
                and record_name(head.run) == name
            )
        except (ValueError, TypeError):
            is_sound = False
        yield head if is_sound else DamagedHead(f"{folder}/{name}")


def put_operation(zookeeper: RecordTree, folder: str, name: str, value: dict[str, Any]) -> Operation:
    """The operation that makes a record in a folder, or replaces it as it is now; the folder is made, if it is absent."""
    path, data = f"{folder}/{name}", json.dumps(value).encode()
    znode = zookeeper.read(path)
    if znode is not None:
        return Set(path, data, znode[1])
    if zookeeper.read(folder) is None:
        with contextlib.suppress(Changed):  # another process made it
            zookeeper.commit([Create(folder)])
    return Create(path, data)


def record_name(*parts: str) -> str:
    """The name of a record's znode: a run's id may hold what a path of ZooKeeper may not."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]
