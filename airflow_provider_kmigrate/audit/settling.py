"""Reads what came after the settled cuts of an event store, and settles more of it after a verdict (`core.audit.settled` decides).

An audit of a store attaches::

    everything       all events, as without cuts
    read_before      the parts of the store that an earlier audit read
    arrivals         what came since: further parts, and new changes of ownership
    events           what is judged: what the cuts left open, what arrived, and all of partitions that are read again
    settled_…        the settled figures, which `queries` adds

Without a store, without cuts, or if they do not fit, `events` is everything and nothing is settled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.event_store import Evidence
from airflow_provider_kmigrate.audit.queries import Data, Engine
from airflow_provider_kmigrate.audit.screen import Screened
from airflow_provider_kmigrate.audit.sources import EVENTS, RowKind
from airflow_provider_kmigrate.core.audit.settled import (
    OPEN_MS,
    Arrived,
    GroupEnds,
    Settled,
    SettledKey,
    SettledPartition,
    SettledProducer,
    WriterRow,
    as_document,
    choose_cut,
    describe_owners,
    find_reopened,
    has_too_many,
    join_accounts,
    parse_document,
    settle_writers,
    split_own_changes,
)
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.ledger.facts import Gap
from airflow_provider_kmigrate.core.ledger.partition import CheckContext
from airflow_provider_kmigrate.core.ledger.prefix import GroupPrefix
from airflow_provider_kmigrate.core.shared.text import count_of

MOST_OPEN_ROWS: Final = 2_000_000
"""More rows than that are not kept beside the cuts: reading them again costs as much as reading everything."""

_PLACE: Final = [("topic", pa.string()), ("part", pa.int32())]
_CUTS: Final = pa.schema([*_PLACE, ("cut_at", pa.int64())])
_RUNS: Final = pa.schema(
    [("consumer_group", pa.string()), *_PLACE, ("writer", pa.string()), ("member", pa.string())]
    + [(name, pa.int64()) for name in ("lo", "hi", "n", "ended_ms", "ms", "from_ms")]
    + [("member_from", pa.string()), ("member_to", pa.string())]
)
_CLAIMS: Final = pa.schema(
    [*_PLACE, ("producer", pa.string())]
    + [(name, pa.int64()) for name in ("shift", "last", "acked_lo", "acked_hi", "acked", "t_hi", "stall_us")]
)
_NAMES: Final = pa.schema([(name, pa.string()) for name in ("writer", "consumer_group", "member")])


@dataclass(frozen=True, slots=True)
class AuditInput:
    """What an audit reads of a source.

    `rows`: the view `events`, without what the store gives whole each time (`given`). `arrivals`: as above. `settled`: None: everything is
    read. `whole_because`: why it is, empty if there was nothing settled. `reopened`: the partitions that are read again, each with the reason.
    """

    evidence: Evidence
    rows: tuple[Data, ...]
    given: tuple[Data, ...] = ()
    arrivals: tuple[Data, ...] = ()
    settled: Settled | None = None
    whole_because: str = ""
    reopened: Mapping[TopicPartition, str] = field(default_factory=dict)

    def attach(self, engine: Engine) -> None:
        """Make the views of this audit, but for `everything`, which does not change."""
        engine.attach("events", [*self.rows, *self.given])
        if self.settled is not None:
            engine.attach("arrivals", self.arrivals)
        engine.attach("settled_runs", [_table(_list_runs(self.settled), _RUNS)])
        engine.attach("settled_claims", [_table(_list_claims(self.settled), _CLAIMS)])
        names = sorted(self.settled.names, key=repr) if self.settled else ()
        engine.attach("settled_names", [_table(names, _NAMES)])


def open_evidence(engine: Engine, evidence: Evidence, key: SettledKey | None = None) -> AuditInput:
    """Attach what came after the cuts of this key; everything, if there are none. `key` None: cuts are not asked for."""
    engine.attach("everything", evidence.data)
    opened = _find_settled(evidence, key)
    opened.attach(engine)
    return opened


def _find_settled(evidence: Evidence, key: SettledKey | None) -> AuditInput:
    stored = evidence.stored
    if key is None or stored is None or stored.settled is None:
        return _open_whole(evidence)
    try:
        settled = parse_document(stored.store.load_settled(stored.settled), key)
    except ValueError as error:
        return _open_whole(evidence, str(error))
    new_changes = split_own_changes(settled.writers, _list_own_changes(stored.rows))
    if isinstance(new_changes, str):
        return _open_whole(evidence, new_changes)
    parts = tuple(part for part in stored.parts if part not in stored.settled.parts)
    of_parts: tuple[Data, ...] = (parts,) if parts else ()
    given = stored.rows.to_pylist()
    new_rows = [row for row in given if row["row_kind"] == RowKind.CONTROL and row["number"] in new_changes[row["writer"]]]
    arrivals = (*of_parts, pa.Table.from_pylist(new_rows, schema=EVENTS))
    return AuditInput(evidence, ((stored.settled.rows, *parts),), (stored.rows,), arrivals, settled)


def _open_whole(evidence: Evidence, whole_because: str = "") -> AuditInput:
    stored = evidence.stored
    if stored is None:
        return AuditInput(evidence, evidence.data)
    return AuditInput(evidence, (stored.parts,) if stored.parts else (), (stored.rows,), whole_because=whole_because)


def _list_own_changes(given: pa.Table) -> dict[str, list[int]]:
    changes: dict[str, list[int]] = defaultdict(list)
    for row in given.filter(pc.equal(given["row_kind"], RowKind.CONTROL.value)).select(["writer", "number"]).to_pylist():
        changes[row["writer"]].append(row["number"])
    return changes


def ask_accounts(engine: Engine, opened: AuditInput) -> tuple[AuditInput, list[WriterRow]]:
    """The account of each writer; everything is attached if the new events do not simply follow the settled ones."""
    if opened.settled is not None:
        rows = join_accounts(opened.settled.writers, _ask_writers(engine, queries.NEW_WRITERS))
        if not isinstance(rows, str):
            return opened, rows
        opened = _open_whole(opened.evidence, rows)
        opened.attach(engine)
    return opened, _ask_writers(engine, queries.WRITERS)


def _ask_writers(engine: Engine, question: str) -> list[WriterRow]:
    return [WriterRow(**row) for row in engine.ask(question).to_pylist()]


def reopen(engine: Engine, opened: AuditInput, context: CheckContext) -> AuditInput:
    """Attach all of the partitions whose cuts hold no longer."""
    stored = opened.evidence.stored
    if opened.settled is None or stored is None or stored.settled is None:
        return opened
    arrived = (Arrived(**row) for row in engine.ask(queries.ARRIVED).to_pylist())
    reopened = find_reopened(opened.settled.partitions, arrived, context)
    if not reopened:
        return opened
    if has_too_many(len(reopened), len(opened.settled.partitions)):
        return _reopen_everything(engine, opened, reopened)
    cuts = {where: opened.settled.partitions[where].at for where in reopened}
    engine.attach("read_before", [stored.settled.parts])
    engine.attach("reopened", [_table_of_cuts(cuts)])
    rows = engine.ask(f"{queries.REOPENED_ROWS} LIMIT {MOST_OPEN_ROWS + 1}").select(EVENTS.names)
    if rows.num_rows > MOST_OPEN_ROWS:
        return _reopen_everything(engine, opened, reopened)
    kept = {where: partition for where, partition in opened.settled.partitions.items() if where not in reopened}
    opened = replace(
        opened, rows=(*opened.rows, rows.cast(EVENTS)), settled=replace(opened.settled, partitions=kept), reopened=reopened
    )
    opened.attach(engine)
    return opened


def _reopen_everything(engine: Engine, opened: AuditInput, reopened: Mapping[TopicPartition, str]) -> AuditInput:
    where, why = min(reopened.items())
    whole = _open_whole(
        opened.evidence,
        f"{count_of(len(reopened), 'partition has', 'partitions have')} news of what was read before, {where.name}: {why}",
    )
    whole.attach(engine)
    return whole


def _table(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    columns = [list(values) for values in zip(*rows, strict=True)] or [[] for _ in schema]
    return pa.table([pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)], schema=schema)


def _table_of_cuts(cuts: Mapping[TopicPartition, int]) -> pa.Table:
    return _table([(*where, at) for where, at in sorted(cuts.items())], _CUTS)


def _list_runs(settled: Settled | None) -> Iterator[tuple[Any, ...]]:
    """A row for each member; that of the last delivery begins last, so that it is the member before what follows."""
    for where, partition in settled.partitions.items() if settled else ():
        for group, prefix in partition.groups.items():
            last = next(name for name in sorted(prefix.counted) if name[1] == prefix.member)
            gap = prefix.gap
            for name, count in prefix.counted.items():
                first = prefix.last if name == last and len(prefix.counted) > 1 else prefix.first
                ends = (first, prefix.last, count, prefix.ended_ms, gap.ms, gap.from_ms, *gap.members)
                yield group, *where, *name, *ends


def _list_claims(settled: Settled | None) -> Iterator[tuple[Any, ...]]:
    for where, partition in settled.partitions.items() if settled else ():
        for name, producer in partition.producers.items():
            acked = (producer.acked_first, producer.acked_last, producer.acked, producer.newest_ms, producer.stall_us)
            yield *where, name, producer.before - producer.number_before, producer.before, *acked


def settle(engine: Engine, opened: AuditInput, screened: Screened, context: CheckContext, key: SettledKey) -> str:
    """Settle what an audit found clean, for the next one; returns what was done, for a log. Raises `Failed`."""
    stored = opened.evidence.stored
    if stored is None or not stored.parts:
        return "nothing is settled: no store keeps these events"
    accounts = screened.accounts
    writers = settle_writers(accounts.rows, _list_own_changes(stored.rows))
    if isinstance(writers, str):
        return f"nothing is settled: {writers}"
    opened.attach(engine)
    names = {(row["writer"], row["consumer_group"], row["member"]) for row in engine.ask(queries.NAMES).to_pylist()}
    engine.attach("events", opened.rows)
    earlier = opened.settled.partitions if opened.settled else {}
    open_from_ms = max((row.t_hi for row in accounts.rows), default=0) - OPEN_MS
    chosen = _choose_cuts(engine.ask(queries.ends_query(open_from_ms)).to_pylist(), screened, context)
    chosen = {where: at for where, at in chosen.items() if where not in earlier or at > earlier[where].at}
    engine.attach("cuts", [_table_of_cuts({**{where: partition.at for where, partition in earlier.items()}, **chosen})])
    added = _ask_settled(engine, chosen, earlier, screened, context)
    engine.attach("cuts", [_table_of_cuts({where: partition.at for where, partition in {**earlier, **added}.items()})])
    open_rows = engine.ask(f"{queries.OPEN_ROWS} LIMIT {MOST_OPEN_ROWS + 1}").select(EVENTS.names).cast(EVENTS)
    if open_rows.num_rows > MOST_OPEN_ROWS:
        return f"nothing is settled: more than {MOST_OPEN_ROWS} events are open"
    partitions = {**earlier, **_note_edges(added, open_rows)}
    document = as_document(Settled(key, writers, frozenset(names), partitions))
    if not stored.store.keep_settled(stored.parts, document.encode(), open_rows):
        return "nothing is settled: the store was read again meanwhile"
    return f"settled: {len(partitions)} of {count_of(len(screened.places), 'partition')}, {count_of(open_rows.num_rows, 'event is', 'events are')} open"


def _choose_cuts(rows: Iterable[Mapping[str, Any]], screened: Screened, context: CheckContext) -> dict[TopicPartition, int]:
    committed: dict[GroupPartition, int | None] = {}
    open_from: dict[TopicPartition, int] = {}
    for row in rows:
        where = TopicPartition(row["topic"], row["part"])
        committed[GroupPartition(row["consumer_group"], *where)] = row["committed"]
        if row["open_lo"] is not None:
            open_from[where] = min(row["open_lo"], open_from.get(where, row["open_lo"]))
    cuts = {}
    for where in screened.places.keys() - screened.flawed:
        place = screened.places[where]
        readers = {*place.delivered, *(context.subscribed_groups(where.topic) if place.acked_span else ())}
        if readers & {*context.limits.mixed}:
            continue
        groups = {
            group: GroupEnds(row["lo"], row["hi"], committed.get(GroupPartition(group, *where)))
            for group, row in place.delivered.items()
        }
        at = choose_cut(place.acked_span, groups, readers, open_from.get(where))
        if at is not None:
            cuts[where] = at
    return cuts


def _ask_settled(
    engine: Engine,
    cuts: Mapping[TopicPartition, int],
    earlier: Mapping[TopicPartition, SettledPartition],
    screened: Screened,
    context: CheckContext,
) -> dict[TopicPartition, SettledPartition]:
    """The figures up to the new cuts. What the screen does not find clean up to there is left out."""
    producers: dict[TopicPartition, dict[str, SettledProducer]] = defaultdict(dict)
    groups: dict[TopicPartition, dict[str, GroupPrefix]] = defaultdict(dict)
    unclean: set[TopicPartition] = set()
    for row in engine.ask(queries.SETTLED_ACKED).to_pylist():
        where = TopicPartition(row["topic"], row["part"])
        if where in cuts:
            unclean |= {where} if row["suspect"] else set()
            before = earlier[where].producers.get(row["producer"]) if where in earlier else None
            number = row["number"] if before is None else max(row["number"], before.number)
            figures = (row["acked"], row["acked_lo"], row["acked_hi"], row["t_hi"], row["stall_us"])
            producers[where][row["producer"]] = SettledProducer(*figures, number, cuts[where], number)
    counted, last = _ask_members(engine, cuts, earlier)
    for row in engine.ask(queries.settled_deliveries_query(context.limits.skew_ms)).to_pylist():
        where, group = TopicPartition(row["topic"], row["part"]), row["consumer_group"]
        if where in cuts:
            members = tuple(screened.accounts.members.get(row[code]) for code in ("code_from", "code"))
            unclean |= {where} if row["suspect"] or None in members else set()
            ends = row["from_ms"], row["from_ms"] + row["ms"]
            gap = Gap(group, *where, row["ms"], *ends, tuple(map(str, members)))
            key = GroupPartition(group, *where)
            groups[where][group] = GroupPrefix(row["lo"], row["hi"], row["t_hi"], last[key], counted[key], gap)
    added = {}
    for where, at in cuts.items():
        readers = screened.places[where].delivered.keys()
        if where not in unclean and groups[where].keys() == readers:
            owners = {
                group: describe_owners(context, GroupPartition(group, *where), prefix.ended_ms)
                for group, prefix in groups[where].items()
            }
            added[where] = SettledPartition(at, producers[where], groups[where], owners)
    return added


def _ask_members(
    engine: Engine, cuts: Mapping[TopicPartition, int], earlier: Mapping[TopicPartition, SettledPartition]
) -> tuple[dict[GroupPartition, dict[tuple[str, str], int]], dict[GroupPartition, str]]:
    """By group and partition what each member was delivered, and which member had the last delivery."""
    counted: dict[GroupPartition, dict[tuple[str, str], int]] = defaultdict(dict)
    last: dict[GroupPartition, tuple[int, str]] = {}
    for where in cuts.keys() & earlier.keys():
        for group, prefix in earlier[where].groups.items():
            counted[GroupPartition(group, *where)] = dict(prefix.counted)
            last[GroupPartition(group, *where)] = prefix.last, prefix.member
    for row in engine.ask(queries.SETTLED_MEMBERS).to_pylist():
        key = GroupPartition(row["consumer_group"], row["topic"], row["part"])
        if key.where in cuts:
            name = row["writer"], row["member"]
            counted[key][name] = counted[key].get(name, 0) + row["n"]
            last[key] = max(last.get(key, (-1, "")), (row["hi"], row["member"]))
    return counted, {key: member for key, (_, member) in last.items()}


def _note_edges(added: Mapping[TopicPartition, SettledPartition], open_rows: pa.Table) -> dict[TopicPartition, SettledPartition]:
    """Where the open events of these partitions begin: they may begin below the cut."""
    firsts: dict[TopicPartition, int] = {}
    numbers: dict[tuple[TopicPartition, str], int] = {}
    claims = open_rows.filter(pc.is_valid(open_rows["producer"])).group_by(["topic", "part", "producer"])
    for row in claims.aggregate([("lo", "min"), ("producer_seq", "min")]).to_pylist():
        where = TopicPartition(row["topic"], row["part"])
        firsts[where] = min(row["lo_min"], firsts.get(where, row["lo_min"]))
        numbers[where, row["producer"]] = row["producer_seq_min"]
    noted = {}
    for where, partition in added.items():
        before = min(partition.at, firsts.get(where, partition.at + 1) - 1)
        producers = {
            name: replace(
                producer, before=before, number_before=min(producer.number, numbers.get((where, name), producer.number + 1) - 1)
            )
            for name, producer in partition.producers.items()
        }
        noted[where] = replace(partition, producers=producers)
    return noted


def describe(opened: AuditInput) -> str:
    """What is read, for a log; empty if nothing was settled."""
    if opened.whole_because:
        return f"All events are read, because the settled cuts cannot be used: {opened.whole_because}."
    if opened.settled is None:
        return ""
    text = f"What came after the settled cuts of {count_of(len(opened.settled.partitions), 'partition')} is read."
    if opened.reopened:
        where, why = min(opened.reopened.items())
        text += f" Read whole again: {count_of(len(opened.reopened), 'partition')}, first {where.name}: {why}."
    return text
