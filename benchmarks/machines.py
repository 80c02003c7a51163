"""A cluster on machines with a systemd, an sshd and a sudo of their own: what observations cost over kept connections, of one node and of 30, and a migration whose Airflow dies.

`python -m benchmarks machines`, or `make bench BENCH=machines` (12 minutes); the first argument is the number of requests (200), the others
the parts: `observations`, `migration`, `ways`; all of them by default. Root, as `make machines`.

`worst_down_ratio`: the longest time for which a broker refused connections while its worker's connection hung, or its task and the
scheduler were killed, over the median of the others of the same pass. `added_s_per_restart`: seconds from the moment at which every
partition is in sync again until the next broker is stopped. `ssh_over_local_ratio`: seconds of a migration up to dual-write, without
Airflow and load, whose agents are behind ssh, over the mean of the one before and the one after it, behind local pipes.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from airflow_provider_kmigrate.clients.hosts.agent import PATH, Connection, Program
from airflow_provider_kmigrate.core.cluster_state.model import Fields
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError
from airflow_provider_kmigrate.steps.catalog import run_rollback
from benchmarks import direct
from benchmarks.rehearsal import Rehearsal
from tests.kit.account import MUST_BE_ZERO as NOTHING
from tests.kit.account import figures_of
from tests.kit.fleet import Fleet
from tests.kit.localcluster.plan import Shape
from tests.kit.machines import Machine, Template, booted
from tests.machines.airflow_machine import missing
from tests.machines.journey import TOPICS, Downs, FleetTrial, restarted, under_way
from tests.system.airflow_faults import Kill
from tests.waiting import beside

MUST_BE_ZERO = NOTHING
_HANG_S = 60.0
_PASSES = ("to migration", "to kraft")
_DISTURBED = 2  # the broker of each pass to which something happens
_POLL_S = 0.1
_MACHINES, _NODES, _ROUNDS = 3, 30, 10
_CONNECTING = 5  # at the same time: sshd's MaxStartups is 10
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def main(arguments: list[str], build: Path) -> dict[str, object]:
    """The figures; `arguments`: a count of observations, then the parts to run."""
    if missing():
        sys.exit(missing())
    count, *chosen = arguments or ["200"]
    folder = build.resolve() / "machines"
    shutil.rmtree(folder, ignore_errors=True)
    parts = {
        "observations": lambda: _observations(folder, int(count)),
        "migration": lambda: _migration(folder / "fleet"),
        "ways": lambda: _ways(folder / "ways"),
    }
    figures: dict[str, object] = dict.fromkeys(MUST_BE_ZERO)  # of a migration that was not asked for
    for name in chosen or parts:
        figures |= parts[name]()
    return figures


def _observations(folder: Path, count: int) -> dict[str, object]:
    with ExitStack() as stack:
        machines = [_machine(folder / str(number), stack) for number in range(_MACHINES)]
        first = machines[0]
        inside = ("nsenter", "-t", str(first.leader), "-m", "-u", "-i", "-p", "--", "/usr/local/sbin/kmigrate-node", "serve")
        local, ssh = _milliseconds("pipe", inside, count), _milliseconds("ssh", first.ssh(), count)
        together = _seconds_together(machines)
    return {
        "requests": count,
        "connect_ms": round(ssh[0], 1),
        "observe_node_ms_p50": round(median(ssh[1:]), 1),
        "observe_node_ms_max": round(max(ssh[1:]), 1),
        "observe_node_local_ms_p50": round(median(local[1:]), 1),
        "observe_ssh_over_local_ratio": round(median(ssh[1:]) / median(local[1:]), 2),
        "observe_30_nodes_s": round(median(together), 3),
        "observe_30_nodes_s_max": round(max(together), 3),
    }


def _machine(folder: Path, stack: ExitStack) -> Machine:
    """One more machine; its address is chosen once the earlier ones have theirs."""
    (folder / "template").mkdir(parents=True)
    return stack.enter_context(booted(folder / "machine", Template(folder / "template")))


def _milliseconds(name: str, argv: tuple[str, ...], count: int) -> list[float]:
    """Of each request; the first one opens the connection."""
    connection, taken = Connection(name, partial(Program, argv, _ENVIRONMENT)), []
    try:
        for _ in range(count + 1):
            began = time.perf_counter()
            connection.facts(name, "broker")
            taken.append((time.perf_counter() - began) * 1000)
    finally:
        connection.close()
    return taken


def _seconds_together(machines: list[Machine]) -> list[float]:
    """Of each round in which all nodes are asked at the same time, over connections that are open."""
    ways = [machines[number % len(machines)].ssh() for number in range(_NODES)]
    nodes = [Connection(f"node {number}", partial(Program, argv, _ENVIRONMENT)) for number, argv in enumerate(ways)]
    taken = []
    try:
        with ThreadPoolExecutor(_CONNECTING) as pool:
            list(pool.map(_ask, nodes))
        with ThreadPoolExecutor(_NODES) as pool:
            for _ in range(_ROUNDS):
                began = time.perf_counter()
                list(pool.map(_ask, nodes))
                taken.append(time.perf_counter() - began)
    finally:
        for node in nodes:
            node.close()
    return taken


def _ask(node: Connection) -> None:
    node.facts("", "broker")


@dataclass
class InSync:
    """When every partition was in sync again: epoch seconds."""

    trial: FleetTrial
    again: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch while the block runs."""
        with beside(self._watch):
            yield

    def _watch(self, over: threading.Event) -> None:
        with direct.context(self.trial.fleet, "looking", acting=False) as context:
            whole = True
            while not over.wait(_POLL_S):
                before, whole = whole, self._whole(context)
                if whole and not before:
                    self.again.append(time.time())

    @staticmethod
    def _whole(context: Any) -> bool:
        with contextlib.suppress(KMigrateError):
            partitions = context.observer.observe(Fields.PARTITIONS).partitions
            return bool(partitions) and not any(partition.is_under_replicated for partition in partitions)
        return False


