"""What each wait waits for, provision and finalization of one controller, identity, and preferred leaders."""

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
    Age,
    ClusterView,
    NodeFiles,
    NoProbe,
    Partition,
    ProbeFigures,
    Process,
    ProduceLatency,
    Quorum,
    ServiceUnit,
    Stored,
    StoredKind,
    TopicMetadata,
)
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration import waits
from airflow_provider_kmigrate.core.migration.controllers import (
    SETTLES_WITHIN,
    VERDICT_HOLDS,
    ApprovedState,
    compares_before_finalizing,
    decide_finalize,
    decide_provision,
    expired_audit_reason,
    may_begin_finalization,
    why_restarted_last,
)
from airflow_provider_kmigrate.core.migration.gates import GateState, wrong_cluster_reasons
from airflow_provider_kmigrate.core.migration.roll import (
    decide_preferred_leaders,
    next_election_batch,
    skipped_by_takeover,
    without_preferred_leader,
)
from tests.core.views import (
    AGREEING,
    ASLEEP,
    BARE,
    DOWN,
    DUAL,
    DUAL_ZK,
    DUAL_ZK_EARLIER,
    FILES,
    FLAGGED,
    KRAFT,
    MIG,
    ONE_UNREAD,
    PRE,
    UP,
    ZK,
    cluster,
    computing,
    controller,
    migration,
    readable,
    with_broker,
    with_controller,
    with_zk,
)

LED_BY_ANOTHER = replace(DUAL, quorum=replace(DUAL.quorum, leader_id=3001))
DUAL_BEFORE = cluster([KRAFT, KRAFT, KRAFT], FLAGGED, 80)
FINAL = cluster([KRAFT, KRAFT, KRAFT], BARE, 90)
OVER = cluster([KRAFT, KRAFT, KRAFT], (False, True, True), 90)  # the leader has no flag, others have one left
LEFT = cluster([KRAFT, KRAFT, MIG], BARE, 90)
BEGUN = cluster([KRAFT, KRAFT, KRAFT], (True, False, True), 90)
LEADERLESS = (Partition("t", 0, -1, (0,), (0,)),)
FLAG_FILE = NodeFiles(
    {"process.roles": "controller", "zookeeper.metadata.migration.enable": "true"}, has_metadata_log=True, edited=()
)
BARE_FILE = NodeFiles({"process.roles": "controller"}, has_metadata_log=True, edited=())
STORED = {kind: Stored({}) for kind in StoredKind}
ID = "q1Sh-9_ISia_zwGINzRvyQ"


def aged(view, least):
    """The view, whose ZooKeeper clock also shows how long ago /migration was written."""
    return with_zk(view, migration=replace(view.zk.migration, age=Age(least, least + 0.1)))


def following(behind):
    """Controller 3000 was restarted without its flag, and is so many records behind."""
    view = with_zk(cluster([KRAFT, KRAFT, KRAFT], (False, True, True), 90), unflagged=frozenset({3000}))
    voters = {**view.quorum.voters, 3000: view.quorum.high_watermark - behind}
    return replace(view, quorum=replace(view.quorum, leader_id=3001, voters=voters))


