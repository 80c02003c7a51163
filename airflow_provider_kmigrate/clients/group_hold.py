"""Writes and deletes the note at a consumer group that it was taken back (`core.coordination.hold`)."""

from __future__ import annotations

from airflow_provider_kmigrate.clients.group_mode import make_folders
from airflow_provider_kmigrate.clients.znode_writes import Create, Delete, Operation, Set
from airflow_provider_kmigrate.clients.zookeeper import Holding, ZooKeeper
from airflow_provider_kmigrate.core.coordination.hold import Hold, read_hold, write_hold
from airflow_provider_kmigrate.core.coordination.registration import GroupPaths


def note_hold(zk: ZooKeeper, group: str, hold: Hold, holding: Holding) -> None:
    """Over what an earlier run wrote; what this run wrote first stays. Raises as `ZooKeeper.commit`."""
    path = GroupPaths(group).hold
    found = zk.read(path)
    if found is not None and read_hold(found[0]).run == hold.run:
        return
    make_folders(zk, group, holding)
    data = write_hold(hold)
    change: Operation = Create(path, data) if found is None else Set(path, data, found[1])
    zk.commit([change], holding=holding)


def forget_hold(zk: ZooKeeper, group: str, holding: Holding) -> None:
    """Nothing where there is none. Raises as `ZooKeeper.commit`."""
    path = GroupPaths(group).hold
    found = zk.read(path)
    if found is not None:
        zk.commit([Delete(path, found[1])], holding=holding)
