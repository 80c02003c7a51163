"""Judges a group's canary by how late its records come, compared with the group's other members. Standard library only.

1. A broken invariant (a record lost, two owners) is a FAIL at any time: it is observed, not estimated.
2. Each value is divided by the group's median in its interval, which removes the common load. It is also divided by its member's
   own median before the change, which removes lasting differences (partitions, machines).
3. After the window that follows the change, one rank test (`rank_test`) compares the canary's values in it with the others'.
   FAIL: certainly later, and by more than half the margin. PASS: certainly within the margin, and the test could have detected it.
   INCONCLUSIVE: anything else; the verdict reports the smallest effect that the test could have detected.
4. Unknowns block a verdict: intervals that the events do not account for, members without traffic, too few members.

A member is an instance of the group, in whatever process: the canary before and after its switch is one member. The change is the
first start of the canary since the step began, or its last start if that is unknown. Nothing is measured during it: the time
before ends with the canary's old process, the time after begins `settle_ms` after the new one's start.

The rank test is a one-sided Mann-Whitney U test: are one member's values larger than the others', and by what factor? Everything
follows from U / (m n): the share of all pairs (a value of the member, a value of the others) in which the member's is larger,
ties counting half. Without a difference it is 1/2, with a known standard error. Dividing the member's values by a factor and
testing again shows which factors the test cannot exclude, and so the estimate and its bounds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import erf, exp, inf, isfinite, log, nan, sqrt
from statistics import NormalDist, fmean, median
from typing import Final

from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditOutcome, CanaryVerdict, worst_outcome
from airflow_provider_kmigrate.core.cluster_state.spec import match_instance
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.text import count_of

ALPHA: Final = 0.05  # probability of a false FAIL, and of a false PASS
POWER: Final = 0.8
_Z_ALPHA: Final = NormalDist().inv_cdf(1 - ALPHA)
_Z_POWER: Final = NormalDist().inv_cdf(POWER)
_MOST_ALIKE: Final = 0.95  # above this correlation almost nothing is left to judge by


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

    def is_worse(self, margin: float) -> bool:
        """True if the values are certainly larger, and by more than half the margin (its square root)."""
        return self.p_value < ALPHA and self.estimate > sqrt(margin)

    def is_within(self, margin: float) -> bool:
        """True if the values are certainly less than `margin` times as large, and the test could have detected that much."""
        return self.high < margin and self.smallest <= margin


def rank_test(member: Sequence[float], others: Sequence[Sequence[float]], margin: float, inflation: float = 1.0) -> RankTest:
    """Compares logarithms of values, each sequence in the order of time; raises ValueError for an empty side.

    `inflation`: the factor by which the variance of U exceeds that of independent values. The others' own differences raise it
    further.
    """
    pooled = sorted(value for row in others for value in row)
    if not member or not pooled:
        raise ValueError("A rank test needs values of both sides.")
    error = sqrt(max(_null_variance(member, pooled) * inflation, _variance_among_others(others)))
    share = _share_of_larger_after_shift(member, pooled, shift=0.0)
    estimate = _shift_for_share(member, pooled, 0.5)
    detected = _shift_for_share(member, pooled, 0.5 - (_Z_ALPHA + _Z_POWER) * error) - estimate
    large = log(margin) / 2 + _shift_for_share(member, pooled, 0.5 - _Z_POWER * error) - estimate
    return RankTest(
        p_value=_p_value(share - 0.5, error),
        estimate=exp(estimate),
        low=exp(_shift_for_share(member, pooled, 0.5 + _Z_ALPHA * error)),
        high=exp(_shift_for_share(member, pooled, 0.5 - _Z_ALPHA * error)),
        smallest=exp(max(detected, large)),
    )


def autocorrelation(rows: Sequence[Sequence[float]]) -> float:
    """Correlation of neighbouring values, over all rows, each around its own mean; corrected for short rows, never below 0.

    Source: Kendall (1954): a row of n values underestimates r by (1 + 4 r) / n.
    """
    centred = [[value - fmean(row) for value in row] for row in rows if len(row) > 4]
    whole = sum(value * value for row in centred for value in row)
    if not whole:
        return 0.0
    correlation = sum(earlier * later for row in centred for earlier, later in pairwise(row)) / whole
    length = fmean(map(len, centred))
    return min(max((correlation + 1 / length) / (1 - 4 / length), 0.0), _MOST_ALIKE)


def _share_of_larger_after_shift(member: Sequence[float], pooled: Sequence[float], *, shift: float) -> float:
    """U / (m n) after `shift` is taken from the member's values; `pooled` is sorted."""
    below = sum(bisect_left(pooled, value - shift) + bisect_right(pooled, value - shift) for value in member)
    return below / (2 * len(member) * len(pooled))


