"""Restart one broker in its next mode, on migration or rollback."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn, Self

from airflow_provider_kmigrate.clients.hosts.agent import MetaTexts
from airflow_provider_kmigrate.core import coordinator, gates, readiness, rollback
from airflow_provider_kmigrate.core.cluster import GroupProgressSpec, NodeSpec, Policy
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait, waits_for
from airflow_provider_kmigrate.core.files import config_matrix
from airflow_provider_kmigrate.core.files.config_matrix import stage_on_disk
from airflow_provider_kmigrate.core.migration import recovery, roll
from airflow_provider_kmigrate.core.migration.recovery import Recoveries, explain_stalled_dual_write
from airflow_provider_kmigrate.core.migration.roll import CanaryBake, MovedSince, moved_since
from airflow_provider_kmigrate.core.migration.waits import HealthyTimer
from airflow_provider_kmigrate.core.model import BrokerMode, Cause, ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.phase import Phase, where
from airflow_provider_kmigrate.core.progress import StepProgress
from airflow_provider_kmigrate.core.rollback import SAFE, RollbackTerms
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused, TimedOut
from airflow_provider_kmigrate.steps.dual_write import REPAIRS, DualWriteRepair, elect_again
from airflow_provider_kmigrate.steps.group_watch import GroupWatch
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.nodes import (
    install,
    note_counts,
    note_registered,
    note_rolled_back,
    ours,
    restart,
    retry,
    start,
)
from airflow_provider_kmigrate.steps.run import NodeStep, StepContext, observe_files, run_step

_ASKED_EVERY = 15.0  # seconds between two readings of all that a rollback depends on; of a large cluster each reads megabytes
_NOT_HELD = "A rollback waits no longer for consumer groups:"
_ROLLED_BACK_WITHIN = 30.0  # seconds for the gates to open; after that a degraded broker stays in its mode


class RollBroker(NodeStep):
    """Bring one broker into migration mode or into KRaft mode. `decide` is the whole restart, read from top to bottom.

    The restart itself is `core.migration.roll.decide_restart`: which gates must be open before the broker stops, and when it is back.
    """

    always = roll.MIN_OBSERVATIONS | Fields.PROBE  # what every observation reads
    fields = always
    expensive_nodes: tuple[NodeSpec, ...] | None = ()  # a rollback needs every node's file
    acts_elsewhere = frozenset({Verb.RESTART_LEADER, Verb.ELECT}) | REPAIRS
    doing = ""
    in_windows = True
    back = False  # the rollback does not stop at an edited file, nor at consumer groups that hang
    recover_leader = staticmethod(recovery.recover)

    def __init__(self, node: NodeSpec, target: BrokerMode, policy: Policy, groups: GroupProgressSpec | None = None) -> None:
        """`groups`: how the consumer groups must continue; None: they are not waited for."""
        super().__init__(node)
        self.target, self._policy = target, policy
        self.name = f"{self.name} to {target}".strip()
        self.samples, self.interval = policy.stable_samples, policy.sample_interval
        self.patience = policy.start_timeout
        self._moved: MovedSince | None = None
        self._asked_at = float("-inf")  # when all that a rollback depends on was last read
        self._unready: tuple[Reason, ...] = ()  # what did not hold then
        self._left_behind = False  # by a finalization: it must come back, and its edited file is kept beside
        self._restarted = False  # by this process, with the file that it installed
        self._canary = CanaryBake(node.id, target, policy.canary_bake)
        self._healthy = HealthyTimer(0.0, self.interval)  # of the bake
        self._groups = None if groups is None else GroupWatch(groups)
        self._waits_for_groups = False  # for a time that only this process counts
        self._counts: dict[str, int] = {}  # of coordinator topics, that our note must have before a restart
        self._leader = Recoveries()
        self._dual_write = DualWriteRepair()

    def resume(self, progress: StepProgress) -> Self:
        """Continue the healthy time, the canary's verdict and the count of recoveries."""
        self._healthy = replace(self._healthy, held=progress.healthy_seconds)
        self._canary = replace(self._canary, held=progress.healthy_seconds, worse=progress.worse)
        self._dual_write = DualWriteRepair(progress.recoveries)
        return super().resume(progress)

    @property
    def progress(self) -> StepProgress:
        """The healthy time, the canary's verdict and the count of recoveries."""
        kept = replace(super().progress, healthy_seconds=self._healthy.held, worse=self._canary.worse)
        return replace(kept, recoveries=self._dual_write.stalled.times)

    @property
    def seconds_left(self) -> float:
        """The rest of a bake that has begun."""
        return max(0.0, self._policy.canary_bake - self._healthy.held) if self._healthy.held else 0.0

    def begin(self, context: StepContext) -> None:
        """Read what the previous restart left of the consumer groups."""
        if self._groups is not None:
            self._groups.begin(context)
            self.groups = self._groups.progress.named

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Decide in five stages, numbered below; each gets the decision of the one before."""
        # 0. Something rewrites the broker's file at its start, and would do so at each.
        if self._restarted and (refusal := roll.written_at_start(view, self.node.id, self.target)) is not None:
            return refusal
        self._left_behind = where(view).phase is Phase.LEFT_BEHIND
        self._moved = moved_since(self._moved, view, first)
        self._counts = self._counts if view.coordinators is None else coordinator.counts_to_note(view)
        before = self._moved.old  # the observation since which the dual-write must have moved
        # 1. The rest of the restart, if every leader and controller works. The first broker of a pass bakes, and may be rolled back.
        decision = self.decide_restart(view, first, before)
        # 2. A started broker gets no metadata: name the dual-write if it has stalled.
        decision = explain_stalled_dual_write(view, before, self.node.id, self.target, decision)
        # 3. A started broker stays out of its ISRs: restart the leader that keeps it out, or elect leaders.
        decision, self._leader = self.recover_leader(view, self.node.id, decision, self._leader)
        # 4. The dual-write stays stalled: complete the topics, fail the controller over.
        decision = self._dual_write.decide(view, decision)
        self.fields = self.always | self._dual_write.more_fields
        self.nodes = () if self._dual_write.more_fields & Fields.PROCESSES else (self.node,)  # the controllers' processes, too
        unresponsive = self._restarted and not view.answered(self.node.id)  # no other process knows that it was restarted (R13)
        self.must_stay = unresponsive or self._leader.tried or self._dual_write.stalled.pending
        self.must_stay = self.must_stay or self._waits_for_groups  # another process would count from zero
        return decision

    def decide_restart(self, view: ClusterView, _first: ClusterView, before: ClusterView) -> Decision:
        """Decide what is left of the restart, with what earlier observations showed."""
        alone = self._with_readiness(view, self.decide_alone(view, before))
        self._canary, decision = self._canary.observe(view, alone)
        if isinstance(decision, Done) and roll.is_canary(view, self.node.id, self.target):
            gate = roll.may_bake(view)
            self._healthy = self._healthy.observe(view.taken_at, healthy=gate.met)
            decision = self._canary.baked(decision, gate, self._healthy.held)
        return self._with_groups(view, alone, decision)

    def decide_alone(self, view: ClusterView, before: ClusterView) -> Decision:
        """Decide what is left of the restart from one observation. `before`: one from which movement of the dual-write is measured."""
        return roll.decide_restart(view, self.node.id, self.target, before)

    def _with_readiness(self, view: ClusterView, decision: Decision) -> Decision:
        """The decision; if something was not read this time, the last decision that had it."""
        if waits_for(decision, Cause.READINESS_NOT_ASKED):
            measured = Act(Verb.RESTART, "The restart follows once the canary was measured.")
            return measured if self._canary.measures(view) else Wait(self._unready or decision.reasons)
        if view.backup is not None:
            self._unready = decision.reasons if isinstance(decision, Wait) else ()
        return decision

    def _with_groups(self, view: ClusterView, alone: Decision, decision: Decision) -> Decision:
        """The decision; or a wait for the consumer groups, which must continue after the last restart before this one begins."""
        if self._groups is None:
            return decision
        held = self._groups.decide(view, alone, decision)
        self.groups = self._groups.progress.named
        self._waits_for_groups = False
        if self.back and isinstance(held, Wait) and isinstance(decision, Act):
            if self._groups.gives_up(held):
                return replace(decision, text=f"{decision.text} {_NOT_HELD} {format_reasons(held.reasons)}")
            self._waits_for_groups = True
        return held

    def expensive_fields(self, view: ClusterView) -> Fields:
        """What a restart needs to know beyond the rest: readiness, coordinators, consumer groups."""
        decision = self.decide_alone(view, self._moved.old if self._moved else view)
        more = Fields(0)
        if waits_for(decision, Cause.READINESS_NOT_ASKED):
            more = self._whole_readiness(view)
        elif waits_for(decision, Cause.COORDINATORS_NOT_ASKED):
            more = Fields.COORDINATORS
        decision = Act(Verb.RESTART, "if what is read now allows it") if more else decision
        return more | (Fields(0) if self._groups is None else self._groups.fields(view, decision))

    def _whole_readiness(self, view: ClusterView) -> Fields:
        """The fields of all that a rollback depends on; none while the canary is measured, or soon after they did not allow a restart."""
        if self._canary.measures(view) or (self._unready and view.taken_at - self._asked_at < _ASKED_EVERY):
            return Fields(0)
        self._asked_at = view.taken_at
        return readiness.fields_of(readiness.EVERY_PART)

    def act(self, context: StepContext, act: Act) -> None:
        """Repair the dual-write, or do what the roll decided: restart, roll back, elect."""
        if self._dual_write.act(context, self.name, act):
            return
        self._leader = self._leader.acted(act.verb)  # before it begins: a failed try counts
        match act.verb:
            case Verb.START | Verb.REWRITE | Verb.RESTART:
                self._act_on_broker(context, act.verb)
            case Verb.ROLL_BACK_CANARY:
                self._roll_back_alone(context)
            case Verb.RESTART_LEADER:
                self._restart_stuck_leader(context)
            case Verb.ELECT:
                view = context.observer.observe(Fields.ZOOKEEPER | Fields.PARTITIONS)
                context.tools.admin.elect_preferred(roll.left_out(view, self.node.id), context.fence)
            case _:
                super().act(context, act)

    def _act_on_broker(self, context: StepContext, verb: Verb) -> None:
        """Act on this broker itself: its file, then its process."""
        if self.target is BrokerMode.MIGRATION:
            note_registered(context, self.node.id)
        if verb is not Verb.START:
            install(context, self.node, roll.STAGE[self.target], back=self.back or self._left_behind)
        if verb is Verb.START:
            self._start(context)
        if verb is Verb.RESTART and not self.back:
            note_counts(context, self._counts)
        if verb is Verb.RESTART:
            self._restart(context)
            self._restarted = True  # once it is certain: a machine that fails before comes back in the earlier mode (R13)

    def _restart(self, context: StepContext) -> None:
        self._healthy = self._healthy.forgotten()  # of an earlier restart
        if self._groups is not None:
            self._groups.restarting(context)
        moved: list[gates.Gate] = []
        restart(context, self.node, self.metas(context), lambda seconds: moved.append(self._left_in_charge(context, seconds)))
        for gate in moved:
            if not gate.met:
                raise Refused(f"{self.name}: {format_reasons(gate.reasons)}", gate.reasons)

    def _left_in_charge(self, context: StepContext, seconds: float) -> gates.Gate:
        """G12, checked only after a slow stop: an observation costs downtime. A failed one must not keep the broker down."""
        if seconds < gates.slow_stop_limit(0):
            return gates.MET
        try:
            view = context.observer.observe(Fields.PARTITIONS)
        except KMigrateError as error:
            context.say(f"Could not read whether the slow stop of {self.node.name} left leaders behind (G12): {error}")
            return gates.MET
        return gates.after_stop(view, self.node.id, seconds)

    def _start(self, context: StepContext) -> None:
        """Start the broker, which is down. If its meta.properties cannot be read, it is started anyway and the error raised."""
        try:
            metas = self.metas(context)
        except KMigrateError:
            start(context, self.node)
            raise
        start(context, self.node, metas)

    def metas(self, _context: StepContext) -> MetaTexts:
        """The meta.properties that must be written while the broker is down."""
        return {}

    def _restart_stuck_leader(self, context: StepContext) -> None:
        """Restart the leader with the file that it has, if it is still the cause."""
        view = context.observer.observe(Fields.BROKERS | Fields.ZOOKEEPER | Fields.PARTITIONS | Fields.COORDINATORS)
        found = recovery.leader_to_restart(view, self.node.id, context.tools.wire(self.node).replica_lags())
        leader = next((broker for broker in context.spec.brokers if broker.id == found), None)
        if leader is None:
            context.say(str(found))
            return
        file = gates.starts_as_it_runs(observe_files(context, Fields.BROKERS, (leader,)).broker(leader.id))
        if not (gate := gates.together((coordinator.agreed(view), ours(context, self.name, leader), file))).met:
            context.say(f"Not restarting {leader.name} now: {format_reasons(gate.reasons)}")
            return
        restart(context, leader)
        context.say(f"Restarted {leader.name}. Search its log for 'alter-partition' and ERROR.")

    def _roll_back_alone(self, context: StepContext) -> NoReturn:
        """Run the rollback step for this one broker to its end. This run never continues, whatever the result."""
        worse, mode = self._canary.worse, roll.previous_mode(self.target)
        self._healthy = self._healthy.forgotten()  # the time counted so far belongs to the failed mode
        try:
            run_step(RollBackCanary(self.node, mode, self._policy), context)
            end = (roll.rolled_back(context.observer.observe(Fields.ZOOKEEPER), self.node.id, mode),)
        except (Refused, TimedOut, Failed) as error:
            end = (roll.not_rolled_back(self.node.id, str(error)), *getattr(error, "reasons", ()))
        raise Refused(f"{self.name}: {format_reasons((*worse, *end[:1]))}", (*worse, *end))

    def forget_decision(self) -> None:
        """Forget what was decided of groups and of the dual-write."""
        if self._groups is not None:
            self._groups.forget_decision()
        self._dual_write.forget_decision()

    def end(self, context: StepContext) -> None:
        """Leave the sweep of the consumer groups to the next restart."""
        if self._groups is not None:
            self._groups.save(context)


class RollBackBroker(RollBroker):
    """Roll one broker back to migration mode, which needs a moving dual-write, or to its original file."""

    doing = "roll back"
    always = fields = roll.MIN_OBSERVATIONS  # neither the probe nor its disk delays a rollback
    expensive_nodes = None  # no other machine delays a rollback
    in_windows = False
    back = True
    recover_leader = staticmethod(rollback.recover)
    acts_elsewhere = RollBroker.acts_elsewhere | {Verb.RAISE, Verb.ROLL_BACK_OTHER}

    def __init__(
        self,
        node: NodeSpec,
        target: BrokerMode,
        policy: Policy,
        groups: GroupProgressSpec | None = None,
        terms: RollbackTerms = SAFE,
    ) -> None:
        """As a roll; `terms`: what the run accepts."""
        super().__init__(node, target, policy, groups)
        self.terms = terms

    def decide_alone(self, view: ClusterView, before: ClusterView) -> Decision:
        """Decide the rollback of this broker, without the consumer groups."""
        return rollback.decide_roll_back(view, before, self.node.id, self.target, self.terms)

    def expensive_fields(self, view: ClusterView) -> Fields:
        """As a roll; and every broker's file while another one does not answer, since it may need its original before it can start."""
        silent = any(broker.mode is None for broker in view.brokers.values() if broker.id != self.node.id)
        self.expensive_nodes = () if silent and self.target is BrokerMode.ZOOKEEPER else None
        return super().expensive_fields(view) | (Fields.NODES if self.expensive_nodes is not None else Fields(0))

    def decide_restart(self, view: ClusterView, _first: ClusterView, before: ClusterView) -> Decision:
        """Decide the rollback; a restart also needs the consumer groups."""
        decision = self.decide_alone(view, before)
        return self._with_groups(view, decision, decision)

    def act(self, context: StepContext, act: Act) -> None:
        """Raise the epochs of partition states, bring another broker back, or act as a roll does."""
        if act.verb is Verb.RAISE:
            self._leader = self._leader.acted(act.verb)
            self._raise(context)
        elif act.verb is Verb.ROLL_BACK_OTHER:
            self._roll_back_left(context)
        else:
            super().act(context, act)

    def _roll_back_left(self, context: StepContext) -> None:
        """Give the brokers that were left without a quorum their original files, one by one, and wait until each answers."""
        view = context.observer.observe(Fields.POSITION | Fields.NODES)
        for node in context.spec.brokers:
            if node.id in rollback.left_without_quorum(view) and node.id != self.node.id:
                run_step(RollBackLeftBroker(node, self.target, self._policy), context)

    def _raise(self, context: StepContext) -> None:
        view, lags = context.observer.observe(Fields.PARTITIONS), context.tools.wire(self.node).replica_lags()
        if why_not := recovery.reason_not_to_elect(view, self.node.id, lags):
            context.say(why_not)
            return
        elect_again(context)

    def metas(self, context: StepContext) -> MetaTexts:
        """Version 0 before a ZooKeeper start; a broker exits with version 1 (G10)."""
        if self.target is not BrokerMode.ZOOKEEPER:
            return {}
        host, what = context.tools.host(self.node), f"meta.properties of {self.node.name} could not be read"
        files = retry(context, what, lambda: host.files(self.node))
        found = {folder: config_matrix.version_0((files.meta or {})[folder]) for folder in config_matrix.needs_version_0(files)}
        for folder in found:
            context.say(f"{self.node.name}: {folder}/meta.properties changes from version 1 to 0, which ZooKeeper brokers need.")
        return found


