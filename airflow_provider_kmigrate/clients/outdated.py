"""What everybody says who turns an outdated process away: ZooKeeper's transactions, the fence, and the nodes' own tokens."""

from __future__ import annotations

from airflow_provider_kmigrate.core.model import Reason


def outdated(seen: str) -> Reason:
    """The reason of a `Fenced`; `seen` says which token is older than which."""
    return Reason("H03", f"{seen}.")
