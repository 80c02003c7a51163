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
from typing import Any, Final

import pyarrow as pa

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.core.events import TopicPartition
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


@dataclass(frozen=True, slots=True)
class Screened:
    """The screen's result: `clean` partitions with their counts, and the `suspects`.

    `newest`: the newest evidence of all of them.
    """

    clean: list[PartitionChecked]
    suspects: set[TopicPartition]
    newest: Newest


@dataclass(slots=True)
class _Place:
    """The aggregates of one partition: a row of `queries.ACKED` a producer, one of `queries.delivered` a group."""

    acked: list[_Row] = field(default_factory=list)
    delivered: dict[str, _Row] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accounts:
    """Every writer's account.

    `repeated`: writers with events read more than once. `members`: by their codes in `queries.delivered`.
    """

    writers: dict[str, Writer]
    repeated: list[str]
    members: dict[int, str]


def accounts(engine: Engine, few: Mapping[str, Writer]) -> Accounts:
    """The accounts of all writers, from their events; in those of a `few` events only each writer's first and last are right."""
    rows = engine.ask(queries.WRITERS).to_pylist()
    groups: dict[str, set[str]] = defaultdict(set)
    members: dict[int, set[str]] = defaultdict(set)
    for row in engine.ask(queries.NAMES).to_pylist():
        groups[row["writer"]].add(row["consumer_group"])
        members[row["code"]].add(row["member"])
    repeated = [row["writer"] for row in rows if row["n"] > row["numbers"]]
    conflicts = _numbers(engine, queries.CONFLICTS, repeated)
    holes = _numbers(engine, queries.FIRST_MISSING, [row["writer"] for row in rows if row["numbers"] <= row["last"]])
    found = {}
    for row in rows:
        name = row["writer"]
        found[name] = _account(row, few.get(name), groups[name], (holes.get(name, 0), conflicts.get(name, 0)))
    return Accounts(found, repeated, {code: names.pop() for code, names in members.items() if len(names) == 1})


def _account(row: _Row, few: Writer | None, groups: Collection[str], flaws: tuple[int, int]) -> Writer:
    return Writer(
        row["writer"],
        row["t_lo"],
        row["t_hi"],
        started=few is not None and few.started,
        stop=few.stop if few is not None and few.stop is not None and few.stop.stamp.event_seq == row["last"] else None,
        missing=row["last"] + 1 - row["numbers"],
        first_missing=flaws[0],
        conflicts=flaws[1],
        clock_lag_ms=row["clock_lag_ms"] or 0,
        groups=frozenset(groups) | (few.groups if few else frozenset()),
    )


def _numbers(engine: Engine, question: str, names: Collection[str]) -> dict[str, int]:
    """A number for each of these writers; no query if there are none."""
    if not names:
        return {}
    _attach_writers(engine, names)
    return {row["writer"]: row["number"] for row in engine.ask(question).to_pylist()}


def _attach_writers(engine: Engine, names: Iterable[str]) -> None:
    engine.attach("writers", [pa.table({"writer": pa.array(sorted(names), pa.string())})])


def screen(engine: Engine, book: Book, context: CheckContext, found: Accounts) -> Screened:
    """Separate clean partitions from suspects."""
    limits = context.limits
    places: dict[TopicPartition, _Place] = defaultdict(_Place)
    for row in engine.ask(queries.ACKED).to_pylist():
        places[TopicPartition(row["topic"], row["part"])].acked.append(row)
    for row in engine.ask(queries.delivered(limits.skew_ms)).to_pylist():
        places[TopicPartition(row["topic"], row["part"])].delivered[row["consumer_group"]] = row
    flawed = {*found.repeated, *(name for name, writer in found.writers.items() if is_flawed(writer, limits.times))}
    suspects = {*_of_writers(engine, flawed), *_not_owned(engine, book)} & places.keys()
    topics = {topic: context.wanting(topic) for topic in {where.topic for where in places}}
    suspects |= {where for where, place in places.items() if not _is_clean(place, topics[where.topic], found.members)}
    clean = [_counted(where, place, found.members) for where, place in places.items() if where not in suspects]
    return Screened(clean, suspects, _newest(engine, places, limits.times.since))


def _of_writers(engine: Engine, names: Collection[str]) -> Iterator[TopicPartition]:
    """The partitions that any of these writers wrote about."""
    if names:
        _attach_writers(engine, names)
        yield from _places(engine, queries.PLACES_OF_WRITERS)


def _not_owned(engine: Engine, book: Book) -> Iterator[TopicPartition]:
    """The partitions with a delivery to a member that did not own them by its own account."""
    rows = [
        (key.group, one.member, key.topic, key.partition, one.from_ms, one.to_ms)
        for key, changes in book.ownership.items()
        for one in owned_times(changes)
    ]
    if rows:
        engine.attach("owned", [pa.table([list(values) for values in zip(*rows, strict=True)], schema=_OWNED)])
        yield from _places(engine, queries.NOT_OWNED)


def _places(engine: Engine, question: str) -> Iterator[TopicPartition]:
    for row in engine.ask(question).to_pylist():
        yield TopicPartition(row["topic"], row["part"])


def _is_clean(place: _Place, wanting: Collection[str], members: Mapping[int, str]) -> bool:
    """True if the aggregates show no fault, and every group that wants the partition was delivered all that was acknowledged."""
    acked = [row for row in place.acked if row["acked"]]
    if any(row["suspect"] for row in (*place.acked, *place.delivered.values())):
        return False
    if any(not {row["code_from"], row["code"]} <= members.keys() for row in place.delivered.values()):
        return False
    if not acked:
        return True
    first, last = min(row["acked_lo"] for row in acked), max(row["acked_hi"] for row in acked)
    readers = {*wanting, *place.delivered}
    return all(
        group in place.delivered and place.delivered[group]["lo"] <= first and place.delivered[group]["hi"] >= last
        for group in readers
    )


def _counted(where: TopicPartition, place: _Place, members: Mapping[int, str]) -> PartitionChecked:
    """A clean partition as the ledger would have checked it."""
    return PartitionChecked(
        where,
        acked=sum(row["acked"] for row in place.acked),
        stall_us=max((row["stall_us"] for row in place.acked if row["stall_us"] is not None), default=None),
        delivered={group: row["n"] for group, row in place.delivered.items()},
        groups=tuple(
            GroupChecked(GroupPartition(group, *where), gap=_gap(where, row, members))
            for group, row in sorted(place.delivered.items())
        ),
    )


def _gap(where: TopicPartition, row: _Row, members: Mapping[int, str]) -> Gap:
    ends = row["from_ms"], row["from_ms"] + row["ms"]
    return Gap(row["consumer_group"], *where, row["ms"], *ends, (members[row["code_from"]], members[row["code"]]))


def _newest(engine: Engine, places: Mapping[TopicPartition, _Place], since: int | None) -> Newest:
    newest = Newest()
    for where, place in places.items():
        for row in place.acked:
            if row["t_hi"] is not None:
                newest.note_ack((row["producer"], *where), row["t_hi"])
        for group, row in place.delivered.items():
            newest.note_delivery(GroupPartition(group, *where), row["t_hi"])
    if since is not None and newest.without_acks(since):
        slots = defaultdict(set)
        for row in engine.ask(queries.ack_slots(since)).to_pylist():
            slots[row["producer"], row["topic"], row["part"]].add(row["slot"])
        newest.slots |= {sending: frozenset(found) for sending, found in slots.items()}
    return newest
