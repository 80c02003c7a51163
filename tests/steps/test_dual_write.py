"""A dual-write that stalls although every node runs is recovered, in a migration and in a rollback."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from airflow_provider_kmigrate.clients.znodes import Znode
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Cause, Fields, NoProbe, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.core.migration.recovery import FORGOTTEN_AFTER, MAX_RECOVERIES, STALLED_FOR, StalledDualWrite
from airflow_provider_kmigrate.core.migration.roll import decide_restart
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, Fenced, Refused, TimedOut
from airflow_provider_kmigrate.steps.brokers import RollBackBroker, RollBroker
from airflow_provider_kmigrate.steps.catalog import build, run_rollback
from airflow_provider_kmigrate.steps.rollback import ControllerFailover
from airflow_provider_kmigrate.steps.run import run_step
from airflow_provider_kmigrate.steps.waits import Copied, Soak
from benchmarks import direct
from tests.steps.phases import to_dual_write
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import Killed
from tests.steps.sim_zookeeper import SimZooKeeper

WAITS = Wait((Reason("G07", "/migration stands still", cause=Cause.DUAL_WRITE_STALLED),))


def ended(cluster: SimCluster) -> None:
    """The active controller goes on with the version of /migration from before a lost answer."""
    cluster.ended = cluster.epoch


def half_made(cluster: SimCluster) -> None:
    """ZooKeeper misses a partition's state; the present leader does not notice."""
    cluster.half_made = cluster.epoch


def half_made_and_elected(cluster: SimCluster) -> None:
    """And a controller was elected since."""
    cluster.half_made = cluster.epoch - 1


class Unseeing(SimZooKeeper):
    """What is missing in it is not seen."""

    def read_znodes(self, paths):
        return ((path, Znode(b"{}", 0, 0, 0.0)) for path in paths)


@dataclass
class Refusing(SimZooKeeper):
    """Nothing can be written."""

    error: Exception

    def commit(self, operations, holding):
        raise self.error


def with_zookeeper(context, zookeeper):
    return replace(context, tools=SimpleNamespace(**{**vars(context.tools), "zk": zookeeper}))


@pytest.fixture
def dual(tmp_path):
    cluster = SimCluster()
    to_dual_write(cluster, cluster.context(tmp_path))
    return cluster


@pytest.mark.parametrize(("what", "verb"), [(ended, Verb.CONTROLLER_FAILOVER), (half_made_and_elected, Verb.COMPLETE)])
def test_a_soak_brings_it_to_life_and_begins_again(tmp_path, dual, what, verb):
    what(dual)
    context, soak = dual.context(tmp_path), Soak(30.0).resume(StepProgress(healthy_seconds=29.0))
    before, began = dual.epoch, dual.clock.time
    assert isinstance(run_step(soak, context), Done)
    assert soak.progress.recoveries == 1
    assert dual.clock.time - began > STALLED_FOR + 30.0
    assert dual.epoch == before + (verb == Verb.CONTROLLER_FAILOVER)
    assert dual.disasters == []


@pytest.mark.parametrize("what", [ended, half_made, half_made_and_elected])
def test_a_rollback_completes_what_zookeeper_misses_before_it_fails_over(tmp_path, dual, what):
    what(dual)
    before = dual.epoch
    run_step(ControllerFailover(dual.spec.controllers), dual.context(tmp_path))
    assert dual.epoch == before + 1
    run_rollback(dual.context(tmp_path))
    assert dual.disasters == []


def test_without_the_recovery_a_failover_makes_it_worse(tmp_path, dual):
    """What an administrator would do."""
    half_made(dual)
    with pytest.raises(TimedOut, match="G07"):
        run_step(ControllerFailover(dual.spec.controllers), with_zookeeper(dual.context(tmp_path), Unseeing(dual)))


