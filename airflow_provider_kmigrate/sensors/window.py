"""A daily window in which something may begin."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_kmigrate.core.groups.windows import is_open, other_wave


class WindowSensor(BaseSensorOperator):
    """Wait until the window, such as `22:00-04:00` in UTC, is open; holds no worker between two looks. As a group's task, of its wave."""

    template_fields: Sequence[str] = ()
    ui_color = "#d9f2e3"

    def __init__(self, *, window: str, wave: int = 0, **kwargs: Any) -> None:
        super().__init__(**{"mode": "reschedule", "poke_interval": 60.0, "timeout": 7 * 86_400.0, **kwargs})
        self.window, self.wave = window, wave

    def poke(self, context: Context) -> bool:
        if other_wave(context["params"].get("wave"), self.wave):
            raise AirflowSkipException(f"This run is not for wave {self.wave}.")
        return is_open(self.window, datetime.now(UTC))
