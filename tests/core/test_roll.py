"""A roll never takes a partition below min.insync.replicas, never restarts a broker twice, and resumes from anywhere."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Refuse, Wait, waits_for
from airflow_provider_kmigrate.core.cluster_state.model import (
    Cause,
    LiveMembers,
    NodeFiles,
    Partition,
    ProbeFigures,
    Process,
    ProduceLatency,
    ZkController,
)
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.migration.gates import GateState
from airflow_provider_kmigrate.core.migration.roll import is_canary, is_first, may_stop, next_to_roll, why_postponed
from tests.core.views import (
    AGREEING,
    ASLEEP,
    DOWN,
    FLAGGED,
    HALF,
    KRAFT,
    MIG,
    ONE_UNREAD,
    PRE,
    UP,
    ZK,
    broker,
    cluster,
    computing,
    migration,
    partitions,
    readable,
    shrunk,
    with_broker,
    with_zk,
)

HYBRID = cluster([KRAFT, MIG, MIG], FLAGGED, 90)
MIGRATION_FILE = NodeFiles({"zookeeper.connect": "z", "zookeeper.metadata.migration.enable": "true"})
KRAFT_FILE = NodeFiles({"process.roles": "broker"})
FILES = {MIG: MIGRATION_FILE, KRAFT: KRAFT_FILE}
LAST = cluster([KRAFT, KRAFT, MIG], FLAGGED, 90)


QUICK = {"kmigrate-probe-0": ProduceLatency(5.0, 0.010)}
SLOW = ProbeFigures(1.0, QUICK, {"kmigrate-probe-0": ProduceLatency(5.0, 2.0)})


def decide_restart(view, broker_id, target):
    """Of an observation of all that a rollback depends on."""
    return roll.decide_restart(readable(view), broker_id, target)


def codes(decision):
    return {reason.code for reason in decision.reasons}


def test_a_healthy_broker_is_restarted_in_its_turn():
    assert decide_restart(PRE, 0, MIG).verb == "restart"
    assert decide_restart(HYBRID, 1, KRAFT).verb == "restart"


@pytest.mark.parametrize(("view", "node", "target"), [(HYBRID, 0, KRAFT), (HYBRID, 1, MIG), (HYBRID, 0, MIG)])
def test_a_broker_that_is_there_is_never_stopped_again(view, node, target):
    assert isinstance(decide_restart(view, node, target), Done)


@pytest.mark.parametrize(("view", "node", "target", "file"), [(HYBRID, 0, KRAFT, MIGRATION_FILE), (HYBRID, 1, MIG, KRAFT_FILE)])
def test_a_broker_that_is_there_with_the_file_of_another_mode_gets_its_own_again(view, node, target, file):
    assert decide_restart(with_broker(view, node, files=file), node, target).verb == "rewrite"
    assert isinstance(decide_restart(with_broker(view, node, files=FILES[target]), node, target), Done)
    assert codes(decide_restart(with_broker(view, node, files=NodeFiles()), node, target)) == {"G00"}


@pytest.mark.parametrize(
    ("node", "target", "file", "refused"),
    [
        (1, KRAFT, MIGRATION_FILE, True),  # it was started with this file
        (1, KRAFT, KRAFT_FILE, False),
        (1, KRAFT, NodeFiles(), False),
        (0, KRAFT, MIGRATION_FILE, False),  # it was started with the right one
    ],
)
def test_a_file_that_was_written_at_the_start_shows_in_the_mode(node, target, file, refused):
    view = with_broker(HYBRID, node, files=file)
    assert (roll.refuse_rewritten_file(view, node, target) is not None) is refused
    assert roll.refuse_rewritten_file(with_broker(view, node, mode=None), node, target) is None


def test_a_stop_of_ours_that_was_interrupted_goes_on_with_the_start():
    view = with_broker(cluster([MIG, None, ZK], FLAGGED, -1), 1, files=MIGRATION_FILE)
    assert decide_restart(view, 1, MIG).verb == "start"


@pytest.mark.parametrize("registered", [True, None])
def test_a_stopped_broker_waits_until_its_zookeeper_session_is_known_to_be_over(registered):
    view = with_broker(cluster([MIG, None, ZK], FLAGGED, -1), 1, files=MIGRATION_FILE, in_zookeeper=registered)
    assert codes(decide_restart(view, 1, MIG)) == {"R03"}


def test_a_broker_down_with_the_file_of_a_later_mode_is_started_with_it():
    view = with_broker(cluster([None, MIG, MIG], FLAGGED, 90), 0, files=KRAFT_FILE)
    assert decide_restart(view, 0, MIG).verb == "start"


def test_a_broker_that_something_else_stopped_is_waited_for():
    view = cluster([MIG, None, ZK], FLAGGED, -1)
    assert codes(decide_restart(view, 1, MIG)) == {"R01"}


def test_a_process_that_runs_but_does_not_answer_is_waited_for():
    view = with_broker(cluster([MIG, None, ZK], FLAGGED, -1), 1, process=UP)
    assert codes(decide_restart(view, 1, MIG)) == {"R01"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"in_zookeeper": False}, "R03"),
        ({"in_zookeeper": None}, "R03"),
        ({"listed_by": frozenset({0})}, "R03"),
        ({"listed_by": None}, "R03"),
    ],
)
def test_a_broker_back_in_its_mode_is_not_done_before_it_is_registered_and_known(change, code):
    view = with_broker(cluster([MIG, ZK, ZK], FLAGGED, -1), 0, **change)
    assert codes(decide_restart(view, 0, MIG)) == {code}


def test_a_broker_is_not_done_before_it_is_in_every_isr():
    view = cluster([MIG, ZK, ZK], FLAGGED, -1)
    behind = replace(view, partitions=shrunk(view.partitions, [1, 2]))
    assert codes(decide_restart(behind, 0, MIG)) == {"R05"}


REFUSED = [
    ("no controllers", cluster([ZK, ZK, ZK]), 0, MIG, Refuse, {"P01"}),
    ("not copied", cluster([MIG, MIG, ZK], FLAGGED, -1), 0, KRAFT, Refuse, {"P01"}),
    ("controller without the flag", cluster([ZK, ZK, ZK], (True, True, False), -1), 0, MIG, Refuse, {"G05"}),
    ("controller unresponsive", cluster([ZK, ZK, ZK], (True, True, None), -1), 0, MIG, Wait, {"G23"}),
    ("another broker down", cluster([ZK, None, ZK], FLAGGED, -1), 0, MIG, Wait, {"R01", "S02"}),
    ("old group alive before the last", with_zk(LAST, live_groups=("g",)), 2, KRAFT, Refuse, {"G21"}),
    ("host unreachable", with_broker(PRE, 0, process=Process()), 0, MIG, Wait, {"U04"}),
    ("partitions unread", replace(PRE, partitions=None), 0, MIG, Wait, {"G00"}),
    ("partitions that move", replace(PRE, moving=("orders-3",)), 0, MIG, Wait, {"S04"}),
    ("reassignments unread", replace(PRE, moving=None), 0, MIG, Wait, {"G00"}),
    ("min.insync unread", replace(PRE, min_insync=None), 0, MIG, Wait, {"G00"}),
    ("coordinators unread", computing(PRE, None), 0, MIG, Wait, {"G37", "K02"}),
    ("a sleeping expansion", computing(PRE, ASLEEP), 0, MIG, Refuse, {"G37", "K01"}),
    ("an expansion that one broker knows", computing(HYBRID, HALF), 1, KRAFT, Refuse, {"G37", "K01"}),
    ("coordinators of one broker unread", computing(HYBRID, ONE_UNREAD), 1, KRAFT, Wait, {"G37", "K02"}),
    ("records acknowledged slowly", replace(PRE, probe=SLOW), 0, MIG, Wait, {"G42"}),
    ("records acknowledged slowly, on the way to KRaft", replace(HYBRID, probe=SLOW), 1, KRAFT, Wait, {"G42"}),
    ("stale /migration", with_zk(cluster([ZK, ZK, ZK], FLAGGED), migration=migration(97)), 0, MIG, Refuse, {"P01", "P06"}),
]


@pytest.mark.parametrize(
    ("view", "node", "target", "kind", "expected"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_keeps_a_broker_from_being_stopped(view, node, target, kind, expected):
    decision = decide_restart(view, node, target)
    assert isinstance(decision, kind)
    assert codes(decision) == expected


def test_coordinators_are_read_once_nothing_else_is_in_the_way():
    asks = Cause.COORDINATORS_NOT_ASKED
    assert waits_for(decide_restart(computing(PRE, None), 0, MIG), asks)
    assert not waits_for(decide_restart(computing(replace(PRE, moving=("orders-3",)), None), 0, MIG), asks)
    assert not waits_for(decide_restart(computing(HYBRID, None), 0, KRAFT), asks), "it is there"
    assert decide_restart(computing(PRE, AGREEING), 0, MIG).verb == "restart"


def test_an_isolated_broker_is_restarted_however_slow_the_cluster_is():
    assert decide_restart(replace(cluster([MIG, MIG, ZK], FLAGGED, 90), probe=SLOW), 2, MIG).verb == "restart"


def test_a_probe_that_has_ended_holds_a_restart_though_its_last_figures_are_good():
    quick = replace(SLOW, now=SLOW.before)
    assert decide_restart(replace(PRE, probe=quick), 0, MIG).verb == "restart"
    decision = decide_restart(replace(PRE, probe=replace(quick, age=90.0)), 0, MIG)
    assert [reason.code for reason in decision.reasons] == ["Y05"]


def test_an_isolated_broker_is_restarted_though_the_probe_has_ended():
    isolated = cluster([MIG, MIG, ZK], FLAGGED, 90)
    assert decide_restart(replace(isolated, probe=replace(SLOW, age=90.0)), 2, MIG).verb == "restart"


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize(("flag", "expected"), [(True, None), (False, "G05")])
def test_an_isolated_broker_is_not_restarted_under_a_leader_that_registers_none_in_migration_mode(answers, flag, expected):
    """Before the copy is over: KRaft owns the cluster, and a broker was started as before."""
    view = with_zk(cluster([MIG, MIG, ZK], (flag, True, True), -1), controller=ZkController(3000, 5, ephemeral=False))
    decision = decide_restart(view if answers else with_broker(view, 2, mode=None), 2, MIG)
    assert decision.verb == "restart" if expected is None else codes(decision) == {expected}


def test_an_isolated_broker_is_restarted_whatever_others_compute_with():
    assert decide_restart(computing(cluster([MIG, MIG, ZK], FLAGGED, 90), HALF), 2, MIG).verb == "restart"
    assert decide_restart(computing(cluster([KRAFT, KRAFT, MIG], (False, False, False), 90), None), 2, KRAFT).verb == "restart"


def test_old_groups_may_live_until_the_last_broker_which_every_broker_before_it_says():
    living = {"live_groups": ("g",), "live_members": {"g": LiveMembers(2, 1)}}
    decision = decide_restart(with_zk(HYBRID, **living), 1, KRAFT)
    assert isinstance(decision, Act)
    assert "g (2 ZooKeeper, 1 migrating)" in decision.text
    assert "G21" in decision.text
    assert "first broker is in KRaft mode" not in decision.text
    early = decide_restart(with_zk(HYBRID, live_groups=("g",), live_members={"g": LiveMembers(0, 0, 9.0)}), 1, KRAFT)
    assert "Commits of g fail as soon as the first broker is in KRaft mode" in getattr(early, "text", "")
    assert "G21" not in decide_restart(HYBRID, 1, KRAFT).text
    back = decide_restart(with_zk(PRE, **living), 0, MIG)
    assert isinstance(back, Act)
    assert "G21" not in back.text, "in migration mode every broker stays registered in ZooKeeper"


def test_a_broker_that_was_made_a_zookeeper_broker_again_comes_before_the_last_one():
    """Measured: the controllers still count it as registered; when the last one registers they take over and isolate it."""
    view = with_zk(cluster([ZK, MIG, ZK], FLAGGED, -1), registered=frozenset({0, 1}))
    waits = decide_restart(view, 2, MIG)
    assert isinstance(waits, Wait)
    assert "G22" in {reason.code for reason in waits.reasons}
    assert next_to_roll(view, [2, 0, 1], MIG) == 0, "although it is the ZooKeeper controller"
    assert decide_restart(view, 0, MIG).verb == "restart"
    assert decide_restart(with_zk(view, registered=frozenset({1})), 2, MIG).verb == "restart", "another one is to come"


def test_the_broker_left_behind_is_rolled_although_no_controller_has_the_flag():
    view = cluster([KRAFT, KRAFT, MIG], (False, False, False), 90)
    assert decide_restart(view, 2, KRAFT).verb == "restart"


def test_the_broker_left_behind_is_rolled_after_a_leader_without_the_flag_has_finalized():
    view = cluster([KRAFT, KRAFT, MIG], (False, True, True), 90)
    assert decide_restart(view, 2, KRAFT).verb == "restart"
    standby = decide_restart(cluster([KRAFT, KRAFT, MIG], (True, True, False), 90), 2, KRAFT)
    assert isinstance(standby, Refuse)
    assert {reason.code for reason in standby.reasons} == {"G05"}


@pytest.mark.parametrize(
    ("view", "isolated", "target"),
    [(cluster([KRAFT, MIG, ZK], FLAGGED, 90), 2, MIG), (cluster([KRAFT, KRAFT, MIG], (False,) * 3, 90), 2, KRAFT)],
    ids=["split", "left behind"],
)
def test_no_broker_waits_for_one_that_only_its_own_restart_brings_back(view, isolated, target):
    """It and the others do not know each other, and it takes nobody into the ISRs of what it leads."""
    here = 1 if target is MIG else 0
    led = tuple(replace(row, leader=isolated, isr=(isolated,)) if here in row.replicas else row for row in view.partitions[:1])
    view = replace(view, partitions=(*led, *view.partitions[1:]))
    view = with_broker(view, here, listed_by=frozenset({0, 1}), files=FILES[target])
    assert isinstance(roll.decide_settled(view, view.brokers[here], target), Done)
    away = with_broker(view, here, listed_by=frozenset({here}))
    assert codes(roll.decide_settled(away, away.brokers[here], target)) == {"R03"}, "every other broker counts"


def test_a_broker_left_behind_restarts_although_another_one_keeps_replicas_out():
    """Another left-behind broker adds nobody to the ISRs of what it leads, until its own restart."""
    left = cluster([KRAFT, MIG, MIG], (False,) * 3, 90)
    out = tuple(
        replace(row, leader=2, isr=tuple({1, 2} & set(row.replicas))) if 2 in row.replicas else row for row in left.partitions
    )
    assert roll.may_stop_unhealthy(replace(left, partitions=out), 1).met
    unknown = tuple(
        replace(row, leader=0, isr=tuple({0, 1} & set(row.replicas))) if 2 in row.replicas else row for row in left.partitions
    )
    assert not roll.may_stop_unhealthy(replace(left, partitions=unknown), 1).met


def test_brokers_left_behind_are_behind_the_first_roll_and_none_of_them_bakes():
    view = cluster([KRAFT, MIG, ZK], (False, True, True), 90)
    assert next_to_roll(view, [0, 1, 2], MIG) is None
    assert isinstance(decide_restart(view, 1, MIG), Done)
    assert next_to_roll(view, [0, 1, 2], KRAFT) == 1
    assert not is_canary(view, 0, KRAFT), "the others' recovery is not held up by their own alarm"
    assert not is_first(cluster([MIG, MIG, ZK], (False, True, True), 90), 0, KRAFT)


def test_a_zookeeper_broker_isolated_by_kraft_is_rolled_into_migration_mode():
    view = cluster([MIG, MIG, ZK], FLAGGED, 90)
    assert decide_restart(view, 2, MIG).verb == "restart"
    out = tuple(
        replace(p, isr=tuple(b for b in p.isr if b != 2), leader=0 if p.leader == 2 else p.leader) for p in view.partitions
    )
    assert decide_restart(replace(view, partitions=out), 2, MIG).verb == "restart", "out of its ISRs, as any isolated broker"


@pytest.mark.parametrize(
    ("rf", "min_insync", "state"),
    [(3, 2, GateState.MET), (3, 3, GateState.MET), (3, 1, GateState.MET), (1, 1, GateState.MET), (2, 1, GateState.MET)],
)
def test_partitions_that_can_never_allow_a_stop_do_not_block(rf, min_insync, state):
    view = replace(PRE, partitions=partitions([0, 1, 2], rf=rf), min_insync={"t": min_insync})
    assert may_stop(view, (0,)).state is state


def test_two_brokers_of_one_partition_do_not_stop_together():
    assert may_stop(PRE, (0, 1)).state is GateState.NEVER


def test_the_zookeeper_controller_goes_last():
    view = with_zk(PRE, controller=ZkController(0, -1, ephemeral=True))
    assert next_to_roll(view, (0, 1, 2), MIG) == 1
    assert why_postponed(view, 0, (0, 1, 2), MIG) == "Broker 0 is the ZooKeeper controller: it restarts last."
    assert not why_postponed(view, 1, (0, 1, 2), MIG)
    assert not why_postponed(
        with_zk(cluster([ZK, MIG, MIG], FLAGGED, -1), controller=ZkController(0, -1, ephemeral=True)), 0, (0, 1, 2), MIG
    )


def test_a_broker_that_goes_after_those_rolled_back_is_not_called_the_controller():
    """The canary failed, and the operator reads closely."""
    view = with_zk(cluster([MIG, ZK, ZK], FLAGGED, -1), rolled_back={1: ZK}, controller=ZkController(0, -1, ephemeral=True))
    assert "(1) were rolled back" in why_postponed(view, 2, (0, 1, 2), MIG)
    assert "ZooKeeper controller" not in why_postponed(view, 2, (0, 1, 2), MIG)
    assert not why_postponed(view, 1, (0, 1, 2), MIG)


def test_a_broker_under_way_goes_first():
    assert next_to_roll(cluster([ZK, ZK, None], FLAGGED, -1), (0, 1, 2), MIG) == 2


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_roll_finishes_and_never_takes_a_partition_below_min_insync(data):
    """Random layouts, random start; after each step the plan is made again from what is there."""
    size = data.draw(st.integers(1, 6))
    rf = data.draw(st.integers(1, size))
    target = data.draw(st.sampled_from([MIG, KRAFT]))
    old, offset = (ZK, -1) if target is MIG else (MIG, 90)
    done = data.draw(st.integers(0, size))
    modes = [target if node < done else old for node in range(size)]
    controller_broker = data.draw(st.integers(0, size - 1))
    rows = partitions(range(size), data.draw(st.integers(1, 12)), rf)
    need = data.draw(st.integers(1, rf))
    rolled = []
    for _ in range(size * 3 + 1):
        view = replace(cluster(modes, FLAGGED, offset), partitions=_led(rows, modes), min_insync={"t": need})
        if target is MIG:
            view = with_zk(view, controller=ZkController(controller_broker, -1, ephemeral=True))
        for down in (n for n in range(size) if modes[n] is None):
            view = with_broker(view, down, files=FILES[target])
        node = next_to_roll(view, range(size), target)
        if node is None:
            break
        decision = decide_restart(view, node, target)
        if isinstance(decision, Act) and decision.verb == "restart":
            rolled.append(node)
            assert all(len(set(p.isr) - {node}) >= need for p in view.partitions if node in p.replicas and rf > need)
            modes[node] = None
        elif isinstance(decision, Act):
            modes[node] = target
    assert modes == [target] * size
    assert len(rolled) == len(set(rolled)) == size - done
    if target is MIG and controller_broker in rolled:
        assert rolled[-1] == controller_broker


def _led(rows, modes):
    return shrunk(rows, [node for node, mode in enumerate(modes) if mode is not None])


def test_a_roll_of_one_broker_with_one_replica_each_is_possible():
    view = replace(cluster([ZK], FLAGGED, -1), partitions=(Partition("t", 0, 0, (0,), (0,)),), min_insync={"t": 1})
    assert decide_restart(view, 0, MIG).verb == "restart"


def test_a_broker_missing_from_the_view_is_waited_for():
    view = replace(PRE, brokers={0: broker(0, ZK, [0, 1]), 1: broker(1, ZK, [0, 1])})
    assert isinstance(decide_restart(view, 2, MIG), Wait)


def test_a_stopped_process_is_not_taken_for_an_unresponsive_one():
    view = with_broker(PRE, 0, process=DOWN, mode=None)
    assert codes(decide_restart(view, 0, MIG)) == {"R01"}


def test_a_broker_that_a_killed_run_left_down_is_started_though_the_others_go_on_listing_it():
    """Brokers in migration mode list one that was stopped for as long as it was watched (a quarter of an hour)."""
    files = NodeFiles({"process.roles": "broker", "node.id": "1"})
    view = with_broker(HYBRID, 1, process=DOWN, mode=None, in_zookeeper=False, listed_by=frozenset({0, 2}), files=files)
    assert decide_restart(view, 1, KRAFT).verb == "start"


@pytest.mark.parametrize(
    ("isr", "min_insync", "short"),
    [
        ((0, 1, 2), 2, False),
        ((0, 1), 2, True),
        ((0, 1), 1, False),
        ((0,), 1, True),
        ((0, 1), 0, False),
        ((0,), 0, True),  # one in-sync replica is needed whatever the topic's setting says
        ((0,), 3, False),  # it asks for all replicas: no broker could ever stop
        ((0, 1, 2), None, True),  # unread: all are needed
        ((1, 2), None, True),
    ],
)
def test_how_many_in_sync_replicas_a_stop_of_broker_0_must_leave(isr, min_insync, short):
    assert roll._falls_below_min_insync(Partition("t", 0, 1, (0, 1, 2), isr), {0}, min_insync) is short


def test_a_broker_without_a_replica_leaves_nothing_short():
    assert not roll._falls_below_min_insync(Partition("t", 0, 1, (0, 1), (1,)), {2}, 2)
