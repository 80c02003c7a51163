"""Watch a cluster without holding a worker until a step has something to do, or is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_kmigrate.core.decision import Wait
from airflow_provider_kmigrate.exceptions import Fenced, KMigrateError, Refused, TimedOut
from airflow_provider_kmigrate.hooks.world import watching
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.journal import told
from airflow_provider_kmigrate.steps.run import Clock, run_step


class StepTrigger(BaseTrigger):
    """Looks and decides, never acts; whatever is to be done, the task does when it resumes and looks for itself.

    The only state is in the arguments: a triggerer that dies begins to watch again. `watch_for`: seconds after which the task
    resumes in any case, so that what it keeps (the soaked time) is stored; longer where the step's judgement needs longer.
    """

    def __init__(
        self, cluster_file: str, kind: str, arguments: dict[str, Any], interval: float = 2.0, watch_for: float = 300.0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cluster_file, self.kind, self.arguments = cluster_file, kind, arguments
        self.interval, self.watch_for = interval, watch_for

    def serialize(self) -> tuple[str, dict[str, Any]]:
        fields = ("cluster_file", "kind", "arguments", "interval", "watch_for")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in fields}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        stop = Event()
        try:
            event = await asyncio.to_thread(self._watch, stop)
        finally:
            stop.set()  # a triggerer that ends would otherwise wait for the thread until `watch_for` is over
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    def _watch(self, stop: Event) -> dict[str, Any]:
        """`{"outcome": "waiting" | "ready" | "refused" | "unavailable", "text", "held": seconds or null, "waited": seconds, "worse", "renewed", "watched"}`.

        `held`: what a step has soaked or baked; `waited`: what its patience has been tried; `worse`: what was found wrong;
        `renewed`: how often members of a baking instance began anew; `watched`: seconds of a watch in all, and how often it was not well.
        """
        step = None
        try:
            with watching(self.cluster_file) as world:
                step = build(world.spec, self.kind, self.arguments)
                step.interval = max(step.interval, self.interval)
                decision = run_step(
                    step, replace(world, clock=_Stoppable(world.clock, stop)), sync_for=max(self.watch_for, step.memory)
                )
            outcome, text = ("waiting", told(decision.reasons)) if isinstance(decision, Wait) else ("ready", decision.text)
        except Fenced:
            if step:
                step.undo()
            outcome, text = "ready", "There is something to do."
        except (Refused, TimedOut) as error:
            outcome, text = "refused", str(error)
        except (
            KMigrateError,
            OSError,
        ) as error:  # a full disk under the journal, say: the task looks, and says it in its own log
            outcome, text = "unavailable", str(error)
        waited = step.waited if step else self.arguments.get("waited", 0.0)
        kept = {"held": getattr(step, "held", None), "waited": waited}
        for name, unset in (("worse", []), ("renewed", 0), ("watched", [])):  # what was not looked at is as it was
            kept[name] = getattr(step, name, unset) if step else self.arguments.get(name, unset)
        return {"outcome": outcome, "text": text, **kept}


class _Stopped(Exception):
    """Nobody waits for this trigger's word any more."""


@dataclass(frozen=True, slots=True)
class _Stoppable:
    """Another clock, on which nobody goes on after `stop`."""

    clock: Clock
    stop: Event = field(repr=False)

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def now(self) -> float:
        return self.clock.now()

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        if self.stop.is_set():
            raise _Stopped