def _migration(folder: Path) -> dict[str, object]:
    with under_way(folder, "bench") as trial:
        downs, synced = Downs(trial.fleet.plan.brokers), InSync(trial)
        kills = [
            Kill(
                "first roll",
                "connection hangs",
                restarted(_PASSES[0], _DISTURBED),
                trial.stopped(partial(trial.hang_ssh, _HANG_S)),
            ),
            Kill("second roll", "task and scheduler killed", restarted(_PASSES[1], _DISTURBED), trial.stopped(trial.everything)),
        ]
        with downs.watched(), synced.watched():
            seen = trial.run(trial.rehearsal.dag_id, {}, kills, lambda tasks: tasks.get("soak") == "deferred")
        wrong = [kill.wrong for kill in kills if kill.wrong]
        if not seen.startswith("parked") or wrong:
            raise Failed(f"the migration did not come to its soak: {seen} {wrong}")
        account = trial.rehearsal.account()
        acts = [line for line in trial.journal if line["kind"] == "act"]
        return _figures(acts, kills, downs, synced) | figures_of([account.summary()])


def _ways(folder: Path) -> dict[str, object]:
    """A migration up to dual-write behind local pipes, behind ssh, and behind local pipes again; a rollback after each."""
    shape = Shape("ways", chroot="/kafka", zookeepers=3)
    with closing(Rehearsal(folder, shape, TOPICS, policy={"canary_bake": "0s"}, cluster_type=Fleet)) as rehearsal:
        rehearsal.up()
        fleet = rehearsal.cluster
        assert isinstance(fleet, Fleet)
        for address, machine in fleet.machines.items():
            (fleet.folder / address / "leader").write_text(str(machine.leader))
        enter = f'exec nsenter -t "$(cat {fleet.folder}/$0/leader)" -m -u -i -p -- {PATH} serve'
        local = ["/bin/sh", "-c", enter, "{host}"]
        taken = [_migration_seconds(rehearsal, way) for way in (local, fleet.ssh_command(), local)]
    return {
        "migration_s": [round(each, 1) for each in taken],
        "ssh_over_local_ratio": round(2 * taken[1] / (taken[0] + taken[2]), 3),
    }


def _migration_seconds(rehearsal: Rehearsal, way: list[str]) -> float:
    assert isinstance(rehearsal.cluster, Fleet)
    rehearsal.cluster.through(connect=way)
    began = time.monotonic()
    rehearsal.forward(direct.to_dual_write)
    ended = time.monotonic()
    with direct.context(rehearsal.cluster, "rollback", folder=rehearsal.home / "kmigrate") as context:
        run_rollback(context)
    return ended - began


def _figures(acts: list[dict[str, Any]], kills: list[Kill], downs: Downs, synced: InSync) -> dict[str, object]:
    ratios, added, seconds = {}, [], {}
    for name, kill in zip(_PASSES, kills, strict=True):
        began = {
            int(line["step"].split()[1]): line["at"] for line in reversed(acts) if line["step"].endswith(name)
        }  # the first of each
        order = sorted(began, key=began.__getitem__)
        down = {broker: round(downs.of(broker, began[broker]), 2) for broker in order}
        disturbed = order[_DISTURBED - 1]
        ratios[kill.fault] = round(down[disturbed] / median(down[broker] for broker in order if broker != disturbed), 2)
        seconds[name] = list(down.values())
        whole = max(moment for moment in synced.again if began[order[0]] < moment < began[order[1]])
        added.append(began[order[1]] - whole)
    return {
        "down_s": seconds,
        "down_ratios": ratios,
        "worst_down_ratio": max(ratios.values()),
        "added_s_per_restart": round(max(added), 1),
    }
