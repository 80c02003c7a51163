"""No lane of continuous integration is left out silently, and the page of tests says what the record says."""

import json
import re
from pathlib import Path

import pytest

from tests import lanes
from tests.lanes import CI, NIGHTLY, SETS, Lane, Result, State, closing_lines, is_green, merged, page_table, why_not_begun

LANE = Lane("proofs", ("proofs",), 12, "")
MINUTE = 60.0


@pytest.mark.parametrize(
    ("elapsed", "planned", "begins"),
    [
        (0, 0, True),
        (28, 28, True),
        (69, 28, False),  # 2.5 times slower than planned: it would take half an hour
        (50, 28, True),
        (71, 71, False),
        (69, 69, True),
    ],
)
def test_a_lane_begins_if_it_can_end(elapsed: float, planned: float, *, begins: bool) -> None:
    assert (why_not_begun(LANE, elapsed * MINUTE, planned * MINUTE) == "") is begins


def test_the_budget_is_kept() -> None:
    assert sum(lane.minutes for lane in CI) <= lanes.BUDGET_MINUTES


def result(state: State, **known: object) -> Result:
    return Result("machines", state, "c0ffee", "2026-01-01T00:00:00+00:00", **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [State.NOT_RUN, State.CANNOT_RUN])
def test_a_lane_that_did_not_run_is_in_the_last_lines(state: State) -> None:
    passed = Result("check", State.PASSED, "c0ffee", "2026-01-01T00:00:00+00:00", 60.0, {"passed": 7})
    results = [result(state, why="71 minutes were gone"), passed]
    assert closing_lines(results)[-2:] == [f"{state.upper()}: machines: 71 minutes were gone", "==== 7 passed in 60.00s ===="]
    assert is_green(results)


def test_a_failure_is_red_whatever_passed_after_it() -> None:
    assert not is_green([result(State.FAILED), result(State.PASSED)])


def test_skips_and_repeats_are_named() -> None:
    sessions = [
        json.dumps({"counts": {"passed": 2}, "skipped": {"no root": 1}, "repeated": ["tests/a.py::b"]}),
        json.dumps({"counts": {"passed": 3, "failed": 1}, "skipped": {"no root": 2}, "repeated": []}),
    ]
    seen = merged(sessions)
    assert seen == {"counts": {"passed": 5, "failed": 1}, "skipped": {"no root": 3}, "repeated": ["tests/a.py::b"]}
    lines = closing_lines([result(State.FAILED, **seen)])
    assert "  skipped 3: no root" in lines
    assert "  REPEATED: tests/a.py::b" in lines


def test_every_lane_is_a_command() -> None:
    makefile = Path("Makefile").read_text()
    for lane in (*CI, *NIGHTLY):
        assert re.search(rf"^{lane.target[0]}:", makefile, re.MULTILINE), lane


def test_no_lane_has_two_meanings() -> None:
    names = [lane.name for one in SETS.values() for lane in one]
    assert len(names) == len(set(names))


def test_a_pure_test_is_never_repeated() -> None:
    lines = [line for line in Path("Makefile").read_text().splitlines() if "pytest" in line and "$(REPEATS)" in line]
    assert lines
    assert all(
        re.search(r'-m "?(cluster|machines|proof)|\$\((GATED|DISASTERS)\)', line) and "not cluster" not in line for line in lines
    )


def test_the_page_says_what_the_record_says() -> None:
    """`python -m tests.lanes page` writes it."""
    shown = lanes.PAGE.read_text().split(lanes.BEGIN)[1].split(lanes.END)[0]
    assert shown.strip() == page_table(lanes.read_record())
