"""How often simulated brokers were stopped, and which is next."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.roll import next_to_roll
from airflow_provider_kmigrate.steps.brokers import RollBroker
from tests.steps.sim import SimCluster


def stops(cluster: SimCluster) -> list[int]:
    return [cluster.nodes[NodeRole.BROKER, broker].stops for broker in range(cluster.brokers)]


def next_broker(cluster: SimCluster, target: BrokerMode) -> RollBroker:
    number = next_to_roll(cluster.observe(Fields(0)), [1, 2, 0], target)
    return RollBroker(cluster.spec.node(NodeRole.BROKER, number or 0), target, cluster.spec.policy)
