"""The rank test against simulation: false alarms, false passes, power. Every draw is seeded."""

from __future__ import annotations

from math import inf, log, sqrt
from random import Random

import pytest

from airflow_provider_kmigrate.core.audit.canary import RankTest, autocorrelation, rank_test
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from tests.core.canary_minutes import judged, simulate

MARGIN = 1.5


def rates(runs: list[list[list[float]]], planted: float = 1.0) -> tuple[float, float]:
    """Shares of PASS and of FAIL, if the canary is so many times as late."""
    outcomes = [judged(run, planted).outcome for run in runs]
    return outcomes.count(AuditOutcome.PASS) / len(runs), outcomes.count(AuditOutcome.FAIL) / len(runs)


@pytest.mark.parametrize(
    ("member", "others", "p_value"),
    [  # scipy.stats.mannwhitneyu(..., alternative="greater", method="asymptotic", use_continuity=False)
        ([1.0, 2, 3], [4.0, 5, 6], 0.9752327),
        ([4.0, 5, 6], [1.0, 2, 3], 0.0247673),
        ([1.0, 2, 2, 3, 5], [0.5, 1, 2, 2, 2, 4], 0.1938360),
        ([3.0, 3, 4, 4], [1.0, 3, 3, 3, 2], 0.0295291),
        ([10.0, 11, 12, 13, 19], [1.0, 2, 10, 11, 12, 9, 9, 9], 0.0109787),
    ],
)
def test_the_p_value_is_that_of_mann_whitney(member: list[float], others: list[float], p_value: float) -> None:
    assert rank_test(member, [others], MARGIN).p_value == pytest.approx(p_value, abs=1e-6)


def test_values_that_are_all_alike() -> None:
    same = rank_test([1.0] * 9, [[1.0] * 9] * 3, MARGIN)
    assert (same.p_value, same.is_within(MARGIN), same.is_worse(MARGIN)) == (1.0, True, False)
    assert same.estimate == pytest.approx(1.0)
    assert rank_test([2.0] * 9, [[1.0] * 9] * 3, MARGIN).is_worse(MARGIN)
    hair = rank_test([1.0 + 1e-4] * 9, [[1.0] * 9] * 3, MARGIN)
    assert (hair.p_value < 0.05, hair.is_worse(MARGIN), hair.is_within(MARGIN)) == (True, False, True), (
        "sure, and too little to matter"
    )


def test_what_cannot_be_said_has_no_bound() -> None:
    few = rank_test([1.0], [[1.0, 2.0]], MARGIN)
    assert (few.low, few.high, few.smallest) == (0.0, inf, inf)
    assert not few.is_worse(MARGIN)
    assert not few.is_within(MARGIN)
    with pytest.raises(ValueError, match="both sides"):
        rank_test([], [[1.0]], MARGIN)


def test_the_bounds_are_what_the_test_itself_says_of_the_values_divided_by_them() -> None:
    rng = Random(3)  # noqa: S311
    member, others = [rng.gauss(0.4, 0.5) for _ in range(40)], [[rng.gauss(0, 0.5) for _ in range(40)] for _ in range(4)]
    found = rank_test(member, others, MARGIN)
    for bound, inside, outside in ((found.low, 1.02, 0.98), (found.high, 0.98, 1.02)):
        again = [rank_test([value - log(bound * by) for value in member], others, MARGIN).p_value for by in (inside, outside)]
        assert [0.05 <= p_value <= 0.95 for p_value in again] == [True, False]
    assert found.low < found.estimate < found.high


def test_autocorrelation() -> None:
    def row(phi: float, seed: int) -> list[float]:
        rng, values = Random(seed), [0.0]  # noqa: S311
        for _ in range(60):
            values.append(phi * values[-1] + sqrt(1 - phi**2) * rng.gauss(0, 1))
        return values

    for phi in (0.0, 0.5, 0.8):
        assert autocorrelation([row(phi, seed) for seed in range(40)]) == pytest.approx(phi, abs=0.05)
    assert autocorrelation([[1.0] * 20]) == 0.0
    assert autocorrelation([[1.0, 2.0]]) == 0.0
    assert autocorrelation([list(map(float, range(500)))]) == 0.95, "at most"


@pytest.mark.slow
@pytest.mark.parametrize("members", [4, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("phi", "spread", "heavy"), [(0.0, 0.0, False), (0.5, 0.3, False), (0.8, 0.15, False), (0.95, 0.3, False), (0.8, 0.15, True)]
)
def test_false_alarms_and_false_passes_stay_rare(members: int, phi: float, spread: float, heavy: bool) -> None:
    """In noise that is alike from interval to interval, with members that differ for good, and with heavy tails."""
    runs = [simulate(seed, members, phi=phi, spread=spread, heavy=heavy) for seed in range(300)]
    assert rates(runs)[1] <= 0.07
    assert rates(runs, MARGIN)[0] <= 0.07


@pytest.mark.slow
@pytest.mark.parametrize("drift", [pytest.param(0.1, marks=pytest.mark.long), 0.3])
def test_members_that_change_by_themselves_are_not_called_worse(drift: float) -> None:
    """Each by another factor, at the time of the change; the others' differences show it."""
    runs = [simulate(seed, 6, phi=0.0, drift=drift) for seed in range(400)]
    assert rates(runs)[1] <= 0.07
    assert rates(runs, MARGIN)[0] <= 0.07


def test_pooled_minutes_would_alarm_far_too_often() -> None:
    """The same noise, taken for independent values: why it is corrected."""

    def naive(run: list[list[float]]) -> RankTest:
        logs = [[log(value) for value in row[60:]] for row in run]
        return rank_test(logs[0], logs[1:3], MARGIN)  # two others: no spread among them is known

    runs = [simulate(seed, 3, phi=0.8, spread=0.15) for seed in range(100)]
    assert sum(naive(run).p_value < 0.05 for run in runs) > 25


# Others, then (PASS, FAIL) at 1, 1.5, 2 and 3 times as late; the rest is INCONCLUSIVE. Noise of 0.3 in the logarithm, windows of 60.
POWER = [
    (3, 0.0, [(0.8, 0.0), (0.0, 0.97), (0.0, 1.0), (0.0, 1.0)]),
    (9, 0.0, [(1.0, 0.0), (0.0, 1.0), (0.0, 1.0), (0.0, 1.0)]),
    (3, 0.8, [(0.0, 0.0), (0.0, 0.3), (0.0, 0.6), (0.0, 0.72)]),
    (9, 0.8, [(0.0, 0.03), (0.0, 0.6), (0.0, 0.97), (0.0, 1.0)]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("others", "phi", "row"), POWER)
def test_power_table(others: int, phi: float, row: list[tuple[float, float]]) -> None:
    runs = [simulate(seed, others + 1, phi=phi) for seed in range(120)]
    for planted, (passed, failed) in zip((1.0, 1.5, 2.0, 3.0), row, strict=True):
        assert rates(runs, planted) == pytest.approx((passed, failed), abs=0.12), planted


@pytest.mark.slow
def test_the_smallest_effect_is_seen_as_often_as_it_says() -> None:
    runs = [simulate(seed, 10, phi=0.0, spread=0.15) for seed in range(150)]
    smallest = sorted(judged(run).smallest or 0.0 for run in runs)[len(runs) // 2]
    assert rates(runs, smallest)[1] == pytest.approx(0.8, abs=0.15)
