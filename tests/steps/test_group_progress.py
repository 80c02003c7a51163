"""The next broker restarts only once the consumer groups that made progress before the last restart do so again: in the real steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Done, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Cause
from airflow_provider_kmigrate.core.cluster_state.spec import PROBE_GROUP, GroupProgressSpec, NodeRole, Policy
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import GroupPosition, GroupSweep, Lag
from airflow_provider_kmigrate.core.migration.group_progress import GroupsKept
from airflow_provider_kmigrate.core.migration.plan import EXPANSION, MIGRATION, ROLLBACK, Plan
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import TimedOut, Unavailable
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.group_watch import GroupFile, sample_group_progress
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.steps.waits import run_watch
from tests.steps.canary_broker import ready
from tests.steps.phases import some_kraft
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import Killed, Mortal

TARGET = BrokerMode.MIGRATION
PLACE = TopicPartition("t", 0)


MEMBER = KafkaMember("m-1", "billing-7", frozenset({PLACE}), "/10.1.2.3")


class Consumers:
    """One group on one partition with steady traffic. It hangs from the next restart of a broker, until `continues`.

    `killed`: it loses its members so many seconds after that restart; None: never.
    """

    def __init__(self, cluster: SimCluster, killed: float | None = None) -> None:
        self.cluster, self.continues, self.killed = cluster, float("inf"), killed
        self.hung_at: float | None = None
        for node in cluster.nodes.values():
            node.stops = 0
        cluster.consumers = self.sweep

    def sweep(self, now: float) -> GroupSweep:
        if self.hung_at is None and any(node.stops for node in self.cluster.nodes.values()):
            self.hung_at = now
        moves = self.hung_at is None or now >= self.continues
        committed = int(100 * (now if moves else self.hung_at or 0))
        there = {"billing": GroupPosition({PLACE: Lag(committed, int(100 * now) + 50)})}
        if not moves and self.killed is not None and now - (self.hung_at or now) >= self.killed:
            return GroupSweep(left=there)
        return GroupSweep(there, members={"billing": (MEMBER,)})


@pytest.fixture
def cluster(tmp_path: Path) -> SimCluster:
    """Controllers run, and no broker has been rolled yet."""
    there: SimCluster = ready(tmp_path, TARGET)
    policy, groups = Policy(canary_bake=0.0, start_timeout=120.0), GroupProgressSpec(commit_within=30.0)
    there.spec = replace(there.spec, policy=policy, group_progress=groups)
    return there


def roll(cluster: SimCluster, context: StepContext, broker: int, sync_for: float = 1e9) -> object:
    step = build(cluster.spec, "roll", {"node": broker, "target": str(TARGET)})
    return run_step(step, context, sync_for)


def stops(cluster: SimCluster, broker: int) -> int:
    return cluster.nodes[NodeRole.BROKER, broker].stops


def test_a_roll_continues_while_groups_do(cluster: SimCluster, tmp_path: Path) -> None:
    there = Consumers(cluster)
    there.continues = 0.0
    for broker in (1, 2):
        assert isinstance(roll(cluster, cluster.context(tmp_path), broker), Done)
    assert [stops(cluster, broker) for broker in (1, 2)] == [1, 1]


def test_a_hanging_group_holds_the_next_restart_and_is_named(cluster: SimCluster, tmp_path: Path) -> None:
    Consumers(cluster)
    assert isinstance(roll(cluster, cluster.context(tmp_path), 1), Done)
    with pytest.raises(TimedOut, match=r"G38.*billing.*t-0"):
        roll(cluster, cluster.context(tmp_path), 2)
    assert [stops(cluster, broker) for broker in (1, 2)] == [1, 0]


@pytest.mark.parametrize("killed", [0.0, 45.0], ids=["at once", "once their session was over"])
def test_a_group_whose_members_the_restart_killed_is_named_with_them_and_holds_until_it_is_back(
    cluster: SimCluster, tmp_path: Path, killed: float
) -> None:
    there = Consumers(cluster, killed)
    assert isinstance(roll(cluster, cluster.context(tmp_path), 1), Done)
    cluster.clock.time += 1_000.0  # far more than a commit may take
    for _ in range(2):  # the failed task, and cleared
        with pytest.raises(
            TimedOut, match=r"G38.*billing.*no members any more for \d+ s; before the restart: billing-7 on 10.1.2.3"
        ):
            roll(cluster, cluster.context(tmp_path), 2)
    assert [stops(cluster, broker) for broker in (1, 2)] == [1, 0]
    there.continues = cluster.clock.time
    assert isinstance(roll(cluster, cluster.context(tmp_path), 2), Done)


def test_a_group_whose_members_the_restart_killed_is_let_go_by_its_name_in_the_cluster_file(
    cluster: SimCluster, tmp_path: Path
) -> None:
    Consumers(cluster, killed=0.0)
    roll(cluster, cluster.context(tmp_path), 1)
    cluster.spec = replace(cluster.spec, group_progress=replace(cluster.spec.group_progress, exclude=("billing",)))
    assert isinstance(roll(cluster, cluster.context(tmp_path), 2), Done)


def test_a_rollback_gives_up_a_group_whose_members_were_killed(tmp_path: Path) -> None:
    cluster = SimCluster()
    some_kraft(cluster, cluster.context(tmp_path))
    Consumers(cluster, killed=0.0)
    first, second = (node.spec.id for node in cluster.nodes.values() if node.stage is FileStage.KRAFT)
    for broker in (first, second):
        back = build(cluster.spec, "roll back broker", {"node": broker, "target": str(BrokerMode.MIGRATION)})
        assert isinstance(run_step(back, cluster.context(tmp_path)), Done)
    assert [stops(cluster, broker) for broker in (first, second)] == [1, 1]


def test_a_group_that_stopped_between_two_rolls_is_not_waited_for_and_the_restart_says_so(
    cluster: SimCluster, tmp_path: Path
) -> None:
    """The sweep at the end of the roll before shows it at work."""
    before, said = {"billing": GroupPosition({PLACE: Lag(1, 5)})}, list[str]()
    cluster.kept.save(GroupsKept({}, before, cluster.clock.now() - 300.0))
    cluster.consumers = lambda now: GroupSweep({"billing": GroupPosition({PLACE: Lag(50, int(now))})})
    cluster.clock.time += 1_000.0
    cluster.kept.save(GroupsKept({}, before, cluster.clock.now() - 300.0))
    for broker in (1, 2):
        assert isinstance(roll(cluster, replace(cluster.context(tmp_path), say=said.append), broker), Done)
    assert any("have committed nothing for 30 s, so not waited for after the restart: billing." in text for text in said)


def test_the_roll_continues_once_the_groups_client_was_restarted(cluster: SimCluster, tmp_path: Path) -> None:
    there = Consumers(cluster)
    roll(cluster, cluster.context(tmp_path), 1)
    there.continues = cluster.clock.time + 60.0
    assert isinstance(roll(cluster, cluster.context(tmp_path), 2), Done)
    assert stops(cluster, 2) == 1
    assert cluster.clock.time >= there.continues


def test_the_end_of_a_roll_waits_for_groups_too(cluster: SimCluster, tmp_path: Path) -> None:
    there = Consumers(cluster)
    for broker in (1, 2):
        there.continues = 0.0 if broker == 1 else float("inf")
        there.hung_at = None
        roll(cluster, cluster.context(tmp_path), broker)
    found = run_step(build(cluster.spec, "registered", {}), cluster.context(tmp_path), 60.0)
    assert isinstance(found, Wait)
    assert Cause.GROUPS_STUCK in {reason.cause for reason in found.reasons}
    there.continues = cluster.clock.time
    assert isinstance(run_step(build(cluster.spec, "registered", {}), cluster.context(tmp_path)), Done)


def test_the_groups_are_kept_before_the_broker_stops(cluster: SimCluster, tmp_path: Path) -> None:
    """Killed right after the stop: the next try knows who must continue, and the next restart waits."""
    Consumers(cluster)
    for moment in range(1, 400):
        cluster.mortal = Mortal(moment)
        try:
            roll(cluster, cluster.context(tmp_path), 1)
        except Killed:
            if stops(cluster, 1):
                break
    clients = {"billing": ("billing-7 on 10.1.2.3",)}
    assert cluster.kept.load() == GroupsKept({"billing": frozenset()}, None, cluster.kept.load().at, clients)  # type: ignore[union-attr]
    cluster.mortal = Mortal()
    assert isinstance(roll(cluster, cluster.context(tmp_path), 1), Done)
    with pytest.raises(TimedOut, match="billing"):
        roll(cluster, cluster.context(tmp_path), 2)


@pytest.mark.parametrize(
    ("plan", "ends"),
    [(MIGRATION, "registered"), (ROLLBACK, "registered"), (EXPANSION, "one coordinator")],
    ids=["migration", "rollback", "expansion"],
)
def test_every_step_that_restarts_brokers_or_ends_a_roll_waits_for_groups(cluster: SimCluster, plan: Plan, ends: str) -> None:
    rolls = [row for row in plan if row.each is NodeRole.BROKER]
    assert rolls
    for row in rolls:
        step: Any = build(cluster.spec, row.kind, {"node": 1, "target": str(row.target), "partitions": 20})
        assert step.state.groups.spec == cluster.spec.group_progress
    last = plan[max(plan.index(row) for row in rolls) + 2]
    assert last.kind == ends
    last_step: Any = build(cluster.spec, ends, {"partitions": 20})
    assert last_step._progress.spec == cluster.spec.group_progress


@pytest.mark.parametrize("sync_for", [1e9, 5.0], ids=["in one process", "in a task that may defer"])
def test_a_rollback_names_a_hanging_group_and_waits_for_it_no_longer_than_a_commit_may_take(
    tmp_path: Path, sync_for: float
) -> None:
    """Its clients may be why the operator rolls back."""
    cluster = SimCluster()
    some_kraft(cluster, cluster.context(tmp_path))
    Consumers(cluster)
    first, second = (node.spec.id for node in cluster.nodes.values() if node.stage is FileStage.KRAFT)
    said: list[str] = []
    for broker in (first, second):
        back = build(cluster.spec, "roll back broker", {"node": broker, "target": str(BrokerMode.MIGRATION)})
        began = cluster.clock.time
        assert isinstance(run_step(back, replace(cluster.context(tmp_path), say=said.append), sync_for), Done)
    assert [stops(cluster, broker) for broker in (first, second)] == [1, 1]
    assert cluster.clock.time - began > cluster.spec.group_progress.commit_within
    [restart] = [text for text in said if "waits no longer for consumer groups" in text]
    assert "[G38]" in restart
    assert "billing" in restart


def test_a_sweep_in_the_backup_spares_the_first_restart_its_wait(cluster: SimCluster, tmp_path: Path) -> None:
    there = Consumers(cluster)
    there.continues = 0.0
    sample_group_progress(cluster.context(tmp_path))
    cluster.clock.time += 10.0
    began = cluster.clock.time
    roll(cluster, cluster.context(tmp_path), 1)
    assert cluster.kept.load() is not None
    assert cluster.clock.time - began < 10.0


def test_a_sweep_in_the_backup_forgets_no_group_that_is_waited_for(cluster: SimCluster, tmp_path: Path) -> None:
    cluster.kept.save(GroupsKept({"billing": frozenset()}, None, 1.0))
    sample_group_progress(cluster.context(tmp_path))
    assert cluster.kept.load() == GroupsKept({"billing": frozenset()}, None, 1.0)


def test_the_group_of_a_probe_that_the_cluster_file_no_longer_wants_holds_nothing(cluster: SimCluster, tmp_path: Path) -> None:
    cluster.kept.save(GroupsKept({PROBE_GROUP: frozenset()}))
    assert isinstance(roll(cluster, cluster.context(tmp_path), 1), Done)


def test_the_watch_reports_a_group_that_has_lost_its_members_since_a_restart(cluster: SimCluster, tmp_path: Path) -> None:
    there = Consumers(cluster, killed=0.0)
    roll(cluster, cluster.context(tmp_path), 1)
    cluster.clock.time += 60.0
    with pytest.raises(
        Unavailable, match=r"\[G38\] 1 consumer group has lost.*billing.*before the restart: billing-7 on 10.1.2.3"
    ):
        run_watch(cluster.context(tmp_path))
    there.continues = cluster.clock.time
    assert isinstance(run_watch(cluster.context(tmp_path)), Done)
    there.continues = float("inf")
    cluster.spec = replace(cluster.spec, group_progress=replace(cluster.spec.group_progress, exclude=("billing",)))
    assert isinstance(run_watch(cluster.context(tmp_path)), Done)


def test_watch_names_groups_that_do_not_move(cluster: SimCluster, tmp_path: Path) -> None:
    cluster.consumers = lambda _: GroupSweep({"billing": GroupPosition({PLACE: Lag(100, 5000)})})
    assert "billing (4900 records behind)" in run_watch(cluster.context(tmp_path)).text


def test_the_file_keeps_what_it_was_given_unless_it_only_observes(tmp_path: Path) -> None:
    path, kept = (
        tmp_path / "groups" / "c.json",
        GroupsKept({"g": frozenset({"t-1"})}, {"g": GroupPosition({PLACE: Lag(1, 2)})}, 7.0),
    )
    GroupFile(path, writable=False).save(kept)
    assert GroupFile(path).load() is None
    GroupFile(path).save(kept)
    assert GroupFile(path, writable=False).load() == kept
    path.write_text('{"version": 99}')
    assert GroupFile(path).load() is None


def test_a_file_that_cannot_be_written_stops_no_roll(cluster: SimCluster, tmp_path: Path) -> None:
    there = Consumers(cluster)
    there.continues = 0.0
    (tmp_path / "groups").touch()  # where the folder should be
    context = replace(cluster.context(tmp_path), groups=GroupFile(tmp_path / "groups" / "c.json"))
    assert isinstance(roll(cluster, context, 1), Done)