def outcome(decision):
    return type(decision), [reason.code for reason in getattr(decision, "reasons", ())]


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (waits.decide_controllers_ready(PRE), (Done, [])),
        (waits.decide_controllers_ready(cluster([ZK, ZK, ZK], FLAGGED, None)), (Wait, ["P11"])),
        (waits.decide_controllers_ready(cluster([ZK, ZK, ZK], (True, True, None), -1)), (Wait, ["G23"])),
        (waits.decide_controllers_ready(cluster([ZK, ZK, ZK], (True, True, False), -1)), (Refuse, ["G05"])),
        (waits.decide_controllers_ready(with_zk(PRE, migration=migration(97))), (Refuse, ["P06"])),
        (waits.decide_controllers_ready(replace(PRE, quorum=None)), (Wait, ["G20"])),
        (waits.decide_controllers_ready(FINAL), (Done, [])),
        (waits.decide_brokers_registered(PRE, frozenset({0, 1, 2})), (Done, [])),
        (waits.decide_brokers_registered(PRE, frozenset({0, 1, 2, 3})), (Wait, ["R03"])),
        (waits.decide_brokers_registered(with_broker(PRE, 1, listed_by=frozenset({1})), frozenset({0, 1, 2})), (Wait, ["R03"])),
        (waits.decide_brokers_registered(ClusterView(0.0), frozenset({0})), (Wait, ["G00"])),
        (waits.decide_copied(DUAL_ZK, DUAL_ZK_EARLIER), (Done, [])),
        (waits.decide_copied(DUAL_ZK, DUAL_ZK), (Wait, ["G07"])),
        (waits.decide_copied(aged(DUAL_ZK, 0.0), DUAL_ZK), (Wait, ["G07"])),  # the leader's first write is no dual-write yet
        (waits.decide_copied(cluster([MIG, MIG, MIG], FLAGGED, -1), DUAL_ZK_EARLIER), (Wait, ["P11"])),
        (
            waits.decide_copied(cluster([MIG, MIG, MIG], (False, True, True), -1), DUAL_ZK_EARLIER),
            (Wait, ["G05", "P11"]),
        ),  # it never ends
        (waits.decide_copied(PRE, PRE), (Refuse, ["P01"])),
        (waits.decide_copied(replace(DUAL_ZK, partitions=LEADERLESS), DUAL_ZK_EARLIER), (Act, [])),
        (waits.decide_copied(replace(DUAL_ZK, partitions=None), DUAL_ZK_EARLIER), (Wait, ["G00"])),
        (waits.decide_copied(FINAL, FINAL), (Done, [])),
        (waits.decide_lag_small(DUAL_ZK, DUAL_ZK_EARLIER, 5), (Done, [])),
        (waits.decide_lag_small(DUAL_ZK, DUAL_ZK_EARLIER, 0), (Wait, ["G07"])),
        (waits.decide_lag_small(FINAL, FINAL, 0), (Done, [])),
        (waits.decide_equivalence(replace(DUAL_ZK, topics=({}, {}), stored=STORED)), (Done, [])),
        (waits.decide_equivalence(DUAL_ZK), (Wait, ["G00", "G00"])),
        (waits.decide_equivalence(replace(DUAL_ZK, topics=({}, {}))), (Wait, ["G00"])),
        (waits.decide_equivalence(replace(DUAL_ZK, stored=STORED)), (Wait, ["G00"])),
        (
            waits.decide_equivalence(replace(DUAL_ZK, topics=({}, {"t": TopicMetadata("t", "id", {})}), stored=STORED)),
            (Wait, ["E02"]),
        ),
        (waits.decide_copied(OVER, OVER), (Done, [])),
        (waits.decide_lag_small(OVER, OVER, 0), (Done, [])),
        (waits.decide_equivalence(OVER), (Done, [])),
        (waits.decide_copied(LEFT, LEFT), (Done, [])),
        (waits.decide_lag_small(LEFT, LEFT, 0), (Done, [])),
        (waits.decide_equivalence(LEFT), (Done, [])),
        (waits.decide_equivalence(BEGUN), (Wait, ["G00", "G00"])),
        (waits.decide_finalized(replace(FINAL, taken_at=110.0), FINAL), (Done, [])),
        (waits.decide_finalized(FINAL, FINAL), (Wait, ["T01"])),
        (waits.decide_finalized(replace(FINAL, taken_at=110.0), cluster([KRAFT], BARE, 80)), (Wait, ["T03"])),
        (waits.decide_finalized(aged(FINAL, 1.5), FINAL), (Done, [])),
        (waits.decide_finalized(aged(FINAL, 1.4), FINAL), (Wait, ["T01"])),
        (waits.decide_finalized(LEFT, FINAL), (Refuse, ["P02"])),
        (waits.decide_finalized(replace(FINAL, zk=None), replace(FINAL, zk=None)), (Done, [])),
    ],
)
def test_wait(decision, expected):
    assert outcome(decision) == expected


