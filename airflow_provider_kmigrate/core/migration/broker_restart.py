"""The restart of one broker on one page: what is decided from one observation to the next, what it remembers, what it reads.

`next_action` is read from top to bottom, in the order of a restart:

1. Something put another file in place of the one that this process installed: refuse, since it would do so at each start.
2. `BrokerRestart.decide` says what this observation alone leaves to do. Only here do the kinds of restart differ: the gates of a roll are
   in `core.migration.roll`, those of a rollback in `core.migration.rollback`, those of an
   expansion in `core.offsets_topic.expansion`.
3. It may stop, as far as that shows: a canary is measured, consumer groups must continue, what costs most is read. Then it restarts.
4. It takes part again: the groups are swept once; the first broker of a pass bakes, and is rolled back if it is worse.
5. It does not take part: a stalled dual-write is named as the cause; a leader that keeps it out of its ISRs is restarted.
6. The dual-write has stalled, whatever the restart waits for: it is recovered.

What holds any act of any step (its machine may be another cluster's, no maintenance window is open, ZooKeeper was away a moment ago)
is in `steps.run`.

What is read when is one table, `READINGS`: what costs megabytes is read once nothing else is missing, never to wait for something else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from math import inf
from typing import NamedTuple

from airflow_provider_kmigrate.core.cluster_state.decision import (
    NOTHING,
    Act,
    Decision,
    Done,
    NextAction,
    Reading,
    Refuse,
    Verb,
    Wait,
    waits_for,
)
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Cause, ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupProgressSpec, Policy
from airflow_provider_kmigrate.core.migration import coordinator, readiness, recovery, roll, rollback
from airflow_provider_kmigrate.core.migration.group_progress import GroupProgress
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.core.migration.recovery import Recovered, Recoveries, StalledDualWrite
from airflow_provider_kmigrate.core.migration.roll import CanaryBake, MovedSince
from airflow_provider_kmigrate.core.migration.rollback import SAFE, RollbackTerms
from airflow_provider_kmigrate.core.migration.waits import HealthyTimer
from airflow_provider_kmigrate.core.node_files.config_matrix import stage_on_disk


class When(StrEnum):
    """The moments of a restart that read differently."""

    BEFORE = auto()
    PROBED = auto()
    GROUPS = auto()
    COORDINATORS = auto()
    READINESS = auto()
    STARTING = auto()
    REJOINING = auto()
    STARTED = auto()
    BAKING = auto()
    STALLED = auto()
    CONTROLLER_DOWN = auto()


class Cost(NamedTuple):
    """What is read, and what that costs a cluster, in words."""

    fields: Fields
    text: str


_STARTED = Fields.POSITION | Fields.NODES | Fields.PARTITIONS
READINGS: Mapping[When, Cost] = {
    When.BEFORE: Cost(
        roll.MIN_OBSERVATIONS,
        "Each time while a gate is closed: a few requests to every node, the list of topics (kept for 15 s), this machine's files.",
    ),
    When.PROBED: Cost(Fields.PROBE, "In a roll, with the gates: a file of this machine."),
    When.GROUPS: Cost(
        Fields.GROUP_PROGRESS,
        "Once every other gate is open: two requests for each consumer group. Again every quarter of a second while they have just "
        "begun to continue, later every 3 s; once more when the broker is back.",
    ),
    When.COORDINATORS: Cost(
        Fields.COORDINATORS, "In a rollback, at the first open gate and right before the stop: a few requests to every broker."
    ),
    When.READINESS: Cost(
        readiness.fields_of(readiness.EVERY_PART),
        "In a roll, at the first open gate and right before the stop: all metadata of both sides (megabytes), every node's files, the "
        "backup. If a rollback is not assured: once in 15 s.",
    ),
    When.STARTING: Cost(
        Fields.ANSWERS,
        "While it starts, for 2 s between two whole observations: one request to every node.",
    ),
    When.REJOINING: Cost(Fields.ANSWERS | Fields.PARTITIONS, "The same while it is out of an ISR: the partitions, too."),
    When.STARTED: Cost(_STARTED, "Each time after the restart: what shows the phase, the partitions, this machine's files."),
    When.BAKING: Cost(
        _STARTED | Fields.MIN_INSYNC,
        "The same for the first broker of a pass, and while a leader may have to restart: the topics' settings.",
    ),
    When.STALLED: Cost(Fields.CLIENT_METRICS, "While the dual-write has stalled: one request."),
    When.CONTROLLER_DOWN: Cost(
        recovery.CONTROLLER_DOWN_FIELDS, "After a failover, while a controller does not answer: every node's machine."
    ),
}
"""What is read when, with its cost; docs/architecture.md shows it."""

ASKED_EVERY = 15.0  # seconds between two readings of READINESS while a rollback is not assured
_COSTLY = {Cause.READINESS_NOT_ASKED: When.READINESS, Cause.COORDINATORS_NOT_ASKED: When.COORDINATORS}
_NOT_HELD = "A rollback waits no longer for consumer groups:"
_CANARY_WITHIN = 30.0  # seconds for the gates of a canary's rollback to open; after that a degraded broker stays in its mode


@dataclass(frozen=True, slots=True)
class RestartState:
    """All that one process remembers of a restart; `progress` is the part that the next process needs.

    `canary`, `healthy`: of the first broker of a pass, None in a rollback. `groups`: None if none are waited for. `leader`, `dual_write`:
    how long what they recover from has lasted. `moved`: observations between which the dual-write must move. `began`: time of the
    first observation. `counts`: of coordinator topics, that our note must have before a restart. `left_behind`: by a finalization: it
    must come back, and its edited file is kept beside. `restarted`: by this process, with the file that it installed (R13 is judged
    only then). `costly_at`: when the costly fields were last read; `unready`: why no rollback was assured then.
    """

    canary: CanaryBake | None = None
    healthy: HealthyTimer = field(default_factory=lambda: HealthyTimer(0.0, 0.0))
    groups: GroupProgress | None = None
    leader: Recoveries = field(default_factory=Recoveries)
    dual_write: StalledDualWrite = field(default_factory=StalledDualWrite)
    moved: MovedSince | None = None
    began: float = inf
    counts: Mapping[str, int] = field(default_factory=dict)
    left_behind: bool = False
    restarted: bool = False
    costly_at: float | None = None
    unready: tuple[Reason, ...] = ()

    @classmethod
    def begin(cls, restart: BrokerRestart, policy: Policy, groups: GroupProgressSpec | None) -> RestartState:
        """The state of a restart of which nothing was observed."""
        canary = CanaryBake(restart.broker, restart.target, policy.canary_bake) if restart.judges_canary else None
        timer = HealthyTimer(0.0, policy.sample_interval)
        return cls(canary, timer, None if groups is None else GroupProgress(groups))

    def resume_from(self, progress: StepProgress) -> RestartState:
        """Continue with what earlier processes stored."""
        canary = self.canary and replace(self.canary, held=progress.healthy_seconds, worse=progress.worse)
        healthy = replace(self.healthy, held=progress.healthy_seconds)
        return replace(self, canary=canary, healthy=healthy, dual_write=StalledDualWrite(progress.recoveries))

    def to_progress(self, waited: float) -> StepProgress:
        """What the next process must know; `waited`: seconds that count against the step's timeout."""
        worse = self.canary.worse if self.canary else ()
        return StepProgress(self.healthy.held, waited, worse=worse, recoveries=self.dual_write.times)

    def add_view(self, view: ClusterView, moved: MovedSince) -> RestartState:
        """Note what any observation may show, whatever is decided."""
        return replace(
            self,
            moved=moved,
            began=min(self.began, view.taken_at),
            left_behind=position_of(view).phase is Phase.LEFT_BEHIND,
            counts=self.counts if view.coordinators is None else coordinator.counts_to_note(view),
        )

    def add_costly_reading(self, view: ClusterView, read: Reading, decision: Decision, missing: Reading) -> RestartState:
        """Note when all of the costly fields were read, and why no rollback was assured then."""
        is_complete = bool(read.fields & Fields.COORDINATORS) and not missing.fields
        waits_because = decision.reasons if isinstance(decision, Wait) else ()
        return replace(
            self,
            costly_at=view.taken_at if is_complete else self.costly_at,
            unready=waits_because if read.fields & Fields.BACKUP else self.unready,
        )

    def add_canary_view(self, view: ClusterView, decision: Decision) -> tuple[RestartState, Decision]:
        """Add one observation of the first broker of a pass; return the decision, or what the canary puts in its place."""
        if self.canary is None:
            return self, decision
        canary, decision = self.canary.add_view(view, decision)
        return replace(self, canary=canary), decision

    def reset_for_stop(self) -> RestartState:
        """Right before the broker stops: health of its earlier mode counts no more, and groups that moved must continue."""
        return replace(self, healthy=self.healthy.reset(), groups=self.groups and self.groups.with_restart_begun())

    def withdraw_decision(self) -> RestartState:
        """Another process performs what was decided last."""
        return replace(
            self, groups=self.groups and self.groups.without_baseline(), dual_write=self.dual_write.withdraw_decision()
        )


