"""ZooKeeper's transactions and sessions in memory, for tests that need no server; the same tests run against a real one too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_kmigrate.clients.zookeeper import Create, Delete, Holding, Operation, Set
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.exceptions import Fenced


@dataclass
class Znode:
    data: bytes
    version: int = 0
    session: object = None


@dataclass
class Ensemble:
    """The tree that all sessions share."""

    cluster_id: str
    znodes: dict[str, Znode] = field(default_factory=lambda: {"": Znode(b"")})


class MemoryZooKeeper:
    """One session; offers what `fence` uses of `clients.zookeeper.ZooKeeper`."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble

    def cluster_id(self) -> str:
        return self._ensemble.cluster_id

    def read(self, path: str) -> tuple[bytes, int] | None:
        found = self._ensemble.znodes.get(path)
        return (found.data, found.version) if found else None

    def children(self, path: str) -> list[str]:
        return sorted(name.rpartition("/")[2] for name in self._ensemble.znodes if name.rpartition("/")[0] == path and name)

    def commit(self, operations: Sequence[Operation], holding: Holding | None = None) -> list[int | None]:
        if holding is not None and self._ensemble.znodes[holding.path].version != holding.token:
            raise Fenced("newer")
        after = dict(self._ensemble.znodes)
        versions = [self._apply(after, operation) for operation in operations]
        self._ensemble.znodes = after
        return versions

    def close(self) -> None:
        """The end of the session, as after a kill or a close: its ephemeral znodes go."""
        left = {path: znode for path, znode in self._ensemble.znodes.items() if znode.session is not self}
        self._ensemble.znodes = left

    def _apply(self, znodes: dict[str, Znode], operation: Operation) -> int | None:
        found = znodes.get(operation.path)
        match operation:
            case Create(path, data, ephemeral):
                if found or path.rpartition("/")[0] not in znodes:
                    raise Changed(path)
                znodes[path] = Znode(data, session=self if ephemeral else None)
                return None
            case Set(path, data, version):
                if not found or found.version != version:
                    raise Changed(path)
                znodes[path] = Znode(data, version + 1, found.session)
                return version + 1
            case Delete(path, version):
                if not found or found.version != version:
                    raise Changed(path)
                del znodes[path]
                return None
