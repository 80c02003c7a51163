"""What is done by a step that needs a dual-write that moves: it sees to one that has ended for good, and to what such a cure has left."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_kmigrate.core.decision import Act, Decision, Refuse, Verb
from airflow_provider_kmigrate.core.migration.recovery import StalledDualWrite
from airflow_provider_kmigrate.core.model import ClusterView, Fields
from airflow_provider_kmigrate.core.rollback.rollback import still_down

DOWN_LOOKS = Fields.POSITION | Fields.NODES
"""What tells that a controller is down, and whether it may be started."""


@dataclass(frozen=True, slots=True)
class DualWriteRecovery:
    """The decision, or a cure. `wants`: what the next look is to tell beside the step's own."""

    decision: Decision
    standstill: StalledDualWrite
    wants: Fields


def recover_dual_write(view: ClusterView, decision: Decision, standstill: StalledDualWrite) -> DualWriteRecovery:
    """The decision, or the cure. A controller that is down after one was left so by a life that ended in it; others are not ours."""
    begun = standstill.times > 0
    down = still_down(view) if begun and not isinstance(decision, Refuse) else None
    kept, decision = standstill.cured(view, _of_controller(down[1]) if down else decision)
    silent = any(not controller.answers for controller in view.controllers.values())
    wants = DOWN_LOOKS if begun and silent else Fields(0)
    return DualWriteRecovery(decision, kept, wants | Fields.CLIENT_METRICS if kept.suspected else wants)


def _of_controller(decision: Decision) -> Decision:
    return Act(Verb.START_CONTROLLER, decision.text) if isinstance(decision, Act) else decision
