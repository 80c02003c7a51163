"""Somebody moves partitions in the middle of a way back: no broker is restarted meanwhile, and once that is over or cancelled it goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster import NodeRole
from airflow_provider_kmigrate.core.model import BrokerMode
from airflow_provider_kmigrate.exceptions import TimedOut
from airflow_provider_kmigrate.steps.brokers import RollBackBroker
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from tests.steps.sim import SimCluster
from tests.steps.test_identity import handed_over
from tests.steps.test_rollback import check_back, some_kraft


@pytest.mark.parametrize(("before", "target"), [(some_kraft, BrokerMode.MIGRATION), (handed_over, BrokerMode.ZOOKEEPER)])
def test_no_broker_goes_back_while_partitions_move(
    tmp_path: Path, before: Callable[[SimCluster, StepContext], None], target: BrokerMode
) -> None:
    cluster = SimCluster()
    before(cluster, cluster.context(tmp_path))
    context, stops = cluster.context(tmp_path), cluster.nodes[NodeRole.BROKER, 0].stops
    cluster.moving = ("orders-3",)
    with pytest.raises(TimedOut, match=r"S04.*orders-3.*Let it finish"):
        run_step(RollBackBroker(cluster.spec.brokers[0], target, cluster.spec.policy), context)
    assert cluster.nodes[NodeRole.BROKER, 0].stops == stops
    cluster.moving = ()
    run_rollback(cluster.context(tmp_path))
    check_back(cluster)