@pytest.mark.parametrize(
    ("view", "state"),
    [
        (DUAL, GateState.MET),
        (DUAL_ZK, GateState.NEVER),
        (cluster([KRAFT, KRAFT, None], FLAGGED, 90), GateState.NOT_YET),
        (with_controller(DUAL, 3001, answers=False, migration_flag=None), GateState.NOT_YET),
        (replace(DUAL, client_metrics=("s",)), GateState.NEVER),
        (replace(DUAL, client_metrics=None), GateState.NOT_YET),
        (replace(DUAL, zk=None), GateState.NOT_YET),
        (with_zk(DUAL, broker_ids=(1,)), GateState.NOT_YET),
        (replace(DUAL, partitions=tuple(replace(row, isr=row.isr[:2]) for row in DUAL.partitions)), GateState.NOT_YET),
        (with_broker(DUAL, 1, listed_by=frozenset({1})), GateState.NOT_YET),
        (with_zk(DUAL, live_groups=("g",)), GateState.NOT_YET),
        (with_zk(DUAL, controller_epoch=None), GateState.NOT_YET),
        (with_broker(DUAL, 1, files=NodeFiles(FILES[ZK])), GateState.NEVER),
        (with_broker(DUAL, 1, files=NodeFiles()), GateState.MET),  # its host was not asked, or did not answer
        (with_controller(DUAL, 3001, files=BARE_FILE), GateState.NEVER),
        (computing(DUAL, None), GateState.MET),  # read from time to time
        (computing(DUAL, AGREEING), GateState.MET),
        (computing(DUAL, ASLEEP), GateState.NEVER),
        (computing(DUAL, ONE_UNREAD), GateState.MET),  # read again in the next observation, and once more at the end
    ],
)
def test_soaking_needs_every_gate(view, state):
    assert waits.may_soak(view, DUAL_BEFORE).state is state


@pytest.mark.parametrize(
    ("view", "state"),
    [
        (DUAL, GateState.MET),
        (with_broker(DUAL, 1, files=NodeFiles(FILES[ZK])), GateState.NEVER),
        (with_broker(DUAL, 1, files=NodeFiles()), GateState.NOT_YET),
        (with_controller(DUAL, 3001, files=NodeFiles()), GateState.NOT_YET),
        (with_controller(DUAL, 3001, process=replace(UP, at_boot=True)), GateState.MET),
        (with_controller(DUAL, 3001, process=replace(UP, at_boot=False)), GateState.NOT_YET),
        (computing(DUAL, None), GateState.NOT_YET),
        (computing(DUAL, ASLEEP), GateState.NEVER),
        (with_broker(DUAL, 1, process=replace(UP, at_boot=False)), GateState.MET),  # its administrator's matter
    ],
)
def test_a_soak_ends_if_a_reboot_would_change_nothing(view, state):
    assert waits.may_end_soak(readable(view, written=False), DUAL_BEFORE).state is state


def test_the_end_of_a_migration_names_the_units_that_a_stop_of_zookeeper_would_stop():
    unit = ServiceUnit({"Requires": "system.slice zookeeper.service"})
    tied = with_broker(replace(FINAL, taken_at=110.0), 1, process=replace(UP, unit=unit))
    decision = waits.decide_finalized(tied, FINAL)
    assert isinstance(decision, Done)
    assert "systemd would stop broker 1 (Requires=zookeeper.service) with it: [W23]." in str(decision)
    assert "W23" not in str(waits.decide_finalized(replace(FINAL, taken_at=110.0), FINAL))


DOWN_FRESH = {"process": DOWN, "answers": False, "migration_flag": None, "files": NodeFiles({}, {}, has_metadata_log=False)}
DOWN_USED = {**DOWN_FRESH, "files": FLAG_FILE}
DOWN_BARE = {**DOWN_FRESH, "files": BARE_FILE}