def _shift_for_share(member: Sequence[float], pooled: Sequence[float], share: float) -> float:
    """The shift after which U / (m n) is `share`; unbounded outside of (0, 1)."""
    if not 0 < share < 1:
        return inf if share <= 0 else -inf
    low, high = min(member) - pooled[-1] - 1, max(member) - pooled[0] + 1
    while high - low > 1e-6:
        middle = (low + high) / 2
        above = _share_of_larger_after_shift(member, pooled, shift=middle) - share
        if above == 0 or middle in (low, high):
            return middle
        low, high = (middle, high) if above > 0 else (low, middle)
    return (low + high) / 2


def _null_variance(member: Sequence[float], pooled: Sequence[float]) -> float:
    """The variance of U / (m n) without a difference, corrected for ties."""
    m, n = len(member), len(pooled)
    size = m + n
    ties = sum(count**3 - count for count in Counter([*member, *pooled]).values())
    return (size + 1 - ties / (size * (size - 1))) / (12 * m * n)


def _variance_among_others(others: Sequence[Sequence[float]]) -> float:
    """The variance of U / (m n) among the others, each compared with the rest of them; a member is no better known than this.

    Without it, members with lasting differences would be called worse, or within the margin, far too often: minutes of one member
    do not replace more members.
    """
    rows_with_values = [row for row in others if row]
    k = len(rows_with_values)
    if k < 3:
        return 0.0
    shares = []
    for at, row in enumerate(rows_with_values):
        rest = sorted(value for other in (*rows_with_values[:at], *rows_with_values[at + 1 :]) for value in other)
        shares.append(_share_of_larger_after_shift(row, rest, shift=0.0))
    # Against k - 1 members each share differs by k / (k - 1) too much, which is kept: few members show little of their
    # differences.
    return sum((share - 0.5) ** 2 for share in shares) / (k - 1) * (1 + 1 / k)


def _p_value(above: float, error: float) -> float:
    """Probability of at least this much above 1/2 by chance alone."""
    if error == 0:
        return 0.0 if above > 0 else 1.0
    return (1 - erf(above / error / sqrt(2))) / 2


METRIC: Final = "delivery latency p95 ms"
RESOLUTION: Final = 10.0  # ms; smaller values count as this one, because their differences do not matter
MIN_BASELINE: Final = 3  # members' own differences are learned from them
MIN_POINTS: Final = 10  # values of a member, before and after the change
HISTORY: Final = 2  # the time before is at most this many windows long
_MAX_UNACCOUNTED: Final = 0.05  # share of a member's intervals
_MAX_LEFT_OUT: Final = 0.2  # share of the baseline members
_MAX_QUIETER: Final = 0.2  # a quiet interval has no value, so the canary must not have many more of them than the others
_NOT_WAITED_FOR_MS: Final = 30_000  # a member this far behind the newest event is not waited for


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """Which instance is compared with which others, and how; times in milliseconds, `window` in intervals.

    `margin`: up to which factor a delay is accepted. Raises ValueError for a plan that leaves nothing to judge.
    """

    group: str
    canary: str
    baseline: tuple[str, ...]
    interval_ms: int = 5_000
    settle_ms: int = 10_000
    window: int = 60
    margin: float = 1.5

    def __post_init__(self) -> None:
        if self.margin <= 1 or self.window < MIN_POINTS or self.interval_ms <= 0:
            raise ValueError(
                f"margin {self.margin}, window {self.window} or interval_ms {self.interval_ms} leaves nothing to judge by"
            )

    @property
    def members(self) -> tuple[str, ...]:
        """The instances that are compared, the canary first."""
        return (self.canary, *self.baseline)

    def instance_of(self, writer: str) -> str | None:
        """The instance whose process wrote the event."""
        return match_instance(writer, self.group, self.members)


