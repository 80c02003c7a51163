"""The rollback on the simulated cluster: from every phase, killed before every observation and side effect, and a new migration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.clients import partition_states
from airflow_provider_kmigrate.clients.partition_states import raise_versions
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    BrokerMode,
    ClusterView,
    Fields,
    PartitionMetadata,
    TopicMetadata,
)
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import (
    AuthenticationFailed,
    Failed,
    Fenced,
    KMigrateError,
    Refused,
    TimedOut,
    Unavailable,
)
from airflow_provider_kmigrate.steps import dual_write
from airflow_provider_kmigrate.steps.brokers import RollBackBroker
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.nodes import install_file
from airflow_provider_kmigrate.steps.prepare import run_backup
from airflow_provider_kmigrate.steps.rollback import (
    ControllerFailover,
    Handover,
    WipeController,
    planned,
)
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from tests.steps.phases import (
    EVERYTHING,
    all_in_migration,
    all_kraft,
    check_back,
    check_end,
    controllers,
    finalization_begun,
    finalize,
    forward,
    handed_over,
    journal_of,
    some_in_migration,
    some_kraft,
    untouched,
)
from tests.steps.sim import SimCluster
from tests.steps.sim_hands import SimHost
from tests.steps.sim_nodes import Health, Killed, Mortal

PHASES: list[Callable[..., Any]] = [
    untouched,
    controllers,
    some_in_migration,
    all_in_migration,
    some_kraft,
    all_kraft,
    finalization_begun,
]


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
@pytest.mark.parametrize(("brokers", "quorum"), [(3, 3), (1, 1), (5, 3)])
def test_every_phase_can_be_rolled_back_and_migrated_again(tmp_path: Any, phase: Any, brokers: Any, quorum: Any) -> None:
    if phase is finalization_begun and quorum == 1:
        pytest.skip("the only controller is the leader: without its flag the migration is finalized")
    cluster = SimCluster(brokers, quorum)
    phase(cluster, cluster.context(tmp_path))
    run_rollback(cluster.context(tmp_path))
    check_back(cluster)
    assert all(row.leader == row.replicas[0] for row in cluster.observe(EVERYTHING).partitions or ()), "led as before the rolls"
    forward(cluster, cluster.context(tmp_path))
    assert cluster.disasters == []
    assert position_of(cluster.observe(EVERYTHING)).phase is Phase.FINALIZED


def test_brokers_that_skip_the_zookeeper_controller_are_informed_again(tmp_path: Any, monkeypatch: Any) -> None:
    """Measured on real brokers: KRaft's partition epochs are ahead. Here the states were not raised enough before the handover."""
    cluster = SimCluster()

    def too_few(zookeeper: Any, holding: Any, unresponsive: Any = ()) -> Any:
        return raise_versions(zookeeper, holding, unresponsive) if cluster.out_of_isr else partition_states.StatesWritten(0, 0)

    monkeypatch.setattr(partition_states, "raise_versions", too_few)
    all_kraft(cluster, cluster.context(tmp_path))
    run_rollback(cluster.context(tmp_path))
    assert cluster.disasters == ["leaders skip what the ZooKeeper controller says"]
    cluster.disasters.clear()
    check_back(cluster)
    assert [node.stops for (role, _), node in cluster.nodes.items() if role is NodeRole.BROKER] == [4, 4, 4], (
        "no broker is restarted for it"
    )


def test_a_broker_that_stays_out_of_its_isrs_costs_few_elections(tmp_path: Any, monkeypatch: Any) -> None:
    """A failed log directory shows like this: it reports no lag. The task is not deferred between recoveries: another would start its timers again."""
    cluster, elections = SimCluster(), list[Any]()
    context = cluster.context(tmp_path)
    handed_over(cluster, context)
    monkeypatch.setattr(dual_write, "elect_again", elections.append)
    cluster.health = lambda broker, mode, observation: Health(in_sync=broker != 1 or mode is not BrokerMode.ZOOKEEPER)
    patient = replace(cluster.spec.policy, start_timeout=600.0)
    with pytest.raises(Failed, match="without effect"):
        run_step(RollBackBroker(cluster.spec.brokers[1], BrokerMode.ZOOKEEPER, patient), context, sync_for=30.0)
    assert len(elections) == 5


