"""A cluster on machines of their own on its way through a migration, by the DAGs of a real Airflow under load; and what happens to it."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from benchmarks.airflow_ui import serving
from benchmarks.rehearsal import Rehearsal
from tests.kit.fleet import FILES, UNITS, Fleet
from tests.kit.load import TopicPlan
from tests.kit.localcluster.plan import Shape
from tests.kit.machines import Machine
from tests.kit.workload import GroupPlan
from tests.machines.airflow_machine import AirflowMachine
from tests.system.airflow_faults import SETTINGS, Due, Trial
from tests.waiting import beside, wait_until

SOAK_S = 90
TOPICS = (TopicPlan("orders", 12), TopicPlan("payments", 12))
_GROUPS = (GroupPlan("billing", 2),)
_POLL_S = 0.02


@dataclass
class Downs:
    """For how long each broker refused connections, seen from outside: (broker, epoch seconds of the beginning, seconds)."""

    brokers: tuple[NodeSpec, ...]
    seen: list[tuple[int, float, float]] = field(default_factory=list)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for node in self.brokers:
                stack.enter_context(beside(partial(self._watch, node)))
            yield

    def _watch(self, node: NodeSpec, over: threading.Event) -> None:
        since = 0.0
        while not over.wait(_POLL_S):
            answers = listens(node)
            if not answers and not since:
                since = time.time()
            elif answers and since:
                self.seen.append((node.id, since, time.time() - since))
                since = 0.0

    def of(self, broker: int, after: float) -> float:
        """Seconds of the broker's first time down after this moment."""
        return next(seconds for node, began, seconds in self.seen if node == broker and began >= after)


def listens(node: NodeSpec) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((node.host, node.port), 1.0):
        return True
    return False


@dataclass
class FleetTrial(Trial):
    """A fleet, its Airflow and its load. `hung`: the last broker that was stopped with SIGSTOP in its stop."""

    hung: NodeSpec | None = None

    @property
    def fleet(self) -> Fleet:
        fleet = self.rehearsal.cluster
        assert isinstance(fleet, Fleet)
        return fleet

    def acting(self) -> NodeSpec:
        """The node of the last act, such as `broker 1 to migration`."""
        step = [line["step"] for line in self.journal if line["kind"] == "act"][-1]
        return self.fleet.node(" ".join(step.split()[:2]))

    def machine(self) -> Machine:
        """The machine of the node that is acted on."""
        return self.fleet.machine(self.acting())

    def stopped(self, made: Callable[[], object]) -> Callable[[], str]:
        """Do this as soon as the broker that is restarted refuses connections."""

        def wait() -> str:
            node = self.acting()
            wait_until(lambda: not listens(node), f"{node.name} stops", 120)
            made()
            return ""

        return wait

    def cut_power(self) -> None:
        """Of the machine of the broker that is restarted; a person boots it ten seconds later."""
        machine = self.machine()
        machine.cut_power()
        time.sleep(10)
        machine.boot()

    def hang_in_its_stop(self) -> str:
        """The broker that is restarted, once systemd has asked it to stop. A signal before that would be undone by systemd's SIGCONT."""
        node = self.acting()
        wait_until(lambda: state_of(self.machine(), node.role) == "deactivating", f"{node.name} is asked to stop", 60)
        self.machine().run("systemctl", "kill", "--signal=STOP", UNITS[node.role])
        self.hung = node
        return ""

    def hang_ssh(self, seconds: float) -> None:
        """A machine whose sshd answers nothing for so long, as behind a firewall that drops."""
        machine = self.machine()
        assert machine.signal("sshd", signal.SIGSTOP)
        time.sleep(seconds)
        machine.signal("sshd", signal.SIGCONT)

    def properties(self, node: NodeSpec) -> Path:
        """The node's file, as root of its machine sees it."""
        return self.fleet.machine(node).path(FILES[node.role])

    def log_of(self, task: str) -> str:
        """What a task of any run has logged so far, all its tries."""
        return "".join(path.read_text() for path in (self.airflow.home / "logs").rglob(f"*/task_id={task}/*.log"))

    def watch_says(self, text: str, timeout: float = 120.0) -> str:
        """All that the watch has logged, once it has said this; it is paused again then."""
        dag = f"dags/kmigrate_watch__{self.fleet.plan.shape.name}"
        self.asked("PATCH", dag, {"is_paused": False})
        wait_until(lambda: text in self.log_of("watch"), f"the watch says {text}", timeout)
        self.asked("PATCH", dag, {"is_paused": True})
        for run in self.asked("GET", f"{dag}/dagRuns?state=running")["dag_runs"]:
            self.asked("PATCH", f"{dag}/dagRuns/{run['dag_run_id']}", {"state": "failed"})
        return self.log_of("watch")


def restarted(step: str, nth: int) -> Due:
    """At the first act on the `nth` node of a pass."""
    return lambda seen: len({one["step"] for one in seen.acts if step in one["step"]}) >= nth


def waits_at(task: str, tasks: Mapping[str, str]) -> bool:
    """Whether this task of a run waits for time or for an answer."""
    return tasks.get(task) in {"deferred", "awaiting_input"}


def state_of(machine: Machine, role: NodeRole) -> str:
    """The state of this role's unit, as systemd says it."""
    return machine.run("systemctl", "is-active", UNITS[role], fails=True).strip()


def runs(machine: Machine, role: NodeRole) -> bool:
    """Whether systemd says that the unit of this role is active."""
    return state_of(machine, role) == "active"


@contextlib.contextmanager
def under_way(folder: Path, name: str = "fleet", ahead: str = "") -> Iterator[FleetTrial]:
    """Machines, Airflow and load, until the block ends. `ahead`: as of `Fleet`."""
    with machines_up(folder, name, partial(Fleet, ahead=ahead)) as rehearsal, under_load(rehearsal) as trial:
        yield trial


@contextlib.contextmanager
def machines_up(folder: Path, name: str, cluster_type: Callable[[Path], Fleet]) -> Iterator[Rehearsal]:
    """Machines with a cluster that serves, until the block ends."""
    policy = {"min_soak": f"{SOAK_S}s", "canary_bake": "0s"}
    shape = Shape(name=name, chroot="/kafka", zookeepers=3)
    rehearsal = Rehearsal(folder, shape, TOPICS, _GROUPS, 100.0, producers=1, policy=policy, cluster_type=cluster_type)
    with closing(rehearsal):
        rehearsal.up()
        yield rehearsal


@contextlib.contextmanager
def under_load(rehearsal: Rehearsal) -> Iterator[FleetTrial]:
    """An Airflow on a machine of its own, and load, until the block ends."""
    fleet = rehearsal.cluster
    assert isinstance(fleet, Fleet)
    airflow = AirflowMachine(rehearsal.folder / "airflow", fleet, SETTINGS)
    with serving(airflow, rehearsal.dag_id):
        rehearsal.load()
        yield FleetTrial(rehearsal, airflow)
