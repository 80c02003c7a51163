"""A one-sided Mann-Whitney U test: are one member's values larger than the others', and by what factor?

Everything follows from one number, U / (m n): the share of all pairs (a value of the member, a value of the others) in which the
member's is the larger one, ties counting half. Without a difference it is 1/2, with a known standard error. Dividing the member's
values by a factor and asking again gives the factors that the test cannot exclude, and so the estimate and its bounds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import erf, exp, inf, log, sqrt
from statistics import NormalDist, fmean
from typing import Final

ALPHA: Final = 0.05  # probability of a false FAIL, and of a false PASS
POWER: Final = 0.8
_Z_ALPHA: Final = NormalDist().inv_cdf(1 - ALPHA)
_Z_POWER: Final = NormalDist().inv_cdf(POWER)
_MOST_ALIKE: Final = 0.95  # a correlation above it leaves next to nothing to judge by


@dataclass(frozen=True, slots=True)
class RankTest:
    """The member's values as a multiple of the others'.

    `p_value`: how often chance alone would give as large a U. `low` and `high`: one-sided 95 % bounds of the factor (0 and infinity:
    no bound). `smallest`: the smallest factor that would have been called worse with probability `POWER`.
    """

    p_value: float
    estimate: float
    low: float
    high: float
    smallest: float

    def worse(self, margin: float) -> bool:
        """Whether the values are surely larger, and by more than half the margin (its square root)."""
        return self.p_value < ALPHA and self.estimate > sqrt(margin)

    def within(self, margin: float) -> bool:
        """Whether the values are surely less than `margin` times as large, and the test could have seen that much."""
        return self.high < margin and self.smallest <= margin


def rank_test(member: Sequence[float], others: Sequence[Sequence[float]], margin: float, inflation: float = 1.0) -> RankTest:
    """Compares logarithms of values, each sequence in the order of time; raises ValueError for an empty side.

    `inflation`: by what the variance of U exceeds that of independent values. The others' own differences raise it further.
    """
    pooled = sorted(value for row in others for value in row)
    if not member or not pooled:
        raise ValueError("A rank test needs values of both sides.")
    error = sqrt(max(_variance(member, pooled) * inflation, _variance_among(others)))
    share = _share(member, pooled, 0.0)
    estimate = _factor(member, pooled, 0.5)
    seen = _factor(member, pooled, 0.5 - (_Z_ALPHA + _Z_POWER) * error) - estimate
    large = log(margin) / 2 + _factor(member, pooled, 0.5 - _Z_POWER * error) - estimate
    return RankTest(
        p_value=_p_value(share - 0.5, error),
        estimate=exp(estimate),
        low=exp(_factor(member, pooled, 0.5 + _Z_ALPHA * error)),
        high=exp(_factor(member, pooled, 0.5 - _Z_ALPHA * error)),
        smallest=exp(max(seen, large)),
    )


def autocorrelation(rows: Sequence[Sequence[float]]) -> float:
    """Correlation of neighbouring values, over all rows, each around its own mean; corrected for short rows, never below 0.

    Source: Kendall (1954), a row of n values underestimates r by (1 + 4 r) / n.
    """
    centred = [[value - fmean(row) for value in row] for row in rows if len(row) > 4]
    whole = sum(value * value for row in centred for value in row)
    if not whole:
        return 0.0
    found = sum(one * other for row in centred for one, other in pairwise(row)) / whole
    length = fmean(map(len, centred))
    return min(max((found + 1 / length) / (1 - 4 / length), 0.0), _MOST_ALIKE)


def _share(member: Sequence[float], pooled: Sequence[float], shift: float) -> float:
    """U / (m n) after `shift` is taken from the member's values; `pooled` is sorted."""
    below = sum(bisect_left(pooled, value - shift) + bisect_right(pooled, value - shift) for value in member)
    return below / (2 * len(member) * len(pooled))


def _factor(member: Sequence[float], pooled: Sequence[float], share: float) -> float:
    """The shift after which U / (m n) is `share`; without bound outside of (0, 1)."""
    if not 0 < share < 1:
        return inf if share <= 0 else -inf
    low, high = min(member) - pooled[-1] - 1, max(member) - pooled[0] + 1
    while high - low > 1e-6:
        middle = (low + high) / 2
        above = _share(member, pooled, middle) - share
        if above == 0 or middle in (low, high):
            return middle
        low, high = (middle, high) if above > 0 else (low, middle)
    return (low + high) / 2


def _variance(member: Sequence[float], pooled: Sequence[float]) -> float:
    """Of U / (m n) without a difference, corrected for ties."""
    m, n = len(member), len(pooled)
    size = m + n
    ties = sum(count**3 - count for count in Counter([*member, *pooled]).values())
    return (size + 1 - ties / (size * (size - 1))) / (12 * m * n)


def _variance_among(others: Sequence[Sequence[float]]) -> float:
    """By how much U / (m n) differs if each of the others is compared with the rest of them; a member is no better known than this.

    Without it, members that differ for good would be called worse, or within the margin, far too often: minutes of one member are no
    substitute for more members.
    """
    known = [row for row in others if row]
    k = len(known)
    if k < 3:
        return 0.0
    shares = []
    for at, row in enumerate(known):
        rest = sorted(value for other in (*known[:at], *known[at + 1 :]) for value in other)
        shares.append(_share(row, rest, 0.0))
    # Against k - 1 members each share differs by k / (k - 1) too much, which is kept: few members say little about how much they differ.
    return sum((share - 0.5) ** 2 for share in shares) / (k - 1) * (1 + 1 / k)


def _p_value(above: float, error: float) -> float:
    """Probability of at least this much above 1/2 by chance alone."""
    if error == 0:
        return 0.0 if above > 0 else 1.0
    return (1 - erf(above / error / sqrt(2))) / 2
