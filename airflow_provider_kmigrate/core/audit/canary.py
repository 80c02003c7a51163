"""What is compared when a canary is judged, and how carefully; `canary_judge.judge` does it. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, exp, inf, isfinite, log, nan


class Arm(StrEnum):
    """Baseline members keep the old client; restart as many of them as there are canaries, or a cold start looks like a regression."""

    BASELINE = "baseline"
    CANARY = "canary"


class Scale(StrEnum):
    """How two values of a metric compare."""

    RATIO = "ratio"  # latency, lag, service time: judged on the logarithm
    DIFFERENCE = "difference"  # a slope: may be negative


class Spending(StrEnum):
    """How the allowed error is shared among the looks (Lan and DeMets 1983)."""

    OBRIEN_FLEMING = "obrien-fleming"  # almost nothing early: only a gross effect stops the first looks
    POCOCK = "pocock"  # about the same at every look


@dataclass(frozen=True, slots=True)
class Metric:
    """What is measured; more is worse (give service time, not throughput, which the producers set).

    `margin`: how much worse is still acceptable, a ratio above 1 or a difference above 0. `resolution`: smaller values of a ratio
    metric count as this one, because what they differ by does not matter (and zero has no logarithm).
    """

    name: str
    margin: float = 1.25
    scale: Scale = Scale.RATIO
    resolution: float = 1.0

    def __post_init__(self) -> None:
        if self.margin <= (1.0 if self.scale is Scale.RATIO else 0.0) or self.resolution <= 0:
            raise ValueError(
                f"{self.name}: a margin of {self.margin} allows nothing worse, or resolution {self.resolution} is not positive"
            )

    @property
    def judged_margin(self) -> float:
        """The margin on the scale that is averaged."""
        return (
            self.judged(self.margin * self.resolution) - self.judged(self.resolution)
            if self.scale is Scale.RATIO
            else self.margin
        )

    @property
    def least_spread(self) -> float:
        """Members of one group are never believed to agree better than this: a twentieth of the margin."""
        return self.judged_margin / 20

    def judged(self, value: float | None) -> float:
        """A value on the scale that is averaged; NaN: not known."""
        if value is None or not isfinite(value):
            return nan
        return log(max(value, self.resolution)) if self.scale is Scale.RATIO else value

    def shown(self, judged: float) -> float:
        """An effect back in the metric's own terms; beyond what a float holds it is infinite."""
        if self.scale is Scale.DIFFERENCE:
            return judged
        return exp(judged) if judged < 700 else inf


@dataclass(frozen=True, slots=True)
class Window:
    """One member's intervals, oldest first.

    `values`: the metric, None where there was nothing to measure. `records`: how many were delivered; None: the audit has no whole
    account of this interval (unlike 0: known to be idle), and then its value does not count either.
    """

    values: tuple[float | None, ...]
    records: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.records):
            raise ValueError(f"{len(self.values)} values for {len(self.records)} intervals")

    def __len__(self) -> int:
        return len(self.values)

    def judged(self, metric: Metric) -> list[float]:
        pairs = zip(self.values, self.records, strict=True)
        return [nan if records is None else metric.judged(value) for value, records in pairs]

    def measured(self, metric: Metric) -> int:
        """How many intervals have a value that counts."""
        return sum(map(isfinite, self.judged(metric)))

    @property
    def unaccounted(self) -> float:
        """Share of the intervals that the audit cannot account for; an empty window is wholly unknown."""
        return self.records.count(None) / len(self.records) if self.records else 1.0

    @property
    def idle(self) -> bool:
        """Nothing was delivered in any interval that is known."""
        return not any(self.records)

    @property
    def quiet(self) -> float:
        """Share of the intervals that are known in which nothing was delivered; 0 of no intervals."""
        known = [records for records in self.records if records is not None]
        return known.count(0) / len(known) if known else 0.0


@dataclass(frozen=True, slots=True)
class MemberSeries:
    """One member before and after the change; a canary is followed by its place in the group, not by its client's id."""

    member: str
    arm: Arm
    before: Window
    after: Window

    @property
    def unaccounted(self) -> float:
        return max(self.before.unaccounted, self.after.unaccounted)

    @property
    def quieter(self) -> float:
        """By how much the share of its quiet intervals has grown."""
        return self.after.quiet - self.before.quiet

    def measured(self, metric: Metric) -> int:
        return min(self.before.measured(metric), self.after.measured(metric))


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """One metric of all members over the same intervals; raises ValueError where their windows differ in length."""

    metric: Metric
    members: tuple[MemberSeries, ...]

    def __post_init__(self) -> None:
        lengths = {(len(each.before), len(each.after)) for each in self.members}
        if len(lengths) > 1:
            raise ValueError(f"{self.metric.name}: members have windows of different lengths: {sorted(lengths)}")

    @property
    def reached(self) -> int:
        """Intervals since the change."""
        return len(self.members[0].after) if self.members else 0

    def until(self, intervals: int) -> MetricSeries:
        """As it stood so many intervals after the change."""
        cut = (
            MemberSeries(
                each.member, each.arm, each.before, Window(each.after.values[:intervals], each.after.records[:intervals])
            )
            for each in self.members
        )
        return MetricSeries(self.metric, tuple(cut))


@dataclass(frozen=True, slots=True)
class Schedule:
    """When to look, as shares of the whole window, and how the allowed error is shared among the looks."""

    fractions: tuple[float, ...]
    spending: Spending


SCHEDULES: Mapping[str, Schedule] = {
    "single": Schedule((1.0,), Spending.POCOCK),
    "obrien-fleming-4": Schedule((0.25, 0.5, 0.75, 1.0), Spending.OBRIEN_FLEMING),
    "pocock-4": Schedule((0.25, 0.5, 0.75, 1.0), Spending.POCOCK),
}


@dataclass(frozen=True, slots=True)
class CanaryPolicy:
    """How careful the judge is; `window` and `min_points` are numbers of intervals, `max_...` shares.

    `alpha`: the probability of a false FAIL over all looks and metrics together, and of a false PASS over all looks of one metric.
    """

    window: int = 60
    schedule: str = "obrien-fleming-4"
    alpha: float = 0.05
    power: float = 0.8
    min_baseline: int = 3
    min_points: int = 10  # per member, before and after
    max_unaccounted: float = 0.05
    max_left_out: float = 0.2  # of the baseline members
    max_quieter: float = 0.2  # a quiet interval has no value, so it must not be much more of a canary's than of the others'
    max_placebos: int = 500

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"no schedule is called {self.schedule!r}; there are {', '.join(SCHEDULES)}")
        if not 0 < self.alpha < 0.5 or self.min_baseline < 2 or self.window < 1:
            raise ValueError(
                f"alpha {self.alpha}, min_baseline {self.min_baseline} or window {self.window} leaves nothing to judge by"
            )

    def looks(self) -> tuple[int, ...]:
        """After how many intervals each look is due."""
        return tuple(ceil(fraction * self.window) for fraction in SCHEDULES[self.schedule].fractions)
