"""What continuous integration and the nightly run, lane by lane: `python -m tests.lanes ci`, `python -m tests.lanes nightly`.

A lane is one `make` target. The lanes of a set run in order of worth, each to its end whatever became of the one before. No lane is left
out silently: what has no time left, or cannot run on this machine, is named in the last lines and in the record.

The record, `docs/lanes.json`: {lane: {"commit", "at" (UTC), "seconds", "state" (`State`), "counts" {outcome: tests}, "skipped" {reason: tests},
"repeated" [tests], "failed" [tests], "internal_error" [lines], "why"}}. A nightly takes longer than an evening: started again on the same
commit, it goes on with what has not passed.
`docs/testing.md` shows the record between its two markers; `python -m tests.lanes page` writes it there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.kit.machines import missing as machines_missing

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "lanes.json"
PAGE = ROOT / "docs" / "testing.md"
COUNTS = "KMIGRATE_LANE_COUNTS"  # the file to which each pytest session adds a line (tests/conftest.py)
BEGIN, END = "<!-- lanes: begin -->", "<!-- lanes: end -->"
BUDGET_MINUTES = 40.0  # of all lanes of CI, on two idle cores
NO_NEW_LANE_AFTER = 70 * 60.0  # seconds
MUST_END_WITHIN = 88 * 60.0  # seconds; a run of CI over 90 minutes counts for nothing
LONGER = 1.15  # a last lane took so many times as long as the lanes before it foretold (25 minutes, foretold 22)
PATIENCE = "3"  # times each test's own timeout: a machine may be 2.5 times slower, and a lane's sessions share it
STARTED = "KMIGRATE_CI_STARTED"  # when the run began, in seconds since the epoch: setting up takes minutes, too


class State(StrEnum):
    """How a lane ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"  # no time was left
    CANNOT_RUN = "cannot run"  # this machine lacks what it needs


@dataclass(frozen=True)
class Lane:
    """`minutes`: its part of the budget in CI, else about how long it takes; on two idle cores. `tries`: of a lane on real machines, whose
    journey cannot be repeated from its middle."""

    name: str
    target: tuple[str, ...]
    minutes: float
    shows: str
    tries: int = 1
    needs_machines: bool = False


CI = (
    Lane("check", ("check",), 7, "lint, layers, types; every test without a cluster and without Spark that is not slow"),
    Lane("test", ("test-slow",), 29, "the audit on Spark; real clusters; every slow test without one"),
    Lane(
        "machines", ("machines",), 4, "the agent on machines with a systemd, an sshd and a disk of their own", needs_machines=True
    ),
)
NIGHTLY = (
    Lane("proofs", ("proofs",), 45, "what no shorter test shows, on real brokers"),
    Lane("journeys", ("journeys",), 20, "whole migrations and rollbacks on machines, over ssh", tries=2, needs_machines=True),
    Lane("disasters", ("disasters",), 15, "every known disaster caused on real brokers; TLS, passwords and ACLs there and back"),
    Lane(
        "faults",
        ("faults",),
        55,
        "a fault in every phase of a migration, a rollback and a second migration; there and back with two log directories each, and with a login at ZooKeeper; Airflow itself killed",
    ),
    Lane(
        "releases",
        ("releases",),
        60,
        "a real cluster of each pair of releases of Kafka and ZooKeeper: there, back and there again",
    ),
    Lane("guards", ("guards",), 15, "every guard taken out of a copy of the code, one at a time: its removal test must fail"),
    Lane("mutants", ("mutants",), 60, "200 seeded changes of decisions, each tried against the tests"),
    Lane("long", ("long",), 30, "rollbacks by DAG, five brokers in racks, groups rolled back from every stage, every state"),
    Lane("gated", ("gated",), 20, "Spark's verdicts as gates of a real migration"),
    Lane("spark-cluster", ("spark-cluster",), 15, "the audit on a Spark cluster"),
    Lane("pairs", ("pairs",), 120, "every pair of faults at every step, on the simulated cluster"),
    Lane(
        "airflows",
        ("airflows", "ARGS=--scheduler"),
        60,
        "on each older release of Airflow, on the lowest of all requirements, and by Python 3.12 and 3.13: a simulated migration with killed tasks; a real one on a scheduler",
    ),
    Lane("s3", ("s3",), 15, "the object store against moto's S3: processes of two machines, a whole simulated migration"),
    Lane("explore", ("explore",), 20, "random histories with new seeds"),
    Lane("demo", ("demo", "ROLLBACK=1"), 20, "the demo, first migrated on a scheduler and rolled back by its approver"),
)
SETS = {"ci": CI, "nightly": NIGHTLY}


