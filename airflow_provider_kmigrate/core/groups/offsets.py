"""Copying a group's committed offsets from one store to the other: what would be written, what is left as it is, what is refused.

Both stores mean the same, the next offset to read. An offset is never lowered unless a person asks for it (`reset`): the higher one
is work that was done. And no store is written while members live on its side: Kafka would refuse, and old consumers would write over it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, Store
from airflow_provider_kmigrate.core.coordination.registration import Unreadable
from airflow_provider_kmigrate.core.decision import Refuse
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.listing import summarize
from airflow_provider_kmigrate.core.model import Reason


@dataclass(frozen=True, slots=True)
class OffsetWrite:
    """One offset to write, over what stands there now; None: nothing, or nothing that can be read."""

    where: TopicPartition
    offset: int
    over: int | None


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """`writes` in order; `lower`: left alone because the target is ahead; `gone`: without a log that could be read from now."""

    group: str
    to: Store
    writes: tuple[OffsetWrite, ...] = ()
    lower: tuple[TopicPartition, ...] = ()
    gone: tuple[TopicPartition, ...] = ()


def plan(seen: GroupSeen, to: Store, *, reset: bool = False) -> CopyPlan | Refuse:
    """What is to be written to `to`. `reset`: lower what is ahead there, too."""
    refused = (*refusals(seen, to), *_unusable(seen, to))
    if refused:
        return Refuse(refused)
    source, target, ends = _usable(seen, _other(to)), _usable(seen, to), seen.ends or {}
    there = {where: offset for where, offset in source.items() if where in ends}
    writes, lower = _compared(there, target, reset=reset)
    return CopyPlan(seen.name, to, writes, lower, tuple(sorted(source.keys() - ends.keys())))


def raised(source: Mapping[TopicPartition, int], target: Mapping[TopicPartition, int]) -> tuple[OffsetWrite, ...]:
    """What is to be written so that the target is nowhere behind the source, for a group whose members live and write both."""
    return _compared(source, target, reset=False)[0]


def _compared(
    source: Mapping[TopicPartition, int], target: Mapping[TopicPartition, int], *, reset: bool
) -> tuple[tuple[OffsetWrite, ...], tuple[TopicPartition, ...]]:
    """What to write, and what to leave alone because the target is ahead."""
    writes, lower = [], []
    for where, offset in sorted(source.items()):
        over = target.get(where)
        if over is not None and over > offset and not reset:
            lower.append(where)
        elif over != offset:
            writes.append(OffsetWrite(where, offset, over))
    return tuple(writes), tuple(lower)


def outdated(made: CopyPlan, now: GroupSeen) -> tuple[Reason, ...]:
    """Why a plan may not be carried out on what is there now: its target must be as it was; the source may have moved on."""
    refused = tuple(refusals(now, made.to))
    if refused:
        return refused
    target = _usable(now, made.to)
    moved = [write.where for write in made.writes if target.get(write.where) != write.over]
    if not moved:
        return ()
    text = f"Offsets of {now.name} in {made.to} changed since the copy was planned: {summarize(where.name for where in moved)}."
    return (Reason("K74", text),)


def missing(made: CopyPlan, now: GroupSeen) -> tuple[OffsetWrite, ...]:
    """What was to be written and is not there: the proof by reading back."""
    target = _usable(now, made.to)
    return tuple(write for write in made.writes if target.get(write.where) != write.offset)


def refusals(seen: GroupSeen, to: Store) -> Iterator[Reason]:
    """Why nothing may be written to this side of a group now."""
    parts = {"ZooKeeper": seen.zk, "the Kafka group": seen.kafka, "its commits in Kafka": seen.committed, "its logs": seen.ends}
    if unread := [name for name, part in parts.items() if part is None]:
        text = f"Not read of {seen.name}: {', '.join(unread)}."
        yield Reason("K30", text)
    elif there := _there(seen, to):
        yield Reason("K71", f"{seen.name} has members in {to}: {summarize(there)}.")


def _there(seen: GroupSeen, to: Store) -> list[str]:
    """Whoever lives on that side; a group that Kafka shares out just now has somebody, too, and so have owners."""
    if to is Store.ZOOKEEPER and seen.zk is not None:
        return sorted({*seen.zk.registrations, *seen.zk.progress, *seen.zk.owners.values()})
    if seen.kafka is None:
        return []
    members = sorted(f"{member.client_id} on {member.host}" for member in seen.kafka.members)
    return members or ([] if seen.kafka.state in {"Empty", "Dead"} else [f"somebody (its state is {seen.kafka.state})"])


def _unusable(seen: GroupSeen, to: Store) -> Iterator[Reason]:
    stored = seen.zk.offsets if seen.zk and to is Store.KAFKA else {}
    broken = sorted((where, one.offset) for where, one in stored.items() if isinstance(one.offset, Unreadable))
    if broken:
        text = (
            f"Offsets of {seen.name} in zookeeper are no numbers: {summarize(f'{where.name}: {flaw}' for where, flaw in broken)}."
        )
        yield Reason("K42", text)
    source, ends = _usable(seen, _other(to)), seen.ends or {}
    if beyond := sorted(where for where, offset in source.items() if where in ends and offset > ends[where]):
        told = summarize(f"{where.name} at {source[where]} of {ends[where]}" for where in beyond)
        yield Reason("K42", f"Offsets of {seen.name} in {_other(to)} lie beyond their logs: {told}.")


def _usable(seen: GroupSeen, store: Store) -> Mapping[TopicPartition, int]:
    if store is Store.KAFKA:
        return seen.committed or {}
    return seen.in_zookeeper


def larger(one: Mapping[TopicPartition, int], other: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
    """Where `one` is larger, of the partitions that both have."""
    return frozenset(where for where, offset in one.items() if where in other and offset > other[where])


def _other(store: Store) -> Store:
    return Store.KAFKA if store is Store.ZOOKEEPER else Store.ZOOKEEPER
