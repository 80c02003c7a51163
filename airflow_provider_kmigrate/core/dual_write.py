"""Recovery of a stalled dual-write, used by steps that depend on it, and of a controller that such a recovery left down."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_kmigrate.core.decision import Act, Decision, Refuse, Verb
from airflow_provider_kmigrate.core.migration.recovery import StalledDualWrite
from airflow_provider_kmigrate.core.model import ClusterView, Fields
from airflow_provider_kmigrate.core.rollback.rollback import still_down

DOWN_LOOKS = Fields.POSITION | Fields.NODES
"""What shows that a controller is down, and whether it may be started."""


@dataclass(frozen=True, slots=True)
class DualWriteRecovery:
    """The decision, or a recovery. `wants`: what the next observation must read beside the step's own fields."""

    decision: Decision
    standstill: StalledDualWrite
    wants: Fields


def recover_dual_write(view: ClusterView, decision: Decision, standstill: StalledDualWrite) -> DualWriteRecovery:
    """The decision, or the recovery.

    After a recovery, a controller that is down was left so by a process that died in it; other controllers are not started here.
    """
    begun = standstill.times > 0
    down = still_down(view) if begun and not isinstance(decision, Refuse) else None
    kept, decision = standstill.cured(view, _of_controller(down[1]) if down else decision)
    silent = any(not controller.answers for controller in view.controllers.values())
    wants = DOWN_LOOKS if begun and silent else Fields(0)
    return DualWriteRecovery(decision, kept, wants | Fields.CLIENT_METRICS if kept.suspected else wants)


def _of_controller(decision: Decision) -> Decision:
    return Act(Verb.START_CONTROLLER, decision.text) if isinstance(decision, Act) else decision
