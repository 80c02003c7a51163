"""What the watch reports, at once or if it stays, and when it reports nothing."""

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import Cause, NodeFiles
from airflow_provider_kmigrate.core.migration import waits
from airflow_provider_kmigrate.core.monitoring import watch
from airflow_provider_kmigrate.core.monitoring.journal_lines import ActSpan
from airflow_provider_kmigrate.core.monitoring.watch import Alarms, ClusterOwner, KnownActs
from tests.core.views import (
    AGREEING,
    BARE,
    DUAL,
    FILES,
    FLAGGED,
    HALF,
    KRAFT,
    MIG,
    ONE_UNREAD,
    ZK,
    cluster,
    codes,
    computing,
    migration,
    with_broker,
    with_controller,
    with_zk,
)

NONE = (None, None, None)
NO_ACTS = KnownActs()
HOUR = 3600.0
BORN = 1_000_000.0
HYBRID = cluster([KRAFT, MIG, MIG], FLAGGED, 90)
OLD = with_zk(HYBRID, migration=replace(migration(90), created_at=BORN))


@pytest.mark.parametrize(
    ("view", "after", "expected"),
    [
        (OLD, 23 * HOUR, []),
        (OLD, 25 * HOUR, ["T06"]),
        (cluster([KRAFT, KRAFT, KRAFT], (True, True, False), 90), 0, ["G05"]),
        (cluster([KRAFT, KRAFT, MIG], BARE, 90), 0, ["P02"]),
        (cluster([ZK, ZK, ZK], NONE), 999 * HOUR, []),
        (cluster([KRAFT, KRAFT, KRAFT], BARE, 90), 999 * HOUR, []),
    ],
)
def test_what_is_reported_at_once(view, after, expected):
    assert codes(waits.find_urgent_alarms(view, 24 * HOUR, BORN + after)) == expected


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (DUAL, []),
        (cluster([KRAFT, None, MIG], FLAGGED, 90), ["R01"]),
        (with_controller(DUAL, 3001, answers=False, migration_flag=None), ["G23"]),
        (replace(DUAL, zk=None), ["U01"]),
        (cluster([ZK, None, ZK], NONE), ["R01"]),
        (cluster([ZK, None, ZK], FLAGGED, -1), ["R01"]),
        (cluster([KRAFT, None, KRAFT], BARE, 90), ["R01"]),
        (cluster([ZK, ZK, ZK], NONE), []),
        (with_broker(DUAL, 1, files=NodeFiles(FILES[ZK])), ["O06"]),
        (with_controller(DUAL, 3001, files=NodeFiles({"process.roles": "controller"})), ["O06"]),
        (with_broker(DUAL, 1, files=NodeFiles()), ["G00"]),
        (with_broker(cluster([KRAFT, KRAFT, KRAFT], BARE, 90), 2, files=NodeFiles(FILES[MIG])), ["O06"]),
        (with_broker(cluster([KRAFT, KRAFT, MIG], FLAGGED, 90), 2, files=NodeFiles(FILES[KRAFT])), []),
    ],
)
def test_a_node_that_stays_unresponsive_is_named_in_every_phase(view, expected):
    assert codes(watch.find_debounced_alarms(view, NO_ACTS)) == expected


@pytest.mark.parametrize(
    ("counts", "now", "later"),
    [(AGREEING, [], []), (HALF, ["K01"], ["K01"]), (ONE_UNREAD, [], ["K02"]), (None, [], ["K02"])],
)
def test_brokers_that_disagree_on_coordinators_are_an_alarm_and_one_that_does_not_say_is_asked_again(counts, now, later):
    for view in (DUAL, cluster([ZK, ZK, ZK], NONE), cluster([KRAFT, KRAFT, KRAFT], BARE, 90)):
        assert codes(watch.find_immediate_alarms(computing(view, counts), 24 * HOUR, BORN)) == now
        assert codes(watch.find_debounced_alarms(computing(view, counts), NO_ACTS)) == later


def test_a_broker_that_is_down_is_reported_once():
    view = computing(cluster([KRAFT, KRAFT, None], FLAGGED, 90), ONE_UNREAD)
    assert codes(watch.find_debounced_alarms(view, NO_ACTS)) == ["R01"]


STANDBY = cluster([KRAFT, KRAFT, KRAFT], (True, True, False), 90)  # 3000 leads


def test_each_node_is_an_alarm_of_its_own():
    """A second broker that goes down while the first one is down is reported, too."""
    one, two = (
        watch.failing_node_reasons(cluster(modes, FLAGGED, 90), NO_ACTS) for modes in ([KRAFT, None, KRAFT], [None, None, KRAFT])
    )
    change = Alarms().compare(one)
    open_ = change.after_reporting(change.begun, 1.0)
    assert [reason.node for reason in open_.compare(two).begun.values()] == ["broker 0"]
    files = [with_broker(DUAL, 1, files=NodeFiles(FILES[ZK]))]
    files.append(with_broker(files[0], 2, files=NodeFiles(FILES[ZK])))
    one, two = (watch.find_debounced_alarms(view, NO_ACTS) for view in files)
    change = Alarms().compare(one)
    assert [reason.code for reason in change.after_reporting(change.begun, 1.0).compare(two).begun.values()] == ["O06"]