@dataclass(frozen=True)
class Result:
    """How one lane ended; fields as in the record."""

    lane: str
    state: State
    commit: str
    at: str
    seconds: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    repeated: Sequence[str] = ()
    failed: Sequence[str] = ()
    internal_error: Sequence[str] = ()
    why: str = ""


def why_not_begun(lane: Lane, elapsed: float, planned: float) -> str:
    """Why a lane of CI is not begun; empty: it is. `elapsed`: seconds so far; `planned`: the budget, in seconds, of the lanes that ran.

    A machine that was slow so far stays so.
    """
    if elapsed > NO_NEW_LANE_AFTER:
        return f"{elapsed / 60:.0f} minutes were gone"
    slowness = max(1.0, elapsed / planned) if planned else 1.0
    needed = lane.minutes * 60.0 * slowness * LONGER
    if elapsed + needed > MUST_END_WITHIN:
        return f"{elapsed / 60:.0f} minutes were gone, and on this machine it takes about {needed / 60:.0f}"
    return ""


def may_try_again(took: float, left: float) -> bool:
    """Whether a lane that failed is tried once more: only if another try of `took` seconds ends within what is `left`."""
    return took * LONGER < left


def seconds_before(started: str) -> float:
    """Seconds since a run `started`, as its script says it; 0 if it does not."""
    return max(0.0, time.time() - float(started)) if started else 0.0


def is_green(results: Sequence[Result]) -> bool:
    """Whether nothing failed. What had no time, or cannot run here, is said, and fails nothing."""
    return all(result.state is not State.FAILED for result in results)


def closing_lines(results: Sequence[Result]) -> list[str]:
    """The last lines of a run: each lane with its counts, then what was repeated, then what did not run."""
    lines = []
    for result in results:
        counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(result.counts.items()))
        lines.append(f"{result.state.upper()}: {result.lane} ({result.seconds / 60:.1f} min; {counts or result.why})")
        lines += [f"  skipped {number}: {reason}" for reason, number in sorted(result.skipped.items())]
        lines += [f"  REPEATED: {test}" for test in result.repeated]
        lines += [f"  FAILED: {test}" for test in result.failed]
        lines += [f"  INTERNAL ERROR: {line}" for line in result.internal_error]
    absent = [result for result in results if result.state in {State.NOT_RUN, State.CANNOT_RUN}]
    lines += [f"{result.state.upper()}: {result.lane}: {result.why}" for result in absent]
    total = sum((Counter(result.counts) for result in results), Counter[str]())
    counts = ", ".join(f"{total[outcome]} {outcome}" for outcome in sorted(total))
    return [*lines, f"==== {counts} in {sum(result.seconds for result in results):.2f}s ===="]


def merged(lines: Sequence[str]) -> dict[str, Any]:
    """Counts, skips and repeats of all pytest sessions of a lane, from the lines they wrote."""
    counts, skipped = Counter[str](), Counter[str]()
    listed: dict[str, list[str]] = {"repeated": [], "failed": [], "internal_error": []}
    for session in map(json.loads, lines):
        counts.update(session["counts"])
        skipped.update(session["skipped"])
        for name, texts in listed.items():
            texts.extend(session[name])
    return {"counts": dict(counts), "skipped": dict(skipped), **listed}


