"""Look before touching, and save what a way back needs."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import Any

from airflow.sdk import Context

from airflow_provider_kmigrate.hooks.world import run_of, watching
from airflow_provider_kmigrate.operators.step import StepOperator
from airflow_provider_kmigrate.steps.prepare import as_json, run_backup, run_preflight
from airflow_provider_kmigrate.steps.run import World


class PreflightOperator(StepOperator):
    """Read everything that decides whether this cluster may be migrated; fail with all blocking findings at once.

    Returns the findings as JSON: `[{"code", "severity", "seen", "why", "remedy", "source"}, ...]`. Changes nothing.
    """

    kind = "preflight"
    ui_color = "#e6e6fa"

    def world(self, context: Context) -> AbstractContextManager[World]:
        """To look at only: nothing is written to the cluster, not even who holds it."""
        return watching(self.cluster_file, self.log.info, run_of(context))

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        del arguments
        found = run_preflight(world)
        return json.dumps([as_json(finding) for finding in found])


class BackupOperator(StepOperator):
    """Save every broker's original properties file and ZooKeeper's tree, each verified by its hash."""

    kind = "backup"
    ui_color = "#e6e6fa"

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        del arguments
        return run_backup(world)
