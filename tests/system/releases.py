"""`make releases`: a real cluster under load of each pair of releases goes to KRaft, back, and to KRaft again; one at a time.

`build/releases.json`: [{"commit", "kafka", "zookeeper", "state" ("passed", "blocked" or "failed"), "forward", "rollback", "second" (seconds of
each way), "lost" (records acknowledged and gone), "seconds" (of the whole pair, with its cluster), "why"}]. A release that may not be migrated
must be refused by preflight, by the code that is written here, before anything is restarted. Started again on the same commit, it goes on
with the pairs that have not passed. `python -m tests.system.releases page` writes the table into docs/measurements.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.prepare import run_preflight
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from benchmarks.rehearsal import Rehearsal
from tests.kit.load import TopicPlan
from tests.kit.localcluster.plan import Shape
from tests.kit.workload import GroupPlan
from tests.system import evidence

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "measurements.md"
BEGIN, END = "<!-- releases: begin -->", "<!-- releases: end -->"
PASSED, BLOCKED, FAILED = "passed", "blocked", "failed"
_TOPICS = (TopicPlan("orders", 12), TopicPlan("payments", 6))
_GROUPS = (GroupPlan("billing", 2),)
_QUICK = {"min_soak": "3s", "canary_bake": "0s"}
_SHOWN = 120  # characters of why a pair was blocked or failed
_BEFORE_IT_IS_REFUSED_S = 10.0  # of load, so that its account is not empty


@dataclass(frozen=True, slots=True)
class Pair:
    """Two releases that run together; `blocked_by`: the code by which preflight must refuse to migrate them, empty where it may not."""

    kafka: str
    zookeeper: str
    blocked_by: str = ""

    @property
    def name(self) -> str:
        return f"{self.kafka}+{self.zookeeper}"


PAIRS = (
    Pair("3.6.2", "3.5.10", blocked_by="B1b"),  # a controller of 3.6 serves no DescribeConfigs: nothing can compare both sides
    Pair("3.7.2", "3.8.4"),
    Pair("3.8.1", "3.8.4"),
    Pair("3.9.1", "3.9.3"),
    Pair("3.9.2", "3.8.4"),
    Pair("3.7.2", "3.5.10"),  # the oldest line of ZooKeeper that preflight takes
)

Row = dict[str, Any]


def choose_pairs(rows: Sequence[Mapping[str, Any]], commit: str, only: Sequence[str] = ()) -> list[Pair]:
    """The pairs to run: those of `only`, or all, less those that ended well on this commit."""
    ended_well = {(row["kafka"], row["zookeeper"]) for row in rows if row["commit"] == commit and row["state"] != FAILED}
    return [
        pair for pair in PAIRS if pair.name in (only or [pair.name]) and (only or (pair.kafka, pair.zookeeper) not in ended_well)
    ]


def put_row(rows: Sequence[Row], row: Row) -> list[Row]:
    """The rows with this one in the place of its pair's former one, in the order of `PAIRS`."""
    by_pair = {(each["kafka"], each["zookeeper"]): each for each in (*rows, row)}
    return [by_pair[key] for pair in PAIRS if (key := (pair.kafka, pair.zookeeper)) in by_pair]


