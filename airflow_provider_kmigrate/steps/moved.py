"""Which look the dual-write's movement is measured from, so that one that has died in the middle of a long wait is seen to be dead."""

from __future__ import annotations

from airflow_provider_kmigrate.core.model import ClusterView

WINDOW = 10.0  # seconds; the active controller writes a record every 0.5 s (metadata.max.idle.interval.ms)


class MovedSince:
    """Remembers looks in which ZooKeeper was read; those without it say nothing about what moved."""

    def __init__(self) -> None:
        self._old: ClusterView | None = None
        self._young: ClusterView | None = None

    def saw(self, view: ClusterView, first: ClusterView) -> ClusterView:
        """Take in one look; the one to compare it with: `first`, later one of `WINDOW` to twice as many seconds ago."""
        self._old, self._young = self._old or first, self._young or first
        if view.zk is not None and view.taken_at - self._young.taken_at >= WINDOW:
            self._old, self._young = self._young, view
        return self._old
