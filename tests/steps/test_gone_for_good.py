"""A machine that is dead for good: what the runbook has the person on call write and do is what the code understands."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from airflow_provider_kmigrate.clients.hosts import Host, Restart, host_for
from airflow_provider_kmigrate.clients.hosts.agent import Agents
from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import Controller, ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration import handover, rollback
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_of
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps import rendered
from airflow_provider_kmigrate.steps.backup import render_file
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.controllers import ProvisionController
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from tests.provider.simulated import document
from tests.steps.phases import all_in_migration, all_kraft, check_back, forward, some_kraft
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import CLUSTER_ID, parse

RUNBOOK = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text(encoding="utf-8")


@pytest.fixture
def stand_in() -> NodeSpec:
    """The node as the runbook writes it into the cluster file."""
    block = re.search(r"```yaml\n(  - id: 3002.*?)```", RUNBOOK, re.DOTALL)
    assert block
    [node] = yaml.safe_load(block[1])
    return NodeSpec(
        node["id"], NodeRole.CONTROLLER, node["host"], node["port"], HostSpec(node["driver"]), log_dir=node["log_dir"]
    )


def test_a_stand_in_is_a_stopped_controller_without_a_directory(stand_in: NodeSpec) -> None:
    host = host_for(stand_in, None, Agents(), CLUSTER_ID)
    assert host.observe(stand_in).process().state is ProcessState.STOPPED
    files = host.files(stand_in)
    assert (files.properties, files.has_metadata_log, files.meta) == (None, False, {stand_in.log_dir: {}})


def test_a_rollback_needs_nothing_of_it(stand_in: NodeSpec, tmp_path: Path) -> None:
    cluster = SimCluster()
    all_kraft(cluster, cluster.context(tmp_path))
    host = host_for(stand_in, None, Agents(), CLUSTER_ID)
    gone = Controller(3002, host.observe(stand_in).process(), answers=False, files=host.files(stand_in))
    view = cluster.observe(0)  # type: ignore[arg-type]
    view = replace(view, controllers={**view.controllers, 3002: gone})
    assert isinstance(rollback.decide_restore_flag(view, 3002), Done)
    assert 3002 not in handover.controllers_to_stop(view)
    handed = replace(view, zk=SimCluster().zk())
    assert isinstance(rollback.decide_wipe(handed, 3002), Done)


CHANGES: tuple[Callable[[Host, NodeSpec], object], ...] = (
    lambda host, node: host.start(node, 1),
    lambda host, node: host.stop(node, 1),
    lambda host, node: host.restart(node, Restart(), 1),
    lambda host, node: host.put_properties(node, "a=1", 1),
    lambda host, node: host.put_meta(node, "/var/lib/kraft", "a=1", 1),
    lambda host, node: host.format_storage(node, "x", "3.9", 1),
    lambda host, node: host.wipe_storage(node, "x", 1),
    lambda host, node: host.read_properties(node),
    lambda host, node: host.kept_as(node, "a=1"),
)


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_needs_its_machine_is_refused(stand_in: NodeSpec, change: Callable[[Host, NodeSpec], object]) -> None:
    with pytest.raises(Refused, match=r"M07.*controller 3002 is declared gone"):
        change(host_for(stand_in, None, Agents(), CLUSTER_ID), stand_in)


def test_a_controller_that_is_gone_for_good_has_no_log(stand_in: NodeSpec) -> None:
    assert "it has no log" in host_for(stand_in, None, Agents(), CLUSTER_ID).log_tail(stand_in)


def test_a_controller_with_a_new_machine_is_refused_until_it_runs_and_then_goes_on(tmp_path: Path) -> None:
    cluster = SimCluster()
    some_kraft(cluster, cluster.context(tmp_path))
    lost = next(node for node in cluster.spec.controllers if node.id != cluster.leader)
    mine = cluster.nodes[NodeRole.CONTROLLER, lost.id]
    cluster.stop(lost)
    mine.log, mine.formatted = False, None
    with pytest.raises(Refused, match="R11"):
        run_step(ProvisionController(lost, cluster.spec.cluster_id), cluster.context(tmp_path))
    mine.formatted = cluster.spec.cluster_id
    cluster.start(lost)
    run_step(ProvisionController(lost, cluster.spec.cluster_id), cluster.context(tmp_path))
    run_rollback(cluster.context(tmp_path))
    check_back(cluster)


FILES = {
    "broker 1 zookeeper": FileStage.ZOOKEEPER,
    "broker 1 migration": FileStage.MIGRATION,
    "broker 1 kraft": FileStage.KRAFT,
    "controller 3001 migration": FileStage.CONTROLLER_MIGRATION,
    "controller 3001 final": FileStage.CONTROLLER_FINAL,
}


@pytest.mark.parametrize(("asked", "stage"), FILES.items())
def test_the_file_of_any_node_can_be_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: str, stage: FileStage
) -> None:
    cluster = SimCluster()
    store = cluster.context(tmp_path).backup
    file = tmp_path / "sim.yaml"
    file.write_text(yaml.safe_dump(document(cluster)))
    assert rendered.main([str(file), str(store.folder), *asked.split()]) == 0
    assert stage_of(parse(capsys.readouterr().out)) is stage


def test_a_file_that_cannot_be_rendered_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sim.yaml"
    file.write_text(yaml.safe_dump(document(SimCluster())))
    assert rendered.main([str(file), str(tmp_path / "none"), "broker", "0", "kraft"]) == 1
    assert "O01" in capsys.readouterr().err


def replaced(cluster: SimCluster, context: StepContext, stage: FileStage) -> None:
    """Broker 2 has a new machine, with the file of this stage."""
    lost = cluster.spec.brokers[2]
    cluster.stop(lost)
    cluster.nodes[NodeRole.BROKER, lost.id].text = render_file(cluster.spec, context.backup, lost, stage)
    cluster.start(lost)


BEGUN = [(all_kraft, FileStage.KRAFT), (all_in_migration, FileStage.MIGRATION)]


@pytest.mark.parametrize(("begun", "stage"), BEGUN)
def test_a_broker_with_a_new_machine_goes_forward(tmp_path: Path, begun: Callable[..., None], stage: FileStage) -> None:
    cluster = SimCluster()
    begun(cluster, context := cluster.context(tmp_path))
    replaced(cluster, context, stage)
    forward(cluster, cluster.context(tmp_path))
    assert (cluster.finalized, cluster.disasters) == (True, [])


@pytest.mark.parametrize("begun", [all_kraft, all_in_migration])
def test_a_broker_with_a_new_machine_is_rolled_back(tmp_path: Path, begun: Callable[..., None]) -> None:
    cluster = SimCluster()
    begun(cluster, context := cluster.context(tmp_path))
    replaced(cluster, context, FileStage.MIGRATION)
    run_rollback(cluster.context(tmp_path))
    check_back(cluster)
