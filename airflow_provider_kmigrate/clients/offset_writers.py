"""Finds consumer groups whose offsets in ZooKeeper are committed by clients that no registration shows.

OffsetCommit version 0 writes the znodes through a broker; Storm, Flume and scripts write them themselves. Neither is below `ids`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, Protocol

from airflow_provider_kmigrate.clients.znodes import CONSUMERS, Znode
from airflow_provider_kmigrate.core.member.registration import is_number

#: Seconds for which a commit counts as of a client that is still there: these clients commit once a minute or more often.
LATELY: Final = 600.0


class _Tree(Protocol):
    """What is read: as `ZooKeeper` has it."""

    def children_by_path(self, paths: Iterable[str]) -> Iterable[tuple[str, list[str]]]:
        """Each of these znodes that exists, with the names below it."""

    def read_znodes(self, paths: Iterable[str]) -> Iterable[tuple[str, Znode]]:
        """Each of these znodes that exists."""


def find_unregistered_commits(tree: _Tree, groups: Iterable[str], now: float) -> dict[str, float]:
    """Of these groups without members: those that committed lately -> seconds since their newest commit. `now`: since the epoch.

    A member's last commit comes before its registration goes. So only a commit behind the last change below `ids` counts, by the order
    of ZooKeeper's transactions: a group that just stopped is none. Nor is one that has moved: `clean_up` deletes `ids` itself, which
    is a change below the group.
    """
    names = list(groups)
    folders_of_members = [path for name in names for path in (f"{CONSUMERS}/{name}", f"{CONSUMERS}/{name}/ids")]
    last_left = defaultdict[str, int](int)
    for path, znode in tree.read_znodes(folders_of_members):
        group = path.split("/")[2]
        last_left[group] = max(last_left[group], znode.children_zxid)
    topics = dict(tree.children_by_path(f"{CONSUMERS}/{name}/offsets" for name in names))
    folders = [f"{path}/{topic}" for path, children in topics.items() for topic in children]
    paths = [f"{folder}/{child}" for folder, children in tree.children_by_path(folders) for child in children if is_number(child)]
    newest = defaultdict[str, float](float)
    for path, znode in tree.read_znodes(paths):
        group = path.split("/")[2]
        if znode.zxid > last_left[group]:
            newest[group] = max(newest[group], znode.changed_at)
    ages = {group: max(0.0, now - changed_at) for group, changed_at in newest.items()}
    return {group: age for group, age in ages.items() if age <= LATELY}
