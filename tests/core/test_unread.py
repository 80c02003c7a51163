"""What a look could not tell is neither healthy nor a refusal: waiting gets it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_provider_kmigrate.core.forward import provision, roll, waiting
from airflow_provider_kmigrate.core.model import Act, BrokerMode, Done, Look, Partition, Quorum, Wait
from benchmarks import direct
from tests.steps.sim import SimCluster


def test_a_voter_that_never_fetched_does_not_follow(tmp_path: Path) -> None:
    cluster = SimCluster()
    direct.provision(cluster.world(tmp_path))
    view = cluster.look(Look(0))
    assert isinstance(waiting.controllers_ready(view), Done)
    for voters in ({3000: 900, 3001: 900, 3002: -1}, {3000: 900}):
        assert isinstance(waiting.controllers_ready(replace(view, quorum=Quorum(3000, 6, 900, voters, {}))), Wait)


def test_no_controller_is_finalized_while_another_voter_lags(tmp_path: Path) -> None:
    cluster = SimCluster()
    direct.to_dual_write(cluster.world(tmp_path))
    before, view = cluster.look(Look(0)), cluster.look(Look(0))
    for behind, acts in ((200_000, True), (5, False)):
        quorum = Quorum(3000, 6, 200_000, {3000: 200_000, 3001: 200_000, 3002: behind}, {})
        zk = replace(view.zk, migration=replace(view.zk.migration, metadata_offset=199_999))
        decision = provision.decide_finalize(replace(view, quorum=quorum, zk=zk), before, 3001)
        assert isinstance(decision, Act) == acts, decision


def test_a_topic_made_during_the_look_is_waited_for(tmp_path: Path) -> None:
    """Its partitions were read, its min.insync.replicas were not."""
    cluster = SimCluster()
    direct.provision(cluster.world(tmp_path))
    view = cluster.look(Look(0))
    made = Partition("made-just-now", 0, 0, (0, 1, 2), (0, 1, 2))
    decision = roll.decide_restart(replace(view, partitions=(*(view.partitions or ()), made)), 1, BrokerMode.MIGRATION)
    assert isinstance(decision, Wait)
    assert {reason.code for reason in decision.reasons} == {"S00"}
