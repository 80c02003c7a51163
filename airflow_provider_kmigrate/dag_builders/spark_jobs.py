"""Tasks around a roll for the Spark jobs of a cluster file; none without jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from airflow.sdk import BaseOperator, TaskGroup

from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, HoldPolicy
from airflow_provider_kmigrate.operators.spark_jobs import (
    HoldSparkJobOperator,
    ResumeSparkJobOperator,
    SparkJobProgressOperator,
    SparkJobRisksOperator,
)


def risk_check_tasks(spec: ClusterSpec) -> list[BaseOperator]:
    """A task that checks the jobs before anything is changed."""
    task_id = "spark_job_risks"
    return [SparkJobRisksOperator(cluster_file=spec.path, task_id=task_id, retries=0)] if spec.spark_jobs else []


def hold_tasks(spec: ClusterSpec, step: str, **arguments: Any) -> list[TaskGroup]:
    """Tasks that hold each job, if its policy and its topics ask for it; otherwise its task is skipped."""
    common = {"cluster_file": spec.path, "reason": f"{step} of cluster {spec.name}", **arguments}
    return _make_job_tasks(f"hold_for_{step}", _jobs_that_may_be_held(spec), partial(HoldSparkJobOperator, **common))


def progress_tasks(spec: ClusterSpec, step: str) -> list[TaskGroup]:
    """Tasks in which each job that is not held shows progress; jobs that cannot be observed are left out."""
    observable_jobs = [job.name for job in spec.spark_jobs if job.checkpoint or job.group]
    return _make_job_tasks(f"progress_after_{step}", observable_jobs, partial(SparkJobProgressOperator, cluster_file=spec.path))


def resume_tasks(spec: ClusterSpec, step: str, **arguments: Any) -> list[TaskGroup]:
    """Tasks that resume each held job. `arguments`: further ones of each task."""
    return _make_job_tasks(
        f"resume_after_{step}", _jobs_that_may_be_held(spec), partial(ResumeSparkJobOperator, cluster_file=spec.path, **arguments)
    )


def _jobs_that_may_be_held(spec: ClusterSpec) -> list[str]:
    return [job.name for job in spec.spark_jobs if job.hold is not HoldPolicy.NEVER]


def _make_job_tasks(name: str, jobs: Sequence[str], operator: Callable[..., BaseOperator]) -> list[TaskGroup]:
    """A task a job.

    No group without jobs: Airflow's grid would show an empty group above the first task, without a state forever.
    """
    if not jobs:
        return []
    with TaskGroup(name) as group:
        for job in jobs:
            operator(task_id=job, job=job)
    return [group]
