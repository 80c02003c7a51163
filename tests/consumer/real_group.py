"""A group of migrating consumers on a real cluster."""

from __future__ import annotations

from pathlib import Path

from kazoo.client import KazooClient

from tests.consumer.migrating_group import Load, Member, delivered
from tests.waiting import wait_until

PARTITIONS = 6


def metric(members: tuple[Member, ...], name: str) -> list[int]:
    return [member.consumer.metrics()[name] for member in members]


def in_zookeeper(zookeeper: KazooClient, group: str) -> dict[int, int]:
    folder = f"/consumers/{group}/offsets/{group}"
    return {int(name): int(zookeeper.get(f"{folder}/{name}")[0]) for name in zookeeper.get_children(folder)}


def settle(members: tuple[Member, ...], load: Load, folder: Path) -> None:
    """The load ends, the rest comes, everybody leaves."""
    load.end()
    wait_until(lambda: delivered(folder) == load.sent, "the rest comes")
    for member in members:
        member.end()


def shares(*members: Member) -> list[int]:
    return [len(member.owned) for member in members]


def goes_on(folder: Path) -> None:
    before = delivered(folder)
    wait_until(lambda: delivered(folder) > before + 500, "records come")
