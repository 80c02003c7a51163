"""The ZooKeeper of a cluster in memory (`sim`): the znodes that a rollback reads and changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.znodes import (
    COUNTS,
    EXPANSION,
    REGISTERED,
    ROLLED_BACK,
    UNFLAGGED,
    Create,
    Delete,
    Operation,
    Set,
    Znode,
)
from airflow_provider_kmigrate.core.cluster_state.model import Migration, ZkController
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.exceptions import Fenced

if TYPE_CHECKING:
    from tests.steps.sim import SimCluster

TOPIC = "/brokers/topics/t"
STATE = f"{TOPIC}/partitions/0/state"
_NOTES = {
    ROLLED_BACK: "note",
    REGISTERED: "known",
    UNFLAGGED: "unflagged",
    EXPANSION: "expansion",
    COUNTS: "noted_counts",
}  # in the cluster


@dataclass
class SimZooKeeper:
    """All transactions are fenced; each may be the tool's last act."""

    cluster: SimCluster

    def read(self, path: str) -> tuple[bytes, int] | None:
        if path in _NOTES:
            note = getattr(self.cluster, _NOTES[path])
            return None if note is None else (note, 0)
        if path.startswith(TOPIC):
            return (b'{"partitions":{"0":[0,1,2]}}', 0) if path == TOPIC or self.cluster.half_made is None else None
        zk = self.cluster.zk()
        assert isinstance(zk.controller, ZkController)
        owner = {"version": 2, "brokerid": zk.controller.broker_id, "kraftControllerEpoch": zk.controller.kraft_epoch}
        held = {"/controller_epoch": str(self.cluster.controller_epoch), "/controller": json.dumps(owner)}
        if isinstance(zk.migration, Migration):
            keys = ("kraft_controller_id", "kraft_controller_epoch", "kraft_metadata_offset", "kraft_metadata_epoch")
            copy = zk.migration
            found = (copy.kraft_controller_id, copy.kraft_controller_epoch, copy.metadata_offset, copy.metadata_epoch)
            held["/migration"] = json.dumps({"version": 0, **dict(zip(keys, found, strict=True))})
        version = self.cluster.version if path == "/migration" else 0
        return (held[path].encode(), version) if path in held else None

    def commit(self, operations: Sequence[Operation], holding: Holding) -> None:
        self.cluster.mortal.step()
        if holding.token < self.cluster.token:
            raise Fenced("a newer run holds the cluster")
        apart = [operation.path in _NOTES or operation.path.startswith(TOPIC) for operation in operations]
        handed = not all(apart)
        if handed and any(
            node.running is not None for (role, _), node in self.cluster.nodes.items() if role is NodeRole.CONTROLLER
        ):
            self.cluster.disasters.append("handed over under a living controller")
        for operation in operations:
            self._apply(operation)
        self.cluster.elect_zookeeper()

    def _apply(self, operation: Operation) -> None:
        match operation:
            case Set("/controller_epoch", data):
                self.cluster.controller_epoch = int(data)
            case Set(path, data) | Create(path, data) if path in _NOTES:
                setattr(self.cluster, _NOTES[path], data)
            case Delete(path) if path in _NOTES:
                setattr(self.cluster, _NOTES[path], None)
            case Delete("/migration"):
                self.cluster.offset = None
            case Create(path) if path == STATE:
                self.cluster.half_made = None
            case Set(path) if path == STATE:
                self.cluster.ahead = max(0, self.cluster.ahead - 1)
            case Delete("/controller"):
                self.cluster.out_of_isr = self.cluster.ahead > 0
                if self.cluster.out_of_isr:
                    self.cluster.disasters.append("leaders skip what the ZooKeeper controller says")
                else:
                    self.cluster.kept_out.clear()
                self.cluster.kraft_owns, self.cluster.zookeeper_controller = False, -1

    def state_paths(self) -> list[str]:
        return [STATE]

    def read_znodes(self, paths: Sequence[str]) -> Iterator[tuple[str, Znode]]:
        if self.cluster.half_made is None:
            yield from ((path, Znode(b"{}", 0, 0, 0.0)) for path in paths)

    def tree(self) -> list[tuple[str, bytes | None]]:
        return self.cluster.kafka_tree
