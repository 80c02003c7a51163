"""A daily window in which a group's move may be begun."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_kmigrate.core.groups.move import moved
from airflow_provider_kmigrate.core.groups.windows import is_open, other_wave
from airflow_provider_kmigrate.core.model import Look
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.hooks.world import watching


class WindowSensor(BaseSensorOperator):
    """Wait until the window, such as `22:00-04:00` in UTC, is open; holds no worker between two looks. Skipped, as a group's tasks are, in a run
    for another wave and where the group has left ZooKeeper: the groups behind it need not wait for its window.
    """

    template_fields: Sequence[str] = ()
    ui_color = "#d9f2e3"

    def __init__(self, *, cluster_file: str, group: str, window: str, wave: int = 0, **kwargs: Any) -> None:
        super().__init__(**{"mode": "reschedule", "poke_interval": 60.0, "timeout": 7 * 86_400.0, **kwargs})
        self.cluster_file, self.group, self.window, self.wave = cluster_file, group, window, wave

    def poke(self, context: Context) -> bool:
        if other_wave(context["params"].get("wave"), self.wave):
            raise AirflowSkipException(f"This run is not for wave {self.wave}.")
        if is_open(self.window, datetime.now(UTC)):
            return True
        if self._moved():
            raise AirflowSkipException(f"{self.group} has left ZooKeeper already.")
        return False

    def _moved(self) -> bool:
        """False where that cannot be told."""
        try:
            with watching(self.cluster_file, self.log.info) as world:
                groups = world.observer.look(Look.ZOOKEEPER | Look.GROUP_MEMBERS, groups=(self.group,)).groups or {}
                return moved(groups.get(self.group), world.spec.group(self.group))
        except KMigrateError as error:
            self.log.info("Whether %s is to be moved cannot be told; looking again. %s", self.group, error)
            return False
