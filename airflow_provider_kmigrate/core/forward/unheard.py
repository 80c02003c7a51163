"""A broker that is not back, because the dual-write has ended and with it what tells brokers in migration mode.

What a broker in migration mode knows of topics, leaders and ISRs comes from the thread of the active controller that writes to ZooKeeper, behind
each write: where that fails again and again (`standstill` says how), it tells nobody anything. A broker that is started in migration mode then
waits for a word of the controller and answers nobody, though the controllers have unfenced it; and one that goes on there does not hear that
another one is back (Kafka 3.9.2, `KRaftMigrationDriver.MetadataChangeEvent`; seen on real brokers, for as long as nobody sees to the dual-write).
"""

from __future__ import annotations

from airflow_provider_kmigrate.core import gates
from airflow_provider_kmigrate.core.decision import Decision, Wait
from airflow_provider_kmigrate.core.model import Broker, BrokerMode, ClusterView, ProcessState
from airflow_provider_kmigrate.core.phase import ended, kraft_owns


def explain_stalled_dual_write(
    view: ClusterView, before: ClusterView, broker: int, target: BrokerMode, decision: Decision
) -> Decision:
    """The decision; where it waits for a broker that was started, and some depend on a dual-write that is not seen to move, G07 besides.

    A healthy wait is for a broker that is back, such as one that bakes, and stays what it is.
    `before`: the look since which it is to have moved, where this one alone does not tell.
    """
    seen = view.brokers.get(broker)
    if not isinstance(decision, Wait) or decision.healthy or seen is None:
        return decision
    if not _started(seen, target) or not _depend(view, target):
        return decision
    gate = gates.dual_write_alive(view, before)
    return decision if gate.met else Wait((*decision.reasons, *gate.reasons))


def _started(broker: Broker, target: BrokerMode) -> bool:
    """It runs in its new mode, or is silent as one that nobody tells anything: in KRaft mode a broker reads the log itself."""
    silent = broker.mode is None and broker.process.state is ProcessState.RUNNING
    return broker.mode is target or (silent and target is BrokerMode.MIGRATION)


def _depend(view: ClusterView, target: BrokerMode) -> bool:
    """Whether brokers hear the controllers by the dual-write's thread: this one, or any other."""
    modes = {target, *(broker.mode for broker in view.brokers.values())}
    return kraft_owns(view) and not ended(view) and BrokerMode.MIGRATION in modes
