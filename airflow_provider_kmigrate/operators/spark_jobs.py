"""Hold users' streaming jobs before a step that could hurt them, resume them after it, and check their progress."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import BaseOperator, Context

from airflow_provider_kmigrate.airflow_releases import AirflowFailException, AirflowSkipException
from airflow_provider_kmigrate.core.cluster_state.decision import Act, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, HoldPolicy
from airflow_provider_kmigrate.core.migration.phase import position_of
from airflow_provider_kmigrate.core.migration.plan import ROLL_BACK
from airflow_provider_kmigrate.core.migration.waits import next_window_opening, wait_for_window
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.core.spark.job_risks import find_job_risks, leaderless_reasons
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Refused
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.run import refuse_if_kill_switch_on
from airflow_provider_kmigrate.steps.spark_jobs import JobControl
from airflow_provider_kmigrate.utils.approval import demand_answer
from airflow_provider_kmigrate.utils.spark_jobs import make_job_control, make_log_reader
from airflow_provider_kmigrate.utils.step_context import dag_run_name, make_finished_check, read_kill_switch, read_only_context


class SparkJobOperator(BaseOperator):
    """One act on one job of the cluster file. A refusal fails the task at once: a retry would see the same.

    :param cluster_file: path of the cluster file. (templated)
    :param job: name of the job in the cluster file. (templated)
    """

    template_fields: Sequence[str] = ("cluster_file", "job")
    ui_color = "#fdf0cd"
    _killed = False

    def __init__(self, *, cluster_file: str, job: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster_file, self.job = cluster_file, job

    def on_kill(self) -> None:
        """End the wait. A hold that was only asked for is withdrawn, or the job would stop later when no task is left to resume it; one in
        effect stays, and belongs to the run: its next try, or its task that resumes the job, continues from there.
        """
        self._killed = True

    def execute(self, context: Context) -> str:
        """Act on the job; a refusal fails the task without retries."""
        try:
            spec = load(self.cluster_file)
            control = make_job_control(spec, self.job, self.log.info, make_finished_check(context), lambda: self._killed)
            return self.run_in(control, spec, dag_run_name(context))
        except (Refused, AuthenticationFailed) as error:
            raise AirflowFailException(str(error)) from None

    @abstractmethod
    def run_in(self, control: JobControl, spec: ClusterSpec, run: str) -> str:
        """Act on the job; returns the sentence that says what is now so."""


class HoldSparkJobOperator(SparkJobOperator):
    """Hold a job of the cluster file between two batches, if its policy asks for it. The hold belongs to the DAG run.

    The job must run under `spark_hold.keep_running`, or have commands that hold and release it. Skipped if the policy wants no hold. Fails, and withdraws the hold, if the job is not
    held in time. Refuses while the kill switch is on (H05). Outside the maintenance windows, where the roll could not begin, the task is
    deferred until one opens; a rollback's is not (`approved_by`). Safe to be killed and run again.

    :param risky: the step may hurt the job; None: observe whether restarting brokers one after another may leave one of its topics without
        a leader; what cannot be observed may.
    :param reason: what the hold is for, as its log says. (templated)
    :param required: false: continue without a job that has not responded for a minute.
    :param approved_by: id of an approval task of the same run, whose answer must be yes (H06).
    """

    template_fields: Sequence[str] = (*SparkJobOperator.template_fields, "reason")

    def __init__(
        self,
        *,
        risky: bool | None = None,
        reason: str = "a step of kmigrate",
        required: bool = True,
        approved_by: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.risky, self.reason, self.required, self.approved_by = risky, reason, required, approved_by

    def execute(self, context: Context) -> str:
        """Check the approval, then hold the job."""
        if self.approved_by:
            demand_answer(self.cluster_file, context, self.approved_by, ROLL_BACK)
        return super().execute(context)

    def run_in(self, control: JobControl, spec: ClusterSpec, run: str) -> str:
        """Skip if the policy wants no hold for this step; refuse (H05) while the kill switch is on."""
        policy = control.job.hold
        risky = self._is_risky(control) if self.risky is None and policy is HoldPolicy.RISKY else bool(self.risky)
        if not policy.should_hold(risky=risky):
            raise AirflowSkipException(f"Job {self.job} is not held for this step: its policy is {policy}.")
        refuse_if_kill_switch_on(spec.name, read_kill_switch(spec.name))
        self._defer_until_window(spec)
        return control.hold(run, self.reason, make_log_reader(spec), needed=self.required)

    def resume(self, context: Context, event: dict[str, Any]) -> str:
        """Decide again, now that a window has opened."""
        del event
        return self.execute(context)

    def _defer_until_window(self, spec: ClusterSpec) -> None:
        """Defer the task if the roll waits for its window: the job would stand still until then."""
        now = datetime.now(UTC)
        opens = None if self.approved_by else next_window_opening(spec.windows, now)
        if opens is None:
            return
        with read_only_context(self.cluster_file) as step_context:
            phase = position_of(step_context.observer.observe(Fields.POSITION)).phase
        decision = wait_for_window(Act(Verb.RESTART, self.reason), phase, spec.windows, now)
        if isinstance(decision, Wait):
            self.log.info("Job %s runs until %s. %s", self.job, opens, format_reasons(decision.reasons))
            self.defer(trigger=DateTimeTrigger(moment=opens), method_name="resume")

    def _is_risky(self, control: JobControl) -> bool:
        reasons = leaderless_reasons(control.job, _observe_topics(self.cluster_file))
        if reasons:
            self.log.info("The step is risky for job %s: %s", self.job, format_reasons(reasons))
        return bool(reasons)


class ResumeSparkJobOperator(SparkJobOperator):
    """Resume a held job, and wait until its query makes progress from exactly where it had stopped. A job that is not held is left alone.

    The job stays held, and the task fails without retries, if a batch is half done, if its query ran meanwhile, or if a log does not hold
    the job's place any more: an administrator decides then.

    :param job: name of the job in the cluster file. (templated)
    """

    def run_in(self, control: JobControl, spec: ClusterSpec, run: str) -> str:
        """Resume the job and wait for its progress; returns what is now so."""
        return control.resume(run, make_log_reader(spec))


class SparkJobProgressOperator(SparkJobOperator):
    """Wait until the job's query has made progress since this task began: a query that died in a roll fails the task.

    A job that is held is left alone: ResumeSparkJobOperator waits for its progress.

    :param job: name of the job in the cluster file. (templated)
    """

    ui_color = "#d9f2e3"

    def run_in(self, control: JobControl, _spec: ClusterSpec, _run: str) -> str:
        """Wait until the query makes progress; returns what is now so."""
        return control.wait_for_progress()


class SparkJobRisksOperator(BaseOperator):
    """Report what could hurt the Spark jobs of the cluster file in a roll; fail if a job must not be rolled like this. Changes nothing.

    Returns how many jobs and warnings there are.

    :param cluster_file: path of the cluster file. (templated)
    """

    template_fields: Sequence[str] = ("cluster_file",)
    ui_color = "#e6e6fa"

    def __init__(self, *, cluster_file: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster_file = cluster_file

    def on_kill(self) -> None:
        """Nothing to stop or release: it only observes."""

    def execute(self, context: Context) -> str:
        """Log every warning; fail with all blocking risks at once."""
        del context
        jobs = load(self.cluster_file).spark_jobs
        try:
            job_risks = find_job_risks(jobs, _observe_topics(self.cluster_file))
        except (Refused, AuthenticationFailed) as error:
            raise AirflowFailException(str(error)) from None
        for risk in job_risks:
            self.log.warning("%s: job %s: %s", risk.severity, risk.job, risk.reason)
        blocks = [f"{risk.job}: {risk.reason}" for risk in job_risks if risk.severity is Severity.BLOCK]
        if blocks:
            raise AirflowFailException(" | ".join(blocks))
        return f"{count_of(len(jobs), 'Spark job')}, {count_of(len(job_risks), 'warning')}."


def _observe_topics(cluster_file: str) -> ClusterView:
    with read_only_context(cluster_file) as step_context:
        return step_context.observer.observe(Fields.PARTITIONS | Fields.MIN_INSYNC)
