"""Maintenance windows: the restarts of a migration begin in them only; a rollback needs none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_provider_kmigrate.core.cluster_state.decision import Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.steps.brokers import RollBackBroker, RollBroker
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from tests.steps.phases import all_in_migration, check_back, some_in_migration, some_kraft
from tests.steps.sim import SimCluster

CLOSED, OPEN = ("03:00-04:00",), ("00:00-02:00",)  # the simulated clock begins at 00:16 UTC


def waiting(context: StepContext, windows: tuple[str, ...], cluster: SimCluster) -> StepContext:
    return replace(context, spec=replace(cluster.spec, windows=windows))


def roll(cluster: SimCluster, context: StepContext, broker: int) -> object:
    node = cluster.spec.node(NodeRole.BROKER, broker)
    return run_step(RollBroker(node, BrokerMode.KRAFT, cluster.spec.policy), context, sync_for=5.0)


def test_a_restart_waits_for_its_window_and_then_begins(tmp_path: Path) -> None:
    cluster = SimCluster()
    all_in_migration(cluster, cluster.context(tmp_path))
    context = cluster.context(tmp_path)
    before = sum(node.stops for node in cluster.nodes.values())
    waited = roll(cluster, waiting(context, CLOSED, cluster), 1)
    assert isinstance(waited, Wait)
    assert [reason.code for reason in waited.reasons] == ["T07"]
    assert sum(node.stops for node in cluster.nodes.values()) == before
    roll(cluster, waiting(context, OPEN, cluster), 1)
    assert sum(node.stops for node in cluster.nodes.values()) == before + 1


def test_a_closed_window_spares_the_cluster_what_only_a_restart_needs(tmp_path: Path) -> None:
    """All that a rollback depends on costs megabytes: it is not read four times a second for a whole day."""
    cluster = SimCluster()
    all_in_migration(cluster, cluster.context(tmp_path))
    context, began, before = waiting(cluster.context(tmp_path), CLOSED, cluster), cluster.clock.time, cluster.observations
    node = cluster.spec.node(NodeRole.BROKER, 1)
    assert isinstance(run_step(RollBroker(node, BrokerMode.KRAFT, cluster.spec.policy), context, sync_for=600.0), Wait)
    assert cluster.clock.time - began >= 600.0
    assert cluster.observations - before < 100


def test_a_broker_that_is_down_waits_for_no_window(tmp_path: Path) -> None:
    """Killed between its stop and its start, the restart has begun."""
    cluster = SimCluster()
    some_kraft(cluster, cluster.context(tmp_path))
    context = waiting(cluster.context(tmp_path), CLOSED, cluster)
    moved = next(node for node in cluster.spec.brokers if cluster.observe(None).modes()[node.id] is BrokerMode.KRAFT)
    cluster.stop(moved)
    assert not isinstance(roll(cluster, context, moved.id), Wait)
    assert cluster.observe(None).modes()[moved.id] is BrokerMode.KRAFT


def test_a_rollback_needs_no_window(tmp_path: Path) -> None:
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    some_in_migration(cluster, context)
    assert RollBroker.in_windows
    assert not RollBackBroker.in_windows
    run_rollback(waiting(cluster.context(tmp_path), CLOSED, cluster))
    check_back(cluster)
