"""`make faults`: one real cluster under load goes forward, back, forward again and is finalized, and meets a fault at every turn.

What the tool is required to do in each cell is told in `journey`. After each cell every partition has a leader and its whole ISR; at
the end of the journey the clients' ledger says what was lost, stored twice or out of order. Leaves `summary.json`: the cells with what
was seen, what could not be made here and why, and the ledger.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.clients.hosts.process import NodeProcess
from airflow_provider_kmigrate.consumer.kafka_calls import TopicPlan
from airflow_provider_kmigrate.consumer.workload.plan import GroupPlan
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import BrokerMode, Look
from airflow_provider_kmigrate.exceptions import Failed
from airflow_provider_kmigrate.localcluster import clocks
from airflow_provider_kmigrate.localcluster.plan import Shape
from airflow_provider_kmigrate.steps.rollback import bring_back_the_rest, stop_controllers
from benchmarks import direct
from benchmarks.rehearsal import Rehearsal, rehearsing
from tests.system import disks, fault_cells, linked, proxy
from tests.system.journey import Journey, killed, of, paused
from tests.system.linked import links_of, put_between

TOPICS = (TopicPlan("orders", 18), TopicPlan("payments", 12))
GROUPS = (GroupPlan("billing", 2),)
_PROVISION_POINTS = ("file put", "formatted", "started", "waiting")
_FINAL_POINTS = ("file put", "stopped", "started")
_ROLL_POINTS = ("file put", "stopped", "started")  # killed while a broker stops, the next run finds it stopped: nothing is left
_DISK_MB = 256  # a broker's part of the load takes some 60


def _provision(journey: Journey, *, anew: bool) -> None:
    for node in journey.cluster.plan.controllers:
        journey.cell(
            f"tool killed, {node.name}", "resumes", partial(journey.through, "provision", _PROVISION_POINTS, node=node.id)
        )
    if anew:
        fault_cells.controllers_ready(journey)
    journey.steps(lambda world: direct.step(world, "controllers ready"))


def _first_roll(journey: Journey, *, anew: bool) -> None:
    """Three brokers, each with its own trouble: other ones the second time."""
    brokers, target = journey.cluster.plan.brokers, BrokerMode.MIGRATION

    def other(node: int) -> NodeSpec:
        return next(broker for broker in brokers if broker.id != node)

    def through() -> str:
        return journey.through("roll", _ROLL_POINTS, node=journey.to_roll(target), target=target)

    def paused_other() -> str:
        node = journey.to_roll(target)
        return journey.holds("roll", paused(of(other(node))), node=node, target=target)

    def killed_other() -> str:
        node = journey.to_roll(target)
        return journey.holds("roll", killed(other(node)), node=node, target=target)

    if anew:
        fault_cells.first_roll(journey)
        journey.cell(f"tool killed in the restart to {target}", "resumes", through)
        journey.cell("another broker SIGKILLed", "holds", killed_other)
    else:
        fault_cells.brokers_cut_off(journey, target)
        fault_cells.under_delay(journey, target, proxy.delayed(0.2))
        journey.cell("another broker SIGSTOPped", "holds", paused_other)
    journey.steps(direct.roll, target)


def _dual_write(journey: Journey, *, soaking: bool) -> None:
    plan = journey.cluster.plan

    def one_killed() -> str:
        node = fault_cells.active(journey)
        with killed(node), linked.world(journey.cluster) as world:
            direct.step(world, "copied")
        return f"{node.name} died, its successor writes ZooKeeper"

    def zookeeper_paused() -> str:
        return journey.holds("soak", paused(NodeProcess(plan.zookeeper_folder)), after=5.0, seconds=15.0)

    journey.cell("active controller SIGKILLed", "goes on", one_killed)
    if soaking:
        journey.cell("ZooKeeper SIGSTOPped in the soak", "holds", zookeeper_paused)


def _majority(journey: Journey, target: BrokerMode) -> None:
    lost = journey.cluster.plan.controllers[:2]

    def made() -> str:
        return journey.holds("roll", killed(*lost), node=journey.to_roll(target), target=target)

    journey.cell("two of three controllers SIGKILLed", "holds", made)


def forward(journey: Journey) -> None:
    """To full dual-write; what breaks while a step waits, the first time only."""
    anew = not journey.cells
    journey.phase = "ZooKeeper"
    if anew:
        fault_cells.preflight(journey)
    journey.steps(direct.prepare)
    journey.phase = "controllers"
    _provision(journey, anew=anew)
    journey.phase = "first roll"
    _first_roll(journey, anew=anew)
    journey.phase = "copy"
    if anew:
        fault_cells.copied(journey)
    else:
        fault_cells.clock_jumps(journey, journey.cluster.plan.brokers[0], 600, "copied")
    journey.steps(direct.copy)
    journey.phase = "dual-write, brokers on ZooKeeper"
    _dual_write(journey, soaking=False)
    journey.phase = "second roll"
    _majority(journey, BrokerMode.KRAFT)


def second_roll(journey: Journey) -> None:
    journey.phase = "second roll"
    disk = journey.cluster.plan.brokers[-1]
    anew = not any(cell.phase == "rollback" for cell in journey.cells)
    if anew:
        fault_cells.second_roll(journey)

    def through() -> str:
        return journey.through("roll", _ROLL_POINTS, node=journey.to_roll(BrokerMode.KRAFT), target=BrokerMode.KRAFT)

    if anew:
        journey.cell("tool killed in the restart to kraft", "resumes", through)
    else:
        fault_cells.under_delay(journey, BrokerMode.KRAFT, proxy.slow(30_000))
    journey.steps(direct.roll, BrokerMode.KRAFT)
    journey.phase = "dual-write, brokers on KRaft"
    _dual_write(journey, soaking=anew)
    if anew:
        fault_cells.soak(journey)
    else:
        fault_cells.soak_with_disks(journey, disk)


def back(journey: Journey) -> None:
    """To ZooKeeper, in the order of `steps.rollback.run_rollback`; every kind of its steps is killed once."""
    journey.phase = "rollback"
    plan = journey.cluster.plan
    first, *others = plan.brokers
    for node in plan.controllers:
        journey.steps(lambda world, node=node: direct.step(world, "restore flag", node=node.id))
    journey.cell("tool killed in the failover", "resumes", partial(journey.through, "reconcile", ("stopped", "started")))
    target = BrokerMode.MIGRATION
    journey.cell(
        f"tool killed in the restart back to {target}",
        "resumes",
        partial(journey.through, "back", _ROLL_POINTS, node=first.id, target=target),
    )
    held = partial(journey.holds, "back", killed(first), node=others[0].id, target=target)
    journey.cell("another broker SIGKILLed", "holds", held)
    fault_cells.back_to_migration(journey, others[1])
    for node in plan.brokers:
        journey.steps(lambda world, node=node: direct.step(world, "back", node=node.id, target=target))
    fault_cells.controllers_stop(journey)
    journey.steps(stop_controllers)
    killed_at = ("states raised", "handing over", "handed over")  # the last with its answer lost
    handed = partial(journey.through, "give back", killed_at)
    journey.cell("tool killed around the hand-over's transactions", "resumes", handed, controllers=False)
    fault_cells.new_controller(journey)
    for node in plan.controllers:
        wiped = partial(journey.through, "wipe", ("wiped",), node=node.id)
        journey.cell(f"tool killed, directory of {node.name}", "resumes", wiped, controllers=False)
    fault_cells.back_to_zookeeper(journey)
    journey.steps(bring_back_the_rest)
    fault_cells.rolled_back(journey)
    journey.steps(lambda world: direct.step(world, "rolled back"))


def finalize(journey: Journey) -> None:
    journey.phase = "finalization"
    fault_cells.finalization(journey)
    with linked.world(journey.cluster, "looking", acting=False) as world:
        view = world.observer.look(Look.CONTROLLERS | Look.QUORUM)
    active = view.quorum.leader_id if view.quorum else -1
    left = [node for node in journey.cluster.plan.controllers if view.controllers[node.id].migration_flag]
    for node in sorted(left, key=lambda node: node.id == active):
        journey.cell(f"tool killed, {node.name}", "resumes", partial(journey.through, "finalize", _FINAL_POINTS, node=node.id))
    journey.steps(lambda world: direct.step(world, "finalized"))


LEGS = (forward, second_roll, back, forward, second_roll, finalize)


@contextmanager
def breakable(rehearsal: Rehearsal) -> Iterator[Journey]:
    """The cluster behind its links, ZooKeeper's log and the last broker's data on small disks of their own where that is permitted."""
    rehearsal.up()
    cluster = rehearsal.cluster
    with links_of(cluster.plan) as links, ExitStack() as stack:
        journey = Journey(cluster, links)
        cluster.down()
        put_between(cluster, links)
        reason = disks.why_not(rehearsal.folder / "disk")
        if reason:
            journey.skipped.append(f"full disks: {reason}")
        else:
            for folder in (Path(cluster.plan.brokers[-1].hosts.state) / "data", cluster.plan.zookeeper_folder / "transactions"):
                stack.enter_context(disks.on_a_disk(folder, _DISK_MB))
        if no_clock := clocks.why_not():
            journey.skipped.append(f"clocks: {no_clock}")
        else:
            for node in (cluster.plan.brokers[0], cluster.plan.controllers[0]):
                clocks.give_own(of(node).folder)
        stack.callback(rehearsal.close)
        cluster.up()
        if problem := journey.whole(start=False):
            raise Failed(f"the cluster did not come up behind its links: {problem}")
        yield journey


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/faults"))
    parser.add_argument("--legs", type=int, default=len(LEGS), help="how many of the journey's legs (default: all, %(default)s)")
    given = parser.parse_args()
    folder: Path = given.dir
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    shape, policy = Shape(name="faults"), {"min_soak": "3s", "canary_bake": "0s"}
    rehearsal = Rehearsal(folder / "run", shape, TOPICS, GROUPS, rate=200.0, producers=1, policy=policy)
    with rehearsing(rehearsal), breakable(rehearsal) as journey:
        workload = rehearsal.load()
        try:
            for leg in LEGS[: given.legs]:
                leg(journey)
        finally:
            _save(folder, journey, {})
        workload.stop()
        ledger = workload.summary()
        _save(folder, journey, ledger)
    failed = [cell for cell in journey.cells if not cell.passed]
    print(
        f"{len(journey.cells)} cells, {len(failed)} failed; {ledger['acked']} acked, {ledger['lost']} lost; {folder / 'summary.json'}"
    )
    return 1 if failed or ledger["lost"] or ledger["duplicated"] or ledger["reordered"] else 0


def _save(folder: Path, journey: Journey, ledger: Mapping[str, Any]) -> None:
    """What is known so far, so that a journey that breaks off leaves its cells."""
    keys = ("verdict", "acked", "lost", "duplicated", "reordered", "send_failures", "longest_stall_ms", "longest_delivery_gap_ms")
    known = {key: ledger[key] for key in keys if key in ledger}
    summary = {"cells": [asdict(cell) for cell in journey.cells], "skipped": journey.skipped, **known}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1))


if __name__ == "__main__":
    sys.exit(main())
