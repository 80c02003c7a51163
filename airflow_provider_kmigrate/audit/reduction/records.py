"""Reduces single records: a hundred million of them to some thousand chains, and reads again only what the chains leave open.

What a chain cannot tell is found in the records of its partition: where audit rows are missing or there twice, where two members
read at once, where a commit may have come too early.

How long records waited is not judged from single records: chains do not tell, and the records are too many.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.algebra import Ints, Spans, blocks, column, sizes, unbroken, union
from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.audit.policy import Policy
from airflow_provider_kmigrate.audit.reduction import replay, screen
from airflow_provider_kmigrate.audit.reduction.history import Control, Deliveries, History
from airflow_provider_kmigrate.audit.reduction.naming import Naming
from airflow_provider_kmigrate.audit.reduction.runs import Rows, assemble, pieces
from airflow_provider_kmigrate.audit.reduction.screen import Chains
from airflow_provider_kmigrate.core.events import Ack, Event, TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Refused


def reduce(engine: Engine, control: Control, policy: Policy) -> History:
    """What is left of the records and the log; `History.places` are the partitions that the ledger must judge."""
    records = _Records(engine, control, policy)
    chains = records.settled()
    judged, left_out = records.room_for(chains, records.doubtful(chains))
    history = History(
        records.events(chains, judged), [], places=judged, left_out=sorted(left_out), deliveries=[records.deliveries]
    )
    records.count_the_rest(history, chains, judged)
    return history


class _Names:
    """What the numbers in the tables stand for."""

    def __init__(self, engine: Engine) -> None:
        self.topics: dict[int, str] = {}
        self.members: dict[int, tuple[str, str]] = {}  # group, name
        for row in engine.ask(queries.NAMES).to_pylist():
            if row["kind"] == "topic":
                self.topics[row["id"]] = row["name"]
            else:
                self.members[row["id"]] = (row["consumer_group"], row["name"])

    def resolve(self, table: pa.Table) -> pa.Table:
        """The same rows with names beside the numbers. Raises `Refused` (X05) where a number has none."""
        table = table.append_column("topic", self._column(table, "tid", self.topics))
        if "mid" not in table.column_names:
            return table
        groups, members = ({mid: pair[at] for mid, pair in self.members.items()} for at in (0, 1))
        table = table.append_column("consumer_group", self._column(table, "mid", groups))
        return table.append_column("member", self._column(table, "mid", members))

    @staticmethod
    def _column(table: pa.Table, name: str, names: Mapping[int, str]) -> pa.Array:
        numbers, row = np.unique(column(table, name, -1), return_inverse=True)
        unknown = sorted({int(number) for number in numbers} - names.keys())
        if unknown:
            text = f"The records have {name} {', '.join(map(str, unknown[:5]))}, which the table of names does not know."
            why = "Whose records these are decides what they mean."
            raise Refused.because(Reason("X05", text, why, "Write the names together with the records."))
        return pa.array([names[int(number)] for number in numbers], pa.string()).take(pa.array(row))


class _Records:
    """Everything that was asked of one set of record tables."""

    def __init__(self, engine: Engine, control: Control, policy: Policy) -> None:
        self._engine, self._control, self._policy = engine, control, policy
        self._ids = _Names(engine)
        self._table = self._ids.resolve(engine.ask(queries.RECORD_CHAINS))
        self._log = self._ids.resolve(engine.ask(queries.LOG_EXTENTS))
        self._names = Naming.of(self._table, self._log, control)
        self._places = list(self._names.places)
        self._readers = list(self._names.readers)
        self._commits = screen.leading(self._names.commits(control.commits))
        self._early: Ints = np.empty(0, np.int64)  # readers that committed what they had not been delivered
        self._acked = self._extents()
        self._id_of = {TopicPartition(topic, part): (tid, part) for tid, topic, part in self._pairs()}

    def _pairs(self) -> Iterator[tuple[int, str, int]]:
        for table in (self._table, self._log):
            yield from zip(*(table[name].to_pylist() for name in ("tid", "topic", "part")), strict=True)

    def settled(self) -> Chains:
        """The chains, and runs from the records themselves wherever the chains leave something open."""
        chains = self._names.chains(self._table)
        fine = unbroken(chains.seq, chains.seq_end, column(self._table, "total"), column(self._table, "chain"))
        doubtful = [chains.reader[~fine], screen.entangled(chains, self._policy.skew_ms)]
        back = screen.going_back(chains)
        doubtful += [np.intersect1d(back, self._commits.reader), self._unsettled(chains)]
        readers = np.unique(np.concatenate(doubtful))
        runs = [chains.take(~np.isin(chains.reader, readers))]
        runs += (self._joined(places, readers) for places in self._batches(np.unique(self._names.place_of[readers])))
        return Chains(*map(np.concatenate, zip(*runs, strict=True)))

    def _unsettled(self, chains: Chains) -> Ints:
        """Readers some of whose commits may have come before the deliveries."""
        commits, at = screen.unsettled(self._commits, chains, self._policy.skew_ms)
        inside = commits.last < chains.last[at]
        asked, at = commits.take(inside), at[inside]
        rows = pa.table({"id": np.arange(len(at)), "pos": asked.last}).append_column("mid", self._table["mid"].take(pa.array(at)))
        for name in ("tid", "part"):
            rows = rows.append_column(name, self._table[name].take(pa.array(at)))
        late = np.ones(len(at), np.bool_)
        if len(at):
            self._engine.attach("asked", [rows])
            answer = self._engine.ask(queries.RECORD_DELIVERED_AT)
            number = column(answer, "id")
            late[number] = column(answer, "t_ms") > asked.t_ms[number] + self._policy.skew_ms
        return np.concatenate([commits.reader[~inside], asked.reader[late]])

    def _batches(self, places: Ints) -> Iterator[list[TopicPartition]]:
        """Places whose records are read together; one that has more than there is room for is read alone."""
        weight = np.zeros(len(self._places), np.int64)
        np.add.at(weight, self._names.places_in(self._table), column(self._table, "total"))
        batch: list[TopicPartition] = []
        size = 0
        for place in places:
            if batch and size + weight[place] > self._policy.batch_rows:
                yield batch
                batch, size = [], 0
            batch.append(self._places[place])
            size += int(weight[place])
        if batch:
            yield batch

    def _joined(self, places: Sequence[TopicPartition], readers: Ints) -> Chains:
        """Runs of some places' records, of these readers."""
        table = self._engine.ask(queries.record_rows(self._id_of[place] for place in places))
        rows = self._rows(table)
        rows = rows.take(np.isin(rows.reader, readers))
        runs, early = assemble(rows, self._commits, self._policy.skew_ms)
        self._early = np.union1d(self._early, early)
        return runs

    def _rows(self, table: pa.Table) -> Rows:
        """Millions of rows: names are looked up by number, not by row."""
        pairs = np.unique(column(table, "tid") << 32 | column(table, "part"), return_inverse=True)
        keys = pa.table({"tid": pa.array(pairs[0] >> 32, pa.int32()), "part": pa.array(pairs[0] & 0xFFFFFFFF, pa.int32())})
        mids, mid = np.unique(column(table, "mid"), return_inverse=True)
        place = self._names.places_in(self._ids.resolve(keys))
        members = [self._ids.members[int(number)] for number in mids]
        readers = np.array(
            [[self._names.readers.get(GroupPartition(group, *self._places[at]), -1) for at in place] for group, _ in members],
            np.int64,
        )
        owner = np.array([self._names.owners[(name,)] for _, name in members], np.int64)
        values = (column(table, name) for name in ("pos", "seq", "t_ms"))
        return Rows(place[pairs[1]], readers[mid, pairs[1]], owner[mid], *values)

    @property
    def deliveries(self) -> Deliveries:
        return Deliveries(self._table, self._closer)

    def _closer(self, engine: Engine, places: Collection[TopicPartition]) -> Iterator[pa.Table]:
        """Single records as chains of one."""
        for batch in self._batches(np.array([self._names.places[place] for place in sorted(places)], np.int64)):
            rows = self._ids.resolve(engine.ask(queries.record_rows(self._id_of[place] for place in batch)))
            columns = {"o_lo": rows["pos"], "o_hi": rows["pos"], "t_lo": rows["t_ms"], "t_hi": rows["t_ms"]}
            yield pa.table({name: rows[name] for name in ("consumer_group", "member", "topic", "part")} | columns)

    def doubtful(self, chains: Chains) -> set[TopicPartition]:
        """What the ledger must look at."""
        readers = (screen.uncounted(chains), screen.going_back(chains), self._early, self._undelivered(chains).key)
        strange = {key.group for key in self._readers} - self._known_groups()
        strangers = [reader for reader, key in enumerate(self._readers) if key.group in strange]
        places = self._names.place_of[np.concatenate([*readers, np.array(strangers, np.int64)])]
        return {self._places[place] for place in np.unique(places)}

    def _known_groups(self) -> set[str]:
        """Groups of which every member said that it began."""
        seen = {member: group for group, member in self._ids.members.values() if (member,) in self._names.owners}
        return set(seen.values()) - {group for member, group in seen.items() if member not in self._control.starts}

    def _undelivered(self, chains: Chains) -> Spans:
        """What was not delivered and is in the log: an offset without a record (a marker, a compacted one) is no loss."""
        place_of = self._names.place_of
        absent = screen.undelivered(self._acked, chains, place_of)
        if len(absent.key):
            wanted = union(Spans(place_of[absent.key], absent.first, absent.last))
            others = self._acked.take(~np.isin(self._acked.key, wanted.key))
            self._acked = Spans(*map(np.concatenate, zip(others, self._held(wanted), strict=True)))
            absent = screen.undelivered(self._acked, chains, place_of)
        return absent

    def _extents(self) -> Spans:
        return Spans(self._names.places_in(self._log), column(self._log, "o_lo"), column(self._log, "o_hi"))

    def _held(self, wanted: Spans) -> Spans:
        """What the log holds within some places' spans: offset by offset, unless they are too many."""
        pieces = blocks(wanted, queries.LOG_BLOCK_BITS)
        if sizes(pieces).sum() <= self._policy.batch_rows:
            return union(self._offsets(pieces, np.arange(len(pieces.key))))
        sums = self._asked_of_log(queries.log_sums, pieces, np.arange(len(pieces.key)))
        piece, first, last = (column(sums, name) for name in ("id", "o_lo", "o_hi"))
        fine = unbroken(first, last + 1, column(sums, "total"), column(sums, "chain"))
        held = [Spans(pieces.key[piece], first, last).take(fine)]
        if not fine.all():
            held.append(self._offsets(pieces, piece[~fine]))
        return union(Spans(*map(np.concatenate, zip(*held, strict=True))))

    def _offsets(self, pieces: Spans, which: Ints) -> Spans:
        rows = self._asked_of_log(queries.log_rows, pieces, which)
        offsets = column(rows, "pos")
        return Spans(pieces.key[column(rows, "id")], offsets, offsets)

    def _asked_of_log(self, question: Callable[[Iterable[tuple[int, int]]], str], pieces: Spans, which: Ints) -> pa.Table:
        places, at = np.unique(pieces.key[which], return_inverse=True)
        ids = np.array([self._id_of[self._places[place]] for place in places], np.int32).reshape(-1, 2)
        mine = pieces.take(which)
        tid, part, block = ids[at, 0], ids[at, 1], mine.first >> queries.LOG_BLOCK_BITS
        spans = {
            "id": which,
            "tid": tid,
            "part": part,
            "o_lo": mine.first,
            "o_hi": mine.last,
            "spot": queries.spot(tid, part, block),
        }
        self._engine.attach("spans", [pa.table(spans)])
        return self._engine.ask(question((int(tid), int(part)) for tid, part in ids))

    def room_for(self, chains: Chains, doubtful: set[TopicPartition]) -> tuple[set[TopicPartition], set[TopicPartition]]:
        """As many of them as the policy has room for, and the others."""
        weight = np.bincount(chains.place, minlength=len(self._places))
        return self._policy.room_for({place: int(weight[self._names.places[place]]) for place in doubtful})

    def events(self, chains: Chains, judged: Collection[TopicPartition]) -> list[Event]:
        """What members and the log have to say of the judged places."""
        places = [self._names.places[place] for place in judged]
        runs = pieces(chains.take(np.isin(chains.place, places)))
        held = self._acked.take(np.isin(self._acked.key, places))
        return [*replay.deliveries(runs, self._names, self._control.starts.keys()), *replay.acknowledgements(held, self._names)]

    def count_the_rest(self, history: History, chains: Chains, judged: Collection[TopicPartition]) -> None:
        """Add the totals of what the ledger does not see."""
        seen = sum(event.count for event in history.events if isinstance(event, Ack))
        history.acked += int(column(self._log, "total").sum()) - seen
        in_log = self._table if self._log.num_rows else self._table.slice(0, 0)
        history.saw(in_log.append_column("producer", in_log["member"]), self._table)
        rest = chains.take(~np.isin(chains.place, [self._names.places[place] for place in judged]))
        totals = np.zeros(len(self._readers), np.int64)
        np.add.at(totals, rest.reader, rest.last - rest.first + 1)
        for reader in np.flatnonzero(totals):
            history.delivered[self._readers[reader].group] += int(totals[reader])
