"""Judges a canary: hard invariants, and per metric a difference in differences between members.

1. A broken invariant is a FAIL at every look; it spends no error, because it is seen and not estimated.
2. Each member is compared with itself before the change, and the canaries' change with the baseline's (`canary_stats`).
3. FAIL when the canaries are surely worse and by more than half the margin; PASS when they are surely within the margin; else
   INCONCLUSIVE. Few members cost INCONCLUSIVE verdicts, never wrong passes.
4. Looks are fixed beforehand. `judge` reads no more of the series than the last look that is due, so that asking more often
   gives the same answer and spends nothing.
5. Several metrics: each gets its share of the false alarms allowed; all must pass, which needs no correction.
6. The same judge on the period before, where nothing had changed, must stay quiet; otherwise its word is not taken.
7. What is not known blocks a verdict: intervals that the audit cannot account for, members without traffic, too few members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from airflow_provider_kmigrate.core.audit import canary_stats as stats
from airflow_provider_kmigrate.core.audit.canary import SCHEDULES, Arm, CanaryPolicy, MemberSeries, Metric, MetricSeries, Scale
from airflow_provider_kmigrate.core.audit.verdict import Calibration, CanaryVerdict, Ground, MetricVerdict, Outcome, worst
from airflow_provider_kmigrate.core.model import Reason

_OUTCOMES = {stats.FAIL: Outcome.FAIL, stats.INCONCLUSIVE: Outcome.INCONCLUSIVE, stats.PASS: Outcome.PASS}
_LONGER = "Let the canary run on to the next look; after the last one decide by hand, or start again with more canaries."


def judge(
    series: Sequence[MetricSeries], invariants: Iterable[Ground], policy: CanaryPolicy, rng: np.random.Generator
) -> CanaryVerdict:
    """The verdict at the last look that is due. `invariants`: what the audit found in the canaries' share; a FAIL among it decides.

    The same series give the same verdict; `rng` only draws placebos where there are too many to try them all.
    """
    due = policy.looks()
    look = sum(at <= min((each.reached for each in series), default=0) for at in due)
    metrics = _judge_metrics(series, look, policy, rng) if look else ()
    grounds = (*invariants, *([] if look else [_too_early(due[0], bool(series))]))
    outcome = worst([*(ground.outcome for ground in grounds), *(metric.outcome for metric in metrics)])
    return CanaryVerdict(outcome, policy.schedule, look, len(due), metrics, grounds)


def look_levels(policy: CanaryPolicy, metrics: int) -> tuple[tuple[float, float], ...]:
    """The one-sided levels of each look for a FAIL and for a PASS, when so many metrics are judged together."""
    plan = SCHEDULES[policy.schedule]
    fail = stats.look_levels(plan.fractions, policy.alpha / metrics, plan.spending)
    return tuple(zip(fail, stats.look_levels(plan.fractions, policy.alpha, plan.spending), strict=True))


def _judge_metrics(
    series: Sequence[MetricSeries], look: int, policy: CanaryPolicy, rng: np.random.Generator
) -> tuple[MetricVerdict, ...]:
    levels, intervals = look_levels(policy, len(series))[look - 1], policy.looks()[look - 1]
    return tuple(_judge_metric(each.until(intervals), policy, levels, rng) for each in series)


@dataclass(frozen=True, slots=True)
class _Case:
    """One metric of the members that count, on the judged scale: `before` and `after` are (members, intervals)."""

    metric: Metric
    policy: CanaryPolicy
    fail_level: float
    pass_level: float
    names: tuple[str, ...]
    old: stats.Bools
    before: stats.Floats
    after: stats.Floats

    def change(self) -> stats.Floats:
        return stats.changes(np.concatenate([self.before, self.after], axis=1), self.before.shape[1], self.old)

    def history(self) -> stats.Floats:
        """Changes within the period before, between neighbouring windows like the one judged: (pairs, members)."""
        whole, least = self.before.shape[1], self.policy.min_points
        length = max(least, min(self.after.shape[1], whole // 2))
        everyone = np.ones_like(self.old)
        pairs = [self.before[:, at : at + 2 * length] for at in range(0, whole - 2 * length + 1, length)]
        found: stats.Floats = np.array([stats.changes(pair, length, everyone) for pair in pairs]).reshape(-1, len(self.names))
        whole_pairs: stats.Floats = found[np.isfinite(found).all(axis=1)]
        return whole_pairs


def _judge_metric(
    series: MetricSeries, policy: CanaryPolicy, levels: tuple[float, float], rng: np.random.Generator
) -> MetricVerdict:
    metric, (kept, grounds) = series.metric, _screen(series, policy)
    old = np.array([member.arm is Arm.BASELINE for member in kept], dtype=bool)
    counts = int(old.sum()), int((~old).sum())
    neutral = metric.shown(0.0)
    draft = MetricVerdict(metric.name, Outcome.INCONCLUSIVE, metric.margin, *counts, neutral=neutral, grounds=grounds)
    if any(ground.outcome is Outcome.INCONCLUSIVE for ground in grounds):
        return draft
    draft = replace(draft, grounds=(*grounds, *_gone_quiet(series.metric, kept, policy)))
    before = np.array([member.before.judged(metric) for member in kept])
    after = np.array([member.after.judged(metric) for member in kept])
    return _weigh(draft, _Case(metric, policy, *levels, tuple(member.member for member in kept), old, before, after), rng)


def _weigh(draft: MetricVerdict, case: _Case, rng: np.random.Generator) -> MetricVerdict:
    """The numbers, and what follows from them; a judge that the period before shows to be wrong says nothing else."""
    change, calibration = case.change(), _calibrate(case, rng)
    if calibration is None or not np.isfinite(change).all():
        return replace(draft, grounds=(*draft.grounds, _too_short(case)))
    found = stats.estimate(change[case.old], change[~case.old], case.metric.least_spread)
    estimated = _with_numbers(replace(draft, calibration=calibration), case, found)
    grounds = [*draft.grounds, *(_mistrust(calibration, case) or _conclusion(estimated, case, change))]
    return replace(estimated, outcome=worst(ground.outcome for ground in grounds), grounds=tuple(grounds))


def _with_numbers(draft: MetricVerdict, case: _Case, found: stats.Estimate) -> MetricVerdict:
    """The estimate in the metric's own terms, and the outcome of the estimate alone."""
    margin, shown = case.metric.judged_margin, case.metric.shown
    low, high = stats.bounds(found, case.fail_level, case.pass_level)
    return replace(
        draft,
        outcome=_OUTCOMES[int(stats.classify(found, margin, case.fail_level, case.pass_level))],
        estimate=shown(float(found.effect)),
        low=shown(float(low)),
        high=shown(float(high)),
        detectable=shown(float(stats.detectable(found, margin, case.fail_level, case.policy.power))),
        power=case.policy.power,
        fail_level=case.fail_level,
        pass_level=case.pass_level,
    )


