"""Tasks around a roll for the Spark jobs of a cluster file; none without jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from airflow.sdk import BaseOperator, TaskGroup

from airflow_provider_kmigrate.core.cluster import ClusterSpec, HoldPolicy
from airflow_provider_kmigrate.operators.spark_jobs import (
    HoldSparkJobOperator,
    ResumeSparkJobOperator,
    SparkJobProgressOperator,
    SparkJobRisksOperator,
)


def risks(spec: ClusterSpec) -> list[BaseOperator]:
    """A task that checks the jobs before anything is changed."""
    task_id = "spark_job_risks"
    return [SparkJobRisksOperator(cluster_file=spec.path, task_id=task_id, retries=0)] if spec.spark_jobs else []


def hold(spec: ClusterSpec, step: str, **arguments: Any) -> list[TaskGroup]:
    """Tasks that hold each job, if its policy and its topics ask for it; otherwise its task is skipped."""
    common = {"cluster_file": spec.path, "reason": f"{step} of cluster {spec.name}", **arguments}
    return _group(f"hold_for_{step}", _held(spec), partial(HoldSparkJobOperator, **common))


def progress(spec: ClusterSpec, step: str) -> list[TaskGroup]:
    """Tasks in which each job that is not held shows progress; jobs that cannot be observed are left out."""
    seen = [job.name for job in spec.spark_jobs if job.checkpoint]
    return _group(f"progress_after_{step}", seen, partial(SparkJobProgressOperator, cluster_file=spec.path))


def resume(spec: ClusterSpec, step: str) -> list[TaskGroup]:
    """Tasks that resume each held job."""
    return _group(f"resume_after_{step}", _held(spec), partial(ResumeSparkJobOperator, cluster_file=spec.path))


def _held(spec: ClusterSpec) -> list[str]:
    return [job.name for job in spec.spark_jobs if job.hold is not HoldPolicy.NEVER]


def _group(name: str, jobs: Sequence[str], operator: Callable[..., BaseOperator]) -> list[TaskGroup]:
    """A task a job.

    No group without jobs: Airflow's grid would show an empty group above the first task, without a state forever.
    """
    if not jobs:
        return []
    with TaskGroup(name) as group:
        for job in jobs:
            operator(task_id=job, job=job)
    return [group]
