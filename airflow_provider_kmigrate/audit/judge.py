"""Derives a source's facts: clean partitions are counted, suspects go through the ledger, which concludes from both.

A suspect is checked whole, in a process of Spark's: the columns of `schema.EVENTS` become its events again.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from airflow_provider_kmigrate.audit import latencies, queries
from airflow_provider_kmigrate.audit.control import Control
from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.audit.policy import AuditPolicy
from airflow_provider_kmigrate.audit.schema import RowKind
from airflow_provider_kmigrate.audit.screen import accounts, screen
from airflow_provider_kmigrate.core.events import Ack, DeliveryRun, Stamp, TopicPartition
from airflow_provider_kmigrate.core.ledger import Facts, Produce, conclude, produce_between
from airflow_provider_kmigrate.core.ledger.book import AcceptedCommit, Book, Part
from airflow_provider_kmigrate.core.ledger.health import EvidenceTimes, unmet
from airflow_provider_kmigrate.core.ledger.ownership import produce_facts
from airflow_provider_kmigrate.core.ledger.partition import Checked, Limits, Setting, check

_DELIVERY, _ACK = RowKind.DELIVERY.value, RowKind.ACK.value
_WANTED: Final = pa.schema([("topic", pa.string()), ("part", pa.int32())])
_ANSWER: Final = pa.schema([("checked", pa.binary())])


@dataclass(frozen=True, slots=True)
class Judged:
    """The facts of a source; of `partitions` that it has, `suspects` went through the ledger."""

    facts: Facts
    partitions: int
    suspects: int


def judge(engine: Engine, control: Control, policy: AuditPolicy) -> Judged:
    """The facts of the attached source, as `core.ledger.balance` would have them of all its events."""
    now_ms = None if policy.alive_since is None else time.time_ns() // 1_000_000
    times = EvidenceTimes(policy.alive_since, None if now_ms is None else now_ms + policy.skew_ms, policy.required_evidence.since)
    limits = Limits(policy.skew_ms, policy.max_cases, policy.window, times, policy.required_evidence.mixed)
    book = Book.of(control.events)
    found = accounts(engine, book.writers)
    book.writers = found.writers
    setting = Setting.of(book, limits)
    screened = screen(engine, book, setting, found)
    facts = conclude(
        book,
        [*screened.clean, *_check_all(engine, screened.suspects, setting)],
        limits,
        refused=control.refusals(policy.required_evidence.since),
        unmet=tuple(unmet(policy.required_evidence, screened.newest, book.failures)),
        produce=_produce(engine, book, policy, repeated=bool(found.repeated)),
    )
    return Judged(facts, len(screened.clean) + len(screened.suspects), len(screened.suspects))


def _produce(engine: Engine, book: Book, policy: AuditPolicy, *, repeated: bool) -> Produce:
    if policy.window is not None:
        return produce_between(book.produced, *policy.window, policy.max_cases)
    return produce_facts(book, latencies.of_producers(engine, repeated=repeated), policy.max_cases)


def _check_all(engine: Engine, places: Collection[TopicPartition], setting: Setting) -> list[Checked]:
    """The ledger's result for each of these partitions."""
    if not places:
        return []
    wanted = [{"topic": place.topic, "part": place.partition} for place in sorted(places)]
    engine.attach("wanted", [pa.Table.from_pylist(wanted, schema=_WANTED)])
    found = engine.each(queries.EVENTS_OF, ("topic", "part"), partial(check_rows, setting.only(places)), _ANSWER)
    return [pickle.loads(row) for row in found["checked"].to_pylist()]  # noqa: S301  # made by `check_rows`, a moment ago


def check_rows(setting: Setting, rows: pa.Table) -> pa.Table:
    """Check all rows of one partition, as `queries.EVENTS_OF` has them, into one row. Runs in Spark's workers."""
    return pa.table({"checked": [pickle.dumps(check(part_of(rows), setting))]}, schema=_ANSWER)


_COLUMNS: Final = (
    *("row_kind", "writer", "number", "t_ms", "consumer_group", "member", "lo", "hi", "n", "seq"),
    *("t_first_ms", "t_last_ms", "t_sent_ms", "gap_ms", "producer", "producer_seq"),
)
_Row = tuple[Any, ...]


def part_of(rows: pa.Table) -> Part:
    """The events of one partition, without what the ledger ignores: generations and latencies."""
    part = Part(TopicPartition(rows["topic"][0].as_py(), rows["part"][0].as_py()))
    for row in _once(list(zip(*(rows[name].to_pylist() for name in _COLUMNS), strict=True))):
        _file(part, row)
    return part


def _once(rows: list[_Row]) -> Iterable[_Row]:
    """One of two rows with the same number of one writer: the same one, in any order of the rows."""
    if len({row[1:3] for row in rows}) == len(rows):
        return rows
    kept: dict[_Row, _Row] = {}
    for row in sorted(rows, key=repr):
        kept.setdefault(row[1:3], row)
    return kept.values()


def _file(part: Part, row: _Row) -> None:
    row_kind, writer, number, t_ms, group, member, lo, hi, n, seq, t_first, t_last, t_sent, gap, producer, producer_seq = row
    if row_kind == _DELIVERY:
        who = (t_first, t_last, t_sent, gap, producer, producer_seq)
        part.runs[group].append(DeliveryRun(Stamp(writer, number, t_ms), group, member, None, *part.where, lo, hi, n, seq, *who))
    elif row_kind == _ACK:
        part.acks.append(Ack(Stamp(writer, number, t_ms), producer, *part.where, lo, hi, n, seq, seq + n - 1, t_sent, t_last))
    else:
        part.commits[group].append(AcceptedCommit(t_ms, lo, member))
