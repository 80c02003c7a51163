"""The rollback under load: a cluster in full dual-write returns to ZooKeeper by the DAG, is migrated again, and finalized."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks import direct
from benchmarks.rehearsal import Rehearsal
from tests.kit.account import MUST_BE_ZERO as NOTHING
from tests.kit.account import figures_of
from tests.kit.load import stalls_between

MUST_BE_ZERO = (*NOTHING, *(f"fast_{key}" for key in NOTHING))
WARM_UP_S = 5.0


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The flat figures of `rollback.json`; both accounts are of everything: there, back, there again. `fast_`: with policy `fast_failover`."""
    parser = argparse.ArgumentParser(prog="rollback")
    parser.add_argument("--without-fast", action="store_true", help="with the default policy only")
    without_fast = parser.parse_args(arguments).without_fast
    figures = _there_and_back(build / "rollback", fast=False)
    if without_fast:
        return figures | dict.fromkeys(f"fast_{name}" for name in NOTHING)
    return figures | {f"fast_{name}": figure for name, figure in _there_and_back(build / "rollback", fast=True).items()}


def _there_and_back(folder: Path, *, fast: bool) -> dict[str, object]:
    policy = {"min_soak": "0s", "canary_bake": "0s", "fast_failover": fast}
    with closing(Rehearsal(folder, policy=policy)) as rehearsal:
        rehearsal.up()
        workload = rehearsal.load()
        time.sleep(WARM_UP_S)
        began = time.monotonic()
        rehearsal.forward(direct.to_dual_write)
        there = time.monotonic() - began
        began_ms = _now_ms()
        rolled_back = _succeeded(rehearsal, rehearsal.roll_back())
        ended_ms = _now_ms()
        again = _succeeded(rehearsal, rehearsal.migrate(fresh=False))
        account = rehearsal.account()
        stalls = stalls_between(workload.read_all_events().events, began_ms, ended_ms)
    return {
        "rollback_seconds": rolled_back["seconds"],
        "rollback_longest_stall_ms": stalls.longest_ms,
        "rollback_stalled_record_s": stalls.stalled_record_s,
        "forward_seconds": round(there, 3),
        "second_migration_seconds": again["seconds"],
        **{f"rollback_{phase['name']}_seconds": phase["seconds"] for phase in rolled_back["phases"]},
        **figures_of([account.summary()]),
    }


def _succeeded(rehearsal: Rehearsal, run: dict[str, Any]) -> dict[str, Any]:
    if run["state"] != "success":
        raise SystemExit(f"A DAG did not succeed ({run['tasks']}); see {rehearsal.dag_log}")
    return run


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