@pytest.mark.slow
@pytest.mark.parametrize("phase", [some_in_migration, some_kraft, finalization_begun], ids=lambda phase: phase.__name__)
def test_a_tool_killed_anywhere_in_a_rollback_goes_on(tmp_path: Any, phase: Any) -> None:
    rehearsal = SimCluster()
    phase(rehearsal, rehearsal.context(tmp_path))
    begun = rehearsal.mortal.count
    run_rollback(rehearsal.context(tmp_path))
    for at in range(begun + 1, rehearsal.mortal.count + 1):
        cluster = SimCluster()
        phase(cluster, cluster.context(tmp_path))
        cluster.mortal.at = at
        with pytest.raises(Killed):
            run_rollback(cluster.context(tmp_path))
        run_rollback(cluster.context(tmp_path))
        check_back(cluster)
        for (role, node), found in rehearsal.nodes.items():
            if role is NodeRole.BROKER:
                assert cluster.nodes[role, node].stops == found.stops, "no broker is restarted more often than needed"


@pytest.mark.slow
def test_a_rollback_that_was_left_before_the_handover_can_go_forward_again(tmp_path: Any) -> None:
    rehearsal = SimCluster()
    all_kraft(rehearsal, rehearsal.context(tmp_path))
    begun = rehearsal.mortal.count
    run_rollback(rehearsal.context(tmp_path))
    for at in range(begun + 1, rehearsal.mortal.count + 1):
        cluster = SimCluster(mortal=Mortal(at))
        all_kraft(cluster, cluster.context(tmp_path))
        with pytest.raises(Killed):
            run_rollback(cluster.context(tmp_path))
        if not cluster.kraft_owns:
            continue
        forward(cluster, cluster.context(tmp_path))
        assert cluster.disasters == []
        assert cluster.finalized


def test_the_failover_killed_between_stop_and_start_goes_on_by_itself(tmp_path: Any) -> None:
    """Its task is cleared alone: the tasks before it, which start what is down, are done and do not run again."""
    cluster = SimCluster()
    all_kraft(cluster, cluster.context(tmp_path))
    leader = cluster.spec.node(NodeRole.CONTROLLER, cluster.leader)
    cluster.stop(leader)
    run_step(ControllerFailover(cluster.spec.controllers), cluster.context(tmp_path))
    assert cluster.nodes[NodeRole.CONTROLLER, leader.id].running is not None
    assert cluster.disasters == []


def test_after_finalization_it_refuses_and_changes_nothing(tmp_path: Any) -> None:
    cluster = SimCluster()
    forward(cluster, cluster.context(tmp_path))
    before = {key: (node.starts, node.stops, node.text) for key, node in cluster.nodes.items()}
    with pytest.raises(Refused) as refused:
        run_rollback(cluster.context(tmp_path))
    assert refused.value.reasons[0].code == "P12"
    assert before == {key: (node.starts, node.stops, node.text) for key, node in cluster.nodes.items()}
    check_end(cluster)


def test_an_elected_controller_without_the_flag_ends_the_rollback_too(tmp_path: Any) -> None:
    """Two standbys keep their flag, so the flags alone look as if nothing had happened yet."""
    cluster = SimCluster()
    all_kraft(cluster, cluster.context(tmp_path))
    context = cluster.context(tmp_path)
    leader = cluster.spec.node(NodeRole.CONTROLLER, cluster.leader)
    for node in (leader, *(n for n in cluster.spec.controllers if n != leader)):
        install_file(context, leader, FileStage.CONTROLLER_FINAL)
        cluster.stop(node)
        cluster.start(node)
        if cluster.finalized:
            break
    assert cluster.finalized
    with pytest.raises(Refused) as refused:
        planned(context)
    assert refused.value.reasons[0].code == "P12"


def test_the_older_run_cannot_do_the_handover(tmp_path: Any) -> None:
    cluster = SimCluster()
    all_in_migration(cluster, cluster.context(tmp_path))
    older = cluster.context(tmp_path)
    for node in cluster.spec.controllers:
        cluster.stop(node)
    cluster.context(tmp_path)
    with pytest.raises(Fenced):
        run_step(Handover(cluster.spec.controllers), older)
    assert cluster.kraft_owns


