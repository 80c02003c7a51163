"""A look from time to time, whatever the migration's own run does."""

from __future__ import annotations

from typing import Any

from airflow_provider_kmigrate.operators.step import StepOperator
from airflow_provider_kmigrate.steps.run import World
from airflow_provider_kmigrate.steps.watch import run_watch


class WatchOperator(StepOperator):
    """Say where the cluster stands, and fail where a person must hear of it: alarms, `policy.max_hybrid`, a lost way back, silent nodes.

    Changes nothing and takes no lock. Silence is tried again as often as the task's `retries` say; everything else fails it at once.
    """

    kind = "watch"
    ui_color = "#e6e6fa"
    only_looks = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"deferrable": False, **kwargs})

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        del arguments
        return run_watch(world)
