"""An instance of a JVM application as its operators restart it: `python jvm_instance.py FOLDER NAME KIND`, with the standard library alone.

FOLDER/application.json has the command of each kind (`zookeeper`: the old version, `kafka`: the new one), with `{instance}` for the name.
`stopped` ends the instance: SIGTERM, and SIGKILL after some seconds. Each life writes a log of its own, FOLDER/NAME.<number>.<kind>.log.
FOLDER/NAME.deaf: the command says yes to `stopped`, and does nothing. FOLDER/NAME.asleep: instead of an end it puts
the process to sleep (SIGSTOP), and forgets it. FOLDER/NAME.crash: it ends it by SIGKILL alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_STOP_S = 20.0


def switch(folder: Path, name: str, kind: str) -> None:
    """Stop the instance, and start it as `kind` unless that is `stopped`."""
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kind == "stopped" and (folder / f"{name}.deaf").exists():
            return
        pid = find(folder, name)
        if pid and (folder / f"{name}.asleep").exists():
            os.kill(pid, signal.SIGSTOP)
            (folder / f"{name}.pid").unlink()
        if pid and (folder / f"{name}.crash").exists():
            os.kill(pid, signal.SIGKILL)
        stop(folder, name)
        if kind != "stopped":
            start(folder, name, kind)


def find(folder: Path, name: str) -> int | None:
    """The process of the instance; None if it has none that lives."""
    path = folder / f"{name}.pid"
    pid = int(path.read_text()) if path.exists() else 0
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if pid else []
    except OSError:
        return None
    return pid if name.encode() in words else None


def stop(folder: Path, name: str) -> None:
    """SIGTERM, and SIGKILL if it does not end."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _STOP_S
        pid = find(folder, name)
        if pid is None:
            return
        os.kill(pid, sign)
        while find(folder, name) == pid and time.monotonic() < deadline:
            time.sleep(0.05)


def start(folder: Path, name: str, kind: str) -> None:
    """As a process of its own session, which outlives this one."""
    command = json.loads((folder / "application.json").read_text())[kind]
    number = len(list(folder.glob(f"{name}.*.log")))
    with (folder / f"{name}.{number}.{kind}.log").open("wb") as log, (folder / f"{name}.errors").open("ab") as errors:
        process = subprocess.Popen(
            [word.replace("{instance}", name) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=errors,
            start_new_session=True,
        )
    (folder / f"{name}.pid").write_text(str(process.pid))


if __name__ == "__main__":
    switch(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
