"""The cures of a broker that goes back: those of the way forward, and one of its own."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_kmigrate.core.back import gates as back_gates
from airflow_provider_kmigrate.core.decision import Act, Decision, Verb
from airflow_provider_kmigrate.core.forward import cures
from airflow_provider_kmigrate.core.forward.cures import Recovered, Recoveries, out_of_isrs
from airflow_provider_kmigrate.core.model import ClusterView
from airflow_provider_kmigrate.core.phase import kraft_owns


def recover(view: ClusterView, broker: int, decision: Decision, troubles: Recoveries) -> Recovered:
    """As on the way forward; and where brokers skip what the ZooKeeper controller says, which `clients.partition_states` explains."""
    judged = cures.recover(view, broker, decision, troubles)
    out = out_of_isrs(judged.decision) and not kraft_owns(view) and not back_gates.migration_left(view)
    troubles = replace(judged.troubles, deaf=judged.troubles.deaf.saw(view.taken_at, there=out))
    if not troubles.deaf.due(view.taken_at):
        return Recovered(judged.decision, troubles)
    text = f"Broker {broker} is back, and not taken into its ISRs: partition states are raised, and a controller elected that tells them."
    return Recovered(Act(Verb.RAISE, text), troubles)
