"""The cures of a broker that is back, and lacks nothing but a place in ISRs or leaders for its partitions; each comes after its own patience.

At one look there is one cure at most: whoever has decided on one, or waits for more than the ISRs, leaves nothing for the others to see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from airflow_provider_kmigrate.core.decision import Act, Decision, Verb, Wait
from airflow_provider_kmigrate.core.forward import leaders, stuck_leader
from airflow_provider_kmigrate.core.lasting import HoldTimer
from airflow_provider_kmigrate.core.model import Cause, ClusterView

DEAF_FOR = 8.0  # seconds; a follower that has caught up is taken back within one

_STUCK, _LEFT_OUT, _DEAF = HoldTimer(stuck_leader.PATIENCE), HoldTimer(leaders.LEFT_OUT_FOR), HoldTimer(DEAF_FOR)

Lags = Mapping[tuple[str, int], int]  # per topic and partition: records that a broker says it is behind


@dataclass(frozen=True, slots=True)
class Recoveries:
    """What has lasted over the looks of one life, which sees the wait to its end once a cure was `tried`: no other life knows of that."""

    stuck: HoldTimer = _STUCK  # one leader has not taken the broker back
    left_out: HoldTimer = _LEFT_OUT  # partitions of it have no leader
    deaf: HoldTimer = _DEAF  # it is not taken back after ZooKeeper got the cluster
    tried: bool = False

    def acted(self, verb: Verb) -> Recoveries:
        """After that cure, done or not: the next of its kind comes after twice as long."""
        match verb:
            case Verb.FREE:
                return replace(self, tried=True, stuck=self.stuck.acted())
            case Verb.ELECT:
                return replace(self, tried=True, left_out=self.left_out.acted())
            case Verb.RAISE:
                return replace(self, tried=True, deaf=self.deaf.acted())
            case _:
                return self


@dataclass(frozen=True, slots=True)
class Recovered:
    """The decision, or a cure; and what has lasted so far."""

    decision: Decision
    troubles: Recoveries


def recover(view: ClusterView, broker: int, decision: Decision, troubles: Recoveries) -> Recovered:
    """What would be decided if every leader did its part, or the cure of a leader that does not, or of one that is missing."""
    freed = _freed(view, broker, decision, troubles)
    return _led(view, broker, freed)


def out_of_isrs(decision: Decision) -> TypeGuard[Wait]:
    """Whether a broker lacks nothing but a place in ISRs, or leaders for its partitions."""
    return isinstance(decision, Wait) and {reason.cause for reason in decision.reasons} == {Cause.OUT_OF_ISR}


def _freed(view: ClusterView, broker: int, decision: Decision, troubles: Recoveries) -> Recovered:
    """The cure where one leader has not taken this broker back for long; `stuck_leader` says why that happens."""
    leader = stuck_leader.stuck_leader(view, broker) if out_of_isrs(decision) else None
    troubles = replace(troubles, stuck=troubles.stuck.saw(view.taken_at, there=leader is not None))
    if leader is None or not out_of_isrs(decision) or not troubles.stuck.due(view.taken_at):
        return Recovered(decision, troubles)
    gate = stuck_leader.may_restart(view, broker, leader)
    if not gate.met:
        return Recovered(Wait((*decision.reasons, *gate.reasons)), troubles)
    text = f"Broker {leader} takes broker {broker} back for none of its partitions: it is restarted."
    return Recovered(Act(Verb.FREE, text), troubles)


def _led(view: ClusterView, broker: int, judged: Recovered) -> Recovered:
    """The cure where a takeover has left partitions of this broker without a leader; `leaders` says why that happens."""
    left = leaders.left_out(view, broker) if out_of_isrs(judged.decision) else ()
    troubles = replace(judged.troubles, left_out=judged.troubles.left_out.saw(view.taken_at, there=bool(left)))
    if not troubles.left_out.due(view.taken_at):
        return Recovered(judged.decision, troubles)
    text = f"Broker {broker} is back, but {len(left)} of its partitions have no leader: the takeover left them out."
    return Recovered(Act(Verb.ELECT, text), troubles)


def to_free(view: ClusterView, broker: int, lags: Lags) -> int | str:
    """Asked again just before the cure: the leader to restart, or why it is none, as a sentence."""
    leader = stuck_leader.stuck_leader(view, broker)
    if leader is None:
        return f"No leader keeps broker {broker} out of all its ISRs any more; nothing is done."
    return own_fault(view, broker, lags) or leader


def to_tell(view: ClusterView, broker: int, lags: Lags) -> str:
    """Asked again just before a controller is elected anew: why it is not, as a sentence; empty where it is."""
    if view.partitions is not None and not view.lacking(broker):
        return f"Broker {broker} is back in its ISRs; nothing is done."
    return own_fault(view, broker, lags)


def own_fault(view: ClusterView, broker: int, lags: Lags) -> str:
    """Why nobody else is to blame that it is out of ISRs: it is far behind, or that cannot be told. Empty where it has caught up."""
    behind = stuck_leader.lagging_replicas(view, broker, lags)
    if behind is None:
        return f"How far broker {broker} is behind could not be read; nothing is done. Are all its log directories online?"
    still = f"Broker {broker} is {behind} records behind: it still catches up, nothing is done."
    return still if behind > stuck_leader.CAUGHT_UP else ""
