"""What would be lost with the controllers is seen before one of them is stopped."""

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Broker, Partition, TopicMetadata, ZkController
from airflow_provider_kmigrate.core.migration import rollback
from airflow_provider_kmigrate.core.migration import rollback as back_plan
from airflow_provider_kmigrate.core.migration.gates import without_left_brokers
from airflow_provider_kmigrate.core.migration.rollback import RollbackTerms
from tests.core.back_views import (
    ALL_MIG,
    HYBRID,
    STOPPED,
    UP3,
    equal,
    handed_over,
    handover_decision,
    later,
    missing,
    shape,
    unresponsive,
    with_quorum,
)
from tests.core.views import MIG, ZK, cluster, computing, migration, with_zk

COPYING = cluster([MIG] * 3, UP3, -1)
COPYING = with_zk(COPYING, controller=ZkController(3000, 5, ephemeral=False))


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (equal(later(ALL_MIG, offset=60)), (Act, "stop")),
        (HYBRID, (Refuse, "G27")),
        (cluster([MIG, MIG, ZK], UP3, 50), (Refuse, "P07")),
        (cluster([MIG, ZK, ZK], UP3, -1), (Act, "stop")),
        (cluster([None, ZK, ZK], UP3, -1), (Act, "stop")),  # a broker that failed in migration mode is no obstacle
        (cluster([None, MIG, MIG], UP3, 50), (Wait, "R01", "S02")),
        (equal(ALL_MIG), (Wait, "G33", "G07")),
        (with_zk(equal(later(ALL_MIG)), migration=migration(60, epoch=4)), (Wait, "G33", "G07")),
        (equal(with_quorum(later(ALL_MIG, offset=60), high_watermark=500)), (Wait, "G33", "G07")),
        (later(ALL_MIG, offset=60), (Wait, "G33", "G00", "G00")),
        (missing(later(ALL_MIG, offset=60)), (Wait, "G33", "E02")),
        (equal(cluster([MIG] * 3, UP3, -1)), (Act, "stop")),  # nothing was ever taken over
        (equal(cluster([MIG] * 3, (True, None, None), 50)), (Act, "stop")),  # the majority is stopped: nothing new is taken
        (replace(cluster([MIG] * 3, (True, None, None), 50), topics=({}, {})), (Act, "stop")),
        (missing(cluster([MIG] * 3, (True, None, None), 50)), (Wait, "G33", "E02")),
        (unresponsive(equal(ALL_MIG), 3001, 3002), (Wait, "U04", "U04")),  # not known to be stopped
    ],
)
def test_controllers_stop_when_no_broker_needs_them_and_nothing_is_lost_with_them(view, expected):
    assert shape(handover_decision(view, ALL_MIG)) == expected


@pytest.mark.parametrize(
    ("view", "terms", "expected"),
    [
        (equal(ALL_MIG), RollbackTerms(failover=False), (Act, "stop")),  # whether it moves is nothing to who heals nothing
        (missing(ALL_MIG), RollbackTerms(failover=False), (Wait, "G33", "E02")),
        (missing(ALL_MIG), RollbackTerms(lossy=True), (Wait, "G33", "G07", "E02")),
        (missing(ALL_MIG), RollbackTerms(failover=False, lossy=True), (Act, "stop")),
        (ALL_MIG, RollbackTerms(failover=False), (Wait, "G33", "G00", "G00")),
    ],
)
def test_a_loss_is_accepted_only_where_nothing_is_healed(view, terms, expected):
    assert shape(handover_decision(view, ALL_MIG, terms)) == expected


