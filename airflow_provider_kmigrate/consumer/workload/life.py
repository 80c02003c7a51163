"""When a workload process must end."""

from __future__ import annotations

import signal
import time
from pathlib import Path

MAX_SECONDS = 6 * 3600.0  # a forgotten workload ends itself
_LOOK_S = 1.0


class Life:
    """Ends at SIGTERM or SIGINT, when the folder of the events is gone, or after `max_seconds`."""

    def __init__(self, folder: Path, max_seconds: float = MAX_SECONDS) -> None:
        self._folder = folder
        self._deadline = time.monotonic() + max_seconds
        self._next_look = 0.0
        self._ended = False

    def listen(self) -> Life:
        """Take the signals; only a process's main thread may."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self.end())
        return self

    def end(self) -> None:
        """End this life: `over` is true from now on."""
        self._ended = True

    @property
    def over(self) -> bool:
        """True if the process must end. The folder is checked once a second."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            self._ended |= now > self._deadline or self.abandoned
        return self._ended

    @property
    def abandoned(self) -> bool:
        """True if the folder is gone: no audit will read what is written now."""
        return not self._folder.is_dir()