def _calibrate(case: _Case, rng: np.random.Generator) -> Calibration | None:
    """The judge on placebos of the period before; None where that is too short."""
    history = case.history()
    if not history.size:
        return None
    policy, metric = case.policy, case.metric
    plain, planted = stats.placebos(
        history,
        int((~case.old).sum()),
        metric.judged_margin,
        policy.alpha,
        least_spread=metric.least_spread,
        limit=policy.max_placebos,
        rng=rng,
    )
    return Calibration(plain.size, float(np.mean(plain == stats.FAIL)), float(np.mean(planted == stats.PASS)))


def _mistrust(calibration: Calibration, case: _Case) -> list[Ground]:
    alpha, tried = case.policy.alpha, calibration.placebos
    rates = {"failed": calibration.false_fail, "passed, with the margin planted,": calibration.false_pass}
    wrong = [f"{what} {rate:.0%}" for what, rate in rates.items() if stats.overdone(rate, tried, alpha)]
    if not wrong:
        return []
    text = (
        f"{case.metric.name}: in the period before, where nothing differed, the judge {' and '.join(wrong)} of {tried} placebos."
    )
    why = f"It promises {alpha:.0%}; these members do not behave alike enough to be compared."
    remedy = (
        "Look for members that restarted, or whose load changed, before the canary; choose a calmer period or another metric."
    )
    return [_doubt("V16", text, why, remedy)]


