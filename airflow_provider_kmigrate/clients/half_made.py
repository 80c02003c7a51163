"""Topics that ZooKeeper holds in part only, and what is missing of them.

A controller that writes KRaft's changes to ZooKeeper makes a topic by several requests on their way at once: the topic's znode, then
`partitions`, each partition, its state. Where ZooKeeper goes away between them and comes back, the writer tries again, finds the topic's
znode and takes the topic for made; the rest stays missing. Every controller elected later tries to change the state that is not there,
fails, and tries for ever: nothing is written to ZooKeeper any more, whoever leads. Seen on real brokers (Kafka 3.9.2; ZooKeeper stopped for
9 s while topics were made; ZkTopicMigrationClient.createTopic and updateTopicPartitions). With the missing znodes there it goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.znode_writes import Create, Operation
from airflow_provider_kmigrate.clients.zookeeper import Holding, Znode
from airflow_provider_kmigrate.core.model import Malformed

_TOPICS: Final = "/brokers/topics/"


class Topics(Protocol):
    """What is needed of `ZooKeeper`."""

    def state_paths(self) -> list[str]:
        """The paths of all partitions' states, also of those that have none."""

    def nodes(self, paths: Sequence[str]) -> Iterator[tuple[str, Znode]]:
        """Those that are there."""

    def read(self, path: str) -> tuple[bytes, int] | None:
        """Data and version."""

    def commit(self, operations: Sequence[Operation], holding: Holding | None = None) -> list[int | None]:
        """All of it or nothing."""


def half_made(zookeeper: Topics) -> tuple[str, ...]:
    """The paths of the states that are missing. A topic that is just being made shows some for a moment, too."""
    paths = zookeeper.state_paths()
    there = {path for path, _ in zookeeper.nodes(paths)}
    return tuple(path for path in paths if path not in there)


def make_whole(zookeeper: Topics, states: Sequence[str], holding: Holding) -> int:
    """Make these states and the znodes above them; how many were made. Raises `Changed` where somebody else made one meanwhile.

    A state says what Kafka assumes where there is none, but no leader: every replica in sync, leader epoch 0. The controller that leads
    writes its own over it, and until then the difference shows.
    """
    epoch = zookeeper.read("/controller_epoch")
    made = 0
    for path in states:
        topic, partition = path.removeprefix(_TOPICS).removesuffix("/state").split("/partitions/")
        found = zookeeper.read(f"{_TOPICS}{topic}")
        known = None if found is None else znodes.topic(topic, found[0])
        if known is None or isinstance(known, Malformed) or int(partition) not in known.partitions:
            continue  # deleted since
        state = {
            "controller_epoch": int(epoch[0]) if epoch else 0,
            "leader": -1,
            "version": 1,
            "leader_epoch": 0,
            "isr": list(known.partitions[int(partition)].replicas),
        }
        zookeeper.commit(_missing(zookeeper, path, json.dumps(state, separators=(",", ":")).encode()), holding)
        made += 1
    return made


def _missing(zookeeper: Topics, state: str, data: bytes) -> list[Operation]:
    partition = state.removesuffix("/state")
    folder, _, _ = partition.rpartition("/")
    topic = folder.removesuffix("/partitions")
    above = [Create(path, like=topic) for path in (folder, partition) if zookeeper.read(path) is None]
    return [*above, Create(state, data, like=topic)]
