"""A dual-write that has ended although everybody runs is brought to life again, on the way there and on the way back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.model import Act, Done, Look, Reason, Wait
from airflow_provider_kmigrate.core.standstill import FAIL_OVER, FORGOTTEN_AFTER, MEND, MOST_CURES, PATIENCE, Standstill
from airflow_provider_kmigrate.exceptions import TimedOut
from airflow_provider_kmigrate.steps.rollback import Reconcile, run_rollback
from airflow_provider_kmigrate.steps.run import run_step
from airflow_provider_kmigrate.steps.waits import Soak
from benchmarks import direct
from tests.steps.sim import SimCluster

WAITS = Wait((Reason("G07", "/migration stands still"),))


def ended(cluster: SimCluster) -> None:
    """The active controller goes on with the version of /migration from before a lost answer."""
    cluster.ended = cluster.epoch


def half_made(cluster: SimCluster) -> None:
    """ZooKeeper lacks a partition's state; whoever leads now does not notice."""
    cluster.half_made = cluster.epoch


def half_made_and_elected(cluster: SimCluster) -> None:
    """And a controller was elected since."""
    cluster.half_made = cluster.epoch - 1


@pytest.fixture
def dual(tmp_path):
    cluster = SimCluster()
    direct.to_dual_write(cluster.world(tmp_path))
    return cluster


@pytest.mark.parametrize(("what", "verb"), [(ended, FAIL_OVER), (half_made_and_elected, MEND)])
def test_a_soak_brings_it_to_life_and_begins_again(tmp_path, dual, what, verb):
    what(dual)
    world, soak = dual.world(tmp_path), Soak(30.0, held=29.0, interval=1.0)
    before, began = dual.epoch, dual.clock.time
    assert isinstance(run_step(soak, world), Done)
    assert soak.renewed == 1
    assert dual.clock.time - began > PATIENCE + 30.0
    assert dual.epoch == before + (verb == FAIL_OVER)
    assert dual.disasters == []


@pytest.mark.parametrize("what", [ended, half_made, half_made_and_elected])
def test_a_way_back_completes_what_zookeeper_lacks_before_it_fails_over(tmp_path, dual, what):
    what(dual)
    before = dual.epoch
    run_step(Reconcile(dual.spec.controllers), dual.world(tmp_path))
    assert dual.epoch == before + 1
    run_rollback(dual.world(tmp_path))
    assert dual.disasters == []


def test_without_the_cure_a_failover_makes_it_worse(tmp_path, dual, monkeypatch):
    """What the way back did before, and what a person would do."""
    monkeypatch.setattr("airflow_provider_kmigrate.steps.dual_write._complete", lambda world: None)
    half_made(dual)
    with pytest.raises(TimedOut, match="G07"):
        run_step(Reconcile(dual.spec.controllers), dual.world(tmp_path))


def test_a_topic_that_is_just_being_made_is_left_alone(tmp_path, dual, monkeypatch):
    half_made(dual)
    slept = dual.clock.sleep

    def whole(seconds):
        dual.half_made = None
        slept(seconds)

    monkeypatch.setattr(dual.clock, "sleep", whole)
    monkeypatch.setattr("airflow_provider_kmigrate.steps.dual_write.make_whole", lambda *_: pytest.fail("made"))
    run_step(Reconcile(dual.spec.controllers), dual.world(tmp_path))


def look(cluster: SimCluster, seconds: float, **changes: object):
    return replace(cluster.look(Look.ZOOKEEPER), taken_at=seconds, **changes)


def still(cluster: SimCluster, standstill: Standstill, seconds: float):
    """A look a second at a dual-write that has ended; the first that is not just waiting."""
    cluster.ended = cluster.epoch
    decisions = ((second, standstill.cured(look(cluster, float(second)), WAITS)) for second in range(int(seconds)))
    return next(((second, decision.verb) for second, decision in decisions if isinstance(decision, Act)), None)


def test_each_cure_has_twice_the_time_of_the_one_before_and_there_are_few(dual):
    times = [still(dual, Standstill(times), 1000.0) for times in range(MOST_CURES + 1)]
    assert times == [(21, FAIL_OVER), (41, FAIL_OVER), (81, FAIL_OVER), None]


def test_a_full_sync_of_many_partitions_may_read_for_long(dual):
    many = dual.look(Look.PARTITIONS).partitions * 2_000
    dual.ended, standstill = dual.epoch, Standstill()
    seen = [standstill.cured(look(dual, float(second), partitions=many), WAITS) for second in range(200)]
    after = next(second for second, decision in enumerate(seen) if isinstance(decision, Act))
    assert after == pytest.approx(20 + len(many) / 500, abs=1.0)


def test_after_minutes_of_health_it_is_another_trouble(dual):
    standstill, well = Standstill(MOST_CURES), Wait((Reason("T01", "soaking"),), healthy=True)
    for second in range(int(FORGOTTEN_AFTER)):
        standstill.cured(look(dual, float(second)), well)
    assert standstill.times == MOST_CURES
    standstill.cured(look(dual, FORGOTTEN_AFTER), well)
    assert standstill.times == 0


def test_nothing_is_done_while_zookeeper_does_not_answer_or_the_leader_changes_or_it_moves(dual):
    standstill = Standstill()
    for second in range(300):
        zk = None if second % 15 == 0 else dual.zk()
        assert standstill.cured(look(dual, float(second), zk=zk), WAITS) == WAITS
    dual.ended = dual.epoch
    for second in range(300, 600):
        dual.epoch += second % 15 == 0
        assert standstill.cured(look(dual, float(second)), WAITS) == WAITS


def test_a_quorum_that_is_not_whole_or_a_subscription_holds_it(dual):
    dual.ended = dual.epoch
    flag = dict(dual.look(Look.CONTROLLERS).controllers)
    flag[3001] = replace(flag[3001], migration_flag=None)
    for change, code in (({"controllers": flag}, "G23"), ({"client_metrics": ("s",)}, "G09"), ({"client_metrics": None}, "G00")):
        standstill = Standstill()
        for second in range(60):
            decision = standstill.cured(look(dual, float(second), **change), WAITS)
        assert isinstance(decision, Wait)
        assert [reason.code for reason in decision.reasons] == ["G07", code]


def test_a_wait_for_something_else_is_not_its_business(dual):
    dual.ended, standstill = dual.epoch, Standstill()
    other = Wait((Reason("G20", "no leader"),))
    assert all(standstill.cured(look(dual, float(second)), other) is other for second in range(100))
