"""One thread of a running broker, broken as Kafka's own fault does it, and no signal can."""

from __future__ import annotations

import os
import signal
import socket
import zipfile
from pathlib import Path
from typing import Final

from tests.old_consumer.old_consumers import compiled
from tests.waiting import wait_until

_SOURCE: Final = Path(__file__).with_name("BreakThread.java")
_MANIFEST: Final = "Manifest-Version: 1.0\nAgent-Class: BreakThread\n"


def break_thread(pid: int, name: str, folder: Path) -> None:
    """Break the thread of that controller client whose name ends with `name`. `folder`: for the agent's jar, which must stay while the JVM runs."""
    jar = folder / "break-thread.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", _MANIFEST)
        archive.write(compiled([_SOURCE], (), "break-thread") / "BreakThread.class", "BreakThread.class")
    answer = _ask_jvm(pid, "load", "instrument", "false", f"{jar}={name}")
    assert answer == ["0", "return code: 0"], answer


def _ask_jvm(pid: int, *words: str) -> list[str]:
    """The lines that HotSpot's attach listener answers to a command with three arguments; it listens once it was asked to."""
    listens, wanted = Path(f"/tmp/.java_pid{pid}"), Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
    if not listens.exists():
        wanted.touch()
        try:
            os.kill(pid, signal.SIGQUIT)
            wait_until(listens.exists, f"the JVM {pid} listens", timeout=30.0)
        finally:
            wanted.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as to_jvm:
        to_jvm.settimeout(30.0)
        to_jvm.connect(str(listens))
        to_jvm.sendall(b"".join(word.encode() + b"\0" for word in ("1", *words)))
        return b"".join(iter(lambda: to_jvm.recv(4096), b"")).decode().split("\n")[:-1]
