"""Writes to a consumer group: its mode of KIP-125, its hold, its offsets and recorded resets.

A hold notes that the group was rolled back (`core.member.registration`). `copy` carries out what `core.groups.offsets` planned.
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
from airflow_provider_kmigrate.clients.znodes import CONSUMERS, Create, Delete, Operation, Set, Znode, batches
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.offsets import (
    CopyPlan,
    OffsetWrite,
    find_missing_writes,
    outdated_plan_reasons,
    plan_raising_writes,
)
from airflow_provider_kmigrate.core.member.cutover_note import CutoverNote, write_cutover
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, Store, usable_offsets
from airflow_provider_kmigrate.core.member.registration import (
    GroupHold,
    GroupPaths,
    Mode,
    encode_offset,
    read_hold,
    read_offset,
    write_hold,
)
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import Failed, Refused, Unavailable


def note_hold(zk: ZooKeeper, group: str, hold: GroupHold, holding: Holding) -> None:
    """Note the hold, over one of an earlier run; this run's first hold stays. Raises as `ZooKeeper.commit`."""
    path = GroupPaths(group).hold
    hold_znode = zk.read(path)
    if hold_znode is not None and read_hold(hold_znode[0]).run == hold.run:
        return
    make_folders(zk, group, holding)
    zk.commit([_write_operation(path, write_hold(hold), hold_znode)], holding=holding)


def forget_hold(zk: ZooKeeper, group: str, holding: Holding) -> None:
    """Delete the hold, if there is one. Raises as `ZooKeeper.commit`."""
    _delete_if_present(zk, GroupPaths(group).hold, holding)


def _delete_if_present(zk: ZooKeeper, path: str, holding: Holding) -> None:
    znode = zk.read(path)
    if znode is not None:
        zk.commit([Delete(path, znode[1])], holding=holding)


def note_cutover(zk: ZooKeeper, group: str, note: CutoverNote, holding: Holding) -> None:
    """Note how far the group's cutover is, from the version that was read. Raises as `ZooKeeper.commit`."""
    make_folders(zk, group, holding)
    path = GroupPaths(group).cutover
    zk.commit([_write_operation(path, write_cutover(note), zk.read(path))], holding=holding)


def forget_cutover(zk: ZooKeeper, group: str, holding: Holding) -> None:
    """Delete the note of the cutover, if there is one. Raises as `ZooKeeper.commit`."""
    _delete_if_present(zk, GroupPaths(group).cutover, holding)


def make_folders(zk: ZooKeeper, group: str, holding: Holding) -> None:
    """Create the folders above our znodes of a group."""
    root = GroupPaths(group).root
    _create_missing(zk, [CONSUMERS, root, f"{root}/migration"], holding)


def _create_missing(zk: ZooKeeper, folders: Iterable[str], holding: Holding) -> None:
    for folder in folders:
        if zk.read(folder) is None:
            zk.commit([Create(folder)], holding=holding)


def _write_operation(path: str, data: bytes, znode: tuple[bytes, int] | None) -> Operation:
    """Write a znode from the version that was read, or as a new one."""
    return Create(path, data) if znode is None else Set(path, data, znode[1])


def write_mode(zk: ZooKeeper, group: str, mode: Mode, holding: Holding) -> None:
    """Write exactly the mode, from the version that was read, under the fence, and read it back.

    Raises `Changed` if another client writes meanwhile, `Fenced`, and `Failed` if it reads back differently.
    """
    paths = GroupPaths(group)
    make_folders(zk, group, holding)
    data = str(mode).encode()
    zk.commit([_write_operation(paths.mode, data, zk.read(paths.mode))], holding=holding)
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


def copy_offsets(zk: ZooKeeper, properties: Mapping[str, Any], plan: CopyPlan, holding: Holding) -> GroupSeen:
    """Write every offset of the plan and read it back; returns the group as it is then.

    Safe to repeat: a new plan has only what is left. Raises `Refused` (K30, K71) if the target is not as planned, with
    nothing written; `Fenced` if another run holds the cluster; `Changed` if another client wrote at the same moment, and `Failed`
    if Kafka refused or another value was read back: then some may be written.
    """
    refused = outdated_plan_reasons(plan, _observe_group(zk, properties, plan))
    if refused:
        raise Refused.because(*refused)
    if plan.to is Store.ZOOKEEPER:
        _write_offsets(zk, plan.group, plan.writes, holding)
    else:
        commit_in_kafka(properties, plan, holding)
    after = _observe_group(zk, properties, plan)
    if lost := find_missing_writes(plan, after):
        raise Failed(
            f"{count_of(len(lost), f'offset of {plan.group} was', f'offsets of {plan.group} were')} written to {plan.to} but read back differently, such as {lost[0]}"
        )
    return after


