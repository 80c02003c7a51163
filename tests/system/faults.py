"""`make faults`: one real cluster under load goes forward, back, forward again and is finalized, and meets a fault at every turn.

What the tool is required to do in each cell is described in `journey`. After each cell every partition has a leader and its whole ISR; at
the end of each part a judge that shares no line with kmigrate compares both sides, and at the end of the journey it and the clients' ledger say
what was lost, stored twice or out of order; an account that is not whole fails. Leaves `summary.json`: the cells with what
was seen, what could not be made here and why, and the ledger.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.migration.plan import ROLLBACK, split_into_stages
from airflow_provider_kmigrate.exceptions import Failed
from airflow_provider_kmigrate.steps.catalog import run_plan
from benchmarks import direct
from benchmarks.rehearsal import Rehearsal
from tests.kit.account import NOTHING_OF, judge_equal
from tests.kit.load import TopicPlan
from tests.kit.localcluster import clocks
from tests.kit.processes import NodeProcess
from tests.kit.workload import GroupPlan
from tests.system import disks, fault_cells, fault_shapes, linked, proxy, troubles
from tests.system.cells import ended, save
from tests.system.journey import EXACTLY, HELD, Journey
from tests.system.linked import links_of, put_between
from tests.system.nodes import dead, killed, of, paused

TOPICS = (TopicPlan("orders", 18), TopicPlan("payments", 12))
GROUPS = (GroupPlan("billing", 2),)
#: One process is killed at each point, so what a run finds done has no point left. A machine restarts its node without the tool that told it to:
#: after "stopping" there is no "stopped" and no "started", but a run that only observes; after "started" no run waits. Each list holds one of
#: either, and both are in the matrix; only providing a controller never waits.
_PROVISION_POINTS = ("file put", "formatted", "started")
_FINAL_POINTS = (("noted", "file put", "stopped", "started"), ("noted", "file put", "stopping", "observed"))
_ROLL_POINTS = ("file put", "stopped", "started")
_OTHER_ROLL_POINTS = ("file put", "stopping", "observed")
JUDGED = "I14 both sides equal, by a judge without kmigrate's code"
_DISK_MB = 512  # a broker's part of the load takes some 60; preflight blocks below 256 (B23)


def _provision(journey: Journey, *, again: bool) -> None:
    points = _PROVISION_POINTS if again else _PROVISION_POINTS[1:]  # the second time the file is still there
    for node in journey.shuffled(journey.cluster.plan.controllers):
        journey.resumes(f"tool killed, {node.name}", "provision", points, starts={node.name: 1}, node=node.id)
        journey.steps(lambda context, node=node: direct.step(context, "provision", node=node.id))  # left out, or failed
    if again:
        fault_cells.controllers_ready(journey)
    journey.steps(lambda context: direct.step(context, "controllers ready"))


def _first_roll(journey: Journey, *, again: bool) -> None:
    """Three brokers, each with its own trouble: other ones the second time."""
    brokers, target = journey.cluster.plan.brokers, BrokerMode.MIGRATION

    def other(node: int) -> NodeSpec:
        return next(broker for broker in journey.shuffled(brokers) if broker.id != node)

    def through() -> str:
        node = journey.to_roll(target)
        points = ("noted", *_ROLL_POINTS)
        return journey.through("roll", points, starts={brokers[node].name: 1}, node=node, target=target)

    def paused_other() -> str:
        node = journey.to_roll(target)
        return journey.holds("roll", "another broker SIGSTOPped", paused(of(other(node))), node=node, target=target)

    def killed_other() -> str:
        node = journey.to_roll(target)
        return journey.holds(
            "roll", "another broker SIGKILLed", dead(journey.cluster.plan, other(node)), node=node, target=target
        )

    if again:
        journey.make_own(fault_shapes.FIRST_ROLL)
        fault_cells.first_roll(journey)
        journey.cell(f"tool killed in the restart to {target}", "resumes", through, proven=(EXACTLY,))
        journey.resumes("tool killed behind an election of leaders", "leaders", ("elected",), starts=0)
        if not journey.make_own(fault_shapes.LAST_OF_FIRST_ROLL):
            journey.cell("another broker SIGKILLed", "holds", killed_other, proven=(HELD,))
    else:
        fault_cells.brokers_cut_off(journey, target)
        fault_cells.under_delay(journey, target, proxy.delayed(0.2))
        journey.cell("another broker SIGSTOPped", "holds", paused_other, proven=(HELD,))
    journey.steps(direct.roll, target)


def _dual_write(journey: Journey, *, on_kraft: bool) -> None:
    plan = journey.cluster.plan

    def one_killed() -> str:
        node = troubles.active(journey)
        with journey.diary.lasting(f"{node.name} SIGKILLed", killed(node)):
            journey.steps(lambda context: direct.step(context, "copied"))
        return f"{node.name} died, its successor writes ZooKeeper"

    def zookeeper_paused() -> str:
        name = "ZooKeeper SIGSTOPped in the soak"
        return journey.holds("soak", name, paused(NodeProcess(plan.zookeeper_folder)), after=5.0, seconds=15.0)

    journey.cell("active controller SIGKILLed", "goes on", one_killed)
    if journey.first_time:
        journey.make_own(fault_shapes.KRAFT_MODE if on_kraft else fault_shapes.MIGRATION_MODE)
    if on_kraft:
        journey.series("soak", [troubles.active_stopped(journey)], seconds=2.0)
    if on_kraft and journey.first_time:
        journey.cell("ZooKeeper SIGSTOPped in the soak", "holds", zookeeper_paused, proven=(HELD,))
        fault_cells.without_time(journey, journey.shuffled(plan.brokers)[0], 0.1, "soak", seconds=8.0)
        fault_cells.never_stops(journey)


def _majority(journey: Journey, target: BrokerMode) -> None:
    lost, name = journey.shuffled(journey.cluster.plan.controllers)[:2], "two of three controllers SIGKILLed"

    def made() -> str:
        return journey.holds("roll", name, dead(journey.cluster.plan, *lost), node=journey.to_roll(target), target=target)

    journey.cell(name, "holds", made, proven=(HELD,))


def forward(journey: Journey) -> None:
    """To full dual-write; what breaks while a step waits, the first time only."""
    again = journey.first_time
    journey.enter("ZooKeeper")
    if again:
        fault_cells.preflight(journey)
        journey.make_own(fault_shapes.PREFLIGHT)
    journey.steps(direct.prepare)
    journey.enter("controllers")
    _provision(journey, again=again)
    journey.enter("first roll")
    _first_roll(journey, again=again)
    journey.enter("copy")
    if again:
        fault_cells.copied(journey)
    else:
        fault_cells.clock_jumps(journey, journey.cluster.plan.brokers[0], 600, "copied")
    journey.steps(direct.copy)
    journey.enter("dual-write, brokers on ZooKeeper")
    _dual_write(journey, on_kraft=False)
    journey.enter("second roll")
    _majority(journey, BrokerMode.KRAFT)


def second_roll(journey: Journey) -> None:
    journey.enter("second roll")
    disk = journey.cluster.plan.brokers[-1]
    again = journey.first_time
    if again:
        fault_cells.second_roll(journey)

    def through() -> str:
        node, target = journey.to_roll(BrokerMode.KRAFT), BrokerMode.KRAFT
        starts = {journey.cluster.plan.brokers[node].name: 1}
        return journey.through("roll", _OTHER_ROLL_POINTS, starts=starts, node=node, target=target)

    if again:
        journey.cell("tool killed in the restart to kraft", "resumes", through, proven=(EXACTLY,))
    else:
        fault_cells.restarted_broker_killed(journey, "roll", BrokerMode.KRAFT)
        fault_cells.under_delay(journey, BrokerMode.KRAFT, proxy.slow(30_000))
    journey.steps(direct.roll, BrokerMode.KRAFT)
    journey.enter("dual-write, brokers on KRaft")
    _dual_write(journey, on_kraft=True)
    if again:
        fault_cells.soak(journey)
    else:
        fault_cells.soak_with_disks(journey, disk, journey.cluster.plan.controllers[-1])


def roll_back(journey: Journey) -> None:
    """To ZooKeeper, in the order of `core.migration.plan.ROLLBACK`; those of its steps that change something are killed, but for those that
    restore a flag (nothing to do here), stop a controller and elect.
    """
    journey.enter("rollback")
    plan = journey.cluster.plan
    first, *others = journey.shuffled(plan.brokers)
    for node in plan.controllers:
        journey.steps(lambda context, node=node: direct.step(context, "restore flag", node=node.id))
    # what it stopped is started, and another failover made: two controllers
    journey.resumes("tool killed in the failover", "controller failover", ("stopped", "started"), starts=2)
    journey.series("controller failover", [troubles.active_stopped(journey)])
    journey.steps(lambda context: direct.step(context, "controller failover"))
    target = BrokerMode.MIGRATION
    name = f"tool killed in the restart back to {target}"
    journey.resumes(name, "roll back broker", _ROLL_POINTS, starts={first.name: 1}, node=first.id, target=target)
    journey.steps(lambda context: direct.step(context, "roll back broker", node=first.id, target=target))
    name = "another broker SIGKILLed"
    held = partial(journey.holds, "roll back broker", name, dead(plan, first), node=others[0].id, target=target)
    journey.cell(name, "holds", held, proven=(HELD,))
    fault_cells.back_to_migration(journey, others[1])
    for node in plan.brokers:
        journey.steps(lambda context, node=node: direct.step(context, "roll back broker", node=node.id, target=target))
    fault_cells.controllers_keep_running(journey)
    killed_at = ("states raised", "handing over", "handed over")  # the last with its answer lost
    name = "tool killed around the handover's transactions"
    journey.resumes(name, "handover", killed_at, starts=0, controllers=False)
    journey.steps(lambda context: direct.step(context, "handover"))
    fault_cells.new_controller(journey)
    for node in plan.controllers:
        name = f"tool killed, directory of {node.name}"
        journey.resumes(name, "wipe", ("wiped",), starts=0, controllers=False, node=node.id)
        journey.steps(lambda context, node=node: direct.step(context, "wipe", node=node.id))
    fault_cells.back_to_zookeeper(journey)
    fault_cells.restarted_broker_killed(journey, "roll back broker", BrokerMode.ZOOKEEPER, controllers=False)
    journey.make_own(fault_shapes.LAST_OF_ROLLBACK)
    journey.steps(run_plan, dict(split_into_stages(ROLLBACK))["to_zookeeper"][:1])
    fault_cells.rolled_back(journey)
    journey.steps(lambda context: direct.step(context, "rolled back"))
    if troubles.data(plan.brokers[-1]).is_mount():  # disks are permitted; the directory that is wiped could not be one
        troubles.data(plan.controllers[-1]).mkdir(parents=True, exist_ok=True)
        journey.ending.enter_context(disks.on_a_disk(troubles.data(plan.controllers[-1]), _DISK_MB))


def finalize(journey: Journey) -> None:
    journey.enter("finalization")
    fault_cells.finalization(journey)
    with linked.context(journey.cluster, "looking", acting=False) as context:
        view = context.observer.observe(Fields.CONTROLLERS | Fields.QUORUM)
    active = view.quorum.leader_id if view.quorum else -1
    left = [node for node in journey.cluster.plan.controllers if view.controllers[node.id].migration_flag]
    for node, points in zip(sorted(left, key=lambda node: node.id == active), cycle(_FINAL_POINTS), strict=False):
        journey.resumes(f"tool killed, {node.name}", "finalize", points, starts={node.name: 1}, node=node.id)
    journey.steps(direct.finalize)


PARTS = (forward, second_roll, roll_back, forward, second_roll, finalize)


@contextmanager
def breakable(rehearsal: Rehearsal, seed: int, only: str, own: Mapping[str, Callable[[Journey], None]]) -> Iterator[Journey]:
    """The cluster behind its links, ZooKeeper's log and the last broker's data on small disks of their own where that is permitted.

    `own`: cells, by their place, of this shape alone.
    """
    rehearsal.up()
    cluster = rehearsal.cluster
    with links_of(cluster.plan) as links, ExitStack() as stack:
        journey = Journey(cluster, links, tuple(group.name for group in rehearsal.groups), seed, only, own=own)
        cluster.down()
        put_between(cluster, links)
        reason = disks.why_not(rehearsal.folder / "disk")
        if reason:
            journey.skipped.append(f"full disks: {reason}")
        else:
            for folder in (*cluster.log_dirs_of(cluster.plan.brokers[-1]), cluster.plan.zookeeper_folder / "transactions"):
                stack.enter_context(disks.on_a_disk(folder, _DISK_MB))
        if no_clock := clocks.why_not():
            journey.skipped.append(f"clocks: {no_clock}")
        else:
            for node in (cluster.plan.brokers[0], cluster.plan.controllers[0]):
                clocks.give_own(of(node).folder)
        journey.ending = stack.enter_context(ExitStack())
        stack.callback(rehearsal.close)
        cluster.up()
        if problem := journey.whole(start=False):
            raise Failed(f"the cluster did not come up behind its links: {problem}")
        yield journey


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="build/faults, or build/faults/SHAPE")
    shapes = fault_shapes.SHAPES
    parser.add_argument("--shape", choices=tuple(shapes), default="usual", help="of the cluster (default: %(default)s)")
    parser.add_argument(
        "--parts", type=int, default=len(PARTS), help="how many of the journey's parts (default: all, %(default)s)"
    )
    parser.add_argument(
        "--only", default="", help="cells whose 'phase: fault' matches this regular expression; the journey stays"
    )
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(10_000), help="chooses the nodes that the faults hit (default: any)"
    )
    given = parser.parse_args()
    chosen = shapes[given.shape]
    if missing := chosen.find_missing():
        sys.exit(f"--shape {given.shape} needs {missing}")
    folder: Path = given.dir or Path("build/faults") / ("" if given.shape == "usual" else given.shape)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    policy = {"min_soak": "3s", "canary_bake": "0s"}
    rehearsal = Rehearsal(folder / "run", chosen.shape, TOPICS, GROUPS, rate=200.0, producers=1, policy=policy)
    print(f"seed {given.seed}", flush=True)
    with closing(rehearsal), breakable(rehearsal, given.seed, given.only, chosen.cells) as journey:
        rehearsal.load()
        try:
            for part in PARTS[: given.parts]:
                part(journey)
                judge_sides(journey, rehearsal)
                journey.first_time = part is not roll_back and journey.first_time
        finally:
            _save(folder, journey, {})
        account = rehearsal.account()
        _save(folder, journey, account.summary())
    print(folder / "summary.json")
    return ended(journey.cells, account)


def judge_sides(journey: Journey, rehearsal: Rehearsal) -> None:
    """The cell of no fault at all: the two sides are equal, for what shares no line with kmigrate."""
    if rehearsal.beside is None:
        raise ValueError("the load never ran")
    kafka = rehearsal.beside.kafka

    def made() -> str:
        found = judge_equal(journey.cluster, kafka)
        assert found.is_good, f"{found.problems} {found.doubts}"
        return "equal"

    journey.cell("none: the judge compares both sides", "equal", made, controllers=False, proven=(JUDGED,))


def _save(folder: Path, journey: Journey, ledger: Mapping[str, Any]) -> None:
    """What is known so far, so that a journey that breaks off leaves its cells."""
    keys = (
        "verdict",
        "acked",
        *NOTHING_OF,
        "complete",
        "send_failures",
        "longest_stall_ms",
        "longest_delivery_gap_ms",
        "judge",
        "failures",
    )
    known = {key: ledger[key] for key in keys if key in ledger}
    save(folder, journey.cells, {"seed": journey.seed, "skipped": journey.skipped, **known})


if __name__ == "__main__":
    sys.exit(main())
