"""Work on threads, in order within each lane: one partition's actions follow each other, other partitions' overtake them."""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

_RETRY_S: Final = 0.2

Job = Callable[[], bool]
"""Returns whether it is done; if not, it is called again after a moment, and its lane waits for it."""


class PartitionExecutors:
    """`threads` of them. A job must bound its own time and raise nothing."""

    def __init__(self, threads: int = 8) -> None:
        self._lock = threading.Lock()
        self._lanes: dict[Hashable, deque[Job]] = {}
        self._ready: queue.SimpleQueue[Hashable] = queue.SimpleQueue()
        self._later: list[tuple[float, int, Hashable]] = []
        self._count = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True, name=f"kmigrate-lane-{n}") for n in range(threads)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def add(self, key: Hashable, job: Job) -> None:
        with self._lock:
            lane = self._lanes.setdefault(key, deque())
            lane.append(job)
            if len(lane) == 1:
                self._ready.put(key)

    def wake(self) -> None:
        """Whoever has a clock calls this often: lanes that waited go on."""
        with self._lock:
            while self._later and self._later[0][0] <= time.monotonic():
                self._ready.put(heapq.heappop(self._later)[2])

    def close(self, timeout: float) -> None:
        """What has not begun is not done any more; what has is waited for."""
        self._over.set()
        for _ in self._threads:
            self._ready.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while not self._over.is_set():
            key = self._ready.get()
            if not self._over.is_set():
                self._once(key)

    def _once(self, key: Hashable) -> None:
        with self._lock:
            job = self._lanes[key][0]
        done = job()
        with self._lock:
            lane = self._lanes[key]
            if not done:
                self._count += 1
                heapq.heappush(self._later, (time.monotonic() + _RETRY_S, self._count, key))
                return
            lane.popleft()
            if lane:
                self._ready.put(key)
            else:
                del self._lanes[key]
