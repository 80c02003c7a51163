"""Which groups could be moved, in which order, and what stands against it. Reason codes are compared, not sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.audit.offsets_records import (
    ConsumerGroup,
    GroupMember,
    GroupRemoved,
    GroupState,
    OffsetCommitted,
    OffsetRemoved,
    RawRecord,
    Record,
)
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.groups.readiness import (
    GroupProtocol,
    GroupSnapshot,
    LagHistory,
    Life,
    OffsetsHistory,
    Readiness,
    assess,
    lag_history,
    offsets_histories,
    slope,
    waves,
)

DAY = 86_400_000
LOOK = GroupSnapshot(DAY, "g", GroupProtocol.ZOOKEEPER, members=2, generation=4, lag=100)
CALM = LagHistory(288, 120, 0.0, 2.0)
STORED = OffsetsHistory(GroupProtocol.CLASSIC, Life.LIVE, 5_000, 2.0, 45_000, (7,))


def codes(readiness: Readiness) -> list[str]:
    return [reason.code for reason in (*readiness.blockers, *readiness.reservations)]


def test_a_calm_group_is_ready() -> None:
    found = assess(LOOK, CALM, STORED)
    assert (codes(found), found.score, found.life, found.commit_interval_ms) == ([], 100, Life.LIVE, 5_000)


@pytest.mark.parametrize(
    ("look", "stored", "expected"),
    [
        (replace(LOOK, protocol=GroupProtocol.UNKNOWN), STORED, ["K10"]),
        (replace(LOOK, lag=None), STORED, ["K10"]),
        (replace(LOOK, members=None), None, ["K10"]),
        (replace(LOOK, protocol=GroupProtocol.MIXED), STORED, ["K11"]),
        (replace(LOOK, rebalancing=True), STORED, ["K12"]),
        (replace(LOOK, outside_log=3), STORED, ["K13"]),
        (LOOK, replace(STORED, places=(7, 12)), ["K14"]),
    ],
)
def test_what_blocks(look: GroupSnapshot, stored: OffsetsHistory | None, expected: list[str]) -> None:
    found = assess(look, CALM, stored)
    assert ([reason.code for reason in found.blockers], found.score) == (expected, 0)
    assert all(reason.why and reason.remedy for reason in found.blockers)


@pytest.mark.parametrize(
    ("look", "lag", "stored", "expected"),
    [
        (LOOK, replace(CALM, slope=0.5), STORED, ["K20"]),
        (LOOK, replace(CALM, slope=0.01), STORED, []),
        (LOOK, replace(CALM, looks=2), STORED, ["K21"]),
        (LOOK, replace(CALM, churn=100.0), STORED, ["K22"]),
        (LOOK, replace(CALM, churn=None), replace(STORED, churn=100.0), ["K22"]),
        (LOOK, CALM, replace(STORED, commit_interval_ms=300_000), ["K23"]),
        (replace(LOOK, members=0), CALM, STORED, ["K24"]),
        (LOOK, CALM, replace(STORED, shortest_session_ms=6_000), ["K25"]),
        (LOOK, CALM, None, []),
    ],
)
def test_what_costs_points(look: GroupSnapshot, lag: LagHistory, stored: OffsetsHistory | None, expected: list[str]) -> None:
    found = assess(look, lag, stored)
    assert codes(found) == expected
    assert (found.score < 100) == bool(expected)


def test_a_dead_group_has_nothing_to_move_and_nothing_against_it() -> None:
    found = assess(replace(LOOK, members=0, lag=None), CALM, replace(STORED, life=Life.DEAD))
    assert (found.life, codes(found)) == (Life.DEAD, [])
    assert waves([found])[0].wave == 0


class TestWaves:
    def test_the_readiest_go_first_and_alone(self) -> None:
        groups = [assess(replace(LOOK, group=f"g{n:02}"), replace(CALM, p99=n), STORED) for n in range(40)]
        found = waves(groups)
        assert [sum(each.wave == wave for each in found) for wave in (1, 2, 3)] == [2, 8, 30]
        assert [each.group for each in found[:2]] == ["g00", "g01"], "those that are least behind"

    def test_the_doubtful_go_last_the_blocked_not_at_all_and_the_others_have_nothing_to_move(self) -> None:
        doubtful = replace(CALM, slope=9.0, churn=100.0, looks=1)
        groups = [
            assess(replace(LOOK, group="blocked", rebalancing=True), CALM, STORED),
            assess(replace(LOOK, group="broker", protocol=GroupProtocol.CLASSIC), CALM, STORED),
            assess(replace(LOOK, group="doubtful"), doubtful, STORED),
            assess(replace(LOOK, group="ready"), CALM, STORED),
        ]
        assert [(each.group, each.wave) for each in waves(groups)] == [
            ("broker", 0),
            ("ready", 1),
            ("doubtful", 4),
            ("blocked", None),
        ]

    def test_no_groups(self) -> None:
        assert waves([]) == ()


class TestHistories:
    def test_lag_trend_and_churn(self) -> None:
        looks = [replace(LOOK, t_ms=n * 60_000, lag=10 + 60 * n, generation=n // 2) for n in range(5)]
        found = lag_history(looks[::-1])
        assert (found.looks, found.p99) == (5, 250)
        assert found.slope == pytest.approx(1.0)
        assert found.churn == pytest.approx(2 * 24 * 60 / 4)

    def test_what_was_not_read_is_no_zero(self) -> None:
        assert lag_history([replace(LOOK, lag=None, generation=None)] * 5) == LagHistory(5)

    def test_generations_that_begin_anew_are_counted(self) -> None:
        looks = [replace(LOOK, t_ms=t, generation=number) for t, number in ((0, 100), (DAY, 3))]
        assert lag_history(looks).churn == 3.0

    @settings(max_examples=60, deadline=None)
    @given(st.integers(-50, 50), st.integers(0, 10**6), st.lists(st.integers(0, 10**5), min_size=3, unique=True))
    def test_the_slope_of_a_line_is_its_slope(self, rise: int, at: int, seconds: list[int]) -> None:
        found = slope([(1000 * s, at + rise * s) for s in seconds])
        assert found == pytest.approx(rise, abs=1e-6)

    def test_three_looks_at_one_moment_have_no_trend(self) -> None:
        assert slope([(5, 1), (5, 2), (5, 3)]) is None


def raw(t_ms: int, partition: int = 7) -> RawRecord:
    return RawRecord(partition, t_ms, t_ms, b"", b"")


def state(generation: int, members: int = 1, session: int = 45_000) -> GroupState:
    each = GroupMember("m", None, "c", "/h", session, (TopicPartition("t", 0),))
    return GroupState("g", "consumer", generation, "range", "m", None, (each,) * members)


def commit(t_ms: int, partition: int = 0) -> OffsetCommitted:
    return OffsetCommitted("g", "t", partition, t_ms, None, "", t_ms)


class TestOffsetsTopic:
    def history(self, *records: tuple[RawRecord, Record]) -> OffsetsHistory:
        return offsets_histories(records)["g"]

    def test_a_live_classic_group(self) -> None:
        found = self.history(
            (raw(0), state(1)), *((raw(t), commit(t)) for t in (0, 5_000, 10_000)), (raw(DAY), state(3, session=6_000))
        )
        assert found == OffsetsHistory(GroupProtocol.CLASSIC, Life.LIVE, 5_000, 2.0, 6_000, (7,), 3)

    def test_generations_within_minutes_are_no_churn_of_a_day(self) -> None:
        found = self.history((raw(0), state(1)), (raw(60_000), state(9)))
        assert (found.churn, found.generation) == (None, 9)

    def test_partitions_do_not_shorten_each_others_intervals(self) -> None:
        assert self.history(*((raw(t), commit(t, t % 2)) for t in range(10))).commit_interval_ms == 2

    def test_empty_dead_and_unknown(self) -> None:
        assert self.history((raw(0), commit(0)), (raw(1), state(2, members=0))).life is Life.EMPTY
        assert self.history((raw(0), state(1)), (raw(1), GroupRemoved("g"))).life is Life.DEAD
        assert (
            self.history((raw(0), commit(0)), (raw(1), OffsetRemoved("g", "t", 0)), (raw(2), GroupRemoved("g"))).life is Life.DEAD
        )
        assert self.history((raw(0), commit(0)), (raw(1), GroupRemoved("g"))).life is Life.EMPTY
        assert self.history((raw(0), commit(0))).life is Life.UNKNOWN

    def test_a_consumer_group_and_records_in_two_places(self) -> None:
        found = self.history((raw(0), ConsumerGroup("g", 1)), (raw(0, 9), commit(0)))
        assert (found.protocol, found.places) == (GroupProtocol.CONSUMER, (7, 9))
