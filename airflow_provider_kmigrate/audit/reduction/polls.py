"""Reduces event lines: what each poll delivered and each producer was told, as `core.events` has it.

Events of partitions beyond doubt are left out, and their writers' other events numbered anew, so that the ledger sees a history
without holes and says of it what it would say of the whole one. A writer whose own account is not whole keeps all that it wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.algebra import Flags, Ints, Spans, codes, column, sizes, unbroken
from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.audit.policy import Policy
from airflow_provider_kmigrate.audit.reduction import screen
from airflow_provider_kmigrate.audit.reduction.history import Control, Deliveries, History, renumbered
from airflow_provider_kmigrate.audit.reduction.naming import Naming
from airflow_provider_kmigrate.audit.schema import Pile
from airflow_provider_kmigrate.core.audit.event_lines import decode
from airflow_provider_kmigrate.core.events import Clock, Event, Heartbeat, Stamp, TopicPartition
from airflow_provider_kmigrate.core.ledger.facts import Case, Finding, Gap
from airflow_provider_kmigrate.core.ledger.health import Sending


def reduce(engine: Engine, control: Control, policy: Policy, also: Collection[TopicPartition] = ()) -> History:
    """The history that is left of the engine's `events`. `also` are partitions that something else has put in doubt."""
    whole, others, endless = _writers(engine, control, policy)
    polls = _Polls(engine, control, whole, policy)
    judged, left_out = polls.room_for(polls.doubtful())
    events = [*control.events, *_events(engine, judged | set(also), others)]
    events += _last_signs(endless, events)
    if left_out:
        events += _stand_ins(engine, others, events)
    refused, before = control.refusals(policy.demand.since)
    history = History(renumbered(events, whole), refused, before, left_out=sorted(left_out), deliveries=[polls.deliveries])
    polls.count_the_rest(history, judged | left_out)
    history.newest.slots |= _slots(engine, policy.demand.since) if history.newest.fell_silent(policy.demand.since) else {}
    return history


def _slots(engine: Engine, since: int | None) -> dict[Sending, frozenset[int]]:
    """When before the step producers had records of each partition acknowledged, in stretches of `SLOT_MS`."""
    found: dict[Sending, set[int]] = {}
    for row in engine.ask(queries.ack_slots(since or 0)).to_pylist():
        found.setdefault((row["producer"], row["topic"], row["part"]), set()).add(row["slot"])
    return {sending: frozenset(slots) for sending, slots in found.items()}


def _writers(engine: Engine, control: Control, policy: Policy) -> tuple[set[str], list[str], list[Stamp]]:
    """Writers whose account is whole: every number from a start to a clean stop, once; and all others.

    So are those that only lack their stop, and need none: they run on, or ended before the step. Their last signs of life come third.
    """
    parts = [("n", "sum"), ("chain", "sum"), ("number_lo", "min"), ("number_hi", "max"), ("t_hi", "max")]
    table = engine.ask(queries.WRITERS).group_by("writer").aggregate(parts)
    start, end = column(table, "number_lo_min"), column(table, "number_hi_max") + 1
    exact = (start == 0) & unbroken(start, end, column(table, "n_sum"), column(table, "chain_sum"))
    names, times = table["writer"].to_pylist(), table["t_hi_max"].to_pylist()
    signs = {name: Stamp(name, int(last), t_ms) for name, last, t_ms in zip(names, end - 1, times, strict=True)}
    fine = {name for name, is_exact in zip(names, exact, strict=True) if is_exact}
    ended = {name for name in fine if control.has_ends(name, signs[name].event_seq)}
    endless = {name for name in fine - ended if control.needs_no_stop(signs[name], policy)}
    whole = ended | endless
    return whole, sorted(set(names) - whole), [signs[name] for name in sorted(endless)]


def _last_signs(signs: Sequence[Stamp], events: Sequence[Event]) -> list[Event]:
    """For the last events of those that run on, where they were left out: by them the ledger tells who does."""
    seen = {event.stamp[:2] for event in events}
    return [Heartbeat(sign, Clock(sign.t_ms, 0)) for sign in signs if sign[:2] not in seen]


