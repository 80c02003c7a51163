"""Which partitions are suspect? Aggregates prove the others clean; what they cannot prove is looked at by the ledger, whole.

A partition is clean when the ledger could find nothing in it:

- every writer of it has an account without a hole, a repetition or an end that was not told
- every group was delivered each offset from its first to its last once, in the order of offsets and of time, and counted them from 0
- all that was acknowledged lies between those two, no two records claim one offset, and producers' numbers go up
- nothing was committed before it was delivered, or delivered to a member that did not own the partition

So topics with transactions or compaction are always suspect, as are partitions whose newest records were not delivered yet. A suspect
costs time, never truth. What is clean is only counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.control import Control
from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.ledger.book import Book, GroupPartition, Writer, matches
from airflow_provider_kmigrate.core.ledger.facts import Gap
from airflow_provider_kmigrate.core.ledger.health import Newest, is_flawed
from airflow_provider_kmigrate.core.ledger.ownership import owned_times
from airflow_provider_kmigrate.core.ledger.partition import Checked, GroupChecked, Setting

_Row = Mapping[str, Any]
_OWNED: Final = pa.schema(
    [(name, pa.string()) for name in ("consumer_group", "member", "topic")]
    + [("part", pa.int32()), ("t_lo", pa.int64()), ("t_hi", pa.int64())]
)


@dataclass(frozen=True, slots=True)
class Screened:
    """`clean` partitions with what they come to, and the `suspects`. `newest`: the newest evidence of all of them."""

    clean: list[Checked]
    suspects: set[TopicPartition]
    newest: Newest


@dataclass(slots=True)
class _Place:
    """What the aggregates say of one partition: a row of `queries.ACKED` a producer, one of `queries.delivered` a group."""

    acked: list[_Row] = field(default_factory=list)
    delivered: dict[str, _Row] = field(default_factory=dict)


def writers(engine: Engine, control: Control) -> tuple[dict[str, Writer], list[str]]:
    """Every writer's account, and those of whom some event was read more than once."""
    book = Book.of(
        control.events
    )  # its accounts are of these few events, of which only the first and last are what they are of all
    rows = engine.ask(queries.WRITERS).to_pylist()
    repeated = [row["writer"] for row in rows if row["repeated"]]
    conflicts = _conflicts(engine, repeated) if repeated else {}
    groups: dict[str, set[str]] = defaultdict(set)
    for row in engine.ask(queries.GROUPS_OF_WRITERS).to_pylist():
        groups[row["writer"]].add(row["consumer_group"])
    return {row["writer"]: _account(row, book.writers.get(row["writer"]), groups, conflicts) for row in rows}, repeated


def _account(row: _Row, few: Writer | None, groups: Mapping[str, set[str]], conflicts: Mapping[str, int]) -> Writer:
    name = row["writer"]
    stop = None if few is None or few.stop is None or few.stop.stamp.event_seq != row["last"] else few.stop
    return Writer(
        name,
        row["t_lo"],
        row["t_hi"],
        started=few is not None and few.started,
        stop=stop,
        missing=row["missing"],
        first_missing=row["first_missing"] or 0,
        conflicts=conflicts.get(name, 0),
        clock_lag_ms=row["clock_lag_ms"] or 0,
        groups=frozenset(groups.get(name, set()) | (few.groups if few else frozenset())),
    )


def _conflicts(engine: Engine, names: Iterable[str]) -> dict[str, int]:
    _attach_writers(engine, names)
    return {row["writer"]: row["n"] for row in engine.ask(queries.CONFLICTS).to_pylist()}


def _attach_writers(engine: Engine, names: Iterable[str]) -> None:
    engine.attach("writers", [pa.table({"writer": pa.array(sorted(names), pa.string())})])


def screen(engine: Engine, book: Book, setting: Setting, repeated: Collection[str]) -> Screened:
    """Tell clean partitions from suspects. `repeated`: writers of whom some event was read more than once."""
    limits = setting.limits
    places: dict[TopicPartition, _Place] = defaultdict(_Place)
    for row in engine.ask(queries.ACKED).to_pylist():
        places[TopicPartition(row["topic"], row["part"])].acked.append(row)
    for row in engine.ask(queries.delivered(limits.skew_ms, limits.window)).to_pylist():
        places[TopicPartition(row["topic"], row["part"])].delivered[row["consumer_group"]] = row
    flawed = {*repeated, *(name for name, writer in book.writers.items() if is_flawed(writer, limits.times))}
    suspects = {*_of_writers(engine, flawed), *_not_owned(engine, book)} & places.keys()
    topics = {topic: _wanting(setting, topic) for topic in {where.topic for where in places}}
    suspects |= {where for where, place in places.items() if not _is_clean(place, topics[where.topic])}
    clean = [_counted(where, place) for where, place in places.items() if where not in suspects]
    return Screened(clean, suspects, _newest(engine, places, limits.times.since))


def _wanting(setting: Setting, topic: str) -> set[str]:
    return {name for name, group in setting.groups.items() if any(matches(pattern, topic) for pattern in group.topics)}


def _of_writers(engine: Engine, names: Collection[str]) -> Iterator[TopicPartition]:
    """The partitions of which any of these writers wrote."""
    if names:
        _attach_writers(engine, names)
        yield from _places(engine, queries.PLACES_OF_WRITERS)


def _not_owned(engine: Engine, book: Book) -> Iterator[TopicPartition]:
    """The partitions of which a member was delivered something that was not its own by its own account."""
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


def _is_clean(place: _Place, wanting: Collection[str]) -> bool:
    """The aggregates show no fault, and every group that wants the partition was delivered all that was acknowledged."""
    acked = [row for row in place.acked if row["acked"]]
    if any(row["suspect"] for row in (*place.acked, *place.delivered.values())):
        return False
    if not acked:
        return True
    first, last = min(row["acked_lo"] for row in acked), max(row["acked_hi"] for row in acked)
    readers = {*wanting, *place.delivered}
    return all(
        group in place.delivered and place.delivered[group]["lo"] <= first and place.delivered[group]["hi"] >= last
        for group in readers
    )


def _counted(where: TopicPartition, place: _Place) -> Checked:
    """A clean partition as the ledger would have checked it."""
    return Checked(
        where,
        acked=sum(row["acked"] for row in place.acked),
        delivered={group: row["n"] for group, row in place.delivered.items()},
        groups=tuple(
            GroupChecked(GroupPartition(group, *where), gap=_gap(where, row)) for group, row in sorted(place.delivered.items())
        ),
    )


def _gap(where: TopicPartition, row: _Row) -> Gap | None:
    if row["ms"] is None:
        return None
    members = (row["member_before"], row["member_after"])
    return Gap(row["consumer_group"], *where, row["ms"], row["from_ms"], row["from_ms"] + row["ms"], members)


def _newest(engine: Engine, places: Mapping[TopicPartition, _Place], since: int | None) -> Newest:
    newest = Newest()
    for where, place in places.items():
        for row in place.acked:
            if row["t_hi"] is not None:
                newest.note_ack((row["producer"], *where), row["t_hi"])
        for group, row in place.delivered.items():
            newest.note_delivery(GroupPartition(group, *where), row["t_hi"])
    if since is not None and newest.fell_silent(since):
        slots = defaultdict(set)
        for row in engine.ask(queries.ack_slots(since)).to_pylist():
            slots[row["producer"], row["topic"], row["part"]].add(row["slot"])
        newest.slots |= {sending: frozenset(found) for sending, found in slots.items()}
    return newest
