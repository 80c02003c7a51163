"""Settled cuts: per partition the offset up to which an audit found everything acknowledged, delivered, committed and owned once.

The next audit reads what came after its cut, and adds it to the settled figures. Its verdict must be that of an audit of all events, so a cut
holds only as long as nothing arrives that is about what lies below it (`find_reopened`): such a partition is read whole again. A cut is a way
to read less, and never evidence by itself: if it is of another cluster, release, or policy, or is damaged, everything is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, astuple, dataclass, field
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.core.events.model import Ownership, TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.ledger.facts import Gap
from airflow_provider_kmigrate.core.ledger.ownership import owned_times
from airflow_provider_kmigrate.core.ledger.partition import CheckContext, PartitionChecked
from airflow_provider_kmigrate.core.ledger.prefix import GroupPrefix, Prefix
from airflow_provider_kmigrate.core.shared.foreign_json import read_json

VERSION: Final = 1
OPEN_MS: Final = 120_000
"""The newest events that a cut leaves open: clients write an event seconds after what it reports. Less costs time, never truth."""
MOST_REOPENED: Final = 0.1
"""Of the partitions with a cut: if more than that are to be read whole, everything is."""


@dataclass(frozen=True, slots=True)
class SettledKey:
    """What a cut belongs to, beside its event store: another one says nothing. `skew_ms` and `mixed` as in the audit's policy.

    `release`: of kmigrate, because another one may find more.
    """

    cluster_id: str
    skew_ms: int
    mixed: tuple[str, ...] = ()
    release: str = ""


@dataclass(frozen=True, slots=True)
class SettledWriter:
    """A writer whose events from number 0 to `last` were all read, each once. Times are ms since the epoch.

    `own_changes`: which of the numbers are changes of ownership, which the store keeps apart and gives whole each time.
    """

    first_ms: int
    last_ms: int
    last: int
    clock_lag_ms: int | None
    own_changes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SettledProducer:
    """What was acknowledged to a producer in the settled part of a partition. `number`: the highest of its record numbers in there.

    Records at the edge may be reported by events on both sides of it: those on the other side begin at the offset after `before`, and with
    the record number after `number_before`.
    """

    acked: int
    acked_first: int | None
    acked_last: int | None
    newest_ms: int | None
    stall_us: int | None
    number: int
    before: int
    number_before: int


@dataclass(frozen=True, slots=True)
class SettledPartition:
    """The settled part of a partition, up to and with offset `at`. `owners`: as `describe_owners` has them, by group."""

    at: int
    producers: Mapping[str, SettledProducer]
    groups: Mapping[str, GroupPrefix]
    owners: Mapping[str, str]

    @property
    def prefix(self) -> Prefix:
        """As the ledger takes it."""
        stalls = [producer.stall_us for producer in self.producers.values() if producer.stall_us is not None]
        return Prefix(
            self.at, sum(producer.acked for producer in self.producers.values()), max(stalls, default=None), self.groups
        )


@dataclass(frozen=True, slots=True)
class Settled:
    """What an audit settled. `names`: writer, group and member of all events that were read until then."""

    key: SettledKey
    writers: Mapping[str, SettledWriter] = field(default_factory=dict)
    names: frozenset[tuple[str, str, str | None]] = frozenset()
    partitions: Mapping[TopicPartition, SettledPartition] = field(default_factory=dict)


class WriterRow(NamedTuple):
    """How many events of a writer arrived: `n` rows with so many different `numbers`, between `lowest` and `last`."""

    writer: str
    t_lo: int
    t_hi: int
    last: int
    n: int
    numbers: int
    lowest: int
    clock_lag_ms: int | None


def join_accounts(writers: Mapping[str, SettledWriter], rows: Iterable[WriterRow]) -> list[WriterRow] | str:
    """The accounts of all events of all writers; or why they cannot be derived from the new events alone.

    A number again, or one below the last, may be another copy of a settled event, or differ from it.
    """
    arrived = {row.writer: row for row in rows}
    joined = [row for name, row in arrived.items() if name not in writers]
    for name, settled in writers.items():
        row = arrived.get(name, WriterRow(name, settled.first_ms, settled.last_ms, settled.last, 0, 0, settled.last + 1, None))
        if not row.n == row.numbers == row.last - settled.last or row.lowest != settled.last + 1:
            return f"{name} has events under numbers that were read before, or not all that follow"
        count = row.last + 1
        lag_ms = settled.clock_lag_ms if row.clock_lag_ms is None else row.clock_lag_ms
        times = min(settled.first_ms, row.t_lo), max(settled.last_ms, row.t_hi)
        joined.append(WriterRow(name, *times, row.last, count, count, 0, lag_ms))
    return joined


def settle_writers(rows: Iterable[WriterRow], own_changes: Mapping[str, Sequence[int]]) -> dict[str, SettledWriter] | str:
    """The writers whose accounts are settled; or which one has a hole or a repetition: then nothing is."""
    settled = {}
    for row in rows:
        if not row.n == row.numbers == row.last + 1:
            return f"the account of {row.writer} is not whole"
        changes = tuple(sorted(own_changes.get(row.writer, ())))
        settled[row.writer] = SettledWriter(row.t_lo, row.t_hi, row.last, row.clock_lag_ms, changes)
    return settled


def split_own_changes(
    writers: Mapping[str, SettledWriter], own_changes: Mapping[str, Sequence[int]]
) -> dict[str, set[int]] | str:
    """The numbers of the changes of ownership that are new, by writer; or whose settled ones are no longer what they were."""
    new = {name: set(numbers) for name, numbers in own_changes.items() if name not in writers}
    for name, settled in writers.items():
        numbers = sorted(own_changes.get(name, ()))
        if tuple(number for number in numbers if number <= settled.last) != settled.own_changes:
            return f"{name} has other changes of ownership than were read before"
        new[name] = {number for number in numbers if number > settled.last}
    return new


class Arrived(NamedTuple):
    """The least that new events of one kind say of a partition: of a group's member, a producer, or both.

    `lo`: an offset; `t_first_ms`: when a delivery began; `t_ms`: when an event was written; `seq`: a number of the member's deliveries;
    `producer_seq`: of a producer's records.
    """

    topic: str
    part: int
    row_kind: str
    consumer_group: str | None
    writer: str
    member: str | None
    producer: str | None
    lo: int
    t_first_ms: int | None
    t_ms: int
    seq: int | None
    producer_seq: int | None

    @property
    def where(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.part)


def find_reopened(
    settled: Mapping[TopicPartition, SettledPartition], arrivals: Iterable[Arrived], context: CheckContext
) -> dict[TopicPartition, str]:
    """The partitions whose cuts hold no longer, each with the reason: something arrived about what lies below."""
    reopened: dict[TopicPartition, str] = {}
    for arrived in arrivals:
        partition = settled.get(arrived.where)
        if partition is not None and (reason := _find_intrusion(partition, arrived, context.limits.skew_ms)):
            reopened.setdefault(arrived.where, reason)
    subscribed = {topic: context.subscribed_groups(topic) for topic in {where.topic for where in settled}}
    for where, partition in settled.items():
        if partition.prefix.acked and (more := subscribed[where.topic] - partition.groups.keys()):
            reopened.setdefault(where, f"group {min(more)} reads it, too")
        for group, prefix in partition.groups.items():
            if describe_owners(context, GroupPartition(group, *where), prefix.ended_ms) != partition.owners[group]:
                reopened.setdefault(where, f"its owners in group {group} have changed")
    return reopened


def _find_intrusion(partition: SettledPartition, arrived: Arrived, skew_ms: int) -> str:
    """What a new event says about the settled part; empty: nothing."""
    group = partition.groups.get(arrived.consumer_group or "")
    if arrived.row_kind == "commit":
        early = group is not None and arrived.t_ms + skew_ms < group.ended_ms
        return "a commit is older than its deliveries" if early else ""
    producer = partition.producers.get(arrived.producer or "")
    if arrived.lo <= partition.at:
        return f"offset {arrived.lo} was reported again or late"
    if producer is not None and arrived.producer_seq is not None and arrived.producer_seq <= producer.number:
        return f"{arrived.producer} has record {arrived.producer_seq} again"
    return "" if arrived.row_kind == "ack" else _find_delivery_intrusion(group, arrived)


def _find_delivery_intrusion(group: GroupPrefix | None, arrived: Arrived) -> str:
    if group is None:
        return f"group {arrived.consumer_group} reads it, too"
    if arrived.t_first_ms is None or arrived.t_first_ms < group.ended_ms:
        return "a delivery is older than those before it"
    counted = group.counted.get((arrived.writer, arrived.member or ""), 0)
    return "a member counts its deliveries again" if arrived.seq is None or arrived.seq < counted else ""


def describe_owners(context: CheckContext, key: GroupPartition, until_ms: int) -> str:
    """Who owned a partition until a time, by the members' own events; empty if the group reports no owners."""
    group = context.groups.get(key.group)
    if group is None or not group.reports_owners:
        return ""
    changes: Sequence[Ownership] = context.ownership.get(key, ())
    owned = (
        [owned.member, owned.from_ms, min(owned.to_ms, until_ms)] for owned in owned_times(changes) if owned.from_ms <= until_ms
    )
    return json.dumps(sorted(owned))


