"""What ZooKeeper has of many consumer groups, in few round trips. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Final, Protocol, TypeVar

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.znode_writes import CONSUMERS
from airflow_provider_kmigrate.clients.zookeeper import Znode
from airflow_provider_kmigrate.core.coordination.assignors import topics_of
from airflow_provider_kmigrate.core.coordination.group_seen import StoredOffset, ZkGroup
from airflow_provider_kmigrate.core.coordination.hold import read_hold
from airflow_provider_kmigrate.core.coordination.registration import (
    GroupPaths,
    Registration,
    Unreadable,
    read_offset,
    read_progress,
    read_registration,
)
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.model import Malformed
from airflow_provider_kmigrate.exceptions import Failed

_TOPICS: Final = "/brokers/topics"
Parsed = TypeVar("Parsed")


class Tree(Protocol):
    """What is used of `clients.zookeeper.ZooKeeper`."""

    def children(self, path: str) -> list[str]: ...
    def families(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]: ...
    def nodes(self, paths: Iterable[str]) -> Iterator[tuple[str, Znode]]: ...


def groups_in(zk: Tree, names: Collection[str] | None = None) -> dict[str, ZkGroup]:
    """The named groups, or all below `/consumers`, by name; one that is not there has nothing in it.

    Not one instant: migration/ids is read before ids, and both before the mode, so that a member that joins meanwhile looks like one
    that cannot migrate, never the other way round. Raises as the client; `Failed` where a topic's znode cannot be read.
    """
    there = zk.children(CONSUMERS)  # brings a server that lags behind up to date
    paths = {name: GroupPaths(name) for name in sorted(there if names is None else names)}
    progress, _ = _children(zk, {name: path.migration_ids for name, path in paths.items()}, read_progress)
    registrations, joined = _children(zk, {name: path.ids for name, path in paths.items()}, read_registration)
    modes = dict(zk.nodes(path.mode for path in paths.values()))
    owners = _places(zk, {name: f"{path.root}/owners" for name, path in paths.items()}, _thread)
    offsets = _places(zk, {name: f"{path.root}/offsets" for name, path in paths.items()}, _stored)
    resets = _places(zk, {name: path.resets for name, path in paths.items()}, _reset)
    holds = dict(zk.nodes(path.hold for path in paths.values()))
    selected = _selected(zk, registrations)
    found = {}
    for name, path in paths.items():
        mode = modes.get(path.mode, Znode(b"", -1, 0, 0.0))
        found[name] = ZkGroup(
            registrations[name],
            progress[name],
            mode.data if path.mode in modes else None,
            mode.version,
            mode.zxid,
            owners[name],
            offsets[name],
            selected[name],
            read_hold(holds[path.hold].data) if path.hold in holds else None,
            resets[name],
            name in joined,
        )
    return found


def is_number(child: str) -> bool:
    """Whether a znode's name is a partition's number. Anybody may have made another one; to Python `²` is a digit, and no number."""
    return child.isascii() and child.isdigit()


def _thread(znode: Znode) -> str:
    return znode.data.decode(errors="replace")


def _reset(znode: Znode) -> int | Unreadable:
    return read_offset(znode.data)


def _stored(znode: Znode) -> StoredOffset:
    return StoredOffset(read_offset(znode.data), znode.changed_at)


def _children(
    zk: Tree, folders: Mapping[str, str], parse: Callable[[bytes], Parsed]
) -> tuple[dict[str, dict[str, Parsed]], frozenset[str]]:
    """Of each group the children of its folder; those that went meanwhile are left out. And the groups that have the folder."""
    families = dict(zk.families(folders.values()))
    where = {f"{folder}/{child}": (name, child) for name, folder in folders.items() for child in families.get(folder, ())}
    found: dict[str, dict[str, Parsed]] = {name: {} for name in folders}
    for path, znode in zk.nodes(where):
        name, child = where[path]
        found[name][child] = parse(znode.data)
    return found, frozenset(name for name, folder in folders.items() if folder in families)


def _places(zk: Tree, folders: Mapping[str, str], parse: Callable[[Znode], Parsed]) -> dict[str, dict[TopicPartition, Parsed]]:
    """Of each group what stands at `<folder>/<topic>/<partition>`."""
    families = dict(zk.families(folders.values()))
    topics = {f"{folder}/{topic}": (name, topic) for name, folder in folders.items() for topic in families.get(folder, ())}
    where = {
        f"{path}/{child}": (topics[path][0], TopicPartition(topics[path][1], int(child)))
        for path, children in zk.families(topics)
        for child in children
        if is_number(child)
    }
    found: dict[str, dict[TopicPartition, Parsed]] = {name: {} for name in folders}
    for path, znode in zk.nodes(where):
        name, place = where[path]
        found[name][place] = parse(znode)
    return found


def _selected(
    zk: Tree, registrations: Mapping[str, Mapping[str, Registration | Unreadable]]
) -> dict[str, frozenset[TopicPartition]]:
    """Of each group every existing partition that a readable registration of it selects."""
    existing = cache(lambda: tuple(zk.children(_TOPICS)))
    amounts = cache(lambda pattern, wildcard: topics_of(Registration(pattern, {wildcard: 1}), existing()))
    wanted = {}
    for name, entries in registrations.items():
        asked = (entry for entry in entries.values() if isinstance(entry, Registration))
        told = [entry.subscription if entry.wildcard is None else amounts(entry.pattern, entry.wildcard) for entry in asked]
        wanted[name] = frozenset(topic for topics in told if not isinstance(topics, Unreadable) for topic in topics)
    partitions = _partitions(zk, frozenset().union(*wanted.values()))
    return {name: frozenset(place for topic in topics for place in partitions.get(topic, ())) for name, topics in wanted.items()}


def _partitions(zk: Tree, topics: Iterable[str]) -> dict[str, list[TopicPartition]]:
    found = {}
    for path, znode in zk.nodes(f"{_TOPICS}/{topic}" for topic in sorted(topics)):
        topic = znodes.topic(path.removeprefix(f"{_TOPICS}/"), znode.data)
        if isinstance(topic, Malformed):
            raise Failed(f"{topic.path} is not what Kafka writes: {topic.content!r}")
        found[topic.name] = [TopicPartition(topic.name, index) for index in topic.partitions]
    return found