def _screen(series: MetricSeries, policy: CanaryPolicy) -> tuple[tuple[MemberSeries, ...], tuple[Ground, ...]]:
    """The members that can be compared, and what stands in the way; an INCONCLUSIVE among the grounds means: do not."""
    blind = [each for each in series.members if each.unaccounted > policy.max_unaccounted]
    quiet = [each for each in series.members if each not in blind and each.measured(series.metric) < policy.min_points]
    kept = tuple(each for each in series.members if each not in blind and each not in quiet)
    found = [*_blind(series, blind, policy), *_quiet(series, quiet, policy), *_few(series, kept, policy)]
    return kept, tuple(found)


def _share(members: Iterable[MemberSeries], series: MetricSeries) -> float:
    """Share of the baseline that these members are; 1 when a canary is among them, which nothing can stand in for."""
    arms = [member.arm for member in members]
    whole = sum(member.arm is Arm.BASELINE for member in series.members)
    return 1.0 if Arm.CANARY in arms else len(arms) / max(whole, 1)


def _named(members: Iterable[MemberSeries]) -> str:
    return ", ".join(sorted(member.member for member in members))


def _blind(series: MetricSeries, members: list[MemberSeries], policy: CanaryPolicy) -> Iterator[Ground]:
    if not members:
        return
    text = f"{series.metric.name}: audit events are missing for {_named(members)}"
    if _share(members, series) <= policy.max_left_out:
        yield _note("V21", f"{text}; left out of the baseline.")
    else:
        why = "A member that reports only its good minutes looks good."
        yield _doubt("V12", f"{text}.", why, "Repeat the window with the audit whole; look whether these members ended hard.")


def _quiet(series: MetricSeries, members: list[MemberSeries], policy: CanaryPolicy) -> Iterator[Ground]:
    """Members with too few values: nobody had traffic, a canary had none, or the windows are short."""
    if not members:
        return
    name, idle = series.metric.name, [each for each in members if each.after.idle]
    if all(each.after.idle for each in series.members):
        yield _doubt("V13", f"{name}: nothing was delivered to anybody.", "Nothing was tried.", "Judge in a time with traffic.")
    elif any(each.arm is Arm.CANARY for each in idle):
        text = f"{name}: nothing was delivered to {_named(idle)}, while others had traffic."
        yield _doubt(
            "V14", text, "", "Look whether these members own partitions that receive records, and whether they are stuck."
        )
    elif _share(members, series) <= policy.max_left_out:
        yield _note("V21", f"{name}: too few values from {_named(members)}; left out of the baseline.")
    else:
        text = f"{name}: fewer than {policy.min_points} values, before or after the change, from {_named(members)}."
        yield _doubt("V15", text, "", "Judge over a longer window, or in a time with traffic.")


def _gone_quiet(metric: Metric, kept: tuple[MemberSeries, ...], policy: CanaryPolicy) -> Iterator[Ground]:
    """Canaries that were delivered something, and then nothing, while others were: their good intervals say nothing of that."""
    others = [each.quieter for each in kept if each.arm is Arm.BASELINE]
    usual = sum(others) / max(len(others), 1)
    silent = [each for each in kept if each.arm is Arm.CANARY and each.quieter > usual + policy.max_quieter]
    if silent:
        shares = ", ".join(f"{each.member} {each.after.quiet:.0%}, {each.before.quiet:.0%} before" for each in silent)
        text = f"{metric.name}: in a share of the intervals nothing was delivered to {shares}, while others had traffic."
        why = "An interval without records has no value: a member that stops looks like one that is quick."
        yield _doubt(
            "V14", text, why, "Look whether these members own partitions that receive records, and whether they are stuck."
        )


