"""Which look the dual-write's movement is measured from, so that one that has died in the middle of a long wait is seen to be dead."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_kmigrate.core.model import ClusterView

WINDOW = 10.0  # seconds; the active controller writes a record every 0.5 s (metadata.max.idle.interval.ms)


@dataclass(frozen=True, slots=True)
class MovedSince:
    """Looks in which ZooKeeper was read; `old` is the one to compare with. Those without it say nothing about what moved."""

    old: ClusterView
    young: ClusterView


def moved_since(so_far: MovedSince | None, view: ClusterView, first: ClusterView) -> MovedSince:
    """With one look more: the one to compare it with is `first`, later one of `WINDOW` to twice as many seconds ago."""
    known = so_far or MovedSince(first, first)
    if view.zk is not None and view.taken_at - known.young.taken_at >= WINDOW:
        return MovedSince(known.young, view)
    return known
