"""`make faults`: one real cluster under load goes forward, back, forward again and is finalized, and meets a fault at every turn.

Each cell of the matrix is a phase and a fault, with what the tool is required to do: *goes on* (as if nothing had happened), *holds*
(restarts nothing while the fault lasts, and goes on afterwards) or *resumes* (killed and run again, it ends where it would have ended).
After each cell every partition has a leader and its whole ISR; at the end of the journey the clients' ledger says what was lost, stored
twice or out of order. Leaves `summary.json`: the cells with what was seen, and the ledger.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from airflow_provider_kmigrate.clients.hosts.process import NodeProcess
from airflow_provider_kmigrate.consumer.kafka_calls import TopicPlan
from airflow_provider_kmigrate.consumer.workload.plan import GroupPlan
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Look, ProcessState
from airflow_provider_kmigrate.localcluster.plan import Shape
from airflow_provider_kmigrate.steps.rollback import bring_back_the_rest, stop_controllers
from benchmarks import direct
from benchmarks.rehearsal import Rehearsal, rehearsing
from tests.system import evidence
from tests.system.test_killed_tool import Tool, run

TOPICS = (TopicPlan("orders", 18), TopicPlan("payments", 12))
GROUPS = (GroupPlan("billing", 2),)
KILLED = -signal.SIGKILL
_PROVISION_POINTS = ("file put", "formatted", "started", "waiting")
_FINAL_POINTS = ("file put", "stopped", "started")
_ROLL_POINTS = ("file put", "stopped", "started")  # killed while a broker stops, the next run finds it stopped: nothing is left
_HOLD_S = 8.0
_WHOLE_S, _STEP_S = 120.0, 300.0


@dataclass(frozen=True)
class Cell:
    """One cell as it went. `passed`: what was required was seen, and the cluster was whole afterwards."""

    phase: str
    fault: str
    required: str
    seen: str
    seconds: float
    passed: bool
    invariants: str


@dataclass
class Journey:
    """The cluster, and the cells so far."""

    rehearsal: Rehearsal
    phase: str = "ZooKeeper"
    cells: list[Cell] = field(default_factory=list)

    def cell(self, fault: str, required: str, made: Callable[[], str], *, controllers: bool = True) -> None:
        """Make the fault, and note what the tool did; a cell that fails is noted, and the journey goes on.

        Without `controllers` nobody starts what is down: in the middle of a way back they must stay down.
        """
        began = time.monotonic()
        try:
            seen, passed = made(), True
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what was seen
            seen, passed = f"{type(error).__name__}: {str(error)[-400:]}", False
        invariants = self.whole(controllers)
        cell = Cell(
            self.phase, fault, required, seen, round(time.monotonic() - began, 1), passed and not invariants, invariants or "held"
        )
        self.cells.append(cell)
        print(f"{'ok  ' if cell.passed else 'FAIL'} {cell.phase}: {fault}: {seen} ({cell.seconds} s) {invariants}", flush=True)

    def whole(self, start: bool) -> str:
        """What is wrong with the cluster after `_WHOLE_S` seconds at most; empty where nothing is."""
        if start:
            self.rehearsal.cluster.up()  # whatever the fault took
        deadline, problem = time.monotonic() + _WHOLE_S, "?"
        while problem and time.monotonic() < deadline:
            problem = sick(self.look())
            time.sleep(0.5)
        return problem

    def look(self, what: Look = evidence.EVERYTHING) -> ClusterView:
        with direct.world(self.rehearsal.cluster, "looking", acting=False) as world:
            return world.observer.look(what)

    def through(self, kind: str, points: Sequence[str], **arguments: object) -> str:
        """Run a step in processes that are killed at these points in turn, and once more to its end."""
        kills: list[str] = []
        for point in points:
            code, output = run(self.rehearsal.cluster, kind, arguments, "--at", point, timeout=_STEP_S)
            if code == 0:
                return told(kills)
            if code != KILLED:
                raise AssertionError(f"killed at {kills}, then: {output}")
            kills.append(point)
        code, output = run(self.rehearsal.cluster, kind, arguments, timeout=_STEP_S)
        if code != 0:
            raise AssertionError(f"killed at {kills}, then: {output}")
        return told(kills)

    def holds(self, kind: str, fault: AbstractContextManager[None], after: float = 0.0, **arguments: object) -> str:
        """From `after` seconds on, while the fault lasts, the step restarts nothing, and afterwards it comes to its end."""
        cluster = self.rehearsal.cluster
        before = self.starts()
        with Tool(cluster, kind, dict(arguments)) as tool:
            time.sleep(after)
            with fault:
                time.sleep(_HOLD_S)
                meanwhile = {name for name, count in self.starts().items() if count != before[name]}
            cluster.up()
            code, output = tool.ends(_STEP_S)
        if meanwhile or code != 0:
            raise AssertionError(f"restarted under the fault: {sorted(meanwhile)}; exit code {code}: {output}")
        return f"held for {_HOLD_S:g} s, then done"

    def starts(self) -> dict[str, int]:
        plan = self.rehearsal.cluster.plan
        begun = [node for node in (*plan.brokers, *plan.controllers) if NodeProcess(Path(node.hosts.state)).log.exists()]
        return {node.name: evidence.starts(node) for node in begun}

    def to_roll(self, target: BrokerMode) -> int:
        with direct.world(self.rehearsal.cluster, "looking", acting=False) as world:
            found = direct.to_roll(world, target)
        if found is None:
            raise AssertionError(f"every broker is in mode {target} already")
        return found

    def steps(self, made: Callable[..., object], *arguments: object) -> None:
        with direct.world(self.rehearsal.cluster) as world:
            made(world, *arguments)


def told(kills: Sequence[str]) -> str:
    return f"resumed after {len(kills)} kills ({', '.join(kills)})" if kills else "done, no point to be killed at"


def sick(view: ClusterView) -> str:
    """What a cluster between two cells must not be."""
    partitions = view.partitions or ()
    leaderless = sum(partition.leader < 0 for partition in partitions)
    short = sum(partition.under_replicated for partition in partitions)
    silent = [broker.id for broker in view.brokers.values() if broker.mode is None]
    silent += [c.id for c in view.controllers.values() if c.process.state is ProcessState.RUNNING and not c.answers]
    found = {
        "no partitions were read": not partitions,
        f"{leaderless} leaderless": leaderless,
        f"{short} with a short ISR": short,
    }
    return ", ".join([text for text, wrong in found.items() if wrong] + [f"{silent} silent"] * bool(silent))


@contextmanager
def paused(process: NodeProcess) -> Iterator[None]:
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


@contextmanager
def killed(*nodes: NodeSpec) -> Iterator[None]:
    """Dead while it lasts; whoever comes afterwards starts them."""
    for node in nodes:
        process = of(node)
        process.wait_gone(process.signal(signal.SIGKILL), 30.0)
    yield


def of(node: NodeSpec) -> NodeProcess:
    return NodeProcess(Path(node.hosts.state))


def _provision(journey: Journey) -> None:
    for node in journey.rehearsal.cluster.plan.controllers:
        journey.cell(
            f"tool killed, {node.name}", "resumes", partial(journey.through, "provision", _PROVISION_POINTS, node=node.id)
        )
    journey.steps(lambda world: direct.step(world, "controllers ready"))


def _roll(journey: Journey, target: BrokerMode) -> None:
    """The first broker's step is killed everywhere, the second holds while another is paused, the third while another is dead."""
    brokers = journey.rehearsal.cluster.plan.brokers

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

    journey.cell(f"tool killed in the restart to {target}", "resumes", through)
    journey.cell("another broker SIGSTOPped", "holds", paused_other)
    journey.cell("another broker SIGKILLed", "holds", killed_other)
    journey.steps(direct.roll, target)


