"""Plain processes of this machine that outlive their starter: brokers of local clusters, the load, old consumers. Each is described by a folder.

The folder, drawn by `NodeProcess`, has all that is known of a process: `launch.json` (what to run), `process.json` (what was
started) and `node.log` (its output). It is found again by pid and birth, never by name. The backend `process` of kmigrate-node
keeps the same record, so that each finds what the other started.

A starter may be killed at any instant, so no process may ever run without being recorded. The child therefore begins as a launcher
that waits for a word from its starter. The word comes after `process.json` is on disk; only then does the launcher become the
process (exec keeps pid and birth). If the starter dies earlier, the pipe closes and the launcher ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import psutil

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.commands import program_environment
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.core.cluster_state.model import Process, ProcessState
from airflow_provider_kmigrate.exceptions import Failed

_LAUNCHER = """\
import os, signal, sys
if os.read(0, 1) != b"g": sys.exit(1)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
signal.signal(signal.SIGTERM, signal.SIG_DFL)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
try: os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error: sys.exit(f"cannot run {sys.argv[1]}: {error}")
"""
_POLL = 0.02
_TAIL = 65_536  # bytes of a log
_STOPPED = Process(ProcessState.STOPPED)
_children: dict[int, subprocess.Popen[bytes]] = {}  # ours to reap; a zombie has the pid and birth of a live process


@dataclass(frozen=True, slots=True)
class Launch:
    """What a process runs: an argument list, and additions to the environment."""

    start: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Started:
    pid: int
    birth: str


class NodeProcess:
    """The process that `folder` describes. Not locked here: callers that may start it at once hold `atomic.locked(folder)`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "node.log"

    def define(self, launch: Launch) -> None:
        """Set what the next start runs."""
        atomic.make_folder(self.folder)
        atomic.replace(self.folder / "launch.json", json.dumps(asdict(launch), indent=1).encode())

    def read_launch(self) -> Launch:
        """Its `Launch`. Raises `Failed` if the folder describes no process."""
        values = self._read_object("launch.json")
        if values is None:
            raise Failed(f"{self.folder} describes no process: launch.json is missing")
        try:
            return Launch(tuple(values["start"]), values["env"])
        except (KeyError, TypeError) as error:
            raise Failed(f"{self.folder / 'launch.json'} is damaged: {error!r}") from error

    def find(self) -> Process:
        """The process now. A reused pid, a zombie and a machine that was rebooted since all count as stopped."""
        started = self._read_started()
        if started is None:
            return _STOPPED
        try:
            return Process(ProcessState.RUNNING, started.pid, _creation_time(started.pid)) if _is_alive(started) else _STOPPED
        except psutil.NoSuchProcess:
            return _STOPPED
        except psutil.AccessDenied:
            return Process(ProcessState.UNKNOWN, started.pid)

    def _read_started(self) -> _Started | None:
        values = self._read_object("process.json")
        try:
            return None if values is None else _Started(values["pid"], values["birth"])
        except KeyError as error:
            raise Failed(f"{self.folder / 'process.json'} is damaged: it has no {error}") from error

    def _read_object(self, name: str) -> dict[str, Any] | None:
        return files.read_object(self.folder / name)

    def start(self) -> Process:
        """Start it unless it runs; returns once it exists. Raises `Failed` if its program is missing."""
        process = self.find()
        if process.state is not ProcessState.STOPPED:
            return process
        launch = self.read_launch()
        if shutil.which(launch.start[0]) is None:
            raise Failed(f"cannot start {self.folder.name}: the program {launch.start[0]!r} does not exist")
        return self._spawn(launch.start, launch.env)

    def _spawn(self, argv: Sequence[str], env: Mapping[str, str]) -> Process:
        child = self._fork(argv, env)
        _children[child.pid] = child
        started = _Started(child.pid, _read_birth(child.pid))
        try:
            with cast(IO[bytes], child.stdin) as word:  # without the word, the launcher ends
                atomic.replace(self.folder / "process.json", json.dumps(asdict(started)).encode())
                word.write(b"g")
        except BrokenPipeError as error:
            raise Failed(f"{self.folder.name} was killed as it started; {self.log_tail(5)}") from error
        return Process(ProcessState.RUNNING, started.pid, _creation_time(started.pid))

    def _fork(self, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        try:
            with self.log.open("ab") as log:
                return subprocess.Popen(
                    [sys.executable, "-ISc", _LAUNCHER, *argv],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                    env=program_environment(env),
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            raise Failed(f"cannot start {self.folder.name}: {error}") from error

    def signal(self, number: signal.Signals) -> int | None:
        """Send a signal if the process still runs; returns the pid that got it. Raises `Failed` if not permitted."""
        pid = self.find().pid
        if pid is None:
            return None
        try:
            psutil.Process(pid).send_signal(number)
        except psutil.NoSuchProcess:
            return None
        except psutil.AccessDenied as error:
            raise Failed(
                f"may not send {number.name} to pid {pid} of {self.folder.name}: it is another user's process"
            ) from error
        return pid

    def wait_gone(self, pid: int | None, timeout: float) -> bool:
        """True if `pid`, once its process, is gone within `timeout` seconds; a successor does not count."""
        deadline = time.monotonic() + timeout
        while pid is not None and self.find().pid == pid:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True

    def log_tail(self, lines: int) -> str:
        """The last lines of its log, under the log's path; empty if no log can be read."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join([f"the end of {self.log}:", *text.splitlines()[-lines:]])


def _is_alive(started: _Started) -> bool:
    alive = _is_running(started)
    child = _children.get(started.pid)
    if child is not None and not alive and child.poll() is not None:  # checked before it is reaped: it may end between the two
        _children.pop(started.pid, None)
    return alive


def _is_running(started: _Started) -> bool:
    try:
        return _read_birth(started.pid) == started.birth and psutil.Process(started.pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _creation_time(pid: int) -> float:
    return float(psutil.Process(pid).create_time())


def _read_birth(pid: int) -> str:
    """An identity that no other process ever has: the boot, and the ticks from the boot to the process's start.

    psutil's create_time is wall time, which moves when the machine's clock is set; a node must not be lost then.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return f"{psutil.Process(pid).create_time():.2f}"  # not Linux, or no such process, which psutil then reports
    except ProcessLookupError as error:
        raise psutil.NoSuchProcess(pid) from error
    return f"{boot}:{stat.rpartition(')')[2].split()[19]}"  # field 22 of proc(5); the command before it may hold spaces
