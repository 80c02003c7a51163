"""The proof of owning a cluster that every write takes: a transaction of ZooKeeper checks it, a request to Kafka reads it again."""

from __future__ import annotations

from typing import Final, Protocol

UNFENCED_GAP: Final = 10.0
"""Seconds: how long after the fence was read a request without a token may still reach a broker. No request has a longer time-out."""


class FenceCheck(Protocol):
    """What a request without a token reads again right before it is sent."""

    def check(self) -> None:
        """Raises `Fenced` if another process has taken the fence since, as ZooKeeper says now.

        For what carries no token, such as a request to Kafka: it is sent right after this, and is given up, or has reached its broker,
        `UNFENCED_GAP` seconds later.
        """


class Holding(FenceCheck, Protocol):
    """Proof of owning the cluster, as `fence.Fence` gives it: `path` had version `token` when the fence was taken."""

    @property
    def path(self) -> str:
        """The znode whose version identifies the newest owner."""

    @property
    def token(self) -> int:
        """Its version when we became the owner."""
