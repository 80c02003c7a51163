"""Complete topics that ZooKeeper holds in part, and prepare partition states for a handover.

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
Brokers that do not answer: a ZooKeeper controller that starts reads who leads from the states, and takes a broker for alive whose
new process has registered. If that broker's machine lost its power, its log is shorter than what it acknowledged, and as leader it
makes the other replicas truncate to it. So the states are written without such brokers, as a controller does that sees them fail
(KafkaController.removeReplicasFromIsr, OfflinePartitionLeaderElectionStrategy, 3.9): out of the ISR, another in-sync replica leads,
one leader epoch more. A partition of which no other replica is in sync stays as it is: no other replica has its records.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.znodes import Create, Operation, Set, Znode
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.cluster_state.model import Malformed
from airflow_provider_kmigrate.core.cluster_state.znode_formats import STATE, require_known_version
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.exceptions import Failed

_TOPICS: Final = "/brokers/topics/"
_WRITES: Final = 100_000  # in total, if that leaves enough for each
_MOST, _LEAST = 100, 10  # times that each is written
_AT_ONCE: Final = 500  # in one transaction, some 100 kB
_TRIES: Final = 5  # for one transaction


def find_missing_states(zookeeper: ZooKeeper) -> tuple[str, ...]:
    """The paths of the missing states. A topic under creation misses some for a moment, too."""
    paths = zookeeper.state_paths()
    existing_paths = {path for path, _ in zookeeper.read_znodes(paths)}
    return tuple(path for path in paths if path not in existing_paths)


def create_states(zookeeper: ZooKeeper, states: Sequence[str], holding: Holding) -> int:
    """Create these states and the znodes above them; returns how many. Raises `Changed` if another client created one meanwhile.

    A state has Kafka's defaults but no leader: every replica in sync, leader epoch 0. The leading controller overwrites it; until
    then the difference shows.
    """
    znode = zookeeper.read("/controller_epoch")
    epoch = znodes.parse_controller_epoch(znode[0]) if znode else 0
    if epoch is None:
        raise Failed("/controller_epoch does not have Kafka's format; no state was created")
    made = 0
    for path in states:
        topic, partition = path.removeprefix(_TOPICS).removesuffix("/state").split("/partitions/")
        znode = zookeeper.read(f"{_TOPICS}{topic}")
        topic_metadata = None if znode is None else znodes.parse_topic(topic, znode[0])
        if topic_metadata is None or isinstance(topic_metadata, Malformed) or int(partition) not in topic_metadata.partitions:
            continue  # deleted meanwhile
        state = {
            "controller_epoch": epoch,
            "leader": -1,
            "version": 1,
            "leader_epoch": 0,
            "isr": list(topic_metadata.partitions[int(partition)].replicas),
        }
        zookeeper.commit(_build_creations(zookeeper, path, json.dumps(state, separators=(",", ":")).encode()), holding)
        made += 1
    return made


def _build_creations(zookeeper: ZooKeeper, state: str, data: bytes) -> list[Operation]:
    partition = state.removesuffix("/state")
    folder, _, _ = partition.rpartition("/")
    topic = folder.removesuffix("/partitions")
    above = [Create(path, like=topic) for path in (folder, partition) if zookeeper.read(path) is None]
    return [*above, Create(state, data, like=topic)]


@dataclass(frozen=True, slots=True)
class StatesWritten:
    """`states`: how many there are; `times`: how often each was written; `without`: of how many unresponsive brokers were taken out."""

    states: int
    times: int
    without: int = 0


def raise_versions(zookeeper: ZooKeeper, holding: Holding, unresponsive: Collection[int] = ()) -> StatesWritten:
    """Rewrite every state, under the fence: unchanged, but without the `unresponsive` brokers.

    States that other clients write meanwhile are read again; raises `Changed` if that does not end, and earlier writes stay. May
    be repeated.
    """
    paths = zookeeper.state_paths()
    times = max(_LEAST, min(_MOST, _WRITES // max(1, len(paths))))  # more often than KRaft is ahead, yet within seconds
    state_znodes = zookeeper.read_znodes(paths)
    count = without = 0
    while batch := list(islice(state_znodes, max(1, _AT_ONCE // times))):
        without += _write_again(zookeeper, batch, times, holding, unresponsive)
        count += len(batch)
    return StatesWritten(count, times, without)


@retry(retry=retry_if_exception_type(Changed), stop=stop_after_attempt(_TRIES), reraise=True)
def _write_again(
    zookeeper: ZooKeeper, batch: list[tuple[str, Znode]], times: int, holding: Holding, unresponsive: Collection[int]
) -> int:
    written = [(path, node, state_without_brokers(node.data, unresponsive)) for path, node in batch]
    try:
        zookeeper.commit([Set(path, data, node.version + turn) for path, node, data in written for turn in range(times)], holding)
    except Changed:  # an ISR moved since it was read
        batch[:] = zookeeper.read_znodes([path for path, _ in batch])
        raise
    return sum(data != node.data for _, node, data in written)


def state_without_brokers(state: bytes, unresponsive: Collection[int]) -> bytes:
    """A partition state without these brokers in its ISR or as its leader; unchanged if no other broker is in sync, or it has another form or version.

    JSON, as KafkaZkClient writes it: {"controller_epoch":4,"leader":2,"version":1,"leader_epoch":7,"isr":[2,0]}.
    """
    try:
        fields = read_json(state)
        require_known_version(STATE, fields)
    except (ValueError, TypeError, AttributeError):
        return state
    if (
        not isinstance(fields, dict)
        or not isinstance(isr := fields.get("isr"), list)
        or any(type(number) is not int for number in (*isr, fields.get("leader"), fields.get("leader_epoch")))
    ):
        return state
    remaining_isr = [broker for broker in isr if broker not in unresponsive]
    if not remaining_isr or (remaining_isr == isr and fields.get("leader") not in unresponsive):
        return state
    leader = fields["leader"] if fields.get("leader") in remaining_isr else remaining_isr[0]
    changed = {**fields, "leader": leader, "leader_epoch": fields["leader_epoch"] + 1, "isr": remaining_isr}
    return json.dumps(changed, separators=(",", ":")).encode()