def _dual_write(journey: Journey, *, soaking: bool) -> None:
    plan = journey.rehearsal.cluster.plan

    def leader() -> NodeSpec:
        quorum = journey.look(Look.QUORUM | Look.CONTROLLERS).quorum
        if quorum is None:
            raise AssertionError("no controller leads")
        return next(node for node in plan.controllers if node.id == quorum.leader_id)

    def one_killed() -> str:
        node = leader()
        with killed(node), direct.world(journey.rehearsal.cluster) as world:
            direct.step(world, "copied")
        return f"{node.name} died, its successor writes ZooKeeper"

    def zookeeper_paused() -> str:
        return journey.holds("soak", paused(NodeProcess(plan.zookeeper_folder)), after=5.0, seconds=15.0)

    journey.cell("active controller SIGKILLed", "goes on", one_killed)
    if soaking:
        journey.cell("ZooKeeper SIGSTOPped in the soak", "holds", zookeeper_paused)


def _majority(journey: Journey, target: BrokerMode) -> None:
    lost = journey.rehearsal.cluster.plan.controllers[:2]

    def made() -> str:
        return journey.holds("roll", killed(*lost), node=journey.to_roll(target), target=target)

    journey.cell("two of three controllers SIGKILLed", "holds", made)


def forward(journey: Journey) -> None:
    """To full dual-write."""
    journey.phase = "ZooKeeper"
    journey.steps(direct.prepare)
    journey.phase = "controllers"
    _provision(journey)
    journey.phase = "first roll"
    _roll(journey, BrokerMode.MIGRATION)
    journey.steps(direct.copy)
    journey.phase = "dual-write, brokers on ZooKeeper"
    _dual_write(journey, soaking=False)
    journey.phase = "second roll"
    _majority(journey, BrokerMode.KRAFT)


