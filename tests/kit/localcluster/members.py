"""The processes of a folder: started one by one, stopped together in the order that no node hangs in."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_kmigrate.clients.atomic import locked
from airflow_provider_kmigrate.clients.hosts.local import NodeProcess
from airflow_provider_kmigrate.exceptions import Failed

_KILL_TIMEOUT = 10.0
_CLIENT = "client"
_STOP_ORDER = (_CLIENT, "broker", "controller", "zookeeper")  # a broker without its controllers hangs, measured: 300 s


def start(folder: Path, properties: str = "") -> None:
    """Start the process that `folder` describes unless it runs."""
    with locked(folder):
        NodeProcess(folder).start({"properties": properties})


def stop_all(folder: Path, grace: float) -> None:
    """Stop every process below `folder`: clients (whatever is no node), brokers, controllers, ZooKeeper.

    Each kind together; what still runs `grace` seconds after SIGTERM gets SIGKILL, with no grace at once. Raises `Failed` where even
    that does not help.
    """
    found = [NodeProcess(path.parent) for path in folder.glob("*/process.json")]
    for kind in _STOP_ORDER:
        _stop([process for process in found if _kind(process) == kind], grace)


def _kind(process: NodeProcess) -> str:
    kind = process.folder.name.partition("-")[0]
    return kind if kind in _STOP_ORDER else _CLIENT


def _stop(processes: Sequence[NodeProcess], grace: float) -> None:
    pids = [process.signal(signal.SIGTERM if grace else signal.SIGKILL) for process in processes]
    deadline = time.monotonic() + grace
    for process, pid in zip(processes, pids, strict=True):
        if not process.wait_gone(pid, max(0.0, deadline - time.monotonic())):
            process.signal(signal.SIGKILL)
            if not process.wait_gone(pid, _KILL_TIMEOUT):
                raise Failed(f"{process.folder.name} (pid {pid}) does not end, even after SIGKILL")
