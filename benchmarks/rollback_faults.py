"""Power cuts of one machine, of two and of a rack at each step of a rollback's handover and of the finalization, on machines of their own.

`python -m benchmarks rollback_faults [CELL ...]`, or `make bench BENCH=rollback_faults`; the cells that are named, in that order, or all of
them. Root, as `make machines`. The figures are written after each cell, so a run that is cut short keeps those that it has. One fleet is migrated to full dual-write once, and rolled back to the handover; each cell begins from a snapshot of its
disks, before the step that it hits. A cell's rollback or finalization is run by a process that tries again as the DAG's tasks do, under
load; nobody else does anything but return the power.

`longest_gap_s`: without an acknowledgement of one partition, by a producer with acks=all and by Kafka's own VerifiableProducer, whichever was
longer; what it retried is in it. Time in which more machines of its replicas had no power than min.insync.replicas allow does not count.
`failures`: why an account, of the ledger or of the judge, does not say
that nothing was lost and both sides are equal. `longest_without_controller_s`: neither a leader of the quorum nor a ZooKeeper controller was seen. `without_person`: how many cells came to
their end, with the cluster whole.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.ledger import balance
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, TimedOut
from benchmarks import direct
from benchmarks.power_cuts import Cut, Power, Scene, longest_gap
from benchmarks.rehearsal import ROOT, Rehearsal
from tests.kit.fleet import Fleet
from tests.kit.judge import TOPIC, Unfit
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.plan import Shape
from tests.kit.machines import missing
from tests.kit.verifiable import events_of
from tests.kit.workload import GroupPlan

MUST_BE_ZERO = ("lost", "needed_person", "failures")
TOPICS = (TopicPlan("orders", 12), TopicPlan("payments", 12))
_FOREIGN = TopicPlan(TOPIC, 12)
_GROUPS = (GroupPlan("billing", 2),)
_RATE, _FOREIGN_RATE = 240.0, 100
_MOST_OFF = 1  # of three replicas with min.insync.replicas 2
_SOAK, _HANDOVER = "soak", "handover"  # snapshots
_ROLLBACK, _FROM_HANDOVER, _FINALIZATION = "rollback", "rollback from the handover", "finalization"
_FAULT_S = 300.0  # until the instant of the fault has come
_END_S = 900.0
_WHOLE_S = 180.0
_SETTLED_S = 5.0

Due = Callable[[Scene], object]


@dataclass(frozen=True, slots=True)
class Fault:
    """A cell: the power `cuts` at the instant at which it is `due`. `step`: where that is, in words. `part`: what runs, of `plan_worker`."""

    name: str
    step: str
    due: Due
    cuts: tuple[Cut, ...]
    part: str = _FROM_HANDOVER

    @property
    def begins_in(self) -> str:
        """The snapshot."""
        return _HANDOVER if self.part == _FROM_HANDOVER else _SOAK

    @property
    def ends_in(self) -> Phase:
        """The phase in which the cluster must be in the end."""
        return Phase.FINALIZED if self.part == _FINALIZATION else Phase.ZOOKEEPER


def _machines(*nodes: NodeSpec) -> list[str]:
    return sorted({node.host for node in nodes})


def broker(number: int) -> Callable[[Scene], list[str]]:
    """The machine of a broker; that of broker 2 runs nothing else."""
    return lambda scene: _machines(scene.plan.brokers[number])


def two_brokers(scene: Scene) -> list[str]:
    """The machines of brokers 1 and 2, with a controller on the first one."""
    return _machines(*scene.plan.brokers[1:3])


def rack(scene: Scene) -> list[str]:
    """A broker's machine, a controller's and a ZooKeeper's."""
    return [*_machines(scene.plan.brokers[2], scene.plan.controllers[2]), scene.plan.zookeeper_addresses()[2]]


def last_controller(scene: Scene) -> list[str]:
    """The machine of the controller that is left."""
    return _machines(*(scene.controllers_up() or scene.controllers_down())[-1:])


def last_stopped(scene: Scene) -> list[str]:
    """The machine of the controller that went down last."""
    return _machines(scene.controllers_down()[-1])


def last_down(scene: Scene) -> list[str]:
    """The machine of the broker that went down last."""
    return _machines(scene.brokers_down()[-1])


def zookeeper_controller(scene: Scene) -> list[str]:
    """The machine of the broker that is ZooKeeper's controller."""
    return _machines(scene.plan.brokers[scene.zookeeper_leads or 0])


def wiped(scene: Scene) -> list[str]:
    """The machine of a controller whose directory was set aside."""
    return _machines(scene.wiped()[0])


