"""What each step of the rollback decides: a table over the states that were seen on real brokers, and the epochs as a property."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
    BrokerMode,
    LiveMembers,
    Malformed,
    Migration,
    NodeFiles,
    Partition,
    Process,
    ProcessState,
    Quorum,
    Reason,
    ZkController,
    ZkView,
)
from airflow_provider_kmigrate.core.migration import handover, rollback
from airflow_provider_kmigrate.core.migration import rollback as back_gates
from airflow_provider_kmigrate.core.migration import rollback as back_plan
from airflow_provider_kmigrate.core.migration.phase import still_open
from tests.core.back_views import (
    ALL_MIG,
    DUAL,
    FINAL,
    FINAL_FILE,
    FLAG_FILE,
    HYBRID,
    KRAFT_FILE,
    MIGRATION_FILE,
    OFF3,
    STOPPED,
    UP3,
    ZOOKEEPER_FILE,
    alive,
    emptied,
    equal,
    handed_over,
    handover_decision,
    later,
    missing,
    shape,
    unresponsive,
    with_files,
)
from tests.core.views import (
    AGREEING,
    ASLEEP,
    DOWN,
    HALF,
    KRAFT,
    MIG,
    ONE_UNREAD,
    ZK,
    cluster,
    computing,
    controller,
    migration,
    with_broker,
    with_controller,
    with_zk,
)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (FINAL, (Refuse, "P12")),
        (cluster([KRAFT, KRAFT, MIG], (False, False, False), 50), (Refuse, "P12", "P02")),
        (cluster([KRAFT] * 3, (False, True, True), 50), (Refuse, "P12")),  # the leader, 3000, has no flag
        (replace(DUAL, zk=None), (Wait, "U01")),
        (with_zk(DUAL, migration=Malformed("/migration", "")), (Refuse, "P04")),
        (with_zk(DUAL, controller=Malformed("/controller", "")), (Refuse, "P05")),
    ],
)
def test_every_step_refuses_if_no_rollback_is_possible(view, expected):
    steps = [
        rollback.decide_restore_flag(view, 3000),
        rollback.decide_controller_failover(view, view),
        rollback.decide_roll_back(view, view, 0, MIG),
        rollback.decide_roll_back(view, view, 0, ZK),
        handover_decision(view, view),
        rollback.decide_zookeeper_leads(view),
        rollback.decide_wipe(view, 3000),
        rollback.decide_rolled_back(view),
    ]
    assert {shape(step) for step in steps} == {expected}


def test_where_there_is_one_nothing_is_refused_beforehand():
    assert [back_gates.refuse_if_irreversible(view) for view in (DUAL, HYBRID, ALL_MIG, STOPPED, handed_over([ZK] * 3))] == [
        None
    ] * 5


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (DUAL, (Done,)),
        (cluster([KRAFT] * 3, (True, False, True), 50), (Act, "restart")),
        (cluster([KRAFT] * 3, (None, False, True), 50), (Wait, "G23")),
        (handed_over([MIG, ZK, ZK]), (Done,)),
    ],
)
def test_a_controller_gets_its_flag_back(view, expected):
    assert shape(rollback.decide_restore_flag(view, 3001)) == expected


@pytest.mark.parametrize(("at_boot", "expected"), [(True, "stop"), (False, "handover"), (None, "handover")])
def test_a_stopped_controller_that_would_start_with_its_machine_is_stopped_before_the_handover(at_boot, expected):
    down = replace(STOPPED.controllers[3001], process=replace(DOWN, at_boot=at_boot))
    view = equal(replace(STOPPED, controllers={**STOPPED.controllers, 3001: down}))
    assert shape(handover_decision(later(view), view)) == (Act, expected)


def test_a_controller_with_its_flag_keeps_no_file_without_it():
    misfiled = replace(DUAL.controllers[3001], files=NodeFiles(FINAL_FILE))
    assert shape(rollback.decide_restore_flag(replace(DUAL, controllers={**DUAL.controllers, 3001: misfiled}), 3001)) == (
        Act,
        "rewrite",
    )


def test_no_node_reports_whether_it_is_finalized():
    down = {
        node: replace(controller(node, None), files=NodeFiles(FINAL_FILE, has_metadata_log=True)) for node in DUAL.controllers
    }
    assert shape(rollback.decide_restore_flag(replace(DUAL, controllers=down, quorum=None), 3001)) == (Refuse, "R12")


LED_BY_ANOTHER = replace(DUAL, quorum=replace(DUAL.quorum, leader_id=3002))
UNWRITTEN = with_zk(LED_BY_ANOTHER, migration=migration(50, epoch=4))


@pytest.mark.parametrize(
    ("view", "proven"),
    [
        (DUAL, True),
        (LED_BY_ANOTHER, True),
        (cluster([MIG] * 3, UP3, -1), True),  # nothing was copied: there is nothing to finalize
        (handed_over([ZK] * 3), True),
        (UNWRITTEN, False),  # as a finalized quorum that one with the flag leads
        (replace(DUAL, quorum=None), False),
        (replace(DUAL, zk=None), False),
        (with_zk(DUAL, migration=None), False),
        (with_zk(DUAL, migration=Malformed("/migration", "")), False),
        (cluster([KRAFT] * 3, (False, True, True), 50), False),
        (unresponsive(DUAL, 3000), False),
        (with_zk(DUAL, controller=ZkController(0, -1, ephemeral=True)), False),
    ],
)
def test_what_proves_that_nothing_is_finalized(view, proven):
    assert still_open(view) is proven


@pytest.mark.parametrize("view", [UNWRITTEN, unresponsive(UNWRITTEN, 3002), replace(LED_BY_ANOTHER, quorum=None)])
@pytest.mark.parametrize("keys", [FINAL_FILE, None])
def test_no_controller_gets_a_flag_back_that_may_be_over(view, keys):
    down = replace(controller(3001, None), files=NodeFiles(keys, has_metadata_log=True))
    assert shape(rollback.decide_restore_flag(replace(view, controllers={**view.controllers, 3001: down}), 3001)) == (Wait, "R12")
    misfiled = replace(view.controllers[3001], files=NodeFiles(FINAL_FILE))
    assert shape(rollback.decide_restore_flag(replace(view, controllers={**view.controllers, 3001: misfiled}), 3001)) == (
        Wait,
        "R12",
    )


def test_a_controller_that_answers_without_the_flag_gets_none_back_that_may_be_over():
    view = replace(UNWRITTEN, controllers={**UNWRITTEN.controllers, 3001: controller(3001, False)})
    assert shape(rollback.decide_restore_flag(view, 3001)) == (Wait, "R12")


def test_one_that_has_the_flag_in_its_file_is_started_with_it_whatever_is_known():
    down = replace(controller(3001, None), files=NodeFiles(FLAG_FILE, has_metadata_log=True))
    assert shape(rollback.decide_restore_flag(replace(UNWRITTEN, controllers={**UNWRITTEN.controllers, 3001: down}), 3001)) == (
        Act,
        "start",
    )


@pytest.mark.parametrize(("used", "expected"), [(True, (Act, "start")), (False, (Done,)), (None, (Wait, "G00"))])
def test_a_controller_that_is_down_comes_back_if_it_has_this_migrations_log(used, expected):
    down = replace(controller(3001, None), files=NodeFiles(has_metadata_log=used))
    view = replace(DUAL, controllers={**DUAL.controllers, 3001: down})
    assert shape(rollback.decide_restore_flag(view, 3001)) == expected


def failed_over(view):
    quorum = view.quorum
    new = Quorum(3001, quorum.leader_epoch + 1, quorum.high_watermark, quorum.voters, quorum.observers)
    owner = ZkController(3001, new.leader_epoch, ephemeral=False)
    return replace(with_zk(later(view), migration=migration(60, epoch=new.leader_epoch), controller=owner), quorum=new)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (DUAL, (Act, "fail over the controller")),
        (failed_over(DUAL), (Done,)),
        (replace(failed_over(DUAL), zk=DUAL.zk), (Wait, "G07")),  # the new leader has not written yet
        (replace(DUAL, client_metrics=("s",)), (Refuse, "G09")),
        (cluster([KRAFT] * 3, (True, None, True), 50), (Act, "start")),  # killed between its stop and its start
        (handed_over([ZK] * 3), (Done,)),
    ],
)
def test_one_failover_heals(view, expected):
    assert shape(rollback.decide_controller_failover(view, DUAL)) == expected


def test_of_controllers_that_are_down_only_one_of_this_migration_is_brought_back():
    empty = replace(controller(3000, None), files=NodeFiles(has_metadata_log=False))
    used = replace(controller(3001, None), files=NodeFiles(FLAG_FILE, has_metadata_log=True))
    view = replace(DUAL, controllers={**DUAL.controllers, 3000: empty, 3001: used})
    number, decision = rollback.find_down_controller(view)
    assert (number, shape(decision)) == (3001, (Act, "start"))
    assert rollback.find_down_controller(replace(view, controllers={**view.controllers, 3001: DUAL.controllers[3001]})) is None


@pytest.mark.parametrize(
    ("view", "target", "expected"),
    [
        (later(DUAL, offset=60), MIG, (Act, "restart")),
        (DUAL, MIG, (Wait, "G07")),
        (later(cluster([KRAFT] * 3, (True, False, True), 50), offset=60), MIG, (Refuse, "G05")),
        (ALL_MIG, MIG, (Done,)),
        (handed_over([ZK] * 3), MIG, (Done,)),
        (HYBRID, ZK, (Refuse, "G27")),
        (ALL_MIG, ZK, (Refuse, "G30")),
        (with_zk(handed_over([MIG] * 3), migration=migration(-1)), ZK, (Refuse, "G30")),
        (handed_over([MIG] * 3), ZK, (Act, "restart")),
        (handed_over([MIG] * 3, (True, None, None)), ZK, (Refuse, "G26")),
        (with_broker(handed_over([MIG] * 3), 1, controller_id=2), ZK, (Wait, "G28")),
        (with_zk(handed_over([MIG] * 3), controller=None), ZK, (Wait, "G28")),
        (handed_over([ZK, MIG, MIG]), ZK, (Done,)),
        (replace(later(DUAL, offset=60), moving=("orders-3",)), MIG, (Wait, "S04")),
        (replace(later(DUAL, offset=60), moving=None), MIG, (Wait, "G00")),
        (replace(handed_over([MIG] * 3), moving=("orders-3",)), ZK, (Wait, "S04")),
        (replace(handed_over([ZK, MIG, MIG]), moving=("orders-3",)), ZK, (Done,)),
        (computing(later(DUAL, offset=60), AGREEING), MIG, (Act, "restart")),
        (computing(later(DUAL, offset=60), ASLEEP), MIG, (Refuse, "K01")),
        (computing(later(DUAL, offset=60), ONE_UNREAD), MIG, (Wait, "K02")),
        (computing(handed_over([MIG] * 3), HALF), ZK, (Refuse, "K01")),
        (computing(handed_over([MIG] * 3), None), ZK, (Wait, "K02")),
    ],
)
def test_a_broker_goes_back(view, target, expected):
    assert shape(rollback.decide_roll_back(view, DUAL, 0, target)) == expected


@pytest.mark.parametrize(
    ("keys", "registered", "expected"),
    [
        (ZOOKEEPER_FILE, False, (Act, "start")),
        (MIGRATION_FILE, False, (Act, "restart")),
        (KRAFT_FILE, False, (Act, "restart")),
        (None, False, (Wait, "G00")),
        (ZOOKEEPER_FILE, True, (Wait, "R03")),
        (ZOOKEEPER_FILE, None, (Wait, "R03")),
    ],
)
def test_a_broker_that_is_down_is_started_again(keys, registered, expected):
    files = NodeFiles(properties=keys)
    view = with_broker(handed_over([None, ZK, ZK]), 0, process=DOWN, files=files, in_zookeeper=registered)
    assert shape(rollback.decide_roll_back(view, view, 0, ZK)) == expected


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (equal(later(STOPPED)), (Act, "handover")),
        (equal(STOPPED), (Wait, "T01")),
        (later(STOPPED), (Wait, "G33", "G00")),
        (missing(later(STOPPED)), (Wait, "G33", "E02")),
        (later(STOPPED, offset=51), (Refuse, "G26")),
        (later(alive(STOPPED)), (Wait, "U04")),
        (later(replace(STOPPED, state_epoch=None)), (Wait, "G00")),
        (later(replace(cluster([KRAFT, MIG, MIG], OFF3, 50), state_epoch=5)), (Refuse, "G27")),
        (equal(with_files(later(STOPPED), FINAL_FILE)), (Refuse, "R12")),
        (equal(with_files(later(STOPPED), FLAG_FILE)), (Act, "handover")),
        (handed_over([MIG] * 3), (Done,)),
        (replace(handed_over([MIG] * 3), state_epoch=None), (Wait, "G00")),
    ],
)
def test_the_hand_over(view, expected):
    assert shape(handover_decision(view, STOPPED)) == expected


def test_a_cluster_that_was_handed_over_without_raising_the_epoch_is_handed_over_again():
    bomb = replace(handed_over([ZK] * 3), state_epoch=9)
    assert shape(handover_decision(later(bomb), bomb)) == (Act, "handover")
    assert shape(rollback.decide_zookeeper_leads(bomb)) == (Refuse, "G02")
    assert len(back_plan.plan(bomb)) == 2


EPOCHS = st.integers(0, 50)


@given(EPOCHS, EPOCHS, EPOCHS, st.integers(-1, 50))
def test_no_epoch_that_kraft_has_written_is_out_of_reach_afterwards(znode, written, claimed, states):
    zk = ZkView("c", (0, 1), ZkController(3000, claimed, ephemeral=False), znode, Migration(3000, written, 97, 4))
    change = handover.build_handover_writes(zk, states)
    assert change.epoch is not None
    assert change.epoch > max(znode, written, claimed, states)
    assert change.delete == ("/migration", "/controller")


@given(EPOCHS, EPOCHS, st.booleans())
def test_a_living_zookeeper_controller_is_left_alone_unless_it_cannot_rule(znode, states, stale):
    zk = ZkView("c", (0, 1), ZkController(1, -1, ephemeral=True), znode, Migration(3000, -1, -1, -1) if stale else None)
    change = handover.build_handover_writes(zk, states)
    assert ("/migration" in change.delete) is stale
    assert ("/controller" in change.delete) is (states > znode)
    assert (change.epoch is None) is (states <= znode)
    assert change.epoch is None or change.epoch > states
    assert not change.states, "its brokers hold ZooKeeper's versions"


def test_an_unknown_epoch_changes_nothing():
    with pytest.raises(ValueError, match="controller_epoch"):
        handover.build_handover_writes(ZkView("c", (), ZkController(3000, 4, ephemeral=False), None, None), 3)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (STOPPED, (Refuse, "G30")),
        (handed_over([ZK] * 3, (True, None, None)), (Act, "stop")),  # an administrator started it after the handover
        (alive(handed_over([ZK] * 3)), (Wait, "G26", "G00")),
        (handed_over([ZK] * 3), (Wait, "G00")),  # what its directory holds was not read
    ],
)
def test_nothing_is_wiped_too_early(view, expected):
    assert shape(rollback.decide_wipe(view, 3000)) == expected


def test_a_full_directory_of_a_stopped_controller_is_wiped():
    view = emptied(handed_over([ZK] * 3), full=(3000,))
    assert shape(rollback.decide_wipe(view, 3000)) == (Act, "wipe")
    assert shape(rollback.decide_wipe(view, 3001)) == (Done,)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (emptied(handed_over([ZK] * 3)), (Done,)),
        (emptied(handed_over([ZK, ZK, MIG])), (Wait, "G22")),
        (emptied(handed_over([ZK] * 3), full=(3002,)), (Wait, "G04")),
        (handed_over([ZK] * 3), (Wait, "G00", "G04")),
        (replace(emptied(handed_over([ZK] * 3)), state_epoch=9), (Refuse, "G02")),
    ],
)
def test_the_end(view, expected):
    assert shape(rollback.decide_rolled_back(view)) == expected


def test_the_end_names_zookeeper_consumers_that_need_a_restart():
    view = emptied(handed_over([ZK] * 3))
    assert "Restart" not in rollback.decide_rolled_back(view).text
    decision = rollback.decide_rolled_back(with_zk(view, live_groups=("billing",), live_members={"billing": LiveMembers(2, 0)}))
    assert isinstance(decision, Done)
    assert "Restart the ZooKeeper consumers" in decision.text
    assert "billing (2 ZooKeeper)" in decision.text


@pytest.mark.parametrize(
    ("flags", "numbers"),
    [
        ((True, True, True), (3001,)),  # a standby: a quorum is left
        ((True, None, True), (3000, 3002)),  # the last two together: without either there is no quorum
        ((True, None, None), (3000,)),
        ((None, None, None), ()),
    ],
)
def test_controllers_stop_one_by_one_while_a_quorum_is_left_and_the_rest_together(flags, numbers):
    assert handover.controllers_to_stop(cluster([MIG] * 3, flags, 50)) == numbers


@pytest.mark.parametrize(
    ("flags", "silence"),
    [
        ((True, True, True), inf),  # a quorum is left
        ((True, None, True), handover.STUCK_FOR),
        ((True, None, None), handover.STUCK_FOR),
        ((None, None, None), handover.STUCK_FOR),
    ],
)
def test_a_silent_machine_is_given_up_sooner_in_a_stop_that_ends_the_quorum(flags, silence):
    assert handover.unresponsive_stop_timeout(cluster([MIG] * 3, flags, 50)) == silence


def test_a_silent_machine_has_its_time_if_zookeeper_owns_the_cluster():
    assert handover.unresponsive_stop_timeout(handed_over([MIG] * 3)) == inf


def test_of_five_controllers_two_stop_alone_and_the_other_three_together():
    def quorum_of_five(*answering):
        controllers = {number: controller(number, True if number in answering else None) for number in range(3000, 3005)}
        return replace(ALL_MIG, controllers=controllers)

    assert handover.controllers_to_stop(quorum_of_five(3000, 3001, 3002, 3003, 3004)) == (3001,)
    assert handover.controllers_to_stop(quorum_of_five(3000, 3002, 3003, 3004)) == (3002,)
    assert handover.controllers_to_stop(quorum_of_five(3000, 3003, 3004)) == (3000, 3003, 3004)


UNSEEN = replace(DOWN, state=ProcessState.UNKNOWN)  # its machine does not answer


def without_quorum(modes=(MIG, MIG, MIG), running=(3000,), unseen=(), flagged=True):
    """KRaft owns the cluster, and only these controllers run; those in `unseen` are on machines that do not answer."""
    view = equal(
        replace(cluster(list(modes), tuple(True if node in running else None for node in (3000, 3001, 3002)), 50), state_epoch=5)
    )
    file = FLAG_FILE if flagged else FINAL_FILE
    for node in view.controllers:
        process = {"process": UNSEEN} if node in unseen else {}
        view = with_controller(view, node, files=NodeFiles(file, {"/kraft": {}}, has_metadata_log=True), **process)
    return view


def handover_over_time(views, terms=rollback.SAFE):
    """The decisions of one run, with its progress."""
    progress, decisions = handover.HandoverProgress(views[0]), []
    for view in views:
        decision, progress = handover.decide_handover(view, progress, terms)
        progress = progress.add_return() if shape(decision) == (Act, "start") else progress
        decisions.append(shape(decision))
    return decisions, progress


@pytest.mark.parametrize(
    ("running", "unseen"),
    [
        ((), ()),
        ((), (3002,)),  # its whole rack
        ((3000,), ()),  # the last one that runs stops first
    ],
)
def test_without_a_quorum_the_handover_goes_on_beside_a_broker_that_is_down(running, unseen):
    """Not at once: it may answer again. No controller starts, which would take it for alive when it is back (measured)."""
    views = [later(without_quorum((MIG, MIG, None), (), unseen), seconds) for seconds in (2.0, 4.0, 6.0)]
    views = [without_quorum((MIG, MIG, None), running, unseen), *views]
    decisions, progress = handover_over_time(views)
    assert decisions[0][0] is Wait
    assert decisions[-1] == (Act, "handover")
    assert (Act, "start") not in decisions
    assert "taken out of their ISRs first" in handover.decide_handover(views[-1], progress)[0].text
    assert shape(handover.decide_handover(views[1], handover.HandoverProgress(views[0]))[0])[0] is Wait


def test_nothing_is_handed_over_if_no_broker_answers():
    """It may be the network of the tool, and nobody is known who could lead instead."""
    dark = without_quorum((None, None, None), running=())
    decisions, _ = handover_over_time([later(dark, seconds) for seconds in (0.0, 2.0, 4.0)])
    assert decisions[-1] == (Act, "start")
    assert not handover.HandoverProgress(dark).may_leave_brokers_behind(later(dark, 60.0))


def test_no_broker_is_taken_out_of_isrs_if_all_answer():
    down = without_quorum(running=())
    progress = handover.HandoverProgress(down).add_view(down, down)
    decision, _ = handover.decide_handover(later(down, 3.0), progress)
    assert shape(decision) == (Act, "handover")
    assert "ISR" not in decision.text


FILELESS = {"files": NodeFiles()}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({}, FILELESS, (Act, "handover")),  # as it was last read
        (FILELESS, FILELESS, (Wait, "G00")),  # it may have led without its flag
        ({}, {"files": NodeFiles(FINAL_FILE)}, (Act, "start")),
    ],
)
def test_the_file_of_a_controller_whose_machine_is_dead_counts_as_it_was_last_read(before, now, expected):
    dead = without_quorum((MIG, MIG, None), (), (3002,))
    views = [with_controller(dead, 3002, **before), *(with_controller(later(dead, s), 3002, **now) for s in (2.0, 4.0, 6.0))]
    assert handover_over_time(views)[0][2] == expected


@pytest.mark.parametrize(("unseen", "expected"), [((3001, 3002), (Wait, "U04", "U04")), ((3002,), (Act, "handover"))])
def test_two_controllers_on_dead_machines_may_be_a_quorum(unseen, expected):
    views = [later(without_quorum((MIG, MIG, None), (), unseen), seconds) for seconds in (0.0, 2.0, 4.0, 6.0)]
    assert handover_over_time(views)[0][-1][: len(expected)] == expected


def test_controllers_start_again_beside_a_broker_that_is_down_if_there_is_no_way_forward():
    """The comparison refuses, or the partition states could not be written. What was not read is waited for."""
    down = without_quorum((MIG, MIG, None), running=())
    blind = replace(down, state_epoch=None)
    lossy = missing(down)
    assert handover_over_time([lossy, later(lossy, 2.0), later(lossy, 4.0)])[0][-1] == (Act, "start")
    failed = handover.HandoverProgress(down, failed=(Reason("G26", "states"),))
    assert shape(handover.decide_handover(down, failed)[0]) == (Act, "start")
    assert handover_over_time([later(blind, seconds) for seconds in (0.0, 4.0, 60.0)])[0][1:] == [(Wait, "G00"), (Wait, "G00")]


@pytest.mark.parametrize("terms", [rollback.SAFE, rollback.RollbackTerms(failover=False)])
@pytest.mark.parametrize("running", [(3000, 3001, 3002), (3000,), ()])
@pytest.mark.parametrize("broker", [(MIG, True), (None, True), (None, False), (ZK, True), (KRAFT, False)])
@pytest.mark.parametrize("others", [((), True, True), ((3002,), True, True), ((), False, True), ((), True, False)])
def test_what_the_handover_does_not_read_decides_nothing(terms, running, broker, others):
    """Beside a broker that does not answer, epochs and topics take 10 s to read, while no ISR shrinks (measured)."""
    (mode, registered), (unseen, flagged, owned) = broker, others
    view = without_quorum((MIG, MIG, mode), running, unseen, flagged)
    view = with_broker(view, 2, process=DOWN, in_zookeeper=registered)
    view = view if owned else with_zk(view, controller=ZkController(1, -1, ephemeral=True), migration=None)
    progress = blind = handover.HandoverProgress(view)
    for seconds in (0.0, 2.5, 5.0):
        seen = later(view, seconds)
        unread = replace(seen, state_epoch=None, topics=None)
        reads = handover.needs_comparison_for_handover(seen, progress) or handover.needs_comparison_for_stop(seen, progress)
        assert reads or shape(handover.decide_handover(seen, progress, terms)[0]) == shape(
            handover.decide_handover(unread, blind, terms)[0]
        )
        _, progress = handover.decide_handover(seen, progress, terms)
        _, blind = handover.decide_handover(unread if not reads else seen, blind, terms)


@pytest.mark.parametrize("terms", [rollback.SAFE, rollback.RollbackTerms(failover=False)])
@pytest.mark.parametrize("running", [(3000, 3001, 3002), (3000,), ()])
@pytest.mark.parametrize("unseen", [(), (3002,), (3001, 3002)])
@pytest.mark.parametrize("flagged", [True, False])
def test_what_brokers_processes_do_decides_nothing_in_a_handover(terms, running, unseen, flagged):
    """A machine that is dead and says nothing would hold each observation."""
    hanging = without_quorum((MIG, MIG, None), running, unseen, flagged)
    found = [
        handover_over_time([later(with_broker(hanging, 2, process=process), s) for s in (0.0, 4.0)], terms)[0]
        for process in (UNSEEN, Process(ProcessState.RUNNING, 7, 1.0), DOWN)
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("mode", "reads"), [(MIG, True), (None, False)])
def test_the_transaction_is_decided_by_what_it_reads_once_no_broker_needs_a_quorum(mode, reads):
    view = without_quorum((MIG, MIG, mode), running=())
    assert handover.needs_comparison_for_handover(view, handover.HandoverProgress(view)) is reads
    unread = [later(replace(view, state_epoch=None), seconds) for seconds in (0.0, 2.5)]
    assert "G00" in handover_over_time(unread)[0][-1] or not reads


def test_controllers_start_again_if_the_handover_cannot_go_on_without_a_quorum():
    stuck = without_quorum(running=(), unseen=(3002,))
    decisions, progress = handover_over_time([later(stuck, seconds) for seconds in (0.0, 2.0, 4.0)])
    assert decisions == [(Wait, "U04"), (Wait, "U04"), (Act, "start")]
    assert progress.returns == 1
    assert handover.controllers_to_start_again(stuck) == (3000, 3001)


def test_controllers_start_again_at_once_if_the_handover_is_refused():
    lossy = missing(without_quorum(running=()))
    decisions, _ = handover_over_time([lossy, later(lossy, 2.5)])
    assert decisions[-1] == (Act, "start")


@pytest.mark.parametrize(
    ("view", "terms"),
    [
        (without_quorum(running=(), unseen=(3001, 3002)), rollback.SAFE),  # one alone makes no quorum
        (without_quorum(running=(), unseen=(3002,), flagged=False), rollback.SAFE),  # elected, it would finalize
        (
            without_quorum(running=(), unseen=(3002,)),
            rollback.RollbackTerms(failover=False),
        ),  # no controller can be started any more
        (without_quorum(running=(3000, 3001), unseen=(3002,)), rollback.SAFE),  # there is a quorum
    ],
)
def test_controllers_do_not_start_again_if_that_makes_no_safe_quorum(view, terms):
    decisions, _ = handover_over_time([later(view, seconds) for seconds in (0.0, 5.0, 10.0)], terms)
    assert (Act, "start") not in decisions
    assert decisions[-1][0] is Wait


def test_a_handover_that_begins_while_zookeeper_is_away_goes_on_once_it_is_back():
    """What it compares with must be an observation in which ZooKeeper was read."""
    down = without_quorum(running=())
    views = [replace(down, zk=None), *(later(down, seconds) for seconds in (1.0, 2.0, 4.0))]
    decisions, _ = handover_over_time(views)
    assert decisions[0][0] is Wait
    assert decisions[-1] == (Act, "handover")


def test_a_handover_that_went_back_too_often_is_refused_while_there_is_a_quorum():
    why = (Reason("U04", "its machine does not answer"),)
    progress = handover.HandoverProgress(ALL_MIG, returns=handover.MAX_RETURNS, why=why)
    quorum = equal(later(ALL_MIG, offset=60))
    assert handover.decide_handover(quorum, progress)[0] == Refuse(why)
    assert shape(handover.decide_handover(quorum, replace(progress, returns=0))[0]) == (Act, "stop")


@pytest.mark.parametrize(("stopped", "expected"), [(1, "G33"), (2, "stop"), (3, "stop")])
def test_once_no_majority_of_controllers_is_left_nothing_must_move_any_more(stopped, expected):
    """Half of four is none."""
    four = {node: controller(node, None if node < 3000 + stopped else True) for node in range(3000, 3004)}
    view = equal(later(replace(STOPPED, controllers=four)))
    assert shape(handover_decision(view, ALL_MIG))[1] == expected


@pytest.mark.parametrize("answers", [True, False])
def test_a_controller_whose_machine_does_not_answer_is_not_taken_for_stopped(answers):
    silent = with_controller(later(STOPPED), 3001, process=UNSEEN, answers=answers)
    assert shape(handover_decision(equal(silent), STOPPED)) == (Wait, "U04")


@pytest.mark.parametrize(("process", "expected"), [(DOWN, (Act, "handover")), (UNSEEN, (Wait, "G26", "T01"))])
def test_a_migration_without_a_copy_is_handed_over_once_every_controller_is_known_to_be_stopped(process, expected):
    view = with_controller(with_zk(handed_over([MIG] * 3), migration=migration(-1)), 3001, process=process)
    assert shape(handover_decision(later(view), view)) == expected


def test_no_controller_stops_while_another_has_no_flag_in_its_file():
    """Once all are stopped only R12 is left; with a quorum the rollback restores the flag first."""
    quorum = equal(later(ALL_MIG, offset=60))
    unflagged = with_controller(quorum, 3002, files=NodeFiles(FINAL_FILE))
    assert shape(handover_decision(quorum, ALL_MIG)) == (Act, "stop")
    assert shape(handover_decision(unflagged, ALL_MIG)) == (Refuse, "G05")


def test_controllers_start_again_at_once_if_one_of_the_last_could_not_be_stopped():
    """Such as one whose disk fails in its stop: it runs on, and alone it makes no quorum."""
    failed = (Reason("G26", "controller 3002: Input/output error"),)
    view = without_quorum(running=(3002,))
    assert shape(handover_decision(view, view)) == (Act, "stop")
    decision, progress = handover.decide_handover(view, handover.HandoverProgress(view, failed=failed))
    assert shape(decision) == (Act, "start")
    assert "Input/output error" in decision.text
    assert progress.why == failed
    assert (progress.add_return().failed, progress.add_return().returns) == ((), 1)


def test_after_the_handover_a_controller_whose_machine_is_dead_is_not_waited_for():
    view = with_controller(handed_over([MIG] * 3), 3001, process=UNSEEN)
    assert shape(handover_decision(view, view)) == (Done,)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(KRAFT_FILE, (Act, "roll back other")), (MIGRATION_FILE, (Wait, "R01", "S02", "S02")), (None, (Wait, "R01", "S02", "S02"))],
)
def test_a_broker_that_came_back_in_kraft_mode_gets_its_original_before_another_restarts(keys, expected):
    running = Process(ProcessState.RUNNING, 7, 1.0)
    view = with_broker(handed_over([MIG, None, MIG]), 1, process=running, files=NodeFiles(properties=keys), in_zookeeper=False)
    assert shape(rollback.decide_roll_back(view, view, 0, ZK)) == expected


def test_a_broker_that_hangs_in_kraft_mode_after_the_handover_restarts_with_its_original():
    running = Process(ProcessState.RUNNING, 7, 1.0)
    view = with_broker(
        handed_over([MIG, None, MIG]), 1, process=running, files=NodeFiles(properties=KRAFT_FILE), in_zookeeper=False
    )
    assert shape(rollback.decide_roll_back(view, view, 1, ZK)) == (Act, "restart")


@pytest.mark.parametrize(
    ("others", "min_insync", "expected"),
    [
        ((2,), {"t": 2}, (Act, "restart")),
        ((), {"t": 1}, (Act, "restart")),
        ((0, 1), {"t": 2}, (Wait, "S02")),
        ((0,), {}, (Act, "restart")),
        ((0, 1), {}, (Wait, "G00")),
        ((0,), None, (Wait, "G00")),
    ],
)
def test_a_broker_that_hangs_stops_only_if_the_isrs_that_name_it_stay_large_enough(others, min_insync, expected):
    view = with_broker(
        handed_over([MIG, None, MIG]), 1, process=Process(ProcessState.RUNNING, 7, 1.0), files=NodeFiles(properties=KRAFT_FILE)
    )
    view = replace(view, partitions=(Partition("t", 0, 0, (0, 1, 2), others),), min_insync=min_insync)
    assert shape(rollback.decide_roll_back_left_broker(view, 1)) == expected


@pytest.mark.parametrize(("isr", "expected"), [((0, 1), (Act, "elect")), ((2,), (Done,))])
def test_a_partition_whose_only_replica_is_on_a_dead_broker_keeps_no_rollback_waiting(isr, expected):
    """A later step starts that broker."""
    view = handed_over([MIG, MIG, None])
    led = [replace(row, leader=-1, isr=isr) if index == 0 else row for index, row in enumerate(view.partitions)]
    assert shape(rollback.decide_zookeeper_leads(replace(view, partitions=tuple(led)))) == expected


def test_a_controller_that_hangs_stops_before_those_that_answer():
    hanging = with_controller(ALL_MIG, 3002, answers=False, migration_flag=None)
    assert handover.controllers_to_stop(hanging) == (3002,)


def test_brokers_are_listed_by_mode():
    assert HYBRID.in_mode(BrokerMode.KRAFT) == [0, 1]
