"""The canary's judge: which times are compared, what decides, what blocks a decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.audit.canary import (
    CanaryPlan,
    CanaryTimes,
    MemberSeries,
    MemberWindow,
    ProcessSpan,
    build_series,
    find_canary_times,
    judge_canary,
    judge_unobserved_canary,
)
from airflow_provider_kmigrate.core.audit.verdict import (
    AuditFinding,
    AuditOutcome,
    CanaryVerdict,
    Level,
    as_dict,
    combine,
    may_change,
)
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from tests.core.canary_minutes import JUDGED, members, simulate, window
from tests.core.level_health import HEALTHY

PLAN = CanaryPlan("g", "a0", ("a1", "a2", "a3"), window=40)
TWO_OWNERS = AuditFinding(
    AuditOutcome.FAIL, Reason.of(AuditCause.DOUBLE_OWNED, "Two members owned orders-3 for 4 s."), Level.CONSUMER
)
S = 1_000
Change = Callable[[MemberSeries], MemberSeries]


def group(baseline: int = 9, ratio: float = 1.0, *, seed: int = 1, before: int = 60, noise: float = 0.1) -> list[MemberSeries]:
    return members(simulate(seed, baseline + 1, before + 60, noise=noise, spread=0.15), ratio, before)


def change(series: list[MemberSeries], names: str, how: Change) -> list[MemberSeries]:
    return [how(each) if each.member in names.split() else each for each in series]


def until(series: list[MemberSeries], intervals: int) -> list[MemberSeries]:
    return [replace(each, after=MemberWindow(each.after.values[:intervals], each.after.records[:intervals])) for each in series]


def unaccounted(member: MemberSeries) -> MemberSeries:
    return replace(member, after=MemberWindow(member.after.values, (None,) * 10 + member.after.records[10:]))


def idle(member: MemberSeries) -> MemberSeries:
    return replace(member, after=MemberWindow((None,) * len(member.after.values), (0,) * len(member.after.values)))


def sparse(member: MemberSeries) -> MemberSeries:
    values = tuple(value if at < 5 else None for at, value in enumerate(member.after.values))
    return replace(member, after=MemberWindow(values, member.after.records))


def ask(series: list[MemberSeries], invariants: Iterable[AuditFinding] = ()) -> CanaryVerdict:
    return judge_canary(series, invariants, JUDGED)


def extends(verdict: CanaryVerdict) -> bool:
    """Whether an audit that is judged by this canary alone is made again."""
    return may_change(as_dict(combine((), HEALTHY, verdict)))


def causes(verdict: CanaryVerdict) -> list[AuditCause]:
    return sorted(finding.reason.cause for finding in verdict.findings if isinstance(finding.reason.cause, AuditCause))


@pytest.mark.parametrize(
    ("ratio", "outcome", "cause"),
    [
        (1.0, AuditOutcome.PASS, AuditCause.CANARY_WITHIN),
        (1.2, AuditOutcome.INCONCLUSIVE, AuditCause.CANARY_UNCLEAR),
        (1.8, AuditOutcome.FAIL, AuditCause.CANARY_WORSE),
    ],
)
def test_three_ways(ratio: float, outcome: AuditOutcome, cause: AuditCause) -> None:
    verdict = ask(group(ratio=ratio, seed=5, noise=0.9 if outcome is AuditOutcome.INCONCLUSIVE else 0.1))
    assert (verdict.outcome, causes(verdict)) == (outcome, [cause])
    assert verdict.estimate == pytest.approx(ratio, rel=0.25)
    assert verdict.low is not None
    assert verdict.high is not None
    assert verdict.low < verdict.estimate < verdict.high
    assert (verdict.margin, verdict.baseline, verdict.measured) == (1.5, 9, 60)
    assert verdict.smallest is not None
    assert (verdict.smallest > 1.5) is (outcome is AuditOutcome.INCONCLUSIVE)
    assert verdict.p_value is not None
    assert (verdict.p_value < 0.05) is (outcome is AuditOutcome.FAIL)
    assert f"{verdict.smallest:.3g}" in verdict.findings[0].reason.text or outcome is AuditOutcome.FAIL


def test_a_window_that_could_not_have_seen_the_margin_does_not_pass() -> None:
    """Also if the canary was even quicker than the others."""
    verdict = ask(group(3, 0.5, seed=5, noise=1.2))
    assert verdict.smallest is not None
    assert verdict.smallest > 1.5
    assert (verdict.outcome, causes(verdict)) == (AuditOutcome.INCONCLUSIVE, [AuditCause.CANARY_UNCLEAR])


@pytest.mark.parametrize("after", [0, 5, 60])
def test_a_broken_invariant_fails_at_any_time(after: int) -> None:
    verdict = ask(until(group(), after), [TWO_OWNERS])
    assert verdict.outcome is AuditOutcome.FAIL
    assert TWO_OWNERS in verdict.findings
    assert ask([], [TWO_OWNERS]).outcome is AuditOutcome.FAIL


def test_a_note_among_the_invariants_decides_nothing() -> None:
    note = replace(TWO_OWNERS, outcome=AuditOutcome.PASS)
    assert ask(group(seed=5), [note]).outcome is AuditOutcome.PASS


@pytest.mark.parametrize("after", [0, 14, 59])
def test_before_the_window_is_over_nothing_is_compared(after: int) -> None:
    """Looking again and again until it fails, or passes, would make both errors more frequent."""
    verdict = ask(until(group(ratio=3.0), after))
    assert (verdict.outcome, verdict.measured, causes(verdict)) == (AuditOutcome.INCONCLUSIVE, after, [AuditCause.WINDOW_OPEN])
    assert (verdict.estimate, extends(verdict)) == (None, True)


def test_only_a_window_that_is_not_over_extends() -> None:
    doubtful = group(3, 1.2, seed=5, noise=0.9)
    assert extends(ask(until(doubtful, 45)))
    last = ask(doubtful)
    assert (last.outcome, extends(last)) == (AuditOutcome.INCONCLUSIVE, False)


@pytest.mark.parametrize(
    ("names", "how", "expected"),
    [
        ("m0", unaccounted, [AuditCause.MEMBER_EVENTS_LOST]),
        ("m8 m9", unaccounted, [AuditCause.MEMBER_EVENTS_LOST]),
        ("m0", idle, [AuditCause.CANARY_IDLE]),
        ("m0", sparse, [AuditCause.FEW_VALUES]),
        ("m7 m8 m9", sparse, [AuditCause.FEW_VALUES]),
        ("m0 m1 m2 m3 m4 m5 m6 m7 m8 m9", idle, [AuditCause.NO_TRAFFIC]),
    ],
)
def test_what_is_not_known_blocks_the_verdict(names: str, how: Change, expected: list[str]) -> None:
    verdict = ask(change(group(seed=5), names, how))
    assert verdict.outcome is AuditOutcome.INCONCLUSIVE
    assert [cause for cause in causes(verdict) if cause != AuditCause.FEW_MEMBERS] == expected
    assert verdict.estimate is None


def silenced(*, after: Iterable[int], before: Iterable[int] = ()) -> Change:
    """Nothing was delivered in these intervals."""

    def mute(window: MemberWindow, unresponsive: set[int]) -> MemberWindow:
        pairs = zip(window.values, window.records, strict=True)
        rows = [(None, 0) if at in unresponsive else pair for at, pair in enumerate(pairs)]
        return MemberWindow(tuple(value for value, _ in rows), tuple(records for _, records in rows))

    return lambda each: replace(each, before=mute(each.before, set(before)), after=mute(each.after, set(after)))


ALL_MEMBERS = "m0 m1 m2 m3 m4 m5 m6 m7 m8 m9"


@pytest.mark.parametrize(
    "how",
    [silenced(after=range(15, 60)), silenced(after=range(45, 60)), silenced(after=range(0, 60, 2))],
    ids=["stops early", "stops late", "now and then"],
)
def test_a_canary_that_is_delivered_nothing_any_more_does_not_pass(how: Change) -> None:
    """Its good intervals alone are within the margin."""
    verdict = ask(change(group(seed=5, noise=0.05), "m0", how))
    assert (verdict.outcome, causes(verdict)) == (AuditOutcome.INCONCLUSIVE, [AuditCause.CANARY_IDLE, AuditCause.CANARY_WITHIN])
    assert "m0" in verdict.findings[0].reason.text
    slow = ask(change(group(seed=5, ratio=1.8), "m0", how))
    assert slow.outcome is AuditOutcome.FAIL, "what was seen to be worse stays so"


@pytest.mark.parametrize(
    ("names", "how"),
    [
        ("m0", silenced(after=range(50, 60))),
        ("m0", silenced(after=range(0, 60, 2), before=range(0, 60, 2))),
        (ALL_MEMBERS, silenced(after=range(20, 60))),
        ("m1 m2 m3", silenced(after=range(20, 60))),
    ],
    ids=["a pause", "as little as before", "as all others", "others are idle"],
)
def test_a_canary_with_little_traffic_may_pass(names: str, how: Change) -> None:
    verdict = ask(change(group(seed=5), names, how))
    assert AuditCause.CANARY_IDLE not in causes(verdict)
    assert verdict.outcome is AuditOutcome.PASS


@pytest.mark.parametrize("how", [unaccounted, sparse, idle])
def test_one_old_member_in_nine_can_be_left_out(how: Change) -> None:
    verdict = ask(change(group(seed=5), "m4", how))
    assert (verdict.outcome, causes(verdict)) == (AuditOutcome.PASS, [AuditCause.CANARY_WITHIN, AuditCause.LEFT_OUT])
    assert verdict.baseline == 8


@pytest.mark.parametrize("baseline", [0, 1, 2])
def test_a_baseline_of_too_few_members_is_reported(baseline: int) -> None:
    assert causes(ask(group(baseline))) == [AuditCause.FEW_MEMBERS]


@pytest.mark.parametrize("before", [0, 5, 9])
def test_a_time_before_that_is_too_short(before: int) -> None:
    verdict = ask(group(before=before))
    assert verdict.outcome is AuditOutcome.INCONCLUSIVE
    assert set(causes(verdict)) <= {AuditCause.FEW_MEMBERS, AuditCause.MEMBER_EVENTS_LOST, AuditCause.FEW_VALUES}


def test_a_load_that_all_members_share_is_no_difference_and_hides_none() -> None:
    """It is ten times the noise, and in a tenth of the intervals something is unknown."""
    rng = Random(2)  # noqa: S311
    load = [exp(3 * (at // 9 % 2)) for at in range(120)]
    for ratio, outcome in ((1.0, AuditOutcome.PASS), (1.8, AuditOutcome.FAIL)):
        waved = members([[value * by for value, by in zip(row, load, strict=True)] for row in simulate(4, 10)], ratio)
        holed = [silenced(after=rng.sample(range(60), 6), before=rng.sample(range(60), 6))(each) for each in waved]
        assert ask(holed).outcome is outcome


def test_latencies_below_the_resolution_are_no_difference() -> None:
    """There is nothing to see, and no logarithm of zero."""
    flat = [MemberSeries(f"m{at}", window([0] * 60), window([0] * 60)) for at in range(5)]
    verdict = ask(flat)
    assert (verdict.outcome, verdict.estimate) == (AuditOutcome.PASS, pytest.approx(1.0))
    assert ask(change(flat, "m0", lambda each: replace(each, after=window([9.0] * 60)))).outcome is AuditOutcome.PASS
    assert ask(change(flat, "m0", lambda each: replace(each, after=window([500] * 60)))).outcome is AuditOutcome.FAIL


def test_the_value_of_an_interval_without_a_whole_account_does_not_count() -> None:
    def partly(member: MemberSeries) -> MemberSeries:
        return replace(
            member, after=MemberWindow((1e12, 1e12, *member.after.values[2:]), (None, None, *member.after.records[2:]))
        )

    assert ask(change(group(seed=5), "m0", partly)).estimate == pytest.approx(ask(group(seed=5)).estimate, rel=0.03)


def test_values_that_are_no_numbers_count_as_unknown_values() -> None:
    odd = [float("inf"), float("nan")]
    assert (
        ask(change(group(seed=5), "m0", lambda m: replace(m, after=window([*odd, *m.after.values[2:]])))).outcome
        is AuditOutcome.PASS
    )


@pytest.mark.parametrize("wrong", [{"margin": 1.0}, {"window": 9}, {"interval_ms": 0}])
def test_a_plan_that_leaves_nothing_to_judge_by(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="leaves nothing"):
        replace(PLAN, **wrong)


OTHERS = tuple(ProcessSpan(f"g_a{n}-x", 0, 500_000) for n in (1, 2, 3))
CANARY = (ProcessSpan("a0-old", 0, 201_000), ProcessSpan("a0-new", 204_000, 500_000))


def test_before_the_canary_left_and_after_it_had_settled() -> None:
    assert find_canary_times((*OTHERS, *CANARY), PLAN) == CanaryTimes(5 * S, 201 * S, 214 * S, before=38, after=40)


def test_a_try_before_this_one_is_no_part_of_the_time_before() -> None:
    """It had been taken back, and the restart after that is as cold as the next one."""
    found = find_canary_times(
        (*OTHERS, replace(CANARY[0], last_ms=90 * S), ProcessSpan("a0-back", 100 * S, 201 * S), CANARY[1]), PLAN
    )
    assert found is not None
    assert (found.left_ms, found.before) == (201 * S, 18)


def test_a_canary_that_died_and_came_back_was_changed_before() -> None:
    """Else it would be compared with itself as it is since."""
    died = (CANARY[0], replace(CANARY[1], last_ms=300 * S), ProcessSpan("a0-again", 310 * S, 500 * S))
    found = [find_canary_times((*OTHERS, *died), PLAN, since) for since in (None, 203 * S, 400 * S)]
    assert [(one.left_ms, one.settled_ms) for one in found if one] == [(300 * S, 320 * S), (201 * S, 214 * S), (300 * S, 320 * S)]


def test_twice_the_window_is_looked_back_at_most() -> None:
    long = [replace(life, start_ms=-900 * S) if life.start_ms == 0 else life for life in (*OTHERS, *CANARY)]
    found = find_canary_times(long, PLAN)
    assert found is not None
    assert found.before == 80


@pytest.mark.parametrize("lives", [OTHERS, (*OTHERS, CANARY[1])])
def test_a_canary_that_was_not_seen_before_cannot_be_compared(lives: tuple[ProcessSpan, ...]) -> None:
    assert find_canary_times(lives, PLAN) is None
    broken = AuditFinding(AuditOutcome.FAIL, Reason.of(AuditCause.DOUBLE_OWNED, "Two owners."))
    assert judge_unobserved_canary(PLAN, []).outcome is AuditOutcome.INCONCLUSIVE
    verdict = judge_unobserved_canary(PLAN, [broken])
    assert (verdict.outcome, [finding.reason.cause for finding in verdict.findings]) == (
        AuditOutcome.FAIL,
        [AuditCause.DOUBLE_OWNED, AuditCause.CANARY_UNSEEN],
    )


def test_a_member_slightly_behind_is_waited_for_and_an_unresponsive_one_is_not() -> None:
    """Or its intervals would look as if it had been delivered nothing, or no interval would ever be compared."""
    behind = [*OTHERS[1:], replace(OTHERS[0], last_ms=480 * S), *CANARY]
    unresponsive = [*OTHERS[1:], replace(OTHERS[0], last_ms=300 * S), *CANARY]
    longer = replace(PLAN, window=100)
    assert [found.after for lives in (behind, unresponsive) if (found := find_canary_times(lives, longer))] == [53, 57]


def test_what_no_life_covers_is_not_known_and_what_was_not_delivered_is_nothing() -> None:
    found = CanaryTimes(5 * S, 201 * S, 214 * S, before=2, after=3)
    measured = {("a0", 191 * S): (10, 7.0), ("a0", 219 * S): (12, 8.0), ("a1", 214 * S): (9, None), ("a2", 214 * S): (5, 1.0)}
    lives = [*CANARY, OTHERS[0], ProcessSpan("a2-1", 0, 216 * S), ProcessSpan("a3-1", 0, 900 * S, whole=False)]
    members = {member.member: member for member in build_series(lives, measured, found, PLAN)}
    assert list(members) == ["a0", "a1", "a2", "a3"]
    assert (members["a0"].before.records, members["a0"].before.values) == ((10, 0), (7.0, None))
    assert (members["a0"].after.records, members["a0"].after.values) == ((0, 12, 0), (None, 8.0, None))
    assert (members["a1"].after.records, members["a1"].after.values) == ((9, 0, 0), (None, None, None))
    assert members["a2"].after.records == (None, None, None), "its last sign is in the first of them"
    assert members["a3"].unaccounted_share == 1.0, "some of its events are missing"


@given(st.integers(-500 * S, 900 * S), st.integers(0, 20), st.integers(0, 20), st.integers(1, 50 * S))
def test_a_time_is_in_the_interval_that_it_is_put_into(t_ms: int, before: int, after: int, interval_ms: int) -> None:
    found = CanaryTimes(interval_ms, 201 * S, 214 * S, before, after)
    around = [begin for begins in found.interval_starts() for begin in begins if begin <= t_ms < begin + interval_ms]
    assert around == ([] if (begin := found.find_interval_start(t_ms)) is None else [begin])


@pytest.mark.parametrize(
    ("writer", "instance"), [("a1", "a1"), ("a1-host-7", "a1"), ("g_a1-7", "a1"), ("a11-7", None), ("b", None), ("h_a1", None)]
)
def test_a_process_belongs_to_the_instance_that_it_is_called_by(writer: str, instance: str | None) -> None:
    assert PLAN.instance_of(writer) == instance