@pytest.mark.parametrize(
    ("view", "verb"),
    [
        (with_controller(cluster([ZK, ZK, ZK], (None,) * 3), 3000, **DOWN_FRESH), "provision"),
        (with_controller(PRE, 3000, **DOWN_FRESH), "provision"),
        (with_controller(PRE, 3000, **DOWN_USED), "start"),
        (with_controller(DUAL, 3000, **DOWN_USED), "start"),
        (with_controller(LED_BY_ANOTHER, 3000, **DOWN_BARE), "reflag"),
        (with_controller(FINAL, 3000, **DOWN_BARE), "start"),
        (with_controller(DUAL, 3000, files=BARE_FILE), "rewrite"),  # it runs with the flag, its next start would be without
    ],
)
def test_what_is_done_to_a_controller_that_is_down(view, verb):
    assert decide_provision(view, 3000, ID).verb == verb


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (PRE, (Done, [])),
        (FINAL, (Done, [])),
        (cluster([ZK, ZK, ZK], (False, True, True)), (Refuse, ["G44"])),
        (with_controller(DUAL, 3000, **DOWN_FRESH), (Refuse, ["R11"])),
        (with_controller(with_zk(PRE, migration=migration(97)), 3000, **DOWN_FRESH), (Refuse, ["P01", "P06"])),
        (with_controller(cluster([ZK, ZK, ZK], (None,) * 3), 3000, **DOWN_USED), (Refuse, ["G04"])),
        # A rollback has handed the cluster over and is not at its end.
        (with_controller(cluster([MIG, MIG, MIG], (None,) * 3), 3000, **DOWN_USED), (Refuse, ["G04"])),
        (with_controller(cluster([MIG, ZK, ZK], (None,) * 3), 3000, **DOWN_USED), (Refuse, ["G04"])),
        (with_controller(cluster([MIG, MIG, MIG], (None, True, None), -1), 3000, **DOWN_USED), (Refuse, ["G04"])),
        (LEFT, (Done, [])),
        (with_controller(PRE, 3000, answers=False, migration_flag=None, process=UP, files=NodeFiles()), (Wait, ["G23"])),
        (with_controller(PRE, 3000, files=NodeFiles()), (Wait, ["G00"])),
        (with_controller(cluster([KRAFT] * 3, (None,) * 3, 90), 3000, **DOWN_BARE), (Refuse, ["R12"])),
        (with_controller(DUAL, 3000, **DOWN_BARE), (Wait, ["R12"])),  # it led, and no later leader is known
        (with_controller(with_zk(LED_BY_ANOTHER, migration=migration(90, epoch=4)), 3000, **DOWN_BARE), (Wait, ["R12"])),
        (with_controller(PRE, 3000, answers=False, migration_flag=None, process=UP, files=FLAG_FILE), (Done, [])),
        (with_controller(replace(PRE, zk=None), 3000, **DOWN_FRESH), (Wait, ["P01", "U01"])),
    ],
)
def test_when_a_controller_is_not_touched(view, expected):
    assert outcome(decide_provision(view, 3000, ID)) == expected


@pytest.mark.parametrize("view", [OVER, LEFT], ids=["a flag left over", "a broker left behind"])
def test_a_controller_is_started_as_it_is_once_the_migration_has_ended(view):
    assert decide_provision(with_controller(view, 3001, **DOWN_BARE), 3001, ID).verb == "start"


def test_a_first_roll_that_is_noted_is_no_unfinished_rollback():
    view = with_zk(cluster([MIG, ZK, ZK], (None, True, True), -1), registered=frozenset({0}))
    assert decide_provision(with_controller(view, 3000, **DOWN_USED), 3000, ID).verb == "start"


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (FINAL, (Done, [])),
        (OVER, (Done, [])),
        (DUAL, None),
        (BEGUN, (Refuse, ["G05"])),
        (with_zk(BEGUN, unflagged=frozenset({3000})), (Refuse, ["G05"])),
        (with_zk(BEGUN, unflagged=frozenset({3001})), (Done, [])),
        (replace(cluster([KRAFT, KRAFT, KRAFT], (None, False, None), 90), quorum=None), (Refuse, ["G05"])),
    ],
)
def test_a_lost_flag_makes_up_for_no_soak_and_a_finalization_of_our_own_does(view, expected):
    past = waits.decide_past_soak(view)
    assert (past and outcome(past)) == expected