def test_a_topic_that_is_just_being_made_is_left_alone(tmp_path, dual, monkeypatch):
    half_made(dual)
    slept = dual.clock.sleep

    def whole(seconds):
        dual.half_made = None
        slept(seconds)

    monkeypatch.setattr(dual.clock, "sleep", whole)
    context, before = with_zookeeper(dual.context(tmp_path), Refusing(dual, AssertionError("made"))), dual.epoch
    assert isinstance(run_step(ControllerFailover(dual.spec.controllers), context), Done)
    assert dual.epoch == before + 1


@pytest.mark.parametrize("step", [Copied, lambda: Soak(1000.0)])
@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_wait_is_not_deferred_just_before_its_recovery(tmp_path, dual, monkeypatch, step, times):
    ended(dual)
    observe, slow = dual.observe, iter([1.0])

    def observe_slowly(*asked):
        dual.clock.time += next(slow, 0.0)
        return observe(*asked)

    monkeypatch.setattr(dual, "observe", observe_slowly)
    before = dual.epoch
    run_step(step().resume(StepProgress(recoveries=times)), dual.context(tmp_path), sync_for=30.0)
    assert dual.epoch == before + 1


def test_what_no_recovery_helps_is_given_up_over_many_processes(tmp_path, dual, monkeypatch):
    monkeypatch.setattr(dual, "_dual_write", lambda offset: None)
    before = dual.epoch
    with pytest.raises(TimedOut):
        processes(dual, tmp_path, lambda: Copied(600.0))
    assert dual.epoch - before == MAX_RECOVERIES


def processes(cluster: SimCluster, folder, made):
    """One step as an operator runs it: at most 30 s of waiting in one process; its progress goes to the next one."""
    step = made()
    while isinstance(run_step(step, cluster.context(folder), sync_for=30.0), Wait):
        step = made().resume(step.progress)


@pytest.mark.parametrize("step", [Copied, lambda: Soak(30.0)])
def test_a_controller_that_a_killed_recovery_left_stopped_is_started(tmp_path, dual, monkeypatch, step):
    ended(dual)
    with monkeypatch.context() as dead:
        dead.setattr(dual, "start", die)
        first = step()
        with pytest.raises(Killed):
            run_step(first, dual.context(tmp_path))
    assert isinstance(run_step(step().resume(first.progress), dual.context(tmp_path), sync_for=300.0), Done)
    assert all(dual.nodes[NodeRole.CONTROLLER, node.id].running for node in dual.spec.controllers)


def test_a_controller_that_something_else_stopped_is_left_alone(tmp_path, dual):
    dual.stop(dual.spec.controllers[0])
    assert isinstance(run_step(Soak(30.0), dual.context(tmp_path), sync_for=300.0), Wait)
    assert dual.nodes[NodeRole.CONTROLLER, dual.spec.controllers[0].id].running is None


def test_what_a_watch_decides_on_and_may_not_do_is_not_counted(tmp_path, dual, monkeypatch):
    ended(dual)
    watching = Soak(30.0)
    monkeypatch.setattr(dual, "token", dual.token)
    context = dual.context(tmp_path)
    dual.token += 1  # a newer run holds the cluster
    with pytest.raises(Fenced):
        run_step(watching, context)
    assert watching.progress.recoveries == 1
    watching.forget_decision()
    assert watching.progress.recoveries == 0


def test_what_a_watch_decides_on_beside_recoveries_withdraws_none_of_them(tmp_path, dual):
    watching = RollBackBroker(dual.spec.brokers[0], BrokerMode.MIGRATION, dual.spec.policy).resume(StepProgress(recoveries=1))
    context = dual.context(tmp_path)
    dual.token += 1  # a newer run holds the cluster
    with pytest.raises(Fenced):
        run_step(watching, context)
    watching.forget_decision()
    assert watching.progress.recoveries == 1, "it was a restart that was left to another process"


def test_a_flag_that_is_lost_while_topics_are_completed_stops_the_failover(tmp_path, dual, monkeypatch):
    half_made(dual)
    slept = dual.clock.sleep

    def restarted_without(seconds):
        slept(seconds)
        for (role, number), node in dual.nodes.items():
            if role is NodeRole.CONTROLLER and number != dual.leader:
                node.running = node.text.replace("zookeeper.metadata.migration.enable=true", "")

    monkeypatch.setattr(dual.clock, "sleep", restarted_without)
    with pytest.raises(Refused, match="G05"):
        run_step(ControllerFailover(dual.spec.controllers), dual.context(tmp_path))
    assert not dual.finalized


