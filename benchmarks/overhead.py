"""What the DAG's care costs: its wall time, its clients' stalls and its memory against the bare script, in one run on one machine.

Pairs of floor and DAG runs, each on a fresh cluster under the same load; ratios are of the medians. An account that is not whole, of the ledger's or of
the judge's, fails the benchmark. With policy `fast_failover` the
DAG is measured once more: what it can save is stalls, not only time. `*_stalls_by_act`: of the last run of each, per restart and election.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.rehearsal import Rehearsal, slow_records, stalls_by_act
from tests.kit.account import MUST_BE_ZERO, figures_of
from tests.kit.load import stalls_between

__all__ = ["MUST_BE_ZERO", "main"]
WARM_UP_S = 5.0  # a cold cluster stalls its first producers, with any tool


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The flat figures of `overhead.json`."""
    parser = argparse.ArgumentParser(prog="overhead")
    parser.add_argument("--pairs", type=int, default=3)
    chosen = parser.parse_args(arguments)
    runs: dict[str, list[dict[str, Any]]] = {"floor": [], "dag": [], "fast": []}
    for _ in range(chosen.pairs):
        for kind, found in runs.items():
            found.append(_run(build / "overhead", kind))
            print(json.dumps({"kind": kind, **found[-1]}), flush=True)
    return _figures(runs)


def _run(folder: Path, kind: str) -> dict[str, Any]:
    # The soak is a wait that the floor does not have; it is left out of both.
    policy = {"min_soak": "0s", "fast_failover": kind == "fast"}
    with closing(Rehearsal(folder, policy=policy)) as rehearsal:
        rehearsal.up()
        workload = rehearsal.load()
        if kind != "floor":
            rehearsal.start_airflow()  # its start keeps a core busy for 15 s; a scheduler runs all along
        time.sleep(WARM_UP_S)
        began_ms = time.time_ns() // 1_000_000
        done = rehearsal.floor() if kind == "floor" else rehearsal.migrate()
        if kind != "floor" and done["state"] != "success":
            raise SystemExit(f"The DAG did not succeed; see {rehearsal.dag_log}")
        account = rehearsal.account()
        by_act = stalls_by_act(slow_records(workload), done["acts"] if kind == "floor" else rehearsal.journal())
        stalls = stalls_between(workload.read_all_events().events, began_ms, time.time_ns() // 1_000_000)
    return {
        "seconds": done["seconds"],
        "peak_mib": done.get("peak_mib"),
        "cpu_s": done.get("cpu_s"),
        "longest_stall_ms": stalls.longest_ms,
        "p999_ms": stalls.p999_ms,
        "stalled_record_s": stalls.stalled_record_s,
        "stalls_by_act": by_act,
        "account": account.summary(),
    }


def _figures(runs: dict[str, list[dict[str, Any]]]) -> dict[str, object]:
    def median(kind: str, key: str) -> float:
        return round(statistics.median(run[key] for run in runs[kind]), 3)

    figures: dict[str, object] = {
        "pairs": len(runs["dag"]),
        "dag_over_floor_ratio": round(median("dag", "seconds") / median("floor", "seconds"), 3),
        "fast_over_floor_ratio": round(median("fast", "seconds") / median("floor", "seconds"), 3),
        "fast_stalled_over_floor_ratio": round(median("fast", "stalled_record_s") / median("floor", "stalled_record_s"), 3),
        "tool_peak_mib": max(run["peak_mib"] for run in runs["dag"]),
        **figures_of([run["account"] for found in runs.values() for run in found]),
    }
    for kind in runs:
        figures[f"{kind}_seconds"] = median(kind, "seconds")
        for key in ("longest_stall_ms", "p999_ms", "stalled_record_s"):
            figures[f"{kind}_{key}"] = median(kind, key)
        figures[f"{kind}_stalls_by_act"] = runs[kind][-1]["stalls_by_act"]
    return figures
