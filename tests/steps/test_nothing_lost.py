"""A pause of days in a rollback: what KRaft took after `controller_failover` compared, and ZooKeeper did not get, is not lost without a report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields, TopicMetadata
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.exceptions import Refused, TimedOut
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.rollback import Handover, planned
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from tests.steps.phases import all_in_migration, check_back
from tests.steps.sim import SimCluster

SINCE = {"orders": TopicMetadata("orders", "id", {})}


class Taking(SimCluster):
    """KRaft takes a topic from some moment on; ZooKeeper gets it only where the dual-write brings it there."""

    took: bool = False
    lost: bool = False

    def observe(self, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        view = super().observe(what, nodes, groups)
        if self.epoch != self.ended and self.led and not self.lost:
            self.took = False  # a leader that writes brings everything there
        return replace(view, topics=({}, SINCE if self.took else {}))


def equal_after_failover(folder: Path) -> tuple[Taking, StepContext]:
    """All brokers in migration mode, ZooKeeper and KRaft compared: then a person was asked, or the DAG was paused."""
    cluster = Taking()
    all_in_migration(cluster, cluster.context(folder))
    return cluster, cluster.context(folder)


def full(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)


def test_a_backup_that_cannot_be_written_is_found_before_anything_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the handover deletes is saved there first; found out then, no controller would run meanwhile."""
    cluster, context = equal_after_failover(tmp_path)
    full(monkeypatch)
    with pytest.raises(Refused, match=r"O05.*No space left"):
        planned(context)
    with pytest.raises(Refused, match="O05"):
        run_step(Handover(cluster.spec.controllers), context)
    assert running(cluster) == [3000, 3001, 3002]


def test_a_probe_of_the_backup_leaves_nothing_in_it(tmp_path: Path) -> None:
    _, context = equal_after_failover(tmp_path)
    before = sorted(path.name for path in context.backup.folder.iterdir())
    assert planned(context)[0]
    assert sorted(path.name for path in context.backup.folder.iterdir()) == before


def running(cluster: SimCluster) -> list[int]:
    return [node.id for node in cluster.spec.controllers if cluster.nodes[NodeRole.CONTROLLER, node.id].running is not None]


def test_no_controller_is_stopped_on_a_dual_write_that_has_died_since(tmp_path: Path) -> None:
    cluster, context = equal_after_failover(tmp_path)
    cluster.ended, cluster.took = cluster.epoch, True
    with pytest.raises(TimedOut, match=r"G33.*G07"):
        run_step(Handover(cluster.spec.controllers), context)
    assert running(cluster) == [3000, 3001, 3002]
    run_rollback(cluster.context(tmp_path))
    check_back(cluster)


def test_no_quorum_is_ended_if_the_dual_write_dies_after_the_first_stop(tmp_path: Path) -> None:
    cluster, context = equal_after_failover(tmp_path)
    cluster.stop(cluster.spec.controllers[1])
    cluster.ended, cluster.took = cluster.epoch, True
    with pytest.raises(TimedOut, match="G33"):
        run_step(Handover(cluster.spec.controllers), context)
    assert running(cluster) == [3000, 3002]
    cluster.ended = None
    run_rollback(cluster.context(tmp_path))
    check_back(cluster)


def test_what_a_moving_dual_write_lost_keeps_the_controllers_too(tmp_path: Path) -> None:
    cluster, context = equal_after_failover(tmp_path)
    cluster.took = cluster.lost = True
    with pytest.raises(TimedOut, match=r"G33.*E02.*orders"):
        run_step(Handover(cluster.spec.controllers), context)
    assert running(cluster) == [3000, 3001, 3002]


def test_what_brokers_know_and_zookeeper_misses_is_not_handed_over(tmp_path: Path) -> None:
    """It was taken in the last moment, by controllers that are stopped now: they start again, which brings it to ZooKeeper."""
    cluster, context = equal_after_failover(tmp_path)
    for node in cluster.spec.controllers:
        cluster.stop(node)
    cluster.took = True
    run_step(Handover(cluster.spec.controllers), context)
    run_rollback(cluster.context(tmp_path))
    assert any("Starting controllers 3000, 3001, 3002 again" in text for _, text in context.journal.lines)
    check_back(cluster)


def test_without_a_failover_it_is_compared_all_the_same(tmp_path: Path) -> None:
    cluster, context = equal_after_failover(tmp_path)
    cluster.ended, cluster.took = cluster.epoch, True
    with pytest.raises(TimedOut, match="E02"):
        run_rollback(context, {"skip_failover": True})
    assert cluster.kraft_owns
    assert running(cluster) == [3000, 3001, 3002]


@pytest.mark.parametrize("alive", [True, False])
def test_a_rollback_that_accepts_the_loss_ends_without_it(tmp_path: Path, alive: bool) -> None:
    cluster, context = equal_after_failover(tmp_path)
    cluster.ended, cluster.took = cluster.epoch, True
    for node in () if alive else cluster.spec.controllers:
        cluster.stop(node)
    run_rollback(context, {"skip_failover": True, "accept_loss": cluster.spec.cluster_id})
    check_back(cluster)


def test_without_a_failover_and_without_a_loss_none_has_to_be_accepted(tmp_path: Path) -> None:
    cluster, context = equal_after_failover(tmp_path)
    cluster.ended = cluster.epoch
    run_rollback(context, {"skip_failover": True})
    check_back(cluster)
