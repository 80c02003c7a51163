"""The canary's judge: what decides, what blocks a decision, when it looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import log

import numpy as np
import pytest

from airflow_provider_kmigrate.core.audit import canary_stats as stats
from airflow_provider_kmigrate.core.audit.canary import Arm, CanaryPolicy, MemberSeries, Metric, MetricSeries, Scale, Window
from airflow_provider_kmigrate.core.audit.canary_judge import judge, look_levels
from airflow_provider_kmigrate.core.audit.verdict import CanaryVerdict, Ground, Level, Outcome, as_dict, combine, may_change
from airflow_provider_kmigrate.core.model import Reason
from tests.core.test_verdict import HEALTHY

LATENCY = Metric("latency ms")
ONE_LOOK = CanaryPolicy(schedule="single")
TWO_OWNERS = Ground(Outcome.FAIL, Reason("A08", "Two members owned orders-3 for 4 s."), Level.CONSUMER)
Change = Callable[[MemberSeries], MemberSeries]


def window(values: Iterable[float]) -> Window:
    numbers = tuple(map(float, values))
    return Window(numbers, (100,) * len(numbers))


def values(seed: int, members: int, intervals: int = 180, noise: float = 0.1) -> stats.Floats:
    rng = np.random.default_rng(seed)
    return np.exp(3 + 0.15 * rng.standard_normal((members, 1)) + noise * rng.standard_normal((members, intervals)))


def group(
    baseline: int = 9,
    canaries: int = 1,
    ratio: float = 1.0,
    *,
    seed: int = 1,
    before: int = 120,
    after: int = 60,
    noise: float = 0.1,
) -> MetricSeries:
    """Members m0, m1, ... of which the last are the canaries, `ratio` times slower after the change."""
    table = values(seed, baseline + canaries, before + after, noise)
    table[baseline:, before:] *= ratio
    arms = [Arm.BASELINE] * baseline + [Arm.CANARY] * canaries
    members = (
        MemberSeries(f"m{at}", arm, window(row[:before]), window(row[before:]))
        for at, (arm, row) in enumerate(zip(arms, table, strict=True))
    )
    return MetricSeries(LATENCY, tuple(members))


def change(series: MetricSeries, names: str, how: Change) -> MetricSeries:
    return replace(series, members=tuple(how(each) if each.member in names.split() else each for each in series.members))


def unaccounted(member: MemberSeries) -> MemberSeries:
    records = (None,) * 10 + member.after.records[10:]
    return replace(member, after=Window(member.after.values, records))


def idle(member: MemberSeries) -> MemberSeries:
    return replace(member, after=Window((None,) * len(member.after), (0,) * len(member.after)))


def sparse(member: MemberSeries) -> MemberSeries:
    return replace(
        member, after=Window(tuple(x if at < 5 else None for at, x in enumerate(member.after.values)), member.after.records)
    )


def ask(*series: MetricSeries, policy: CanaryPolicy = ONE_LOOK, invariants: Iterable[Ground] = ()) -> CanaryVerdict:
    return judge(series, invariants, policy, np.random.default_rng(1))


def extends(verdict: CanaryVerdict) -> bool:
    """Whether an audit that is judged by this canary alone is made again."""
    return may_change(as_dict(combine((), HEALTHY, verdict)))


def codes(verdict: CanaryVerdict) -> list[str]:
    return sorted(ground.reason.code for ground in verdict.grounds)


@pytest.mark.parametrize(
    ("ratio", "outcome", "code"), [(1.0, Outcome.PASS, "V19"), (1.2, Outcome.INCONCLUSIVE, "V18"), (1.5, Outcome.FAIL, "V17")]
)
def test_three_ways(ratio: float, outcome: Outcome, code: str) -> None:
    verdict = ask(group(ratio=ratio, seed=5, noise=0.6 if outcome is Outcome.INCONCLUSIVE else 0.1))
    metric = verdict.metrics[0]
    assert (verdict.outcome, codes(verdict)) == (outcome, [code])
    assert metric.estimate == pytest.approx(ratio, rel=0.15)
    assert metric.low is not None
    assert metric.high is not None
    assert metric.low < metric.estimate < metric.high
    assert (metric.margin, metric.baseline, metric.canaries) == (1.25, 9, 1)
    assert metric.detectable is not None
    assert metric.detectable > 1
    assert metric.calibration is not None
    assert metric.calibration.placebos == 10


@pytest.mark.parametrize("seed", range(12))
def test_the_judge_says_what_the_simulated_statistics_say(seed: int) -> None:
    series = group(6, 2, 1.12, seed=seed)
    table = np.log(values(seed, 8))
    table[6:, 120:] += log(1.12)
    moved = stats.changes(table, 120, np.arange(8) < 6)
    found = stats.estimate(moved[:6], moved[6:], LATENCY.least_spread)
    expected = {stats.PASS: Outcome.PASS, stats.FAIL: Outcome.FAIL, stats.INCONCLUSIVE: Outcome.INCONCLUSIVE}
    metric = ask(series).metrics[0]
    assert metric.outcome is expected[int(stats.classify(found, LATENCY.judged_margin, 0.05, 0.05))]
    assert metric.estimate == pytest.approx(float(np.exp(found.effect)))


@pytest.mark.slow
def test_false_alarms_and_misses_of_the_whole_judge_over_all_its_looks() -> None:
    runs, alarms, misses, policy = 150, 0, 0, CanaryPolicy()
    for seed in range(runs):
        for ratio in (1.0, 1.25):
            series = group(ratio=ratio, seed=seed, before=60, noise=0.8)
            outcomes = {ask(series.until(at), policy=policy).outcome for at in policy.looks()}
            alarms += ratio == 1.0 and Outcome.FAIL in outcomes
            misses += ratio == 1.25 and Outcome.PASS in outcomes
    assert 0 < alarms <= 0.07 * runs
    assert 0 < misses <= 0.07 * runs


@pytest.mark.parametrize("after", [0, 5, 60])
def test_a_broken_invariant_fails_at_any_time(after: int) -> None:
    verdict = ask(group(after=after), invariants=[TWO_OWNERS], policy=CanaryPolicy())
    assert verdict.outcome is Outcome.FAIL
    assert TWO_OWNERS in verdict.grounds
    assert ask(invariants=[TWO_OWNERS]).outcome is Outcome.FAIL


def test_a_note_among_the_invariants_decides_nothing() -> None:
    note = replace(TWO_OWNERS, outcome=Outcome.PASS)
    assert ask(group(seed=5), invariants=[note]).outcome is Outcome.PASS


def test_looking_between_two_looks_changes_nothing() -> None:
    policy = CanaryPolicy()
    assert policy.looks() == (15, 30, 45, 60)
    series = group(3, ratio=1.2)
    verdicts = {at: ask(series.until(at), policy=policy) for at in range(15, 61)}
    assert [verdicts[at].look for at in (15, 29, 30, 44, 45, 59, 60)] == [1, 1, 2, 2, 3, 3, 4]
    assert all(verdicts[at] == verdicts[at - at % 15] for at in verdicts)
    assert len({verdict.metrics[0].fail_level for verdict in verdicts.values()}) == 4


def test_a_window_longer_than_planned_is_not_used() -> None:
    assert ask(group(after=90, seed=5)) == ask(group(after=90, seed=5).until(60))


def test_before_the_first_look_there_is_no_verdict() -> None:
    verdict = ask(group(after=14), policy=CanaryPolicy())
    assert (verdict.outcome, verdict.look, codes(verdict), extends(verdict)) == (Outcome.INCONCLUSIVE, 0, ["V22"], True)


def test_only_looks_that_are_left_extend() -> None:
    doubtful = group(3, ratio=1.2, seed=5, noise=0.6)
    assert extends(ask(doubtful.until(45), policy=CanaryPolicy()))
    last = ask(doubtful, policy=CanaryPolicy())
    assert (last.outcome, extends(last)) == (Outcome.INCONCLUSIVE, False)


def test_no_metric_is_inconclusive() -> None:
    assert codes(ask()) == ["V10"]
    assert ask(MetricSeries(LATENCY, ())).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("names", "how", "expected"),
    [
        ("m9", unaccounted, ["V12"]),
        ("m0 m1", unaccounted, ["V12"]),
        ("m9", idle, ["V14"]),
        ("m9", sparse, ["V15"]),
        ("m0 m1 m2", sparse, ["V15"]),
        ("m0 m1 m2 m3 m4 m5 m6 m7 m8 m9", idle, ["V13"]),
    ],
)
def test_what_is_not_known_blocks_the_verdict(names: str, how: Change, expected: list[str]) -> None:
    verdict = ask(change(group(seed=5), names, how))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert [code for code in codes(verdict) if code != "V11"] == expected
    assert verdict.metrics[0].estimate is None


def silenced(*, after: Iterable[int], before: Iterable[int] = ()) -> Change:
    """Nothing was delivered in these intervals."""

    def mute(window: Window, silent: set[int]) -> Window:
        pairs = zip(window.values, window.records, strict=True)
        rows = [(None, 0) if at in silent else pair for at, pair in enumerate(pairs)]
        return Window(tuple(value for value, _ in rows), tuple(records for _, records in rows))

    return lambda each: replace(each, before=mute(each.before, set(before)), after=mute(each.after, set(after)))


EVERYBODY = "m0 m1 m2 m3 m4 m5 m6 m7 m8 m9"


@pytest.mark.parametrize(
    ("names", "how"),
    [("m9", silenced(after=range(12, 60))), ("m9", silenced(after=range(45, 60))), ("m9", silenced(after=range(0, 60, 2)))],
    ids=["stops early", "stops late", "now and then"],
)
def test_a_canary_that_is_delivered_nothing_any_more_does_not_pass(names: str, how: Change) -> None:
    """Its good intervals alone are within the margin."""
    verdict = ask(change(group(seed=5), names, how))
    assert (verdict.outcome, codes(verdict)) == (Outcome.INCONCLUSIVE, ["V14", "V19"])
    assert "m9" in verdict.metrics[0].grounds[0].reason.text
    slow = ask(change(group(seed=5, ratio=1.6), names, how))
    assert slow.outcome is Outcome.FAIL, "what was seen to be worse stays so"


@pytest.mark.parametrize(
    ("names", "how"),
    [
        ("m9", silenced(after=range(50, 60))),
        ("m9", silenced(after=range(0, 60, 2), before=range(0, 120, 2))),
        (EVERYBODY, silenced(after=range(15, 60))),
        ("m0 m1 m2", silenced(after=range(20, 60))),
    ],
    ids=["a pause", "as little as before", "as all others", "others are idle"],
)
def test_a_canary_with_little_traffic_may_pass(names: str, how: Change) -> None:
    verdict = ask(change(group(seed=5), names, how))
    assert "V14" not in codes(verdict)
    assert verdict.outcome is Outcome.PASS


@pytest.mark.parametrize("how", [unaccounted, sparse, idle])
def test_one_old_member_in_nine_can_be_left_out(how: Change) -> None:
    verdict = ask(change(group(seed=5), "m4", how))
    assert (verdict.outcome, codes(verdict)) == (Outcome.PASS, ["V19", "V21"])
    assert verdict.metrics[0].baseline == 8


@pytest.mark.parametrize(("baseline", "canaries"), [(2, 1), (1, 5), (0, 3), (9, 0)])
def test_too_few_members(baseline: int, canaries: int) -> None:
    assert codes(ask(group(baseline, canaries))) == ["V11"]


@pytest.mark.parametrize("before", [0, 5, 19])
def test_a_period_before_that_is_too_short_to_calibrate(before: int) -> None:
    verdict = ask(group(before=before))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert set(codes(verdict)) <= {"V11", "V12", "V15"}


def test_members_that_jump_without_any_canary_make_the_judge_refuse() -> None:
    """Two old members double and halve every other window: the placebo judge fails them far more than it promises."""

    def jumping(member: MemberSeries) -> MemberSeries:
        steps = np.repeat(np.tile([1.0, 3.0], 6), 60)[:600]
        return replace(member, before=window(np.asarray(member.before.values) * steps))

    calm = group(10, 1, 2.0, before=600, seed=5)
    assert ask(calm).outcome is Outcome.FAIL
    verdict = ask(change(calm, "m0 m1", jumping))
    assert (verdict.outcome, codes(verdict)) == (Outcome.INCONCLUSIVE, ["V16"])


def test_one_bad_canary_is_not_averaged_away() -> None:
    series = group(20, 8, seed=5)
    slow = change(series, "m22", lambda each: replace(each, after=window(1.4 * np.asarray(each.after.values))))
    verdict = ask(slow)
    assert ask(series).outcome is Outcome.PASS
    assert (verdict.outcome, codes(verdict)) == (Outcome.INCONCLUSIVE, ["V19", "V20"])
    assert "m22" in next(ground.reason.text for ground in verdict.grounds if ground.reason.code == "V20")


def test_every_metric_must_pass_and_each_gets_its_share_of_false_alarms() -> None:
    series = [replace(group(seed=seed), metric=Metric(f"metric {seed}")) for seed in (5, 6)]
    together = ask(*series)
    assert together.outcome is Outcome.PASS
    assert [metric.fail_level for metric in together.metrics] == pytest.approx([0.025, 0.025])
    assert [metric.pass_level for metric in together.metrics] == pytest.approx([0.05, 0.05])
    assert ask(*series, group(ratio=1.6, seed=7)).outcome is Outcome.FAIL
    assert ask(*series, change(group(seed=7), "m9", idle)).outcome is Outcome.INCONCLUSIVE


def test_levels_of_several_metrics() -> None:
    assert look_levels(ONE_LOOK, 4) == (pytest.approx((0.0125, 0.05)),)


def test_a_lag_of_zero_everywhere_is_no_difference() -> None:
    """Below the resolution there is nothing to see, and no logarithm of zero."""
    flat = change(
        group(),
        " ".join(f"m{at}" for at in range(10)),
        lambda each: replace(each, before=window([0] * 120), after=window([0] * 60)),
    )
    verdict = ask(flat)
    assert (verdict.outcome, verdict.metrics[0].estimate) == (Outcome.PASS, 1.0)
    below = change(flat, "m9", lambda each: replace(each, after=window([0.9] * 60)))
    assert ask(below).outcome is Outcome.PASS
    stuck = change(flat, "m9", lambda each: replace(each, after=window([500] * 60)))
    assert ask(stuck).outcome is Outcome.FAIL


def test_the_value_of_an_interval_without_a_whole_account_does_not_count() -> None:
    def partly(member: MemberSeries) -> MemberSeries:
        return replace(member, after=Window((1e12, 1e12, *member.after.values[2:]), (None, None, *member.after.records[2:])))

    series = group(seed=5)
    assert ask(change(series, "m9", partly)).metrics[0].estimate == pytest.approx(ask(series).metrics[0].estimate, rel=0.03)


def test_values_that_are_no_numbers_count_as_unknown_values() -> None:
    odd = change(
        group(seed=5), "m9", lambda each: replace(each, after=window([float("inf"), float("nan"), *each.after.values[2:]]))
    )
    assert ask(odd).outcome is Outcome.PASS


@pytest.mark.parametrize(("step", "outcome"), [(0.0, Outcome.PASS), (40.0, Outcome.FAIL)])
def test_a_slope_is_judged_by_difference(step: float, outcome: Outcome) -> None:
    slope = Metric("lag per second", margin=20.0, scale=Scale.DIFFERENCE)
    series = replace(group(seed=5), metric=slope)
    sloped = change(series, "m9", lambda each: replace(each, after=window(np.asarray(each.after.values) + step)))
    verdict = ask(sloped)
    assert verdict.outcome is outcome
    assert verdict.metrics[0].estimate == pytest.approx(step, abs=3)


def test_the_same_series_give_the_same_verdict_even_where_placebos_are_drawn() -> None:
    policy = replace(ONE_LOOK, max_placebos=30)
    assert ask(group(12, 3), policy=policy) == ask(group(12, 3), policy=policy)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Metric("m", margin=1.0),
        lambda: Metric("m", margin=0.0, scale=Scale.DIFFERENCE),
        lambda: Metric("m", resolution=0.0),
        lambda: Window((1.0,), ()),
        lambda: CanaryPolicy(schedule="whenever"),
        lambda: CanaryPolicy(alpha=0.5),
        lambda: CanaryPolicy(min_baseline=1),
        lambda: MetricSeries(LATENCY, (*group(after=3).members, *group(after=4).members)),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        wrong()
