"""The restart of a broker is over only once the consumer groups that made progress before it do so again: in the real steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster import GroupProgressSpec, NodeRole, Policy
from airflow_provider_kmigrate.core.decision import Done, Wait
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.files.config_matrix import FileStage
from airflow_provider_kmigrate.core.group_progress import AwaitedGroup, GroupPosition, GroupSweep, Lag
from airflow_provider_kmigrate.core.model import BrokerMode, Cause
from airflow_provider_kmigrate.core.progress import FRESH, StepProgress
from airflow_provider_kmigrate.exceptions import TimedOut
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.steps.waits import run_watch
from tests.steps.sim import SimCluster
from tests.steps.test_first_broker import ready
from tests.steps.test_rollback import some_kraft

TARGET = BrokerMode.MIGRATION
PLACE = TopicPartition("t", 0)


class Consumers:
    """One group on one partition with steady traffic. It hangs from the next restart of a broker, until `continues`."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster, self.continues = cluster, float("inf")
        self.hung_at: float | None = None
        cluster.consumers = self.sweep

    def sweep(self, now: float) -> GroupSweep:
        if self.hung_at is None and any(node.stops for node in self.cluster.nodes.values()):
            self.hung_at = now
        moves = self.hung_at is None or now >= self.continues
        committed = int(100 * (now if moves else self.hung_at or 0))
        return GroupSweep({"billing": GroupPosition(committed, {PLACE: Lag(committed, int(100 * now) + 50)})})


@pytest.fixture
def cluster(tmp_path: Path) -> SimCluster:
    """Controllers run, and no broker has been rolled yet."""
    there = ready(tmp_path, TARGET)
    there.spec = replace(
        there.spec, policy=Policy(canary_bake=0.0, start_timeout=120.0), group_progress=GroupProgressSpec(commit_within=30.0)
    )
    for node in there.nodes.values():
        node.stops = 0
    return there


def roll(cluster: SimCluster, context: StepContext, broker: int, progress: StepProgress = FRESH, sync_for: float = 1e9) -> object:
    step = build(cluster.spec, "roll", {"node": broker, "target": str(TARGET)}, progress)
    return run_step(step, context, sync_for)


def stops(cluster: SimCluster, broker: int) -> int:
    return cluster.nodes[NodeRole.BROKER, broker].stops


def test_a_roll_continues_while_groups_do(cluster: SimCluster, tmp_path: Path) -> None:
    there = Consumers(cluster)
    there.continues = 0.0
    for broker in (1, 2):
        assert isinstance(roll(cluster, cluster.context(tmp_path), broker), Done)
    assert [stops(cluster, broker) for broker in (1, 2)] == [1, 1]


def test_a_hanging_group_holds_the_step_and_is_named(cluster: SimCluster, tmp_path: Path) -> None:
    Consumers(cluster)
    with pytest.raises(TimedOut, match=r"G38.*billing.*t-0"):
        roll(cluster, cluster.context(tmp_path), 1)
    assert stops(cluster, 1) == 1


def test_it_continues_once_the_client_was_restarted(cluster: SimCluster, tmp_path: Path) -> None:
    there = Consumers(cluster)
    there.continues = cluster.clock.time + 60.0
    assert isinstance(roll(cluster, cluster.context(tmp_path), 1), Done)
    assert cluster.clock.time >= there.continues


def test_another_process_waits_for_the_same_group(cluster: SimCluster, tmp_path: Path) -> None:
    """Handed over in the middle, with what was stored: the group still holds the step, and the next try too."""
    Consumers(cluster)
    step = build(cluster.spec, "roll", {"node": 1, "target": str(TARGET)})
    assert isinstance(run_step(step, cluster.context(tmp_path), 10.0), Wait)
    assert step.progress.groups == (AwaitedGroup("billing"),)
    with pytest.raises(TimedOut, match="billing"):
        roll(cluster, cluster.context(tmp_path), 1, step.progress.retried())


def test_the_groups_are_stored_before_the_broker_stops(cluster: SimCluster, tmp_path: Path) -> None:
    """A process that is killed in the restart leaves behind who must continue."""
    Consumers(cluster)
    step, kept = build(cluster.spec, "roll", {"node": 1, "target": str(TARGET)}), [FRESH]
    observed: list[tuple[AwaitedGroup, ...]] = []

    def secure() -> None:
        kept[0] = kept[0].to_secure(step.progress)
        if not stops(cluster, 1):
            observed.append(kept[0].groups)

    run_step(step, cluster.context(tmp_path), 10.0, secure)
    assert observed[-1] == (AwaitedGroup("billing"),)


@pytest.mark.parametrize("kind", ["roll", "roll back broker"])
def test_every_step_that_rolls_brokers_waits_for_groups(cluster: SimCluster, kind: str) -> None:
    arguments = {"node": 1, "target": str(BrokerMode.MIGRATION)}
    step = build(cluster.spec, kind, arguments, replace(FRESH, groups=(AwaitedGroup("billing"),)))
    assert step.progress.groups == (AwaitedGroup("billing"),)


def test_a_rollback_holds_for_a_hanging_group_too(tmp_path: Path) -> None:
    cluster = SimCluster()
    some_kraft(cluster, cluster.context(tmp_path))
    for node in cluster.nodes.values():
        node.stops = 0
    Consumers(cluster)
    broker = next(node.spec.id for node in cluster.nodes.values() if node.stage is FileStage.KRAFT)
    back = build(cluster.spec, "roll back broker", {"node": broker, "target": str(BrokerMode.MIGRATION)})
    with pytest.raises(TimedOut, match=r"G38.*billing"):
        run_step(back, cluster.context(tmp_path))
    assert stops(cluster, broker) == 1


def test_watch_names_groups_that_do_not_move(cluster: SimCluster, tmp_path: Path) -> None:
    said: list[str] = []
    context = replace(cluster.context(tmp_path), say=said.append)
    lag = Lag(100, 5000)
    cluster.consumers = lambda _: GroupSweep({"billing": GroupPosition(100, {PLACE: lag})})
    done = run_watch(context)
    assert "billing (4900 records behind)" in done.text


def test_the_reason_has_a_cause_that_decisions_recognise(cluster: SimCluster, tmp_path: Path) -> None:
    Consumers(cluster)
    step = build(cluster.spec, "roll", {"node": 1, "target": str(TARGET)})
    found = run_step(step, cluster.context(tmp_path), 60.0)
    assert isinstance(found, Wait)
    assert [reason.cause for reason in found.reasons] == [Cause.GROUPS_STUCK]