class RollBackLeftBroker(RollBackBroker):
    """Roll back a broker that hangs, because its file needs controllers that were handed over; done once it answers again."""

    def decide_alone(self, view: ClusterView, _before: ClusterView) -> Decision:
        """Decide from this broker alone: others may hang for the same reason."""
        decision = rollback.decide_roll_back_left(view, self.node.id)
        answers = view.broker(self.node.id).mode is self.target
        return (
            Done(f"Broker {self.node.id} answers in {self.target} mode.") if answers and isinstance(decision, Wait) else decision
        )


class RollBackCanary(RollBackBroker):
    """Roll back only the first broker of a pass, because it is worse; no other rollback step runs."""

    doing = "roll back canary"

    def decide_alone(self, view: ClusterView, before: ClusterView) -> Decision:
        """Decide the rollback of the first broker of a pass."""
        return rollback.decide_roll_back_canary(view, before, self.node.id, self.target)

    def decide_restart(self, view: ClusterView, first: ClusterView, before: ClusterView) -> Decision:
        """As for any broker, but refuse if nothing was changed within `_ROLLED_BACK_WITHIN` seconds."""
        decision = self.decide_alone(view, before)
        untouched = stage_on_disk(view.brokers[self.node.id].files) is not roll.STAGE[self.target]
        if isinstance(decision, Wait) and untouched and view.taken_at - first.taken_at > _ROLLED_BACK_WITHIN:
            return Refuse(decision.reasons)
        return decision

    def act(self, context: StepContext, act: Act) -> None:
        """Note in ZooKeeper that this broker was rolled back alone, then act."""
        note_rolled_back(context, self.node.id, self.target)
        super().act(context, act)

    def _left_in_charge(self, _context: StepContext, _seconds: float) -> gates.Gate:
        """A degraded broker may stop slowly, or be killed in the end; that says nothing about the controller."""
        return gates.MET
