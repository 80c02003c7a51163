"""The ZooKeeper of a cluster in memory (`sim`): the znodes that a rollback reads and changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_kmigrate.clients.zookeeper import REGISTERED, TAKEN_BACK, Create, Delete, Holding, Operation, Set, Znode
from airflow_provider_kmigrate.core.cluster import Role
from airflow_provider_kmigrate.core.model import Migration, ZkController
from airflow_provider_kmigrate.exceptions import Fenced

if TYPE_CHECKING:
    from tests.steps.sim import SimCluster

STATE = "/brokers/topics/t/partitions/0/state"


@dataclass
class SimZooKeeper:
    """All transactions are fenced; each may be the tool's last act."""

    cluster: SimCluster

    def read(self, path: str) -> tuple[bytes, int] | None:
        notes = {TAKEN_BACK: self.cluster.note, REGISTERED: self.cluster.known}
        if path in notes:
            note = notes[path]
            return None if note is None else (note, 0)
        zk = self.cluster.zk()
        assert isinstance(zk.controller, ZkController)
        owner = {"version": 2, "brokerid": zk.controller.broker_id, "kraftControllerEpoch": zk.controller.kraft_epoch}
        held = {"/controller_epoch": str(self.cluster.controller_epoch), "/controller": json.dumps(owner)}
        if isinstance(zk.migration, Migration):
            keys = ("kraft_controller_id", "kraft_controller_epoch", "kraft_metadata_offset", "kraft_metadata_epoch")
            found = (self.cluster.leader, self.cluster.epoch, zk.migration.metadata_offset, self.cluster.epoch)
            held["/migration"] = json.dumps(dict(zip(keys, found, strict=True)))
        return (held[path].encode(), 0) if path in held else None

    def commit(self, operations: Sequence[Operation], holding: Holding) -> None:
        self.cluster.mortal.step()
        if holding.token < self.cluster.token:
            raise Fenced("a newer run holds the cluster")
        handed = any(operation.path not in {TAKEN_BACK, REGISTERED, STATE} for operation in operations)
        if handed and any(node.running is not None for (role, _), node in self.cluster.nodes.items() if role is Role.CONTROLLER):
            self.cluster.disasters.append("handed over under a living controller")
        for operation in operations:
            self._apply(operation)
        self.cluster.elect_zookeeper()

    def _apply(self, operation: Operation) -> None:
        match operation:
            case Set("/controller_epoch", data):
                self.cluster.controller_epoch = int(data)
            case Set(path, data) | Create(path, data) if path == TAKEN_BACK:
                self.cluster.note = data
            case Delete(path) if path == TAKEN_BACK:
                self.cluster.note = None
            case Set(path, data) | Create(path, data) if path == REGISTERED:
                self.cluster.known = data
            case Delete(path) if path == REGISTERED:
                self.cluster.known = None
            case Delete("/migration"):
                self.cluster.offset = None
            case Set(path) if path == STATE:
                self.cluster.ahead = max(0, self.cluster.ahead - 1)
            case Delete("/controller"):
                self.cluster.deaf = self.cluster.ahead > 0
                if self.cluster.deaf:
                    self.cluster.disasters.append("leaders skip what the ZooKeeper controller says")
                else:
                    self.cluster.kept_out.clear()
                self.cluster.kraft_owns, self.cluster.zookeeper_controller = False, -1

    def state_paths(self) -> list[str]:
        return [STATE]

    def nodes(self, paths: Sequence[str]) -> Iterator[tuple[str, Znode]]:
        yield from ((path, Znode(b"{}", 0, 0, 0.0)) for path in paths)

    def tree(self) -> list[tuple[str, bytes | None]]:
        return [("/", None), ("/controller_epoch", b"3")]