@dataclass(frozen=True, slots=True)
class BrokerRestart:
    """Which broker restarts into which mode, and in what that kind of restart differs.

    `decide`: what one observation leaves to do, compared with one before it. `recover`: what is done for a broker that is up and out of its ISRs. `probed`: the
    probe's records must be acknowledged as before. `judges_canary`: it restarts towards KRaft, so the first broker of a pass may be
    rolled back. `is_rollback`: nothing but the cluster's own safety delays it: consumer groups that hang do not, nor other machines.
    `let_go`: groups that are not waited for.
    """

    broker: int
    target: BrokerMode
    decide: Callable[[ClusterView, RestartState, ClusterView], Decision]
    recover: Callable[[ClusterView, int, Decision, Recoveries], Recovered] = recovery.recover
    probed: bool = False
    judges_canary: bool = False
    is_rollback: bool = False
    let_go: Callable[[ClusterView, Collection[str]], Collection[str]] | None = None
    with_coordinators: Fields = Fields.COORDINATORS

    @property
    def reading_before(self) -> Reading:
        """What is read until it was restarted."""
        return Reading(READINGS[When.BEFORE].fields | (READINGS[When.PROBED].fields if self.probed else Fields(0)))


def roll_to(broker: int, target: BrokerMode) -> BrokerRestart:
    """The restart of a roll towards KRaft."""

    def decide(view: ClusterView, _state: RestartState, before: ClusterView) -> Decision:
        return roll.decide_restart(view, broker, target, before)

    return BrokerRestart(broker, target, decide, probed=True, judges_canary=True)