def test_a_controller_is_not_wiped_before_the_handover(tmp_path: Any) -> None:
    cluster = SimCluster()
    all_in_migration(cluster, cluster.context(tmp_path))
    context = cluster.context(tmp_path)
    for node in cluster.spec.controllers[:2]:
        cluster.stop(node)
    with pytest.raises(Refused):
        run_step(WipeController(cluster.spec.controllers[2]), context)
    assert (cluster.kraft_owns, cluster.disasters) == (True, [])


def test_controllers_are_not_stopped_under_a_kraft_broker(tmp_path: Any) -> None:
    cluster = SimCluster()
    some_kraft(cluster, cluster.context(tmp_path))
    with pytest.raises(Refused) as refused:
        run_step(Handover(cluster.spec.controllers), cluster.context(tmp_path))
    assert refused.value.reasons[0].code == "G27"


def test_a_broker_that_failed_in_migration_mode_is_no_obstacle(tmp_path: Any) -> None:
    cluster = SimCluster()
    some_in_migration(cluster, cluster.context(tmp_path))
    cluster.stop(cluster.spec.brokers[-1])
    run_rollback(cluster.context(tmp_path))
    check_back(cluster)


def test_without_controllers_it_rolls_back_only_when_asked_to(tmp_path: Any) -> None:
    cluster = SimCluster()
    all_in_migration(cluster, cluster.context(tmp_path))
    for node in cluster.spec.controllers:
        cluster.stop(node)
        cluster.wipe(node)
    run_rollback(cluster.context(tmp_path), {"skip_failover": True})
    check_back(cluster)


@pytest.mark.parametrize(("missing", "code"), [(True, "O01"), (False, "O01")])
def test_a_missing_or_altered_original_is_refused_before_anything_is_changed(tmp_path: Any, missing: Any, code: Any) -> None:
    cluster = SimCluster()
    all_kraft(cluster, cluster.context(tmp_path))
    context = cluster.context(tmp_path)
    original = context.backup.folder / "broker-2.properties"
    if missing:
        original.unlink()
    else:
        original.write_text(original.read_text() + "num.io.threads=99\n")
    before = cluster.mortal.count
    with pytest.raises(Refused) as refused:
        run_rollback(context)
    assert refused.value.reasons[0].code == code
    assert cluster.mortal.count == before + 1, "one observation"


def test_the_plan_names_every_step_and_changes_nothing(tmp_path: Any) -> None:
    cluster = SimCluster()
    some_kraft(cluster, cluster.context(tmp_path))
    reported = planned(cluster.context(tmp_path))[0]
    assert [text.split(" ")[:2] for text in reported] == [
        ["restart", "the"],
        ["restart", "brokers"],
        ["stop", "controllers"],
        ["hand", "the"],
        ["set", "the"],
        ["restart", "brokers"],
    ]
    assert planned(SimCluster().context(tmp_path))[0] == ()


def test_finalize_is_untouched_by_all_this(tmp_path: Any) -> None:
    cluster = SimCluster()
    finalization_begun(cluster, cluster.context(tmp_path))
    finalize(cluster, cluster.context(tmp_path))
    assert cluster.finalized


def test_a_new_migration_waits_for_the_end_of_the_rollback(tmp_path: Any) -> None:
    """After the handover the old controllers may not come back, and new ones may not join brokers that are half back."""
    cluster = SimCluster()
    all_in_migration(cluster, cluster.context(tmp_path))
    context = cluster.context(tmp_path)
    run_step(Handover(cluster.spec.controllers), context)
    with pytest.raises(Refused) as refused:
        controllers(cluster, cluster.context(tmp_path))
    assert refused.value.reasons[0].code == "G04"
    run_step(WipeController(cluster.spec.controllers[0]), cluster.context(tmp_path))
    with pytest.raises(Refused) as refused:
        controllers(cluster, cluster.context(tmp_path))
    assert refused.value.reasons[0].code == "R11"
    run_rollback(cluster.context(tmp_path))
    check_back(cluster)


def test_a_plan_is_not_made_if_it_is_unknown_whether_the_migration_has_ended(tmp_path: Any, monkeypatch: Any) -> None:
    cluster = SimCluster()
    some_kraft(cluster, cluster.context(tmp_path))
    monkeypatch.setattr(cluster, "zk", lambda: None)
    with pytest.raises(Unavailable, match="rollback: "):
        planned(cluster.context(tmp_path))


def test_a_plan_is_not_made_on_epochs_that_were_not_read(tmp_path: Any) -> None:
    cluster = SimCluster(state_epoch=None)
    with pytest.raises(Unavailable):
        planned(cluster.context(tmp_path))


