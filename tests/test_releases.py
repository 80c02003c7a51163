"""The table of releases: which pairs run again, and what a row says."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.core.preflight.versions import judge_release, parse_version
from tests.system.releases import BEGIN, BLOCKED, END, FAILED, PAGE, PAIRS, PASSED, Pair, choose_pairs, put_row, render_table


def row(pair: Pair, commit: str = "a" * 40, state: str = PASSED, **others: Any) -> dict[str, Any]:
    figures = {"forward": 81.2, "rollback": 79.0, "second": 90.0, "lost": 0, "seconds": 300, "why": ""}
    return {"commit": commit, "kafka": pair.kafka, "zookeeper": pair.zookeeper, "state": state, **figures, **others}


@pytest.mark.parametrize(
    ("rows", "only", "expected"),
    [
        ([], [], PAIRS),
        ([row(PAIRS[0], state=BLOCKED), row(PAIRS[1])], [], PAIRS[2:]),
        ([row(PAIRS[0], state=FAILED)], [], PAIRS),
        ([row(PAIRS[0], commit="b" * 40)], [], PAIRS),  # what passed on another commit says nothing about this one
        ([row(PAIRS[1])], [PAIRS[1].name], PAIRS[1:2]),  # asked for by name: again
    ],
)
def test_what_has_not_ended_well_on_this_commit_runs(rows: list[Any], only: list[str], expected: tuple[Pair, ...]) -> None:
    assert choose_pairs(rows, "a" * 40, only) == list(expected)


def test_a_pair_has_one_row_the_last() -> None:
    rows = put_row([row(PAIRS[2]), row(PAIRS[0], state=FAILED)], row(PAIRS[0], state=BLOCKED))
    assert [(each["kafka"], each["state"]) for each in rows] == [(PAIRS[0].kafka, BLOCKED), (PAIRS[2].kafka, PASSED)]


def test_the_table_shows_what_has_no_figure_as_empty() -> None:
    blocked = dict.fromkeys(("forward", "rollback", "second"))
    table = render_table([row(PAIRS[0], state=BLOCKED, why="B1b: too old", **blocked), row(PAIRS[1])])
    assert f"| {PAIRS[0].kafka} | {PAIRS[0].zookeeper} | blocked: B1b: too old |  |  |  | 0 | aaaaaaaaaaaa |" in table
    assert f"| {PAIRS[1].kafka} | {PAIRS[1].zookeeper} | passed | 81 | 79 | 90 | 0 | aaaaaaaaaaaa |" in table


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_pair_is_refused_exactly_where_the_rules_block_its_release(pair: Pair) -> None:
    release = parse_version(pair.kafka)
    assert release is not None
    assert bool(pair.blocked_by) is (judge_release(release) is Severity.BLOCK)


def test_the_readme_has_the_place_of_the_table() -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    assert before
    assert END in rest