def roll_back_to(broker: int, target: BrokerMode, terms: RollbackTerms = SAFE) -> BrokerRestart:
    """The restart of a rollback; `terms`: what the run accepts."""

    def decide(view: ClusterView, _state: RestartState, before: ClusterView) -> Decision:
        return rollback.decide_roll_back(view, before, broker, target, terms)

    return BrokerRestart(broker, target, decide, rollback.recover, is_rollback=True)


def roll_back_left_broker(broker: int) -> BrokerRestart:
    """The restart of a broker that hangs because its file needs controllers that were handed over; others may hang for the same reason.

    Done once it answers: it is in its ISRs only after the others are back.
    """

    def decide(view: ClusterView, _state: RestartState, _before: ClusterView) -> Decision:
        decision, answers = rollback.decide_roll_back_left_broker(view, broker), view.broker(broker).mode is BrokerMode.ZOOKEEPER
        return Done(f"Broker {broker} answers in zookeeper mode.") if answers and isinstance(decision, Wait) else decision

    return BrokerRestart(broker, BrokerMode.ZOOKEEPER, decide, rollback.recover, is_rollback=True)


def roll_back_canary(broker: int, target: BrokerMode) -> BrokerRestart:
    """The restart of the first broker of a pass alone, because it is worse; refused if it could not begin within `_CANARY_WITHIN`."""

    def decide(view: ClusterView, state: RestartState, before: ClusterView) -> Decision:
        decision = rollback.decide_roll_back_canary(view, before, broker, target)
        untouched = stage_on_disk(view.broker(broker).files) is not roll.STAGE[target]
        late = isinstance(decision, Wait) and untouched and view.taken_at - state.began > _CANARY_WITHIN
        return Refuse(decision.reasons) if late and isinstance(decision, Wait) else decision

    return BrokerRestart(broker, target, decide, rollback.recover, is_rollback=True)


class _Stage(NamedTuple):
    """What a stage leaves. `needs`: to be read first, then everything is decided again. `held_by_groups`: they hold a rollback."""

    state: RestartState
    decision: Decision
    needs: Reading = NOTHING
    held_by_groups: bool = False


