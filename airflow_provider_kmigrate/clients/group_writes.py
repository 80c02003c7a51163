"""Writes to a consumer group: its mode of KIP-125, its hold, its offsets and recorded resets.

A hold notes that the group was rolled back (`core.coordination.registration`). `copy` carries out what `core.groups.offsets` planned.
Resets are offsets that an operator records; the next owners begin there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from airflow_provider_kmigrate.clients.group_reads import seen
from airflow_provider_kmigrate.clients.holding import UNFENCED_GAP, Holding
from airflow_provider_kmigrate.clients.wire_groups import commit
from airflow_provider_kmigrate.clients.znodes import CONSUMERS, Create, Delete, Operation, Set, batches
from airflow_provider_kmigrate.clients.zookeeper import Znode, ZooKeeper
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, Store, usable
from airflow_provider_kmigrate.core.coordination.registration import (
    GroupHold,
    GroupPaths,
    Mode,
    read_hold,
    read_offset,
    write_hold,
    write_offset,
)
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.groups.offsets import CopyPlan, OffsetWrite, missing, outdated, raised
from airflow_provider_kmigrate.exceptions import Failed, Refused, Unavailable


def note_hold(zk: ZooKeeper, group: str, hold: GroupHold, holding: Holding) -> None:
    """Note the hold, over one of an earlier run; this run's first hold stays. Raises as `ZooKeeper.commit`."""
    path = GroupPaths(group).hold
    found = zk.read(path)
    if found is not None and read_hold(found[0]).run == hold.run:
        return
    make_folders(zk, group, holding)
    zk.commit([_put(path, write_hold(hold), found)], holding=holding)


def forget_hold(zk: ZooKeeper, group: str, holding: Holding) -> None:
    """Delete the hold, if there is one. Raises as `ZooKeeper.commit`."""
    path = GroupPaths(group).hold
    found = zk.read(path)
    if found is not None:
        zk.commit([Delete(path, found[1])], holding=holding)


def make_folders(zk: ZooKeeper, group: str, holding: Holding) -> None:
    """Create the folders above our znodes of a group."""
    root = GroupPaths(group).root
    _make(zk, [CONSUMERS, root, f"{root}/migration"], holding)


def _make(zk: ZooKeeper, folders: Iterable[str], holding: Holding) -> None:
    for folder in folders:
        if zk.read(folder) is None:
            zk.commit([Create(folder)], holding=holding)


def _put(path: str, data: bytes, found: tuple[bytes, int] | None) -> Operation:
    """Write a znode from the version that was read, or as a new one."""
    return Create(path, data) if found is None else Set(path, data, found[1])


def write_mode(zk: ZooKeeper, group: str, mode: Mode, holding: Holding) -> None:
    """Write exactly the mode, from the version that was read, under the fence, and read it back.

    Raises `Changed` if another client writes meanwhile, `Fenced`, and `Failed` if it reads back differently.
    """
    paths = GroupPaths(group)
    make_folders(zk, group, holding)
    data = str(mode).encode()
    zk.commit([_put(paths.mode, data, zk.read(paths.mode))], holding=holding)
    after = zk.read(paths.mode)
    if after is None or after[0] != data:
        raise Failed(
            f"{paths.mode} was written as {data!r} but reads {after[0] if after else None!r}: another client also writes it"
        )


_BATCH: Final = 500  # offsets of a transaction, or of a request
#: A coordinator that moves, or whose topic was just created, answers NOT_COORDINATOR; committing the same offsets again is
#: harmless.
_commit = retry(retry=retry_if_exception_type(Unavailable), stop=stop_after_attempt(5), wait=wait_fixed(1.0), reraise=True)(
    commit
)


def copy(zk: ZooKeeper, properties: Mapping[str, Any], plan: CopyPlan, holding: Holding) -> GroupSeen:
    """Write every offset of the plan and read it back; returns the group as it is then.

    Safe to repeat: a new plan has only what is left. Raises `Refused` (K30, K71) if the target is not as planned, with
    nothing written; `Fenced` if another run holds the cluster; `Changed` if another client wrote at the same moment, and `Failed`
    if Kafka refused or another value was read back: then some may be written.
    """
    refused = outdated(plan, _observe(zk, properties, plan))
    if refused:
        raise Refused.because(*refused)
    if plan.to is Store.ZOOKEEPER:
        _write(zk, plan.group, plan.writes, holding)
    else:
        for writes in batches(plan.writes, _BATCH):
            _commit(properties, plan.group, {write.where: write.offset for write in writes}, UNFENCED_GAP, holding)
    after = _observe(zk, properties, plan)
    if lost := missing(plan, after):
        raise Failed(
            f"{len(lost)} offsets of {plan.group} were written to {plan.to} but read back differently, such as {lost[0]}"
        )
    return after


def _observe(zk: ZooKeeper, properties: Mapping[str, Any], plan: CopyPlan) -> GroupSeen:
    return seen(zk, properties, [plan.group])[plan.group]


def raise_in_zookeeper(zk: ZooKeeper, group: str, offsets: Mapping[TopicPartition, int], holding: Holding) -> None:
    """Raise ZooKeeper's offsets to these if they are lower or missing; never lower them (`core.groups.offsets.raised`).

    The members may be alive: each znode is written from the version that was compared. Raises as `ZooKeeper.commit`.
    """
    there = _nodes(zk, group, offsets)
    stored = usable({where: read_offset(znode.data) for where, znode in there.items()})
    _write(zk, group, raised(offsets, stored), holding)


def _write(zk: ZooKeeper, group: str, writes: Sequence[OffsetWrite], holding: Holding) -> None:
    """Write each znode from the version that holds the planned old value; all of a batch or none."""
    root = GroupPaths(group).root
    topics = sorted({write.where.topic for write in writes})
    for folder in (CONSUMERS, root, f"{root}/offsets", *(f"{root}/offsets/{topic}" for topic in topics)) if topics else ():
        with suppress(Changed):  # another client created it meanwhile
            _make(zk, [folder], holding)
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
    """The existing znodes of these offsets."""
    paths = {GroupPaths(group).offset(where): where for where in wheres}
    return {paths[path]: znode for path, znode in zk.nodes(paths)}


def record_reset(zk: ZooKeeper, group: str, wanted: Mapping[TopicPartition, int], holding: Holding) -> None:
    """Record all these resets or none, over earlier ones. Raises as `ZooKeeper.commit`."""
    paths = GroupPaths(group)
    make_folders(zk, group, holding)
    topics = sorted({where.topic for where in wanted})
    _make(zk, [paths.resets, *(f"{paths.resets}/{topic}" for topic in topics)], holding)
    offsets = {paths.reset(where): write_offset(offset) for where, offset in sorted(wanted.items())}
    zk.commit([_put(path, data, zk.read(path)) for path, data in offsets.items()], holding=holding)


def forget_reset(zk: ZooKeeper, group: str, wheres: Iterable[TopicPartition], holding: Holding) -> None:
    """Delete the recorded resets that exist; a holder that began at one keeps its position. Raises as `ZooKeeper.commit`."""
    paths = [GroupPaths(group).reset(where) for where in sorted(wheres)]
    found = {path: zk.read(path) for path in paths}
    zk.commit([Delete(path, node[1]) for path, node in found.items() if node is not None], holding=holding)
