"""A sensor for the daily window in which a group's move may begin."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_kmigrate.core.groups.move import moved
from airflow_provider_kmigrate.core.groups.scan import other_wave
from airflow_provider_kmigrate.core.migration.waits import is_open
from airflow_provider_kmigrate.core.model import Fields
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused
from airflow_provider_kmigrate.hooks.step_context import watching
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.catalog import group_of


class WindowSensor(BaseSensorOperator):
    """Wait until the daily window in which a group's move may begin is open; holds no worker between two observations.

    Skipped, as a group's tasks are, in a run for another wave and if the group has left ZooKeeper: the groups behind it need not wait for
    its window.

    :param cluster_file: path of the cluster file. (templated)
    :param group: name of the group. (templated)
    :param window: such as `22:00-04:00`, in UTC. (templated)
    :param wave: the group's wave.
    """

    template_fields: Sequence[str] = ("cluster_file", "group", "window")
    ui_color = "#d9f2e3"

    def __init__(self, *, cluster_file: str, group: str, window: str, wave: int = 0, **kwargs: Any) -> None:
        super().__init__(**{"mode": "reschedule", "poke_interval": 60.0, "timeout": 7 * 86_400.0, **kwargs})
        self.cluster_file, self.group, self.window, self.wave = cluster_file, group, window, wave

    def on_kill(self) -> None:
        """Nothing to stop or release: it starts no process, changes nothing and holds nothing."""

    def poke(self, context: Context) -> bool:
        """True in the window. Skips another wave's run, and a group that has left ZooKeeper."""
        if other_wave(context["params"].get("wave"), self.wave):
            raise AirflowSkipException(f"This run does not move wave {self.wave}.")
        try:
            group_of(load(self.cluster_file), self.group)
        except Refused as error:
            raise AirflowFailException(str(error)) from None
        if is_open(self.window, datetime.now(UTC)):
            return True
        if self._moved():
            raise AirflowSkipException(f"{self.group} has left ZooKeeper already.")
        return False

    def _moved(self) -> bool:
        """True if the group has left ZooKeeper; false if that is unknown."""
        try:
            with watching(self.cluster_file, self.log.info) as step_context:
                groups = step_context.observer.observe(Fields.ZOOKEEPER | Fields.GROUP_MEMBERS, groups=(self.group,)).groups or {}
                return moved(groups.get(self.group), group_of(step_context.spec, self.group))
        except KMigrateError as error:
            self.log.info("Could not read whether %s is left to move; trying again. %s", self.group, error)
            return False