def controllers_left(count: int) -> Due:
    """So many controllers listen, and all brokers are in migration mode."""
    return lambda scene: scene.in_migration_mode() and len(scene.controllers_up()) <= count


def _stops_last(scene: Scene) -> bool:
    left = scene.controllers_up()
    return scene.in_migration_mode() and (not left or (len(left) == 1 and scene.is_stopping(left[0])))


def brokers_stopped(count: int) -> Due:
    """A broker went down for the so manieth time."""
    return lambda scene: len(scene.brokers_down()) >= count


def controllers_stopped(count: int) -> Due:
    """A controller went down for the so manieth time."""
    return lambda scene: len(scene.controllers_down()) >= count


def _finalization(name: str, step: str, count: int, *cuts: Cut) -> Fault:
    return Fault(name, step, controllers_stopped(count), cuts, _FINALIZATION)


FAULTS = (
    Fault("failover_controller", "controller failover", controllers_stopped(1), (Cut(last_stopped, 30),), _ROLLBACK),
    Fault("failover_rack", "controller failover", controllers_stopped(1), (Cut(rack, 45),), _ROLLBACK),
    Fault("to_migration_broker", "to migration mode, second broker", brokers_stopped(2), (Cut(last_down, 30),), _ROLLBACK),
    Fault("first_stop_broker", "after the first controller's stop", controllers_left(2), (Cut(broker(2), 20),)),
    Fault("second_stop_broker", "after the second controller's stop", controllers_left(1), (Cut(broker(2), 20),)),
    Fault("second_stop_broker_late", "after the second controller's stop", controllers_left(1), (Cut(broker(2), 65),)),
    Fault(
        "second_stop_broker_twice",
        "after the second controller's stop",
        controllers_left(1),
        (Cut(broker(2), 20), Cut(broker(2), 25, after=27)),
    ),
    Fault("second_stop_controller", "after the second controller's stop", controllers_left(1), (Cut(last_controller, 65),)),
    Fault(
        "second_stop_two",
        "after the second controller's stop",
        controllers_left(1),
        (Cut(last_controller, 65), Cut(broker(2), 45, after=3)),
    ),
    Fault("second_stop_rack", "after the second controller's stop", controllers_left(1), (Cut(rack, 45),)),
    Fault("second_stop_two_brokers", "after the second controller's stop", controllers_left(1), (Cut(two_brokers, 30),)),
    Fault("last_stop_broker", "during the last controller's stop", _stops_last, (Cut(broker(2), 40),)),
    Fault("stopped_rack", "between the last stop and the transaction", controllers_left(0), (Cut(rack, 30),)),
    Fault("handed_over_broker", "after the transaction", lambda scene: not scene.migration, (Cut(broker(2), 20),)),
    Fault("handed_over_two_brokers", "after the transaction", lambda scene: not scene.migration, (Cut(two_brokers, 30),)),
    Fault(
        "zookeeper_leads_controller",
        "ZooKeeper's controller leads",
        lambda scene: scene.zookeeper_leads is not None,
        (Cut(zookeeper_controller, 25),),
    ),
    Fault("wipe_controller", "wipe", lambda scene: not scene.migration and scene.wiped(), (Cut(wiped, 20),)),
    Fault("to_zookeeper_first", "to ZooKeeper mode, first broker", brokers_stopped(1), (Cut(last_down, 30),)),
    Fault("to_zookeeper_second_rack", "to ZooKeeper mode, second broker", brokers_stopped(2), (Cut(rack, 45),)),
    _finalization("finalize_first", "finalization, first controller", 1, Cut(last_stopped, 20)),
    _finalization("finalize_second_rack", "finalization, second controller", 2, Cut(rack, 45)),
    _finalization("finalize_active", "finalization, active controller", 3, Cut(last_stopped, 30)),
    _finalization("finalize_active_two", "finalization, active controller", 3, Cut(last_stopped, 30), Cut(broker(2), 40)),
)  # fmt: skip


