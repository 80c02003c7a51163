"""Groups in ZooKeeper's tree, as the old consumer writes them."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_kmigrate.clients.groups import of_zookeeper
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.inventory import GroupFound
from airflow_provider_kmigrate.core.readiness import GroupProtocol


class Tree:
    def __init__(self, nodes: dict[str, bytes]) -> None:
        self._nodes = nodes

    def children(self, path: str) -> list[str]:
        below = [node.removeprefix(f"{path}/") for node in self._nodes if node.startswith(f"{path}/")]
        return sorted({name.split("/")[0] for name in below})

    def tree(self, path: str = "/") -> Iterator[tuple[str, bytes | None]]:
        return iter([(path, None), *((node, data) for node, data in self._nodes.items() if node.startswith(f"{path}/"))])


def test_members_and_offsets() -> None:
    nodes = {
        "/consumers/g/ids/g_one": b"{}",
        "/consumers/g/ids/g_two": b"{}",
        "/consumers/g/owners/t/0": b"g_one-0",
        "/consumers/g/offsets/t/0": b"12",
        "/consumers/g/offsets/t/1": b"not a number",
        "/consumers/stopped/offsets/t/0": b"3",
        "/consumers/never/ids": b"",
    }
    place = TopicPartition("t", 0)
    assert of_zookeeper(Tree(nodes)) == [
        GroupFound("g", GroupProtocol.ZOOKEEPER, 2, {place: 12}),
        GroupFound("stopped", GroupProtocol.ZOOKEEPER, 0, {place: 3}),
    ]


def test_no_groups() -> None:
    assert of_zookeeper(Tree({})) == []
