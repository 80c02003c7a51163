"""Writes and deletes the offsets that an operator records for a consumer group, which the next holders begin at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_provider_kmigrate.clients.group_mode import make_folders
from airflow_provider_kmigrate.clients.znode_writes import Create, Delete, Operation, Set
from airflow_provider_kmigrate.clients.zookeeper import Holding, ZooKeeper
from airflow_provider_kmigrate.core.coordination.registration import GroupPaths, write_offset
from airflow_provider_kmigrate.core.events import TopicPartition


def record_reset(zk: ZooKeeper, group: str, wanted: Mapping[TopicPartition, int], holding: Holding) -> None:
    """All or none, over those that were recorded before. Raises as `ZooKeeper.commit`."""
    paths = GroupPaths(group)
    make_folders(zk, group, holding)
    for folder in (paths.resets, *(f"{paths.resets}/{topic}" for topic in sorted({where.topic for where in wanted}))):
        if zk.read(folder) is None:
            zk.commit([Create(folder)], holding=holding)
    changes: list[Operation] = []
    for where, offset in sorted(wanted.items()):
        path, found = paths.reset(where), zk.read(paths.reset(where))
        data = write_offset(offset)
        changes.append(Create(path, data) if found is None else Set(path, data, found[1]))
    zk.commit(changes, holding=holding)


def forget_reset(zk: ZooKeeper, group: str, wheres: Iterable[TopicPartition], holding: Holding) -> None:
    """Those that are there. A holder that began at one keeps to it. Raises as `ZooKeeper.commit`."""
    paths = [GroupPaths(group).reset(where) for where in sorted(wheres)]
    found = {path: zk.read(path) for path in paths}
    zk.commit([Delete(path, node[1]) for path, node in found.items() if node is not None], holding=holding)
