"""The base of every operator: one step of the migration, run until there is nothing left to do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import NEVER_EXPIRE

from airflow_provider_kmigrate.core.decision import Done, Wait
from airflow_provider_kmigrate.core.progress import FRESH, StepProgress
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, KMigrateError, Refused
from airflow_provider_kmigrate.hooks.step_context import acting, asking, run_of, watching
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.triggers.step import StepTrigger, readable

if TYPE_CHECKING:
    from airflow_provider_kmigrate.core.approval import Approval

_KEY = "progress"  # in Airflow's task state store
FINALIZE, STAY = "Finalize", "Stay in dual-write"
ROLL_BACK, LEAVE = "Roll back", "Leave as it is"
CONTINUE, END = "Continue", "End this run"
REMOVE, KEEP = "Remove", "Keep everything"
EXPAND = "Run this plan"


class StepOperator(BaseOperator):
    """Base of all operators of kmigrate: run one step on the cluster until it is done; returns the sentence that says what is now so.

    Safe to be killed and run again at any time. A refusal fails the task at once, without retries: a retry would see the same.

    :param cluster_file: path of the cluster file. (templated)
    :param deferrable: hand waits of more than `sync_for` seconds to the triggerer; ignored by steps that must end in one process.
        Airflow's `[operators] default_deferrable` by default. The DAGs of kmigrate set it.
    :param sync_for: seconds of mere waiting in the worker before the task is deferred.
    :param approved_by: id of an approval task of the same run, whose answer must be `answer`.
    :param answer: that answer; by default the one of the plan that the step belongs to.
    """

    template_fields: Sequence[str] = ("cluster_file",)
    ui_color = "#d7e8f4"
    kind: str  # the step's name in `steps.catalog`, which the triggerer needs too
    answer = ROLL_BACK  # that `approved_by` must have given
    read_only = False  # nothing is written to the cluster, not even its owner
    asks = False  # read-only, and refused if another run owns the cluster: an administrator is asked next
    over_waiting = False  # may take the lock of a run that only waits
    in_one_process = False  # never deferred
    _progress: StepProgress
    _stored: _Stored
    _killed = False
    approval: Approval | None = None  # that `approved_by` was given, as it is recorded; read in each try

    def __init__(
        self,
        *,
        cluster_file: str,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        sync_for: float = 30.0,
        approved_by: str | None = None,
        answer: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"execution_timeout": None, **kwargs})  # not Airflow's default: it would cut a restart in half
        self.approved_by = approved_by
        self.answer = answer or self.answer
        self.cluster_file, self.deferrable, self.sync_for = cluster_file, deferrable and not self.in_one_process, sync_for

    def on_kill(self) -> None:
        """Begin no further act on the cluster; the current one continues for the seconds that Airflow still gives it.

        Stopping it would be worse: a broker between its stop and its start would stay down. Nothing is released: the run still
        owns the cluster, and its next try observes it and does the rest. A command that outlives this process is refused by the
        nodes once a newer process acts (the fence's token).
        """
        self._killed = True

    def arguments(self, _context: Context) -> dict[str, Any]:
        """The step's arguments as JSON values."""
        return {}

    def step_context(self, context: Context) -> AbstractContextManager[StepContext]:
        """The step's context: the cluster, owned by this run unless it only observes."""
        if self.read_only:
            return watching(self.cluster_file, self.log.info, run_of(context))
        if self.asks:
            return asking(self.cluster_file, context, self.log.info, over_waiting=self.over_waiting)
        return acting(self.cluster_file, context, self.log.info, killed=lambda: self._killed, over_waiting=self.over_waiting)

    def refused(self, context: Context, error: KMigrateError) -> None:
        """Handle a refusal, or another error that no retry cures; the task is about to fail."""

    def execute(self, context: Context) -> str:
        """Begin a try: the progress of an earlier try is continued, but its patience starts again."""
        self._stored = _Stored(context)
        return self._execute(context, self._stored.progress.retried())

    def _execute(self, context: Context, progress: StepProgress) -> str:
        if self.approved_by:
            from airflow_provider_kmigrate.hooks.approval import demand_answer  # noqa: PLC0415  # few tasks follow an approval

            self.approval = demand_answer(self.cluster_file, context, self.approved_by, self.answer)
        self._progress = progress
        arguments = self.arguments(context)
        try:
            with self.step_context(context) as step_context:
                decision = self.run_in(step_context, arguments)
        except (Refused, AuthenticationFailed, Failed) as error:
            self.refused(context, error)
            raise AirflowFailException(str(error)) from None
        finally:
            self._stored.save(self._progress)
        if isinstance(decision, Wait):
            self._defer(arguments)
        return str(getattr(decision, "text", decision))

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """The step itself; `Wait` to be deferred."""
        step = build(step_context.spec, self.kind, arguments, self._progress)
        try:
            decision = run_step(step, step_context, self._patience(), lambda: self._stored.secure(step.progress))
        finally:
            self._progress = step.progress
            arguments |= step.more_arguments
        if isinstance(decision, Done):
            self._progress = FRESH  # a task that is cleared later begins again
        return decision

    def resume(self, context: Context, event: dict[str, Any]) -> str:
        """Resume after the trigger: it found something to do, or a problem, or has watched for long enough. Observe again here."""
        self.log.info("The triggerer observed; %s. %s", event["outcome"], event["text"])
        self._stored, self._progress = _Stored(context), readable(event["progress"])
        self._stored.save(self._progress)
        if event["outcome"] == "waiting":
            self.meanwhile(context)
            self._defer(event.get("arguments") or self.arguments(context))
        return self._execute(context, self._progress)

    def meanwhile(self, context: Context) -> None:
        """Check what only a worker can see; called while the triggerer watches. May fail the task."""

    def _patience(self) -> float:
        return self.sync_for if self.deferrable else float("inf")

    def _defer(self, arguments: dict[str, Any]) -> None:
        self.log.info("Waiting; deferred to the triggerer.")
        trigger = StepTrigger(self.cluster_file, self.kind, arguments, self._progress.to_json())
        self.defer(trigger=trigger, method_name="resume", timeout=timedelta(days=30))


class _Stored:
    """A task's `StepProgress` in Airflow's task state store, under one key: each read and write is a request to Airflow's API.

    Raises as `readable`.
    """

    def __init__(self, context: Context) -> None:
        self._store: Any = context["task_state_store"]
        self.progress = readable(self._store.get(_KEY, None))

    def save(self, progress: StepProgress) -> None:
        """Store it whole, if it changed."""
        if progress != self.progress:
            self.progress = progress
            self._store.set(_KEY, progress.to_json(), retention=NEVER_EXPIRE)

    def secure(self, now: StepProgress) -> None:
        """Store what the process after a kill must know."""
        self.save(self.progress.to_secure(now))
