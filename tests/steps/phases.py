"""The phases of a migration on the simulated cluster, as the real steps bring it there; and the ends of a migration and a rollback."""

from __future__ import annotations

from typing import Any

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.controllers import why_restarted_last
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.migration.plan import MIGRATION
from airflow_provider_kmigrate.core.migration.roll import next_to_roll
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.catalog import run_plan
from airflow_provider_kmigrate.steps.controllers import FinalizeController, ProvisionController
from airflow_provider_kmigrate.steps.nodes import install_file
from airflow_provider_kmigrate.steps.rollback import ControllerFailover, Handover, ZooKeeperLeads, equivalent_after_failover
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.steps.waits import Copied
from benchmarks import direct
from tests.steps.walked import walked

EVERYTHING = Fields(0)


def forward(cluster: Any, context: Any) -> None:
    """Every step of the plan after preflight and backup: tasks that are cleared go on without a new preflight."""
    run_plan(context, tuple(step for step in MIGRATION if step.kind not in {"preflight", "backup"}))


def roll(cluster: Any, context: Any, target: Any) -> None:
    order = [node.id for node in cluster.spec.brokers]
    policy = cluster.spec.policy
    while (node := next_to_roll(cluster.observe(EVERYTHING), order, target)) is not None:
        run_step(RollBroker(cluster.spec.node(NodeRole.BROKER, node), target, policy), context)
    for node in cluster.spec.brokers:
        run_step(RollBroker(node, target, policy), context)


def finalize(cluster: Any, context: Any) -> None:
    view = cluster.observe(EVERYTHING)
    for node in sorted(cluster.spec.controllers, key=lambda n: bool(why_restarted_last(view, n.id))):
        run_step(finalizing(node), context)


def finalizing(node: Any, *approved: Any) -> Any:
    """A step with the patience of a test."""
    step = FinalizeController(node, *approved)
    step.patience = 40.0
    return step


def untouched(cluster: Any, context: Any) -> None:
    """No migration was begun."""


@walked
def controllers(cluster: Any, context: Any) -> None:
    for node in cluster.spec.controllers:
        run_step(ProvisionController(node, cluster.spec.cluster_id), context)


@walked
def some_in_migration(cluster: Any, context: Any) -> None:
    controllers(cluster, context)
    run_step(RollBroker(cluster.spec.brokers[-1], BrokerMode.MIGRATION, cluster.spec.policy), context)


@walked
def all_in_migration(cluster: Any, context: Any) -> None:
    controllers(cluster, context)
    roll(cluster, context, BrokerMode.MIGRATION)
    run_step(Copied(), context)


@walked
def some_kraft(cluster: Any, context: Any) -> None:
    all_in_migration(cluster, context)
    for node in cluster.spec.brokers[:2]:
        run_step(RollBroker(node, BrokerMode.KRAFT, cluster.spec.policy), context)


@walked
def all_kraft(cluster: Any, context: Any) -> None:
    all_in_migration(cluster, context)
    roll(cluster, context, BrokerMode.KRAFT)


@walked
def to_dual_write(cluster: Any, context: Any) -> None:
    """As the whole plan brings it there, with preflight and backup."""
    direct.to_dual_write(context)


@walked
def finalization_begun(cluster: Any, context: Any) -> None:
    """A standby has lost its flag already; the leader has not."""
    all_kraft(cluster, context)
    standby = next(node for node in cluster.spec.controllers if node.id != cluster.leader)
    cluster.stop(standby)
    install_file(context, standby, FileStage.CONTROLLER_FINAL)
    cluster.start(standby)


@walked
def handed_over(cluster: Any, context: Any) -> None:
    all_in_migration(cluster, context)
    run_step(ControllerFailover(cluster.spec.controllers), context)
    run_step(equivalent_after_failover(600.0), context)
    run_step(Handover(cluster.spec.controllers), context)
    run_step(ZooKeeperLeads(), context)


def journal_of(context: StepContext) -> Any:
    """What the simulated run has written."""
    return context.journal


def check_end(cluster: Any, controller_stops: Any = 1) -> None:
    assert position_of(cluster.observe(EVERYTHING)).phase is Phase.FINALIZED
    assert cluster.finalized
    for (role, _), node in cluster.nodes.items():
        assert node.stage is (FileStage.KRAFT if role is NodeRole.BROKER else FileStage.CONTROLLER_FINAL)
        stops = {2} if role is NodeRole.BROKER else {1, controller_stops}
        assert node.stops in stops, "no node is restarted more often than needed"
        assert node.starts == node.stops + (0 if role is NodeRole.BROKER else 1)


def check_back(cluster: Any) -> None:
    view = cluster.observe(EVERYTHING)
    assert cluster.disasters == []
    assert position_of(view).phase is Phase.ZOOKEEPER
    assert cluster.offset is None
    assert cluster.state_epoch <= cluster.controller_epoch
    for (role, _), node in cluster.nodes.items():
        if role is NodeRole.BROKER:
            assert node.stage is FileStage.ZOOKEEPER
            assert node.running == node.text
        else:
            assert (node.running, node.log, node.formatted) == (None, False, None)