def _few(series: MetricSeries, kept: tuple[MemberSeries, ...], policy: CanaryPolicy) -> Iterator[Ground]:
    old = sum(member.arm is Arm.BASELINE for member in kept)
    if old < policy.min_baseline or old == len(kept):
        text = f"{series.metric.name}: {len(kept) - old} canaries and {old} baseline members can be compared."
        why = "How much members differ by themselves is learned from the baseline, and minutes of one member are no substitute."
        yield _doubt("V11", text, why, f"Keep at least {policy.min_baseline} members on the old client, and one canary.")


def _conclusion(verdict: MetricVerdict, case: _Case, change: stats.Floats) -> list[Ground]:
    if verdict.outcome is Outcome.PASS:
        return [_note("V19", f"{_measured(verdict, case)}: within the margin."), *_apart(case, change)]
    if verdict.outcome is Outcome.FAIL:
        why = "This is more than such members differ by themselves."
        reason = Reason("V17", f"{_measured(verdict, case)}: worse.", why, "Stop or roll back the canary.")
        return [Ground(Outcome.FAIL, reason)]
    smallest = _amount(verdict.detectable, case.metric)
    why = f"The smallest effect that this look could have seen is {smallest} (with probability {verdict.power:.0%})."
    return [_doubt("V18", f"{_measured(verdict, case)}: it could be either.", why, _LONGER)]


def _apart(case: _Case, change: stats.Floats) -> list[Ground]:
    """The canaries pass on average; is one of them bad nevertheless?"""
    level, metric = case.pass_level / 5, case.metric
    outlying = stats.standing_out(change[case.old], change[~case.old], metric.judged_margin, level, metric.least_spread)
    names = ", ".join(np.array(case.names)[~case.old][outlying])
    text = f"{metric.name}: the canaries pass on average, but {names} alone is worse than the margin allows."
    return (
        [_doubt("V20", text, "An average hides one bad member among many.", "Look at this member before going on.")]
        if names
        else []
    )


def _measured(verdict: MetricVerdict, case: _Case) -> str:
    estimate, low, high = (_amount(value, case.metric) for value in (verdict.estimate, verdict.low, verdict.high))
    relation = "times" if case.metric.scale is Scale.RATIO else "against"
    text = f"{case.metric.name}: the canaries are at {estimate} {relation} the baseline (between {low} and {high})"
    return f"{text}, the margin is {_amount(verdict.margin, case.metric)}"


def _amount(value: float | None, metric: Metric) -> str:
    if value is None:
        return "unknown"
    return f"{value:.3g}" if metric.scale is Scale.RATIO else f"{value:+.3g}"


def _too_short(case: _Case) -> Ground:
    needed = 2 * case.policy.min_points
    text = f"{case.metric.name}: the period before is too short, or too full of holes, to try the judge on it."
    return _doubt("V15", text, "", f"Measure at least {needed} intervals with traffic before the change.")


def _too_early(first: int, given: bool) -> Ground:
    if not given:
        return _doubt("V10", "No metric was given to compare.", "", "Name the metrics to judge by.")
    return _doubt("V22", f"The first look is due {first} intervals after the change.", "", "Let the canary run.")


def _doubt(code: str, text: str, why: str, remedy: str) -> Ground:
    return Ground(Outcome.INCONCLUSIVE, Reason(code, text, why, remedy))


def _note(code: str, text: str) -> Ground:
    return Ground(Outcome.PASS, Reason(code, text))