@pytest.mark.parametrize("error", [AuthenticationFailed("no right"), Changed("taken")])
def test_no_failover_while_a_topic_stays_in_part(tmp_path, dual, error):
    """As long as the same controller leads, the dual-write goes on; its successor's would not."""
    half_made(dual)

    before, written = dual.epoch, []
    journal = SimpleNamespace(write=lambda kind, step, text, **facts: written.append((kind, text)))
    with pytest.raises((AuthenticationFailed, Failed)):
        run_step(
            ControllerFailover(dual.spec.controllers),
            with_zookeeper(replace(dual.context(tmp_path), journal=journal), Refusing(dual, error)),
        )
    assert dual.epoch == before
    assert [kind for kind, _ in written] == ["act", "failed"]
    assert "fail over the controller: " in written[-1][1]


def test_a_rollback_that_did_not_read_zookeeper_at_first_fails_over_once(tmp_path, dual, monkeypatch):
    observe, hidden, before = dual.observe, iter([True]), dual.epoch
    monkeypatch.setattr(dual, "observe", lambda *asked: replace(observe(*asked), **({"zk": None} if next(hidden, False) else {})))
    run_step(ControllerFailover(dual.spec.controllers), dual.context(tmp_path))
    assert dual.epoch == before + 1


def test_the_kill_switch_is_read_right_before_the_stop(tmp_path, dual):
    half_made(dual)
    answers = iter(["", "maintenance"])
    context = replace(dual.context(tmp_path), stopped=lambda: next(answers))
    with pytest.raises(Refused, match="maintenance"):
        run_step(ControllerFailover(dual.spec.controllers), context)
    assert all(dual.nodes[NodeRole.CONTROLLER, node.id].stops == 0 for node in dual.spec.controllers)


def observe(cluster: SimCluster, seconds: float, **changes: object):
    return replace(cluster.observe(Fields(0)), taken_at=seconds, **changes)


def kept(stalled: StalledDualWrite, views, decision):
    """What is decided at each observation, and what is kept in the end."""
    decided = []
    for view in views:
        stalled, found = stalled.decide_recovery(view, decision)
        decided.append(found)
    return decided, stalled


def still(cluster: SimCluster, stalled: StalledDualWrite, seconds: float):
    """An observation a second of a stalled dual-write; the first decision that is no wait."""
    cluster.ended = cluster.epoch
    decisions, _ = kept(stalled, (observe(cluster, float(second)) for second in range(int(seconds))), WAITS)
    return next(((second, decision.verb) for second, decision in enumerate(decisions) if isinstance(decision, Act)), None)


def test_each_recovery_has_twice_the_time_of_the_one_before_and_there_are_few(dual):
    times = [still(dual, StalledDualWrite(times), 1000.0) for times in range(MAX_RECOVERIES + 1)]
    assert times == [(21, Verb.CONTROLLER_FAILOVER), (41, Verb.CONTROLLER_FAILOVER), (81, Verb.CONTROLLER_FAILOVER), None]


def test_a_full_sync_of_many_partitions_may_read_for_long(dual):
    many = dual.observe(Fields.PARTITIONS).partitions * 2_000
    dual.ended = dual.epoch
    seen, _ = kept(StalledDualWrite(), (observe(dual, float(second), partitions=many) for second in range(200)), WAITS)
    after = next(second for second, decision in enumerate(seen) if isinstance(decision, Act))
    assert after == pytest.approx(20 + len(many) / 500, abs=1.0)


def test_after_minutes_of_health_it_is_another_trouble(dual):
    well = Wait((Reason("T01", "soaking"),), healthy=True)
    _, stalled = kept(
        StalledDualWrite(MAX_RECOVERIES), (observe(dual, float(second)) for second in range(int(FORGOTTEN_AFTER))), well
    )
    assert stalled.times == MAX_RECOVERIES
    assert stalled.decide_recovery(observe(dual, FORGOTTEN_AFTER), well)[0].times == 0


