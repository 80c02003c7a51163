"""Ends the clusters of a test process that is gone: pytest's watchdog, or a kill, leaves it no time to end them itself.

Nodes outlive the process that started them (`cluster`), as real ones do. So a small process of its own session waits for the end of this one, by its
pid's handle: that end cannot be missed, whatever else has inherited a pipe. Then it ends what still runs in the folders that it was told.

It runs this file alone and imports nothing of ours: a busy machine would need a minute for that.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_ROUNDS, _BETWEEN = 5, 1.0  # seconds: a tool that the dead process has started may start a node once more
ties_all = False
"""Whether each cluster that this process brings up ends with it (tests/conftest.py): the command line's must outlive it."""
_reapers: dict[int, subprocess.Popen[bytes]] = {}  # by the process that it waits for: a fork is another


def tie(*folders: Path) -> None:
    """Have this end with this process, however this one ends: the processes that `NodeProcess` keeps there, and agents configured there."""
    mine = os.getpid()
    reaper = _reapers.get(mine)
    if reaper is None or reaper.poll() is not None:
        ending = os.pidfd_open(mine)  # opened here: this process may be gone before the other one has begun
        argv = [sys.executable, "-IS", __file__, str(ending)]
        _reapers[mine] = reaper = subprocess.Popen(
            argv, cwd="/", stdin=subprocess.PIPE, pass_fds=[ending], start_new_session=True
        )
        os.close(ending)
    if reaper.stdin is None:
        raise AssertionError("a reaper without a pipe")
    reaper.stdin.write("".join(f"{folder}\n" for folder in folders).encode())
    reaper.stdin.flush()


def _reap(ending: int) -> None:
    """`ending`: what becomes readable as the process ends."""
    told, waits_for = bytearray(), [0, ending]
    while 0 in select.select(waits_for, [], [])[0]:  # what it has said last is read before its end is believed
        said = os.read(0, 65_536)
        told += said
        if not said:
            waits_for.remove(0)
    folders = {Path(line) for line in told.decode().splitlines()}
    for _ in range(_ROUNDS if folders else 0):
        for victim in (*_agents(folders), *(node for folder in folders for node in _nodes(folder))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        time.sleep(_BETWEEN)


def _agents(folders: set[Path]) -> Iterator[int]:
    """Agents and their jobs: a restart that is under way would start its node again."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if any(word.startswith(f"{folder}/") for word in words for folder in folders) and "run" in words:
                yield int(process.name)


def _nodes(folder: Path) -> Iterator[int]:
    """By pid and birth, as `kit.processes` records them: the pid may be another's by now."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for path in folder.glob("*/process.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            started = json.loads(path.read_text())
            stat = Path(f"/proc/{started['pid']}/stat").read_text()
            if started["birth"] == f"{boot}:{stat.rpartition(')')[2].split()[19]}":
                yield int(started["pid"])


if __name__ == "__main__":
    _reap(int(sys.argv[1]))
