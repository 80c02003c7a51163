"""What tests of whole clusters ask beside `benchmarks.direct`: how often a node was started, and what a refusal must leave alone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from airflow_provider_kmigrate.clients.znodes import ROOT
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.cluster_state.model import Fields
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeSpec
from tests.kit.localcluster import jaas
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import folder_of
from tests.kit.processes import NodeProcess

EVERYTHING = (
    Fields.PROCESSES | Fields.FILES | Fields.BROKERS | Fields.CONTROLLERS | Fields.QUORUM | Fields.ZOOKEEPER | Fields.PARTITIONS
)
_NOT_A_FILE_OF_NOTE = {"node.log", "lock"}


def starts(node: NodeSpec) -> int:
    """How often this node's Kafka was started, by its log: each start registers one log4j bean."""
    return NodeProcess(folder_of(node)).log.read_text(errors="replace").count("kafka.Log4jController MBean")


def footprint(cluster: LocalCluster, *, fence: bool = False) -> dict[str, object]:
    """All that a refusal must leave as it is: ZooKeeper's tree (with our own `fence`?), the nodes' files and their processes."""
    with ZooKeeper(jaas.settings(cluster.plan)) as root:
        tree = [(path, data) for path, data in root.tree() if not path.startswith("/zookeeper")]
    found: dict[str, object] = {f"zookeeper:{path}": data for path, data in tree if fence or ROOT not in path}
    for node in (*cluster.plan.brokers, *cluster.plan.controllers):
        folder = folder_of(node)
        files = [path for path in folder.iterdir() if path.is_file() and path.name not in _NOT_A_FILE_OF_NOTE]
        files += [path for path in folder.glob("data/**/*") if path.name in {"meta.properties", "quorum-state"}]
        found |= {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        found[f"process of {node.name}"] = NodeProcess(folder).find()
    return found


def all_know_the_leader(cluster: LocalCluster) -> bool:
    """Whether every node that keeps a `quorum-state` has written the newest leader into it: some do so a moment after an election."""
    folders = [folder_of(node) for node in (*cluster.plan.brokers, *cluster.plan.controllers)]
    states = [json.loads(path.read_text()) for folder in folders for path in folder.glob("data/**/quorum-state")]
    return len({(state["leaderEpoch"], state["leaderId"]) for state in states}) == 1 and states[0]["leaderId"] >= 0


def with_broker(spec: ClusterSpec, broker: int, **hosts: Any) -> ClusterSpec:
    """The same cluster file with other `hosts` keys of one broker."""
    brokers = tuple(replace(node, hosts=replace(node.hosts, **hosts)) if node.id == broker else node for node in spec.brokers)
    return replace(spec, brokers=brokers)
