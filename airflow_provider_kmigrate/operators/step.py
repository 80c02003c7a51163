"""What every operator of kmigrate is: one step of the migration, run until there is nothing left to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import NEVER_EXPIRE

from airflow_provider_kmigrate.core.decision import Done, Wait
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, Refused
from airflow_provider_kmigrate.hooks.world import acting, run_of, watching
from airflow_provider_kmigrate.operators.approval import demand_answer
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.run import Step, World, run_step
from airflow_provider_kmigrate.triggers.step import StepTrigger

_HELD, _WAITED, _WORSE, _RENEWED, _VERDICT, _WATCHED = "held", "waited", "worse", "renewed", "verdict", "watched"
_BEGUN = "begun"
_KEPT = "watch"  # the key in Airflow's task state store
_BEGINNING: Mapping[str, Any] = {_HELD: 0.0, _RENEWED: 0, _VERDICT: [], _WATCHED: [], _BEGUN: False}


class StepOperator(BaseOperator):
    """Run the step `kind` on the cluster of `cluster_file`; returns the sentence that says what is now so.

    Safe to be killed and run again at any time. Waits of more than `sync_for` seconds are deferred to the triggerer, where
    `deferrable` is true. A refusal fails the task at once, without retries: a retry would see the same.
    """

    template_fields: Sequence[str] = ()
    ui_color = "#d7e8f4"
    kind: str
    only_looks = False  # nothing is written to the cluster, not even who holds it
    _memory: _Memory

    def __init__(
        self,
        *,
        cluster_file: str,
        deferrable: bool = True,
        sync_for: float = 30.0,
        approved_by: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.approved_by = approved_by
        self.cluster_file, self.deferrable, self.sync_for = cluster_file, deferrable, sync_for

    def arguments(self, context: Context) -> dict[str, Any]:
        """The step's arguments as JSON values."""
        del context
        return {}

    def world(self, context: Context) -> AbstractContextManager[World]:
        """What the step may touch: the cluster, held by this run where it does not only look."""
        if self.only_looks:
            return watching(self.cluster_file, self.log.info, run_of(context))
        return acting(self.cluster_file, context, self.log.info)

    def refused(self, context: Context, reasons: Sequence[Reason]) -> None:
        """The step was refused for these reasons; the task is about to fail."""

    def execute(self, context: Context) -> str:
        return self._execute(context, {_WAITED: 0.0})

    def _execute(self, context: Context, watched: dict[str, Any]) -> str:
        if self.approved_by:
            demand_answer(context, self.approved_by)
        self._memory = _Memory(context)
        arguments = {**self.arguments(context), **self._memory.all, **watched}
        try:
            with self.world(context) as world:
                decision = self.run_in(world, arguments)
        except (Refused, AuthenticationFailed, Failed) as error:
            self.refused(context, getattr(error, "reasons", ()))
            raise AirflowFailException(str(error)) from None
        finally:
            self._memory.keep(arguments)
        if isinstance(decision, Wait):
            self._defer(arguments)
        return str(getattr(decision, "text", decision))

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        """The step itself; `Wait` to be deferred."""
        step = build(world.spec, self.kind, arguments)
        try:
            decision = run_step(step, world, self._patience(), lambda: self._looked(step))
        finally:
            arguments |= {_HELD: getattr(step, _HELD, 0.0), _WAITED: step.waited, _WORSE: getattr(step, _WORSE, [])}
            arguments |= {name: getattr(step, name, _BEGINNING[name]) for name in (_RENEWED, _VERDICT, _WATCHED, _BEGUN)}
        if isinstance(decision, Done):
            arguments |= _BEGINNING  # a task that is cleared later begins anew
        return decision

    def _looked(self, step: Step) -> None:
        """What a process that is killed now must not forget. How long all was well it may: then it is watched for longer."""
        verdict, begun = getattr(step, _VERDICT, []) or None, getattr(step, _BEGUN, False) or None
        self._memory.keep({_RENEWED: getattr(step, _RENEWED, 0), _VERDICT: verdict, _BEGUN: begun})

    def resume(self, context: Context, event: dict[str, Any]) -> str:
        """The trigger saw something to do, or a problem: look again here, where it can be acted on. Or only time has passed."""
        self.log.info("The triggerer watched on; %s. %s", event["outcome"], event["text"])
        _Memory(context).keep(event)
        if event["outcome"] == "waiting":
            self.meanwhile(context)
            self._defer({**self.arguments(context), _HELD: event[_HELD] or 0.0, **_seen_by(event)})
        return self._execute(context, _seen_by(event))

    def meanwhile(self, context: Context) -> None:
        """The triggerer has watched for a while and watches on: what only a worker can see is looked at here, which may fail the task."""

    def _patience(self) -> float:
        return self.sync_for if self.deferrable else float("inf")

    def _defer(self, arguments: dict[str, Any]) -> None:
        self.log.info("Nothing to do for now; the triggerer watches on, no worker is held.")
        trigger = StepTrigger(self.cluster_file, self.kind, arguments)
        self.defer(trigger=trigger, method_name="resume", timeout=timedelta(days=30))


def _seen_by(event: dict[str, Any]) -> dict[str, Any]:
    """What the triggerer's watch found and the next look begins with."""
    found = {name: event.get(name, unset) for name, unset in ((_WORSE, []), (_RENEWED, 0), (_WATCHED, []))}
    return {_WAITED: event[_WAITED], **found}


class _Memory:
    """What a task remembers over deferrals and retries: `held`, seconds that it has watched everything stay green (soaking, baking),
    `renewed`, how often members of an instance that bakes, or a dual-write, have begun anew, and `verdict`, for what a canary has to go
    back: kept before it is acted on, forgotten when it is back; `begun`: an instance was stopped to be started again, kept likewise;
    `watched`: seconds of a watch in all, and how often it was not well.
    """

    def __init__(self, context: Context) -> None:
        self._store: Any = context["task_state_store"]
        kept = self._store.get(_KEPT, {})  # all under one key: each is a request to Airflow's API
        found = {name: (kept if isinstance(kept, dict) else {}).get(name, begins) for name, begins in _BEGINNING.items()}
        self.all = {name: value if _like(value, _BEGINNING[name]) else _BEGINNING[name] for name, value in found.items()}

    def keep(self, values: Mapping[str, Any]) -> None:
        """Those of them that it remembers; where nothing changed, nothing is written."""
        new = {name: values[name] for name in self.all.keys() & values.keys() if values[name] is not None}
        if self.all | new != self.all:
            self.all |= new
            self._store.set(_KEPT, dict(self.all), retention=NEVER_EXPIRE)


def _like(value: object, beginning: object) -> bool:
    return isinstance(value, list if isinstance(beginning, list) else int | float)