ORDERS = b'{"version":3,"topic_id":"a","partitions":{"0":[0]}}'


def test_the_plan_names_what_was_changed_since_the_takeover_and_whether_zookeeper_has_it(tmp_path: Any) -> None:
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    cluster.kafka_tree += [("/brokers/topics", None), ("/brokers/topics/orders", ORDERS)]
    run_backup(context)
    some_kraft(cluster, context)
    orders, more, lost = (
        TopicMetadata("orders", "a", dict.fromkeys(range(count), PartitionMetadata((0,), 0)), configs)
        for count, configs in ((1, {}), (2, {}), (2, {"retention.ms": "5"}))
    )
    cluster.stored = ({"orders": orders}, {"orders": orders})
    assert planned(context)[1][-1].endswith("UTC: nothing that was read.")
    cluster.stored = ({"orders": more}, {"orders": lost, "new": replace(orders, name="new")})
    has, misses = planned(context)[1][-2:]
    assert has.endswith(", and ZooKeeper has it: topics with more partitions (1): orders (1 partition before, 2 partitions now).")
    assert misses.endswith(
        ", and ZooKeeper does not have it: topics created (1): new; topic settings (1): orders retention.ms (absent before, 5 now)."
    )


def test_the_journal_has_every_change_of_which_the_plan_has_examples(tmp_path: Any) -> None:
    cluster = SimCluster()
    run_backup(cluster.context(tmp_path))
    some_kraft(cluster, cluster.context(tmp_path))
    cluster.stored = ({}, {f"t{number}": TopicMetadata(f"t{number}", "id", {}) for number in range(9)})
    context = cluster.context(tmp_path)
    assert planned(context)[1][-1].endswith("topics created (9): t0, t1, t2, t3, t4 and 4 more.")
    assert journal_of(context).facts["changed"] == [["topics created", f"t{number}", False] for number in range(9)]


def test_without_the_tree_of_before_the_plan_does_not_say_that_nothing_was_changed(tmp_path: Any) -> None:
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    some_kraft(cluster, context)
    assert planned(context)[1][-1].startswith("Not known: what was changed since the takeover. [O01]")
    run_rollback(context)


@pytest.mark.parametrize(("before", "target"), [(some_kraft, BrokerMode.MIGRATION), (handed_over, BrokerMode.ZOOKEEPER)])
def test_no_broker_is_rolled_back_while_partitions_move(
    tmp_path: Path, before: Callable[[SimCluster, StepContext], None], target: BrokerMode
) -> None:
    cluster = SimCluster()
    before(cluster, cluster.context(tmp_path))
    context, stops = cluster.context(tmp_path), cluster.nodes[NodeRole.BROKER, 0].stops
    cluster.moving = ("orders-3",)
    with pytest.raises(TimedOut, match=r"S04.*orders-3.*Let it finish"):
        run_step(RollBackBroker(cluster.spec.brokers[0], target, cluster.spec.policy), context)
    assert cluster.nodes[NodeRole.BROKER, 0].stops == stops
    cluster.moving = ()
    run_rollback(cluster.context(tmp_path))
    check_back(cluster)


