"""Threads for calls that may hang, shared by all observers of a process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

Value = TypeVar("Value")

_MOST = 256  # threads of a process, and one more for each lane without a running call
_MOST_OF_A_LANE = 64  # a call that hangs keeps its thread until the client's own timeout
_IDLE = 10.0  # seconds after which a thread without work ends


@dataclass(slots=True)
class _Job:
    future: Future[Any]
    call: Callable[[], object]
    lane: Lane

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.call())
        except BaseException as error:  # noqa: BLE001 - as in any executor, it belongs to who waits for the answer
            self.future.set_exception(error)


@dataclass(eq=False, slots=True)
class Lane:
    """The calls of one observer or trigger. Hanging calls of this lane do not delay other lanes."""

    threads: Threads
    waiting: deque[_Job] = field(default_factory=deque)
    running: int = 0

    def submit(self, call: Callable[..., Value], *arguments: Any) -> Future[Value]:
        """Run the call on a thread, in the order of this lane's calls; cancelling the future works only before the call runs."""
        future: Future[Value] = Future()
        self.threads.start(_Job(future, lambda: call(*arguments), self))
        return future

    def close(self) -> None:
        """Drop the calls that have not begun."""
        self.threads.drop(self)


class Threads:
    """Daemon threads, created on demand: a hanging call delays neither the end of the process nor other lanes.

    At most `most` calls run at a time. A lane without a running call may exceed that by one, so that hanging calls of other lanes
    never block it. `idle`: seconds after which a thread without work ends.
    """

    def __init__(self, most: int = _MOST, most_of_a_lane: int = _MOST_OF_A_LANE, idle: float = _IDLE) -> None:
        self._most, self._most_of_a_lane, self._ends_after = most, most_of_a_lane, idle
        self._forget()

    def _forget(self) -> None:
        self._lock, self._running = Lock(), 0
        self._lanes: dict[Lane, None] = {}  # lanes with waiting calls, in their order
        self._idle: list[SimpleQueue[_Job]] = []

    def after_fork(self) -> None:
        """Begin again in a child process, which has none of its parent's threads."""
        self._forget()

    def lane(self) -> Lane:
        """A new lane for one caller's calls."""
        return Lane(self)

    def start(self, job: _Job) -> None:
        """Queue a job on its lane."""
        with self._lock:
            job.lane.waiting.append(job)
            self._lanes[job.lane] = None
            self._dispatch()

    def drop(self, lane: Lane) -> None:
        """Cancel the lane's waiting jobs; a running one ends by itself."""
        with self._lock:
            self._lanes.pop(lane, None)
            dropped = list(lane.waiting)
            lane.waiting.clear()
        for job in dropped:
            job.future.cancel()

    def _dispatch(self) -> None:
        """Give each call that may run to a thread; the lane with the fewest running calls comes first."""
        while (lane := self._next()) is not None:
            job = lane.waiting.popleft()
            if not lane.waiting:
                del self._lanes[lane]
            lane.running, self._running = lane.running + 1, self._running + 1
            if self._idle:
                self._idle.pop().put(job)
            else:
                Thread(target=self._work, args=(job,), name="kmigrate-observe", daemon=True).start()

    def _next(self) -> Lane | None:
        lane = min(self._lanes, key=lambda each: each.running, default=None)
        if lane is None or lane.running >= self._most_of_a_lane:
            return None
        return lane if self._running < self._most or lane.running == 0 else None

    def _work(self, job: _Job | None) -> None:
        inbox: SimpleQueue[_Job] = SimpleQueue()
        while job is not None:
            job.run()
            with self._lock:
                job.lane.running, self._running = job.lane.running - 1, self._running - 1
                self._idle.append(inbox)
                self._dispatch()
            job = self._received(inbox)

    def _received(self, inbox: SimpleQueue[_Job]) -> _Job | None:
        """The next call for this thread; None if none came within the idle time."""
        try:
            return inbox.get(timeout=self._ends_after)
        except Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
            return inbox.get()  # a call arrived at this very moment


THREADS = Threads()
"""The threads of this process."""
os.register_at_fork(after_in_child=THREADS.after_fork)