def _events(engine: Engine, places: Collection[TopicPartition], others: Sequence[str]) -> Iterator[Event]:
    """What the ledger must see: all of doubtful places, of writers whose account is not whole, and of latencies."""
    lines = [engine.ask(queries.LATENCY_LINES)["line"]]
    if places:
        _attach_places(engine, places)
        lines.append(engine.ask(queries.LINES)["line"])
    if others:
        engine.attach("writers", [pa.table({"writer": pa.array(others, pa.string())})])
        lines.append(engine.ask(queries.LINES_OF_WRITERS)["line"])
    yield from map(decode, dict.fromkeys(line for found in lines for line in found.to_pylist()))


def _attach_places(engine: Engine, places: Collection[TopicPartition]) -> None:
    parts = pa.array([place.partition for place in places], pa.int32())
    engine.attach("wanted", [pa.table({"topic": pa.array([place.topic for place in places], pa.string()), "part": parts})])


def _closer(engine: Engine, places: Collection[TopicPartition]) -> Iterator[pa.Table]:
    if places:
        _attach_places(engine, places)
        yield engine.ask(queries.DELIVERIES)


def _stand_ins(engine: Engine, others: Sequence[str], events: Sequence[Event]) -> list[Event]:
    """For events that were left out, so that the ledger does not take them for missing."""
    if not others:
        return []
    seen = {event.stamp[:2] for event in events}
    table = engine.ask(queries.NUMBERS_OF_WRITERS)
    stamps = map(Stamp, *(table[name].to_pylist() for name in ("writer", "number", "t_ms")))
    return [Event(stamp) for stamp in stamps if stamp[:2] not in seen]


