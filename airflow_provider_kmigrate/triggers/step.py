"""Watch a cluster without holding a worker until a step must act or is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import SyncToAsync

from airflow_provider_kmigrate.airflow_releases import AirflowFailException, may_threads_ask_airflow
from airflow_provider_kmigrate.core.cluster_state.decision import Refuse, Wait
from airflow_provider_kmigrate.core.migration.progress import StepProgress, from_json
from airflow_provider_kmigrate.exceptions import Fenced, KMigrateError, Refused, TimedOut
from airflow_provider_kmigrate.observe.reads import THREADS
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.run import Step, StepClock, StepPause, StepRunner, SystemClock
from airflow_provider_kmigrate.utils.status_xcom import EVENT, StatusKeeper
from airflow_provider_kmigrate.utils.step_context import read_only_context

Value = TypeVar("Value")

_AT_ONCE = 24  # observations of a triggerer that run at the same time, slow ones not counted
_SLOW = 1.0  # seconds after which an observation lets another one begin: a hanging cluster delays no other
_LONGEST = (
    120.0  # seconds, after which an observation is given up; each of its reads has a shorter limit (`observe.ObserverTimeouts`)
)
_INTERVAL = 2.0  # least seconds between two observations
_WATCH_FOR = 300.0  # seconds after which the task resumes in any case, so that progress is stored; longer if the step's judgement needs longer
_REPEAT = 300.0  # seconds after which an unchanged reason is logged again: a soak lasts for days

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def parse_progress(stored: object) -> StepProgress:
    """The progress that was stored as JSON; raises `AirflowFailException` (H09) if it cannot be read."""
    progress = from_json(stored)
    if isinstance(progress, Refuse):
        raise AirflowFailException(format_reasons(progress.reasons))
    return progress


class StepTrigger(BaseTrigger):
    """Observes and decides, never acts: the task observes again and acts when it resumes.

    The only state is in the arguments; `progress` is a `StepProgress` as JSON. A triggerer that dies begins to watch again from
    there.
    """

    def __init__(self, cluster_file: str, kind: str, arguments: dict[str, Any], progress: dict[str, Any] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cluster_file, self.kind, self.arguments, self.progress = cluster_file, kind, arguments, progress

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The path of this class and its arguments, for Airflow's database."""
        fields = ("cluster_file", "kind", "arguments", "progress")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in fields}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event: done, something to do, a problem, or time has passed. The task observes again before it acts."""
        watch = _Watch(self)
        try:
            event = await watch.wait_for_event()
        finally:
            watch.close()
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]


class _Watch:
    """One life of a step in the triggerer: its clients stay open between observations, each of which runs on a thread."""

    def __init__(self, trigger: StepTrigger) -> None:
        self._trigger = trigger
        self._lane = THREADS.open_lane()
        self._opened = ExitStack()
        self._step: Step | None = None
        self._runner: StepRunner | None = None
        self._clock: StepClock = SystemClock()
        self._last: Future[Any] | None = None
        self._saved = from_json(trigger.progress)
        self._status = StatusKeeper()

    async def wait_for_event(self) -> dict[str, Any]:
        """`{"outcome": "waiting" | "ready" | "refused" | "unavailable", "text", "progress": StepProgress as JSON, "arguments", "status"}`."""
        last = self._trigger.progress
        while True:
            try:
                outcome = await self._run_on_thread(self._observe)
            except TimeoutError:
                text = f"An observation took more than {_LONGEST:.0f} s and was given up."
                return self._build_event("unavailable", text) | {"progress": last}
            if not isinstance(outcome, StepPause):
                return outcome
            last = self._progress_json()
            await self._clock.pause(outcome.seconds)

    async def _run_on_thread(self, call: Callable[[], Value]) -> Value:
        """Run the call on a thread of our own: all triggers share the loop's default ones, and name resolution needs them.

        Raises TimeoutError; the call that still runs then is abandoned.
        """
        turn = _ObservationPermit()
        await turn.begin()
        try:
            return await asyncio.wait_for(self._begin(call), _LONGEST)
        finally:
            turn.end()

    def _begin(self, call: Callable[[], Value]) -> Awaitable[Value]:
        if may_threads_ask_airflow():
            return asyncio.wrap_future(self.submit(copy_context().run, call))
        executor: Any = self  # asgiref calls its `submit` only
        return SyncToAsync(call, thread_sensitive=False, executor=executor)()

    def submit(self, call: Callable[..., Value], *arguments: Any) -> Future[Value]:
        """Begin a call on this trigger's threads, as an executor does."""
        self._last = future = self._lane.submit(call, *arguments)
        return future

    def close(self) -> None:
        """Close the clients once the observation that may still run has ended; the caller does not wait for it."""
        if self._last is not None:
            self._last.add_done_callback(lambda _: self._lane.submit(self._opened.close))

    def _observe(self) -> StepPause | dict[str, Any]:
        """Open what is not open, observe and decide once; returns a pause until the next time, or the event."""
        try:
            decision = self._open_runner().tick()
        except Fenced:
            if self._step:
                self._step.forget_decision()
            return self._build_event("ready", "There is something to do.")
        except (Refused, TimedOut) as error:
            return self._build_event("refused", str(error))
        except Exception as error:  # noqa: BLE001 - of whatever answer: the task observes by itself, and ends by what stays
            return self._build_event("unavailable", self._explain_error(error))
        if isinstance(decision, Wait):
            return self._build_event("waiting", format_reasons(decision.reasons))
        if isinstance(decision, StepPause):
            return self._build_event("waiting", format_reasons(decision.reasons)) if self._is_progress_overstated() else decision
        return self._build_event("ready", decision.text)

    def _explain_error(self, error: Exception) -> str:
        """What the task logs; an error that is not ours would end the trigger, and its task without a word."""
        if isinstance(error, KMigrateError | OSError):  # a full disk under the journal, say
            return str(error)
        self._trigger.log.error("An observation ended unexpectedly.", exc_info=error)
        return f"An observation ended unexpectedly ({type(error).__name__}); the triggerer's log has the details."

    def _open_runner(self) -> StepRunner:
        if self._runner is None:
            trigger = self._trigger
            if isinstance(self._saved, Refuse):
                raise Refused.because(*self._saved.reasons)
            opened = self._opened.enter_context(read_only_context(trigger.cluster_file, trigger.log.info))
            context = replace(opened, judges_backup=False, offer_status=self._status.offer)
            self._clock = context.clock
            self._step = step = build(context.spec, trigger.kind, trigger.arguments, self._saved)
            step.interval = max(step.interval, _INTERVAL)
            self._runner = StepRunner(step, context, max(_WATCH_FOR, step.min_watch), repeat=_REPEAT)
        return self._runner

    def _is_progress_overstated(self) -> bool:
        """True if the stored progress claims more healthy time than is left: the task must store that at once."""
        healthy = self._step.progress.healthy_seconds if self._step else 0.0
        return isinstance(self._saved, StepProgress) and healthy < self._saved.healthy_seconds

    def _progress_json(self) -> dict[str, Any] | None:
        return self._step.progress.to_json() if self._step else self._trigger.progress

    def _build_event(self, outcome: str, text: str) -> dict[str, Any]:
        event = {"outcome": outcome, "text": text, "progress": self._progress_json(), "arguments": self._trigger.arguments}
        return event if self._status.document is None else event | {EVENT: self._status.document}


class _ObservationPermit:
    """Permission to observe: few observations run at the same time. It ends with the observation, or once that is slow."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns = _turns.setdefault(self._loop, asyncio.Semaphore(_AT_ONCE))
        self._slow: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Wait for a turn; it is given up early if the observation is slow."""
        await self._turns.acquire()
        self._slow = self._loop.call_later(_SLOW, self.end)

    def end(self) -> None:
        """Give the turn to the next observation, once."""
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
            self._turns.release()
