"""The numbers behind the canary verdict, vectorised: the last axes are (members, intervals), everything before them is a batch.

The member is the replicate, not the minute: minutes of one member are autocorrelated, and members differ for good, so that a
test over pooled minutes calls 14-33 % of harmless canaries bad (measured, AR(1) noise). Each member is reduced to one number,
its change from before to after; the effect is the canaries' mean change less the baseline's, and the noise is how much the
baseline members' changes differ among themselves (one canary: Crawford and Howell's t for a single case).

Limit: a canary's change is taken to be as noisy as an old member's. Were it noisier, both errors would be more frequent than
promised; with one canary nothing in the data can tell.

The only part of core, with `canary_judge`, that may use numpy and scipy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, sqrt

import numpy as np
import numpy.typing as npt
from scipy import optimize, special  # type: ignore[import-untyped]

from airflow_provider_kmigrate.core.audit.canary import Spending

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

FAIL, INCONCLUSIVE, PASS = 1, 0, -1


@dataclass(frozen=True, slots=True)
class Estimate:
    """Effect of being a canary and its standard error, each of the batch's shape; `df` are the baseline's degrees of freedom."""

    effect: Floats
    error: Floats
    df: int


def changes(series: Floats, before: int, baseline: Bools) -> Floats:
    """Each member's mean after the first `before` intervals less its mean in them; NaN marks intervals without a value.

    What the baseline members have in common in an interval (load, time of day) is taken out first, so that members with holes
    in different places stay comparable; with complete series this is plain difference in differences.
    """
    own = series - _mean(series[..., :before], axis=-1)
    rest = own - _mean(own[..., baseline, :], axis=-2)
    change: Floats = (_mean(rest[..., before:], axis=-1) - _mean(rest[..., :before], axis=-1))[..., 0]
    return change


def _mean(values: Floats, axis: int) -> Floats:
    """Mean of the finite values, the axis kept; NaN where there is none (numpy.nanmean would warn)."""
    known = np.isfinite(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Floats = np.where(known, values, 0.0).sum(axis, keepdims=True) / known.sum(axis, keepdims=True)
    return mean


def estimate(baseline: Floats, canary: Floats, least_spread: float = 0.0) -> Estimate:
    """Difference in differences from the members' changes; `least_spread` is a floor for the baseline's standard deviation.

    Without the floor a coarse metric whose baseline members happen to agree exactly would make any canary significant.
    """
    members, canaries = baseline.shape[-1], canary.shape[-1]
    spread = np.maximum(baseline.std(axis=-1, ddof=1), least_spread)
    return Estimate(canary.mean(-1) - baseline.mean(-1), spread * sqrt(1 / canaries + 1 / members), members - 1)


def bounds(found: Estimate, fail_level: float, pass_level: float) -> tuple[Floats, Floats]:
    """One-sided lower bound at `fail_level` and upper bound at `pass_level`."""
    low = found.effect - special.stdtrit(found.df, 1 - fail_level) * found.error
    high = found.effect + special.stdtrit(found.df, 1 - pass_level) * found.error
    return low, high


def classify(found: Estimate, margin: float, fail_level: float, pass_level: float) -> Ints:
    """FAIL: surely worse, and by more than half the margin; PASS: surely within the margin (non-inferior); else INCONCLUSIVE."""
    low, high = bounds(found, fail_level, pass_level)
    worse = (low > 0) & (found.effect > margin / 2)
    return np.where(worse, FAIL, np.where(high < margin, PASS, INCONCLUSIVE))


def detectable(found: Estimate, margin: float, fail_level: float, power: float) -> Floats:
    """The smallest true effect that `classify` would fail with probability `power`, were the noise as found (noncentral t)."""
    threshold = special.stdtrit(found.df, 1 - fail_level)
    by_noise = special.nctdtrinc(found.df, 1 - power, threshold) * found.error
    by_size = margin / 2 + special.stdtrit(found.df, power) * found.error
    larger: Floats = np.maximum(by_noise, by_size)
    return larger


def standing_out(baseline: Floats, canary: Floats, margin: float, level: float, least_spread: float = 0.0) -> Bools:
    """Which canaries are, each taken alone, worse than the baseline by more than the margin; `level` is shared among them."""
    alone = estimate(baseline[..., None, :], canary[..., :, None], least_spread)
    low, _ = bounds(alone, level / canary.shape[-1], level)
    outlying: Bools = (low > 0) & (alone.effect > margin)
    return outlying


def placebos(
    history: Floats, size: int, margin: float, level: float, *, least_spread: float, limit: int, rng: np.random.Generator
) -> Ints:
    """The judge on changes of old members only: (pairs of windows, members) -> outcomes of shape (2, placebos).

    Every set of `size` members plays the canary against the rest, at most `limit` sets drawn with `rng`. Row 0: as it is, a FAIL
    is a false alarm; row 1: with the margin planted, a PASS is a miss.
    """
    chosen = _subsets(history.shape[-1], size, limit, rng)
    rest = np.array([np.setdiff1d(np.arange(history.shape[-1]), subset) for subset in chosen])
    plain = estimate(history[:, rest], history[:, chosen], least_spread)
    planted = Estimate(plain.effect + margin, plain.error, plain.df)
    return np.stack([classify(case, margin, level, level).ravel() for case in (plain, planted)])


def _subsets(members: int, size: int, limit: int, rng: np.random.Generator) -> Ints:
    if comb(members, size) <= limit:
        return np.array(list(combinations(range(members), size)), dtype=np.int64)
    return np.argsort(rng.random((limit, members)), axis=1)[:, :size].astype(np.int64)


def overdone(rate: float, trials: int, level: float) -> bool:
    """Whether a judge errs more than twice as often as its `level` promises, and not by bad luck in a few trials (5 %)."""
    errors = round(rate * trials)
    return rate > 2 * level and float(special.bdtrc(errors - 1, trials, level)) < 0.05


def spent(fractions: Sequence[float], alpha: float, spending: Spending) -> Floats:
    """Error that may have been used up by each look; `fractions` of the whole window, rising, the last one 1."""
    passed = np.asarray(fractions, dtype=np.float64)
    if spending is Spending.POCOCK:
        return alpha * np.log1p((np.e - 1) * passed)
    whole: Floats = 2 * special.ndtr(special.ndtri(alpha / 2) / np.sqrt(passed))
    return whole


@lru_cache(maxsize=128)
def look_levels(fractions: tuple[float, ...], alpha: float, spending: Spending) -> tuple[float, ...]:
    """The one-sided level for each look, such that all looks together err with probability `alpha`.

    Armitage, McPherson and Rowe's recursion over the density of paths that did not cross yet. Looks are taken as correlated as
    the window's own shares say; the common period before makes them more alike, which only lowers the total.
    """
    points, mass, last, levels = np.zeros(1), np.ones(1), 0.0, []
    for fraction, budget in zip(fractions, np.diff(spent(fractions, alpha, spending), prepend=0.0), strict=True):
        step, spread = sqrt(fraction - last), sqrt(fraction)
        boundary = optimize.brentq(lambda at: mass @ special.ndtr((points - at) / step) - budget, -9 * spread, 38 * spread)  # noqa: B023
        levels.append(float(special.ndtr(-boundary / spread)))
        grid = np.linspace(-9 * spread, boundary, 801)
        density = np.exp(-0.5 * ((grid[:, None] - points) / step) ** 2) @ mass / (step * sqrt(2 * np.pi))
        points, mass, last = grid, density * (grid[1] - grid[0]), fraction
        mass[[0, -1]] /= 2
    return tuple(levels)
