"""Look before touching, and save what a way back needs."""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk.exceptions import DownstreamTasksSkipped

from airflow_provider_kmigrate.core.forward import waiting
from airflow_provider_kmigrate.core.model import Look
from airflow_provider_kmigrate.hooks.world import folder
from airflow_provider_kmigrate.operators.step import StepOperator
from airflow_provider_kmigrate.preflight import write
from airflow_provider_kmigrate.steps.prepare import Preflight, as_json, run_backup, run_preflight
from airflow_provider_kmigrate.steps.run import World


class PreflightOperator(StepOperator):
    """Read everything that decides whether this cluster may be migrated; fail with all blocking findings at once.

    Returns the findings as JSON: `[{"code", "severity", "seen", "why", "remedy", "source"}, ...]`. Changes nothing. The same as a page
    and as JSON (`preflight.document`) lies in `<folder>/preflight/<cluster>/`, of the newest run. Where the cluster is finalized already
    there is nothing to look for: everything behind this task is skipped, whatever its trigger rule, and the run ends well.
    """

    kind = "preflight"
    only_looks = True
    ui_color = "#e6e6fa"

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        del arguments
        if done := waiting.nothing_left(world.observer.look(Look.POSITION), world.spec):
            world.say(done)
            behind = sorted(self.get_flat_relative_ids(upstream=False))
            raise DownstreamTasksSkipped(tasks=behind)  # type: ignore[no-untyped-call]
        found = run_preflight(world, lambda looked: self._keep(world, looked))
        return json.dumps([as_json(finding) for finding in found])

    def _keep(self, world: World, looked: Preflight) -> None:
        report = write(looked, folder() / "preflight" / world.spec.name)
        self.log.info("The findings as a page: %s", report.html)


class BackupOperator(StepOperator):
    """Save every broker's original properties file and ZooKeeper's tree, each verified by its hash."""

    kind = "backup"
    ui_color = "#e6e6fa"

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        del arguments
        return run_backup(world)
