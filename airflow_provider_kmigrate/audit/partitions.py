"""Suspect partitions through the ledger, each whole and in a process of its own: columns of `schema.EVENTS` become its events again."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, Final

import pyarrow as pa

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.audit.schema import Pile
from airflow_provider_kmigrate.core.events import Ack, DeliveryRun, Stamp, TopicPartition
from airflow_provider_kmigrate.core.ledger.book import Committed, Part
from airflow_provider_kmigrate.core.ledger.partition import Checked, Setting, check

_DELIVERY, _ACK = Pile.DELIVERY.value, Pile.ACK.value
_ANSWER: Final = pa.schema([("checked", pa.binary())])


def check_all(engine: Engine, places: Collection[TopicPartition], setting: Setting) -> list[Checked]:
    """What the ledger says of each of these partitions."""
    if not places:
        return []
    engine.attach("wanted", [places_table(places)])
    found = engine.each(queries.EVENTS_OF, ("topic", "part"), partial(check_rows, setting.only(places)), _ANSWER)
    return [pickle.loads(row) for row in found["checked"].to_pylist()]  # noqa: S301  # made by `check_rows`, a moment ago


def places_table(places: Iterable[TopicPartition]) -> pa.Table:
    """Partitions as a small table to join with."""
    rows = [{"topic": place.topic, "part": place.partition} for place in sorted(places)]
    return pa.Table.from_pylist(rows, schema=pa.schema([("topic", pa.string()), ("part", pa.int32())]))


def check_rows(setting: Setting, rows: pa.Table) -> pa.Table:
    """All rows of one partition, as `queries.EVENTS_OF` has them, to one row: what the ledger says. Runs in Spark's workers."""
    return pa.table({"checked": [pickle.dumps(check(part_of(rows), setting))]}, schema=_ANSWER)


_COLUMNS: Final = (
    *("pile", "writer", "number", "t_ms", "consumer_group", "member", "lo", "hi", "n", "seq"),
    *("t_first_ms", "t_last_ms", "t_sent_ms", "gap_ms", "producer", "producer_seq"),
)
_Row = tuple[Any, ...]


def part_of(rows: pa.Table) -> Part:
    """The events of one partition, but for what the ledger does not look at: generations and latencies."""
    part = Part(TopicPartition(rows["topic"][0].as_py(), rows["part"][0].as_py()))
    for row in _once(list(zip(*(rows[name].to_pylist() for name in _COLUMNS), strict=True))):
        _file(part, row)
    return part


def _once(rows: list[_Row]) -> Iterable[_Row]:
    """Of two rows under one number of one writer one, the same one in whatever order they come."""
    if len({row[1:3] for row in rows}) == len(rows):
        return rows
    kept: dict[_Row, _Row] = {}
    for row in sorted(rows, key=repr):
        kept.setdefault(row[1:3], row)
    return kept.values()


def _file(part: Part, row: _Row) -> None:
    pile, writer, number, t_ms, group, member, lo, hi, n, seq, t_first, t_last, t_sent, gap, producer, producer_seq = row
    if pile == _DELIVERY:
        who = (t_first, t_last, t_sent, gap, producer, producer_seq)
        part.runs[group].append(DeliveryRun(Stamp(writer, number, t_ms), group, member, None, *part.where, lo, hi, n, seq, *who))
    elif pile == _ACK:
        part.acks.append(Ack(Stamp(writer, number, t_ms), producer, *part.where, lo, hi, n, seq, seq + n - 1, t_sent, t_last))
    else:
        part.commits[group].append(Committed(t_ms, lo, member))
