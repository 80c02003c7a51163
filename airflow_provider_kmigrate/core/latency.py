"""Latencies in whole microseconds: buckets that every engine computes alike, and quantiles.

A bucket is an integer function of the value (no logarithm), so Python, Spark and SQL put the same value into the same bucket:
values below 128 each have their own, above that there are 64 buckets to an octave. The middle of a bucket is within 0.79 % of
every value in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

Histogram = tuple[tuple[int, int], ...]  # (bucket, count), ascending buckets, no empty ones

_SUB_BITS = 6
_SUB = 1 << _SUB_BITS


def bucket(value: int) -> int:
    """The bucket of a latency in microseconds; negative values (a clock stepped back) count as 0."""
    value = max(value, 0)
    shift = max(0, value.bit_length() - _SUB_BITS - 1)
    return _SUB * shift + (value >> shift)


def middle(number: int) -> float:
    """The middle of a bucket in microseconds."""
    shift = max(0, number // _SUB - 1)
    return float(((number - _SUB * shift) << shift) + ((1 << shift) - 1) / 2)


def histogram(values: Iterable[int]) -> Histogram:
    """Latencies in microseconds as counts of buckets."""
    return tuple(sorted(Counter(map(bucket, values)).items()))


def merge(histograms: Iterable[Histogram]) -> Histogram:
    """The histogram of everything that went into any of them."""
    total: Counter[int] = Counter()
    for one in histograms:
        for number, count in one:
            total[number] += count
    return tuple(sorted(total.items()))


def bucket_quantile(counts: Histogram, share: float) -> float | None:
    """The smallest value that at least `share` of all do not exceed (nearest rank), to within 0.79 %; None of nothing."""
    number = counted_quantile(counts, share)
    return None if number is None else middle(number)


def counted_quantile(counts: Sequence[tuple[int, int]], share: float) -> int | None:
    """The same, exactly, of values that ascend, each with how often it is there."""
    left = _rank(sum(count for _, count in counts), share)
    for value, count in counts:
        left -= count
        if left <= 0:
            return value
    return None


def _rank(size: int, share: float) -> int:
    """From 1. In whole ten-thousandths: as doubles, 0.999 * 1000 may come out above 999 and name the next value."""
    return max(1, -(-size * round(share * 10_000) // 10_000))
