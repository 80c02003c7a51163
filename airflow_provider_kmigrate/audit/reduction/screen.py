"""Which partitions are beyond doubt? Decided from chains of deliveries and acknowledgements, for all partitions at once.

A partition is beyond doubt when the ledger could find nothing in it: every chain unbroken, every member's count whole from 0,
every acknowledged record delivered to every group that wants it, offsets and times only going up, every offset claimed by one
record, nothing committed before it was delivered. Doubt costs time, never truth: the ledger then looks at the events themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from airflow_provider_kmigrate.audit.algebra import (
    Flags,
    Ints,
    Spans,
    before,
    changes,
    last_not_above,
    ranges,
    running_max,
    subtract,
    union,
)


class Chains(NamedTuple):
    """Unbroken deliveries of one member each; numbers for names as `naming` gives them. `seq_end` is the number after the last."""

    place: Ints
    reader: Ints
    owner: Ints
    first: Ints
    last: Ints
    seq: Ints
    seq_end: Ints
    t_first: Ints
    t_last: Ints

    def take(self, which: Flags | Ints) -> Chains:
        return Chains(*(values[which] for values in self))


class Commits(NamedTuple):
    """`last`: the offset before the committed one."""

    reader: Ints
    last: Ints
    t_ms: Ints

    def take(self, which: Flags | Ints) -> Commits:
        return Commits(*(values[which] for values in self))


def uncounted(chains: Chains) -> Ints:
    """Readers of which some member's count of deliveries has a hole, or does not begin at 0."""
    rows = chains.take(np.lexsort((chains.seq, chains.owner, chains.reader)))
    stream = np.cumsum(changes(rows.reader, rows.owner))
    return np.unique(rows.reader[rows.seq != before(stream, rows.seq_end, 0)])


def undelivered(acked: Spans, delivered: Chains, place_of: Ints) -> Spans:
    """By reader, what was acknowledged in its place (the key of `acked`) and never delivered to it."""
    return subtract(_owed(acked, place_of), _of_readers(delivered))


def passed_over(acked: Spans, delivered: Chains, place_of: Ints) -> Spans:
    """By reader, what lies between its deliveries and was neither delivered to it nor acknowledged."""
    readers, row = np.unique(delivered.reader, return_inverse=True)
    first, last = np.full(len(readers), np.iinfo(np.int64).max), np.full(len(readers), -1)
    np.minimum.at(first, row, delivered.first)
    np.maximum.at(last, row, delivered.last)
    return subtract(subtract(Spans(readers, first, last), _of_readers(delivered)), _owed(acked, place_of))


def _of_readers(delivered: Chains) -> Spans:
    return Spans(delivered.reader, delivered.first, delivered.last)


def _owed(acked: Spans, place_of: Ints) -> Spans:
    """What was acknowledged, of each reader of its place."""
    rows = acked.take(np.argsort(acked.key, kind="stable"))
    begin, end = np.searchsorted(rows.key, place_of, "left"), np.searchsorted(rows.key, place_of, "right")
    picked = ranges(begin, end)
    return Spans(np.repeat(np.arange(len(place_of)), end - begin), rows.first[picked], rows.last[picked])


def disputed(place: Ints, producer: Ints, shift: Ints, first: Ints, last: Ints) -> Ints:
    """Places where one offset is claimed by two records, or a producer's numbers do not go up. A record's number is offset - shift."""
    _, claim = np.unique(np.stack([place, producer, shift]), axis=1, return_inverse=True)
    claims = union(Spans(claim, first, last))
    row = np.empty(claim.max(initial=-1) + 1, np.int64)
    row[claim] = np.arange(len(claim))
    at = row[claims.key]
    place, producer, shift = place[at], producer[at], shift[at]
    order = np.lexsort((claims.first, place))
    twice = claims.first[order] <= before(place[order], running_max(place[order], claims.last[order]), -1)
    falling = np.lexsort((claims.first, producer, place))
    of_producer = np.cumsum(changes(place[falling], producer[falling]))
    numbers_end = running_max(of_producer, (claims.last - shift)[falling])
    back = (claims.first - shift)[falling] <= before(of_producer, numbers_end, np.iinfo(np.int64).min)
    return np.unique(np.concatenate([place[order][twice], place[falling][back]]))


def leading(commits: Commits) -> Commits:
    """Only those commits that went beyond all earlier ones of their reader: the others forbid nothing new."""
    rows = commits.take(np.lexsort((commits.last, commits.t_ms, commits.reader)))
    return rows.take(rows.last > before(rows.reader, running_max(rows.reader, rows.last), -1))


def unsettled(commits: Commits, delivered: Chains, skew_ms: int) -> tuple[Commits, Ints]:
    """Commits of which the chains do not show that all before them had been delivered; and the chain that each one points into.

    Only for readers whose deliveries go up in offsets and time.
    """
    order = np.lexsort((delivered.first, delivered.reader))
    at = last_not_above(delivered.reader[order], delivered.first[order], commits.reader, commits.last)
    if not len(order):
        return commits.take(at >= 0), at[at >= 0]
    chain = order[at]
    open_ones = (at >= 0) & (delivered.t_last[chain] > commits.t_ms + skew_ms)
    return commits.take(open_ones), chain[open_ones]


def going_back(chains: Chains) -> Ints:
    """Readers that were delivered an offset after the same or a higher one."""
    rows = chains.take(in_time(chains))
    return np.unique(rows.reader[rows.first <= before(rows.reader, running_max(rows.reader, rows.last), -1)])


def in_time(chains: Chains) -> Ints:
    """The order in which the ledger walks through each reader's deliveries."""
    return np.lexsort((chains.owner, chains.seq, chains.t_first, chains.reader))


def entangled(chains: Chains, skew_ms: int) -> Ints:
    """Readers whose chains do not tell in which order their records came.

    They do tell where each chain ends before the next begins, and by more than the clocks' skew where another member then goes back.
    """
    rows = chains.take(in_time(chains))
    if not len(rows.reader):
        return rows.reader
    turn = changes(rows.reader, rows.owner)
    turn_begin = np.maximum.accumulate(np.where(turn, np.arange(len(turn)), 0))
    ended = before(rows.reader, rows.t_last, np.iinfo(np.int64).min)
    back = rows.first <= before(rows.reader, running_max(rows.reader, rows.last), -1)
    close = ended[turn_begin] >= rows.t_first - skew_ms  # to what another member was delivered before
    unordered = rows.seq < before(np.cumsum(turn), rows.seq_end, 0)
    return np.unique(rows.reader[(ended > rows.t_first) | (back & close) | unordered])
