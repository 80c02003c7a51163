"""The smaller history that the ledger judges, and what was left out of it because it is beyond doubt."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.audit.policy import Policy
from airflow_provider_kmigrate.audit.schema import Pile
from airflow_provider_kmigrate.core.audit.event_lines import decode
from airflow_provider_kmigrate.core.events import Event, Stamp, Start, Stop, TopicPartition
from airflow_provider_kmigrate.core.ledger.book import Book, GroupPartition
from airflow_provider_kmigrate.core.ledger.facts import Finding, Gap
from airflow_provider_kmigrate.core.ledger.health import Newest
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Refused

_NOW: Final = (1 << 63) - 1  # of a time that is not known


@dataclass(slots=True)
class Control:
    """What is always read whole: the few events about writers and owners, all commits, and the lines that are no events."""

    events: list[Event]
    refused: list[tuple[str, str]]  # why, and the line
    refused_ms: list[int | None]  # of each the latest time at which it can have been written; None: not known
    commits: pa.Table  # writer, consumer_group, topic, part, hi (the offset before the committed one), t_ms
    starts: dict[str, Start] = field(default_factory=dict)  # by writer
    stops: dict[str, Stop] = field(default_factory=dict)

    @classmethod
    def read(cls, engine: Engine) -> Control:
        """Raises `Refused` (X04) where a line has a schema version that this release does not know."""
        rows = engine.ask(queries.CONTROL).to_pylist()
        _refuse_versions([row["why"] for row in rows if row["pile"] == Pile.VERSION])
        events = [decode(row["line"]) for row in rows if row["pile"] == Pile.CONTROL]
        lines = sorted((row["why"], row["line"], row["t_ms"] or _NOW) for row in rows if row["pile"] == Pile.REFUSED)
        refused = [(why, line) for why, line, _ in lines]
        control = cls(events, refused, [None if ms == _NOW else ms for *_, ms in lines], engine.ask(queries.COMMITS))
        for event in events:
            if isinstance(event, Start):
                known = control.starts.get(event.stamp.writer, event)
                control.starts[event.stamp.writer] = min(known, event, key=lambda start: start.stamp.event_seq)
            elif isinstance(event, Stop):
                control.stops[event.stamp.writer] = event
        return control

    def has_ends(self, writer: str, last: int) -> bool:
        """The writer began with a start, and its event number `last` is a clean stop."""
        start, stop = self.starts.get(writer), self.stops.get(writer)
        return bool(start and start.stamp.event_seq == 0 and stop and stop.clean and stop.stamp.event_seq == last)

    def needs_no_stop(self, sign: Stamp, policy: Policy) -> bool:
        """By its last sign of life the writer, which began with a start and has no stop, runs on, or had ended before the step."""
        start, since = self.starts.get(sign.writer), policy.demand.since
        begun = start is not None and start.stamp.event_seq == 0 and sign.writer not in self.stops
        lives = policy.alive_since is not None and sign.t_ms >= policy.alive_since
        return begun and (lives or (since is not None and sign.t_ms < since))

    def refusals(self, since: int | None) -> tuple[list[str], list[str]]:
        """Why lines are no events: those of a step that began then, and those from before it."""
        found: tuple[list[str], list[str]] = [], []
        for (why, _), ms in zip(self.refused, self.refused_ms, strict=True):
            found[since is not None and ms is not None and ms < since].append(why)
        return found

    def wanted(self, acked: Iterable[TopicPartition], seen: Iterable[GroupPartition]) -> list[GroupPartition]:
        """What each group must be delivered, or was."""
        starts = [event for event in self.events if isinstance(event, Start)]
        book = Book(starts=starts, acks={where: [] for where in acked}, runs={key: [] for key in seen})
        return [key for group in book.groups() for key in book.partitions_of(group)]


def _refuse_versions(found: list[str]) -> None:
    if found:
        text = f"{len(found)} lines have another schema version, first: {min(found)}."
        remedy = "Audit them with the release that wrote them, or upgrade this one."
        why = "Their words may mean something else; without them a loss may stay hidden."
        raise Refused.because(Reason("X04", text, why, remedy))


@dataclass(frozen=True, slots=True)
class Deliveries:
    """When what was delivered to whom: chains (consumer_group, member, topic, part, o_lo, o_hi, t_lo, t_hi), and the pieces behind them."""

    table: pa.Table
    closer: Callable[[Engine, Collection[TopicPartition]], Iterable[pa.Table]]


@dataclass(slots=True)
class History:
    """Events for the ledger, and totals of what is not among them: everything that cannot change a finding.

    `places` are partitions of single records that the ledger judges. `left_out` are doubtful partitions for which there was no
    room (`Policy.max_runs`): they are counted, and not judged. `newest` is of everything; single records tell no time of
    acknowledgement, so there the delivery of a record that is in the log stands for it.
    """

    events: list[Event]
    refused: list[str]
    refused_before: list[str] = field(default_factory=list)
    acked: int = 0
    newest: Newest = field(default_factory=Newest)
    delivered: Counter[str] = field(default_factory=Counter)
    gaps: list[Gap] = field(default_factory=list)
    places: set[TopicPartition] = field(default_factory=set)
    left_out: list[TopicPartition] = field(default_factory=list)
    deliveries: list[Deliveries] = field(default_factory=list)
    passed_over: Finding = field(default_factory=Finding)  # of event lines; of single records the log itself is read

    def saw(self, acks: pa.Table, deliveries: pa.Table) -> None:
        """Take note of the newest evidence; both have t_hi and a place, `acks` a producer, `deliveries` a consumer_group."""
        for *sending, t_ms in _latest(acks, "producer", "topic", "part"):
            self.newest.note_ack((sending[0], sending[1], sending[2]), t_ms)
        for *key, t_ms in _latest(deliveries, "consumer_group", "topic", "part"):
            self.newest.note_delivery(GroupPartition(*key), t_ms)

    def add(self, other: History) -> None:
        """Add what another part of the same evidence came to."""
        for sending, t_ms in other.newest.acked.items():
            self.newest.note_ack(sending, t_ms)
        for key, t_ms in other.newest.delivered.items():
            self.newest.note_delivery(key, t_ms)
        self.events += other.events
        self.acked += other.acked
        self.delivered.update(other.delivered)
        self.gaps += other.gaps
        self.places |= other.places
        self.left_out += other.left_out
        self.deliveries += other.deliveries


def _latest(table: pa.Table, *keys: str) -> Iterator[tuple[Any, ...]]:
    found = table.group_by(list(keys)).aggregate([("t_hi", "max")])
    yield from zip(*(found[name].to_pylist() for name in (*keys, "t_hi_max")), strict=True)


def renumbered(events: Iterable[Event], writers: Collection[str]) -> list[Event]:
    """The events of these writers numbered from 0 again, in their old order, as if the ones left out had never been written."""
    numbers: dict[str, set[int]] = defaultdict(set)
    kept = list(events)
    for event in kept:
        numbers[event.stamp.writer].add(event.stamp.event_seq)
    ranks = {writer: {old: new for new, old in enumerate(sorted(numbers[writer]))} for writer in numbers if writer in writers}
    return [_with_number(event, ranks[event.stamp.writer].get) if event.stamp.writer in ranks else event for event in kept]


def _with_number(event: Event, rank: Callable[[int, int], int]) -> Event:
    number = rank(event.stamp.event_seq, 0)
    return event if number == event.stamp.event_seq else replace(event, stamp=event.stamp._replace(event_seq=number))
