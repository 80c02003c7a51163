"""The canary statistics against simulation: power, false alarms, total error over looks. Seeded; a batch is one array."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from scipy import special

from airflow_provider_kmigrate.core.audit.canary import SCHEDULES, Schedule, Spending
from airflow_provider_kmigrate.core.audit.canary_stats import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    Estimate,
    Floats,
    changes,
    classify,
    detectable,
    estimate,
    look_levels,
    overdone,
    placebos,
    standing_out,
)

MARGIN = log(1.25)
NOISE = 0.3  # sd of one interval's log value around its member's own level
ALPHA = 0.05

# Members, intervals before and after each, then (PASS, FAIL) at true ratios 1.0, 1.25, 1.5, 2.0. The rest is INCONCLUSIVE.
POWER = [
    (3, 1, 60, [(0.21, 0.05), (0.05, 0.20), (0.01, 0.44), (0.0, 0.80)]),
    (9, 1, 60, [(0.33, 0.05), (0.06, 0.34), (0.01, 0.72), (0.0, 0.99)]),
    (9, 1, 240, [(0.75, 0.05), (0.05, 0.74), (0.0, 1.0), (0.0, 1.0)]),
    (12, 3, 60, [(0.65, 0.05), (0.05, 0.66), (0.0, 0.98), (0.0, 1.0)]),
    (12, 3, 240, [(0.98, 0.02), (0.02, 0.98), (0.0, 1.0), (0.0, 1.0)]),
    (20, 5, 60, [(0.86, 0.04), (0.04, 0.86), (0.0, 1.0), (0.0, 1.0)]),
]


def simulate(
    seed: int, runs: int, members: int, intervals: int, *, phi: float = 0.8, spread: float = 0.15, df: float = np.inf
) -> Floats:
    """Log values (runs, members, intervals): each member's own level plus AR(1) noise; `df`: tails of Student's t."""
    rng = np.random.default_rng(seed)
    shape = (intervals, runs, members)
    shocks = rng.standard_normal(shape) if np.isinf(df) else rng.standard_t(df, shape)
    shocks[1:] *= np.sqrt(1 - phi**2)
    for at in range(1, intervals):
        shocks[at] += phi * shocks[at - 1]
    return NOISE * np.moveaxis(shocks, 0, -1) + spread * rng.standard_normal((runs, members, 1))


def first(members: int, baseline: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.arange(members) < baseline


def effects(series: Floats, before: int, baseline: int) -> Estimate:
    change = changes(series, before, first(series.shape[-2], baseline))
    return estimate(change[..., :baseline], change[..., baseline:])


def shifted(found: Estimate, by: float) -> Estimate:
    return Estimate(found.effect + by, found.error, found.df)


def rate(outcomes: np.ndarray, outcome: int) -> float:
    return float(np.mean(outcomes == outcome))


@pytest.mark.parametrize(("baseline", "canaries", "intervals", "row"), POWER)
def test_power_table(baseline: int, canaries: int, intervals: int, row: list[tuple[float, float]]) -> None:
    series = simulate(baseline * intervals, 2000 if intervals < 200 else 1000, baseline + canaries, 2 * intervals)
    found = effects(series, intervals, baseline)
    for ratio, (passed, failed) in zip((1.0, 1.25, 1.5, 2.0), row, strict=True):
        outcomes = classify(shifted(found, log(ratio)), MARGIN, ALPHA, ALPHA)
        assert rate(outcomes, PASS) == pytest.approx(passed, abs=0.05), f"PASS at {ratio}"
        assert rate(outcomes, FAIL) == pytest.approx(failed, abs=0.05), f"FAIL at {ratio}"


@pytest.mark.parametrize(("baseline", "canaries"), [(3, 1), (9, 1), (12, 3), (20, 5)])
@pytest.mark.parametrize(
    ("phi", "spread", "df"), [(0.0, 0.0, np.inf), (0.8, 0.15, np.inf), (0.95, 0.3, np.inf), (0.8, 0.15, 3.0)]
)
def test_false_alarms_and_misses_stay_rare(baseline: int, canaries: int, phi: float, spread: float, df: float) -> None:
    found = effects(simulate(7, 2000, baseline + canaries, 60, phi=phi, spread=spread, df=df), 30, baseline)
    assert rate(classify(found, MARGIN, ALPHA, ALPHA), FAIL) <= 0.07
    assert rate(classify(shifted(found, MARGIN), MARGIN, ALPHA, ALPHA), PASS) <= 0.07


def test_false_alarms_stay_rare_with_a_shared_load_wave_and_holes() -> None:
    """A wave ten times the noise, and a tenth of all intervals unknown, at different places for each member."""
    series = simulate(11, 2000, 10, 60) + 3 * np.sin(np.arange(60) / 9)
    series[np.random.default_rng(12).random(series.shape) < 0.1] = np.nan
    found = effects(series, 30, 9)
    assert rate(classify(found, MARGIN, ALPHA, ALPHA), FAIL) <= 0.07
    assert float(np.std(found.effect)) < 0.3, "the wave cancels"


def test_pooled_minutes_would_alarm_far_too_often() -> None:
    """Why the member is the replicate: the same noise, minutes taken for replicates."""
    series = simulate(13, 2000, 10, 60)
    old, new = series[:, :9].reshape(2000, -1), series[:, 9]
    error = np.sqrt(old.var(axis=1, ddof=1) / old.shape[1] + new.var(axis=1, ddof=1) / new.shape[1])
    assert float(np.mean((new.mean(1) - old.mean(1)) / error > 1.645)) > 0.2


def test_holes_change_nothing_where_there_are_none_and_little_else_where_there_are() -> None:
    series = simulate(14, 50, 6, 80)
    plain = series[..., 40:].mean(-1) - series[..., :40].mean(-1)
    change = changes(series, 40, first(6, 4))
    np.testing.assert_allclose(change - change[:, :1], plain - plain[:, :1], atol=1e-12)
    series += 3 * np.sin(np.arange(80) / 12)
    series[:, 5, 50:60] = np.nan
    np.testing.assert_allclose(
        changes(series, 40, first(6, 4)), change, atol=0.4, err_msg="the wave leaks into the member's hole"
    )


@pytest.mark.parametrize("schedule", ["single", "obrien-fleming-4", "pocock-4"])
@pytest.mark.parametrize("baseline", [3, 9])
def test_all_looks_together_keep_their_error(schedule: str, baseline: int) -> None:
    plan = SCHEDULES[schedule]
    series = simulate(17, 2000, baseline + 1, 120)
    levels = look_levels(plan.fractions, ALPHA, plan.spending)
    alarm, miss = np.zeros(2000, dtype=bool), np.zeros(2000, dtype=bool)
    for share, level in zip(plan.fractions, levels, strict=True):
        found = effects(series[..., : 60 + int(60 * share)], 60, baseline)
        alarm |= classify(found, MARGIN, level, level) == FAIL
        miss |= classify(shifted(found, MARGIN), MARGIN, level, level) == PASS
    assert float(alarm.mean()) <= 0.07
    assert float(miss.mean()) <= 0.07


def test_peeking_without_a_schedule_does_not_keep_it() -> None:
    series = simulate(17, 1000, 10, 120)
    alarm = [classify(effects(series[..., :at], 60, 9), MARGIN, ALPHA, ALPHA) == FAIL for at in range(65, 121, 5)]
    assert float(np.any(alarm, axis=0).mean()) > 0.1


@pytest.mark.parametrize(
    ("spending", "boundaries"),
    [
        (Spending.OBRIEN_FLEMING, [4.8769, 3.3569, 2.6803, 2.2898, 2.0310]),
        (Spending.POCOCK, [2.4380, 2.4268, 2.4101, 2.3966, 2.3859]),
    ],
)
def test_boundaries_are_the_published_ones(spending: Spending, boundaries: list[float]) -> None:
    """Five equal looks, one-sided 0.025 (Jennison and Turnbull 2000; any package for group-sequential designs)."""
    levels = look_levels((0.2, 0.4, 0.6, 0.8, 1.0), 0.025, spending)
    assert -special.ndtri(np.array(levels)) == pytest.approx(boundaries, abs=0.001)


@pytest.mark.parametrize("plan", [*SCHEDULES.values(), Schedule((0.02, 1.0), Spending.OBRIEN_FLEMING)])
def test_levels_are_positive_and_within_alpha(plan: Schedule) -> None:
    levels = look_levels(plan.fractions, ALPHA, plan.spending)
    assert all(0 < level <= ALPHA * (1 + 1e-6) for level in levels)
    assert sum(levels) >= ALPHA * (1 - 1e-6), "correlated looks may use more, added up, than they err together"


@pytest.mark.parametrize(("baseline", "canaries"), [(3, 1), (9, 1), (12, 3)])
def test_detectable_effect_is_detected_as_often_as_it_says(baseline: int, canaries: int) -> None:
    """With the true noise for the estimated one."""
    found = effects(simulate(19, 4000, baseline + canaries, 60), 30, baseline)
    true_error = float(np.std(found.effect))
    effect = float(detectable(Estimate(np.zeros(()), np.asarray(true_error), found.df), MARGIN, ALPHA, 0.8))
    assert rate(classify(shifted(found, effect), MARGIN, ALPHA, ALPHA), FAIL) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize(("members", "canaries"), [(4, 1), (10, 1), (15, 3), (25, 5)])
def test_calibration_trusts_members_that_are_alike(members: int, canaries: int) -> None:
    refused, runs = 0, 100
    rng = np.random.default_rng(23)
    for history in np.moveaxis(np.stack([simulated_changes(at, runs, members) for at in range(4)]), 0, 1):
        plain, planted = placebos(history, canaries, MARGIN, ALPHA, least_spread=0.0, limit=60, rng=rng)
        wrong = [float(np.mean(plain == FAIL)), float(np.mean(planted == PASS))]
        refused += any(overdone(each, plain.size, ALPHA) for each in wrong)
    assert refused <= 0.06 * runs


def simulated_changes(seed: int, runs: int, members: int) -> Floats:
    return changes(simulate(seed, runs, members, 40), 20, first(members, members))


def test_calibration_finds_a_few_members_that_jump() -> None:
    """Two of twelve members change by far more than the others, in every window."""
    history = 0.02 * np.random.default_rng(29).standard_normal((6, 12)) + MARGIN
    history[:, :2] += 0.5
    plain, _ = placebos(history, 1, MARGIN, ALPHA, least_spread=0.0, limit=60, rng=np.random.default_rng(1))
    assert rate(plain, FAIL) == pytest.approx(2 / 12)
    assert overdone(2 / 12, plain.size, ALPHA)


@pytest.mark.parametrize(
    ("rate", "trials", "wrong"), [(0.09, 1000, False), (0.11, 1000, True), (0.25, 4, False), (0.5, 4, True), (0.0, 9, False)]
)
def test_calibration_allows_for_bad_luck_among_few(rate: float, trials: int, wrong: bool) -> None:
    assert overdone(rate, trials, ALPHA) is wrong


def test_placebos_are_drawn_when_there_are_too_many_and_always_the_same_with_one_seed() -> None:
    history = np.random.default_rng(1).standard_normal((2, 30))
    draws = [placebos(history, 5, MARGIN, ALPHA, least_spread=0.0, limit=40, rng=np.random.default_rng(5)) for _ in range(2)]
    assert draws[0].shape == (2, 80)
    np.testing.assert_array_equal(*draws)


def test_one_bad_canary_among_many_stands_out() -> None:
    rng = np.random.default_rng(31)
    old, new = 0.05 * rng.standard_normal((500, 20)), 0.05 * rng.standard_normal((500, 8))
    assert float(np.mean(standing_out(old, new, MARGIN, 0.01).any(axis=-1))) <= 0.01
    new[:, 3] += log(1.8)
    assert rate(classify(estimate(old, new), MARGIN, ALPHA, ALPHA), PASS) > 0.9, "the average alone would pass"
    assert float(np.mean(standing_out(old, new, MARGIN, 0.01)[:, 3])) > 0.99


def test_a_baseline_that_agrees_exactly_decides_nothing_by_itself() -> None:
    still, hair = np.zeros(9), np.full(1, 1e-6)
    assert int(classify(estimate(still, hair, MARGIN / 20), MARGIN, ALPHA, ALPHA)) == PASS
    assert int(classify(estimate(still, np.full(1, 2 * MARGIN), MARGIN / 20), MARGIN, ALPHA, ALPHA)) == FAIL
    assert int(classify(estimate(still, np.full(1, MARGIN / 2), MARGIN / 20), MARGIN, ALPHA, ALPHA)) in {PASS, INCONCLUSIVE}
