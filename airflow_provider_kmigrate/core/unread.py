"""What could not be read, in the one sentence that says so."""

from __future__ import annotations

from airflow_provider_kmigrate.core.model import Reason


def could_not_read(what: str) -> Reason:
    """G00: `what` was not read."""
    return Reason("G00", f"Could not read {what}.")
