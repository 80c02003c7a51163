"""No controller of a quorum that may have finalized gets its flag back: everything would look like dual-write forever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration.phase import Phase, kraft_owns, position_of
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.controllers import FinalizeController, ProvisionController
from airflow_provider_kmigrate.steps.dual_write import start_down_controller
from airflow_provider_kmigrate.steps.nodes import install_file, note_unflagged
from airflow_provider_kmigrate.steps.rollback import RestoreFlag
from airflow_provider_kmigrate.steps.run import Step, run_step
from airflow_provider_kmigrate.steps.waits import Soak, run_watch
from tests.steps.phases import all_kraft, check_back, finalization_begun, finalize, forward, some_in_migration
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import Health, Killed, original_of


def finalized_but_one(folder: Path) -> SimCluster:
    """One without the flag was elected, and finalized; the last one to be restarted still has its flag. Then all of them died."""
    cluster = SimCluster()
    context = cluster.context(folder)
    all_kraft(cluster, context)
    last = cluster.spec.controllers[2]
    for node in cluster.spec.controllers[:2]:
        note_unflagged(context, node.id)
        install_file(context, node, FileStage.CONTROLLER_FINAL)
        cluster.stop(node)
        cluster.start(node)
    cluster.stop(last)
    assert cluster.finalized
    for node in cluster.spec.controllers:
        cluster.stop(node)
    return cluster


def untouched(cluster: SimCluster, nodes: tuple[NodeSpec, ...]) -> bool:
    return all(cluster.nodes[node.role, node.id].text.count("migration.enable=true") == 0 for node in nodes)


def steps_of(cluster: SimCluster, node: NodeSpec) -> list[Step]:
    return [RestoreFlag(node), ProvisionController(node, cluster.spec.cluster_id)]


@pytest.mark.parametrize("which", [0, 1])
def test_no_controller_gets_its_flag_back_while_the_flagged_one_alone_is_back(tmp_path: Path, which: int) -> None:
    cluster = finalized_but_one(tmp_path)
    cluster.start(cluster.spec.controllers[2])
    with pytest.raises(KMigrateError, match="R12"):
        run_step(steps_of(cluster, cluster.spec.controllers[0])[which], cluster.context(tmp_path))
    assert untouched(cluster, cluster.spec.controllers[:2])


def test_no_controller_gets_its_flag_back_while_the_flagged_one_leads_and_writes_nothing(tmp_path: Path) -> None:
    cluster = finalized_but_one(tmp_path)
    for node in cluster.spec.controllers[1:]:
        cluster.start(node)
    cluster.leader = 3002
    back, forward = steps_of(cluster, cluster.spec.controllers[0])
    with pytest.raises(KMigrateError, match="R12"):
        run_step(back, cluster.context(tmp_path))
    run_step(forward, cluster.context(tmp_path))  # one without the flag shows that the migration ends: it starts as it is
    assert untouched(cluster, cluster.spec.controllers[:2])
    assert cluster.nodes[NodeRole.CONTROLLER, 3000].stage is FileStage.CONTROLLER_FINAL


def test_a_standby_that_answers_without_it_does_not_get_it_either(tmp_path: Path) -> None:
    cluster = finalized_but_one(tmp_path)
    for node in cluster.spec.controllers:
        cluster.start(node)
    cluster.leader, cluster.epoch = 3002, cluster.epoch + 1
    with pytest.raises(KMigrateError, match="R12"):
        run_rollback(cluster.context(tmp_path))
    assert untouched(cluster, cluster.spec.controllers[:2])


def test_a_recovery_starts_only_what_may_be_started(tmp_path: Path) -> None:
    cluster = finalized_but_one(tmp_path)
    cluster.start(cluster.spec.controllers[2])
    start_down_controller(cluster.context(tmp_path), "a recovery")
    assert untouched(cluster, cluster.spec.controllers[:2])
    assert cluster.nodes[cluster.spec.controllers[0].role, 3000].running is None


def test_a_controller_gets_its_flag_back_while_the_leader_dual_writes(tmp_path: Path) -> None:
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    all_kraft(cluster, context)
    standby = next(node for node in cluster.spec.controllers if node.id != cluster.leader)
    install_file(context, standby, FileStage.CONTROLLER_FINAL)
    cluster.stop(standby)
    run_step(RestoreFlag(standby), cluster.context(tmp_path))
    assert cluster.nodes[standby.role, standby.id].stage is FileStage.CONTROLLER_MIGRATION


def test_a_new_run_gives_a_standby_its_flag_back_on_the_leaders_word(tmp_path: Path) -> None:
    """A finalization was killed between the stop and the start of a standby; the leader, with the flag, goes on dual-writing."""
    cluster = SimCluster()
    finalization_begun(cluster, cluster.context(tmp_path))
    standby = next(
        node for node in cluster.spec.controllers if cluster.nodes[node.role, node.id].stage is FileStage.CONTROLLER_FINAL
    )
    cluster.stop(standby)
    run_step(ProvisionController(standby, cluster.spec.cluster_id), cluster.context(tmp_path))
    assert cluster.nodes[standby.role, standby.id].stage is FileStage.CONTROLLER_MIGRATION
    assert not cluster.finalized


def test_a_soak_that_found_a_lost_flag_fails_again_when_it_is_only_cleared(tmp_path: Path) -> None:
    """Begun again it saw a finalization under way, which kmigrate had not begun: the point of no return without a soak."""
    cluster = SimCluster()
    finalization_begun(cluster, cluster.context(tmp_path))
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            run_step(Soak(3.0), cluster.context(tmp_path))
        assert {reason.code for reason in refused.value.reasons} == {"G05"}


def test_a_finalization_that_was_begun_needs_no_second_soak_until_the_flag_is_given_back(tmp_path: Path) -> None:
    cluster = SimCluster()
    all_kraft(cluster, cluster.context(tmp_path))
    standby = next(node for node in cluster.spec.controllers if node.id != cluster.leader)
    run_step(FinalizeController(standby), cluster.context(tmp_path))
    run_step(Soak(3.0), cluster.context(tmp_path))
    assert json.loads(cluster.unflagged or b"") == [standby.id]
    run_step(RestoreFlag(standby), cluster.context(tmp_path))
    assert json.loads(cluster.unflagged or b"") == []
    assert not cluster.finalized


def led_without_the_flag(folder: Path, *, claimed: bool) -> SimCluster:
    """Another tool took a standby's flag, and it is elected before the copy is over; `claimed`: /controller names KRaft already."""
    cluster = SimCluster(meddled=True, copy_fails=claimed)
    some_in_migration(cluster, cluster.context(folder))
    if claimed:
        for node in cluster.spec.brokers:
            run_step(RollBroker(node, BrokerMode.MIGRATION, cluster.spec.policy), cluster.context(folder))
    node = next(node for node in cluster.spec.controllers if node.id != cluster.leader)
    install_file(cluster.context(folder), node, FileStage.CONTROLLER_FINAL)
    cluster.stop(node)
    cluster.start(node)
    cluster.lead(node.id)
    cluster.copy_fails = False
    return cluster