def page_table(record: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of `docs/testing.md`."""
    rows = ["| lane | what runs | minutes, idle | last whole at | result |", "| --- | --- | --- | --- | --- |"]
    for name, lanes in SETS.items():
        rows += [_page_row(name, lane, record.get(lane.name, {})) for lane in lanes]
    budget = sum(lane.minutes for lane in CI)
    return "\n".join([*rows, "", f"CI's lanes together: {budget:g} of {BUDGET_MINUTES:g} minutes on two idle cores."])


def _page_row(name: str, lane: Lane, seen: Mapping[str, Any]) -> str:
    target = "test" if lane.name == "test" else " ".join(lane.target)
    whole = f"{seen['commit'][:8]}, {seen['at'][:10]}" if seen else "never recorded"
    counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(seen.get("counts", {}).items()))
    result = f"{seen['state']} in {seen['seconds'] / 60:.0f} min; {counts}".rstrip("; ") if seen else ""
    return f"| `make {target}` ({name}) | {lane.shows} | {lane.minutes:g} | {whole} | {result} |"


def write_page() -> None:
    """Put the record's table between the page's markers."""
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{page_table(read_record())}\n{END}{rest.split(END)[1]}")


def read_record() -> dict[str, dict[str, Any]]:
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


def run_lane(lane: Lane, commit: str, folder: Path, ends_at: float) -> Result:
    """Run a lane to its end, its output on ours. `ends_at`: monotonic seconds after which nothing may run."""
    at, began = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    if lane.needs_machines and (why := machines_missing()):
        return Result(lane.name, State.CANNOT_RUN, commit, at, why=why)
    counts = folder / f"{lane.name}.jsonl"
    counts.unlink(missing_ok=True)
    tries, code = 0, 1
    while code and tries < lane.tries and (not tries or may_try_again(time.monotonic() - began, ends_at - time.monotonic())):
        tries += 1
        print(f"== {lane.name}: make {' '.join(lane.target)}", flush=True)
        environment = {**os.environ, COUNTS: str(counts), "KMIGRATE_TEST_PATIENCE": PATIENCE, "REPEATS": "--reruns 1 -rR"}
        code = subprocess.run(["make", *lane.target], cwd=ROOT, env=environment, check=False).returncode
    seen = merged(counts.read_text().splitlines() if counts.exists() else [])
    if tries > 1:
        seen["repeated"].append("the whole lane")
    state = State.FAILED if code else State.PASSED
    return Result(lane.name, state, commit, at, round(time.monotonic() - began), **seen, why=f"exit code {code}" if code else "")


def run_lanes(name: str, commit: str, only: Sequence[str]) -> list[Result]:
    """The set's lanes; of the nightly those that have not passed on this commit."""
    folder = ROOT / "build" / "lanes"
    folder.mkdir(parents=True, exist_ok=True)
    began, planned, results = time.monotonic() - seconds_before(os.environ.get(STARTED, "")), 0.0, list[Result]()
    for lane in SETS[name]:
        if only and lane.name not in only:
            continue
        seen = read_record().get(lane.name, {})
        if name == "nightly" and (seen.get("commit"), seen.get("state")) == (commit, State.PASSED):
            print(f"== {lane.name}: passed on this commit", flush=True)
            continue
        why = why_not_begun(lane, time.monotonic() - began, planned) if name == "ci" else ""
        if why:
            result = Result(lane.name, State.NOT_RUN, commit, datetime.now(UTC).isoformat(timespec="seconds"), why=why)
        else:
            result = run_lane(lane, commit, folder, began + MUST_END_WITHIN if name == "ci" else math.inf)
            planned += lane.minutes * 60.0
        results.append(result)
        _keep(result)
    return results


def _keep(result: Result) -> None:
    """A lane that did not run says nothing about the last time it did."""
    if result.state in {State.NOT_RUN, State.CANNOT_RUN}:
        return
    record = read_record() | {result.lane: {key: value for key, value in asdict(result).items() if key != "lane"}}
    made = RECORD.with_suffix(".new")
    made.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    made.replace(RECORD)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*SETS, "page"])
    parser.add_argument("--lane", action="append", default=[], help="only this lane; may be repeated")
    arguments = parser.parse_args()
    if arguments.what == "page":
        write_page()
        return 0
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    results = run_lanes(arguments.what, commit, arguments.lane)
    lines = closing_lines(results)
    (ROOT / "build" / "lanes" / f"{arguments.what}.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)
    return 0 if is_green(results) else 1


if __name__ == "__main__":
    sys.exit(main())
