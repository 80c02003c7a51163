"""Sets of offsets in columns: what `core.intervals` does for one partition, for all partitions at once, in numpy.

A *chain* is what one group-by makes of deliveries that continue each other. It proves that they are unbroken without looking at
them again: `mix` scatters numbers, and the sum of `mix(end) - mix(start)` over pieces equals `mix(last end) - mix(first start)`
only if every piece begins where another ends. Lost pieces that repeated ones make up for in number do not pass (chance 1 in 10^9).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_LOW, _SCATTER, _IMAGE = (1 << 30) - 1, (1 << 31) - 1, (1 << 30) - 1
_FACTOR = 2_654_435_761  # Knuth's multiplicative hash; alone it is nearly linear for small numbers, hence the square


def mix(values: Ints) -> Ints:
    """A number's scattered image; `mix_sql` computes the same. Nothing in it overflows, because Spark's ANSI mode would raise."""
    scattered = ((values & _LOW) * _FACTOR) & _SCATTER
    return ((scattered * scattered) >> 16) & _IMAGE


def mix_sql(expression: str) -> str:
    """`mix` of a whole-number expression, as Spark and DuckDB both read it."""
    scattered = f"(((({expression}) & {_LOW}) * {_FACTOR}) & {_SCATTER})"
    return f"((({scattered} * {scattered}) >> 16) & {_IMAGE})"


def unbroken(start: Ints, end: Ints, total: Ints, chain: Ints) -> Flags:
    """Whether pieces with these sums fill start..end-1, each number once."""
    fills: Flags = (end - start == total) & (mix(end) - mix(start) == chain)
    return fills


class Spans(NamedTuple):
    """Spans first..last of many sets; `key` says whose. Sorted by key and first where a function returns them."""

    key: Ints
    first: Ints
    last: Ints

    def take(self, which: Any) -> Spans:
        return Spans(self.key[which], self.first[which], self.last[which])

    @staticmethod
    def none() -> Spans:
        nothing = np.empty(0, np.int64)
        return Spans(nothing, nothing, nothing)


def union(spans: Spans) -> Spans:
    """Every set with its spans joined where they overlap or touch."""
    if not len(spans.key):
        return spans
    spans = spans.take(np.lexsort((spans.last, spans.first, spans.key)))
    high = running_max(spans.key, spans.last)
    new = np.ones(len(high), np.bool_)
    new[1:] = (spans.key[1:] != spans.key[:-1]) | (spans.first[1:] > high[:-1] + 1)
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(high)) - 1
    return Spans(spans.key[starts], spans.first[starts], high[ends])


def subtract(minuend: Spans, subtrahend: Spans) -> Spans:
    """What is in the sets of the first and not in those of the second that have the same key."""
    key = np.concatenate([minuend.key, minuend.key, subtrahend.key, subtrahend.key])
    place = np.concatenate([minuend.first, minuend.last + 1, subtrahend.first, subtrahend.last + 1])
    sizes = len(minuend.key), len(minuend.key), len(subtrahend.key), len(subtrahend.key)
    in_first = np.repeat(np.array([1, -1, 0, 0]), sizes)
    in_second = np.repeat(np.array([0, 0, 1, -1]), sizes)
    order = np.lexsort((place, key))
    key, place = key[order], place[order]
    left = (np.cumsum(in_first[order]) > 0) & (np.cumsum(in_second[order]) == 0)
    at = np.flatnonzero(left[:-1] & (place[1:] > place[:-1]))  # a set's depths end at 0, so no span reaches into the next set
    return union(Spans(key[at], place[at], place[at + 1] - 1))


def blocks(spans: Spans, bits: int) -> Spans:
    """The same cut at every multiple of 2 ** bits."""
    begin, end = spans.first >> bits, (spans.last >> bits) + 1
    block, row = ranges(begin, end), np.repeat(np.arange(len(begin)), end - begin)
    first, last = np.maximum(spans.first[row], block << bits), np.minimum(spans.last[row], ((block + 1) << bits) - 1)
    return Spans(spans.key[row], first, last)


def sizes(spans: Spans) -> Ints:
    """How many offsets each span holds."""
    return spans.last - spans.first + 1


def running_max(key: Ints, values: Ints) -> Ints:
    """The largest value so far within each key; keys ascend."""
    if not len(values):
        return values
    levels, rank = np.unique(values, return_inverse=True)
    block = np.cumsum(changes(key)) * len(levels)  # later keys above all earlier ones, without overflow
    highest: Ints = levels[np.maximum.accumulate(block + rank) % len(levels)]
    return highest


def changes(*columns: Ints) -> Ints:
    """1 where a row differs from the one before it in any column, else 0; the first row is 0."""
    changed = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return changed


def before(key: Ints, values: Ints, default: int) -> Ints:
    """The value of the row before, within the key."""
    shifted = np.full(len(values), default, np.int64)
    same = key[1:] == key[:-1]
    shifted[1:][same] = values[:-1][same]
    return shifted


def ranges(begin: Ints, end: Ints) -> Ints:
    """begin[0]..end[0]-1, begin[1]..end[1]-1 and so on, in one."""
    lengths = end - begin
    ends = np.cumsum(lengths)
    counted: Ints = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64) + np.repeat(begin - ends + lengths, lengths)
    return counted


def column(table: pa.Table, name: str, default: int = 0) -> Ints:
    """A column of whole numbers; nulls become `default`."""
    values = table.column(name)
    if values.null_count:
        values = pc.fill_null(values, default)
    return np.asarray(values.to_numpy(), dtype=np.int64)


def codes(columns: Sequence[pa.ChunkedArray]) -> Ints:
    """One number for each distinct combination of the columns' values, in no particular order."""
    combined = np.zeros(len(columns[0]), np.int64)
    for values in columns:
        encoded = pc.dictionary_encode(values, null_encoding="encode").combine_chunks()
        encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
        number = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
        combined = np.unique(combined * (len(encoded.dictionary) + 1) + number, return_inverse=True)[1]
    return combined


def last_not_above(key: Ints, values: Ints, asked_key: Ints, asked: Ints) -> Ints:
    """For each asked value the row with the largest value not above it, within the key; -1: none. Rows are sorted by key, value."""
    rows = np.arange(len(key), dtype=np.int64)
    both_keys = np.concatenate([key, asked_key])
    order = np.lexsort((np.repeat([0, 1], [len(key), len(asked_key)]), np.concatenate([values, asked]), both_keys))
    row = np.concatenate([rows, np.full(len(asked_key), -1, np.int64)])[order]
    found = np.empty(len(order), np.int64)
    found[order] = running_max(both_keys[order], row)
    return found[len(key) :]
