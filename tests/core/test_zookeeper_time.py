"""How old a znode is, by the clock of the leader that wrote it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.model import Age, LeaderTime, RequestTime, Written

TERM = 1 << 32
OURS = LeaderTime(Written(1000.0, 3 * TERM + 7), RequestTime(50.0, 50.25))
seconds = st.integers(0, 64_000).map(lambda sixtyfourths: sixtyfourths / 64)  # exact, however they are added up


@given(before=seconds, way=st.tuples(seconds, seconds), later=seconds, ways=st.tuples(seconds, seconds), skew=seconds)
def test_the_true_age_lies_between_the_two(
    before: float, way: tuple[float, float], later: float, ways: tuple[float, float], skew: float
) -> None:
    """The znode is written `before` our write, which the leader makes `way` after we asked; we look again `later`, by any clock."""
    ours = 10_000.0
    reported = LeaderTime(Written(ours + skew, TERM), RequestTime(ours - way[0], ours + way[1]))
    seen = ours + way[1] + later + ways[0]
    age = reported.age_of(Written(ours - before + skew, TERM), RequestTime(seen - ways[0], seen + ways[1]))
    assert age is not None
    assert age.least <= seen - (ours - before) <= age.most
    assert age.most - age.least <= sum(way) + sum(ways)


@pytest.mark.parametrize(
    ("znode", "seen", "age"),
    [
        (Written(1000.5, 3 * TERM + 9), RequestTime(51.0, 51.125), Age(0.25, 0.625)),
        (Written(999.0, 3 * TERM + 1), RequestTime(51.0, 51.0), Age(1.75, 2.0)),
        (Written(1000.9, 3 * TERM + 9), RequestTime(51.0, 51.0), Age(0.0, pytest.approx(0.1))),
        (Written(1002.0, 3 * TERM + 9), RequestTime(51.0, 51.0), None),  # ahead of the leader's clock
        (Written(1000.5, 4 * TERM), RequestTime(51.0, 51.0), None),  # by a leader since
        (Written(999.0, 2 * TERM + 9), RequestTime(51.0, 51.0), None),  # by one before
    ],
)
def test_the_age_of_a_znode(znode: Written, seen: RequestTime, age: Age | None) -> None:
    assert OURS.age_of(znode, seen) == age