def test_nothing_is_done_while_zookeeper_does_not_answer_or_the_leader_changes_or_it_moves(dual):
    stalled = StalledDualWrite()
    for second in range(600):
        zk = None if second < 300 and second % 15 == 0 else dual.zk()
        dual.ended = dual.epoch if second == 300 else dual.ended
        dual.epoch += second >= 300 and second % 15 == 0
        changes = {"zk": zk} if second < 300 else {}
        stalled, decision = stalled.decide_recovery(observe(dual, float(second), **changes), WAITS)
        assert decision == WAITS


def test_a_quorum_that_is_not_whole_or_a_subscription_holds_it(dual):
    dual.ended = dual.epoch
    flag = dict(dual.observe(Fields.CONTROLLERS).controllers)
    flag[3001] = replace(flag[3001], migration_flag=None)
    for change, code in (({"controllers": flag}, "G23"), ({"client_metrics": ("s",)}, "G09"), ({"client_metrics": None}, "G00")):
        (*_, decision), _ = kept(StalledDualWrite(), (observe(dual, float(second), **change) for second in range(60)), WAITS)
        assert isinstance(decision, Wait)
        assert [reason.code for reason in decision.reasons] == ["G07", code]


def test_a_wait_for_something_else_is_not_its_business(dual):
    dual.ended = dual.epoch
    other = Wait((Reason("G20", "no leader"),))
    decided, _ = kept(StalledDualWrite(), (observe(dual, float(second)) for second in range(100)), other)
    assert all(decision is other for decision in decided)


@pytest.mark.parametrize(("what", "failovers"), [(ended, 1), (half_made_and_elected, 0)])
def test_a_broker_that_is_rolled_back_needs_it_too(tmp_path, dual, what, failovers):
    node, before = dual.spec.brokers[0], dual.epoch
    what(dual)
    step = RollBackBroker(node, BrokerMode.MIGRATION, dual.spec.policy)
    assert isinstance(run_step(step, dual.context(tmp_path), sync_for=30.0), Done)
    assert (dual.epoch - before, step.progress.recoveries) == (failovers, 1)
    assert dual.disasters == []


@pytest.mark.parametrize("trouble", [(ended, 1), (half_made_and_elected, 0)])
@pytest.mark.parametrize("way", [(RollBackBroker, BrokerMode.MIGRATION), (RollBroker, BrokerMode.KRAFT)])
def test_a_broker_that_was_down_when_it_stalled_gets_no_metadata_until_it_is_recovered(tmp_path, monkeypatch, dual, way, trouble):
    """One in migration mode waits for metadata and does not answer; the others in that mode do not learn that one in KRaft mode is back."""
    (kind, target), (what, failovers) = way, trouble
    context, node, before = dual.context(tmp_path), dual.spec.brokers[0], dual.epoch
    if kind is RollBroker:
        for broker in dual.spec.brokers:
            direct.step(context, "roll back broker", node=broker.id, target=BrokerMode.MIGRATION)
    start, unheard = dual.start, []

    def started(one):
        if one == node:
            what(dual)
        start(one)
        unheard.append(set(dual.uninformed))

    monkeypatch.setattr(dual, "start", started)
    step = kind(node, target, dual.spec.policy)
    assert isinstance(run_step(step, context, sync_for=60.0), Done)
    assert {0} in unheard
    assert (dual.epoch - before, step.progress.recoveries, dual.uninformed) == (failovers, 1, set())
    assert dual.disasters == []


