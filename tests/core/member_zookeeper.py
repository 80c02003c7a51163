"""The group's znodes in a small world."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_kmigrate.core.events import TopicPartition

TIMEOUT = 6.0


@dataclass
class Node:
    session: int
    data: Any


@dataclass
class ZooKeeper:
    """The group's znodes; `heard`: session -> when it last was."""

    topics: dict[str, range]
    heard: dict[int, float] = field(default_factory=dict)
    ids: dict[str, Node] = field(default_factory=dict)
    migrating: dict[str, Node] = field(default_factory=dict)
    owners: dict[TopicPartition, Node] = field(default_factory=dict)
    offsets: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)  # offset, version
    mode: bytes | None = None
    epoch: int = 0
    sessions: int = 0

    def session(self, now: float) -> int:
        self.sessions += 1
        self.heard[self.sessions] = now
        return self.sessions
