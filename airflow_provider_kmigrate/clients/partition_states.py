"""Complete topics that ZooKeeper holds in part, and raise the versions of partition states before a handover.

Partly created topics: a controller that writes KRaft's changes to ZooKeeper creates a topic by several concurrent requests: the
topic's znode, then `partitions`, each partition, its state. If ZooKeeper goes away in between and comes back, the writer retries,
finds the topic's znode and takes the topic for complete. Every later controller fails to update the missing state and retries
forever, so nothing is written to ZooKeeper any more. Once the missing znodes exist, it continues. Seen on real brokers (Kafka
3.9.2; ZooKeeper stopped for 9 s while topics were created; ZkTopicMigrationClient.createTopic and updateTopicPartitions).

Partition epochs: a ZooKeeper controller takes the version of the partition's state znode, KRaft counts changes. The copy takes
one for the other, then they drift apart: KRaft writes several changes of a partition as one, which raises the version by one only
(and each failover writes every znode). Brokers in migration mode keep KRaft's epochs over the handover. If these are ahead, they
skip the ZooKeeper controller's requests ("already at a newer partition epoch"), and the leader refuses every follower and
consumer with a newer leader epoch (UNKNOWN_LEADER_EPOCH), until it is restarted. So each state is rewritten unchanged to raise
its version. Measured: 4 of 6 handovers without an earlier failover, shortly after all brokers had started; ahead by one (Kafka
3.9.2; ZkTopicMigrationClient, Partition.makeLeader).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import Final

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.znodes import Create, Operation, Set
from airflow_provider_kmigrate.clients.zookeeper import Znode, ZooKeeper
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.model import Malformed
from airflow_provider_kmigrate.exceptions import Failed

_TOPICS: Final = "/brokers/topics/"
_WRITES: Final = 100_000  # in total, if that leaves enough for each
_MOST, _LEAST = 100, 10  # times that each is written
_AT_ONCE: Final = 500  # in one transaction, some 100 kB
_TRIES: Final = 5  # for one transaction


def missing_states(zookeeper: ZooKeeper) -> tuple[str, ...]:
    """The paths of the missing states. A topic under creation misses some for a moment, too."""
    paths = zookeeper.state_paths()
    there = {path for path, _ in zookeeper.nodes(paths)}
    return tuple(path for path in paths if path not in there)


def create_states(zookeeper: ZooKeeper, states: Sequence[str], holding: Holding) -> int:
    """Create these states and the znodes above them; returns how many. Raises `Changed` if another client created one meanwhile.

    A state has Kafka's defaults but no leader: every replica in sync, leader epoch 0. The leading controller overwrites it; until
    then the difference shows.
    """
    found = zookeeper.read("/controller_epoch")
    epoch = znodes.controller_epoch(found[0]) if found else 0
    if epoch is None:
        raise Failed("/controller_epoch does not have Kafka's format; no state was created")
    made = 0
    for path in states:
        topic, partition = path.removeprefix(_TOPICS).removesuffix("/state").split("/partitions/")
        found = zookeeper.read(f"{_TOPICS}{topic}")
        known = None if found is None else znodes.topic(topic, found[0])
        if known is None or isinstance(known, Malformed) or int(partition) not in known.partitions:
            continue  # deleted meanwhile
        state = {
            "controller_epoch": epoch,
            "leader": -1,
            "version": 1,
            "leader_epoch": 0,
            "isr": list(known.partitions[int(partition)].replicas),
        }
        zookeeper.commit(_missing(zookeeper, path, json.dumps(state, separators=(",", ":")).encode()), holding)
        made += 1
    return made


def _missing(zookeeper: ZooKeeper, state: str, data: bytes) -> list[Operation]:
    partition = state.removesuffix("/state")
    folder, _, _ = partition.rpartition("/")
    topic = folder.removesuffix("/partitions")
    above = [Create(path, like=topic) for path in (folder, partition) if zookeeper.read(path) is None]
    return [*above, Create(state, data, like=topic)]


def raise_versions(zookeeper: ZooKeeper, holding: Holding) -> tuple[int, int]:
    """Rewrite every state unchanged, under the fence; returns how many there are, and how often each was written.

    States that other clients write meanwhile are read again; raises `Changed` if that does not end, and earlier writes stay. May
    be repeated.
    """
    paths = zookeeper.state_paths()
    times = max(_LEAST, min(_MOST, _WRITES // max(1, len(paths))))  # more often than KRaft is ahead, yet within seconds
    found = zookeeper.nodes(paths)
    count = 0
    while some := list(islice(found, max(1, _AT_ONCE // times))):
        _again(zookeeper, some, times, holding)
        count += len(some)
    return count, times


@retry(retry=retry_if_exception_type(Changed), stop=stop_after_attempt(_TRIES), reraise=True)
def _again(zookeeper: ZooKeeper, some: list[tuple[str, Znode]], times: int, holding: Holding) -> None:
    try:
        zookeeper.commit([Set(path, node.data, node.version + turn) for path, node in some for turn in range(times)], holding)
    except Changed:  # an ISR moved since it was read
        some[:] = zookeeper.nodes([path for path, _ in some])
        raise
