"""A broker that is back and receives no metadata, because the dual-write has ended: which brokers depend on it, and when it is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.decision import Act, Done, Verb, Wait
from airflow_provider_kmigrate.core.migration.recovery import explain_stalled_dual_write
from airflow_provider_kmigrate.core.model import Reason
from tests.core.views import KRAFT, MIG, UP, ZK, cluster

ON3, OUT = (True, True, True), Wait((Reason("R05", "out of ISRs"),))


def view_of(*modes, offset=95):
    return cluster(modes, ON3, offset)


def earlier(view):
    """As it was when /migration stood further back."""
    found = replace(view.zk.migration, metadata_offset=90)
    return replace(view, zk=replace(view.zk, migration=found))


@pytest.mark.parametrize(
    ("modes", "target", "message"),
    [
        ((MIG, KRAFT, KRAFT), MIG, True),  # on its way back: it knows no topic
        ((KRAFT, MIG, MIG), KRAFT, True),  # the others are not informed that it is back
        ((MIG, MIG, MIG), MIG, True),  # the last one of the first roll, after the takeover
        ((KRAFT, KRAFT, KRAFT), KRAFT, False),  # everybody reads the log
        ((None, KRAFT, MIG), KRAFT, False),  # it starts, and will read the log
        ((None, KRAFT, KRAFT), MIG, False),  # it is down
        ((MIG, MIG, MIG), KRAFT, False),  # it was not restarted yet: other gates
    ],
)
def test_which_brokers_depend_on_a_stalled_dual_write(modes, target, message):
    view = view_of(*modes)
    decision = explain_stalled_dual_write(view, view, 0, target, OUT)
    assert [reason.code for reason in decision.reasons] == (["R05", "G07"] if message else ["R05"])


def test_one_that_is_unresponsive_may_wait_for_metadata():
    view = view_of(None, KRAFT, KRAFT)
    started = {**view.brokers, 0: replace(view.brokers[0], process=UP)}
    found = explain_stalled_dual_write(replace(view, brokers=started), view, 0, MIG, OUT)
    assert [reason.code for reason in found.reasons] == ["R05", "G07"]


def test_one_that_moves_is_not_the_cause():
    view = view_of(MIG, KRAFT, KRAFT)
    assert explain_stalled_dual_write(view, earlier(view), 0, MIG, OUT) is OUT


@pytest.mark.parametrize("modes", [(MIG, ZK, ZK), (MIG, MIG, MIG)])
def test_before_the_takeover_there_is_none(modes):
    view = view_of(*modes, offset=-1)
    assert explain_stalled_dual_write(view, view, 0, MIG, OUT) is OUT


@pytest.mark.parametrize(
    "decision", [Done("back"), Act(Verb.RESTART, "may stop"), Wait((Reason("T01", "it bakes"),), healthy=True)]
)
def test_what_does_not_wait_for_it_is_left_as_it_is(decision):
    view = view_of(MIG, KRAFT, KRAFT)
    assert explain_stalled_dual_write(view, view, 0, MIG, decision) is decision


def test_without_zookeeper_or_the_quorum_only_that_is_reported():
    view = view_of(MIG, KRAFT, KRAFT)
    assert explain_stalled_dual_write(replace(view, zk=None), view, 0, MIG, OUT) is OUT
    found = explain_stalled_dual_write(replace(view, quorum=None), view, 0, MIG, OUT)
    assert [reason.code for reason in found.reasons] == ["R05", "G00"]