@pytest.mark.parametrize(("by_us", "now", "later"), [(set(), ["G05"], []), ({3001}, ["G05"], []), ({3001, 3002}, [], ["G43"])])
def test_a_flag_that_a_finalization_takes_is_an_alarm_only_where_it_stays_half_way(by_us, now, later):
    view = with_zk(STANDBY, unflagged=frozenset(by_us))
    assert codes(watch.find_immediate_alarms(view, 24 * HOUR, BORN)) == now
    assert codes(watch.find_debounced_alarms(view, NO_ACTS)) == later
    [alarm] = waits.find_urgent_alarms(view, 24 * HOUR, BORN)
    assert alarm.cause is Cause.UNFLAGGED_CONTROLLER, "a step knows itself which alarms it brings about"


@pytest.mark.parametrize(("by_us", "now"), [({3001}, ["G05"]), ({3001, 3002}, []), ({3000, 3001, 3002}, [])])
def test_a_flag_that_something_else_took_is_an_alarm_beside_those_that_a_finalization_takes(by_us, now):
    view = with_zk(cluster([KRAFT, KRAFT, KRAFT], (True, False, False), 90), unflagged=frozenset(by_us))
    assert codes(watch.find_immediate_alarms(view, 24 * HOUR, BORN)) == now


def test_no_flag_is_reported_missing_once_a_controller_without_the_flag_leads():
    view = cluster([KRAFT, KRAFT, KRAFT], (False, True, True), 90)
    assert codes((*watch.find_immediate_alarms(view, 24 * HOUR, BORN), *watch.find_debounced_alarms(view, NO_ACTS))) == []
    assert "a rollback is not possible (P12)" in waits.describe_phase(view, BORN)


@pytest.mark.parametrize(
    ("view", "needed"),
    [
        (cluster([ZK, ZK, ZK], NONE), False),
        (cluster([ZK, ZK, ZK], FLAGGED, -1), False),
        (cluster([MIG, ZK, ZK], FLAGGED, -1), True),
        (DUAL, True),
        (cluster([KRAFT, KRAFT, KRAFT], (False, True, True), 90), False),
        (cluster([KRAFT, KRAFT, MIG], BARE, 90), False),
    ],
)
def test_a_rollback_is_needed_from_the_first_broker_to_the_finalization(view, needed):
    assert waits.needs_rollback_prerequisites(view) is needed


def test_the_phase_in_one_sentence():
    message = waits.describe_phase(OLD, BORN + 1.5 * HOUR)
    assert "phase 'hybrid', 1.5 h after the controllers started; ZooKeeper is 2 records behind" in message
    assert "2 in migration mode, 1 in kraft mode" in message
    assert "none answers" in waits.describe_phase(cluster([None, None, None]), BORN)


RUN = "kmigrate_rollback__prod/r1"


def acting(*, seconds_ago, ended):
    """The newest act of the run on a broker."""
    at = round(1000 * (BORN - seconds_ago))
    act = ActSpan(RUN, "roll back broker 1 to migration", "restart", at, at + 9_000 if ended else None)
    return KnownActs({"broker 1": act}, BORN, 600.0)


@pytest.mark.parametrize(
    ("owner", "acts", "said"),
    [
        (ClusterOwner(RUN), NO_ACTS, ""),
        (ClusterOwner(RUN, alive=False), NO_ACTS, ""),  # between two tasks, or deferred
        (ClusterOwner(RUN, "The DAG d is paused: unpause it."), NO_ACTS, "The DAG d is paused: unpause it."),
        (ClusterOwner(RUN), acting(seconds_ago=900.0, ended=False), ""),  # its process lives
        (ClusterOwner(RUN, alive=False), acting(seconds_ago=500.0, ended=False), ""),  # it may yet be continued by a retry
        (ClusterOwner(RUN, alive=False), acting(seconds_ago=900.0, ended=True), ""),
        (ClusterOwner("another/run", alive=False), acting(seconds_ago=900.0, ended=False), ""),
        (
            ClusterOwner(RUN, alive=False),
            acting(seconds_ago=900.0, ended=False),
            "Mark the task of that step failed, then clear it.",
        ),
    ],
)
def test_an_owner_that_does_not_go_on_is_an_alarm_with_the_one_thing_to_do(owner, acts, said):
    found = watch.stalled_owner_reasons(owner, acts)
    assert [reason.code for reason in found] == (["H12"] if said else [])
    assert all(
        f"Run {RUN} owns the cluster and does not go on." in reason.text and reason.text.endswith(said) for reason in found
    )
