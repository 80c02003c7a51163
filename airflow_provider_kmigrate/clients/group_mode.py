"""Writes `migration/mode` of a consumer group, the toggle of KIP-125."""

from __future__ import annotations

from airflow_provider_kmigrate.clients.znode_writes import CONSUMERS, Create, Operation, Set
from airflow_provider_kmigrate.clients.zookeeper import Holding, ZooKeeper
from airflow_provider_kmigrate.core.coordination.registration import GroupPaths, Mode
from airflow_provider_kmigrate.exceptions import Failed


def make_folders(zk: ZooKeeper, group: str, holding: Holding) -> None:
    """Those above what is ours of a group."""
    root = GroupPaths(group).root
    for folder in (CONSUMERS, root, f"{root}/migration"):
        if zk.read(folder) is None:
            zk.commit([Create(folder)], holding=holding)


def write_mode(zk: ZooKeeper, group: str, mode: Mode, holding: Holding) -> None:
    """Exactly the word, from the version that was read, under the fence, and read back.

    Raises `Changed` where another one writes meanwhile, `Fenced`, and `Failed` where it reads otherwise afterwards.
    """
    paths = GroupPaths(group)
    make_folders(zk, group, holding)
    found, data = zk.read(paths.mode), str(mode).encode()
    change: Operation = Create(paths.mode, data) if found is None else Set(paths.mode, data, found[1])
    zk.commit([change], holding=holding)
    after = zk.read(paths.mode)
    if after is None or after[0] != data:
        raise Failed(
            f"{paths.mode} was written as {data!r} and reads {after[0] if after else None!r}: somebody else writes it, too"
        )
