"""A group for the emergency commands."""

from __future__ import annotations

from typing import Any

from airflow_provider_kmigrate.clients.group_reads import read_groups
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup
from airflow_provider_kmigrate.core.member.registration import (
    GroupPaths,
    MemberProgress,
    Registration,
    parse_mode,
    write_progress,
    write_registration,
)
from airflow_provider_kmigrate.groups import Clock, build_parser, set_modes_back
from tests.clients.memory_zookeeper import Ensemble, MemoryZooKeeper

GROUP, WANTS = "billing", Registration("static", {"t": 1})
PATHS = GroupPaths(GROUP)
STABLE, DEAD = KafkaGroup("Stable"), KafkaGroup("Dead")


class World:
    """A group of one migrating member that follows the mode; `kafka`: what its coordinator reports at each observation, the last one for ever."""

    def __init__(self, *kafka: KafkaGroup | None, committed: dict[TopicPartition, int] | None = None) -> None:
        self.ensemble = Ensemble("id")
        self.zk: Any = MemoryZooKeeper(self.ensemble)
        self._kafka, self._committed = list(kafka or (STABLE,)), committed
        self.groups: list[str] = []
        self.now = 0.0

    def in_kafka_mode(self, name: str = GROUP) -> World:
        paths = GroupPaths(name)
        self.groups.append(name)
        self.ensemble.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0]}}')
        self.ensemble.put(f"{paths.ids}/{name}_a", write_registration(WANTS))
        self.ensemble.put(f"{paths.root}/owners/t/0", f"{name}_a-0".encode())
        self.ensemble.put(paths.mode, b"kafka")
        self.follow()
        return self

    def wait(self, seconds: float) -> None:
        """Time passes here alone: a busy machine does not shorten the wait."""
        self.now += seconds
        self.follow()

    def follow(self) -> None:
        """What the member does meanwhile."""
        for name in self.groups:
            mode = self.ensemble.znodes[GroupPaths(name).mode]
            progress = MemberProgress(mode.zxid, parse_mode(mode.data), settled=True)
            self.ensemble.put(f"{GroupPaths(name).migration_ids}/{name}_a", write_progress(WANTS, progress))

    def observe(self, name: str) -> GroupSeen:
        kafka = self._kafka.pop(0) if len(self._kafka) > 1 else self._kafka[0]
        return GroupSeen(name, read_groups(self.zk, [name])[name], kafka, self._committed, {})

    @property
    def mode(self) -> bytes | None:
        found = self.zk.read(PATHS.mode)
        return found[0] if found else None

    def set_back(self, *options: str) -> int:
        argv = ["zookeeper-mode", "--zookeeper", "h:1", "--bootstrap", "h:2", "--group", GROUP, "--wait", "2", *options]
        return set_modes_back(self.zk, self.observe, build_parser().parse_args(argv), Clock(lambda: self.now, self.wait))  # type: ignore[arg-type]
