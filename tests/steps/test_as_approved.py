"""An approval may be days old when the finalization begins: what it was given on is observed again before each act."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, TopicMetadata
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.controllers import ApprovedState
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import Refused, TimedOut
from airflow_provider_kmigrate.steps.controllers import FinalizeController
from airflow_provider_kmigrate.steps.nodes import install_file
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.steps.waits import Soak
from tests.steps.changing import Changing
from tests.steps.phases import all_kraft, check_end, finalize, finalizing, journal_of
from tests.steps.sim_nodes import Health

Change = Callable[["Changing"], None]


def dual_write_dies(cluster: Changing) -> None:
    cluster.ended = cluster.epoch


def a_write_is_lost(cluster: Changing) -> None:
    cluster.since = lambda view: replace(view, topics=({"t": TopicMetadata("t", "id", {})}, {}))


def a_follower_falls_out(cluster: Changing) -> None:
    cluster.health = lambda broker, mode, observation: Health(in_sync=broker != 1)


def a_broker_is_fenced(cluster: Changing) -> None:
    def fenced(view: ClusterView) -> ClusterView:
        one = replace(view.brokers[1], listed_by=frozenset({1}))
        return replace(view, brokers={**view.brokers, 1: one})

    cluster.since = fenced


def a_reassignment_begins(cluster: Changing) -> None:
    cluster.moving = ("orders-3",)


def a_group_comes_to_life(cluster: Changing) -> None:
    cluster.live_groups = ("legacy",)


CHANGES: list[tuple[Change, str]] = [
    (dual_write_dies, "G07"),
    (a_write_is_lost, "E01"),
    (a_follower_falls_out, "S02"),
    (a_broker_is_fenced, "R03"),
    (a_group_comes_to_life, "G21"),
    (a_reassignment_begins, "S04"),
]


def approved(folder: Path) -> tuple[Changing, StepContext]:
    cluster = Changing()
    all_kraft(cluster, cluster.context(folder))
    return cluster, cluster.context(folder)


@pytest.mark.parametrize(("change", "code"), CHANGES, ids=lambda given: getattr(given, "__name__", given))
def test_nothing_is_finalized_on_what_is_not_so_any_more(tmp_path: Path, change: Change, code: str) -> None:
    cluster, context = approved(tmp_path)
    change(cluster)
    before = [node.stops for node in cluster.nodes.values()]
    with pytest.raises(TimedOut, match=rf"G34.*{code}"):
        finalize(cluster, context)
    assert [node.stops for node in cluster.nodes.values()] == before


@pytest.mark.parametrize(("change", "code"), CHANGES, ids=lambda given: getattr(given, "__name__", given))
def test_the_next_controller_is_not_stopped_either(tmp_path: Path, change: Change, code: str) -> None:
    cluster, context = approved(tmp_path)
    standby = next(node for node in cluster.spec.controllers if node.id != cluster.leader)
    run_step(FinalizeController(standby), context)
    change(cluster)
    with pytest.raises(TimedOut, match=rf"G34.*{code}"):
        finalize(cluster, context)
    assert not cluster.finalized
    assert sum(node.stops for (role, _), node in cluster.nodes.items() if role == standby.role) == 1


def begun(folder: Path) -> tuple[Changing, StepContext]:
    """One standby is without its flag; then one with it was elected, which has not written to ZooKeeper in its epoch."""
    cluster, context = approved(folder)
    run_step(FinalizeController(cluster.spec.controllers[1]), context)
    cluster.leader, cluster.epoch = 3002, cluster.epoch + 1
    cluster.ended = cluster.epoch
    return cluster, context


def test_a_new_leader_that_has_not_written_is_no_proof_that_it_is_over(tmp_path: Path) -> None:
    cluster, context = begun(tmp_path)
    a_write_is_lost(cluster)
    for node in (cluster.spec.controllers[0], cluster.spec.controllers[2]):
        with pytest.raises(TimedOut, match=r"(?s)G34.*G07.*E01.*R12.*Completing the ZK migration"):
            run_step(finalizing(node), context)
    assert not cluster.finalized


def test_the_finalization_goes_on_once_the_new_leader_writes(tmp_path: Path) -> None:
    cluster, context = begun(tmp_path)
    cluster.ended = None
    finalize(cluster, context)
    check_end(cluster)


def test_the_rest_follows_once_a_controller_without_the_flag_leads_and_says_what_it_left_out(tmp_path: Path) -> None:
    """The way out if the logs show that it is over: the leader was restarted until one without the flag led."""
    cluster, context = begun(tmp_path)
    cluster.finalized, cluster.leader, cluster.epoch = True, 3001, cluster.epoch + 1
    said: list[str] = []
    run_step(FinalizeController(cluster.spec.controllers[0]), replace(context, say=said.append))
    assert any("not compared any more" in text for text in said)
    assert not any("the approved state still holds" in text for text in said)


def test_the_rest_follows_once_the_finalization_has_happened(tmp_path: Path) -> None:
    cluster, context = approved(tmp_path)
    finalize(cluster, context)
    a_follower_falls_out(cluster)
    finalize(cluster, context)
    cluster.health = lambda *_: Health()
    check_end(cluster)


def test_the_finalization_says_what_changed_since_the_approval(tmp_path: Path) -> None:
    cluster, context = approved(tmp_path)
    said: list[str] = []
    context = replace(context, say=said.append)
    cluster.since = lambda view: replace(view, topics=({"t": TopicMetadata("t", "id", {})},) * 2)
    standby = next(node for node in cluster.spec.controllers if node.id != cluster.leader)
    run_step(FinalizeController(standby, ApprovedState("ZooKeeper and KRaft store the same 0 topics.")), context)
    assert any("Changed since the approval" in text and "1 topic" in text for text in said)


@pytest.mark.parametrize(("change", "code"), CHANGES[2:5], ids=lambda given: getattr(given, "__name__", given))
def test_a_soak_is_not_healthy_while_replicas_are_out_or_a_broker_is_fenced_or_a_group_starves(
    tmp_path: Path, change: Change, code: str
) -> None:
    cluster, context = approved(tmp_path)
    change(cluster)
    soak = Soak(30.0)
    soak.patience = 300.0
    with pytest.raises(TimedOut, match=code):
        run_step(soak, context)


def an_original_is_gone(context: StepContext) -> None:
    context.backup.original_path(context.spec.brokers[1]).unlink()


def an_original_is_altered(context: StepContext) -> None:
    context.backup.original_path(context.spec.brokers[1]).write_text("broker.id=1\n")


LOSSES = [(an_original_is_gone, "O01"), (an_original_is_altered, "O01")]


@pytest.mark.parametrize(("lose", "code"), LOSSES, ids=lambda given: getattr(given, "__name__", given))
def test_nothing_is_finalized_once_the_rollback_is_lost(tmp_path: Path, lose: Callable[[StepContext], None], code: str) -> None:
    """An administrator is asked first: until the finalization it can be repaired, and its cause may speak against going on."""
    cluster, context = approved(tmp_path)
    lose(context)
    with pytest.raises(Refused) as refused:
        finalize(cluster, context)
    assert [reason.code for reason in refused.value.reasons] == [code]
    assert all(
        node.stage is FileStage.CONTROLLER_MIGRATION for (role, _), node in cluster.nodes.items() if role is NodeRole.CONTROLLER
    )
    assert ("lost", code) in [(kind, code) for kind, text in journal_of(context).lines if code in text]


def test_no_backup_is_needed_once_the_finalization_has_happened(tmp_path: Path) -> None:
    cluster, context = approved(tmp_path)
    finalize(cluster, context)
    last = cluster.spec.controllers[2]
    cluster.stop(last)
    install_file(context, last, FileStage.CONTROLLER_MIGRATION)
    cluster.start(last)
    an_original_is_gone(context)
    run_step(FinalizeController(last), context)
    check_end(cluster, controller_stops=3)
