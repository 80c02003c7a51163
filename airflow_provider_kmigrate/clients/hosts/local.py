"""Driver `local`: nodes that are plain processes of this machine, each described by a folder (`HostSpec.state`).

Used by the local cluster, and for brokers beside Airflow without a service manager. The folder, drawn by `NodeProcess`, has all
that is known of a process: `launch.json` (what to run), `process.json` (what was started), `node.log` (its output), `lock` and
`token` (who may change it). A process outlives its starter and is found again by pid and birth, never by name.

A starter may be killed at any instant, so no node may ever run without being recorded. The child therefore begins as a launcher
that waits for a word from its starter. The word comes after `process.json` is on disk; only then does the launcher become the
node (exec keeps pid and birth). If the starter dies earlier, the pipe closes and the launcher ends.
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
from airflow_provider_kmigrate.clients.commands import fill, no_command, node_values
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.clients.hosts.files import admitted, must_format, must_wipe, refuse_data, set_aside
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import NodeFiles, Process, ProcessState
from airflow_provider_kmigrate.exceptions import Failed, TimedOut, Unreachable

_LAUNCHER = """\
import os, signal, sys
if os.read(0, 1) != b"g": sys.exit(1)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
signal.signal(signal.SIGTERM, signal.SIG_DFL)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
try: os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error: sys.exit(f"cannot run {sys.argv[1]}: {error}")
"""
_INHERITED = ("PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "JAVA_HOME", "LD_LIBRARY_PATH")
_POLL = 0.02
_STOPPED = Process(ProcessState.STOPPED)
_children: dict[int, subprocess.Popen[bytes]] = {}  # ours to reap; a zombie has the pid and birth of a live process


@dataclass(frozen=True, slots=True)
class Launch:
    """What a node runs: argument lists with placeholders, and additions to the environment."""

    start: tuple[str, ...]
    format: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Started:
    pid: int
    birth: str
    started_at: float


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """A node's environment: a few of our own variables and `extra`. Not all of ours: a worker's hold Airflow's secrets."""
    return {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(extra)


class NodeProcess:
    """The process that `folder` describes. Not locked here: callers that start hold `tokens.locked(folder)`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "node.log"

    def define(self, launch: Launch) -> None:
        """Set what the next start runs."""
        atomic.make_folder(self.folder)
        atomic.replace(self.folder / "launch.json", json.dumps(asdict(launch), indent=1).encode())

    def launch(self) -> Launch:
        """The node's `Launch`. Raises `Failed` if the folder describes no process."""
        values = self._read("launch.json")
        if values is None:
            raise Failed(f"{self.folder} describes no process: launch.json is missing")
        try:
            return Launch(tuple(values["start"]), tuple(values["format"]), values["env"])
        except (KeyError, TypeError) as error:
            raise Failed(f"{self.folder / 'launch.json'} is damaged: {error!r}") from error

    def find(self) -> Process:
        """The process now. A reused pid, a zombie and a machine that was rebooted since all count as stopped."""
        started = self._started()
        if started is None:
            return _STOPPED
        try:
            return Process(ProcessState.RUNNING, started.pid, started.started_at) if _lives(started) else _STOPPED
        except psutil.AccessDenied:
            return Process(ProcessState.UNKNOWN, started.pid)

    def _started(self) -> _Started | None:
        values = self._read("process.json")
        try:
            return None if values is None else _Started(**values)
        except TypeError as error:
            raise Failed(f"{self.folder / 'process.json'} is damaged: {error}") from error

    def _read(self, name: str) -> dict[str, Any] | None:
        return files.read_object(self.folder / name)

    def start(self, values: Mapping[str, str] | None = None) -> Process:
        """Start it unless it runs; returns once it exists. Raises `Failed` if its program is missing."""
        found = self.find()
        if found.state is not ProcessState.STOPPED:
            return found
        launch = self.launch()
        argv = fill(launch.start, values or {})
        if shutil.which(argv[0]) is None:
            raise Failed(f"cannot start {self.folder.name}: the program {argv[0]!r} does not exist")
        return self._spawn(argv, launch.env)

    def _spawn(self, argv: Sequence[str], env: Mapping[str, str]) -> Process:
        child = self._fork(argv, env)
        _children[child.pid] = child
        started = _Started(child.pid, _birth(child.pid), psutil.Process(child.pid).create_time())
        try:
            with cast(IO[bytes], child.stdin) as word:  # without the word, the launcher ends
                atomic.replace(self.folder / "process.json", json.dumps(asdict(started)).encode())
                word.write(b"g")
        except BrokenPipeError as error:
            raise Failed(f"{self.folder.name} was killed as it started; {self.log_tail(5)}") from error
        return Process(ProcessState.RUNNING, started.pid, started.started_at)

    def _fork(self, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        try:
            with self.log.open("ab") as log:
                return subprocess.Popen(
                    [sys.executable, "-ISc", _LAUNCHER, *argv],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                    env=environment(env),
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
        """True if `pid`, once this node's process, is gone within `timeout` seconds; a successor does not count."""
        deadline = time.monotonic() + timeout
        while pid is not None and self.find().pid == pid:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True

    def log_tail(self, lines: int) -> str:
        """The last lines of its log, under the log's path; empty before its first start."""
        return files.tail(self.log, lines)


def _lives(started: _Started) -> bool:
    alive = _runs(started)
    child = _children.get(started.pid)
    if child is not None and not alive and child.poll() is not None:  # checked before it is reaped: it may end between the two
        _children.pop(started.pid, None)
    return alive


def _runs(started: _Started) -> bool:
    try:
        return _birth(started.pid) == started.birth and psutil.Process(started.pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _birth(pid: int) -> str:
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


_FORMAT_TIMEOUT = 60.0


class LocalHost:
    """`hosts.base.Host` for processes of this machine."""

    def status(self, node: NodeSpec) -> Process:
        """The node's process now. Raises `Unreachable` if its folder is missing: that says nothing about a process."""
        return _process(node).find()

    def start(self, node: NodeSpec, token: int) -> None:
        process = _process(node)
        with admitted(process.folder, token):
            process.start(node_values(node))

    def stop(self, node: NodeSpec, token: int) -> float:
        process = _process(node)
        began = time.monotonic()
        with admitted(process.folder, token):
            pid = process.signal(signal.SIGTERM)
        if not process.wait_gone(pid, node.stop_timeout):
            raise TimedOut(f"{node.name} still runs {node.stop_timeout:.0f} s after SIGTERM (pid {pid}); its log: {process.log}")
        return time.monotonic() - began

    def read_properties(self, node: NodeSpec) -> str:
        text = files.read(node.hosts.properties)
        if text is None:
            raise Failed(f"{node.name} has no properties file at {node.hosts.properties}")
        return text

    def put_properties(self, node: NodeSpec, text: str, token: int) -> str:
        with admitted(_process(node).folder, token):
            return files.put(Path(node.hosts.properties), text)

    def files(self, node: NodeSpec) -> NodeFiles:
        return files.read_files(node)

    def format_storage(self, node: NodeSpec, cluster_id: str, release: str, token: int) -> None:
        process = _process(node)
        with admitted(process.folder, token):
            seen = self.files(node)
            if must_format(node, seen, cluster_id):
                refuse_data(node, seen)
                _format(node, process.launch(), {"cluster_id": cluster_id, "release": release})

    def put_meta(self, node: NodeSpec, folder: str, text: str, token: int) -> None:
        with admitted(_process(node).folder, token):
            files.put(Path(folder) / files.META, text)

    def wipe_storage(self, node: NodeSpec, cluster_id: str, token: int) -> None:
        with admitted(_process(node).folder, token):
            for folder in must_wipe(node, self.files(node), self.status(node), cluster_id):
                set_aside(node, folder)

    def log_tail(self, node: NodeSpec, lines: int = 40) -> str:
        return _process(node).log_tail(lines)


def _process(node: NodeSpec) -> NodeProcess:
    folder = Path(node.hosts.state)
    if not node.hosts.state or not folder.is_dir():
        raise Unreachable(
            f"{node.name}: there is no folder {node.hosts.state!r} (`state` in the cluster file) that describes its process"
        )
    return NodeProcess(folder)


def _format(node: NodeSpec, launch: Launch, values: Mapping[str, str]) -> None:
    argv = fill(launch.format, node_values(node) | dict(values))
    if not argv:
        raise no_command(f"{node.name}: {node.hosts.state}/launch.json has no command that formats")
    try:
        subprocess.run(argv, env=environment(launch.env), timeout=_FORMAT_TIMEOUT, check=True, capture_output=True, text=True)
    except subprocess.TimeoutExpired as error:
        raise TimedOut(f"{node.name}: formatting took more than {_FORMAT_TIMEOUT:.0f} s") from error
    except subprocess.CalledProcessError as error:
        raise Failed(f"{node.name}: formatting failed: {(error.stderr or error.stdout).strip()[-2000:]}") from error
    except OSError as error:
        raise Failed(f"{node.name}: cannot run {argv[0]}: {error}") from error
