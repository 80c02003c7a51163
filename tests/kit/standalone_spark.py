"""A Spark cluster as a site has one: a standalone master and two workers in processes and working folders of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.waiting import wait_until

_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_START_S = 240.0  # a busy machine takes more than a minute for a JVM
EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass(frozen=True, slots=True)
class StandaloneSpark:
    """`url`: of its master. Each of the two workers has one core."""

    url: str
    workers: tuple[subprocess.Popen[bytes], ...]

    def executors(self) -> list[psutil.Process]:
        """The running executors, which are children of the workers."""
        found = []
        for worker in self.workers:
            for child in psutil.Process(worker.pid).children(recursive=True):
                with_arguments = " ".join(child.cmdline()) if child.status() != psutil.STATUS_ZOMBIE else ""
                if EXECUTOR in with_arguments:
                    found.append(child)
        return found


@contextmanager
def run_standalone(folder: Path, python: str = sys.executable) -> Iterator[StandaloneSpark]:
    """Starts the three processes, and ends all that they started. `python`: of the environment with the whole pyspark."""
    spark_home = next(Path(python).parent.parent.glob("lib/python*/site-packages/pyspark"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "SPARK_HOME": str(spark_home),
        "SPARK_DAEMON_MEMORY": "192m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "PYSPARK_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    url = f"spark://127.0.0.1:{port}"
    programs: list[tuple[str, ...]] = [(_MASTER, "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")]
    for number in range(2):
        work = folder / f"worker{number}"
        programs.append((_WORKER, "--cores", "1", "--memory", "700m", "--webui-port", "0", "--work-dir", str(work), url))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for program in programs:
            with (folder / f"spark-{len(processes)}.log").open("wb") as log:
                process = subprocess.Popen(
                    [spark_home / "bin" / "spark-class", *program],
                    env={**os.environ, **common},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            processes.append(process)
            if len(processes) == 1:
                wait_until(
                    lambda: "I have been elected leader" in (folder / "spark-0.log").read_text(), "the master leads", _START_S
                )
        wait_until(
            lambda: (folder / "spark-0.log").read_text().count("Registering worker") == len(programs) - 1,
            "both workers are registered",
            _START_S,
        )
        yield StandaloneSpark(url, tuple(processes[1:]))
    finally:
        for process in reversed(processes):
            for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
                _end(child.pid)
            _end(process.pid)
            process.wait(30.0)


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
