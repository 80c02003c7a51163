"""How a task goes on after the one before it."""

from __future__ import annotations

from typing import Any

from airflow.sdk import TriggerRule


def approved() -> dict[str, Any]:
    """As `goes_on`, behind the run's `approve`: a skip before it skips that one too and fails nothing, so its answer is demanded itself."""
    return {"approved_by": "approve", **goes_on()}


def goes_on() -> dict[str, Any]:
    """A task that was skipped (a controller, done at the end of its group; a step not wanted) must not skip the rest; a failed one stops it."""
    return {"trigger_rule": TriggerRule.NONE_FAILED}
