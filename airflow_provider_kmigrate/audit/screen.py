"""The screen: aggregates prove partitions clean; the others are suspects, which the ledger checks whole.

A partition is clean if the ledger could find nothing in it:

- every writer of it has an account without a gap, a repetition or an unrecorded end
- every group was delivered each offset from first to last once, by offset and time, and counted from 0
- all that was acknowledged is between those two, no two records claim one offset, and producers' numbers go up
- nothing was committed before it was delivered, or delivered to a member that did not own the partition

So topics with transactions or compaction are always suspect, as are partitions whose newest records were not delivered yet. A
suspect costs time, never truth. Clean partitions are only counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.core.audit.settled import WriterRow
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.ledger.book import Book, GroupPartition, Writer
from airflow_provider_kmigrate.core.ledger.facts import Gap
from airflow_provider_kmigrate.core.ledger.health import Newest, is_flawed
from airflow_provider_kmigrate.core.ledger.ownership import owned_times
from airflow_provider_kmigrate.core.ledger.partition import CheckContext, GroupChecked, PartitionChecked

_Row = Mapping[str, Any]
_OWNED: Final = pa.schema(
    [(name, pa.string()) for name in ("consumer_group", "member", "topic")]
    + [("part", pa.int32()), ("t_lo", pa.int64()), ("t_hi", pa.int64())]
)


class GroupStart(NamedTuple):
    """A partition that a group reads. `begins`: the first offset that it was delivered, or else the first one acknowledged."""

    consumer_group: str
    topic: str
    part: int
    begins: int


@dataclass(frozen=True, slots=True)
class Screened:
    """The screen's result: `clean` partitions with their counts, and the `suspects`.

    `newest`: the newest evidence of all of them. `readings`: what each group reads of what was acknowledged. `places`: all partitions;
    `flawed`: suspects in which more is wrong than that something was not delivered yet. `accounts`: of all writers.
    """

    clean: list[PartitionChecked]
    suspects: set[TopicPartition]
    newest: Newest
    readings: list[GroupStart]
    places: Mapping[TopicPartition, Place] = field(default_factory=dict)
    flawed: set[TopicPartition] = field(default_factory=set)
    accounts: Accounts = field(default_factory=lambda: Accounts({}, [], {}))


@dataclass(slots=True)
class Place:
    """The aggregates of one partition: a row of `queries.ACKED` a producer, one of `queries.deliveries_query` a group."""

    acked: list[_Row] = field(default_factory=list)
    delivered: dict[str, _Row] = field(default_factory=dict)

    @property
    def acked_span(self) -> tuple[int, int] | None:
        """The first and the last offset that was acknowledged."""
        acked = [row for row in self.acked if row["acked"]]
        return (min(row["acked_lo"] for row in acked), max(row["acked_hi"] for row in acked)) if acked else None

    def has_flaw(self, members: Mapping[int, str]) -> bool:
        """True if the aggregates show a fault, or a member whose name is not known."""
        return any(row["suspect"] for row in (*self.acked, *self.delivered.values())) or any(
            not {row["code_from"], row["code"]} <= members.keys() for row in self.delivered.values()
        )


@dataclass(frozen=True, slots=True)
class Accounts:
    """Every writer's account.

    `repeated`: writers with events read more than once. `members`: by their codes in `queries.deliveries_query`.
    """

    writers: dict[str, Writer]
    repeated: list[str]
    members: dict[int, str]
    rows: list[WriterRow] = field(default_factory=list)


def read_accounts(engine: Engine, control_writers: Mapping[str, Writer], rows: list[WriterRow] | None = None) -> Accounts:
    """The accounts of all writers, from their events; in those of a `control_writers` events only each writer's first and last are right.

    `rows`: what the events say of each writer, None: they are asked.
    """
    if rows is None:
        rows = [WriterRow(**row) for row in engine.ask(queries.WRITERS).to_pylist()]
    groups: dict[str, set[str]] = defaultdict(set)
    members: dict[int, set[str]] = defaultdict(set)
    for row in engine.ask(queries.NAMES).to_pylist():
        groups[row["writer"]].add(row["consumer_group"])
        members[row["code"]].add(row["member"])
    repeated = [row.writer for row in rows if row.n > row.numbers]
    conflicts = _ask_numbers(engine, queries.CONFLICTS, repeated)
    holes = _ask_numbers(engine, queries.FIRST_MISSING, [row.writer for row in rows if row.numbers <= row.last])
    writers = {}
    for writer in rows:
        name = writer.writer
        writers[name] = _build_account(
            writer, control_writers.get(name), groups[name], (holes.get(name, 0), conflicts.get(name, 0))
        )
    return Accounts(writers, repeated, {code: names.pop() for code, names in members.items() if len(names) == 1}, rows)


def _build_account(row: WriterRow, control_writer: Writer | None, groups: Collection[str], flaws: tuple[int, int]) -> Writer:
    return Writer(
        row.writer,
        row.t_lo,
        row.t_hi,
        started=control_writer is not None and control_writer.started,
        stop=control_writer.stop
        if control_writer is not None and control_writer.stop is not None and control_writer.stop.stamp.event_seq == row.last
        else None,
        missing=row.last + 1 - row.numbers,
        first_missing=flaws[0],
        conflicts=flaws[1],
        clock_lag_ms=row.clock_lag_ms or 0,
        groups=frozenset(groups) | (control_writer.groups if control_writer else frozenset()),
    )


def _ask_numbers(engine: Engine, question: str, names: Collection[str]) -> dict[str, int]:
    """A number for each of these writers; no query if there are none."""
    if not names:
        return {}
    _attach_writers(engine, names)
    return {row["writer"]: row["number"] for row in engine.ask(question).to_pylist()}


def _attach_writers(engine: Engine, names: Iterable[str]) -> None:
    engine.attach("writers", [pa.table({"writer": pa.array(sorted(names), pa.string())})])


def screen_partitions(engine: Engine, book: Book, context: CheckContext, writer_accounts: Accounts) -> Screened:
    """Separate clean partitions from suspects."""
    limits = context.limits
    aggregates: dict[TopicPartition, Place] = defaultdict(Place)
    for row in engine.ask(queries.ACKED).to_pylist():
        aggregates[TopicPartition(row["topic"], row["part"])].acked.append(row)
    for row in engine.ask(queries.deliveries_query(limits.skew_ms)).to_pylist():
        aggregates[TopicPartition(row["topic"], row["part"])].delivered[row["consumer_group"]] = row
    flawed = {
        *writer_accounts.repeated,
        *(name for name, writer in writer_accounts.writers.items() if is_flawed(writer, limits.times)),
    }
    not_owned = {*_partitions_not_owned(engine, book)}
    suspects = {*_partitions_of_writers(engine, flawed), *not_owned} & aggregates.keys()
    subscribed = {topic: context.subscribed_groups(topic) for topic in {topic_partition.topic for topic_partition in aggregates}}
    suspects |= {
        topic_partition
        for topic_partition, aggregate in aggregates.items()
        if not _is_clean(aggregate, subscribed[topic_partition.topic], writer_accounts.members)
    }
    clean = [
        _count_clean(topic_partition, aggregate, writer_accounts.members)
        for topic_partition, aggregate in aggregates.items()
        if topic_partition not in suspects
    ]
    return Screened(
        clean,
        suspects,
        _newest_evidence(engine, aggregates, limits.times.since),
        list(_list_readings(aggregates, subscribed)),
        aggregates,
        not_owned | {where for where, aggregate in aggregates.items() if aggregate.has_flaw(writer_accounts.members)},
        writer_accounts,
    )


def _list_readings(aggregates: Mapping[TopicPartition, Place], subscribed: Mapping[str, Collection[str]]) -> Iterator[GroupStart]:
    for topic_partition, aggregate in aggregates.items():
        firsts = [row["acked_lo"] for row in aggregate.acked if row["acked_lo"] is not None]
        for group in {*subscribed[topic_partition.topic], *aggregate.delivered} if firsts else ():
            delivered = aggregate.delivered.get(group)
            yield GroupStart(group, *topic_partition, delivered["lo"] if delivered else min(firsts))


def _partitions_of_writers(engine: Engine, names: Collection[str]) -> Iterator[TopicPartition]:
    """The partitions that any of these writers wrote about."""
    if names:
        _attach_writers(engine, names)
        yield from _ask_partitions(engine, queries.PLACES_OF_WRITERS)


def _partitions_not_owned(engine: Engine, book: Book) -> Iterator[TopicPartition]:
    """The partitions with a delivery to a member that did not own them by its own account."""
    rows = [
        (key.group, owned_time.member, key.topic, key.partition, owned_time.from_ms, owned_time.to_ms)
        for key, changes in book.ownership.items()
        for owned_time in owned_times(changes)
    ]
    if rows:
        engine.attach("owned", [pa.table([list(values) for values in zip(*rows, strict=True)], schema=_OWNED)])
        yield from _ask_partitions(engine, queries.NOT_OWNED)


def _ask_partitions(engine: Engine, question: str) -> Iterator[TopicPartition]:
    for row in engine.ask(question).to_pylist():
        yield TopicPartition(row["topic"], row["part"])


def _is_clean(aggregate: Place, subscribed_groups: Collection[str], members: Mapping[int, str]) -> bool:
    """True if the aggregates show no fault, and every group that wants the partition was delivered all that was acknowledged."""
    if aggregate.has_flaw(members):
        return False
    if aggregate.acked_span is None:
        return True
    first, last = aggregate.acked_span
    readers = {*subscribed_groups, *aggregate.delivered}
    return all(
        group in aggregate.delivered and aggregate.delivered[group]["lo"] <= first and aggregate.delivered[group]["hi"] >= last
        for group in readers
    )


def _count_clean(topic_partition: TopicPartition, aggregate: Place, members: Mapping[int, str]) -> PartitionChecked:
    """A clean partition as the ledger would have checked it."""
    return PartitionChecked(
        topic_partition,
        acked=sum(row["acked"] for row in aggregate.acked),
        stall_us=max((row["stall_us"] for row in aggregate.acked if row["stall_us"] is not None), default=None),
        delivered={group: row["n"] for group, row in aggregate.delivered.items()},
        groups=tuple(
            GroupChecked(GroupPartition(group, *topic_partition), gap=_longest_gap(topic_partition, row, members))
            for group, row in sorted(aggregate.delivered.items())
        ),
    )


def _longest_gap(topic_partition: TopicPartition, row: _Row, members: Mapping[int, str]) -> Gap:
    ends = row["from_ms"], row["from_ms"] + row["ms"]
    return Gap(row["consumer_group"], *topic_partition, row["ms"], *ends, (members[row["code_from"]], members[row["code"]]))


def _newest_evidence(engine: Engine, aggregates: Mapping[TopicPartition, Place], since: int | None) -> Newest:
    newest = Newest()
    for topic_partition, aggregate in aggregates.items():
        for row in aggregate.acked:
            if row["t_hi"] is not None:
                newest.note_ack((row["producer"], *topic_partition), row["t_hi"])
        for group, row in aggregate.delivered.items():
            newest.note_delivery(GroupPartition(group, *topic_partition), row["t_hi"])
    if since is not None and newest.find_without_acks(since):
        slots = defaultdict(set)
        for row in engine.ask(queries.ack_slots_query(since, "everything")).to_pylist():
            slots[row["producer"], row["topic"], row["part"]].add(row["slot"])
        newest.slots |= {sending: frozenset(slot_numbers) for sending, slot_numbers in slots.items()}
    return newest