@pytest.mark.parametrize(
    ("view", "terms", "expected"),
    [
        (equal(ALL_MIG), RollbackTerms(), (Done,)),
        (ALL_MIG, RollbackTerms(), (Wait, "G00", "G00")),
        (STOPPED, RollbackTerms(failover=False), (Wait, "G00")),  # brokers report the topics
        (replace(STOPPED, topics=({}, {})), RollbackTerms(failover=False), (Done,)),
        (missing(STOPPED), RollbackTerms(failover=False), (Wait, "E02")),
        (missing(STOPPED), RollbackTerms(failover=False, lossy=True), (Done,)),
        (handed_over([MIG] * 3), RollbackTerms(failover=False), (Done,)),
        (missing(COPYING), RollbackTerms(failover=False), (Done,)),
        (missing(COPYING), RollbackTerms(failover=False, lossy=True), (Done,)),
        (missing(COPYING), RollbackTerms(), (Wait, "E02")),  # controller_failover.failover waits for a copy first
        (with_zk(missing(ALL_MIG), controller=None), RollbackTerms(), (Wait, "E02")),
    ],
)
def test_what_is_compared_without_a_failover(view, terms, expected):
    assert shape(rollback.decide_if_nothing_is_lost(view, terms)) == expected


def test_where_no_copy_was_finished_no_loss_is_named():
    decision = rollback.decide_if_nothing_is_lost(missing(COPYING), RollbackTerms(failover=False, lossy=True))
    assert "taken nothing over" in decision.text
    assert back_plan.describe_kept_and_lost(missing(COPYING)) == (
        "Kept: everything. KRaft has taken nothing over: no copy of ZooKeeper was ever finished.",
    )


def test_without_a_controller_in_zookeeper_a_finished_copy_is_still_compared():
    """/controller was deleted: the owner is unknown, and KRaft may have taken over what ZooKeeper misses."""
    unowned = with_zk(later(ALL_MIG, offset=60), controller=None)
    no_failover = RollbackTerms(failover=False)
    assert shape(handover_decision(missing(unowned), ALL_MIG)) == (Wait, "G33", "G07", "E02")
    assert shape(handover_decision(missing(unowned), ALL_MIG, no_failover)) == (Wait, "G33", "E02")
    assert shape(handover_decision(equal(unowned), ALL_MIG, no_failover)) == (Act, "stop")
    assert "Differs now" in " ".join(back_plan.describe_kept_and_lost(missing(unowned)))


def test_a_loss_that_is_accepted_is_named():
    decision = rollback.decide_if_nothing_is_lost(missing(STOPPED), RollbackTerms(failover=False, lossy=True))
    assert "t: absent in ZooKeeper, present in KRaft" in decision.text


def test_topics_missing_in_zookeeper_in_two_observations_block_the_handover():
    first = missing(STOPPED)
    assert shape(handover_decision(later(first), first)) == (Refuse, "G33", "E02")
    assert shape(handover_decision(later(first), first, RollbackTerms(failover=False, lossy=True))) == (Act, "handover")


def messages(view, zookeeper, kraft):
    """What ZooKeeper holds, and what the broker that was asked knows."""
    sides = tuple({name: TopicMetadata(name, "id", {}) for name in names} for names in (zookeeper, kraft))
    return replace(equal(view), topics=sides)


@pytest.mark.parametrize("terms", [RollbackTerms(), RollbackTerms(failover=False)])
@pytest.mark.parametrize(
    ("zookeeper", "kraft", "expected"),
    [
        ("ab", "a", (Act, "handover")),  # a broker that does not know a topic loses none
        ("ab", "ac", (Refuse, "G33", "E02")),
        ("ab", "", (Wait, "G33", "G00")),  # one that received no metadata since its start shows nothing
        ("", "", (Act, "handover")),
    ],
)
def test_what_a_broker_does_not_know_is_no_loss_at_the_handover(zookeeper, kraft, expected, terms):
    first = messages(STOPPED, zookeeper, kraft)
    assert shape(handover_decision(later(first), first, terms)) == expected


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (messages(STOPPED, "ab", "a"), (Done,)),
        (messages(STOPPED, "ab", "ac"), (Wait, "E02")),
        (messages(STOPPED, "ab", ""), (Wait, "G00")),
        (messages(ALL_MIG, "ab", "a"), (Wait, "E01")),  # controllers run, and send it again
        (messages(ALL_MIG, "ab", ""), (Wait, "E01")),
    ],
)
def test_what_a_broker_does_not_know_is_no_loss_once_the_controllers_are_stopped(view, expected):
    assert shape(rollback.decide_if_nothing_is_lost(view, RollbackTerms(failover=False))) == expected


