"""Waiting for what real processes do in their own time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_PAUSE = 0.05  # seconds between two questions
_SHOWN = 2_000  # characters of what was seen last

Value = TypeVar("Value")


def wait_until(holds: Callable[[], object], what: str, timeout: float = 60.0, despite: tuple[type[Exception], ...] = ()) -> float:
    """The seconds until it held; fails the test, naming `what` was waited for, where it does not within `timeout` seconds.

    An error in `despite` is as good as False.
    """
    began = time.monotonic()
    while not (seen := _asked(holds, despite)) or isinstance(seen, despite):
        assert time.monotonic() - began < timeout, f"in vain for {timeout:g} s: {what}; {str(seen)[:_SHOWN]}"
        time.sleep(_PAUSE)
    return time.monotonic() - began


def wait_for(observe: Callable[[], Value], holds: Callable[[Value], object], what: str, timeout: float = 60.0) -> Value:
    """The first look of which it holds; fails as `wait_until`, with what the last look could not see (`unknowns`), where it has such."""
    seen: list[Value] = []

    def once() -> object:
        seen[:] = [observe()]
        return holds(seen[0])

    try:
        wait_until(once, what, timeout)
    except AssertionError as error:
        raise AssertionError(f"{error}; not seen: {getattr(seen[0], 'unknowns', '')}") from None
    return seen[0]


def _asked(holds: Callable[[], object], despite: tuple[type[Exception], ...]) -> object:
    try:
        return holds()
    except despite as error:
        return error


@contextmanager
def beside(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """`work` goes on in a thread while the block lasts; it ends when the event that it is given is set."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def refusing_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections; bound all the while, so that no other process listens on it meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
