"""A soak in dual-write on one page: what is decided from one observation to the next, what it remembers, what it reads.

`next_action` is read from top to bottom:

1. The finalization has begun or is over: there is nothing to soak for.
2. Every gate is judged (`waits.may_soak`); if all are open, both sides are compared from time to time.
3. The healthy time is added up; one unhealthy observation sets it back. At its end a rollback must be assured once more, by what is
   read for it then.
4. A difference that lasts: a new leader writes what ZooKeeper misses, anything else is refused.
5. The dual-write has stalled: it is recovered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Done, NextAction, Reading, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.migration import coordinator, waits
from airflow_provider_kmigrate.core.migration.broker_restart import with_dual_write_recovery
from airflow_provider_kmigrate.core.migration.gates import refuse_or_wait
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.core.migration.recovery import StalledDualWrite
from airflow_provider_kmigrate.core.migration.roll import MovedSince, update_moved_since
from airflow_provider_kmigrate.core.migration.waits import HealthyTimer, SoakComparison

ALWAYS = Fields.POSITION | Fields.PARTITIONS | Fields.CLIENT_METRICS | Fields.GROUPS
_CHECKED = Fields.COORDINATORS | Fields.ENSEMBLE
_AT_THE_END = Fields.NODES | _CHECKED
_CHECKED_EVERY = 30.0  # seconds; an expansion of a topic is reported within a minute


@dataclass(frozen=True, slots=True)
class SoakState:
    """All that one process remembers of a soak. `agreed_at`: when the brokers' coordinators last agreed."""

    healthy: HealthyTimer
    compared: SoakComparison = field(default_factory=SoakComparison)
    dual_write: StalledDualWrite = field(default_factory=StalledDualWrite)
    moved: MovedSince | None = None
    agreed_at: float = float("-inf")

    def resume_from(self, progress: StepProgress) -> SoakState:
        """Continue with what earlier processes stored."""
        healthy = replace(self.healthy, held=progress.healthy_seconds)
        return replace(self, healthy=healthy, dual_write=StalledDualWrite(progress.recoveries))

    def to_progress(self, waited: float) -> StepProgress:
        """What the next process must know; `waited`: seconds that count against the step's timeout."""
        return StepProgress(self.healthy.held, waited, recoveries=self.dual_write.times)

    def withdraw_decision(self) -> SoakState:
        """Another process performs the recovery that was decided."""
        return replace(self, dual_write=self.dual_write.withdraw_decision())


def next_action(seconds: float, state: SoakState, view: ClusterView, read: Fields) -> NextAction[SoakState]:
    """Decide what is done now in a soak of so many healthy seconds; `read`: what was read for this view, whether or not it was answered."""
    # 1. Nothing is left to soak for.
    if (past := waits.decide_past_soak(view)) is not None:
        return NextAction(past, state, Reading(ALWAYS))

    # 2. Every gate.
    moved = update_moved_since(state.moved, view, view)
    gate, compared = waits.may_soak(view, moved.earlier), state.compared
    if gate.met:
        compared, gate = compared.add_view(view)
    else:
        compared = compared.reset(view)
    agreed = view.coordinators is not None and coordinator.brokers_agree(view).met
    healthy = state.healthy.add_sample(view.taken_at, healthy=gate.met)
    state = replace(
        state, moved=moved, compared=compared, healthy=healthy, agreed_at=view.taken_at if agreed else state.agreed_at
    )
    seldom = _CHECKED if view.taken_at - state.agreed_at >= _CHECKED_EVERY else Fields(0)
    reads = ALWAYS | seldom | (Fields.METADATA | Fields.NODES if compared.due else Fields(0))

    # 3. The time.
    healthy_seconds = healthy.held
    if not gate.met:
        decision: Decision = refuse_or_wait(gate)
    elif healthy_seconds < seconds:
        decision = Wait((Reason("T01", f"Soaking: healthy for {healthy_seconds:.0f} of {seconds:.0f} s."),), healthy=True)
    elif _AT_THE_END & ~read:
        return NextAction(Wait((), healthy=True), state, Reading(reads), needs=Reading(_AT_THE_END))
    else:
        end, reads = waits.may_end_soak(view, moved.earlier), reads | _AT_THE_END
        decision = Done(waits.describe_soak(view, healthy_seconds)) if end.met else Wait(end.reasons, healthy=True)

    # 4. A difference that lasts.
    if isinstance(decision, Refuse):
        dual_write, decision = state.dual_write.repair_difference(view, decision)
        return NextAction(decision, replace(state, healthy=healthy.reset(), dual_write=dual_write), Reading(reads))

    # 5. A stalled dual-write.
    decision, dual_write, more = with_dual_write_recovery(state.dual_write, view, decision)
    return NextAction(decision, replace(state, dual_write=dual_write), Reading(reads | more), not dual_write.pending)