def test_a_directory_of_another_cluster_is_never_formatted():
    files = NodeFiles({}, {"/data": {"cluster.id": "another"}}, has_metadata_log=False)
    view = with_controller(PRE, 3000, **{**DOWN_FRESH, "files": files})
    assert outcome(decide_provision(view, 3000, ID)) == (Refuse, ["I01"])


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (DUAL_ZK, (Refuse, ["P01"])),
        (cluster([ZK, ZK, ZK], (False, True, True), -1), (Refuse, ["P01"])),
        (cluster([ZK, ZK, ZK], (None,) * 3), (Refuse, ["P01"])),
        (cluster([KRAFT, KRAFT, MIG], FLAGGED, 90), (Refuse, ["P01"])),
        (cluster([KRAFT, KRAFT, None], FLAGGED, 90), (Wait, ["P01", "R01"])),
        (with_controller(DUAL, 3001, answers=False, migration_flag=None), (Wait, ["G23"])),
        (replace(DUAL, partitions=LEADERLESS), (Wait, ["G13", "G34", "S02"])),
        (replace(DUAL, partitions=LEADERLESS, topics=None), (Wait, ["G13", "G34", "S02"])),
        (with_controller(DUAL, 3000, process=Process()), (Wait, ["U04", "U04"])),  # whether it runs, and starts at boot
        (with_controller(FINAL, 3000, answers=False, process=UP), (Wait, ["G23"])),
        (FINAL, (Done, [])),
        (with_controller(FINAL, 3000, files=NodeFiles()), (Wait, ["G00"])),
        (with_broker(DUAL, 1, files=NodeFiles(FILES[ZK])), (Wait, ["O06"])),
        (with_controller(DUAL, 3001, files=BARE_FILE), (Wait, ["O06"])),
        (with_controller(DUAL, 3001, process=replace(UP, at_boot=False)), (Wait, ["O07"])),
        (with_zk(DUAL, broker_ids=(1,)), (Wait, ["G22"])),
        (following(1001), (Wait, ["G20"])),
        (following(1000), (Done, [])),
    ],
)
def test_when_a_controller_is_not_finalized(view, expected):
    assert outcome(decide_finalize(equal(view), DUAL_BEFORE, 3000)) == expected


QUICK = {"kmigrate-probe-0": ProduceLatency(5.0, 0.010)}
SLOW = ProbeFigures(1.0, QUICK, {"kmigrate-probe-0": ProduceLatency(5.0, 2.0)})


@pytest.mark.parametrize(
    ("probe", "seconds", "expected"),
    [
        (SLOW, 0.0, (Wait, ["G42"])),
        (SLOW, SETTLES_WITHIN, (Wait, ["G42"])),
        (SLOW, SETTLES_WITHIN + 0.1, (Act, [])),
        (replace(SLOW, now=QUICK), 0.0, (Act, [])),
        (replace(SLOW, age=11.0), 0.0, (Wait, ["T01"])),
        (replace(SLOW, age=61.0), 0.0, (Act, [])),
        (NoProbe(), 0.0, (Act, [])),
        (None, 0.0, (Wait, ["G00"])),
    ],
)
def test_a_controller_waits_half_a_minute_at_most_for_producers_that_the_one_before_slowed_down(probe, seconds, expected):
    view = equal(replace(DUAL, probe=probe))
    began = view.taken_at - seconds
    assert outcome(decide_finalize(view, DUAL_BEFORE, 3000, began=began)) == expected
    compares = compares_before_finalizing(view, DUAL_BEFORE, 3000, began)
    assert compares is (expected[0] is Act), "both sides are not read whole, again and again, for a restart that waits"