@pytest.mark.parametrize("failover", [True, False], ids=["with a failover", "without a failover"])
@pytest.mark.parametrize("claimed", [True, False])
def test_a_leader_without_the_flag_before_the_end_of_the_copy_leaves_the_rollback_possible(
    tmp_path: Path, *, claimed: bool, failover: bool
) -> None:
    cluster = led_without_the_flag(tmp_path, claimed=claimed)
    view = cluster.observe(0)
    assert (position_of(view).phase, kraft_owns(view), cluster.finalized) == (
        Phase.COPY if claimed else Phase.FIRST_ROLL,
        claimed,
        False,
    )
    with pytest.raises(Refused) as refused:
        run_watch(cluster.context(tmp_path))
    assert "No rollback is possible" not in str(refused.value)
    assert {reason.code for reason in refused.value.reasons if reason.code in {"P12", "G05"}} == {"G05"}
    run_rollback(cluster.context(tmp_path), {"skip_failover": not failover})
    check_back(cluster)


@pytest.mark.parametrize("claimed", [True, False])
def test_the_migration_goes_on_once_its_controllers_got_their_flag_back(tmp_path: Path, *, claimed: bool) -> None:
    cluster = led_without_the_flag(tmp_path, claimed=claimed)
    forward(cluster, cluster.context(tmp_path))
    assert position_of(cluster.observe(0)).phase is Phase.FINALIZED
    assert cluster.disasters == []


def test_a_new_run_gives_every_flag_back_that_another_tool_took_before_it_finalizes(tmp_path: Path) -> None:
    cluster = SimCluster(meddled=True)
    finalization_begun(cluster, cluster.context(tmp_path))
    for node in cluster.spec.controllers:
        run_step(ProvisionController(node, cluster.spec.cluster_id), cluster.context(tmp_path))
    assert position_of(cluster.observe(0)).phase is Phase.DUAL_WRITE


@pytest.mark.parametrize("answers", [True, False], ids=["which answers", "which does not answer"])
@pytest.mark.parametrize("runs", [True, False], ids=["it runs", "it is down"])
def test_a_broker_with_its_original_file_after_the_end_is_rolled_to_kraft_by_the_one_remedy_that_is_named(
    tmp_path: Path, *, answers: bool, runs: bool
) -> None:
    """Something put the file back before the end, and its machine was started again."""
    cluster = SimCluster()
    all_kraft(cluster, cluster.context(tmp_path))
    finalize(cluster, cluster.context(tmp_path))
    left = cluster.spec.brokers[1]
    cluster.stop(left)
    cluster.nodes[left.role, left.id].text = original_of(left.id)
    if runs:
        cluster.start(left)
    silent = {left.id} if not answers else set()
    cluster.health = lambda broker, mode, _: (
        Health(None, in_sync=False) if broker in silent and mode is not BrokerMode.KRAFT else Health()
    )
    with pytest.raises(KMigrateError) as failed:
        run_watch(cluster.context(tmp_path))
    seen = {reason.code for reason in failed.value.reasons}
    assert "P02" in seen
    assert not seen & {"P07", "P09", "R12", "G05"}
    run_step(RollBroker(left, BrokerMode.MIGRATION, cluster.spec.policy), cluster.context(tmp_path))
    run_step(RollBroker(left, BrokerMode.KRAFT, cluster.spec.policy), cluster.context(tmp_path))
    assert position_of(cluster.observe(0)).phase is Phase.FINALIZED


def test_a_flag_comes_back_although_the_tool_dies_at_any_moment(tmp_path: Path) -> None:
    for moment in range(1, 100):
        folder = tmp_path / str(moment)
        cluster = led_without_the_flag(folder, claimed=True)
        cluster.mortal.at = cluster.mortal.count + moment
        node = next(node for node in cluster.spec.controllers if node.id == cluster.leader)
        try:
            run_step(ProvisionController(node, cluster.spec.cluster_id), cluster.context(folder))
        except Killed:
            run_step(ProvisionController(node, cluster.spec.cluster_id), cluster.context(folder))
        else:
            break
        assert {cluster.nodes[each.role, each.id].stage for each in cluster.spec.controllers} == {FileStage.CONTROLLER_MIGRATION}
        assert (cluster.disasters, cluster.finalized) == ([], False)
    assert 5 < moment < 99, "every moment of the step was one of them"
