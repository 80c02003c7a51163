"""The search over pairs of faults: a part of it, and that it finds what it is for. All of it: `make pairs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.steps.backup import render_file
from airflow_provider_kmigrate.steps.catalog import run_rollback
from tests.pairs import Sample, report, searched
from tests.steps import phases
from tests.steps.faults import Fault, befall
from tests.steps.sim_faults import BROKER, CONTROLLER, FaultyCluster

pytestmark = pytest.mark.slow(seconds=60)


def test_a_part_of_all_pairs_of_faults_ends_well(tmp_path: Path) -> None:
    """Without a person if machines failed, else after the one act that the error names; nothing is a disaster."""
    searches = searched(tmp_path, Sample(share=0.0002))
    assert report(searches) == ()
    assert sum(search.counts[2] for search in searches) > 20, "it went somewhere"


def test_a_migration_and_a_rollback_without_a_fault_stall_no_partition(tmp_path: Path) -> None:
    cluster = FaultyCluster()
    phases.all_kraft(cluster, cluster.context(tmp_path))
    run_rollback(cluster.context(tmp_path))
    assert cluster.longest == 0.0
    assert cluster.disasters == []


def test_a_broker_in_migration_mode_starts_with_the_quorum_only(tmp_path: Path) -> None:
    cluster = FaultyCluster()
    phases.all_in_migration(cluster, cluster.context(tmp_path))
    for controller in (3000, 3001):
        befall(cluster, Fault("masked", (CONTROLLER, controller)))
        befall(cluster, Fault("power", (CONTROLLER, controller)))
    befall(cluster, Fault("power", (BROKER, 1)))
    cluster.advance(60.0)
    assert cluster.nodes[BROKER, 1].running is not None
    assert cluster.observe(phases.EVERYTHING).brokers[1].mode is None
    assert cluster.longest > 60.0, "no ISR shrinks without a controller"
    cluster.machine((CONTROLLER, 3000)).masked = False
    cluster.start(cluster.machine((CONTROLLER, 3000)).spec)
    cluster.advance(10.0)  # a new leader gives each broker the time of a session
    stalled = cluster.longest
    cluster.advance(10.0)
    assert cluster.observe(phases.EVERYTHING).brokers[1].mode is BrokerMode.MIGRATION
    assert cluster.longest == stalled


def test_a_dead_broker_leaves_isrs_once_its_session_is_over() -> None:
    cluster = FaultyCluster()
    befall(cluster, Fault("dark", (BROKER, 1)))
    cluster.advance(17.0)
    assert 1 in cluster.znodes
    assert 1 in cluster.isr[0]
    cluster.advance(2.0)
    assert 1 not in cluster.znodes
    assert 1 not in cluster.isr[0]
    assert cluster.longest == pytest.approx(18.0)


def test_two_of_three_zookeepers_keep_it_readable_and_one_does_not() -> None:
    cluster = FaultyCluster()
    befall(cluster, Fault("rack", 2))
    assert cluster.observe(phases.EVERYTHING).zk is not None
    cluster.cut_zookeeper(1, 30.0)
    assert cluster.observe(phases.EVERYTHING).zk is None
    cluster.advance(60.0)
    assert cluster.observe(phases.EVERYTHING).zk is not None


def test_a_leader_without_the_flag_finalizes_no_copy_that_is_under_way(tmp_path: Path) -> None:
    cluster = FaultyCluster()
    phases.controllers(cluster, cluster.context(tmp_path))
    for broker in cluster.spec.brokers:
        cluster.stop(broker)
        cluster.machine((BROKER, broker.id)).text = render_file(
            cluster.spec, cluster.context(tmp_path).backup, broker, FileStage.MIGRATION
        )
        cluster.start(broker)
    assert cluster.copying
    befall(cluster, Fault("unflagged", (CONTROLLER, 3001)))
    befall(cluster, Fault("power", (CONTROLLER, 3000)))
    assert cluster.leader == 3001
    cluster.advance(60.0)
    assert (cluster.copying, cluster.finalized) == (True, False)
