"""The whole way forward on the simulated cluster: once undisturbed, then killed before every single observation and side effect."""

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, Policy
from airflow_provider_kmigrate.core.migration.plan import MIGRATION
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.core.migration.roll import LEFT_OUT_FOR
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import Failed, Fenced, Refused, TimedOut
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.catalog import run_plan
from airflow_provider_kmigrate.steps.controllers import FinalizeController, ProvisionController
from airflow_provider_kmigrate.steps.run import run_step
from airflow_provider_kmigrate.steps.waits import Soak, controllers_ready
from tests.steps.phases import all_kraft, check_end, controllers, finalize, forward, roll
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import Killed, Mortal


@pytest.mark.parametrize(("brokers", "controllers"), [(3, 3), (1, 1), (5, 3), (2, 1)])
def test_clusters_of_any_shape_get_through(tmp_path, brokers, controllers):
    cluster = SimCluster(brokers, controllers)
    run_plan(cluster.context(tmp_path), MIGRATION)
    check_end(cluster)


@pytest.mark.slow
def test_a_tool_killed_anywhere_resumes_to_the_same_end_without_another_restart(tmp_path):
    rehearsal = SimCluster()
    forward(rehearsal, rehearsal.context(tmp_path))
    for at in range(1, rehearsal.mortal.count + 1):
        cluster = SimCluster(mortal=Mortal(at))
        with pytest.raises(Killed):
            forward(cluster, cluster.context(tmp_path))
        forward(cluster, cluster.context(tmp_path))
        # A whole new run gives a controller that was caught without the flag its flag back first.
        check_end(cluster, controller_stops=2)


def test_running_it_all_again_changes_nothing(tmp_path):
    cluster = SimCluster()
    forward(cluster, cluster.context(tmp_path))
    before = {key: (node.starts, node.stops, node.text) for key, node in cluster.nodes.items()}
    context = cluster.context(tmp_path)
    for node in cluster.spec.brokers:
        run_step(RollBroker(node, BrokerMode.MIGRATION, cluster.spec.policy), context)
        run_step(RollBroker(node, BrokerMode.KRAFT, cluster.spec.policy), context)
    controllers(cluster, context)
    finalize(cluster, context)
    assert before == {key: (node.starts, node.stops, node.text) for key, node in cluster.nodes.items()}


def test_an_older_run_that_wakes_up_is_refused_and_changes_nothing(tmp_path):
    cluster = SimCluster()
    older = cluster.context(tmp_path)
    cluster.context(tmp_path)
    with pytest.raises(Fenced):
        run_step(ProvisionController(cluster.spec.controllers[0], cluster.spec.cluster_id), older)
    assert all(node.formatted is None for (role, _), node in cluster.nodes.items() if role is NodeRole.CONTROLLER)