@dataclass(frozen=True, slots=True)
class GroupEnds:
    """How far a group came: every offset from `first` to `last` was delivered; `committed`: the last one before its commit, None: none."""

    first: int
    last: int
    committed: int | None


def choose_cut(
    acked: tuple[int, int] | None, groups: Mapping[str, GroupEnds], readers: AbstractSet[str], open_from: int | None
) -> int | None:
    """The offset up to which a partition can be settled in which nothing was found, or None.

    `acked`: the first and last offset that was acknowledged; `readers`: the groups that want it; `open_from`: the first offset that
    events report which are not older than `OPEN_MS`.
    """
    if not readers <= groups.keys() or (not groups and acked is None):
        return None
    if acked is not None and any(group.first > acked[0] for group in groups.values()):
        return None
    ends = [group.last for group in groups.values()]
    ends += [group.committed for group in groups.values() if group.committed is not None]
    ends += [] if acked is None else [acked[1]]
    ends += [] if open_from is None else [open_from - 1]
    cut = min(ends)
    begun = [group.first for group in groups.values()] + ([] if acked is None else [acked[0]])
    return cut if cut >= max(begun) else None


def is_to_be_confirmed(checked: PartitionChecked) -> bool:
    """True if something was found after a cut: then the whole partition is judged, so that no violation rests on a cut."""
    log = (checked.diverged, checked.stored_twice, checked.reordered)
    groups = [
        finding
        for group in checked.groups
        for dated in (group.redelivered, group.reordered, group.commit_gap, group.not_owned)
        for finding in (dated.now, dated.earlier)
    ]
    absent = [finding for group in checked.groups for finding in (group.lost, group.unclear)]
    return bool(checked.miscounted) or any(finding.count for finding in (*log, *groups, *absent))


