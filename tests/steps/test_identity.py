"""Every act on a node is preceded by a check of whose directories its machine holds: another cluster's, or unknown ones, are left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.plan import rows_by_kind
from airflow_provider_kmigrate.core.migration.progress import FRESH, StepProgress
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.nodes import install_file
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from tests.steps.expansion_runs import up_to
from tests.steps.phases import all_in_migration, all_kraft, controllers, finalization_begun, handed_over, some_kraft, untouched
from tests.steps.sim import SimCluster

FOREIGN = "zzzzzzzzzzzzzzzzzzzzzz"


@dataclass(frozen=True)
class Case:
    """A step that has something to do `on` a node, which need not be the one that it is made for."""

    kind: str
    before: Callable[[SimCluster, StepContext], None]
    on: tuple[NodeRole, int]
    arguments: dict[str, Any] = field(default_factory=dict)
    progress: StepProgress = FRESH

    def __str__(self) -> str:
        return f"{self.kind} of {self.on[0]} {self.on[1]} after {self.before.__name__}"


def leader_keeps_one_out(cluster: SimCluster, context: StepContext) -> None:
    """Broker 0 takes broker 1 back into no ISR, so that it is restarted itself."""
    controllers(cluster, context)
    cluster.stuck = 0
    cluster.stop(cluster.spec.brokers[1])
    install_file(context, cluster.spec.brokers[1], FileStage.MIGRATION)
    cluster.start(cluster.spec.brokers[1])


def dual_write_ended(cluster: SimCluster, context: StepContext) -> None:
    all_kraft(cluster, context)
    cluster.ended = cluster.epoch


def dual_write_ended_in_hybrid(cluster: SimCluster, context: StepContext) -> None:
    some_kraft(cluster, context)
    cluster.ended = cluster.epoch


def controller_left_down(cluster: SimCluster, context: StepContext) -> None:
    """A failover was killed between stop and start."""
    all_kraft(cluster, context)
    cluster.stop(cluster.spec.controllers[1])


def count_changed(cluster: SimCluster, context: StepContext) -> None:
    """`__consumer_offsets` has its partitions; no broker has restarted."""
    cluster.offsets_partitions = 10
    cluster.counts = dict.fromkeys(cluster.counts, 10)
    up_to(context, "restart broker")


BROKER, LEADER, STANDBY = (NodeRole.BROKER, 0), (NodeRole.CONTROLLER, 3000), (NodeRole.CONTROLLER, 3001)
MIGRATION, KRAFT, ZOOKEEPER = ({"target": target} for target in ("migration", "kraft", "zookeeper"))
SOAK = {"seconds": 1000.0}

CASES = [
    Case("provision", untouched, LEADER),
    Case("provision", controller_left_down, STANDBY),
    Case("roll", controllers, BROKER, MIGRATION),
    Case("roll", all_in_migration, BROKER, KRAFT),
    Case("roll", leader_keeps_one_out, BROKER, {**MIGRATION, "node": 1}),
    Case("copied", dual_write_ended, LEADER),
    Case("soak", dual_write_ended, LEADER, SOAK),
    Case("soak", controller_left_down, STANDBY, SOAK, StepProgress(recoveries=1)),
    Case("finalize", all_kraft, STANDBY),
    Case("restore flag", finalization_begun, STANDBY),
    Case("controller failover", all_kraft, LEADER),
    Case("controller failover", controller_left_down, STANDBY),
    Case("roll back broker", some_kraft, BROKER, MIGRATION),
    Case("roll back broker", dual_write_ended_in_hybrid, LEADER, {**MIGRATION, "node": 0}),
    Case("roll back broker", handed_over, BROKER, ZOOKEEPER),
    Case("restart broker", count_changed, BROKER, {"partitions": 20}),
    Case("wipe", handed_over, STANDBY),
]

#: Steps that touch no node: they wait, or change what belongs to ZooKeeper or the brokers, which report their cluster id, or consumers.


def test_every_step_that_is_run_for_each_node_has_a_case() -> None:
    assert {row.kind for row in rows_by_kind().values() if row.each} - {case.kind for case in CASES} == set()


def begun(case: Case, folder: Path) -> tuple[SimCluster, StepContext, Callable[[], object]]:
    cluster = SimCluster()
    case.before(cluster, cluster.context(folder))
    context = cluster.context(folder)
    step = build(context.spec, case.kind, {"node": case.on[1], **case.arguments}, case.progress)
    step.patience = min(step.patience, 200.0)
    return cluster, context, lambda: run_step(step, context)


def touched(cluster: SimCluster, on: tuple[NodeRole, int]) -> tuple[object, ...]:
    node = cluster.nodes[on]
    return node.text, node.running, node.starts, node.stops, node.formatted, node.log


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_of_them_acts_on_this_node(tmp_path: Path, case: Case) -> None:
    cluster, _, run = begun(case, tmp_path)
    before = touched(cluster, case.on)
    run()
    assert touched(cluster, case.on) != before


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_node_whose_directories_are_of_another_cluster_is_left_alone(tmp_path: Path, case: Case) -> None:
    cluster, _, run = begun(case, tmp_path)
    node = cluster.nodes[case.on]
    node.cluster_id, node.formatted = FOREIGN, node.formatted or FOREIGN
    before = touched(cluster, case.on)
    with pytest.raises(Refused, match=f"I01.*{FOREIGN}"):
        run()
    assert touched(cluster, case.on) == before


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_node_of_whose_directories_nothing_was_read_is_waited_for(tmp_path: Path, case: Case) -> None:
    cluster, _, run = begun(case, tmp_path)
    cluster.nodes[case.on].cluster_id = None
    before = touched(cluster, case.on)
    with pytest.raises(KMigrateError):
        run()
    assert touched(cluster, case.on) == before
