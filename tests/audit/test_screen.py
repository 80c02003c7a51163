"""The screen errs towards suspicion only: what it calls clean, the ledger would have counted just so, and found nothing in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

pytest.importorskip("duckdb", reason="the audit has its own environment")

from airflow_provider_kmigrate.audit.event_store import read_source
from airflow_provider_kmigrate.audit.judge import ControlEvents
from airflow_provider_kmigrate.audit.partition_rows import build_partition_events
from airflow_provider_kmigrate.audit.queries import EVENTS_OF, Engine
from airflow_provider_kmigrate.audit.screen import Screened, read_accounts, screen_partitions
from airflow_provider_kmigrate.audit.settling import open_evidence
from airflow_provider_kmigrate.audit.sources import Source, rows_of_event, table_of
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.events.model import DeliveryRun, Event, OwnershipChange, TopicPartition
from airflow_provider_kmigrate.core.ledger.book import Book, PartitionEvents
from airflow_provider_kmigrate.core.ledger.health import EvidenceTimes
from airflow_provider_kmigrate.core.ledger.partition import CheckContext, Limits, PartitionChecked, check_partition
from tests.audit.random_histories import packed
from tests.core.histories import History, calm

HERE = TopicPartition("t", 0)


def screened(events: Sequence[Event], engine: Engine, limits: Limits) -> tuple[Screened, CheckContext]:
    open_evidence(engine, read_source(Source(Level.CONSUMER, events=tuple(events))))
    control = ControlEvents.read(engine)
    book = Book.of(control.events)
    found = read_accounts(engine, book.writers)
    book = replace(book, writers=found.writers)
    context = CheckContext.of(book, limits)
    return screen_partitions(engine, book, context, found), context


def bare(checked: PartitionChecked) -> PartitionChecked:
    """Whether a log is compacted matters only where something is missing."""
    return replace(checked, groups=tuple(replace(group, compacted=False) for group in checked.groups))


@pytest.mark.parametrize("seed", [31, 32, 33])
@pytest.mark.parametrize("skew_ms", [0, 100])
def test_what_is_clean_the_ledger_would_count_just_so(duck: Engine, seed: int, skew_ms: int) -> None:
    events = packed(150, seed)
    found, context = screened(events, duck, Limits(skew_ms, 20, EvidenceTimes()))
    parts = {part.where: part for part in Book.of(events).partition_events()}
    assert {checked.where for checked in found.clean} | found.suspects == parts.keys()
    assert len(found.clean) > 20, "this pack shows nothing"
    for checked in found.clean:
        assert checked == bare(check_partition(parts[checked.where], context))


def lost_without_a_trace(h: History) -> None:
    """A wanted record was delivered to no member, and no event tells of it."""
    h.ack("p", 0, 30, 30, 5)


def rolls_back(h: History) -> None:
    h.deliver("g", "m", 0, 25, 5)


def skips(h: History) -> None:
    h.ack("p", 0, 30, 30, 10)
    h.deliver("g", "m", 0, 31, 9)


def miscounts(h: History) -> None:
    h.ack("p", 0, 30, 30, 10)
    h.counted["m", 0] += 1
    h.deliver("g", "m", 0, 30, 10)


def commits_early(h: History) -> None:
    h.ack("p", 0, 30, 30, 10)
    h.commit("g", "m", 0, 31)
    h.deliver("g", "m", 0, 30, 10)


def is_not_owned(h: History) -> None:
    h.own("g", "m", OwnershipChange.RELEASED)
    h.ack("p", 0, 30, 30, 10)
    h.deliver("g", "m", 0, 30, 10)


def claims_twice(h: History) -> None:
    h.producer("q")
    h.ack("q", 0, 29, 0, 1)


def has_another_group(h: History) -> None:
    """Group h was delivered the others, and nothing of this one."""


def begins_late(h: History) -> None:
    """Group h was delivered the end only."""
    h.deliver("h", "n", 0, 20, 10)


PLANTED = (
    *(lost_without_a_trace, rolls_back, skips, miscounts, commits_early),
    *(is_not_owned, claims_twice, has_another_group, begins_late),
)


@pytest.mark.parametrize("plant", PLANTED)
def test_one_fault_makes_its_partition_suspect_and_no_other(duck: Engine, plant: Callable[[History], None]) -> None:
    history = calm()
    for other in (1, 2):
        history.own("g", "m", OwnershipChange.ACQUIRED, (other,))
        history.ack("p", other, 0, 0, 10)
        history.deliver("g", "m", other, 0, 10, 0)
    running = Limits(100, 20, EvidenceTimes(alive_since=0))
    assert not screened(history.events, duck, running)[0].suspects
    if plant in {has_another_group, begins_late}:
        history.consumer("n", "h")
        for other in (1, 2):
            history.deliver("h", "n", other, 0, 10)
    plant(history)
    assert screened(history.events, duck, running)[0].suspects == {HERE}


@pytest.mark.parametrize("gap_ms", [-(2**53) + 1, -(2**34) - 1, 2**53 - 1])
def test_a_wait_that_cannot_be_is_judged_as_the_ledger_judges_it(duck: Engine, gap_ms: int) -> None:
    """A client may write any number; its line must not end each audit."""
    events = calm().end()
    first = next(event for event in events if isinstance(event, DeliveryRun))
    events = [replace(event, gap_ms=gap_ms) if event is first else event for event in events]
    found, context = screened(events, duck, Limits(100, 20, EvidenceTimes()))
    (part,) = Book.of(events).partition_events()
    assert found.suspects == {HERE} or [*found.clean] == [bare(check_partition(part, context))]


@pytest.mark.parametrize("gone", [0, 4, -1])
def test_a_hole_in_an_account_makes_all_its_partitions_suspect(duck: Engine, gone: int) -> None:
    """Also one whose number something else was given: then there are as many as there should be."""
    history = calm()
    history.own("g", "m", OwnershipChange.ACQUIRED, (1,))
    history.ack("p", 1, 0, 0, 10)
    history.deliver("g", "m", 1, 0, 10, 0)
    events = history.end()
    mine = [event for event in events if event.stamp.writer == "m"]
    kept = [event for event in events if event is not mine[gone]]
    limits = Limits(100, 20, EvidenceTimes())
    assert screened(kept, duck, limits)[0].suspects == {HERE, TopicPartition("t", 1)}
    assert screened([*kept, mine[2]], duck, limits)[0].suspects == {HERE, TopicPartition("t", 1)}


def test_events_of_columns_are_those_that_were_written(duck: Engine) -> None:
    """But for generations and latencies in buckets, of which the ledger knows nothing; of one that is there twice one."""
    events = packed(40, 35)
    book = Book.of(events)
    duck.attach("events", [table_of(row for event in events for row in rows_of_event(event))])
    for part in book.partition_events():
        columns = {"topic": [part.where.topic], "part": [part.where.partition]}
        duck.attach("wanted", [table_of([]).select(["topic", "part"]).from_pydict(columns)])
        found = build_partition_events(duck.ask(EVENTS_OF))
        assert bare_part(found) == bare_part(part)


def bare_part(part: PartitionEvents) -> tuple[object, ...]:
    runs = [replace(run, generation=None, latency=()) for found in part.runs.values() for run in found]
    acks = [replace(ack, latency=()) for ack in part.acks]
    commits = [(group, commit) for group, found in part.commits.items() for commit in found]
    return part.where, sorted(map(repr, runs)), sorted(map(repr, acks)), sorted(commits)
