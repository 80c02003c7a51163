"""How long a task needs to open the cluster: a plan counts that for each task of the run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import Fields
from airflow_provider_kmigrate.operators.step import ClusterOperator
from airflow_provider_kmigrate.steps.prepare import plan_of_view
from airflow_provider_kmigrate.steps.run import StepContext
from tests.steps.sim import SimCluster


class Planning(ClusterOperator):
    """A task that plans on a simulated cluster, which is open at once."""

    opened: Any = None

    def open_step_context(self, _context: Any) -> AbstractContextManager[StepContext]:
        """That of the simulation."""
        return nullcontext(self.opened)

    def run_in(self, step_context: StepContext, _arguments: Any) -> Any:
        """The plan."""
        return plan_of_view(step_context, step_context.observer.observe(Fields(0)))


@pytest.mark.parametrize(
    ("ago", "least", "most"),
    [(90.0, 90.0, 1_000.0), (-3_600.0, 0.0, 0.0), (None, 0.0, 0.0)],
    ids=["a minute ago", "by a clock that is ahead", "not known"],
)
def test_a_plan_counts_the_seconds_since_its_task_started(tmp_path: Path, ago: float | None, least: float, most: float) -> None:
    started = None if ago is None else datetime.now(UTC) - timedelta(seconds=ago)
    task = Planning(task_id="plan", cluster_file="c.yaml")
    task.opened = SimCluster().context(tmp_path)
    context: Any = {"ti": SimpleNamespace(start_date=started, xcom_push=lambda **_: None)}
    plan = task.execute(context)
    assert least <= plan["restart_seconds"]["opening"] <= most
