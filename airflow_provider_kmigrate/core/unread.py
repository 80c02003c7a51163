"""What could not be read, in the one sentence that says so."""

from __future__ import annotations

from airflow_provider_kmigrate.core.model import Reason


def not_read(what: str, code: str = "G00", why: str = "Unknown is not healthy.") -> Reason:
    """G00, or S00 where it keeps a broker from being stopped, or called back: `what` was not read."""
    return Reason(code, f"Could not read {what}.", why)
