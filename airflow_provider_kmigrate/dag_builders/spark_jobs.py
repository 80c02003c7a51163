"""What stands around a roll for the Spark jobs that a cluster file lists; without jobs nothing does."""

from __future__ import annotations

from collections.abc import Iterable
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
    """A task that looks at the jobs before anything is changed."""
    task_id = "spark_job_risks"
    return [SparkJobRisksOperator(cluster_file=spec.path, task_id=task_id, retries=0)] if spec.spark_jobs else []


def hold(spec: ClusterSpec, step: str, **arguments: Any) -> list[TaskGroup]:
    """Each job that may be held is, where its policy and its topics ask for it. A job that is not skips its task."""
    return _group(
        f"hold_for_{step}",
        (
            HoldSparkJobOperator(
                cluster_file=spec.path, task_id=name, job=name, why=f"{step} of cluster {spec.name}", **arguments
            )
            for name in _held(spec)
        ),
    )


def progress(spec: ClusterSpec, step: str) -> list[TaskGroup]:
    """Each job that is not held shows that it lives; those of which nothing can be seen are left out."""
    seen = [job.name for job in spec.spark_jobs if job.checkpoint]
    tasks = (SparkJobProgressOperator(cluster_file=spec.path, task_id=name, job=name) for name in seen)
    return _group(f"progress_after_{step}", tasks)


def resume(spec: ClusterSpec, step: str) -> list[TaskGroup]:
    """Each job that was held goes on."""
    tasks = (ResumeSparkJobOperator(cluster_file=spec.path, task_id=name, job=name) for name in _held(spec))
    return _group(f"resume_after_{step}", tasks)


def _held(spec: ClusterSpec) -> list[str]:
    return [job.name for job in spec.spark_jobs if job.hold is not HoldPolicy.NEVER]


def _group(name: str, tasks: Iterable[BaseOperator]) -> list[TaskGroup]:
    """`tasks` are made inside of the group; a group without tasks is none."""
    with TaskGroup(name) as group:
        made = list(tasks)
    return [group] if made else []
