"""The processes of a folder: started one by one, stopped together in the order that no node hangs in."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from airflow_provider_kmigrate.clients.atomic import locked
from airflow_provider_kmigrate.exceptions import Failed
from tests.kit.localcluster.plan import agents_of
from tests.kit.processes import NodeProcess

_KILL_TIMEOUT = 10.0
_CLIENT = "client"
_STOP_ORDER = (_CLIENT, "broker", "controller", "zookeeper")  # a broker without its controllers hangs, measured: 300 s


def start(folder: Path) -> None:
    """Start the process that `folder` describes unless it runs."""
    with locked(folder):
        NodeProcess(folder).start()


def stop_all(folder: Path, grace: float) -> None:
    """Stop every process below `folder`: clients (whatever is no node), brokers, controllers, ZooKeeper.

    Each kind together; what still runs `grace` seconds after SIGTERM gets SIGKILL, with no grace at once. Raises `Failed` where even
    that does not help.
    """
    _end_jobs(folder)
    found = [NodeProcess(path.parent) for path in folder.glob("*/process.json")]
    for kind in _STOP_ORDER:
        _stop([process for process in found if _kind(process) == kind], grace)


def _end_jobs(folder: Path) -> None:
    """Kill the agents' jobs: a restart that is under way would start its node again."""
    jobs = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "run" in words and any(word.startswith(f"{agents_of(folder)}/") for word in words):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
            jobs.append(process)
    psutil.wait_procs(jobs, _KILL_TIMEOUT)


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