@pytest.mark.parametrize(("kraft", "expected"), [("a", (Act, "stop")), ("ac", (Wait, "G33", "E02")), ("", (Wait, "G33", "G00"))])
def test_what_a_broker_does_not_know_is_no_loss_once_the_majority_is_stopped(kraft, expected):
    view = messages(cluster([MIG] * 3, (True, None, None), 50), "ab", kraft)
    assert shape(handover_decision(view, view)) == expected


@pytest.mark.parametrize(
    ("accepted", "failover", "message"),
    [
        ("", True, ""),
        ("", False, ""),
        ("id", False, ""),
        ("id", True, "skip_failover"),
        ("Id", False, "not the cluster id 'id'"),
        ("Id", True, "not the cluster id 'id', and counts only"),
    ],
)
def test_a_loss_that_would_not_be_accepted_as_it_was_asked_is_refused(accepted, failover, message):
    reason = rollback.terms_error(accepted, "id", failover=failover)
    assert (reason is not None) == bool(message)
    assert reason is None or (reason.code == "G35" and message in reason.text)


def with_stranger(view):
    """Broker 7, which the cluster file does not name, leads a partition and is the only replica of another one."""
    brokers = {number: replace(broker, listed_by=frozenset({0, 1, 2, 7})) for number, broker in view.brokers.items()}
    rows = (*view.partitions, Partition("orders", 0, 7, (7, 0, 1), (7, 0, 1)), Partition("alone", 0, 7, (7,), (7,)))
    min_insync = {**(view.min_insync or {}), "orders": 2, "alone": 1}
    return replace(view, brokers={**brokers, 7: Broker(7, named=False)}, partitions=rows, min_insync=min_insync)


def test_a_broker_that_is_left_as_it_is_holds_no_rollback():
    view = with_stranger(handed_over([MIG] * 3))
    assert shape(rollback.decide_roll_back(view, view, 0, ZK)) == (Wait, "G36")
    left = without_left_brokers(view, {7})
    assert shape(rollback.decide_roll_back(left, left, 0, ZK)) == (Act, "restart")
    assert [row.replicas for row in left.partitions if row.topic == "orders"] == [(0, 1)]
    assert without_left_brokers(view, {0}) is view, "one that the cluster file names is rolled back"
    assert without_left_brokers(view, {8}) is view


def test_what_it_costs_to_leave_a_broker_is_said_before():
    (cost,) = back_plan.describe_accepted_costs(with_stranger(ALL_MIG), RollbackTerms(left=frozenset({7})))
    assert "broker 7 stays as it is" in cost
    assert "It leads orders-0, alone-0, and has replicas of 2 partitions. It has the only replica of alone-0." in cost
    assert "the handover isolates it" in cost


def test_a_rollback_that_accepts_split_groups_restarts_brokers_that_disagree_and_names_why():
    view = computing(handed_over([MIG] * 3), {0: 50, 1: 50, 2: 25})
    assert shape(rollback.decide_roll_back(view, view, 0, ZK))[:2] == (Refuse, "K01")
    decision = rollback.decide_roll_back(view, view, 0, ZK, RollbackTerms(splits=True))
    assert shape(decision) == (Act, "restart")
    assert "accepts that groups move" in decision.text
    unread = replace(view, coordinators=None)
    assert isinstance(rollback.decide_roll_back(unread, unread, 0, ZK, RollbackTerms(splits=True)), Wait), (
        "read first, then named"
    )


@pytest.mark.parametrize(("accepted", "is_valid"), [("", True), ("id", True), ("yes", False)])
def test_split_groups_are_accepted_by_the_cluster_id_only(accepted, is_valid):
    reason = rollback.terms_error("", "id", failover=True, accept_split_groups=accepted)
    assert (reason is None) is is_valid
    assert reason is None or reason.code == "G35"
