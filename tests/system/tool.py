"""One step in a process of its own, as a task would run it, with a trap that kills or suspends the process at one point of an act.

`python -m tests.system.tool FOLDER KIND ARGUMENTS [--at POINT --times N --signal NAME]`; the last line of its output is `{"refused": [codes]}`
where the step was refused (exit code 3); exit code 4: a login was refused, and the last lines say which.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.clients.brokers_admin import Admin
from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.hosts import Host
from airflow_provider_kmigrate.clients.hosts.agent import Restart
from airflow_provider_kmigrate.clients.tools import Instances, Tools
from airflow_provider_kmigrate.clients.znodes import NOTES, Delete, Operation
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.cluster_state.model import ClusterEnvironment, ClusterView, Fields, Partition
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.groups.offsets import CopyPlan
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Refused
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.run import Observing, StepContext, run_step
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import folder_of
from tests.kit.processes import NodeProcess
from tests.system import linked
from tests.waiting import wait_until

REFUSED, NOT_LET_IN = 3, 4
POINTS = (
    *("noted", "file put", "formatted", "stopping", "stopped", "started", "waiting", "observed", "wiped", "elected"),
    *("committed", "states raised", "handing over", "handed over"),
    *("switching", "switched", "copied"),
)
_LEFT = "Terminating process due to signal SIGTERM"  # the first thing that a node which got SIGTERM logs
_LOOKS = 2  # after the start, or of a run that finds its node started


@dataclass
class Trap:
    """Springs once, when `point` is reached for the `times`th time."""

    point: str
    signal: signal.Signals
    observations_left: int = -1  # until "waiting"; counted once a node was started, and from the beginning until "observed"
    times: int = 1
    lock: threading.Lock = field(default_factory=threading.Lock)  # instances are switched at once

    def reached(self, point: str) -> None:
        with self.lock:
            if not point or point != self.point:
                return
            self.times -= 1
            if self.times:
                return
            self.point = ""
        os.kill(os.getpid(), self.signal)


class TrappedHost:
    """A host whose caller may not survive."""

    def __init__(self, host: Host, trap: Trap) -> None:
        self._host, self._trap = host, trap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def put_properties(self, node: NodeSpec, text: str, token: int) -> str:
        digest = self._host.put_properties(node, text, token)
        self._trap.reached("file put")
        return digest

    def format_storage(self, node: NodeSpec, cluster_id: str, release: str, token: int) -> None:
        self._host.format_storage(node, cluster_id, release, token)
        self._trap.reached("formatted")

    def stop(self, node: NodeSpec, token: int, say: Callable[[str], object] = str, unresponsive_after: float = inf) -> float:
        stop = partial(self._host.stop, node, token, say, unresponsive_after)
        if self._trap.point == "stopping":
            self._stop_halfway(node, stop)
        seconds = stop()
        self._trap.reached("stopped")
        return seconds

    def restart(self, node: NodeSpec, how: Restart, token: int) -> float:
        def stopped(seconds: float) -> None:
            self._trap.reached("stopped")
            how.while_down(seconds)

        slow = 0.0 if self._trap.point == "stopped" else how.slow  # the node waits for a tool that is killed there
        restart = partial(self._host.restart, node, replace(how, while_down=stopped, slow=slow), token)
        if self._trap.point == "stopping":
            self._stop_halfway(node, restart)
        seconds = restart()
        self._trap.observations_left = _LOOKS
        self._trap.reached("started")
        return seconds

    def _stop_halfway(self, node: NodeSpec, stop: Callable[[], float]) -> None:
        log = NodeProcess(folder_of(node)).log
        before = log.read_bytes().count(_LEFT.encode())
        threading.Thread(target=stop, daemon=True).start()
        wait_until(lambda: log.read_bytes().count(_LEFT.encode()) > before, f"{node.name} logs its SIGTERM", 30.0)
        self._trap.reached("stopping")

    def start(self, node: NodeSpec, token: int) -> None:
        self._host.start(node, token)
        self._trap.observations_left = _LOOKS
        self._trap.reached("started")

    def wipe_storage(self, node: NodeSpec, cluster_id: str, token: int) -> None:
        self._host.wipe_storage(node, cluster_id, token)
        self._trap.reached("wiped")


class TrappedZooKeeper:
    """A ZooKeeper whose caller may not survive a transaction."""

    def __init__(self, zookeeper: ZooKeeper, trap: Trap) -> None:
        self._zookeeper, self._trap = zookeeper, trap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._zookeeper, name)

    def commit(self, operations: Sequence[Operation], *more: Any, **named: Any) -> Any:
        before, after = environment(operations)
        self._trap.reached(before)
        answer = self._zookeeper.commit(operations, *more, **named)
        self._trap.reached(after)
        self._trap.reached("committed")
        return answer


def environment(operations: Sequence[Operation]) -> tuple[str, str]:
    """The points right before a transaction and right after it, its answer lost; empty where it has none of its own.

    A rollback writes the partitions' states in transactions of their own before the one that gives the cluster to ZooKeeper: only
    what is deleted tells that one.
    """
    if any(isinstance(one, Delete) and one.path == "/controller" for one in operations):
        return "handing over", "handed over"
    if any(one.path in NOTES for one in operations):
        return "", "noted"
    return "", "states raised" if any(one.path.endswith("/state") for one in operations) else ""


class TrappedAdmin:
    """An admin client whose caller may not survive an election."""

    def __init__(self, admin: Admin, trap: Trap) -> None:
        self._admin, self._trap = admin, trap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin, name)

    def elect_preferred(self, partitions: Iterable[Partition], holding: Holding) -> None:
        self._admin.elect_preferred(partitions, holding)
        self._trap.reached("elected")


class TrappedInstances:
    """Instances of applications whose caller may not survive a restart of theirs."""

    def __init__(self, instances: Instances, trap: Trap) -> None:
        self._instances, self._trap = instances, trap

    def switch(self, *arguments: Any) -> None:
        self._trap.reached("switching")
        self._instances.switch(*arguments)
        self._trap.reached("switched")


@dataclass(frozen=True)
class TrappedTools(Tools):
    """Clients whose caller may not survive a commit of offsets in Kafka."""

    trap: Trap | None = None

    def commit_offsets(self, plan: CopyPlan, holding: Holding) -> None:
        super().commit_offsets(plan, holding)
        if self.trap is not None:
            self.trap.reached("copied")


class TrappedObserver:
    """An observer whose caller may not survive a look after a start."""

    def __init__(self, observer: Observing, trap: Trap) -> None:
        self._observer, self._trap = observer, trap

    def observe(self, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        view = self._observer.observe(what, nodes, groups)
        self._trap.observations_left -= 1
        if self._trap.observations_left == 0:
            self._trap.reached("waiting")
            self._trap.reached("observed")
        return view

    def environment(self, view: ClusterView) -> ClusterEnvironment:
        return self._observer.environment(view)


def trapped(context: StepContext, trap: Trap) -> StepContext:
    tools = context.tools
    return replace(
        context,
        tools=replace(
            TrappedTools(**{each.name: getattr(tools, each.name) for each in fields(tools)}, trap=trap),
            host=lambda node: TrappedHost(tools.host(node), trap),  # type: ignore[arg-type]
            admin=TrappedAdmin(tools.admin, trap),  # type: ignore[arg-type]
            zk=TrappedZooKeeper(tools.zk, trap),  # type: ignore[arg-type]
            instances=TrappedInstances(tools.instances, trap),  # type: ignore[arg-type]
        ),
        observer=TrappedObserver(context.observer, trap),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind")
    parser.add_argument("arguments", type=json.loads)
    parser.add_argument(
        "--recoveries", type=int, default=0, help="of a dual-write, as an earlier process of the task stored them"
    )
    parser.add_argument("--at", choices=POINTS, default="")
    parser.add_argument("--times", type=int, default=1, help="it springs when the point is reached for so many times")
    parser.add_argument("--signal", type=signal.Signals.__getitem__, default="SIGKILL")
    given = parser.parse_args()
    try:
        with linked.context(LocalCluster(given.folder)) as context:
            step = build(context.spec, given.kind, given.arguments, StepProgress(recoveries=given.recoveries))
            observations = _LOOKS if given.at == "observed" else -1
            run_step(step, trapped(context, Trap(given.at, given.signal, observations, given.times)))
    except Refused as error:
        sys.stdout.write(f"{error}\n{json.dumps({'refused': type(error).__name__})}\n")
        return REFUSED
    except AuthenticationFailed as error:
        sys.stdout.write("".join(f"{reason}\n" for reason in error.reasons))
        return NOT_LET_IN
    return 0


if __name__ == "__main__":
    sys.exit(main())
