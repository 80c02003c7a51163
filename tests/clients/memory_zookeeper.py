"""ZooKeeper's transactions and sessions in memory, for tests that need no server; the same tests run against a real one too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.znodes import Create, Delete, Operation, Set
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.cluster_state.model import OthersRight
from airflow_provider_kmigrate.exceptions import Fenced


@dataclass
class Znode:
    data: bytes
    version: int = 0
    session: object = None
    zxid: int = 0  # of its last change


@dataclass
class Ensemble:
    """The tree that all sessions share."""

    cluster_id: str
    znodes: dict[str, Znode] = field(default_factory=lambda: {"": Znode(b"")})
    zxid: int = 0
    anonymous: bool = False  # its sessions have no identity: all that they create is open to all
    opened: set[str] = field(default_factory=set)  # what anybody may write
    shared: dict[str, str] = field(default_factory=dict)  # what another identity may write, which one

    def put(self, path: str, data: bytes) -> None:
        """As another client writes it, with what is missing above it."""
        parent = path.rpartition("/")[0]
        if parent not in self.znodes:
            self.put(parent, b"")
        old = self.znodes.get(path)
        self.zxid += 1
        self.znodes[path] = Znode(data, old.version + 1 if old else 0, zxid=self.zxid)


class MemoryZooKeeper:
    """One session; offers what `fence` and the reads of groups use of `clients.zookeeper.ZooKeeper`."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble

    @property
    def is_anonymous(self) -> bool:
        return self._ensemble.anonymous

    def find_others_right(self, path: str) -> OthersRight | None:
        names = path.split("/")[1:]
        paths = [f"/{'/'.join(names[:depth])}" for depth in range(1, len(names) + 1)]
        opened = dict.fromkeys(paths[:1] if self.is_anonymous else self._ensemble.opened, "") | self._ensemble.shared
        return next((OthersRight(each, opened[each]) for each in paths if each in opened), None)

    def cluster_id(self) -> str:
        return self._ensemble.cluster_id

    def read(self, path: str) -> tuple[bytes, int] | None:
        found = self._ensemble.znodes.get(path)
        return (found.data, found.version) if found else None

    def children(self, path: str) -> list[str]:
        return sorted(name.rpartition("/")[2] for name in self._ensemble.znodes if name.rpartition("/")[0] == path and name)

    def children_by_path(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        return ((path, self.children(path)) for path in paths if path in self._ensemble.znodes)

    def read_znodes(self, paths: Iterable[str]) -> Iterator[tuple[str, znodes.Znode]]:
        there = self._ensemble.znodes
        found = ((path, there[path]) for path in paths if path in there)
        return ((path, znodes.Znode(znode.data, znode.version, znode.zxid, 0)) for path, znode in found)

    def commit(self, operations: Sequence[Operation], holding: Holding | None = None) -> list[int | None]:
        if holding is not None and self._ensemble.znodes[holding.path].version != holding.token:
            raise Fenced("newer")
        after = dict(self._ensemble.znodes)
        self._ensemble.zxid += 1
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
                znodes[path] = Znode(data, session=self if ephemeral else None, zxid=self._ensemble.zxid)
                return None
            case Set(path, data, version):
                if not found or found.version != version:
                    raise Changed(path)
                znodes[path] = Znode(data, version + 1, found.session, self._ensemble.zxid)
                return version + 1
            case Delete(path, version):
                if not found or found.version != version:
                    raise Changed(path)
                del znodes[path]
                return None
