"""The first broker of a simulated roll, as a canary that bakes."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, Policy
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.steps.waits import Copied
from tests.steps.phases import controllers
from tests.steps.sim import SimCluster
from tests.steps.walked import walked

BAKE = Policy(canary_bake=40.0, min_soak=3.0, start_timeout=200.0)
CANARY = 1  # 0 is the ZooKeeper controller, which goes last


def ready(tmp_path, target: BrokerMode, brokers: int = 3):
    """A cluster before the first restart of the pass."""
    cluster = SimCluster(brokers)
    cluster.spec = replace(cluster.spec, policy=BAKE)
    context = cluster.context(tmp_path)
    (controllers if target is BrokerMode.MIGRATION else copied)(cluster, context)
    return cluster


@walked
def copied(cluster: SimCluster, context: StepContext) -> None:
    controllers(cluster, context)
    for node in cluster.spec.brokers:
        run_step(RollBroker(node, BrokerMode.MIGRATION, replace(BAKE, canary_bake=0.0)), context)
    run_step(Copied(), context)


def step(cluster, target: BrokerMode, broker: int = CANARY, **progress) -> RollBroker:
    made = RollBroker(cluster.spec.node(NodeRole.BROKER, broker), target, cluster.spec.policy)
    return made.resume(StepProgress(**progress))
