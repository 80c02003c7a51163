"""A consumer in a process of its own that may hang: `python -m tests.system.hanging BOOTSTRAP TOPIC GROUP`.

SIGSTOP halts the process. SIGUSR1 makes it stop polling for good, while its library keeps it a member. SIGTERM ends it cleanly.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from confluent_kafka import Consumer


class Client:
    """The only member of its group, with client id `client-<group>`."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._command = [sys.executable, "-m", __name__, bootstrap, topic, group]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        """Also a halted one."""
        if self._process.poll() is None:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
        self._process.wait(30)


def main(bootstrap: str, topic: str, group: str) -> None:
    hangs, ends = threading.Event(), threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: hangs.set())
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "client.id": f"client-{group}"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 1_000})
    consumer.subscribe([topic])
    while not ends.is_set():
        if hangs.is_set():
            ends.wait(1.0)
        else:
            consumer.poll(0.2)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
