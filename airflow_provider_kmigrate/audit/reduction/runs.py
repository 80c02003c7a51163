"""Single records joined to runs, without losing anything that the ledger asks about."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from airflow_provider_kmigrate.audit.algebra import Flags, Ints, changes, last_not_above, ranges, running_max
from airflow_provider_kmigrate.audit.reduction.screen import Chains, Commits


class Rows(NamedTuple):
    """Single deliveries."""

    place: Ints
    reader: Ints
    owner: Ints
    offset: Ints
    seq: Ints
    t_ms: Ints

    def take(self, which: Flags | Ints) -> Rows:
        return Rows(*(values[which] for values in self))


def assemble(rows: Rows, commits: Commits, skew_ms: int) -> tuple[Chains, Ints]:
    """Runs of deliveries that continue each other in number, offset and time; and the readers that committed a record too early.

    A row that is there twice (same number, same offset) counts once. A run ends where another member delivers, and a row within
    the skew of one stays single, so that the order between members can be told from runs as well as from rows. It ends too where
    another commit makes its rows late.
    """
    rows = _once(rows)
    rows = rows.take(np.lexsort((rows.owner, rows.seq, rows.t_ms, rows.reader)))
    late = _late(rows, commits, skew_ms)
    alone = _near_others(rows, skew_ms)
    cut = changes(rows.reader, rows.owner, late).astype(np.bool_)
    cut[1:] |= (np.diff(rows.offset) != 1) | (np.diff(rows.seq) != 1) | alone[1:] | alone[:-1]
    if not len(cut):
        return Chains(*([rows.place] * 9)), rows.reader
    first = np.flatnonzero(cut | (np.arange(len(cut)) == 0))
    last = np.append(first[1:], len(cut)) - 1
    return Chains(
        place=rows.place[first],
        reader=rows.reader[first],
        owner=rows.owner[first],
        first=rows.offset[first],
        last=rows.offset[last],
        seq=rows.seq[first],
        seq_end=rows.seq[last] + 1,
        t_first=rows.t_ms[first],
        t_last=rows.t_ms[last],
    ), np.unique(rows.reader[late >= 0])


def _once(rows: Rows) -> Rows:
    rows = rows.take(np.lexsort((rows.t_ms, rows.offset, rows.seq, rows.owner, rows.reader)))
    new = changes(rows.reader, rows.owner, rows.seq, rows.offset).astype(np.bool_)
    new[:1] = True
    return rows.take(new)


def _late(rows: Rows, commits: Commits, skew_ms: int) -> Ints:
    """The offset before the one that had been committed when a row came although it lies behind it; -1: none."""
    high = running_max(commits.reader, commits.last)
    at = last_not_above(commits.reader, commits.t_ms, rows.reader, rows.t_ms - skew_ms - 1)
    if not len(high):
        return np.full(len(rows.reader), -1, np.int64)
    return np.where((at >= 0) & (high[at] >= rows.offset), high[at], -1)


def _near_others(rows: Rows, skew_ms: int) -> Flags:
    """Rows within the skew of the delivery of another member, before or after them."""
    streak = changes(rows.reader, rows.owner)
    starts = np.flatnonzero(streak)
    near = np.zeros(len(streak), np.bool_)
    if not len(starts):
        return near
    number = np.cumsum(streak)  # of the streak that a row is in; `starts[number - 1]` begins it, `starts[number]` the next one
    for other, exists in (
        (starts[np.maximum(number, 1) - 1] - 1, number >= 1),
        (starts[np.minimum(number, len(starts) - 1)], number < len(starts)),
    ):
        near |= exists & (rows.reader[other] == rows.reader) & (np.abs(rows.t_ms[other] - rows.t_ms) <= skew_ms)
    return near


def pieces(chains: Chains) -> Chains:
    """The chains cut wherever another one of the same reader begins or ends: of a piece, all was delivered before, or none."""
    bounds = np.unique(np.stack([np.tile(chains.reader, 2), np.concatenate([chains.first, chains.last + 1])]), axis=1)
    begin = last_not_above(bounds[0], bounds[1], chains.reader, chains.first)
    end = last_not_above(bounds[0], bounds[1], chains.reader, chains.last + 1)
    cuts = ranges(begin, end)
    cut = chains.take(np.repeat(np.arange(len(begin)), end - begin))
    first, after = bounds[1][cuts], bounds[1][cuts + 1]
    seq = cut.seq + first - cut.first
    return cut._replace(first=first, last=after - 1, seq=seq, seq_end=seq + after - first)