class _Polls:
    """The chains of all partitions, and what they leave in doubt."""

    def __init__(self, engine: Engine, control: Control, whole: set[str], policy: Policy) -> None:
        self._engine, self._policy = engine, policy
        table = engine.ask(queries.CHAINS)
        is_delivery = pc.equal(table["pile"], Pile.DELIVERY.value)
        self._deliveries, self._acks = table.filter(is_delivery), table.filter(pc.invert(is_delivery))
        self._whole = pa.array(sorted(whole), pa.string())
        self._waits = engine.ask(queries.waits(policy.window))
        self._names = Naming.of(self._deliveries, self._acks, control)
        self._places = list(self._names.places)
        self._chains = self._names.chains(self._deliveries)
        self._commits = self._names.commits(control.commits)

    @property
    def deliveries(self) -> Deliveries:
        return Deliveries(self._deliveries, _closer)

    def doubtful(self) -> set[TopicPartition]:
        """What the ledger must look at."""
        place_of, chains = self._names.place_of, self._chains
        readers = (screen.uncounted(chains), self._going_back(), self._undelivered(), self._early_commits())
        places = [chains.place[self._faulty(self._deliveries)], self._names.places_in(self._acks)[self._faulty(self._acks)]]
        places += [self._disputed(), *(place_of[found] for found in readers)]
        return {self._places[place] for place in np.unique(np.concatenate(places))}

    def _faulty(self, chains: pa.Table) -> Flags:
        """Broken chains, and those of a writer whose account is not whole."""
        start, end, total = column(chains, "seq_lo"), column(chains, "seq_end"), column(chains, "total")
        fine = unbroken(start, end, total, column(chains, "chain"))
        fine &= column(chains, "o_hi") - column(chains, "o_lo") + 1 == total
        return ~(fine & _flags(chains["whole"]) & _flags(pc.is_in(chains["writer"], self._whole)))

    def _going_back(self) -> Ints:
        readers: Ints = self._names.readers_in(self._waits)[column(self._waits, "goes_back") == 1]
        return readers

    def _undelivered(self) -> Ints:
        return screen.undelivered(self._acked(), self._chains, self._names.place_of).key

    def _acked(self) -> Spans:
        return Spans(self._names.places_in(self._acks), column(self._acks, "o_lo"), column(self._acks, "o_hi"))

    def _passed_over(self, gone: Sequence[int]) -> Finding:
        """As the ledger's, of the places that it does not see; the largest gaps as cases."""
        names, mixed = list(self._names.readers), self._policy.demand.mixed
        others = [number for number, name in enumerate(names) if name.group in mixed]
        chains = self._chains.take(~np.isin(self._chains.place, gone) & ~np.isin(self._chains.reader, others))
        gaps = screen.passed_over(self._acked(), chains, self._names.place_of)
        largest = gaps.take(np.argsort(-sizes(gaps), kind="stable")[: self._policy.max_cases])
        rows = zip(*(values.tolist() for values in (*largest, sizes(largest))), strict=True)
        named = ((names[reader], first, last, count) for reader, first, last, count in rows)
        cases = (Case(at.topic, at.partition, first, last, count, group=at.group) for at, first, last, count in named)
        return Finding(int(sizes(gaps).sum()), tuple(cases))

    def _disputed(self) -> Ints:
        """An acknowledgement claims its offsets for its producer, a delivery only where it knows the producer."""
        claims = pa.concat_tables([self._deliveries, self._acks])
        claims = claims.filter(pc.is_valid(claims["producer"]))
        values = (column(claims, name) for name in ("shift", "o_lo", "o_hi"))
        return screen.disputed(self._names.places_in(claims), codes([claims["producer"]]), *values)

    def _early_commits(self) -> Ints:
        """Readers of which it cannot be shown that all that they committed had been delivered."""
        commits, _ = screen.unsettled(screen.leading(self._commits), self._chains, self._policy.skew_ms)
        if not len(commits.reader):
            return commits.reader
        names = list(self._names.readers)
        keys = [names[reader] for reader in commits.reader]
        columns = dict(zip(("consumer_group", "topic", "part"), map(list, zip(*keys, strict=True)), strict=True))
        columns["part"] = pa.array(columns["part"], pa.int32())
        self._engine.attach("asked", [pa.table({"id": np.arange(len(keys)), **columns, "hi": commits.last})])
        answer = self._engine.ask(queries.DELIVERED_AT)
        number, in_time = column(answer, "id"), np.zeros(len(keys), np.bool_)
        in_time[number] = column(answer, "t_ms") <= commits.t_ms[number] + self._policy.skew_ms
        late: Ints = commits.reader[~in_time]
        return late

    def room_for(self, doubtful: set[TopicPartition]) -> tuple[set[TopicPartition], set[TopicPartition]]:
        """As many of them as the policy has room for, and the others."""
        weight = np.zeros(len(self._places), np.int64)
        for table in (self._deliveries, self._acks):
            np.add.at(weight, self._names.places_in(table), column(table, "pieces"))
        return self._policy.room_for({place: int(weight[self._names.places[place]]) for place in doubtful})

    def count_the_rest(self, history: History, judged: set[TopicPartition]) -> None:
        """Add the totals of the places that the ledger does not see."""
        gone = [self._names.places[place] for place in judged]
        acks, rest = (
            table.filter(pa.array(~np.isin(self._names.places_in(table), gone))) for table in (self._acks, self._deliveries)
        )
        history.acked += int(column(acks, "total").sum())
        history.saw(self._acks, self._deliveries)
        totals = rest.group_by("consumer_group").aggregate([("total", "sum")])
        history.delivered.update(dict(zip(totals["consumer_group"].to_pylist(), totals["total_sum"].to_pylist(), strict=True)))
        history.gaps += self._gaps(judged)
        history.passed_over = self._passed_over(gone)

    def _gaps(self, judged: set[TopicPartition]) -> Iterator[Gap]:
        for row in self._waits.to_pylist():
            if row["ms"] is not None and TopicPartition(row["topic"], row["part"]) not in judged:
                members = (row["member_before"], row["member_after"])
                ends = row["from_ms"], row["from_ms"] + row["ms"]
                yield Gap(row["consumer_group"], row["topic"], row["part"], row["ms"], *ends, members)


def _flags(values: pa.ChunkedArray) -> Flags:
    return np.asarray(values.to_numpy(), np.bool_)