def test_a_resumed_recovery_starts_its_broker_and_not_a_controller(tmp_path, dual):
    """A recovery in an earlier process; since then the broker's restart was interrupted, and a controller does not answer."""
    node, context = dual.spec.brokers[0], dual.context(tmp_path)
    with pytest.raises(Killed):
        kill_at_start(dual, node, context)
    observe = dual.observe

    def unresponsive(*asked):
        view = observe(*asked)
        first = view.controllers[3000]
        return replace(
            view, controllers={**view.controllers, 3000: replace(first, answers=dual.nodes[NodeRole.BROKER, 0].starts > 1)}
        )

    dual.observe = unresponsive
    step = RollBackBroker(node, BrokerMode.MIGRATION, dual.spec.policy).resume(StepProgress(recoveries=1))
    run_step(step, dual.context(tmp_path), sync_for=30.0)
    assert dual.nodes[NodeRole.BROKER, 0].running is not None


def kill_at_start(cluster, node, context):
    start = cluster.start
    cluster.start = die
    try:
        run_step(RollBackBroker(node, BrokerMode.MIGRATION, cluster.spec.policy), context)
    finally:
        cluster.start = start


def die(node):
    raise Killed


@pytest.mark.parametrize(("kind", "target"), [("roll", BrokerMode.KRAFT), ("roll back broker", BrokerMode.MIGRATION)])
def test_another_process_of_a_broker_s_step_knows_of_the_recoveries_before_it(dual, kind, target):
    assert build(dual.spec, kind, {"node": 0, "target": target}, StepProgress(recoveries=2)).progress.recoveries == 2


class Dying(SimCluster):
    """From one moment on the active controller cannot write to ZooKeeper; nothing else shows it for the time being."""

    dead_after = float("inf")
    short_until = float("inf")  # and what else the step waits for until then

    def observe(self, what, nodes=(), groups=()):
        before = self.offset
        found = super().observe(what, nodes, groups)
        if self.clock.time > self.dead_after and before is not None:
            self.offset = before
            if found.zk is not None:
                migration = replace(found.zk.migration, metadata_offset=before)
                found = replace(found, zk=replace(found.zk, migration=migration))
        if self.clock.time < self.short_until and found.partitions is not None:
            partitions = tuple(replace(one, isr=one.isr[:1]) for one in found.partitions)
            found = replace(found, partitions=partitions)
        return found


@pytest.fixture
def dying(tmp_path):
    cluster = Dying()
    cluster.short_until = 0.0
    with_backup = cluster.context(tmp_path)
    to_dual_write(cluster, with_backup)
    return cluster, with_backup


def test_a_soak_begins_again_when_the_dual_write_dies_in_it(dying):
    cluster, context = dying
    cluster.dead_after = cluster.clock.time + 30.0
    soak = Soak(1000.0)
    run_step(soak, context, sync_for=28.0)
    assert soak.progress.healthy_seconds > 20.0
    run_step(soak, context, sync_for=30.0)
    assert soak.progress.healthy_seconds == 0.0


def test_no_broker_is_rolled_back_on_a_dual_write_that_moved_only_when_the_wait_began(dying):
    cluster, context = dying
    cluster.dead_after = cluster.clock.time + 5.0
    cluster.short_until = cluster.clock.time + 60.0
    before = {node: sim.starts for node, sim in cluster.nodes.items()}
    with pytest.raises(TimedOut, match="/migration has not advanced"):
        run_step(RollBackBroker(cluster.spec.brokers[0], BrokerMode.MIGRATION, cluster.spec.policy), context)
    assert {node: sim.starts for node, sim in cluster.nodes.items()} == before


def test_controllers_that_were_started_and_are_out_of_reach_are_waited_for_by_name(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    direct.prepare(context)
    view = cluster.observe(roll.MIN_OBSERVATIONS)
    none = decide_restart(view, 0, BrokerMode.MIGRATION)
    assert isinstance(none, Refuse), "none was started"
    direct.provision(context)
    view = replace(cluster.observe(roll.MIN_OBSERVATIONS), probe=NoProbe())
    unresponsive = {node: replace(one, answers=False, migration_flag=None) for node, one in view.controllers.items()}
    waits = decide_restart(replace(view, controllers=unresponsive), 0, BrokerMode.MIGRATION)
    assert isinstance(waits, Wait)
    assert [reason.code for reason in waits.reasons] == ["P01", "R01", "G23", "G23", "G23"]
    assert "3000, 3001, 3002" in waits.reasons[1].text
