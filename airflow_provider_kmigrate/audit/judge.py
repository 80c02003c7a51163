"""Derives a source's facts: the few events about writers and owners are always read whole, clean partitions are counted, suspects go through the ledger, which concludes from both.

A suspect is checked whole, in a process of Spark's (`partition_rows`).
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.partition_rows import CHECKED, check_rows
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import AuditPolicy
from airflow_provider_kmigrate.audit.screen import Screened, read_accounts, screen_partitions
from airflow_provider_kmigrate.audit.settling import AuditInput, ask_accounts, reopen
from airflow_provider_kmigrate.audit.sources import RowKind
from airflow_provider_kmigrate.core.audit.settled import is_to_be_confirmed
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.lines import decode
from airflow_provider_kmigrate.core.events.model import Event, Start, TopicPartition
from airflow_provider_kmigrate.core.ledger import Facts, conclude
from airflow_provider_kmigrate.core.ledger.book import Book, PartitionEvents
from airflow_provider_kmigrate.core.ledger.health import EvidenceTimes, Refusals, check_demand
from airflow_provider_kmigrate.core.ledger.partition import CheckContext, Limits, PartitionChecked, check_partition
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import Refused

_WANTED: Final = pa.schema([("topic", pa.string()), ("part", pa.int32())])
_NOW: Final = (1 << 63) - 1  # of an unknown time


@dataclass(slots=True)
class ControlEvents:
    """The control events of an audit, and the lines that are no events.

    `events`: starts, stops, ownership and the like, each once. `starts`: the first one of each writer.
    """

    events: list[Event]
    refused: list[tuple[str, str]]  # why, and the line
    refused_ms: list[int | None]  # of each the latest time at which it can have been written; None: unknown
    starts: dict[str, Start] = field(default_factory=dict)

    @classmethod
    def read(cls, engine: Engine) -> ControlEvents:
        """Read them from the engine. Raises `Refused` (X04) if a line has a schema version that this release does not know."""
        rows = engine.ask(queries.CONTROL).to_pylist()
        _refuse_versions([row["why"] for row in rows if row["row_kind"] == RowKind.VERSION])
        written = (row["line"] for row in rows if row["row_kind"] == RowKind.CONTROL)
        lines = [row for row in rows if row["row_kind"] == RowKind.REFUSED]
        lines.sort(key=lambda row: (row["why"], row["line"], row["t_ms"] or _NOW))
        refused = [(row["why"], row["line"]) for row in lines]
        control = cls([decode(line) for line in dict.fromkeys(written)], refused, [row["t_ms"] or None for row in lines])
        for event in control.events:
            if isinstance(event, Start):
                earlier = control.starts.get(event.stamp.writer, event)
                control.starts[event.stamp.writer] = min(earlier, event, key=lambda start: start.stamp.event_seq)
        return control

    def refusals(self, since: int | None) -> Refusals:
        """Why lines are no events. `since`: start of the step, ms since the epoch."""
        reasons: tuple[list[str], list[str]] = [], []
        for (why, _), ms in zip(self.refused, self.refused_ms, strict=True):
            reasons[since is not None and ms is not None and ms < since].append(why)
        return Refusals(*reasons)


def _refuse_versions(reasons: list[str]) -> None:
    if reasons:
        text = f"{count_of(len(reasons), 'line has', 'lines have')} another schema version, first: {min(reasons)}."
        raise Refused.because(Reason.of(AuditCause.SCHEMA_UNKNOWN, text))


@dataclass(frozen=True, slots=True)
class Judged:
    """The facts of a source, how it was screened, and its control events with all writers. `opened`: what was read of it."""

    facts: Facts
    screened: Screened
    book: Book
    opened: AuditInput
    context: CheckContext


def judge_source(engine: Engine, opened: AuditInput, control: ControlEvents, policy: AuditPolicy) -> Judged:
    """Judge the attached source, as `core.ledger.balance` would have it of all its events, settled ones too."""
    now_ms = None if policy.alive_since is None else time.time_ns() // 1_000_000
    times = EvidenceTimes(policy.alive_since, None if now_ms is None else now_ms + policy.skew_ms, policy.required_evidence.since)
    limits = Limits(policy.skew_ms, policy.max_cases, times, policy.required_evidence.mixed)
    book = Book.of(control.events)
    opened, rows = ask_accounts(engine, opened)
    writer_accounts = read_accounts(engine, book.writers, rows)
    book = replace(book, writers=writer_accounts.writers)
    context = CheckContext.of(book, limits)
    opened = reopen(engine, opened, context)
    settled = opened.settled.partitions if opened.settled else {}
    context = replace(context, prefixes={where: partition.prefix for where, partition in settled.items()})
    screened = screen_partitions(engine, book, context, writer_accounts)
    facts = conclude(
        book,
        [*screened.clean, *_check_suspects(engine, screened.suspects, context)],
        limits,
        refused=control.refusals(policy.required_evidence.since),
        unmet=tuple(check_demand(policy.required_evidence, screened.newest, book.failures)),
    )
    return Judged(facts, screened, book, opened, context)


def _check_suspects(engine: Engine, suspects: AbstractSet[TopicPartition], context: CheckContext) -> list[PartitionChecked]:
    """The ledger's result for each of these partitions. If something was found after a cut, it is that of the whole partition."""
    checked = {result.where: result for result in _check_partitions(engine, queries.EVENTS_OF, suspects, context)}
    for where in suspects - checked.keys():  # nothing of them came after their cuts
        checked[where] = check_partition(PartitionEvents(where), context)
    found = [where for where, result in checked.items() if where in context.prefixes and is_to_be_confirmed(result)]
    confirmed = _check_partitions(engine, queries.ALL_EVENTS_OF, found, replace(context, prefixes={}))
    return [*(checked | {result.where: result for result in confirmed}).values()]


def _check_partitions(
    engine: Engine, question: str, partitions: Collection[TopicPartition], context: CheckContext
) -> list[PartitionChecked]:
    if not partitions:
        return []
    partition_rows = [
        {"topic": topic_partition.topic, "part": topic_partition.partition} for topic_partition in sorted(partitions)
    ]
    engine.attach("wanted", [pa.Table.from_pylist(partition_rows, schema=_WANTED)])
    answer = engine.apply_by_key(question, ("topic", "part"), partial(check_rows, context.restrict_to(partitions)), CHECKED)
    return [pickle.loads(row) for row in answer["checked"].to_pylist()]  # noqa: S301  # made by `check_rows`, a moment ago
