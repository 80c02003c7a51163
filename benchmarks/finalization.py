"""What producers see of the end: the active controller's restart without the flag, beside plain restarts of the active controller.

Each round takes the same cluster in full dual-write, under load: plain restarts of the active controller, the finalization, plain restarts of
the controller that is active then. A restart's stall is the longest acknowledgement of a record sent up to 15 s after it began. On one machine
a controller that starts takes processor time from the brokers, so what a load of other work adds is in every figure: `without_restart` is the
stall of 15 s in which nothing is done, and only the ratio compares two machines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.exceptions import TimedOut
from airflow_provider_kmigrate.steps import nodes
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from benchmarks.rehearsal import Rehearsal
from tests.kit.account import MUST_BE_ZERO, figures_of
from tests.kit.load import stalls_between

WARM_UP_S = 20.0  # a cluster that was just started stalls its first producers, whatever is done to it
WINDOW_S = 15.0  # a controller fences a broker that it has not heard of for 9 s (broker.session.timeout.ms)
PROBE_S = 10.0  # with the quiet window after it the probe has measured what is usual
_IN_TURN_S = 60.0
_BEHIND = 50  # records; an idle controller writes two a second
__all__ = ["MUST_BE_ZERO", "main"]
_KINDS = {
    "quiet": "without_restart",
    "before": "plain_before",
    "standby": "finalize_standby",
    "active": "finalize_active",
    "after": "plain_after",
}


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The flat figures of `finalization.json`: stalls in ms, medians over the rounds and the longest of all."""
    parser = argparse.ArgumentParser(prog="finalization")
    parser.add_argument("--rounds", type=int, default=3, help="each about two minutes")
    parser.add_argument(
        "--plain", type=int, default=2, help="plain restarts of the active controller before the finalization, and after it"
    )
    chosen = parser.parse_args(arguments)
    rehearsal = Rehearsal(build / "finalization", policy={"min_soak": "0s", "canary_bake": "0s"})
    with closing(rehearsal):
        rehearsal.up()
        rehearsal.forward(direct.to_dual_write)
        rehearsal.cluster.snapshot("dual-write")
        rounds = []
        for number in range(chosen.rounds):
            rounds.append(_round(rehearsal, number, chosen.plain))
            print(json.dumps(rounds[-1]), flush=True)
    return _figures(rounds)


def _round(rehearsal: Rehearsal, number: int, plain: int) -> dict[str, Any]:
    """One life of the cluster; each kind of restart with its stalls in ms, and the ledger."""
    rehearsal.cluster.restore("dual-write")
    rehearsal.cluster.up()
    workload = rehearsal.load(f"load-{number}")
    rehearsal.forward(lambda here: direct.step(here, "leaders"))  # the broker that started first leads everything
    time.sleep(WARM_UP_S)
    figures = rehearsal.watch()
    time.sleep(PROBE_S)
    begins = [("quiet", time.time())]
    time.sleep(WINDOW_S)
    rehearsal.forward(lambda here: begins.extend(_restart_active(here, "before", plain)))
    finalizes = time.time()
    rehearsal.forward(lambda here: direct.finalize(replace(here, probe=figures)))
    begins += _finalization(rehearsal.journal(), finalizes)
    time.sleep(WINDOW_S)
    rehearsal.forward(lambda here: begins.extend(_restart_active(here, "after", plain)))
    rehearsal.end_watch()
    account = rehearsal.account()
    stalls: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    events = workload.read_all_events().events
    for (kind, at), next_at in zip(begins, [*(at for _, at in begins), float("inf")][1:], strict=True):
        longest_ms = stalls_between(events, int(at * 1000), int(min(next_at, at + WINDOW_S) * 1000)).longest_ms
        stalls[kind].append(round(longest_ms or 0.0, 1))
    return {"stalls": stalls, "load": round(os.getloadavg()[0], 1), "account": account.summary()}


def _restart_active(here: StepContext, kind: str, times: int) -> Iterator[tuple[str, float]]:
    """Restart whichever controller is the active one, as the finalization does but with its present file; when each restart began."""
    for _ in range(times):
        node = _active(here)
        began = time.monotonic()
        yield kind, time.time()
        nodes.restart(here, node)
        _active(here)
        time.sleep(max(0.0, began + WINDOW_S - time.monotonic()))


def _finalization(journal: Sequence[dict[str, Any]], began: float) -> list[tuple[str, float]]:
    """When the restart of each controller began, from kmigrate's journal: the active one is the last."""
    ats = [line["at"] for line in journal if line["kind"] == "act" and line["at"] >= began]
    return [*(("standby", at) for at in ats[:-1]), ("active", ats[-1])]


def _active(here: StepContext) -> NodeSpec:
    """The active controller, once every controller answers and has nearly the whole log."""
    deadline = time.monotonic() + _IN_TURN_S
    while time.monotonic() < deadline:
        view = here.observer.observe(Fields.CONTROLLERS | Fields.QUORUM)
        if (leader := _leader_of_whole_quorum(view)) is not None:
            return next(node for node in here.spec.controllers if node.id == leader)
        time.sleep(0.2)
    raise TimedOut(f"the controllers were not whole again within {_IN_TURN_S:g} s")


def _leader_of_whole_quorum(view: ClusterView) -> int | None:
    quorum = view.quorum
    if quorum is None or not all(controller.answers for controller in view.controllers.values()):
        return None
    whole = all(quorum.high_watermark - quorum.voters.get(controller, -1) <= _BEHIND for controller in view.controllers)
    return quorum.leader_id if whole and quorum.leader_id in view.controllers else None


def _figures(rounds: Sequence[dict[str, Any]]) -> dict[str, object]:
    stalls = {kind: [stall for run in rounds for stall in run["stalls"][kind]] for kind in _KINDS}
    figures: dict[str, object] = {"rounds": len(rounds), "load": max(run["load"] for run in rounds)}
    for kind, name in _KINDS.items():
        figures[f"{name}_ms"] = round(statistics.median(stalls[kind]), 1)
        figures[f"{name}_longest_ms"] = max(stalls[kind])
    plain = [*stalls["before"], *stalls["after"]]
    figures["active_over_plain_ratio"] = round(statistics.median(stalls["active"]) / statistics.median(plain), 3)
    return figures | figures_of([run["account"] for run in rounds])
