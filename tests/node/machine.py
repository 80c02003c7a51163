"""A machine for the agent's tests: its folder, its node.json, and an agent that is asked over its standard input."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import airflow_provider_kmigrate
from tests.waiting import wait_for

AGENT = Path(airflow_provider_kmigrate.__file__).parent / "node" / "kmigrate-node"
CLUSTER = "-1Sh-9_ISia_zwGINzRvyQ"
OLD = "broker.id=1\nzookeeper.connect=zk1:2181\n"
NEW = OLD + "zookeeper.metadata.migration.enable=true\n"
META = f"#\nversion=0\nbroker.id=1\ncluster.id={CLUSTER}\n"


def program(name: str) -> str:
    """The real path of a program of this machine: root runs no link."""
    path = shutil.which(name)
    assert path is not None
    return os.path.realpath(path)


SH = program("sh")
SLEEPER = ["/bin/sh", "-c", "echo started; exec sleep 600"]
STUBBORN = [
    sys.executable,
    "-ISc",
    "import signal, time; signal.signal(15, lambda *_: print('asked to stop', flush=True) or time.sleep(1.5) or exit()); time.sleep(600)",
]


@contextlib.contextmanager
def mounted(folder: Path, options: str = "size=1m") -> Iterator[None]:
    """A small file system of its own at `folder`; the test is skipped in a container that may not mount one."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, text=True, timeout=10, check=False
    )
    if done.returncode:
        pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=10)


class Node:
    """One machine: a folder, its node.json, and an agent that runs."""

    def __init__(self, root: Path, **fields: Any) -> None:
        self.root, self.state = root, root / "state"
        self.properties, self.data = root / "etc" / "server.properties", root / "var" / "data"
        self.properties.parent.mkdir()
        self.data.mkdir(parents=True)
        self.properties.write_text(OLD)
        self.role = "broker"
        self.config = root / "node.json"
        self.entry = {
            "process": {"start": SLEEPER},
            "properties": str(self.properties),
            "log_dirs": [str(self.data)],
            "user": pwd.getpwuid(os.geteuid()).pw_name,
            "state": str(self.state / "broker"),
            "stop_timeout": 10,
        } | fields
        self.configure({"broker": self.entry})
        self.agent: subprocess.Popen[bytes] | None = None
        self.token = 5

    def configure(self, roles: dict[str, Any]) -> None:
        self.config.write_text(json.dumps({"version": 1, "roles": roles}))
        self.config.chmod(0o644)

    def is_controller(self) -> None:
        """The same entry, as a controller's."""
        self.role = "controller"
        self.configure({self.role: self.entry})

    def say(self, line: bytes) -> dict[str, Any]:
        """The answer to one line, from an agent that is started if none runs."""
        if self.agent is None or self.agent.poll() is not None:
            argv = [sys.executable, "-I", str(AGENT), "serve", "--config", str(self.config)]
            self.agent = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
        assert self.agent.stdin is not None
        assert self.agent.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it may refuse its configuration before it reads
            self.agent.stdin.write(line)
            self.agent.stdin.flush()
        return json.loads(self.agent.stdout.readline())  # type: ignore[no-any-return]

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        request = {"v": 1, "id": 1, "verb": verb, "role": self.role, "cluster": CLUSTER, "token": self.token}
        return self.say(json.dumps(request | fields).encode() + b"\n")

    def ok(self, verb: str, **fields: Any) -> dict[str, Any]:
        answer = self.ask(verb, **fields)
        assert "ok" in answer, answer
        return answer["ok"]  # type: ignore[no-any-return]

    def refused(self, verb: str, **fields: Any) -> str:
        return str(self.ask(verb, **fields)["error"]["code"])

    def ended(self, job: str) -> dict[str, Any]:
        """The record of a job once it has ended."""

        def over(seen: dict[str, Any]) -> bool:
            return seen["id"] == job and seen["state"] != "running" and not seen["busy"]

        return wait_for(lambda: self.ok("job", wait=1), over, f"job {job} ends", 30)

    def pid(self) -> int:
        return int(self.ok("facts")["process"]["pid"])

    def close(self) -> None:
        if self.agent is not None:
            self.agent.kill()
            self.agent.communicate()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            record = json.loads((self.state / "broker" / "process.json").read_text())
            if record["birth"].split(":")[1].encode() in Path(f"/proc/{record['pid']}/stat").read_bytes().split():
                os.kill(record["pid"], signal.SIGKILL)
                # until it has ended its file system is busy
                wait_for(lambda: has_ended(record["pid"]), bool, "the node's process ends", 30)


def has_ended(pid: int) -> bool:
    """Whether a process has ended, also one that nobody reaps."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in {b"Z", b"X"}
    except (FileNotFoundError, ProcessLookupError):
        return True


def file(text: str) -> dict[str, Any]:
    data = text.encode("iso-8859-1")
    return {"content": text, "length": len(data), "sha256": hashlib.sha256(data).hexdigest()}