class WithStranger(SimCluster):
    """Broker 7 joins once every broker is in migration mode, and the cluster file does not name it."""

    joined: bool = False

    def observe(self, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        view = super().observe(what, nodes, groups)
        return replace(view, brokers={**view.brokers, 7: Broker(7, named=False)}) if self.joined else view


def test_a_rollback_goes_on_without_a_broker_that_it_was_asked_to_leave(tmp_path: Path) -> None:
    cluster = WithStranger()
    all_in_migration(cluster, cluster.context(tmp_path))
    cluster.joined = True
    with pytest.raises(TimedOut, match="G39"):
        run_rollback(cluster.context(tmp_path))
    context = cluster.context(tmp_path)
    run_rollback(context, {"leave_broker": "7"})
    assert any("broker 7 stays as it is" in text for text in journal_of(context).facts["kept"])
    assert cluster.disasters == []
    assert all(node.running == node.text for (role, _), node in cluster.nodes.items() if role is NodeRole.BROKER)


@pytest.mark.parametrize(("asked", "text"), [("x", "must be a whole number"), ("0", "which the cluster file names")])
def test_only_brokers_that_the_cluster_file_does_not_name_are_left(tmp_path: Path, asked: str, text: str) -> None:
    cluster = SimCluster()
    all_in_migration(cluster, cluster.context(tmp_path))
    with pytest.raises(Refused, match=text):
        run_rollback(cluster.context(tmp_path), {"leave_broker": asked})


def test_a_rollback_that_accepts_split_groups_goes_on_where_brokers_disagree(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=5)
    all_in_migration(cluster, cluster.context(tmp_path))
    cluster.offsets_partitions = 10
    with pytest.raises(Refused, match="K01"):
        run_rollback(cluster.context(tmp_path))
    context = cluster.context(tmp_path)
    run_rollback(context, {"accept_split_groups": cluster.spec.cluster_id})
    assert any("groups move" in disaster for disaster in cluster.disasters), "what was accepted"
    assert any("accepts that groups move" in text for _, text in journal_of(context).lines)
    assert position_of(cluster.observe(EVERYTHING)).phase is Phase.ZOOKEEPER


def test_a_controller_that_cannot_be_stopped_leaves_no_cluster_without_a_quorum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimCluster()
    all_in_migration(cluster, cluster.context(tmp_path))
    stop = SimHost.stop

    def broken(host: SimHost, node: NodeSpec, *given: Any) -> float:
        if node.id == cluster.leader:
            raise Failed("controller: [Errno 5] Input/output error")
        return stop(host, node, *given)

    monkeypatch.setattr(SimHost, "stop", broken)
    with pytest.raises(Refused, match=r"G26.*Input/output error"):
        run_step(Handover(cluster.spec.controllers), cluster.context(tmp_path))
    running = [node.id for node in cluster.spec.controllers if cluster.nodes[NodeRole.CONTROLLER, node.id].running is not None]
    assert len(running) >= 2
    monkeypatch.setattr(SimHost, "stop", stop)
    run_rollback(cluster.context(tmp_path))
    check_back(cluster)


def test_a_refusal_while_the_last_controllers_stop_is_no_fault_of_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimCluster()
    all_in_migration(cluster, cluster.context(tmp_path))

    def refused(*_: Any) -> float:
        raise Refused("the agent serves another cluster")

    monkeypatch.setattr(SimHost, "stop", refused)
    with pytest.raises(Refused, match=r"^the agent serves another cluster$"):
        run_step(Handover(cluster.spec.controllers), cluster.context(tmp_path))


@pytest.mark.parametrize("error", [Changed("written meanwhile"), AuthenticationFailed("no permission")])
def test_states_that_name_silent_brokers_are_no_detail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: KMigrateError
) -> None:
    """A leader that the brokers ignore can be restarted; one whose log is shorter makes the others truncate."""
    context = SimCluster().context(tmp_path)

    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(partition_states, "raise_versions", fails)
    dual_write.raise_states(context)
    with pytest.raises(dual_write.StatesKept, match="Brokers 1, 2 do not answer and stay in their ISRs"):
        dual_write.raise_states(context, (1, 2))


@pytest.mark.parametrize(
    ("stuck", "kept_in"), [(0, set()), (1, set()), (1, {0})], ids=["all", "all, and is next itself", "all but one"]
)
def test_a_leader_that_keeps_a_broker_out_of_its_isrs_since_the_handover_is_restarted(
    tmp_path: Any, stuck: int, kept_in: set[int]
) -> None:
    """Seen on real brokers: broker 2 lost its power in the handover, and the thread of broker 0 that asks for ISR changes died at it."""
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    handed_over(cluster, context)
    cluster.stuck, cluster.kept_out, cluster.kept_in = stuck, {2}, kept_in
    run_rollback(context)
    check_back(cluster)
    assert cluster.kept_out == set()


def test_no_status_is_stored_while_producers_wait_for_the_handover(tmp_path: Path) -> None:
    """Airflow, which stores it, may be away: a step that waited for it would keep the cluster without a controller."""
    cluster = SimCluster()
    all_kraft(cluster, cluster.context(tmp_path))
    steps: list[str] = []

    def offer(_headline: object, make: Callable[[], Any]) -> None:
        steps.append(make()["step"]["name"])

    run_rollback(replace(cluster.context(tmp_path), offer_status=offer))
    assert any("broker" in step for step in steps), "other steps store it"
    assert {"handover to ZooKeeper", "ZooKeeper controller"} & set(steps) == set()