def test_nothing_else_that_holds_a_controller_is_hidden_by_slow_producers():
    view = equal(replace(DUAL, probe=SLOW, partitions=LEADERLESS))
    assert "G13" in outcome(decide_finalize(view, DUAL_BEFORE, 3000, began=view.taken_at))[1]


def test_a_finalization_that_was_interrupted_after_its_file_goes_on():
    view = equal(with_controller(DUAL, 3000, files=BARE_FILE))
    assert outcome(decide_finalize(view, DUAL_BEFORE, 3000)) == outcome(decide_finalize(equal(DUAL), DUAL_BEFORE, 3000))


def test_a_finalization_that_was_interrupted_at_the_one_that_leads_now_goes_on_with_the_others():
    """It is restarted last, so the others must not wait for it."""
    view = equal(with_controller(with_zk(LED_BY_ANOTHER, unflagged=frozenset({3001})), 3001, files=BARE_FILE))
    assert why_restarted_last(view, 3001)
    assert decide_finalize(view, DUAL_BEFORE, 3000).verb == "restart"
    assert outcome(decide_finalize(with_zk(view, unflagged=frozenset({3002})), DUAL_BEFORE, 3000)) == (Wait, ["O06"])


def equal(view):
    """Both sides were read, and hold the same."""
    return readable(replace(view, topics=({}, {}), stored=STORED, state_epoch=5), written=False)


FENCED = with_broker(DUAL, 1, listed_by=frozenset({1}))
LESS = tuple(replace(row, isr=row.isr[:2]) for row in DUAL.partitions)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (equal(with_zk(DUAL, migration=migration(80))), (Wait, ["G34", "G07"])),
        (equal(replace(DUAL, quorum=replace(DUAL.quorum, high_watermark=900))), (Wait, ["G34", "G07"])),
        (equal(replace(DUAL, partitions=LESS)), (Wait, ["G34", "S02"])),
        (equal(FENCED), (Wait, ["G34", "R03"])),
        (with_zk(equal(DUAL), controller_epoch=None), (Wait, ["G34", "G00"])),
        (replace(equal(DUAL), state_epoch=None), (Wait, ["G34", "G00"])),
        (equal(with_zk(DUAL, live_groups=("g",))), (Wait, ["G34", "G21"])),
        (equal(replace(DUAL, moving=("orders-3",))), (Wait, ["G34", "S04"])),
        (equal(replace(DUAL, moving=None)), (Wait, ["G34", "G00"])),
        (replace(BEGUN, moving=("orders-3",), quorum=replace(BEGUN.quorum, leader_id=3001)), (Act, [])),  # it is over
        (DUAL, (Wait, ["G34", *["G00"] * 6])),
        (replace(equal(DUAL), topics=({}, {"t": TopicMetadata("t", "id", {})})), (Wait, ["G34", "E02"])),
        (BEGUN, (Wait, ["G34", *["G00"] * 6])),
        (with_zk(equal(BEGUN), migration=migration(90, epoch=4)), (Wait, ["G34", "G07", "R12"])),  # it may be over, or may not
        (replace(BEGUN, quorum=replace(BEGUN.quorum, leader_id=3001)), (Act, [])),  # it is over
        (equal(DUAL), (Act, [])),
    ],
)
def test_nothing_is_finalized_on_what_is_not_as_it_was_approved(view, expected):
    assert outcome(decide_finalize(replace(view, taken_at=DUAL_BEFORE.taken_at + 3), DUAL_BEFORE, 3000)) == expected


@pytest.mark.parametrize(("after", "expected"), [(0.3, (Wait, ["T01"])), (3.0, (Wait, ["G34", "G07"]))])
def test_a_dual_write_that_has_had_no_time_to_move_is_no_alarm(after, expected):
    view = replace(equal(with_zk(DUAL, migration=migration(80))), taken_at=DUAL_BEFORE.taken_at + after)
    assert outcome(decide_finalize(view, DUAL_BEFORE, 3000)) == expected
    assert not decide_finalize(view, DUAL_BEFORE, 3000).healthy or after < 1, "only the first moment is without worry"


