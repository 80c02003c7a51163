"""Is this the cluster that the cluster file names? Asked of everything that can tell, before every act."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.core.model import Broker, ClusterView, Controller, Reason


def strangers(view: ClusterView, spec: ClusterSpec) -> tuple[Reason, ...]:
    """Everything in the view that names another cluster id, or nothing that names any; empty when all agree."""
    named = _named(view)
    wrong = tuple(_reason(where, found, spec) for where, found in named if found != spec.cluster_id)
    if wrong or named:
        return wrong
    text = f"Nothing that was read names a cluster id; expected {spec.cluster_id}."
    return (Reason("G00", text),)


def unidentified(node: Broker | Controller) -> tuple[Reason, ...]:
    """Why it is not known whose directories a node's machine holds; empty where they were read, although no one may have formatted them yet."""
    if node.files.meta is not None:
        return ()
    text = f"Whose directories the machine of node {node.id} holds was not read."
    return (Reason("U04", text),)


def _named(view: ClusterView) -> list[tuple[str, str]]:
    rows = [("ZooKeeper's /cluster/id", view.zk.cluster_id if view.zk else None), ("the brokers", view.kafka_cluster_id)]
    nodes: tuple[Broker | Controller, ...] = (*view.brokers.values(), *view.controllers.values())
    for node in nodes:
        for folder, keys in (node.files.meta or {}).items():
            rows.append((f"{folder}/meta.properties of node {node.id}", keys.get("cluster.id")))
    return [(where, found) for where, found in rows if found]


def _reason(where: str, found: str, spec: ClusterSpec) -> Reason:
    text = f"Cluster {spec.name} must have cluster id {spec.cluster_id}, but {where} says {found}."
    return Reason("I01", text)
