"""The algebra in columns against `core.intervals`, and what SQL computes against what numpy and Python compute."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the audit has its own environment")

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.audit import algebra, queries
from airflow_provider_kmigrate.audit.algebra import Spans, mix, mix_sql, unbroken
from airflow_provider_kmigrate.audit.reduction import runs, screen
from airflow_provider_kmigrate.audit.reduction.runs import Rows
from airflow_provider_kmigrate.audit.reduction.screen import Chains, Commits
from airflow_provider_kmigrate.core import intervals, latency

spans = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 6)).map(lambda row: (row[0], row[1], sum(row[1:])))
)


def columns(rows: list[tuple[int, ...]], width: int = 3) -> list[Any]:
    return [np.array([row[at] for row in rows], np.int64) for at in range(width)]


def by_key(found: Spans) -> dict[int, list[tuple[int, int]]]:
    sets = defaultdict(list)
    for key, first, last in zip(*(values.tolist() for values in found), strict=True):
        sets[key].append((first, last))
    return dict(sets)


def slowly(rows: list[tuple[int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    return {key: intervals.union(row[1:] for row in rows if row[0] == key) for key in {row[0] for row in rows}}


@settings(deadline=None)
@given(spans)
def test_union(rows: list[tuple[int, int, int]]) -> None:
    assert by_key(algebra.union(Spans(*columns(rows)))) == slowly(rows)


@settings(deadline=None)
@given(spans, spans)
def test_subtract(rows: list[tuple[int, int, int]], others: list[tuple[int, int, int]]) -> None:
    minuend, subtrahend = slowly(rows), slowly(others)
    expected = {key: left for key, found in minuend.items() if (left := intervals.subtract(found, subtrahend.get(key, [])))}
    assert by_key(algebra.subtract(Spans(*columns(rows)), Spans(*columns(others)))) == expected


@settings(deadline=None)
@given(spans)
def test_blocks(rows: list[tuple[int, int, int]]) -> None:
    found = algebra.blocks(Spans(*columns(rows)), 2)
    assert (found.first >> 2).tolist() == (found.last >> 2).tolist()
    cut = [
        (key, at)
        for key, first, last in zip(*(values.tolist() for values in found), strict=True)
        for at in range(first, last + 1)
    ]
    assert cut == [(key, at) for key, first, last in rows for at in range(first, last + 1)]


@settings(deadline=None)
@given(spans, st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 40))))
def test_last_not_above(rows: list[tuple[int, int, int]], asked: list[tuple[int, int]]) -> None:
    rows = sorted(rows)
    found = algebra.last_not_above(*columns(rows)[:2], *columns(asked, 2))
    expected = [max((at for at, row in enumerate(rows) if row[0] == key and row[1] <= value), default=-1) for key, value in asked]
    assert found.tolist() == expected


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)).map(lambda row: (row[0], row[0] + row[1]))))
def test_ranges(pairs: list[tuple[int, int]]) -> None:
    assert algebra.ranges(*columns(pairs, 2)).tolist() == [value for begin, end in pairs for value in range(begin, end)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([None, 1, 2]))))
def test_codes_tell_apart_what_differs(rows: list[tuple[str | None, int | None]]) -> None:
    found = algebra.codes(
        [pa.chunked_array([pa.array([row[at] for row in rows], kind)]) for at, kind in ((0, pa.string()), (1, pa.int32()))]
    )
    assert [[one == other for other in found.tolist()] for one in found.tolist()] == [
        [one == other for other in rows] for one in rows
    ]


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 10**9), st.lists(st.integers(1, 3), min_size=1, max_size=30), st.data())
def test_a_chain_shows_what_is_missing_or_there_twice(start: int, counts: list[int], data: st.DataObject) -> None:
    """Also where as many are missing as are there twice, which is what sums and counts alone overlook."""
    begins = [start + sum(counts[:at]) for at in range(len(counts))]
    pieces = list(zip(begins, counts, strict=True))
    assert fills(pieces)
    gone = data.draw(st.sampled_from(pieces))
    twice = data.draw(st.sampled_from(pieces))
    broken = [*pieces, twice]
    broken.remove(gone)
    assert fills(broken) == (gone == twice)


def fills(pieces: list[tuple[int, int]]) -> bool:
    begin, count = columns(pieces, 2)
    chain = np.sum(mix(begin + count) - mix(begin))
    return bool(unbroken(begin.min(), (begin + count).max(), count.sum(), chain))


NUMBERS = [0, 1, 2, 127, 128, 129, 255, 256, 1023, 65_537, 2**30 - 1, 2**30, 2**31 + 5, 2**41, 2**53 + 1]


def test_engines_scatter_as_numpy_does(engine: Any) -> None:
    engine.attach("numbers", [pa.table({"x": pa.array(NUMBERS, pa.int64())})])
    answer = engine.ask(f"SELECT x, {mix_sql('x')} AS image FROM numbers ORDER BY x")  # noqa: S608
    assert answer["image"].to_pylist() == mix(np.array(sorted(NUMBERS), np.int64)).tolist()


def test_engines_put_latencies_into_the_same_buckets(engine: Any) -> None:
    values = [-5, *NUMBERS[:-1], *(2**n + d for n in range(7, 46) for d in (-1, 0, 1)), 2**46 - 1]
    columns = {"mid": [mid for mid in (0, 3, 4) for _ in values], "latency_us": values * 3}
    engine.attach("records", [pa.table(columns, schema=pa.schema([("mid", pa.int32()), ("latency_us", pa.int64())]))])
    answer = engine.ask(queries.record_latencies())
    expected = [(mid * queries.LATENCY_STRIDE + at, n) for mid in (0, 3, 4) for at, n in latency.histogram(values)]
    assert sorted(zip(answer["bucket"].to_pylist(), answer["n"].to_pylist(), strict=True)) == expected


def test_a_latency_of_years_is_its_own_members(engine: Any) -> None:
    columns = {"mid": [1, 2], "latency_us": [2**62, 0]}
    engine.attach("records", [pa.table(columns, schema=pa.schema([("mid", pa.int32()), ("latency_us", pa.int64())]))])
    answer = engine.ask(queries.record_latencies())
    expected = [queries.LATENCY_STRIDE + latency.bucket(2**46 - 1), 2 * queries.LATENCY_STRIDE]
    assert sorted(answer["bucket"].to_pylist()) == expected


def chains(rows: list[tuple[int, ...]]) -> Chains:
    """(owner, first, last, seq, t_first, t_last) of one reader."""
    owner, first, last, seq, t_first, t_last = columns(rows, 6)
    zero = np.zeros(len(rows), np.int64)
    return Chains(zero, zero, owner, first, last, seq, seq + last - first + 1, t_first, t_last)


@pytest.mark.parametrize(
    ("rows", "tangled"),
    [
        ([(0, 0, 9, 0, 0, 50), (1, 10, 19, 0, 51, 99)], False),  # a quick hand-over, offsets go up
        ([(0, 0, 9, 0, 0, 50), (1, 10, 19, 0, 40, 99)], True),  # both at once
        ([(0, 0, 9, 0, 0, 50), (1, 5, 19, 0, 51, 99)], True),  # goes back, and the clocks may be wrong
        ([(0, 0, 9, 0, 0, 50), (1, 5, 19, 0, 151, 199)], False),  # goes back, surely later
        ([(0, 0, 9, 0, 0, 50), (0, 5, 19, 10, 50, 99)], False),  # goes back by its own clock
        ([(1, 0, 99, 0, 0, 10), (0, 100, 109, 0, 20, 30), (0, 50, 60, 10, 31, 40)], True),  # back behind another, close to it
    ],
)
def test_when_chains_tell_the_order(rows: list[tuple[int, ...]], tangled: bool) -> None:
    assert (screen.entangled(chains(rows), 100).tolist() == [0]) is tangled


def test_runs_stay_single_near_another_member() -> None:
    offsets = np.arange(6, dtype=np.int64)
    zero = np.zeros(6, np.int64)
    owner = np.array([0, 0, 0, 1, 1, 1], np.int64)
    times = np.array([0, 400, 450, 500, 560, 900], np.int64)
    seq = np.array([0, 1, 2, 0, 1, 2], np.int64)
    found, _ = runs.assemble(Rows(zero, zero, owner, offsets, seq, times), Commits(*[np.empty(0, np.int64)] * 3), 60)
    assert list(zip(found.first.tolist(), found.last.tolist(), strict=True)) == [(0, 1), (2, 2), (3, 3), (4, 5)]