def test_what_changed_since_the_approval_is_said():
    same = waits.decide_equivalence(equal(DUAL)).text
    assert "Changed since" not in decide_finalize(equal(DUAL), DUAL_BEFORE, 3000, ApprovedState(same)).text
    other = ApprovedState(f"{same} Another topic.")
    assert "Changed since the approval" in decide_finalize(equal(DUAL), DUAL_BEFORE, 3000, other).text


def test_a_finalization_acts_and_goes_on():
    assert decide_finalize(equal(DUAL), DUAL_BEFORE, 3000).verb == "restart"
    assert decide_finalize(with_controller(FINAL, 3000, files=FLAG_FILE), FINAL, 3000).verb == "rewrite"
    assert decide_finalize(with_controller(DUAL, 3000, **DOWN_BARE), DUAL, 3000).verb == "start"


def test_no_restart_of_the_leader_is_advised_while_a_standby_without_the_flag_might_win_it():
    missing = ({}, {"t": TopicMetadata("t", "id", {})})
    advice = [
        " ".join(map(str, decide_finalize(replace(equal(view), topics=missing), DUAL_BEFORE, 3000).reasons))
        for view in (DUAL, BEGUN)
    ]
    assert "More: E02" in advice[0]
    assert "E02 in the runbook" not in advice[1]
    assert "Do not restart a controller" in advice[1]


@pytest.mark.parametrize(
    ("view", "old", "state"),
    [
        (DUAL, True, GateState.NEVER),
        (DUAL, False, GateState.MET),
        (BEGUN, True, GateState.NEVER),  # another tool took that flag
        (with_zk(BEGUN, unflagged=frozenset({3001})), True, GateState.MET),
        (
            with_zk(cluster([KRAFT] * 3, (True, None, True), 90), unflagged=frozenset({3001})),
            True,
            GateState.MET,
        ),  # down, and ours
        (with_zk(DUAL, unflagged=frozenset({3001})), True, GateState.NEVER),  # noted, and nothing done
        (with_zk(cluster([KRAFT] * 3, (True, False, False), 90), unflagged=frozenset({3001})), True, GateState.NEVER),
        (replace(BEGUN, zk=None), True, GateState.NOT_YET),
        (FINAL, True, GateState.MET),
        (replace(FINAL, zk=None), True, GateState.MET),
    ],
)
def test_a_finalization_begins_on_an_audit_that_is_not_too_old(view, old, state):
    now = 10_000_000.0
    gate = may_begin_finalization(view, now - (VERDICT_HOLDS + 1 if old else 60), now)
    assert gate.state is state
    assert may_begin_finalization(view, None, now).met, "without an audit"
    if state is GateState.NEVER:
        assert [reason.code for reason in gate.reasons] == ["H06"]


@pytest.mark.parametrize(
    ("judged_at", "fine"),
    [
        (None, True),
        (100_000.0, True),
        (100_000.0 - VERDICT_HOLDS, True),
        (100_000.0 - VERDICT_HOLDS - 1, False),
        (100_200.0, True),
        (100_301.0, False),
        (1e300, False),
    ]
    + [(said, False) for said in (float("nan"), float("inf"), float("-inf"), -1, 0, True, "99999", [], {})],
)
def test_an_old_audit_is_not_acted_on(judged_at, fine):
    old = expired_audit_reason(judged_at, 100_000.0)
    assert (old is None) is fine
    assert old is None or (old.code == "H06" and "fresh evidence" in old.next_step), "an XCom may say anything"


@pytest.mark.parametrize(
    ("so_far", "kept"),
    [
        (None, False),
        (PRE, False),
        (with_zk(DUAL_ZK, migration=None), False),
        (cluster([MIG, MIG, MIG], FLAGGED, -1), False),
        (cluster([MIG, MIG, MIG], FLAGGED, 0), False),
        (cluster([MIG, MIG, MIG], FLAGGED, 1), True),
        (DUAL_ZK_EARLIER, True),
    ],
)
def test_the_dual_write_must_move_since_the_first_observation_of_a_finished_copy(so_far, kept):
    assert waits.first_view_after_copy(so_far, DUAL_ZK) is (so_far if kept else DUAL_ZK)


