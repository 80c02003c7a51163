"""A broker that somebody upgrades in the middle of a roll: the next restart is held by name, nothing is stopped, and the roll goes on afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.exceptions import TimedOut
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from tests.steps.phases import EVERYTHING, roll, some_in_migration, some_kraft
from tests.steps.sim import SimCluster


def upgraded(tmp_path: Path, begin: Callable[[SimCluster, StepContext], object]) -> tuple[SimCluster, StepContext]:
    """A cluster in the middle of a roll, in which the first broker was upgraded."""
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    begin(cluster, context)
    for node in cluster.nodes.values():
        node.release = "3.9.1"
    cluster.nodes[NodeRole.BROKER, cluster.spec.brokers[0].id].release = "3.9.2"
    return cluster, context


@pytest.mark.parametrize(
    ("begin", "target", "index"), [(some_in_migration, BrokerMode.MIGRATION, 1), (some_kraft, BrokerMode.KRAFT, 2)]
)
def test_the_next_restart_is_held_and_the_roll_goes_on_once_all_run_one_release(
    tmp_path: Path, begin: Callable[[SimCluster, StepContext], object], target: BrokerMode, index: int
) -> None:
    cluster, context = upgraded(tmp_path, begin)
    node = cluster.spec.brokers[index]
    stops = {key: mine.stops for key, mine in cluster.nodes.items()}
    step = RollBroker(node, target, cluster.spec.policy)
    step.patience = 40.0
    with pytest.raises(TimedOut, match=r"R15.*broker 0 runs Kafka 3\.9\.2"):
        run_step(step, context)
    assert {key: mine.stops for key, mine in cluster.nodes.items()} == stops, "nothing was stopped"
    cluster.nodes[NodeRole.BROKER, cluster.spec.brokers[0].id].release = "3.9.1"
    roll(cluster, context, target)
    assert all(broker.mode is target for broker in cluster.observe(EVERYTHING).brokers.values())


def test_a_rollback_does_not_wait_for_one_release(tmp_path: Path) -> None:
    cluster, context = upgraded(tmp_path, some_kraft)
    run_rollback(context)
    assert position_of(cluster.observe(EVERYTHING)).phase is Phase.ZOOKEEPER
