"""Sets of whole numbers as intervals: a million offsets cost as much as one, as long as they are consecutive.

A `Span` is (first, last), both included. A list of spans is a set when it is ascending and no two spans touch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

Span = tuple[int, int]


def union(spans: Iterable[Span]) -> list[Span]:
    """All numbers in any of the spans, which may come in any order and overlap."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            if last > merged[-1][1]:
                merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return merged


def clip(span: Span, others: Sequence[Span]) -> list[Span]:
    """Numbers of one span that are in a set; takes the logarithm of the set's length."""
    overlaps: list[Span] = []
    for i in range(bisect_left(others, span[0], key=lambda other: other[1]), len(others)):
        if others[i][0] > span[1]:
            break
        overlaps.append((max(span[0], others[i][0]), min(span[1], others[i][1])))
    return overlaps


def subtract(a: Iterable[Span], b: Sequence[Span]) -> list[Span]:
    """Numbers in the set `a` that are not in the set `b`."""
    remainder: list[Span] = []
    for first, last in a:
        begin = first
        for cut_first, cut_last in clip((first, last), b):
            if cut_first > begin:
                remainder.append((begin, cut_first - 1))
            begin = cut_last + 1
        if begin <= last:
            remainder.append((begin, last))
    return remainder


def count_numbers(spans: Iterable[Span]) -> int:
    """How many numbers a set holds."""
    return sum(last - first + 1 for first, last in spans)


class Coverage:
    """A set that grows. Cheap if spans arrive in ascending order, as offsets nearly always do."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    @property
    def spans(self) -> Sequence[Span]:
        """The covered spans, in ascending order."""
        return self._spans

    @property
    def high(self) -> int | None:
        """The largest number so far."""
        return self._spans[-1][1] if self._spans else None

    def add(self, span: Span) -> list[Span]:
        """Add a span; the part of it that is new."""
        spans = self._spans
        if not spans or span[0] > spans[-1][1]:
            if spans and span[0] == spans[-1][1] + 1:
                spans[-1] = (spans[-1][0], span[1])
            else:
                spans.append(span)
            return [span]
        return self._insert(span)

    def _insert(self, span: Span) -> list[Span]:
        spans = self._spans
        low = bisect_left(spans, span[0] - 1, key=lambda other: other[1])
        high = low
        while high < len(spans) and spans[high][0] <= span[1] + 1:
            high += 1
        touched = spans[low:high]
        spans[low:high] = union([span, *touched])
        return subtract([span], touched)