def test_the_active_controller_is_finalized_last():
    assert why_restarted_last(DUAL, 3000) == "Controller 3000 is the active one: it is restarted last, after 3001, 3002."
    assert not why_restarted_last(DUAL, 3001)
    last = replace(
        DUAL, controllers={3000: controller(3000), 3001: controller(3001, flag=False)}, quorum=Quorum(3000, 5, 1, {}, {})
    )
    assert not why_restarted_last(last, 3000)


SPEC = ClusterSpec("c", ID, "z", "k", (), ())


@pytest.mark.parametrize(
    ("view", "codes"),
    [
        (PRE, []),
        (with_zk(PRE, cluster_id="another"), ["I01"]),
        (replace(PRE, kafka_cluster_id="another"), ["I01"]),
        (with_broker(PRE, 0, files=NodeFiles(meta={"/d": {"cluster.id": "another"}})), ["I01"]),
        (with_broker(PRE, 0, files=NodeFiles(meta={"/d": {"cluster.id": ID}, "/e": {}})), []),
        (ClusterView(0.0), ["G00"]),
    ],
)
def test_another_cluster_is_never_acted_on(view, codes):
    assert [reason.code for reason in wrong_cluster_reasons(view, SPEC)] == codes


MOVED = (*(Partition("t", p, 1, (0, 1), (0, 1)) for p in range(30)), Partition("t", 30, 1, (0, 1), (1,)))


def test_leaders_are_brought_back_in_batches_that_stay_few():
    view = replace(PRE, partitions=MOVED)
    assert len(without_preferred_leader(view)) == 30, "a replica out of the ISR cannot lead"
    assert len(next_election_batch(view, 5, 30)) == 5
    assert len(next_election_batch(view, 5, 240)) == 12
    assert decide_preferred_leaders(view).verb == "elect"
    assert isinstance(decide_preferred_leaders(PRE), Done)
    assert isinstance(decide_preferred_leaders(replace(PRE, partitions=None)), Wait)


def test_partitions_of_a_broker_that_miss_only_a_leader():
    view = replace(DUAL_ZK, partitions=LEADERLESS)
    assert skipped_by_takeover(view, 0) == LEADERLESS
    assert skipped_by_takeover(view, 1) == skipped_by_takeover(DUAL_ZK, 0) == ()
    catching_up = Partition("t", 1, 1, (1, 0), (1,))
    assert skipped_by_takeover(replace(view, partitions=(*LEADERLESS, catching_up)), 0) == (), "waiting may help"
    assert skipped_by_takeover(replace(PRE, partitions=LEADERLESS), 0) == (), "ZooKeeper's controller elects"
    assert skipped_by_takeover(replace(view, partitions=None), 0) == ()


@pytest.mark.parametrize(
    ("view", "before", "controller_id", "worth"),
    [
        (DUAL, DUAL_BEFORE, 3001, True),
        (DUAL, DUAL_BEFORE, 3000, True),  # whose turn it is, is asked elsewhere
        (DUAL, DUAL, 3001, False),  # the dual-write was not seen to move
        (with_controller(DUAL, 3001, migration_flag=False), DUAL_BEFORE, 3001, False),  # its turn is over
        (with_controller(DUAL, 3001, migration_flag=None), DUAL_BEFORE, 3001, True),
        (with_controller(DUAL, 3001, answers=False), DUAL_BEFORE, 3001, False),
        (with_controller(DUAL, 3002, answers=False), DUAL_BEFORE, 3001, False),
        (cluster([KRAFT, KRAFT, MIG], FLAGGED, 90), DUAL_BEFORE, 3001, False),
        (FINAL, DUAL_BEFORE, 3001, False),
    ],
)
def test_both_sides_are_read_whole_only_if_nothing_else_is_left_to_allow_a_finalization(view, before, controller_id, worth):
    assert compares_before_finalizing(view, before, controller_id) is worth
