"""Znodes in memory, as `clients.zookeeper` reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from airflow_provider_kmigrate.clients.znodes import Znode
from airflow_provider_kmigrate.exceptions import Unreachable


class GroupTree:
    """Path -> data. Every znode has version 3, zxid 7 and was changed at 99 s. `reads`: what was asked for, in order."""

    def __init__(self, nodes: Mapping[str, bytes], *, unresponsive: bool = False) -> None:
        self._nodes = nodes
        self._unresponsive = unresponsive
        self.reads: list[str] = []

    def children(self, path: str) -> list[str]:
        self._answer(path)
        below = [node.removeprefix(f"{path}/") for node in self._nodes if node.startswith(f"{path}/")]
        return sorted({name.split("/")[0] for name in below})

    def children_by_path(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        return ((path, found) for path in paths if (found := self.children(path)) or path in self._nodes)

    def read_znodes(self, paths: Iterable[str]) -> Iterator[tuple[str, Znode]]:
        for path in paths:
            self._answer(path)
            if path in self._nodes:
                yield path, Znode(self._nodes[path], 3, 7, 99.0)

    def _answer(self, path: str) -> None:
        self.reads.append(path)
        if self._unresponsive:
            raise Unreachable("no server there")