def next_action(restart: BrokerRestart, state: RestartState, view: ClusterView, read: Reading) -> NextAction[RestartState]:
    """Decide what is done now; `read`: what was read for this view, whether or not it was answered."""
    broker, target = restart.broker, restart.target
    moved = roll.update_moved_since(state.moved, view, view)
    before = moved.earlier  # the observation since which the dual-write must have moved
    state = state.add_view(view, moved)

    # 1. Something rewrites the broker's file at its start, and would do so at each.
    if state.restarted and (refusal := roll.refuse_rewritten_file(view, broker, target)) is not None:
        return NextAction(refusal, state, read)

    # 2. What this observation alone leaves to do.
    if _needs_every_file(restart, view, read):
        return _request_reading(state, read, Reading(Fields.NODES, every_node=True))
    decision = restart.decide(view, state, before)
    costly = _missing_costly_reading(restart, decision, read)
    state = state.add_costly_reading(view, read, decision, costly)

    if costly.fields or (isinstance(decision, Act) and decision.verb is Verb.RESTART):
        # 3. It may stop, as far as this shows.
        stage = _decide_before_stop(restart, state, view, read, decision, costly=costly)
    elif isinstance(decision, Done):
        # 4. It takes part again.
        stage = _decide_after_start(restart, state, view, read, decision)
    else:
        stage = _Stage(*state.add_canary_view(view, decision))  # a canary that bakes is judged while it does not answer, too
    if stage.needs.fields:
        return _request_reading(stage.state, read, stage.needs)
    state, decision = stage.state, stage.decision

    # 5. It is started and does not take part; or another one does not, and it may not stop.
    decision = recovery.explain_stalled_dual_write(view, before, broker, target, decision)
    leader = state.leader.reset_timers()
    if recovery.is_wait_for_isrs(decision):
        decision, leader = restart.recover(view, broker, decision, state.leader)

    # 6. The dual-write stays stalled: complete the topics, fail the controller over, start a controller that a failover left down.
    decision, dual_write, more = with_dual_write_recovery(state.dual_write, view, decision)
    state = replace(state, leader=leader, dual_write=dual_write)

    # What only this process knows of: that it restarted the broker (R13), how long it has counted for a recovery or for groups.
    unresponsive = state.restarted and not view.has_answered(broker)
    may_defer = not (unresponsive or leader.tried or dual_write.pending or stage.held_by_groups)
    return NextAction(decision, state, _next_reading(restart, state, view, decision, more), may_defer)


def with_dual_write_recovery(
    stalled: StalledDualWrite, view: ClusterView, decision: Decision
) -> tuple[Decision, StalledDualWrite, Fields]:
    """The decision or a recovery of the dual-write, what is remembered of it, and what the next observation reads for it."""
    if not isinstance(decision, Wait) and stalled == StalledDualWrite():
        return decision, stalled, Fields(0)
    down = rollback.find_down_controller(view) if stalled.times else None  # none was stopped before the first recovery
    return recovery.recover_dual_write(view, decision, stalled, down)


def _request_reading(state: RestartState, read: Reading, needs: Reading) -> NextAction[RestartState]:
    """Read what was read once more, with what is needed. A sweep is kept in the state, and is not made twice."""
    return NextAction(Wait(()), state, Reading(read.fields & ~Fields.GROUP_PROGRESS, read.every_node), needs=needs)


def _needs_every_file(restart: BrokerRestart, view: ClusterView, read: Reading) -> bool:
    """Whether a broker that does not answer may need its original before this one can start (`rollback.find_brokers_without_quorum`).

    Only then does a rollback to ZooKeeper ask every machine.
    """
    if read.every_node or not restart.is_rollback or restart.target is not BrokerMode.ZOOKEEPER:
        return False
    return any(broker.mode is None for broker in view.brokers.values() if broker.id != restart.broker)


def _missing_costly_reading(restart: BrokerRestart, decision: Decision, read: Reading) -> Reading:
    """What the decision waits for and no observation has asked for yet; no fields if it waits for nothing like that."""
    for cause, when in _COSTLY.items():
        if waits_for(decision, cause) and READINGS[when].fields & ~read.fields:
            fields = restart.with_coordinators if when is When.COORDINATORS else READINGS[when].fields
            return Reading(fields, every_node=not restart.is_rollback)  # no other machine delays a rollback
    return NOTHING


