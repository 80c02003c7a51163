"""ZooKeeper as `GroupSession` shows it, in memory: znodes, sessions, one-shot watches, and connections that break."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from airflow_provider_kmigrate.applications.migrating.zookeeper import GroupSession, GroupZnode, StateChanged, Watched
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.exceptions import Unreachable

TIMEOUT = 4.0


class MemoryZooKeeper:
    """The servers. `topics`: name -> number of partitions."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        self.lock = threading.RLock()
        self.nodes: dict[str, GroupZnode] = {}
        self.watches: dict[str, set[Watched]] = defaultdict(set)
        self.numbers = itertools.count(1)
        for name, count in topics.items():
            parts = ",".join(f'"{n}":[0]' for n in range(count))
            self.put(f"/brokers/topics/{name}", f'{{"partitions":{{{parts}}}}}'.encode())

    def put(self, path: str, data: bytes, session: int = 0) -> None:
        with self.lock:
            old, now = self.nodes.get(path), next(self.numbers)
            self.nodes[path] = GroupZnode(data, old.version + 1 if old else 0, session, now)
            parent = path.rpartition("/")[0]
            if parent and parent not in self.nodes:
                self.put(parent, b"")
            self.fire(path, *(() if old else (parent,)))

    def remove(self, path: str) -> None:
        with self.lock:
            del self.nodes[path]
            self.fire(path, path.rpartition("/")[0])

    def fire(self, *paths: str) -> None:
        for path in paths:
            for watched in self.watches.pop(path, ()):
                watched(path)

    def expire(self, session: int) -> None:
        with self.lock:
            for path in [path for path, node in self.nodes.items() if node.session == session]:
                self.remove(path)

    def children(self, path: str) -> list[str]:
        return [name.removeprefix(f"{path}/") for name in self.nodes if name.rpartition("/")[0] == path]

    def owners(self, group: str) -> dict[str, str]:
        """`topic/partition` -> thread."""
        with self.lock:
            root = f"/consumers/{group}/owners/"
            return {
                path.removeprefix(root): node.data.decode()
                for path, node in self.nodes.items()
                if path.startswith(root) and node.session
            }

    def connect(self, settings: ZooKeeperSettings, changed: StateChanged, watched: Watched) -> GroupSession:
        return MemorySession(self, changed, watched)


class MemorySession(GroupSession):
    """One client's session."""

    def __init__(self, server: MemoryZooKeeper, changed: StateChanged, watched: Watched) -> None:
        self.server, self._changed, self._watched, self.where = server, changed, watched, "memory"
        self.id: int | None = None
        self.cut = True

    def start(self) -> None:
        with self.server.lock:
            self.id, self.cut = next(self.server.numbers), False

    def close(self) -> None:
        if self.id is not None:
            self.server.expire(self.id)
        self.cut = True

    def lose_connection(self) -> None:
        self.cut = True
        with self.server.lock:
            for watches in self.server.watches.values():
                watches.discard(self._watched)
        self._changed(False)

    def expire(self) -> None:
        """The servers gave it up; it hears of it when it is back."""
        assert self.id is not None
        self.server.expire(self.id)
        self._changed(True)
        self.start()

    @property
    def session(self) -> int | None:
        return None if self.cut else self.id

    def confirm_session(self, answered: Callable[[int, float, float], None]) -> None:
        if self.session is not None:
            answered(self.session, time.monotonic(), TIMEOUT)

    def sync(self) -> None:
        if self.cut:
            raise Unreachable("cut off")

    def get(self, path: str, *, watch: bool = False) -> GroupZnode | None:
        with self.server.lock:
            self.sync()
            if watch:
                self.server.watches[path].add(self._watched)
            return self.server.nodes.get(path)

    def get_all(self, paths: Mapping[str, str], *, watch: bool = False) -> dict[str, GroupZnode]:
        found = {name: self.get(path, watch=watch) for name, path in paths.items()}
        return {name: node for name, node in found.items() if node is not None}

    def children(self, path: str, *, watch: bool = False) -> list[str]:
        with self.server.lock:
            self.get(path, watch=watch)
            return self.server.children(path)

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> bool:
        return self.make_some({path: data}, session=self.id or 0 if ephemeral else 0)

    def create_ephemerals(self, nodes: Mapping[str, bytes]) -> bool:
        return self.make_some(nodes, session=self.id or 0)

    def make_some(self, nodes: Mapping[str, bytes], session: int) -> bool:
        with self.server.lock:
            self.sync()
            if nodes.keys() & self.server.nodes.keys():
                return False
            for path, data in nodes.items():
                self.server.put(path, data, session)
            return True

    def write(self, path: str, data: bytes, version: int) -> int | None:
        with self.server.lock:
            node = self.get(path)
            if node is None or node.version != version:
                return None
            self.server.put(path, data, node.session)
            return version + 1

    def delete(self, path: str, version: int) -> bool:
        with self.server.lock:
            node = self.get(path)
            if node is None or node.version != version:
                return False
            self.server.remove(path)
            return True
