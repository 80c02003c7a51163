"""Hand-overs seen from outside: who owns each partition, by its owner's znode, some hundred times a second.

* A real old consumer joins a group that one migrating member has to itself, and leaves it again.
* Two migrating members, one of whom begins with everything in one mode, follow the toggle there and back.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from benchmarks.handover_faults import judged
from tests.consumer.migrating_group import Beside, Load, Member, delivered, facts
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster
from tests.old_consumer.old_consumers import console_consumer
from tests.waiting import wait_until

PARTITIONS: Final = 6
_CHECK_S: Final = 0.003
_SETTLED_S: Final = 3.0  # so long after the last change nothing moves any more

Change = tuple[float, str | None]  # when, and the thread that owns it then


class Owners(Beside):
    """The owners of a topic's partitions as they change; the topic is called as the group."""

    def __init__(self, zookeeper: KazooClient, group: str) -> None:
        super().__init__()
        self._zookeeper, self._root, self._group = zookeeper, f"/consumers/{group}", group
        self.changes: dict[int, list[Change]] = defaultdict(list)
        self.joined: list[tuple[float, frozenset[str]]] = []

    def work(self) -> None:
        """Note each change of owners and members until it is asked to end."""
        while not self.ending.wait(_CHECK_S):
            asked = {n: self._zookeeper.get_async(f"{self._root}/owners/{self._group}/{n}") for n in range(PARTITIONS)}
            members = self._zookeeper.get_children_async(f"{self._root}/ids")
            found = {number: _owner(one) for number, one in asked.items()}
            now = time.monotonic()
            for number, owner in found.items():
                changes = self.changes[number]
                if not changes or changes[-1][1] != owner:
                    changes.append((now, owner))
            ids = frozenset(_or_nothing(members) or ())
            if not self.joined or self.joined[-1][1] != ids:
                self.joined.append((now, ids))

    def now(self) -> dict[int, str | None]:
        """The owner of each partition as observed last; None: no owner."""
        return {number: changes[-1][1] for number, changes in self.changes.items()}

    def settle(self) -> None:
        """From now on everything has an owner, and has had it for a while."""
        began = time.monotonic()
        wait_until(lambda: len(self.now()) == PARTITIONS and all(self.now().values()) and self._rests(began), "all is owned")

    def _rests(self, began: float) -> bool:
        last = max((changes[-1][0] for changes in self.changes.values()), default=0.0)
        return time.monotonic() - max(last, began) > _SETTLED_S

    def gaps_ms(self, since: float) -> list[float]:
        """Of each partition that had no owner after `since`, how long it had none at a time, at most."""
        longest = (max(_gaps(changes, since), default=0.0) for changes in self.changes.values())
        return [1000 * gap for gap in longest if gap]

    def freed_ms(self, since: float) -> list[float]:
        """How long after `since` each partition that changed hands was first free."""
        return [
            1000 * min(free)
            for changes in self.changes.values()
            if (free := [when - since for when, owner in changes if owner is None and when > since])
        ]


def _owner(asked: Any) -> str | None:
    found = _or_nothing(asked)
    return found[0].decode() if found else None


def _or_nothing(asked: Any) -> Any:
    try:
        return asked.get(timeout=10.0)
    except NoNodeError:
        return None


def _gaps(changes: list[Change], since: float) -> list[float]:
    return [after[0] - before[0] for before, after in itertools.pairwise(changes) if before[1] is None and before[0] > since]


def with_old_consumers(cluster: LocalCluster, folder: Path, rounds: int) -> dict[str, object]:
    """A real old consumer comes and goes `rounds` times."""
    group, zookeeper = "old", _connected(cluster)
    properties = _prepared(cluster, group)
    freed, joining, leaving = list[float](), list[float](), list[float]()
    with (
        Member(properties, folder, [group]) as ours,
        Load(cluster.bootstrap, folder, group, PARTITIONS),
        Owners(zookeeper, group) as owners,
    ):
        owners.settle()
        for number in range(rounds):
            with console_consumer(cluster.zookeeper, group, group, folder / f"printed-{number}") as old:
                wait_until(lambda: len(ours.owned) == PARTITIONS // 2, "half is handed over")
                owners.settle()
                joined = max(when for when, ids in owners.joined if len(ids) > 1)
                freed += owners.freed_ms(joined)
                joining += owners.gaps_ms(joined)
                old.terminate()
                left = time.monotonic()
                old.wait(30)
            wait_until(lambda: len(ours.owned) == PARTITIONS, "all is ours again")
            owners.settle()
            leaving += owners.gaps_ms(left)
    zookeeper.stop()
    return {
        "handover_rounds": rounds,
        "owner_free_for_old_ms_p50": _median(freed),
        "owner_free_for_old_ms_max": round(max(freed, default=0.0)),
        "to_old_unowned_ms_p50": _median(joining),
        "to_old_unowned_ms_max": round(max(joining, default=0.0)),
        "from_old_unowned_ms_p50": _median(leaving),
        "from_old_unowned_ms_max": round(max(leaving, default=0.0)),
    }


def toggled(cluster: LocalCluster, folder: Path, rounds: int) -> dict[str, object]:
    """Two members follow the mode there and back `rounds` times, under load."""
    group, zookeeper = "toggle", _connected(cluster)
    properties, mode = _prepared(cluster, group), f"/consumers/{group}/migration/mode"
    gaps, moves = list[float](), 0
    zookeeper.create(mode, b"", makepath=True)
    with (
        Member(properties, folder, [group]) as one,
        Member(properties, folder, [group]) as two,
        Load(cluster.bootstrap, folder, group, PARTITIONS) as load,
        Owners(zookeeper, group) as owners,
    ):
        wait_until(lambda: len(one.owned) == len(two.owned) == PARTITIONS // 2, "each owns half")
        owners.settle()
        for data in (b"kafka", b"zookeeper") * rounds:
            since = time.monotonic()
            zookeeper.set(mode, data)
            owners.settle()
            gaps += (found := owners.gaps_ms(since))
            moves += len(found)
        load.end()
        wait_until(lambda: delivered(folder) >= load.sent, "the rest comes")
    zookeeper.stop()
    found = facts(folder)
    return {
        "toggles": 2 * rounds,
        "toggle_moved": moves,
        "toggle_unowned_ms_p50": _median(gaps),
        "toggle_unowned_ms_max": round(max(gaps, default=0.0)),
        "toggle_double_owned": found.double_owned.count,
        "toggle_lost": found.lost.count + found.unseen.count,
        "toggle_incomplete": int(not found.complete),
        "toggle_judged": judged(folder, group),
        "toggle_late": len(one.late) + len(two.late),
    }


def _connected(cluster: LocalCluster) -> KazooClient:
    client = KazooClient(cluster.zookeeper)
    client.start()
    return client


def _prepared(cluster: LocalCluster, group: str) -> dict[str, Any]:
    """The properties of its members; its topic is there."""
    create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan(group, PARTITIONS, 1)])
    return {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "zookeeper.connect": cluster.zookeeper,
        "auto.offset.reset": "earliest",
        "coordination.migration.stage": "migrating",
        "log_level": 2,
    }


def _median(found: list[float]) -> int:
    return round(statistics.median(found)) if found else 0