def has_too_many(reopened: int, settled: int) -> bool:
    """True if so many cuts hold no longer that reading everything costs less."""
    return reopened > max(1.0, MOST_REOPENED * settled)


def as_document(settled: Settled) -> str:
    """As JSON."""
    partitions = [
        {
            "topic": where.topic,
            "part": where.partition,
            "at": partition.at,
            "producers": {name: astuple(producer) for name, producer in partition.producers.items()},
            "groups": {name: _group_values(group) for name, group in partition.groups.items()},
            "owners": dict(partition.owners),
        }
        for where, partition in sorted(settled.partitions.items())
    ]
    document = {
        "version": VERSION,
        "key": asdict(settled.key),
        "writers": {name: astuple(writer) for name, writer in sorted(settled.writers.items())},
        "names": sorted(settled.names, key=repr),
        "partitions": partitions,
    }
    return json.dumps(document)


def _group_values(group: GroupPrefix) -> list[Any]:
    counted = [[*name, count] for name, count in sorted(group.counted.items())]
    return [group.first, group.last, group.ended_ms, group.member, counted, astuple(group.gap)]


def parse_document(text: bytes, key: SettledKey) -> Settled:
    """The settled cuts of a document. Raises `ValueError` with the reason if they do not belong to the key, or cannot be understood."""
    try:
        document = read_json(text)
        if document["version"] != VERSION:
            raise ValueError(f"they have version {document['version']}, and this release reads version {VERSION}")
        _check_key(document["key"], key)
        return Settled(
            key,
            {name: _parse_writer(values) for name, values in document["writers"].items()},
            frozenset((writer, group, member) for writer, group, member in document["names"]),
            dict(map(_parse_partition, document["partitions"])),
        )
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise ValueError(f"they cannot be understood ({type(error).__name__})") from None


def _check_key(stored: Mapping[str, Any], key: SettledKey) -> None:
    for name, value in asdict(key).items():
        found = tuple(stored[name]) if isinstance(value, tuple) else stored[name]
        if found != value:
            raise ValueError(f"their {name} is {found!r}, not {value!r}")


def _parse_partition(values: Mapping[str, Any]) -> tuple[TopicPartition, SettledPartition]:
    producers = {name: SettledProducer(*row) for name, row in values["producers"].items()}
    groups = {name: _parse_group(row) for name, row in values["groups"].items()}
    return TopicPartition(values["topic"], values["part"]), SettledPartition(values["at"], producers, groups, values["owners"])


def _parse_writer(values: Sequence[Any]) -> SettledWriter:
    first_ms, last_ms, last, clock_lag_ms, own_changes = values
    return SettledWriter(first_ms, last_ms, last, clock_lag_ms, tuple(own_changes))


def _parse_group(values: Sequence[Any]) -> GroupPrefix:
    first, last, ended_ms, member, counted, gap = values
    group, topic, partition, ms, from_ms, to_ms, members, is_open = gap
    counts = {(writer, name): count for writer, name, count in counted}
    return GroupPrefix(
        first, last, ended_ms, member, counts, Gap(group, topic, partition, ms, from_ms, to_ms, tuple(members), is_open)
    )
