"""What ssh, sudo and systemd cost an observation of one node: `facts` over a kept connection, on a machine of its own against a pipe.

`python -m benchmarks.machines`, or `make bench BENCH=machines`; an argument is the number of requests (200). Root, as `make machines`.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from statistics import median

from airflow_provider_kmigrate.clients.hosts.agent import Connection
from tests.kit.machines import Template, booted, missing


def main(arguments: list[str], build: Path) -> dict[str, object]:
    if missing():
        sys.exit(missing())
    count, folder = int(arguments[0]) if arguments else 200, build.resolve() / "machines"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "template").mkdir(parents=True)
    with booted(folder / "machine", Template(folder / "template")) as machine:
        inside = ("nsenter", "-t", str(machine.leader), "-m", "-u", "-i", "-p", "--", "/usr/local/sbin/kmigrate-node", "serve")
        local, ssh = _milliseconds("pipe", inside, count), _milliseconds("ssh", machine.ssh(), count)
    return {
        "requests": count,
        "connect_ms": round(ssh[0], 1),
        "observe_node_ms_p50": round(median(ssh[1:]), 1),
        "observe_node_ms_max": round(max(ssh[1:]), 1),
        "observe_node_local_ms_p50": round(median(local[1:]), 1),
        "ssh_over_local_ratio": round(median(ssh[1:]) / median(local[1:]), 2),
    }


def _milliseconds(name: str, argv: tuple[str, ...], count: int) -> list[float]:
    """Of each request; the first one opens the connection."""
    connection, taken = Connection(name, argv, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}), []
    try:
        for _ in range(count + 1):
            began = time.perf_counter()
            connection.ask("facts", role="broker")
            taken.append((time.perf_counter() - began) * 1000)
    finally:
        connection.close()
    return taken