def render_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of docs/measurements.md."""
    head = "| Kafka | ZooKeeper | result | there, s | back, s | there again and finalized, s | lost | commit |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        result = f"{row['state']}{': ' if row['why'] else ''}{shorten(row['why'], _SHOWN, placeholder=' ...')}"
        ways = " | ".join("" if row[way] is None else f"{row[way]:.0f}" for way in ("forward", "rollback", "second"))
        lost = "" if row["lost"] is None else row["lost"]
        lines.append(f"| {row['kafka']} | {row['zookeeper']} | {result} | {ways} | {lost} | {row['commit'][:12]} |")
    return "\n".join(lines)


def run_pair(pair: Pair, commit: str, folder: Path) -> Row:
    """Run one pair from an empty folder; whatever it ends with is in the row."""
    row: Row = {"commit": commit, "kafka": pair.kafka, "zookeeper": pair.zookeeper, "state": FAILED}
    row |= dict.fromkeys(("forward", "rollback", "second", "lost", "seconds")) | {"why": ""}
    began = time.monotonic()
    shape = Shape(name="releases", kafka_release=pair.kafka, zookeeper_release=pair.zookeeper)
    try:
        with closing(Rehearsal(folder, shape, _TOPICS, _GROUPS, rate=200.0, producers=1, policy=_QUICK)) as rehearsal:
            rehearsal.cluster.end_with_this_process()
            rehearsal.up()
            rehearsal.load()
            if pair.blocked_by:
                time.sleep(_BEFORE_IT_IS_REFUSED_S)
                row["why"] = _be_refused(rehearsal, pair.blocked_by)
            else:
                _go_both_ways(rehearsal, row)
            account = rehearsal.account()
            row["lost"] = account.ledger["lost"]
            if account.failures:
                raise Failed("; ".join(account.failures))
            row["state"] = BLOCKED if pair.blocked_by else PASSED
    except (KMigrateError, AssertionError, OSError, subprocess.SubprocessError) as error:
        row["why"] = f"{type(error).__name__}: {str(error)[-400:]}"
    return {**row, "seconds": round(time.monotonic() - began)}


def _be_refused(rehearsal: Rehearsal, code: str) -> str:
    """Preflight's finding; raises `Failed` if it has no such one."""
    with direct.context(rehearsal.cluster, "looking", acting=False) as here:
        try:
            run_preflight(here)
        except Refused as refused:
            found = [reason for reason in refused.reasons if reason.code == code]
            if found:
                return str(found[0])
            raise Failed(f"preflight did not refuse by {code}: {refused}") from refused
    raise Failed(f"preflight did not refuse by {code}: it refused nothing")


def _go_both_ways(rehearsal: Rehearsal, row: Row) -> None:
    row["forward"] = _time(lambda: rehearsal.forward(direct.to_dual_write))
    row["rollback"] = _time(lambda: _roll_back(rehearsal))
    row["second"] = _time(lambda: rehearsal.forward(_finalize))


def _time(act: Callable[[], None]) -> float:
    began = time.monotonic()
    act()
    return round(time.monotonic() - began, 1)


def _roll_back(rehearsal: Rehearsal) -> None:
    with direct.context(rehearsal.cluster, "back", folder=rehearsal.home / "kmigrate") as here:
        run_rollback(here)
        _require_phase(here, Phase.ZOOKEEPER)


def _finalize(here: StepContext) -> None:
    direct.forward(here)
    _require_phase(here, Phase.FINALIZED)


def _require_phase(here: StepContext, phase: Phase) -> None:
    reached = position_of(here.observer.observe(evidence.EVERYTHING)).phase
    if reached is not phase:
        raise Failed(f"it ended as {reached}, not as {phase}")


def read_commit() -> str:
    """The commit of this tree, with a mark where tracked files differ from it."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False).returncode
    return f"{head}-changed" if changed else head


def write_page(record: Path) -> None:
    """Put the record's table between the page's markers."""
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{render_table(_read(record))}\n{END}{rest.split(END)[1]}")


def _read(record: Path) -> list[Row]:
    return json.loads(record.read_text()) if record.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["run", "page"], default="run")
    parser.add_argument(
        "--pair", action="append", default=[], choices=[pair.name for pair in PAIRS], help="only this pair, again"
    )
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where releases.json and the clusters are")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    record, commit = given.dir / "releases.json", read_commit()
    if given.what == "page":
        write_page(record)
        return 0
    given.dir.mkdir(parents=True, exist_ok=True)
    for pair in choose_pairs(_read(record), commit, given.pair):
        print(f"== Kafka {pair.kafka}, ZooKeeper {pair.zookeeper}", flush=True)
        row = run_pair(pair, commit, given.dir / "releases")
        atomic.replace(record, (json.dumps(put_row(_read(record), row), indent=1) + "\n").encode())
        print(json.dumps(row), flush=True)
    rows = _read(record)
    print(render_table(rows))
    return int((len(rows) < len(PAIRS) and not given.pair) or any(row["state"] == FAILED for row in rows))


if __name__ == "__main__":
    sys.exit(main())
