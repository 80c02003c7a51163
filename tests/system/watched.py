"""A tool in a process of its own whose words are heard while it runs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Self, cast

from airflow_provider_kmigrate.core.cluster_state.decision import Verb
from tests.kit.localcluster.cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
KILLED = -signal.SIGKILL
ACTS = "Decided to"  # what a step says before each act of its own
SEES_TO_IT = (
    f"{ACTS} {Verb.CONTROLLER_FAILOVER}: The dual-write has stalled"  # and before one for what an earlier trouble has left
)
_DID = "Did '"  # what a step says after each act of its own
_ERROR = "Traceback (most recent call last)"
_ENDS_S = 60.0  # its threads may wait for ZooKeeper
_NAMED_S = 45.0  # until it says something; a wait that has not changed is said again after 10 s
_SECONDS = re.compile(r" \([\d.]+ s\)\s*$")  # how long the step has run, at the end of each of its lines


def is_curing(words: str) -> bool:
    """Whether a step that has said this has begun a cure of the dual-write and not ended it."""
    _, begun, after = words.rpartition(SEES_TO_IT)
    return bool(begun) and _DID not in after


class Watched:
    """`tests.system.tool` with this step and, maybe, a trap; `tell` hears each line as it comes. Killed at the end, whatever it does."""

    def __init__(
        self, cluster: LocalCluster, kind: str, arguments: Mapping[str, object], tell: Callable[[str], None], *trap: str
    ) -> None:
        argv = [sys.executable, "-u", "-m", "tests.system.tool", str(cluster.folder), kind, json.dumps(arguments), *trap]
        self.process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.words = ""
        self._tell = tell
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        for line in cast(IO[str], self.process.stdout):
            self.words += line
            self._tell(f"tool: {line}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._listening.join(5.0)

    def ends(self, timeout: float) -> tuple[int, str]:
        """Its exit code, and all that it said. One that does not end within `timeout` seconds fails with the last of it."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {timeout:g} s: {self.words[-2_000:]}") from None
        self._listening.join(5.0)
        return code, self.words

    def exit_code(self) -> int | None:
        """None while it runs; one that has printed its error takes a moment to end, and is waited for."""
        return self.process.wait(_ENDS_S) if _ERROR in self.words else self.process.poll()

    def says(self, named: str, since: int) -> str:
        """What matched in the words after the first `since` characters."""
        deadline = time.monotonic() + _NAMED_S
        while time.monotonic() < deadline:
            if ended := self.process.poll() is not None:
                self._listening.join(5.0)
            found = re.search(named, self.words[since:])
            if found:
                return _SECONDS.sub("", found.group()).strip()
            if ended:
                break
            time.sleep(0.1)
        raise AssertionError(f"it never said {named!r}; exit code {self.process.poll()}: {self.words[since:][-600:]}")
