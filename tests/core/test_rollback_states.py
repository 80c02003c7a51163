"""The rollback over all states: no alarm and no readiness names an act that refuses there, and "lost" is said only where no act is left."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, Reason
from airflow_provider_kmigrate.core.migration import controllers, roll, rollback
from airflow_provider_kmigrate.core.migration.phase import find_alarms, migration_has_ended, position_of, still_open
from airflow_provider_kmigrate.core.migration.readiness import (
    Readiness,
    ReadinessAsk,
    ReadinessLevel,
    has_original,
    judge_rollback,
)
from airflow_provider_kmigrate.core.monitoring import watch
from airflow_provider_kmigrate.core.monitoring.watch import KnownActs
from tests.core.any_state import Kafka, draw
from tests.seeds import seeds

STATES = 500  # of each seed, in a second or two
CLUSTER = "q1Sh-9_ISia_zwGINzRvyQ"


def rolls_back(view: ClusterView) -> bool:
    return not isinstance(rollback.refuse_if_irreversible(view), Refuse) and bool(rollback.plan(view))


def has_what_it_needs(view: ClusterView) -> bool:
    """Whether no original is missing that a rollback installs, as `steps.rollback.planned` asks; O01 is reported beside every other reason."""
    moved = {f"broker {broker.id}" for broker in view.brokers.values() if not has_original(broker)}
    lost = [reason for reason in (view.backup.lost if view.backup else ()) if reason.node in moved]
    return not lost


def flag_comes_back(view: ClusterView) -> bool:
    """Whether some step gives every controller that answers without the flag its flag back, now or after a wait."""
    bare = [number for number, controller in view.controllers.items() if controller.migration_flag is False]
    return all(not isinstance(decision, Refuse | Done) for number in bare for decision in [restored(view, number)])


def restored(view: ClusterView, number: int) -> Decision:
    forward = controllers.decide_provision(view, number, CLUSTER)
    return rollback.decide_restore_flag(view, number) if isinstance(forward, Refuse | Done) else forward


def goes_on(view: ClusterView, target: BrokerMode, reason: Reason) -> bool:
    """Whether the roll into this mode does more for the broker that is named, or for any, than to wait until it answers; and refuses none."""
    named = [broker for broker in view.brokers.values() if reason.node in {"", f"broker {broker.id}"}]
    left = [broker for broker in named if broker.mode not in {target, BrokerMode.KRAFT}]
    decisions = [roll.decide_restart(view, broker.id, target) for broker in left]
    return not any(isinstance(decision, Refuse) for decision in decisions) and not all(map(does_nothing, decisions))


def does_nothing(decision: Decision) -> bool:
    return isinstance(decision, Done) or (isinstance(decision, Wait) and {reason.code for reason in decision.reasons} == {"R01"})


def finalizes(view: ClusterView) -> bool:
    return not any(isinstance(controllers.decide_finalize(view, view, number), Refuse) for number in view.controllers)


ACTS = {
    r"rollback": lambda view, _: rolls_back(view),
    r"provision_": lambda view, _: flag_comes_back(view),
    r"first_roll": lambda view, reason: goes_on(view, BrokerMode.MIGRATION, reason),
    r"second_roll": lambda view, reason: goes_on(view, BrokerMode.KRAFT, reason),
    r"finalize": lambda view, _: finalizes(view),
    r"with the flag|the flag in its file": lambda view, _: not migration_has_ended(view),
}
"""What the next step of a reason may name, and whether that act has something to do in a state, and does not refuse."""


def refusing(view: ClusterView, reason: Reason) -> list[str]:
    """The acts that the reason names although they refuse here."""
    return [name for name, works in ACTS.items() if re.search(name, reason.next_step) and not works(view, reason)]


OF_A_MIGRATION = {"T06", "G05", "G07", "G23", "G43", "P06", "P07", "P09", "R12"}
"""Codes of what matters until the end; afterwards each of them asks for something that is of no use, or harms."""


def reported(view: ClusterView, verdict: Readiness) -> Iterator[Reason]:
    at_once, acts = watch.find_immediate_alarms(view, 86_400.0, 90_000.0), KnownActs()  # long enough for a hybrid
    staying = watch.find_debounced_alarms(view, acts)
    yield from (
        *find_alarms(view),
        *at_once,
        *staying,
        *watch.find_rollback_alarms(view, staying, verdict, acts),
        *watch.lost_rollback_reasons(verdict),
    )
    yield from (each.reason for each in verdict.reasons)


def faults(view: ClusterView) -> set[str]:
    """What an operator is told wrongly in this state."""
    verdict = judge_rollback(view, ReadinessAsk(), 0.0)
    found = {
        f"{reason.code} in '{position_of(view).phase}' names {name}"
        for reason in reported(view, verdict)
        for name in refusing(view, reason)
    }
    if migration_has_ended(view):
        found |= {f"{reason.code} after the end" for reason in reported(view, verdict) if reason.code in OF_A_MIGRATION}
    if verdict.level is ReadinessLevel.LOST and rolls_back(view) and has_what_it_needs(view):
        found.add("lost, and a rollback is possible")
    return found


@pytest.mark.parametrize("seed", seeds(8))
def test_no_alarm_and_no_readiness_names_an_act_that_refuses_in_that_state(seed: int) -> None:
    random, found = Random(seed), Counter[str]()  # noqa: S311
    for _ in range(STATES):
        found.update(faults(draw(random)))
    assert not found


@pytest.mark.parametrize("seed", seeds(8))
def test_a_rollback_is_ended_only_if_kafka_has_ended_the_migration_and_open_only_if_it_has_not(seed: int) -> None:
    random, found, ends = Random(seed), Counter[str](), 0  # noqa: S311
    for _ in range(STATES):
        kafka = Kafka(random)
        view = kafka.walk(random.randint(4, 24))
        ends += migration_has_ended(view)
        verdict = judge_rollback(view, ReadinessAsk(), 0.0)
        if kafka.state != "POST_MIGRATION":
            if migration_has_ended(view) or verdict.level is ReadinessLevel.LOST:
                found[f"no way back in '{position_of(view).phase}', Kafka is in {kafka.state}"] += 1
            if isinstance(rollback.refuse_if_irreversible(view), Refuse):
                found[f"the rollback refuses in '{position_of(view).phase}', Kafka is in {kafka.state}"] += 1
        elif still_open(view) and (kafka.offset > 0 or BrokerMode.KRAFT in kafka.modes.values()):
            found[f"open in '{position_of(view).phase}', and Kafka has ended it"] += 1
        found.update(faults(view))
    assert not found
    assert ends, "some of them have ended"
