"""Runs of single records, and what a log holds, as the events that the ledger knows.

Each member's deliveries are written by one more writer, `<member> records`; the log is a producer, `LOG`, whose numbers are offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from airflow_provider_kmigrate.audit.algebra import Spans
from airflow_provider_kmigrate.audit.reduction.naming import Naming
from airflow_provider_kmigrate.audit.reduction.screen import Chains
from airflow_provider_kmigrate.core.events import Ack, Change, DeliveryRun, Event, Ownership, Role, Stamp, Start, Stop

LOG: Final = "log"


def deliveries(runs: Chains, names: Naming, started: Collection[str]) -> Iterator[Event]:
    """What the members wrote. Of one that is not among those that `started`, the ledger then misses start and stop."""
    for (member,), owner in names.owners.items():
        mine = runs.take(runs.owner == owner)
        if len(mine.owner):
            yield from _written(member, mine, names, whole=member in started)


def _written(member: str, runs: Chains, names: Naming, *, whole: bool) -> Iterator[Event]:
    readers, writer = list(names.readers), f"{member} records"
    first, last = Stamp(writer, 0, int(runs.t_first.min())), Stamp(writer, len(runs.owner) + 1, int(runs.t_last.max()))
    group = readers[runs.reader[0]].group
    yield Start(first, Role.CONSUMER, group=group) if whole else Ownership(first, group, member, None, Change.RELEASED, ())
    columns = (values.tolist() for values in (runs.reader, runs.first, runs.last, runs.seq, runs.t_first, runs.t_last))
    for number, (reader, low, high, seq, begin, end) in enumerate(zip(*columns, strict=True), 1):
        group, topic, partition = readers[reader]
        stamp = Stamp(writer, number, end)
        yield DeliveryRun(stamp, group, member, None, topic, partition, low, high, high - low + 1, seq, begin, end)
    if whole:
        yield Stop(last, clean=True)


def acknowledgements(held: Spans, names: Naming) -> Iterator[Event]:
    """What the log held, by place. It does not say when it was acknowledged."""
    places = list(names.places)
    if len(held.key):
        yield Start(Stamp(LOG, 0, 0), Role.PRODUCER)
        for number, (place, first, last) in enumerate(zip(*(values.tolist() for values in held), strict=True), 1):
            topic, partition = places[place]
            count = last - first + 1
            yield Ack(Stamp(LOG, number, 0), LOG, topic, partition, first, last, count, first, last, None, 0)
        yield Stop(Stamp(LOG, len(held.key) + 1, 0), clean=True)
