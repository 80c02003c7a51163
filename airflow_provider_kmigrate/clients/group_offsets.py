"""Carry out what `core.groups.offsets` planned: look again, write, read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from airflow_provider_kmigrate.clients.batches import batches
from airflow_provider_kmigrate.clients.group_reads import seen
from airflow_provider_kmigrate.clients.wire_groups import commit
from airflow_provider_kmigrate.clients.znode_writes import CONSUMERS, Create, Operation, Set
from airflow_provider_kmigrate.clients.zookeeper import Holding, Znode, ZooKeeper
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, Store, usable
from airflow_provider_kmigrate.core.coordination.registration import GroupPaths, read_offset, write_offset
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.groups.offsets import CopyPlan, OffsetWrite, missing, outdated, raised
from airflow_provider_kmigrate.exceptions import Failed, Refused, Unavailable

_BATCH: Final = 500  # offsets of a transaction, or of a request
#: A coordinator that moves, or whose topic was made just now, answers NOT_COORDINATOR; the same offsets again change nothing.
_commit = retry(retry=retry_if_exception_type(Unavailable), stop=stop_after_attempt(5), wait=wait_fixed(1.0), reraise=True)(
    commit
)


def copy(zk: ZooKeeper, properties: Mapping[str, Any], plan: CopyPlan, holding: Holding, timeout: float = 30.0) -> GroupSeen:
    """Write every offset of the plan, and read it back; the group as it is then.

    Safe to repeat: a plan made anew has only what is left. Raises `Refused` (K30, K71, K74) where the target is not as the plan saw it,
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
    for writes in batches(plan.writes, _BATCH):
        _commit(properties, plan.group, {write.where: write.offset for write in writes}, timeout)


def raise_in_zookeeper(zk: ZooKeeper, group: str, offsets: Mapping[TopicPartition, int], holding: Holding) -> None:
    """These offsets into ZooKeeper where those there are lower or missing, never lower (`core.groups.offsets.raised`).

    Its members may live: each znode is written from the version in which it was compared. Raises as `ZooKeeper.commit`.
    """
    there = _nodes(zk, group, offsets)
    stored = usable({where: read_offset(znode.data) for where, znode in there.items()})
    _write(zk, group, raised(offsets, stored), holding)


def _to_zookeeper(zk: ZooKeeper, plan: CopyPlan, holding: Holding) -> None:
    _write(zk, plan.group, plan.writes, holding)


def _write(zk: ZooKeeper, group: str, writes: Sequence[OffsetWrite], holding: Holding) -> None:
    """Each znode from the version that holds what was planned over; all of a batch or none."""
    root = GroupPaths(group).root
    topics = sorted({write.where.topic for write in writes})
    for folder in (CONSUMERS, root, f"{root}/offsets", *(f"{root}/offsets/{topic}" for topic in topics)) if topics else ():
        if zk.read(folder) is None:
            with suppress(Changed):  # somebody else made it meanwhile
                zk.commit([Create(folder)], holding)
    for batch in batches(writes, _BATCH):
        zk.commit(_operations(zk, group, batch), holding)


def _operations(zk: ZooKeeper, group: str, writes: Sequence[OffsetWrite]) -> list[Operation]:
    paths, there = GroupPaths(group), _nodes(zk, group, [write.where for write in writes])
    found: list[Operation] = []
    for write in writes:
        path, data, znode = paths.offset(write.where), write_offset(write.offset), there.get(write.where)
        over = usable({write.where: read_offset(znode.data)} if znode else {}).get(write.where)
        if over != write.over:
            raise Changed(f"{path} holds {over}, not {write.over} as planned; nothing more was written")
        found.append(Create(path, data) if znode is None else Set(path, data, znode.version))
    return found


def _nodes(zk: ZooKeeper, group: str, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, Znode]:
    """The offsets' znodes that are there."""
    paths = {GroupPaths(group).offset(where): where for where in wheres}
    return {paths[path]: znode for path, znode in zk.nodes(paths)}
