"""Minutes of the members of a group, simulated, and the canary's verdict on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, sqrt
from random import Random

from airflow_provider_kmigrate.core.audit.canary import CanaryPlan, MemberSeries, MemberWindow, judge_canary
from airflow_provider_kmigrate.core.audit.verdict import CanaryVerdict

JUDGED = CanaryPlan("g", "m0", ("m1", "m2", "m3"))


def simulate(
    seed: int,
    members: int,
    intervals: int = 120,
    *,
    noise: float = 0.3,
    phi: float = 0.0,
    spread: float = 0.0,
    drift: float = 0.0,
    heavy: bool = False,
) -> list[list[float]]:
    """Latencies of each member: its own level, and AR(1) noise in the logarithm; in the second half by `drift` another level.

    `heavy`: tails of Student's t with three degrees of freedom.
    """
    rng = Random(seed)  # noqa: S311

    def shock() -> float:
        value = rng.gauss(0, 1)
        return value / sqrt(rng.gammavariate(1.5, 2) / 3) if heavy else value

    def member() -> list[float]:
        level, later, last, row = rng.gauss(0, spread), rng.gauss(0, drift), shock(), []
        for at in range(intervals):
            row.append(exp(3 + level + noise * last + (later if at >= intervals // 2 else 0)))
            last = phi * last + sqrt(1 - phi**2) * shock()
        return row

    return [member() for _ in range(members)]


def window(values: Iterable[float]) -> MemberWindow:
    numbers = tuple(map(float, values))
    return MemberWindow(numbers, (100,) * len(numbers))


def members(rows: Sequence[Sequence[float]], planted: float = 1.0, before: int = 60) -> list[MemberSeries]:
    """Members m0, m1, ... of which the first is the canary, `planted` times as late after the change."""
    factors = [planted, *[1.0] * (len(rows) - 1)]
    return [
        MemberSeries(f"m{at}", window(row[:before]), window(value * factor for value in row[before:]))
        for at, (row, factor) in enumerate(zip(rows, factors, strict=True))
    ]


def judged(rows: Sequence[Sequence[float]], planted: float = 1.0) -> CanaryVerdict:
    return judge_canary(members(rows, planted), [], JUDGED)
