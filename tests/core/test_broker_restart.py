"""The page of a broker's restart: what is read when, what only one process knows, and what another one continues with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, NextAction, Reading, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupProgressSpec, Policy
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.group_seen import GroupPosition, GroupSweep, Lag
from airflow_provider_kmigrate.core.migration.broker_restart import (
    ASKED_EVERY,
    READINGS,
    RestartState,
    When,
    next_action,
    roll_back_to,
    roll_to,
)
from airflow_provider_kmigrate.core.migration.progress import StepProgress, from_json
from tests.core.views import FLAGGED, KRAFT, MIG, ZK, cluster, computing, readable, with_broker

POLICY = Policy(canary_bake=0.0)
HYBRID = readable(cluster([KRAFT, MIG, MIG], FLAGGED, 90))
COSTLY = READINGS[When.READINESS].fields
SWEEP = READINGS[When.GROUPS].fields
PLACE = TopicPartition("t", 0)
ROLL = roll_to(1, KRAFT)


def cheap(view: ClusterView) -> ClusterView:
    """The same without what the costly fields read."""
    return replace(view, topics=None, stored=None, client_metrics=None, coordinators=None, ensemble=None, backup=None)


def swept(view: ClusterView, committed: int) -> ClusterView:
    return replace(view, group_progress=GroupSweep({"billing": GroupPosition({PLACE: Lag(committed, 500)})}))


class Process:
    """One process of a restart: each observation is read as often as the page needs."""

    def __init__(self, groups: GroupProgressSpec | None = None) -> None:
        self.state, self.read = RestartState.begin(ROLL, POLICY, groups), list[Fields]()

    def observe(self, at: float, committed: int = 0, whole: ClusterView = HYBRID) -> NextAction[RestartState]:
        read = ROLL.reading_before
        while True:
            self.read.append(read.fields)
            view = whole if read.fields & Fields.BACKUP else cheap(whole)
            view = swept(view, committed) if read.fields & SWEEP else view
            action = next_action(ROLL, self.state, replace(view, taken_at=at), read)
            self.state = action.state
            if action.needs is None:
                return action
            read = action.reads.plus(action.needs)


def test_what_costs_most_is_read_once_everything_else_holds() -> None:
    process = Process()
    assert isinstance(process.observe(0.0, whole=with_broker(HYBRID, 2, mode=None)).decision, Wait), "a broker is down"
    assert process.read == [ROLL.reading_before.fields]
    action = process.observe(1.0)
    assert isinstance(action.decision, Act)
    assert action.decision.verb is Verb.RESTART
    assert process.read[1:] == [ROLL.reading_before.fields, ROLL.reading_before.fields | COSTLY]


def test_what_costs_most_is_not_read_again_while_consumer_groups_are_waited_for() -> None:
    process = Process(GroupProgressSpec())
    for second in range(6):
        action = process.observe(float(second), committed=0)
        assert isinstance(action.decision, Wait), "no group has moved yet"
    assert sum(bool(read & Fields.TOPICS) for read in process.read) == 1, "with the first sweep, since groups mostly move at once"
    action = process.observe(8.0, committed=100)
    assert isinstance(action.decision, Act), "the group moves"
    assert sum(bool(read & Fields.TOPICS) for read in process.read) == 2, "and once more right before the stop"


def test_a_rollback_that_is_not_assured_is_asked_for_again_after_a_while() -> None:
    process, lost = Process(), replace(HYBRID, client_metrics=None)
    times = (0.0, 1.0, ASKED_EVERY - 0.1, ASKED_EVERY)
    for at in times:
        assert isinstance(process.observe(at, whole=lost).decision, Wait)
    assert sum(bool(read & Fields.TOPICS) for read in process.read) == 2


def test_once_restarted_a_broker_is_observed_by_what_its_return_needs() -> None:
    state = replace(RestartState.begin(ROLL, POLICY, None), restarted=True)
    action = next_action(ROLL, state, with_broker(HYBRID, 1, mode=None), ROLL.reading_before)
    assert action.reads.fields == READINGS[When.STARTED].fields
    assert not action.may_defer, "no other process knows that it was restarted (R13)"
    answers = next_action(ROLL, state, with_broker(HYBRID, 1, mode=KRAFT), ROLL.reading_before)
    assert answers.may_defer
    earlier = next_action(ROLL, state, HYBRID, ROLL.reading_before)
    assert earlier.reads.fields == ROLL.reading_before.fields, "it answers in its earlier mode: all gates are judged again"


def test_a_first_broker_is_observed_by_what_its_bake_needs() -> None:
    first = readable(cluster([KRAFT, MIG, MIG], FLAGGED, 90))
    restart = roll_to(0, KRAFT)
    state = replace(RestartState.begin(restart, Policy(canary_bake=60.0), None), restarted=True)
    action = next_action(restart, state, first, Reading(READINGS[When.STARTED].fields))
    assert action.needs == Reading(Fields.MIN_INSYNC)
    action = next_action(restart, state, first, Reading(READINGS[When.BAKING].fields))
    assert (action.needs, action.reads.fields) == (None, READINGS[When.BAKING].fields)


def test_a_file_that_is_written_at_the_start_ends_it() -> None:
    state = replace(RestartState.begin(ROLL, POLICY, None), restarted=True)
    action = next_action(ROLL, state, HYBRID, ROLL.reading_before)
    assert isinstance(action.decision, Refuse)
    assert [reason.code for reason in action.decision.reasons] == ["R13"]


def test_a_rollback_asks_no_other_machine_unless_a_broker_may_need_its_original() -> None:
    handed_over = computing(cluster([ZK, MIG, MIG], (None, None, None), 0), None)
    back = roll_back_to(1, BrokerMode.ZOOKEEPER)
    state = RestartState.begin(back, POLICY, None)
    assert next_action(back, state, handed_over, back.reading_before).needs in {None, Reading(Fields.COORDINATORS)}
    silent = next_action(back, state, with_broker(handed_over, 2, mode=None), back.reading_before)
    assert silent.needs == Reading(Fields.NODES, every_node=True)


#: As the release of November 2026 stored it, the first that had a version.
OF_NOVEMBER = (
    '{"version": 1, "healthy_seconds": 480.0, "waited_seconds": 30.0, "watched_seconds": 0.0, "lapses": 0, '
    '"worse": [["V23", "It is slow.", ""]], "verdict": [], "restart_begun": false, "member_restarts": 0, "recoveries": 2}'
)


def test_what_an_older_release_stored_is_continued_with_nothing_lost() -> None:
    stored = from_json(json.loads(OF_NOVEMBER))
    assert isinstance(stored, StepProgress)
    state = RestartState.begin(ROLL, Policy(canary_bake=600.0), None).resume_from(stored)
    assert state.healthy.held == 480.0
    assert state.dual_write.times == 2
    assert state.canary is not None
    assert (state.canary.held, state.canary.worse) == (480.0, (Reason("V23", "It is slow."),))
    assert state.to_progress(30.0) == stored
    assert json.loads(json.dumps(state.to_progress(30.0).to_json())) == json.loads(OF_NOVEMBER)


@pytest.mark.parametrize("version", [0, 2, None])
def test_what_another_release_stored_is_refused_by_name_and_stays_stored(version: Any) -> None:
    stored = {**json.loads(OF_NOVEMBER), "version": version}
    refused = from_json(stored)
    assert isinstance(refused, Refuse)
    assert refused.reasons[0].code == "H09"
    assert stored == {**json.loads(OF_NOVEMBER), "version": version}


def test_the_documentation_shows_every_reading() -> None:
    page = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
    for when, cost in READINGS.items():
        assert f"| `{when.name}` | {cost.text} |" in page, when