def second_roll(journey: Journey) -> None:
    journey.phase = "second roll"

    def through() -> str:
        return journey.through("roll", _ROLL_POINTS, node=journey.to_roll(BrokerMode.KRAFT), target=BrokerMode.KRAFT)

    journey.cell("tool killed in the restart to kraft", "resumes", through)
    journey.steps(direct.roll, BrokerMode.KRAFT)
    journey.phase = "dual-write, brokers on KRaft"
    _dual_write(journey, soaking=True)


def back(journey: Journey) -> None:
    """To ZooKeeper, in the order of `steps.rollback.run_rollback`; every kind of its steps is killed once."""
    journey.phase = "rollback"
    plan = journey.rehearsal.cluster.plan
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
    for node in plan.brokers:
        journey.steps(lambda world, node=node: direct.step(world, "back", node=node.id, target=target))
    journey.steps(stop_controllers)
    journey.cell(
        "tool killed in the hand-over", "resumes", partial(journey.through, "give back", ("committed",)), controllers=False
    )
    journey.steps(lambda world: direct.step(world, "zookeeper leads"))
    for node in plan.controllers:
        wiped = partial(journey.through, "wipe", ("wiped",), node=node.id)
        journey.cell(f"tool killed, directory of {node.name}", "resumes", wiped, controllers=False)
    journey.steps(bring_back_the_rest)
    journey.steps(lambda world: direct.step(world, "rolled back"))


def finalize(journey: Journey) -> None:
    journey.phase = "finalization"
    with direct.world(journey.rehearsal.cluster, "looking", acting=False) as world:
        view = world.observer.look(Look.CONTROLLERS | Look.QUORUM)
    active = view.quorum.leader_id if view.quorum else -1
    for node in sorted(journey.rehearsal.cluster.plan.controllers, key=lambda node: node.id == active):
        journey.cell(f"tool killed, {node.name}", "resumes", partial(journey.through, "finalize", _FINAL_POINTS, node=node.id))
    journey.steps(lambda world: direct.step(world, "finalized"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/faults"))
    folder = parser.parse_args().dir
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    shape, policy = Shape(name="faults"), {"min_soak": "3s", "canary_bake": "0s"}
    rehearsal = Rehearsal(folder / "run", shape, TOPICS, GROUPS, rate=200.0, producers=1, policy=policy)
    with rehearsing(rehearsal):
        rehearsal.up()
        workload, journey = rehearsal.load(), Journey(rehearsal)
        for leg in (forward, second_roll, back, forward, second_roll, finalize):
            leg(journey)
        workload.stop()
        ledger = workload.summary()
    keys = ("verdict", "acked", "lost", "duplicated", "reordered", "send_failures", "longest_stall_ms", "longest_delivery_gap_ms")
    summary = {"cells": [asdict(cell) for cell in journey.cells], **{key: ledger[key] for key in keys}}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1))
    failed = [cell for cell in journey.cells if not cell.passed]
    print(
        f"{len(journey.cells)} cells, {len(failed)} failed; {ledger['acked']} acked, {ledger['lost']} lost; {folder / 'summary.json'}"
    )
    return 1 if failed or ledger["lost"] or ledger["duplicated"] or ledger["reordered"] else 0


if __name__ == "__main__":
    sys.exit(main())
