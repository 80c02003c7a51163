"""The bases of kmigrate's operators: one act on a cluster, and one step of a plan, run until there is nothing left to do."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.sdk import BaseOperator, BaseOperatorLink, Context
from airflow.sdk.bases.xcom import BaseXCom

from airflow_provider_kmigrate.airflow_releases import AirflowFailException, open_task_state
from airflow_provider_kmigrate.core.cluster_state.decision import Done, Wait
from airflow_provider_kmigrate.core.migration.plan import Access, rows_by_kind
from airflow_provider_kmigrate.core.migration.progress import FRESH, StepProgress
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, KMigrateError, Refused, Unavailable
from airflow_provider_kmigrate.links.pages import PlanPageLink, RunbookLink, first_reason_code
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.triggers.step import StepTrigger, parse_progress
from airflow_provider_kmigrate.utils.status_xcom import EVENT, StatusXCom
from airflow_provider_kmigrate.utils.step_context import (
    PLAN,
    acting_context,
    asking_context,
    dag_run_name,
    open_state,
    read_only_context,
    state_folder,
)

if TYPE_CHECKING:
    from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
    from airflow_provider_kmigrate.core.migration.approval import Approval
    from airflow_provider_kmigrate.core.migration.plan_binding import BoundPlan
    from airflow_provider_kmigrate.core.migration.plan_document import PlanOf

_OF_MIGRATION = "migration"  # `PlanOf.MIGRATION`; the other tasks of a roll need its module for nothing else


class ClusterOperator(BaseOperator):
    """Base of all operators of kmigrate: one act on the cluster, in one process; returns what is now so.

    Safe to be killed and run again at any time. A refusal fails the task at once, without retries: a retry would see the same.

    :param cluster_file: path of the cluster file. (templated)
    """

    template_fields: Sequence[str] = ("cluster_file",)
    ui_color = "#d7e8f4"
    access = Access.ACT
    approved_by: str | None = None  # id of the approval task of this run that must have got `answer`
    answer = ""
    operator_extra_links: Collection[BaseOperatorLink] = (RunbookLink(),)
    stopped_by = ""  # the code that it failed with
    approval: Approval | None = None  # that `approved_by` was given, as it is recorded; read in each try
    _killed = False
    status: StatusXCom  # of this try, for operators

    def __init__(self, *, cluster_file: str, **kwargs: Any) -> None:
        kwargs.setdefault("execution_timeout", None)  # not Airflow's default: it would cut a restart in half
        super().__init__(**kwargs)
        self.cluster_file = cluster_file

    def on_kill(self) -> None:
        """Begin no further act on the cluster; the current one continues for the seconds that Airflow still gives it.

        Stopping it would be worse: a broker between its stop and its start would stay down. Nothing is released: the run still
        owns the cluster, and its next try observes it and does the rest. A command that outlives this process is refused by the
        nodes once a newer process acts (the fence's token).
        """
        self._killed = True

    def build_arguments(self, _context: Context) -> dict[str, Any]:
        """The arguments as JSON values: of this operator, of the run's conf, and what earlier tasks returned."""
        return {}

    def open_step_context(self, context: Context) -> AbstractContextManager[StepContext]:
        """The context of the act, with this operator's `access`."""
        over_waiting = self.access.is_over_waiting
        if self.access is Access.WATCH:
            return read_only_context(self.cluster_file, self.log.info, dag_run_name(context))
        if self.access in {Access.ASK, Access.ASK_OVER_WAITING}:
            return asking_context(self.cluster_file, context, self.log.info, over_waiting=over_waiting)
        return acting_context(self.cluster_file, context, self.log.info, killed=lambda: self._killed, over_waiting=over_waiting)

    def handle_refusal(self, context: Context, error: KMigrateError) -> None:
        """Handle a refusal, or another error that no retry resolves; the task is about to fail."""

    def execute(self, context: Context) -> Any:
        """Demand the approval, if there must be one, and act. A refusal fails the task without retries."""
        self.status = StatusXCom(context.get("ti"))
        try:
            if self.approved_by:
                from airflow_provider_kmigrate.utils.approval import require_answer  # noqa: PLC0415  # few tasks follow an approval

                self.approval = require_answer(self.cluster_file, context, self.approved_by, self.answer)
            arguments = self.build_arguments(context)
            with self.open_step_context(context) as step_context:
                timed = replace(step_context, opening=_seconds_since_start(context))
                result = self.run_in(self.status.attach_to(timed), arguments)
        except KMigrateError as error:
            self.status.store_end(self.cluster_file, self.task_id, str(error), error)
            if not isinstance(error, Refused | AuthenticationFailed | Failed):
                raise
            self.stopped_by = first_reason_code(error)
            self.handle_refusal(context, error)
            raise AirflowFailException(str(error)) from None
        except Exception as error:
            self.status.store_unexpected_end(self.cluster_file, self.task_id, error)
            raise
        if not isinstance(result, Wait):
            self.status.store_end(self.cluster_file, self.task_id, str(getattr(result, "text", "")))
        return self.finish_task(result, arguments)

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """The act itself."""
        raise NotImplementedError

    def finish_task(self, result: object, _arguments: dict[str, Any]) -> Any:
        """What the task returns: the document or the sentence of a decision, or data as it is."""
        return getattr(result, "document", None) or getattr(result, "text", result)


class PlannedOperator(ClusterOperator):
    """Base of the operators that act by the plan of their run: before they act they name what has changed since.

    :param plan_task: id of the task of the same run that made the plan. If the run's conf names the plan that was reviewed (`plan`), a
        change fails the task (H16); a rollback names it and goes on. Empty: nothing is compared.
    :param plan_of: what that plan is of: `migration`, `rollback`, `expansion` or `groups`.
    """

    rolls_back = False
    _bound: BoundPlan | None = None

    def __init__(self, *, plan_task: str = "", plan_of: PlanOf | str = _OF_MIGRATION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan_task, self.plan_of = plan_task, str(plan_of)

    def open_step_context(self, context: Context) -> AbstractContextManager[StepContext]:
        """The context of the act; the run's plan is known from here on, in a resumed task too."""
        if self.plan_task:
            from airflow_provider_kmigrate.core.migration.plan_binding import parse_bound_plan  # noqa: PLC0415  # few tasks are bound

            ti: Any = context["ti"]
            key = PLAN if self.plan_of == _OF_MIGRATION else BaseXCom.XCOM_RETURN_KEY
            self._bound = parse_bound_plan(context["params"].get("plan"), ti.xcom_pull(task_ids=self.plan_task, key=key))
        return super().open_step_context(context)

    def compare_with_plan(self, step_context: StepContext, node: NodeSpec | None = None) -> None:
        """Name what has changed since the run's plan. Raises as `steps.plan_binding.require_same_plan`."""
        if self._bound:
            from airflow_provider_kmigrate.core.migration.plan_document import PlanOf  # noqa: PLC0415
            from airflow_provider_kmigrate.steps.plan_binding import require_same_plan  # noqa: PLC0415

            of = PlanOf(self.plan_of)
            is_rollback = self.rolls_back or of is PlanOf.ROLLBACK
            require_same_plan(step_context, self.task_id, self._bound, of, node, is_rollback=is_rollback)


class PlanOperator(ClusterOperator):
    """Base of the operators that plan a run; changes nothing. Returns the plan (`core.migration.plan_document`); the log names its page, if it could
    be written.

    :param cluster_file: path of the cluster file. (templated)
    :param plan: fingerprint of the plan that was reviewed; another plan is refused (H16). Empty: any. (templated)
    """

    ui_color = "#e6e6fa"
    template_fields: Sequence[str] = (*ClusterOperator.template_fields, "plan")
    operator_extra_links = (*ClusterOperator.operator_extra_links, PlanPageLink())
    page = ""  # that the last try has written

    def __init__(self, *, plan: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def keep_plan(self, step_context: StepContext, plan: dict[str, Any]) -> dict[str, Any]:
        """Write the plan's page, store it for the pages in Airflow, and return the plan. Raises `Refused` (H16) if another one was reviewed."""
        from airflow_provider_kmigrate.core.migration.plan_document import require_reviewed_plan  # noqa: PLC0415  # few tasks plan
        from airflow_provider_kmigrate.preflight.plan_page import read_plan, write_plan  # noqa: PLC0415

        folder = state_folder() / "plan" / step_context.spec.name / str(plan["of"])
        reviewed = read_plan(folder, self.plan)
        try:
            self.page = str(write_plan(plan, folder, open_state()))
        except (Failed, Unavailable) as error:  # a full disk of a worker holds no rollback: the request shows the plan as well
            step_context.say(f"The page of the plan was not written: {error}. The plan is what this task returns.")
        self.status.store_plan(plan)
        step_context.say(f"The plan has the fingerprint {plan['fingerprint']}. Its page: {self.page or 'none'}")
        require_reviewed_plan(plan, self.plan, reviewed)
        return plan


class StepOperator(ClusterOperator):
    """Base of all operators that run a step of `core.migration.plan`; returns the sentence that says what is now so.

    The row of the step says what it may do to the cluster, and whether it may be deferred.

    :param deferrable: hand waits of more than `sync_for` seconds to the triggerer; without effect on a step that must end in one process.
        Airflow's `[operators] default_deferrable` by default. The DAGs of kmigrate set it.
    :param sync_for: seconds of mere waiting in the worker before the task is deferred.
    """

    kind: str  # of the row, which the triggerer needs too
    _progress: StepProgress
    _stored: _Stored

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        sync_for: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        row = rows_by_kind()[self.kind]
        self.access, self.deferrable, self.sync_for = row.access, deferrable and row.deferrable, sync_for

    def execute(self, context: Context) -> Any:
        """Begin a try: the progress of an earlier try is continued, but its patience starts again."""
        self._stored = _Stored(context)
        return self._execute(context, self._stored.progress.for_retry())

    def _execute(self, context: Context, progress: StepProgress) -> Any:
        self._progress = progress
        try:
            return super().execute(context)
        finally:
            self._stored.save(self._progress)

    def finish_task(self, result: object, arguments: dict[str, Any]) -> Any:
        """Defer a step that waits; otherwise as for any operator."""
        if isinstance(result, Wait):
            self._defer(arguments)
        return super().finish_task(result, arguments)

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """Run the step until it is done; `Wait` to be deferred."""
        step = build(step_context.spec, self.kind, arguments, self._progress)
        try:
            decision = run_step(
                step, step_context, self._seconds_before_deferring(), lambda: self._stored.save_for_restart(step.progress)
            )
        finally:
            self._progress = step.progress
            arguments |= step.more_arguments
        if isinstance(decision, Done):
            self._progress = FRESH  # a task that is cleared later begins again
        return decision

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """Resume after the trigger: it found something to do, or a problem, or has watched for long enough. Observe again here."""
        self.log.info("The triggerer observed; %s. %s", event["outcome"], event["text"])
        self._stored, self._progress = _Stored(context, resumed=True), parse_progress(event["progress"])
        self._stored.save(self._progress)
        StatusXCom(context.get("ti")).store(event.get(EVENT))
        if event["outcome"] == "waiting":
            self.check_on_worker(context)
            self._defer(event.get("arguments") or self.build_arguments(context))
        return self._execute(context, self._progress)

    def check_on_worker(self, context: Context) -> None:
        """Check what only a worker can see; called while the triggerer watches. May fail the task."""

    def _seconds_before_deferring(self) -> float:
        return self.sync_for if self.deferrable else float("inf")

    def _defer(self, arguments: dict[str, Any]) -> None:
        self.log.info("Waiting; deferred to the triggerer.")
        trigger = StepTrigger(self.cluster_file, self.kind, arguments, self._progress.to_json())
        self.defer(trigger=trigger, method_name="resume", timeout=timedelta(days=30))


def _seconds_since_start(context: Context) -> float:
    """Of this try of the task, by the clock of this worker; 0 if Airflow does not say when it started."""
    started = getattr(context.get("ti"), "start_date", None)
    return max(0.0, time.time() - started.timestamp()) if started else 0.0


class _Stored:
    """A task's `StepProgress` in its store, written only if it changed. Raises as `parse_progress`, and as the store."""

    def __init__(self, context: Context, *, resumed: bool = False) -> None:
        self._state = open_task_state(context, state_folder() / "progress", open_state(), resumed=resumed)
        self.progress = parse_progress(self._state.read())

    def save(self, progress: StepProgress) -> None:
        """Store it whole, if it changed."""
        if progress != self.progress:
            self.progress = progress
            self._state.write(progress.to_json())

    def save_for_restart(self, now: StepProgress) -> None:
        """Store what the process after a kill must know."""
        self.save(self.progress.merge_before_act(now))
