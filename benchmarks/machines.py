"""What ssh, sudo and systemd cost observations of nodes over kept connections: of one node, against a pipe, and of 30 at the same time.

`python -m benchmarks.machines`, or `make bench BENCH=machines`; an argument is the number of requests (200). Root, as `make machines`.
"""

from __future__ import annotations

import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from airflow_provider_kmigrate.clients.hosts.agent import Connection, Program
from tests.kit.machines import Machine, Template, booted, missing

_MACHINES, _NODES, _ROUNDS = 3, 30, 10
_CONNECTING = 5  # at the same time: sshd's MaxStartups is 10
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def main(arguments: list[str], build: Path) -> dict[str, object]:
    if missing():
        sys.exit(missing())
    count, folder = int(arguments[0]) if arguments else 200, build.resolve() / "machines"
    shutil.rmtree(folder, ignore_errors=True)
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
        "ssh_over_local_ratio": round(median(ssh[1:]) / median(local[1:]), 2),
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
