"""Signs of life of a client that is alive and that nobody polls: a web application between two requests, a consumer at work on a batch.

Only a process that lives gives them: a killed one falls silent, and so does one whose application has dropped the client.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

BEAT_S: Final = 5.0  # many times within an audit's `behind`


class Pulse:
    """Calls a bound method every `every_s` seconds in a thread of its own, until `stop`, or until its object is collected.

    The thread keeps neither the object nor the process alive. A forked child has no such thread: its parent's clients are not its own.
    """

    def __init__(self, beat: Callable[[], None], every_s: float = BEAT_S) -> None:
        self._stopped = threading.Event()
        made = (weakref.WeakMethod(beat), self._stopped, every_s)
        self._thread = threading.Thread(target=_run, args=made, daemon=True, name="kmigrate-pulse")

    def start(self) -> None:
        """Once."""
        self._thread.start()

    def stop(self) -> None:
        """No beat begins any more; one that is under way goes on to its end. May be repeated."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        """For the beat itself, under the lock under which it is stopped: then nothing is written behind the last event."""
        return self._stopped.is_set()


def _run(beat: weakref.WeakMethod[Any], stopped: threading.Event, every_s: float) -> None:
    while not stopped.wait(every_s):
        found = beat()
        if found is None:
            return
        found()
        del found  # else the wait would keep the client
