"""Waiting for what real processes do in their own time."""

from __future__ import annotations

import time
from collections.abc import Callable

_PAUSE = 0.05  # seconds between two questions


def wait_until(holds: Callable[[], object], what: str, timeout: float = 60.0) -> float:
    """The seconds until it held; fails the test, naming `what` was waited for, where it does not within `timeout` seconds."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < timeout, f"in vain for {timeout:g} s: {what}"
        time.sleep(_PAUSE)
    return time.monotonic() - began
