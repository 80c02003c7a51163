"""The next broker of a migration restarts only once the probe's records are acknowledged as fast as before the first: in the real steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, NoProbe, ProbeFigures, ProduceLatency
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, Policy
from airflow_provider_kmigrate.core.migration.controllers import SETTLES_WITHIN
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import TimedOut
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.controllers import FinalizeController
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from tests.steps.canary_broker import ready
from tests.steps.phases import some_kraft, to_dual_write
from tests.steps.sim import SimCluster

QUICK = {"kmigrate-probe-0": ProduceLatency(5.0, 0.010)}
LATE = {"kmigrate-probe-0": ProduceLatency(5.0, 2.0)}
both = pytest.mark.parametrize("target", [BrokerMode.MIGRATION, BrokerMode.KRAFT])


class Probing:
    """A probe whose records are slow from the first restart of a broker, until `recovers`."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster, self.recovers, self.asked = cluster, float("inf"), 0
        for node in cluster.nodes.values():
            node.stops = 0

    def __call__(self) -> ProbeFigures:
        self.asked += 1
        slow = any(node.stops for node in self.cluster.nodes.values()) and self.cluster.clock.time < self.recovers
        return ProbeFigures(1.0, QUICK, LATE if slow else QUICK)


def hurried(folder: Path, target: BrokerMode) -> SimCluster:
    cluster = ready(folder, target)
    cluster.spec = replace(cluster.spec, policy=Policy(canary_bake=0.0, start_timeout=120.0))
    return cluster


def roll(context: StepContext, broker: int, target: BrokerMode, kind: str = "roll") -> object:
    return run_step(build(context.spec, kind, {"node": broker, "target": str(target)}), context)


def probed(cluster: SimCluster, folder: Path, probe: Callable[[], ProbeFigures], said: list[str] | None = None) -> StepContext:
    return replace(cluster.context(folder), probe=probe, say=(said if said is not None else []).append)


def stops(cluster: SimCluster) -> list[int]:
    return [cluster.nodes[NodeRole.BROKER, broker].stops for broker in (1, 2)]


@both
def test_a_slow_cluster_holds_the_next_restart_and_the_slow_partition_is_named(tmp_path: Path, target: BrokerMode) -> None:
    cluster = hurried(tmp_path, target)
    probe = Probing(cluster)
    assert isinstance(roll(probed(cluster, tmp_path, probe), 1, target), Done)
    with pytest.raises(TimedOut, match=r"G42.*kmigrate-probe-0 is 2.000 s, 0.010 s before"):
        roll(probed(cluster, tmp_path, probe), 2, target)
    assert stops(cluster) == [1, 0]


def test_a_partition_that_acknowledges_nothing_any_more_holds_the_next_restart(tmp_path: Path) -> None:
    cluster = hurried(tmp_path, BrokerMode.MIGRATION)
    with pytest.raises(TimedOut, match=r"G42.*kmigrate-probe-0 acknowledges 0.0 records a second, 5.0 before"):
        roll(probed(cluster, tmp_path, lambda: ProbeFigures(1.0, QUICK, {})), 1, BrokerMode.MIGRATION)
    assert stops(cluster) == [0, 0]


@both
def test_the_roll_continues_once_records_are_acknowledged_as_fast_as_before(tmp_path: Path, target: BrokerMode) -> None:
    cluster = hurried(tmp_path, target)
    probe = Probing(cluster)
    roll(probed(cluster, tmp_path, probe), 1, target)
    probe.recovers = cluster.clock.time + 45.0
    assert isinstance(roll(probed(cluster, tmp_path, probe), 2, target), Done)
    assert stops(cluster) == [1, 1]
    assert cluster.clock.time >= probe.recovers


def test_the_first_restart_waits_until_the_probe_has_measured(tmp_path: Path) -> None:
    cluster = hurried(tmp_path, BrokerMode.MIGRATION)
    measured = cluster.clock.time + 20.0

    def young() -> ProbeFigures:
        return ProbeFigures(1.0, QUICK if cluster.clock.time > measured else None, QUICK)

    assert isinstance(roll(probed(cluster, tmp_path, young), 1, BrokerMode.MIGRATION), Done)
    assert cluster.clock.time > measured


@pytest.mark.parametrize(
    ("last_written", "said"),
    [
        (-70.0, "The probe has ended: it has measured nothing for"),
        (-math.inf, "The probe never began, or this worker does not see its folder"),
    ],
)
def test_a_probe_that_ended_or_never_began_holds_every_restart_until_the_cluster_file_has_none(
    tmp_path: Path, last_written: float, said: str
) -> None:
    cluster = hurried(tmp_path, BrokerMode.MIGRATION)
    began = cluster.clock.time

    def gone() -> ProbeFigures:
        return ProbeFigures(cluster.clock.time - began - last_written, QUICK, QUICK)

    for broker in (1, 2):
        with pytest.raises(TimedOut, match=rf"\[Y05\] {said}.*clear the task `probe` alone"):
            roll(probed(cluster, tmp_path, gone), broker, BrokerMode.MIGRATION)
    assert stops(cluster) == [0, 0]
    for broker in (1, 2):
        assert isinstance(roll(cluster.context(tmp_path), broker, BrokerMode.MIGRATION), Done)


def test_a_cluster_file_without_a_probe_waits_for_none(tmp_path: Path) -> None:
    cluster = hurried(tmp_path, BrokerMode.MIGRATION)
    context, began = replace(cluster.context(tmp_path), probe=NoProbe), cluster.clock.time
    assert isinstance(roll(context, 1, BrokerMode.MIGRATION), Done)
    assert cluster.clock.time - began < 15.0


def test_a_rollback_never_asks_for_it(tmp_path: Path) -> None:
    cluster = SimCluster()
    some_kraft(cluster, cluster.context(tmp_path))
    probe = Probing(cluster)
    first, second = (node.spec.id for node in cluster.nodes.values() if node.stage is FileStage.KRAFT)
    for broker in (first, second):
        assert isinstance(roll(probed(cluster, tmp_path, probe), broker, BrokerMode.MIGRATION, "roll back broker"), Done)
    assert probe.asked == 0


@pytest.mark.parametrize(("recovers_after", "waited"), [(12.0, 12.0), (600.0, SETTLES_WITHIN)])
def test_a_controller_loses_its_flag_once_producers_have_got_over_the_start_of_the_one_before_or_half_a_minute_later(
    tmp_path: Path, recovers_after: float, waited: float
) -> None:
    cluster = SimCluster()
    finalizable = cluster.context(tmp_path)
    to_dual_write(cluster, finalizable)
    probe = Probing(cluster)
    context = probed(cluster, tmp_path, probe)
    first, second, _ = sorted(cluster.spec.controllers, key=lambda node: node.id == cluster.leader)
    began = cluster.clock.time
    run_step(FinalizeController(first), context)
    assert cluster.clock.time - began < waited, "nothing was slow before the first restart"
    began, probe.recovers = cluster.clock.time, cluster.clock.time + recovers_after
    run_step(FinalizeController(second), context)
    assert waited <= cluster.clock.time - began < waited + 10.0
    assert [cluster.nodes[NodeRole.CONTROLLER, node.id].stops for node in (first, second)] == [1, 1]
