"""What tests of whole clusters ask beside `benchmarks.direct`: how often a node was started, and what a refusal must leave alone."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.clients.hosts.process import NodeProcess
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.znode_writes import ROOT
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.model import Look
from airflow_provider_kmigrate.localcluster.cluster import LocalCluster

EVERYTHING = Look.PROCESSES | Look.FILES | Look.BROKERS | Look.CONTROLLERS | Look.QUORUM | Look.ZOOKEEPER | Look.PARTITIONS
_NOT_A_FILE_OF_NOTE = {"node.log", "lock"}


def starts(node: NodeSpec) -> int:
    """How often this node's Kafka was started, by its log: each start registers one log4j bean."""
    return NodeProcess(Path(node.hosts.state)).log.read_text(errors="replace").count("kafka.Log4jController MBean")


def footprint(cluster: LocalCluster, *, fence: bool = False) -> dict[str, object]:
    """All that a refusal must leave as it is: ZooKeeper's tree (with our own `fence`?), the nodes' files and their processes.

    Of `quorum-state` that it is there: its node writes it anew by itself, with each leader that it hears of.
    """
    with ZooKeeper(ZooKeeperSettings(cluster.plan.zookeeper)) as root:
        tree = [(path, data) for path, data in root.tree() if not path.startswith("/zookeeper")]
    found: dict[str, object] = {f"zookeeper:{path}": data for path, data in tree if fence or ROOT not in path}
    for node in (*cluster.plan.brokers, *cluster.plan.controllers):
        folder = Path(node.hosts.state)
        files = [path for path in folder.iterdir() if path.is_file() and path.name not in _NOT_A_FILE_OF_NOTE]
        files += folder.glob("data/**/meta.properties")
        found |= {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        found |= {str(path): "there" for path in folder.glob("data/**/quorum-state")}
        found[f"process of {node.name}"] = NodeProcess(folder).find()
    return found


def with_broker(spec: ClusterSpec, broker: int, **hosts: Any) -> ClusterSpec:
    """The same cluster file with other `hosts` keys of one broker."""
    brokers = tuple(replace(node, hosts=replace(node.hosts, **hosts)) if node.id == broker else node for node in spec.brokers)
    return replace(spec, brokers=brokers)
