"""Silence is no proof: of a dual-write that died in the middle of a wait, and of controllers that nobody can reach."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.decision import Refuse, Wait
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.migration.roll import decide_restart
from airflow_provider_kmigrate.core.model import BrokerMode
from airflow_provider_kmigrate.exceptions import TimedOut
from airflow_provider_kmigrate.steps.brokers import RollBackBroker
from airflow_provider_kmigrate.steps.run import run_step
from airflow_provider_kmigrate.steps.waits import Soak
from benchmarks import direct
from tests.steps.sim import SimCluster


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
    direct.to_dual_write(with_backup)
    return cluster, with_backup


def test_a_soak_begins_again_when_the_dual_write_dies_in_it(dying):
    cluster, context = dying
    cluster.dead_after = cluster.clock.time + 30.0
    soak = Soak(1000.0)
    run_step(soak, context, sync_for=28.0)
    assert soak.progress.healthy_seconds > 20.0
    run_step(soak, context, sync_for=30.0)
    assert soak.progress.healthy_seconds == 0.0


def test_no_broker_goes_back_on_a_dual_write_that_moved_only_when_the_wait_began(dying):
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
    assert isinstance(none, Refuse), "nobody has started any"
    direct.provision(context)
    view = cluster.observe(roll.MIN_OBSERVATIONS)
    unresponsive = {node: replace(one, answers=False, migration_flag=None) for node, one in view.controllers.items()}
    waits = decide_restart(replace(view, controllers=unresponsive), 0, BrokerMode.MIGRATION)
    assert isinstance(waits, Wait)
    assert [reason.code for reason in waits.reasons] == ["P01", "R01", "G23", "G23", "G23"]
    assert "3000, 3001, 3002" in waits.reasons[1].text
