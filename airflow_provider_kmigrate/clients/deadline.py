"""One budget of seconds for all parts of a call."""

from __future__ import annotations

import time


class Deadline:
    """One budget of seconds for all of a call."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def seconds_left(self) -> float:
        """The seconds left; raises TimeoutError if none are."""
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        return remaining
