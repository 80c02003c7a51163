"""Hold users' streaming jobs before a step that could hurt them, let them go on after it, and see that they live."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_kmigrate.core.cluster import ClusterSpec, HoldPolicy
from airflow_provider_kmigrate.core.findings.finding import Severity
from airflow_provider_kmigrate.core.model import ClusterView, Look
from airflow_provider_kmigrate.core.spark.job_risks import leaderless, risks
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Refused
from airflow_provider_kmigrate.hooks.spark_jobs import control_of, logs_of
from airflow_provider_kmigrate.hooks.switch import stopped
from airflow_provider_kmigrate.hooks.world import finished_of, run_of, watching
from airflow_provider_kmigrate.operators.approval import demand_answer
from airflow_provider_kmigrate.sparkjobs.control import JobControl
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.journal import told
from airflow_provider_kmigrate.steps.run import refuse_if_on


class SparkJobOperator(BaseOperator):
    """One thing done with one job of the cluster file. A refusal fails the task at once: a retry would see the same."""

    template_fields: Sequence[str] = ()
    ui_color = "#fdf0cd"

    def __init__(self, *, cluster_file: str, job: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster_file, self.job = cluster_file, job

    def execute(self, context: Context) -> str:
        try:
            spec = load(self.cluster_file)
            return self.run_in(control_of(spec, self.job, self.log.info, finished_of(context)), spec, run_of(context))
        except (Refused, AuthenticationFailed) as error:
            raise AirflowFailException(str(error)) from None

    @abstractmethod
    def run_in(self, control: JobControl, spec: ClusterSpec, run: str) -> str:
        """Returns the sentence that says what is now so."""


class HoldSparkJobOperator(SparkJobOperator):
    """Have a job of the cluster file held between two batches, where its policy says so for a step that is `risky` or not.

    `risky` None: look whether restarting brokers one after another may leave a topic of the job without a leader; what cannot be
    seen may. The job must run under `sparkjobs.keep_running`. Skipped where the policy wants no hold. Fails, and withdraws the
    hold, when the job is not held in time; not `needed`: a job that nothing was heard of for a minute is gone on without. Refuses while
    the kill switch is on (H05), and without the answer of the approval `approved_by` (H06). Safe to be killed and run again; the hold
    belongs to the DAG run.
    """

    template_fields: Sequence[str] = ("why",)

    def __init__(
        self,
        *,
        risky: bool | None = None,
        why: str = "a step of kmigrate",
        needed: bool = True,
        approved_by: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.risky, self.why, self.needed, self.approved_by = risky, why, needed, approved_by

    def execute(self, context: Context) -> str:
        if self.approved_by:
            demand_answer(context, self.approved_by)
        return super().execute(context)

    def run_in(self, control: JobControl, spec: ClusterSpec, run: str) -> str:
        policy = control.job.hold
        risky = self._risky(control) if self.risky is None and policy is HoldPolicy.RISKY else bool(self.risky)
        if not policy.wants(risky=risky):
            raise AirflowSkipException(f"Job {self.job} is not held for such a step: its policy is {policy}.")
        refuse_if_on(spec.name, stopped(spec.name))
        return control.hold(run, self.why, logs_of(spec), needed=self.needed)

    def _risky(self, control: JobControl) -> bool:
        reasons = leaderless(control.job, _topics(self.cluster_file))
        if reasons:
            self.log.info("The step is risky for job %s: %s", self.job, told(reasons))
        return bool(reasons)


class ResumeSparkJobOperator(SparkJobOperator):
    """Let a held job go on, and wait until its query makes progress from exactly where it had stopped.

    The job stays held, and the task fails without retries, where a batch is half done, where somebody ran its query meanwhile, or
    where a log does not hold the job's place any more: a person decides then. A job that is not held is left alone.
    """

    def run_in(self, control: JobControl, spec: ClusterSpec, run: str) -> str:
        return control.resume(run, logs_of(spec))


class SparkJobProgressOperator(SparkJobOperator):
    """Wait until the job's query has got on since this task began: a query that died in a roll is told, not found out later.

    A job that is held is left alone: ResumeSparkJobOperator asks for its progress.
    """

    ui_color = "#d9f2e3"

    def run_in(self, control: JobControl, spec: ClusterSpec, run: str) -> str:
        del spec, run
        return control.progress()


class SparkJobRisksOperator(BaseOperator):
    """Look what could hurt the Spark jobs of the cluster file in a roll: warn, or fail where a job must not be rolled like this.

    Returns how many jobs and warnings there are. Changes nothing.
    """

    template_fields: Sequence[str] = ()
    ui_color = "#e6e6fa"

    def __init__(self, *, cluster_file: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster_file = cluster_file

    def execute(self, context: Context) -> str:
        del context
        jobs = load(self.cluster_file).spark_jobs
        try:
            found = risks(jobs, _topics(self.cluster_file))
        except (Refused, AuthenticationFailed) as error:
            raise AirflowFailException(str(error)) from None
        for risk in found:
            self.log.warning("%s: job %s: %s", risk.severity, risk.job, risk.reason)
        blocks = [f"{risk.job}: {risk.reason}" for risk in found if risk.severity is Severity.BLOCK]
        if blocks:
            raise AirflowFailException(" | ".join(blocks))
        return f"{len(jobs)} Spark jobs, {len(found)} warnings."


def _topics(cluster_file: str) -> ClusterView:
    with watching(cluster_file) as world:
        return world.observer.look(Look.PARTITIONS | Look.MIN_INSYNC)