def test_finalizing_with_a_broker_left_is_refused(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    controllers(cluster, context)
    roll(cluster, context, BrokerMode.MIGRATION)
    with pytest.raises(Refused) as refused:
        run_step(FinalizeController(cluster.spec.controllers[0]), context)
    assert refused.value.reasons[0].code == "P01"
    assert not cluster.finalized


def test_the_second_roll_is_refused_before_the_copy(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    with pytest.raises(Refused):
        run_step(RollBroker(cluster.spec.brokers[0], BrokerMode.KRAFT, Policy(canary_bake=0.0)), context)
    assert cluster.nodes[NodeRole.BROKER, 0].stops == 0


def test_the_last_broker_waits_for_groups_on_zookeeper_to_be_moved(tmp_path):
    cluster = SimCluster(live_groups=("legacy",))
    context = cluster.context(tmp_path)
    controllers(cluster, context)
    roll(cluster, context, BrokerMode.MIGRATION)
    with pytest.raises(Refused) as refused:
        roll(cluster, context, BrokerMode.KRAFT)
    assert refused.value.reasons[0].code == "G21"
    assert "DAG kmigrate_consumers__sim " in str(refused.value)
    assert [cluster.nodes[NodeRole.BROKER, node].stage for node in range(3)] == [
        FileStage.KRAFT,
        FileStage.KRAFT,
        FileStage.MIGRATION,
    ]


def test_a_leader_that_adds_no_broker_to_its_isrs_is_restarted(tmp_path):
    """Seen on real brokers: the thread that asks for ISR changes had died at the takeover."""
    cluster = SimCluster(stuck=0)
    context = cluster.context(tmp_path)
    controllers(cluster, context)
    run_step(RollBroker(cluster.spec.brokers[1], BrokerMode.MIGRATION, cluster.spec.policy), context)
    assert [cluster.nodes[NodeRole.BROKER, node].stops for node in range(3)] == [1, 1, 0]
    assert cluster.nodes[NodeRole.BROKER, 0].stage is FileStage.ZOOKEEPER, "with the file it had"


def test_a_follower_that_still_catches_up_is_waited_for(tmp_path):
    cluster = SimCluster(stuck=0, behind=5_000_000)
    context = cluster.context(tmp_path)
    controllers(cluster, context)
    with pytest.raises((TimedOut, Failed)):
        run_step(RollBroker(cluster.spec.brokers[1], BrokerMode.MIGRATION, cluster.spec.policy), context)
    assert [cluster.nodes[NodeRole.BROKER, node].stops for node in range(3)] == [0, 1, 0]


def test_partitions_that_the_takeover_left_without_a_leader_do_not_hold_the_last_broker_up(tmp_path):
    """Seen on real brokers with many partitions of one replica: no controller elects, so the last broker would be waited for in vain."""
    cluster = SimCluster(leaderless={2})
    context = cluster.context(tmp_path)
    controllers(cluster, context)
    began = cluster.clock.time
    roll(cluster, context, BrokerMode.MIGRATION)
    assert cluster.kraft_owns
    assert not cluster.leaderless
    assert LEFT_OUT_FOR < cluster.clock.time - began < 120
    assert [cluster.nodes[NodeRole.BROKER, node].stops for node in range(3)] == [1, 1, 1]


def test_notes_of_a_migration_that_was_cleaned_up_by_hand_are_forgotten(tmp_path):
    cluster = SimCluster(known=b"[0, 1, 2]", note=b'{"0": "zookeeper"}')
    context = cluster.context(tmp_path)
    controllers(cluster, context)
    assert (cluster.known, cluster.note) == (None, None)
    roll(cluster, context, BrokerMode.MIGRATION)
    assert cluster.kraft_owns
    assert cluster.disasters == []


def test_a_dead_broker_stops_the_roll_with_its_name(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    controllers(cluster, context)
    cluster.stop(cluster.spec.brokers[2])
    with pytest.raises(TimedOut, match="R01"):
        run_step(RollBroker(cluster.spec.brokers[0], BrokerMode.MIGRATION, Policy(start_timeout=5.0, canary_bake=0.0)), context)
    assert cluster.nodes[NodeRole.BROKER, 0].stops == 0


def test_leftovers_of_an_earlier_quorum_are_refused(tmp_path):
    cluster = SimCluster()
    cluster.nodes[NodeRole.CONTROLLER, 3000].log = True
    with pytest.raises(Refused) as refused:
        run_step(ProvisionController(cluster.spec.controllers[0], cluster.spec.cluster_id), cluster.context(tmp_path))
    assert [reason.code for reason in refused.value.reasons] == ["G04"]


def test_a_stale_migration_node_is_refused(tmp_path):
    cluster = SimCluster(offset=97)
    with pytest.raises(Refused) as refused:
        run_step(ProvisionController(cluster.spec.controllers[0], cluster.spec.cluster_id), cluster.context(tmp_path))
    assert {reason.code for reason in refused.value.reasons} == {"P01", "P06"}


def test_a_wait_hands_over_when_it_lasts(tmp_path):
    cluster = SimCluster()
    outcome = run_step(controllers_ready(), cluster.context(tmp_path), sync_for=1.0)
    assert {reason.code for reason in outcome.reasons} == {"G23", "G20", "P11"}


def test_soaking_begins_again_after_an_unhealthy_observation(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    all_kraft(cluster, context)
    soak = Soak(30.0).resume(StepProgress(healthy_seconds=20.0))
    run_step(soak, context, sync_for=5.0)
    assert 24.0 < soak.progress.healthy_seconds < 30.0
    cluster.stop(cluster.spec.brokers[1])
    run_step(soak, context, sync_for=1.0)
    assert soak.progress.healthy_seconds == 0.0


def test_the_first_broker_of_a_pass_bakes_and_the_others_do_not(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    policy = Policy(canary_bake=60.0)
    controllers(cluster, context)
    spent = []
    for node in cluster.spec.brokers:
        began = cluster.clock.time
        run_step(RollBroker(node, BrokerMode.MIGRATION, policy), context)
        spent.append(cluster.clock.time - began)
    assert spent[0] > 60.0
    assert max(spent[1:]) < 20.0


def test_a_broker_that_dies_while_the_canary_bakes_sets_its_time_back(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    controllers(cluster, context)
    step = RollBroker(cluster.spec.brokers[0], BrokerMode.MIGRATION, Policy(canary_bake=600.0))
    run_step(step, context, sync_for=30.0)
    assert step.progress.healthy_seconds > 20.0
    cluster.stop(cluster.spec.brokers[2])
    outcome = run_step(step, context, sync_for=1.0)
    assert step.progress.healthy_seconds == 0.0
    assert "R01" in {reason.code for reason in outcome.reasons}
