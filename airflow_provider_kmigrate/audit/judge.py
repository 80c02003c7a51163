"""From a source to its facts: clean partitions are counted, suspects go through the ledger, and the ledger concludes from both."""

from __future__ import annotations

import time
from dataclasses import dataclass

from airflow_provider_kmigrate.audit import latencies
from airflow_provider_kmigrate.audit.control import Control
from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.audit.partitions import check_all
from airflow_provider_kmigrate.audit.policy import Policy
from airflow_provider_kmigrate.audit.screen import accounts, screen
from airflow_provider_kmigrate.core.ledger import Facts, Produce, conclude, produce_between
from airflow_provider_kmigrate.core.ledger.book import Book
from airflow_provider_kmigrate.core.ledger.health import Times, unmet
from airflow_provider_kmigrate.core.ledger.partition import Limits, Setting
from airflow_provider_kmigrate.core.ledger.produce import produce_facts


@dataclass(frozen=True, slots=True)
class Judged:
    """The facts of a source; of `partitions` that it has, `suspects` went through the ledger."""

    facts: Facts
    partitions: int
    suspects: int


def judge(engine: Engine, control: Control, policy: Policy) -> Judged:
    """The facts of what is attached, as `core.ledger.balance` would have them of all its events."""
    now_ms = None if policy.alive_since is None else time.time_ns() // 1_000_000
    times = Times(policy.alive_since, None if now_ms is None else now_ms + policy.skew_ms, policy.demand.since)
    limits = Limits(policy.skew_ms, policy.max_cases, policy.window, times, policy.demand.mixed)
    book = Book.of(control.events)
    found = accounts(engine, control)
    book.writers = found.writers
    setting = Setting.of(book, limits)
    screened = screen(engine, book, setting, found)
    facts = conclude(
        book,
        [*screened.clean, *check_all(engine, screened.suspects, setting)],
        limits,
        refused=control.refusals(policy.demand.since),
        unmet=tuple(unmet(policy.demand, screened.newest, book.failures)),
        produce=_produce(engine, book, policy, repeated=bool(found.repeated)),
    )
    return Judged(facts, len(screened.clean) + len(screened.suspects), len(screened.suspects))


def _produce(engine: Engine, book: Book, policy: Policy, *, repeated: bool) -> Produce:
    if policy.window is not None:
        return produce_between(book.produced, *policy.window, policy.max_cases)
    return produce_facts(book, latencies.of_producers(engine, repeated=repeated), policy.max_cases)
