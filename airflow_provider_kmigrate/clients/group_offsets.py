"""Carry out what `core.group_offsets` planned: look again, write, read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from airflow_provider_kmigrate.clients.admin import asked, connect, error_of
from airflow_provider_kmigrate.clients.batches import batches
from airflow_provider_kmigrate.clients.group_reads import seen
from airflow_provider_kmigrate.clients.zookeeper import CONSUMERS, Create, Holding, Operation, Set, ZooKeeper
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.group_offsets import CopyPlan, OffsetWrite, Store, missing, outdated
from airflow_provider_kmigrate.core.group_seen import GroupSeen
from airflow_provider_kmigrate.core.registration import GroupPaths, read_offset, write_offset
from airflow_provider_kmigrate.exceptions import Failed, Refused, Unavailable

_BATCH: Final = 500  # offsets of a transaction, or of a request
#: A coordinator that moves, or whose topic was made just now, answers NOT_COORDINATOR; the same offsets again change nothing.
_again = retry(retry=retry_if_exception_type(Unavailable), stop=stop_after_attempt(5), wait=wait_fixed(1.0), reraise=True)


def copy(zk: ZooKeeper, properties: Mapping[str, Any], plan: CopyPlan, holding: Holding, timeout: float = 30.0) -> GroupSeen:
    """Write every offset of the plan, and read it back; the group as it is then.

    Safe to repeat: a plan made anew has only what is left. Raises `Refused` (K70, K71, K74) where the target is not as the plan saw it,
    and nothing was written; `Fenced` where another run holds the cluster; `Changed` where somebody wrote at the same moment, and `Failed`
    where Kafka refused or what was read back is something else: then some may be written.
    """
    refused = outdated(plan, _look(zk, properties, plan, timeout))
    if refused:
        raise Refused.because(*refused)
    if plan.to is Store.ZOOKEEPER:
        _to_zookeeper(zk, plan, holding)
    else:
        zk.commit([], holding)  # nothing to write there, but the fence must be ours
        _to_kafka(properties, plan, timeout)
    after = _look(zk, properties, plan, timeout)
    if lost := missing(plan, after):
        raise Failed(f"{len(lost)} offsets of {plan.group} were written to {plan.to} and read back as others, such as {lost[0]}")
    return after


def _look(zk: ZooKeeper, properties: Mapping[str, Any], plan: CopyPlan, timeout: float) -> GroupSeen:
    return seen(zk, properties, [plan.group], timeout)[plan.group]


def _to_kafka(properties: Mapping[str, Any], plan: CopyPlan, timeout: float) -> None:
    admin = connect(properties)
    for writes in batches(plan.writes, _BATCH):
        _commit(admin, plan.group, writes, timeout)


@_again
def _commit(admin: AdminClient, group: str, writes: Sequence[OffsetWrite], timeout: float) -> None:
    wanted = [KafkaPartition(*write.where, write.offset) for write in writes]
    future = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)], request_timeout=timeout)[group]
    answer = asked(f"OffsetCommit of {group}", future, timeout)
    for refused in (one for one in answer.topic_partitions if one.error is not None):
        raise error_of(refused.error, f"OffsetCommit of {group} for {refused.topic}-{refused.partition}")


def _to_zookeeper(zk: ZooKeeper, plan: CopyPlan, holding: Holding) -> None:
    """Each znode from the version that holds what the plan saw; all of a batch or none."""
    paths = GroupPaths(plan.group)
    topics = sorted({write.where.topic for write in plan.writes})
    offsets = f"{paths.root}/offsets"
    for folder in (CONSUMERS, paths.root, offsets, *(f"{offsets}/{topic}" for topic in topics)) if topics else ():
        with suppress(Changed):  # it is there
            zk.commit([Create(folder)], holding)
    for writes in batches(plan.writes, _BATCH):
        zk.commit(_operations(zk, paths, writes), holding)


def _operations(zk: ZooKeeper, paths: GroupPaths, writes: Sequence[OffsetWrite]) -> list[Operation]:
    there = dict(zk.nodes(paths.offset(write.where) for write in writes))
    found: list[Operation] = []
    for write in writes:
        path, data = paths.offset(write.where), write_offset(write.offset)
        znode = there.get(path)
        over = None if znode is None else read_offset(znode.data)
        if (over if isinstance(over, int) and over >= 0 else None) != write.over:
            raise Changed(f"{path} holds {over}, not {write.over} as planned; nothing more was written")
        found.append(Create(path, data) if znode is None else Set(path, data, znode.version))
    return found