def commit_in_kafka(properties: Mapping[str, Any], plan: CopyPlan, holding: Holding) -> None:
    """Commit the plan's offsets for a group without members. Raises `Fenced`; `Failed` if Kafka refused: then some may be written."""
    for writes in batches(plan.writes, _BATCH):
        _commit(properties, plan.group, {write.where: write.offset for write in writes}, UNFENCED_GAP, holding)


def _observe_group(zk: ZooKeeper, properties: Mapping[str, Any], plan: CopyPlan) -> GroupSeen:
    return seen(zk, properties, [plan.group])[plan.group]


def raise_in_zookeeper(zk: ZooKeeper, group: str, offsets: Mapping[TopicPartition, int], holding: Holding) -> None:
    """Raise ZooKeeper's offsets to these if they are lower or missing; never lower them (`core.groups.offsets.plan_raising_writes`).

    The members may be alive: each znode is written from the version that was compared. Raises as `ZooKeeper.commit`.
    """
    existing_znodes = _read_offset_znodes(zk, group, offsets)
    stored = usable_offsets({topic_partition: read_offset(znode.data) for topic_partition, znode in existing_znodes.items()})
    _write_offsets(zk, group, plan_raising_writes(offsets, stored), holding)


def _write_offsets(zk: ZooKeeper, group: str, writes: Sequence[OffsetWrite], holding: Holding) -> None:
    """Write each znode from the version that holds the planned old value; all of a batch or none."""
    root = GroupPaths(group).root
    topics = sorted({write.where.topic for write in writes})
    for folder in (CONSUMERS, root, f"{root}/offsets", *(f"{root}/offsets/{topic}" for topic in topics)) if topics else ():
        with suppress(Changed):  # another client created it meanwhile
            _create_missing(zk, [folder], holding)
    for batch in batches(writes, _BATCH):
        zk.commit(_build_operations(zk, group, batch), holding)


def _build_operations(zk: ZooKeeper, group: str, writes: Sequence[OffsetWrite]) -> list[Operation]:
    paths, existing_znodes = GroupPaths(group), _read_offset_znodes(zk, group, [write.where for write in writes])
    operations: list[Operation] = []
    for write in writes:
        path, data, znode = paths.offset(write.where), encode_offset(write.offset), existing_znodes.get(write.where)
        over = usable_offsets({write.where: read_offset(znode.data)} if znode else {}).get(write.where)
        if over != write.over:
            raise Changed(f"{path} holds {over}, not {write.over} as planned; nothing more was written")
        operations.append(Create(path, data) if znode is None else Set(path, data, znode.version))
    return operations


def _read_offset_znodes(zk: ZooKeeper, group: str, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Znode]:
    """The existing znodes of these offsets."""
    paths = {GroupPaths(group).offset(topic_partition): topic_partition for topic_partition in topic_partitions}
    return {paths[path]: znode for path, znode in zk.read_znodes(paths)}


def record_reset(zk: ZooKeeper, group: str, resets: Mapping[TopicPartition, int], holding: Holding) -> None:
    """Record all these resets or none, over earlier ones. Raises as `ZooKeeper.commit`."""
    paths = GroupPaths(group)
    make_folders(zk, group, holding)
    topics = sorted({topic_partition.topic for topic_partition in resets})
    _create_missing(zk, [paths.resets, *(f"{paths.resets}/{topic}" for topic in topics)], holding)
    offsets = {paths.reset(topic_partition): encode_offset(offset) for topic_partition, offset in sorted(resets.items())}
    zk.commit([_write_operation(path, data, zk.read(path)) for path, data in offsets.items()], holding=holding)


def forget_reset(zk: ZooKeeper, group: str, topic_partitions: Iterable[TopicPartition], holding: Holding) -> None:
    """Delete the recorded resets that exist; a holder that began at one keeps its position. Raises as `ZooKeeper.commit`."""
    paths = [GroupPaths(group).reset(topic_partition) for topic_partition in sorted(topic_partitions)]
    reset_znodes = {path: zk.read(path) for path in paths}
    zk.commit([Delete(path, node[1]) for path, node in reset_znodes.items() if node is not None], holding=holding)