@dataclass
class Cell:
    """What came of a fault. `wrong`: why it does not count as come to its end; empty if it does."""

    step: str
    machines: list[list[str]] = field(default_factory=list)
    off_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    retried: list[str] = field(default_factory=list)
    gap_s: float = 0.0
    gap_partition: str = ""
    gap_after_fault_s: float = 0.0
    foreign_gap_s: float = 0.0
    without_controller_s: float = 0.0
    lost: int = 0
    foreign_lost: int = 0
    acked: int = 0
    foreign_acked: int = 0
    failures: list[str] = field(default_factory=list)
    wrong: str = ""


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The figures of the cells that are named; of all if none is."""
    if missing():
        sys.exit(missing())
    if unknown := set(arguments) - {fault.name for fault in FAULTS}:
        sys.exit(f"There is no cell {', '.join(sorted(unknown))}; there are: {', '.join(fault.name for fault in FAULTS)}")
    folder = build.resolve() / "rollback_faults"
    shutil.rmtree(folder, ignore_errors=True)
    policy = {"min_soak": "0s", "canary_bake": "0s"}
    shape = Shape("faults", chroot="/kafka", zookeepers=3)
    rehearsal = Rehearsal(folder, shape, TOPICS, _GROUPS, _RATE, 1, policy, foreign=(_FOREIGN_RATE, 2), cluster_type=Fleet)
    with closing(rehearsal):
        trial = _Trial(rehearsal)
        trial.prepare()
        by_name, cells = {fault.name: fault for fault in FAULTS}, dict[str, Cell]()
        for name in arguments or by_name:
            cells[name] = trial.run(by_name[name])
            atomic.replace(build / "rollback_faults.json", json.dumps(figures(cells), indent=1).encode())
    return figures(cells)


def figures(cells: dict[str, Cell]) -> dict[str, object]:
    """The sums, and every cell by its name."""
    return {
        "cells": len(cells),
        "steps": len({cell.step for cell in cells.values()}),
        "cells_of_two_machines": sum(len({name for names in cell.machines for name in names}) > 1 for cell in cells.values()),
        "without_person": sum(not cell.wrong for cell in cells.values()),
        "needed_person": sum(bool(cell.wrong) for cell in cells.values()),
        "lost": sum(cell.lost + cell.foreign_lost for cell in cells.values()),
        "failures": [f"{name}: {text}" for name, cell in cells.items() for text in cell.failures],
        "longest_gap_s": round(max(max(cell.gap_s, cell.foreign_gap_s) for cell in cells.values()), 1),
        "longest_without_controller_s": round(max(cell.without_controller_s for cell in cells.values()), 1),
        "by_cell": {name: asdict(cell) for name, cell in cells.items()},
    }


class _Trial:
    """The fleet, and what it was when every cell begins."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self._kept = rehearsal.folder / "kept"  # Airflow's files, as of each snapshot

    @property
    def fleet(self) -> Fleet:
        fleet = self.rehearsal.cluster
        assert isinstance(fleet, Fleet)
        return fleet

    @property
    def _home(self) -> Path:
        return self.rehearsal.home / "kmigrate"

    def prepare(self) -> None:
        """Snapshots of a fleet in full dual-write, and of one whose rollback comes to the handover."""
        began = time.monotonic()
        self.rehearsal.up()
        create_topics({"bootstrap.servers": self.fleet.bootstrap}, [_FOREIGN])
        self.rehearsal.forward(lambda here: direct.until(here, "before_approval"))
        self._keep(_SOAK)
        self._put_back(_SOAK)
        with self._worker("rollback to the handover", "prepared") as worker:
            if worker.wait(_END_S):
                raise Failed(f"no rollback comes to the handover: {self._log('prepared').read_text()[-1500:]}")
        self._keep(_HANDOVER)
        print(f"a fleet in full dual-write, and rolled back to the handover, after {time.monotonic() - began:.0f} s", flush=True)

    def _keep(self, name: str) -> None:
        self.fleet.snapshot(name)
        shutil.copytree(self._home, self._kept / name)

    def run(self, fault: Fault) -> Cell:
        """One cell; what goes wrong in it is in the cell."""
        print(f"{time.strftime('%T')} {fault.name}: {fault.step}", flush=True)
        cell = Cell(fault.step)
        power = Power(self.fleet)
        try:
            self._put_back(fault.begins_in)
            self.rehearsal.load(f"load-{fault.name}")
            time.sleep(_SETTLED_S)
            scene = Scene(self.fleet, power, migration_mode=fault.begins_in == _HANDOVER)
            span = self._meet(fault, scene, cell)
            self._count(cell, power, span)
        except (KMigrateError, Unfit, AssertionError, OSError, subprocess.SubprocessError) as error:
            cell.wrong = cell.wrong or f"{type(error).__name__}: {error}"
        finally:
            power.wait()
            self.rehearsal.end_load()
        print(f"{time.strftime('%T')} {fault.name}: {asdict(cell)}", flush=True)
        return cell

    def _put_back(self, name: str) -> None:
        self.fleet.restore(name)
        shutil.rmtree(self._home)
        shutil.copytree(self._kept / name, self._home)
        self.fleet.go_on()
        self._wait(lambda view: _whole(view) and view.quorum is not None, _WHOLE_S)

    def _meet(self, fault: Fault, scene: Scene, cell: Cell) -> tuple[float, float]:
        """Run the plan and cut the power; when that began and ended."""
        began = time.time()
        with scene.watched():
            self._go(fault, scene, cell)
            ended = time.time()
            cell.seconds = round(ended - began, 1)
            cell.without_controller_s = round(scene.longest_without_controller(began, ended), 1)
        return began, ended

    def _go(self, fault: Fault, scene: Scene, cell: Cell) -> None:
        log = self._log(fault.name)
        try:
            with self._worker(fault.part, fault.name) as worker:
                self._cut(fault, scene, cell, worker)
                code = worker.wait(_END_S)
            scene.power.wait()
            if code:
                raise Failed(f"a person is needed: {log.read_text()[-1500:]}")
            self._wait(lambda view: _whole(view) and position_of(view).phase is fault.ends_in, _WHOLE_S)
            time.sleep(_SETTLED_S)
        except (KMigrateError, subprocess.TimeoutExpired, AssertionError) as error:
            cell.wrong = str(error)
        finally:
            cell.retried = [line for line in log.read_text(errors="replace").splitlines() if " FAILED " in line]

    def _log(self, name: str) -> Path:
        return self.rehearsal.folder / f"{name}.log"

    @contextlib.contextmanager
    def _worker(self, part: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """The process that runs a part of a plan; it ends with the block."""
        plan = self.fleet.plan
        files = [str(path) for path in (plan.spec_path, plan.connections_path, self._home)]
        run = part.split(maxsplit=1)[0]  # all parts of a rollback are of one run
        argv = [sys.executable, "-m", "benchmarks.plan_worker", *files, run, part]
        with self._log(name).open("wb") as out:
            worker = subprocess.Popen(argv, cwd=ROOT, stdout=out, stderr=out)
        try:
            yield worker
        finally:
            worker.kill()
            worker.wait()

    def _cut(self, fault: Fault, scene: Scene, cell: Cell, worker: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _FAULT_S
        while not fault.due(scene):
            if worker.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"the instant of the fault never came: {fault.step}")
            time.sleep(0.01)
        began = time.time()
        for cut in fault.cuts:
            time.sleep(max(0.0, began + cut.after - time.time()))
            hit = cut.which(scene)
            print(f"{time.strftime('%T')}   power cut: {hit} for {cut.seconds:g} s", flush=True)
            scene.power.cut(hit, cut.seconds)
            cell.machines.append(hit)
            cell.off_s.append(cut.seconds)

    def _wait(self, holds: Callable[[ClusterView], object], seconds: float) -> None:
        fields = Fields.POSITION | Fields.PARTITIONS | Fields.QUORUM | Fields.NODES
        deadline = time.monotonic() + seconds
        with direct.context(self.fleet, "looking", acting=False) as context:
            while not holds(view := context.observer.observe(fields)):
                if time.monotonic() > deadline:
                    raise TimedOut(
                        f"not whole within {seconds:g} s: {position_of(view).phase}; {[reason.text for reason in view.unknowns]}"
                    )
                time.sleep(0.5)

    def _count(self, cell: Cell, power: Power, span: tuple[float, float]) -> None:
        excused = power.without_replicas(self.fleet.plan.brokers, _MOST_OFF)
        account, workload, foreign = self.rehearsal.account(), self.rehearsal.workload, self.rehearsal.beside
        assert workload is not None
        assert foreign is not None
        seen, events = account.ledger, list(events_of(foreign))
        theirs = balance(events)
        ours = longest_gap(workload.read_all_events().events, *span, excused)
        cell.gap_s, cell.gap_partition = round(ours.seconds, 1), ours.partition
        began = min((begin for spans in power.off.values() for begin, _ in spans), default=span[0])
        cell.gap_after_fault_s = round(ours.at - began, 1)
        cell.foreign_gap_s = round(longest_gap(events, *span, excused).seconds, 1)
        cell.lost, cell.foreign_lost = seen["lost"] + seen["unseen"], theirs.lost.count + theirs.unseen.count
        cell.acked, cell.foreign_acked = seen["acked"], theirs.acked
        cell.failures = [*account.failures, *(f"ledger of Kafka's tools: {reason}" for reason in theirs.reasons)]


def _whole(view: ClusterView) -> bool:
    """Whether every broker answers and no partition is under-replicated."""
    answers = all(each.mode is not None for each in view.brokers.values())
    return answers and bool(view.partitions) and not any(partition.is_under_replicated for partition in view.partitions or ())