def _decide_before_stop(
    restart: BrokerRestart, state: RestartState, view: ClusterView, read: Reading, decision: Decision, *, costly: Reading
) -> _Stage:
    """Stage 3: a canary is measured, consumer groups must continue, what costs most is read; then the decision stands."""
    if costly.fields and state.unready and view.taken_at - (state.costly_at or 0.0) < ASKED_EVERY:
        return _Stage(state, Wait(state.unready))  # to ask again so soon would read megabytes
    stop = decision if isinstance(decision, Act) else Act(Verb.RESTART, "if what is read now allows it")

    is_measuring = state.canary is not None and state.canary.needs_more_samples(view)  # the last sample may restart
    measured, after_canary = state.add_canary_view(view, stop)
    groups = None if roll.has_isolated_brokers(view) else state.groups
    if groups is not None and restart.let_go is not None:
        groups = groups.exclude_groups(restart.let_go(view, groups.list_group_names(view)))
    sweep = _missing_sweep(groups, view, read, stop)
    groups, after_groups = _hold_for_groups(restart, groups, view, stop)
    waits = [wait for wait in (after_canary, after_groups) if isinstance(wait, Wait)]

    # The costly fields come last, except at first: groups mostly continue at once, and then nothing is observed twice.
    asks_costly = not is_measuring and (state.costly_at is None or not (sweep.fields or waits))
    needs = sweep.plus(costly) if asks_costly else sweep
    if needs.fields:
        swept = replace(state, groups=groups or state.groups) if read.fields & Fields.GROUP_PROGRESS else state
        return _Stage(swept, stop, needs)
    state = replace(measured, groups=groups or state.groups)
    if waits:
        reasons = tuple(reason for wait in waits for reason in wait.reasons)
        held_by_groups = restart.is_rollback and isinstance(after_groups, Wait)
        return _Stage(state, Wait(reasons, healthy=all(wait.healthy for wait in waits)), held_by_groups=held_by_groups)
    return _Stage(state, decision if costly.fields else after_groups)  # never a restart on what was not read


def _decide_after_start(restart: BrokerRestart, state: RestartState, view: ClusterView, read: Reading, done: Done) -> _Stage:
    """Stage 4: the consumer groups are swept once; the first broker of a pass bakes, or is rolled back."""
    groups = None if roll.has_isolated_brokers(view) else state.groups
    needs = _missing_sweep(groups, view, read, done)
    after, decision = state.add_canary_view(view, done)
    if groups is not None:
        after = replace(after, groups=groups.add_view(view, done)[0])
    if (
        (canary := after.canary) is not None
        and isinstance(decision, Done)
        and roll.is_canary(view, restart.broker, restart.target)
    ):
        needs = needs.plus(Reading(Fields.MIN_INSYNC & ~read.fields))
        gate = roll.may_bake(view)
        after = replace(after, healthy=after.healthy.add_sample(view.taken_at, healthy=gate.met))
        decision = canary.decide_bake(decision, gate, after.healthy.held)
    return _Stage(state, done, needs) if needs.fields else _Stage(after, decision)


def _missing_sweep(groups: GroupProgress | None, view: ClusterView, read: Reading, decision: Decision) -> Reading:
    """The sweep that the groups need before this decision; `NOTHING` if this observation made one."""
    if groups is None or read.fields & Fields.GROUP_PROGRESS or not groups.needs_sweep(view, decision):
        return NOTHING
    return Reading(READINGS[When.GROUPS].fields, groups=groups.groups_to_read)


def _hold_for_groups(
    restart: BrokerRestart, groups: GroupProgress | None, view: ClusterView, stop: Act
) -> tuple[GroupProgress | None, Decision]:
    """The stop, or a wait for groups that have not continued since the last one; a rollback does not wait for groups that hang."""
    if groups is None:
        return None, stop
    groups, decision = groups.add_view(view, stop)
    if isinstance(decision, Wait) and restart.is_rollback and groups.may_stop_waiting(decision):
        decision = replace(stop, text=f"{stop.text} {_NOT_HELD} {' | '.join(map(str, decision.reasons))}")
    return groups, decision


def _next_reading(restart: BrokerRestart, state: RestartState, view: ClusterView, decision: Decision, more: Fields) -> Reading:
    """What the next observation reads. `more`: for the recovery of the dual-write; the controllers' machines, too."""
    if not state.restarted or view.broker(restart.broker).mode not in {None, restart.target}:
        fields = restart.reading_before.fields
    elif recovery.is_wait_for_own_isrs(decision) or (
        state.canary is not None and roll.is_first(view, restart.broker, restart.target)
    ):
        fields = READINGS[When.BAKING].fields
    else:
        fields = READINGS[When.STARTED].fields
    return Reading(fields | more, bool(more & Fields.PROCESSES))