@dataclass(frozen=True, slots=True)
class ProcessSpan:
    """One process of the group: its start, its last event, and whether its events are complete."""

    writer: str
    start_ms: int
    last_ms: int
    whole: bool = True

    def covers(self, begin: int, end: int) -> bool:
        """True if the process ran all through begin .. end (ms) and its events are complete."""
        return self.whole and self.start_ms <= begin and end <= self.last_ms


@dataclass(frozen=True, slots=True)
class CanaryTimes:
    """Intervals of equal length: `before` of them end at `left_ms`, `after` of them begin at `settled_ms`."""

    interval_ms: int
    left_ms: int
    settled_ms: int
    before: int
    after: int

    @property
    def _periods(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The time before and the time after, from .. before."""
        first, last = self.left_ms - self.before * self.interval_ms, self.settled_ms + self.after * self.interval_ms
        return (first, self.left_ms), (self.settled_ms, last)

    def interval_starts(self) -> tuple[range, ...]:
        """The starts of the intervals before and after."""
        return tuple(range(begin, end, self.interval_ms) for begin, end in self._periods)

    def find_interval_start(self, t_ms: int) -> int | None:
        """The start of the interval that holds this time; None: no interval holds it."""
        for begin, end in self._periods:
            if begin <= t_ms < end:
                return begin + (t_ms - begin) // self.interval_ms * self.interval_ms
        return None


Measured = Mapping[tuple[str, int], tuple[int, float | None]]
"""The data delivered to an instance in the interval with this start: records, and the metric's value."""


def find_canary_times(processes: Collection[ProcessSpan], plan: CanaryPlan, since: int | None = None) -> CanaryTimes | None:
    """The times to compare; None if the canary was not observed both before and after its change, which came after `since`.

    They begin when all members are there, and end with the last event of the slowest member that still writes: an interval that a
    client has not reported yet is not an interval without records.
    """
    member_spans = {
        name: sorted((span.start_ms, span.last_ms) for span in _processes_of_instance(processes, plan, name))
        for name in plan.members
    }
    change = _find_change(member_spans[plan.canary], since)
    if change is None:
        return None
    began, ended, restarted = change
    settled = restarted + plan.settle_ms
    newest = [max(last for _, last in spans) for spans in member_spans.values() if spans]
    reported = min(last for last in newest if last >= max(newest) - _NOT_WAITED_FOR_MS)
    first = max(began + plan.settle_ms, *(spans[0][0] for spans in member_spans.values() if spans))
    before = min(HISTORY * plan.window, max(0, ended - first) // plan.interval_ms)
    after = min(plan.window, max(0, reported - settled) // plan.interval_ms)
    return CanaryTimes(plan.interval_ms, min(ended, restarted), settled, before, after)


def _find_change(spans: Sequence[tuple[int, int]], since: int | None) -> tuple[int, int, int] | None:
    """When the process before the change began and ended, and when the one after it began."""
    at = next((at for at, (start, _) in enumerate(spans) if since is not None and start >= since), len(spans) - 1)
    return (*spans[at - 1], spans[at][0]) if at > 0 else None


def _processes_of_instance(processes: Collection[ProcessSpan], plan: CanaryPlan, instance: str) -> list[ProcessSpan]:
    return [span for span in processes if plan.instance_of(span.writer) == instance]


@dataclass(frozen=True, slots=True)
class MemberWindow:
    """One member's intervals, oldest first.

    `values`: the metric, None if there was nothing to measure. `records`: how many were delivered; None: the audit's account of
    this interval is incomplete (unlike 0: known to be idle), and then its value does not count either.
    """

    values: tuple[float | None, ...]
    records: tuple[int | None, ...]

    def logarithms(self) -> list[float]:
        """The values as logarithms; NaN: unknown."""
        return [
            nan if records is None else _floored_logarithm(value)
            for value, records in zip(self.values, self.records, strict=True)
        ]

    @property
    def measured_count(self) -> int:
        """The number of intervals with a value that counts."""
        return sum(map(isfinite, self.logarithms()))

    @property
    def unaccounted_share(self) -> float:
        """Share of the intervals that the audit cannot account for; 1 for an empty window."""
        return self.records.count(None) / len(self.records) if self.records else 1.0

    @property
    def is_idle(self) -> bool:
        """True if nothing was delivered in any known interval."""
        return not any(self.records)

    @property
    def quiet_share(self) -> float:
        """Share of the known intervals in which nothing was delivered; 0 if there are none."""
        known_counts = [records for records in self.records if records is not None]
        return known_counts.count(0) / len(known_counts) if known_counts else 0.0


def _floored_logarithm(value: float | None) -> float:
    return nan if value is None or not isfinite(value) else log(max(value, RESOLUTION))


@dataclass(frozen=True, slots=True)
class MemberSeries:
    """One member before and after the change; the canary is identified by its place in the group, not by its client's id."""

    member: str
    before: MemberWindow
    after: MemberWindow

    @property
    def unaccounted_share(self) -> float:
        """The larger of both windows' shares."""
        return max(self.before.unaccounted_share, self.after.unaccounted_share)

    @property
    def quiet_share_growth(self) -> float:
        """The growth of the share of its quiet intervals."""
        return self.after.quiet_share - self.before.quiet_share

    @property
    def measured_count(self) -> int:
        """The number of intervals with a value, in the window that has fewer."""
        return min(self.before.measured_count, self.after.measured_count)


def build_series(
    processes: Collection[ProcessSpan], measured: Measured, canary_times: CanaryTimes, plan: CanaryPlan
) -> tuple[MemberSeries, ...]:
    """Each member over these times, the canary first. An interval that no process of a member covers is unaccounted for."""

    def build_window(name: str, own_processes: Sequence[ProcessSpan], begins: Sequence[int]) -> MemberWindow:
        covered = [any(span.covers(begin, begin + canary_times.interval_ms) for span in own_processes) for begin in begins]
        cells = [measured.get((name, begin)) for begin in begins]
        records = tuple((cell[0] if cell else 0) if is_covered else None for is_covered, cell in zip(covered, cells, strict=True))
        return MemberWindow(tuple(cell[1] if cell else None for cell in cells), records)

    def build_member(name: str) -> MemberSeries:
        own_spans = _processes_of_instance(processes, plan, name)
        return MemberSeries(name, *(build_window(name, own_spans, begins) for begins in canary_times.interval_starts()))

    return tuple(map(build_member, plan.members))


def judge_unobserved_canary(plan: CanaryPlan, invariants: Iterable[AuditFinding]) -> CanaryVerdict:
    """The verdict if there are no `times`."""
    text = f"{plan.canary} of group {plan.group} did not write events both before and after a restart."
    return _build_verdict(plan, 0, [*invariants, _inconclusive_finding(AuditCause.CANARY_UNSEEN, text)])


def judge_canary(members: Sequence[MemberSeries], invariants: Iterable[AuditFinding], plan: CanaryPlan) -> CanaryVerdict:
    """The verdict over these series, the canary's first. `invariants`: the audit's findings on it; a FAIL among them decides."""
    reached = min((len(member.after.values) for member in members), default=0)
    if reached < plan.window:
        text = f"{reached} of the {count_of(plan.window, 'interval that is', 'intervals that are')} compared have passed since the change."
        return _build_verdict(plan, reached, [*invariants, _inconclusive_finding(AuditCause.WINDOW_OPEN, text)])
    comparable_members, findings = _select_comparable(members)
    baseline_count = len(comparable_members) - (members[0] in comparable_members)
    if any(finding.outcome is AuditOutcome.INCONCLUSIVE for finding in findings):
        return _build_verdict(plan, reached, [*invariants, *findings], baseline=baseline_count)
    test = _run_rank_test(comparable_members, plan.margin)
    return _build_verdict(
        plan,
        reached,
        [*invariants, *findings, *_check_gone_quiet(comparable_members), _conclude(test, plan)],
        baseline_count,
        test,
    )


def _build_verdict(
    plan: CanaryPlan, reached: int, findings: Sequence[AuditFinding], baseline: int = 0, test: RankTest | None = None
) -> CanaryVerdict:
    outcome = worst_outcome(finding.outcome for finding in findings)
    verdict = CanaryVerdict(outcome, METRIC, plan.margin, plan.window, reached, baseline, findings=tuple(findings))
    return replace(verdict, **asdict(test)) if test else verdict


def _run_rank_test(comparable_members: Sequence[MemberSeries], margin: float) -> RankTest:
    """The rank test over the values without load and lasting differences."""
    before = [_finite_only(row) for row in _log_ratios_to_median([member.before for member in comparable_members])]
    after = [_finite_only(row) for row in _log_ratios_to_median([member.after for member in comparable_members])]
    level = [median(row) for row in before]
    canary, *others = ([value - own for value in row] for row, own in zip(after, level, strict=True))
    # Neighbouring intervals are alike and count for less than as many independent ones; the median before is not exact either.
    correlation, length_ratio = autocorrelation([*before, *after]), min(map(len, after)) / min(map(len, before))
    return rank_test(canary, others, margin, (1 + correlation) / (1 - correlation) * (1 + length_ratio))


def _log_ratios_to_median(windows: Sequence[MemberWindow]) -> list[list[float]]:
    """Logarithms of each member's values, less their median over the members in each interval."""
    rows = [window.logarithms() for window in windows]
    common = [median(_finite_only(column) or [0.0]) for column in zip(*rows, strict=True)]
    return [[value - usual for value, usual in zip(row, common, strict=True)] for row in rows]


def _finite_only(values: Iterable[float]) -> list[float]:
    return [value for value in values if isfinite(value)]


def _select_comparable(members: Sequence[MemberSeries]) -> tuple[list[MemberSeries], list[AuditFinding]]:
    """The members that can be compared, and what prevents it; an INCONCLUSIVE among the grounds forbids the comparison."""
    unaccounted_members = [member for member in members if member.unaccounted_share > _MAX_UNACCOUNTED]
    quiet_members = [member for member in members if member not in unaccounted_members and member.measured_count < MIN_POINTS]
    comparable_members = [member for member in members if member not in unaccounted_members and member not in quiet_members]
    return comparable_members, [
        *_check_missing_events(members, unaccounted_members),
        *_check_few_values(members, quiet_members),
        *_check_member_count(members, comparable_members),
    ]


def _can_leave_out(left_out: Sequence[MemberSeries], members: Sequence[MemberSeries]) -> bool:
    """True if the comparison can do without these members; never without the canary."""
    return members[0] not in left_out and len(left_out) <= _MAX_LEFT_OUT * (len(members) - 1)


def _join_member_names(members: Iterable[MemberSeries]) -> str:
    return ", ".join(sorted(member.member for member in members))


def _check_missing_events(members: Sequence[MemberSeries], unaccounted_members: Sequence[MemberSeries]) -> Iterator[AuditFinding]:
    if not unaccounted_members:
        return
    text = f"{METRIC}: audit events are missing for {_join_member_names(unaccounted_members)}"
    if _can_leave_out(unaccounted_members, members):
        yield _passing_finding(AuditCause.LEFT_OUT, f"{text}; left out of the baseline.")
    else:
        yield _inconclusive_finding(AuditCause.MEMBER_EVENTS_LOST, f"{text}.")


def _check_few_values(members: Sequence[MemberSeries], quiet_members: Sequence[MemberSeries]) -> Iterator[AuditFinding]:
    """Members with too few values: no member had traffic, the canary had none, or the windows are short."""
    if not quiet_members:
        return
    canary = members[0]
    if all(member.after.is_idle for member in members):
        yield _inconclusive_finding(AuditCause.NO_TRAFFIC, f"{METRIC}: nothing was delivered to any member.")
    elif canary in quiet_members and canary.after.is_idle:
        text = f"{METRIC}: nothing was delivered to {canary.member}, while others had traffic."
        yield _inconclusive_finding(AuditCause.CANARY_IDLE, text)
    elif _can_leave_out(quiet_members, members):
        yield _passing_finding(
            AuditCause.LEFT_OUT, f"{METRIC}: too few values from {_join_member_names(quiet_members)}; left out of the baseline."
        )
    else:
        text = f"{METRIC}: fewer than {MIN_POINTS} values, before or after the change, from {_join_member_names(quiet_members)}."
        yield _inconclusive_finding(AuditCause.FEW_VALUES, text)


def _check_gone_quiet(comparable_members: Sequence[MemberSeries]) -> Iterator[AuditFinding]:
    """A canary that was delivered records, then none while others were: its good intervals do not show that."""
    canary, *others = comparable_members
    if canary.quiet_share_growth > sum(other.quiet_share_growth for other in others) / len(others) + _MAX_QUIETER:
        text = (
            f"{METRIC}: in {canary.after.quiet_share:.0%} of the intervals ({canary.before.quiet_share:.0%} before) nothing was delivered to "
            f"{canary.member}, while others had traffic."
        )
        yield _inconclusive_finding(AuditCause.CANARY_IDLE, text)


def _check_member_count(members: Sequence[MemberSeries], comparable_members: Sequence[MemberSeries]) -> Iterator[AuditFinding]:
    has_canary = members[0] in comparable_members
    baseline_count = len(comparable_members) - has_canary
    if baseline_count < MIN_BASELINE or not has_canary:
        text = f"{METRIC}: {'the canary' if has_canary else 'no canary'} and {count_of(baseline_count, 'baseline member')} can be compared."
        yield _inconclusive_finding(AuditCause.FEW_MEMBERS, text)


def _conclude(test: RankTest, plan: CanaryPlan) -> AuditFinding:
    text = (
        f"{METRIC}: {plan.canary} is {test.estimate:.3g} times as late as the others (between {test.low:.3g} and {test.high:.3g}), "
        f"the margin is {plan.margin:.3g}"
    )
    if test.is_worse(plan.margin):
        text += f": worse, and more than such members differ by themselves (p = {test.p_value:.2g})."
        return AuditFinding.of(AuditOutcome.FAIL, AuditCause.CANARY_WORSE, text)
    smallest = f"The smallest effect that this window could have detected is {test.smallest:.3g} (with probability {POWER:.0%})."
    if test.is_within(plan.margin):
        return _passing_finding(AuditCause.CANARY_WITHIN, f"{text}: within the margin. {smallest}")
    return _inconclusive_finding(AuditCause.CANARY_UNCLEAR, f"{text}: it could be either. {smallest}")


def _inconclusive_finding(cause: AuditCause, text: str) -> AuditFinding:
    return AuditFinding.of(AuditOutcome.INCONCLUSIVE, cause, text)


def _passing_finding(cause: AuditCause, text: str) -> AuditFinding:
    return AuditFinding.of(AuditOutcome.PASS, cause, text)
