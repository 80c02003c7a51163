"""No lane of continuous integration is left out silently, and the page of tests says what the record says."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import lanes
from tests.kit import kdc
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
        (62, 28, False),  # it would end within 88 minutes if no lane took longer than foretold
        (71, 71, False),
        (69, 69, True),
    ],
)
def test_a_lane_begins_if_it_can_end(elapsed: float, planned: float, *, begins: bool) -> None:
    assert (why_not_begun(LANE, elapsed * MINUTE, planned * MINUTE) == "") is begins


def test_the_minutes_of_setting_up_count() -> None:
    assert 299 < lanes.seconds_before(str(time.time() - 300)) < 310
    assert lanes.seconds_before("") == 0
    assert f"export {lanes.STARTED}" in (lanes.ROOT / ".ci" / "run").read_text(encoding="utf-8")


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


def session(**parts: Any) -> str:
    return json.dumps({"counts": {}, "skipped": {}, "repeated": [], "failed": [], "internal_error": []} | parts)


def test_skips_repeats_failures_and_internal_errors_are_named() -> None:
    sessions = [
        session(counts={"passed": 2}, skipped={"no root": 1}, repeated=["tests/a.py::b"]),
        session(counts={"passed": 3, "failed": 1}, skipped={"no root": 2}, failed=["tests/a.py::c"]),
        session(internal_error=["KeyError: gw1"]),
    ]
    seen = merged(sessions)
    assert (seen["counts"], seen["skipped"]) == ({"passed": 5, "failed": 1}, {"no root": 3})
    lines = closing_lines([result(State.FAILED, **seen)])
    assert "  skipped 3: no root" in lines
    assert "  REPEATED: tests/a.py::b" in lines
    assert "  FAILED: tests/a.py::c" in lines
    assert "  INTERNAL ERROR: KeyError: gw1" in lines


def test_a_session_that_an_internal_error_ends_says_so(tmp_path: Path) -> None:
    (tmp_path / "broken_plugin.py").write_text("def pytest_collection_finish():\n    raise RuntimeError('a plugin broke')\n")
    counts = tmp_path / "counts.jsonl"
    environment = os.environ | {"KMIGRATE_LANE_COUNTS": str(counts), "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "broken_plugin", "-p", "no:cacheprovider", __file__]
    ended = subprocess.run(argv, env=environment, capture_output=True, timeout=120, check=False)
    assert ended.returncode == 3
    assert any("a plugin broke" in line for line in merged(counts.read_text().splitlines())["internal_error"])


@pytest.mark.parametrize(("patience", "options", "limit"), [("3", [], 1800.0), ("3", ["--timeout", "0"], 0.0)])
def test_a_lane_gives_each_test_more_time(tmp_path: Path, patience: str, options: list[str], limit: float) -> None:
    limits = tmp_path / "limits"
    (tmp_path / "limits_plugin.py").write_text(
        "from pathlib import Path\n"
        "def pytest_collection_finish(session):\n"
        "    limits = {item.get_closest_marker('timeout').args[0] for item in session.items}\n"
        f"    Path({str(limits)!r}).write_text(' '.join(map(str, limits)))\n"
    )
    environment = os.environ | {"KMIGRATE_TEST_PATIENCE": patience, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "limits_plugin",
        "-p",
        "no:cacheprovider",
        *options,
        __file__,
    ]
    subprocess.run(argv, env=environment, capture_output=True, timeout=120, check=True)
    assert limits.read_text() == str(limit)


@pytest.mark.parametrize(("took", "left", "may"), [(1200.0, 3000.0, True), (1200.0, 1300.0, False), (1200.0, -60.0, False)])
def test_a_lane_is_not_tried_again_beyond_the_end_of_a_run(took: float, left: float, may: bool) -> None:
    assert lanes.may_try_again(took, left) == may


def test_every_lane_is_a_command() -> None:
    makefile = Path("Makefile").read_text()
    for lane in (*CI, *NIGHTLY):
        assert re.search(rf"^{lane.target[0]}:", makefile, re.MULTILINE), lane


def test_the_nightly_leaves_out_no_test_that_needs_kerberos() -> None:
    assert f"export {kdc.REQUIRED}=1" in (lanes.ROOT / ".ci" / "nightly").read_text(encoding="utf-8")
    missing = kdc.why_left_out(("no-such-program",), ("no_such_package",), {})
    assert missing.startswith("needs no-such-program, no_such_package: ")
    assert kdc.why_left_out(("no-such-program",), ("no_such_package",), {kdc.REQUIRED: "1"}) == ""
    assert kdc.why_left_out(("sh",), ("pytest",), {}) == ""
    users = {path: path.read_text(encoding="utf-8") for path in (lanes.ROOT / "tests").rglob("test_*.py")}
    users = {
        path: text
        for path, text in users.items()
        if re.search(r"^(@|pytestmark = \[)kdc\.needs", text.replace("    @", "@"), re.MULTILINE)
    }
    assert len(users) >= 4
    assert [
        path.name for path, text in users.items() if not re.search(r"^pytestmark = .*pytest\.mark\.long", text, re.MULTILINE)
    ] == []


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
