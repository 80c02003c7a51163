"""Topics that ZooKeeper holds in part only, and what is missing of them.

A controller that writes KRaft's changes to ZooKeeper makes a topic by several requests on their way at once: the topic's znode, then
`partitions`, each partition, its state. Where ZooKeeper goes away between them and comes back, the writer tries again, finds the topic's
znode and takes the topic for made; the rest stays missing. Every controller elected later tries to change the state that is not there,
fails, and tries for ever: nothing is written to ZooKeeper any more, whoever leads. Seen on real brokers (Kafka 3.9.2; ZooKeeper stopped for
9 s while topics were made; ZkTopicMigrationClient.createTopic and updateTopicPartitions). With the missing znodes there it goes on.

The partitions' state znodes, written again as they are, so that brokers hear the ZooKeeper controller after a migration's way back.

For a ZooKeeper controller a partition epoch is the version of the partition's state znode; for KRaft it counts changes. The copy takes
the one for the other, then they drift apart: KRaft writes several changes of a partition as one, which raises the version by one only
(and each failover writes every znode). Brokers in migration mode keep KRaft's epochs over the hand-over. Where these are ahead, they skip
what the ZooKeeper controller says ("already at a newer partition epoch"), and the leader refuses every follower and consumer that has
heard of a newer leader epoch (UNKNOWN_LEADER_EPOCH), until it is restarted. Measured: 4 of 6 hand-overs to ZooKeeper without a failover
before, shortly after all brokers had started; ahead by one (Kafka 3.9.2; ZkTopicMigrationClient, Partition.makeLeader).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, Protocol

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.znode_writes import Create, Operation, Set
from airflow_provider_kmigrate.clients.zookeeper import Holding, Znode
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
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


_WRITES: Final = 100_000  # in all, if that leaves enough for each
_MOST, _LEAST = 100, 10  # times that each is written
_AT_ONCE: Final = 500  # in one transaction, some 100 kB
_TRIES: Final = 5  # for one transaction


class States(Protocol):
    """What is needed of `ZooKeeper`."""

    def state_paths(self) -> list[str]:
        """The paths of all state znodes."""

    def nodes(self, paths: Sequence[str]) -> Iterator[tuple[str, Znode]]:
        """Those that are there."""

    def commit(self, operations: Sequence[Operation], holding: Holding | None = None) -> list[int | None]:
        """All of it or nothing."""


def times_for(partitions: int) -> int:
    """How often each state is written: more often than KRaft is ahead by, in seconds at most."""
    return max(_LEAST, min(_MOST, _WRITES // max(1, partitions)))


def raise_versions(zookeeper: States, holding: Holding) -> tuple[int, int]:
    """Write every state as it is, under the fence; how many there are, and how often each was written.

    What somebody else writes meanwhile is read again; raises `Changed` where that does not end, and what was written until then stays.
    May be repeated.
    """
    paths = zookeeper.state_paths()
    times = times_for(len(paths))
    found = zookeeper.nodes(paths)
    count = 0
    while some := list(islice(found, max(1, _AT_ONCE // times))):
        _again(zookeeper, some, times, holding)
        count += len(some)
    return count, times


@retry(retry=retry_if_exception_type(Changed), stop=stop_after_attempt(_TRIES), reraise=True)
def _again(zookeeper: States, some: list[tuple[str, Znode]], times: int, holding: Holding) -> None:
    try:
        zookeeper.commit([Set(path, node.data, node.version + turn) for path, node in some for turn in range(times)], holding)
    except Changed:  # an ISR moved since it was read
        some[:] = zookeeper.nodes([path for path, _ in some])
        raise
