"""How a task goes on after the one before it."""

from __future__ import annotations

from typing import Any

from airflow.sdk import TriggerRule


def goes_on() -> dict[str, Any]:
    """A task that was skipped (a controller, done at the end of its group; a step not wanted) must not skip the rest; a failed one stops it."""
    return {"trigger_rule": TriggerRule.NONE_FAILED}
