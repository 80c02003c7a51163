"""How long a cluster has been half-way: the longer two stores of metadata live side by side, the likelier something splits them."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Migration, Reason
from airflow_provider_kmigrate.core.phase import kraft_owns

__all__ = ["hybrid_overdue"]


def hybrid_overdue(view: ClusterView, max_hybrid: float, now: float) -> Reason | None:
    """The alarm (T06) of a cluster that KRaft owns, whose controllers came more than `max_hybrid` seconds ago, while brokers are left in migration mode.

    Counted from the birth of /migration, because that outlives every run of ours, and every election: when KRaft took over is written nowhere.
    `now` in seconds since the epoch. Neither the soak, with all brokers on KRaft, nor a view without ZooKeeper gives one.
    """
    left = sorted(broker.id for broker in view.brokers.values() if broker.mode is BrokerMode.MIGRATION)
    if not left or view.zk is None or not kraft_owns(view) or not isinstance(view.zk.migration, Migration):
        return None
    began = view.zk.migration.created_at
    if not began or now - began <= max_hybrid:
        return None
    since = datetime.fromtimestamp(began, UTC).isoformat(timespec="minutes")
    text = f"The controllers came {since}, longer ago than policy.max_hybrid ({max_hybrid / 3600:g} h), and brokers are left in migration mode: {left}."
    return Reason("T06", text)
