"""Restart one broker in its next mode, on migration or rollback."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NoReturn, Self

from airflow_provider_kmigrate.core import gates
from airflow_provider_kmigrate.core.cluster import NodeSpec, Policy
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.files import node_files
from airflow_provider_kmigrate.core.files.config_matrix import stage_on_disk
from airflow_provider_kmigrate.core.migration import canary, recovery, roll
from airflow_provider_kmigrate.core.migration.canary import CanaryBake
from airflow_provider_kmigrate.core.migration.recovery import Recoveries, explain_stalled_dual_write
from airflow_provider_kmigrate.core.migration.roll import MovedSince, moved_since
from airflow_provider_kmigrate.core.migration.waits import HealthyTimer
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Fields
from airflow_provider_kmigrate.core.progress import StepProgress
from airflow_provider_kmigrate.core.rollback import rollback
from airflow_provider_kmigrate.core.rollback import rollback as back_cures
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused, TimedOut
from airflow_provider_kmigrate.steps.dual_write import CURES, Reviving, elect_anew
from airflow_provider_kmigrate.steps.files import install
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.notes import note_registered, note_rolled_back
from airflow_provider_kmigrate.steps.restarts import ours, restart, retry, start, stop
from airflow_provider_kmigrate.steps.run import NodeStep, StepContext, run_step

_WAY_BACK_WITHIN = 30.0  # seconds for the gates to open; after that a degraded broker stays in its mode


class RollBroker(NodeStep):
    """Bring one broker into migration mode or into KRaft mode; `core.migration.roll.decide_restart` decides the acts."""

    looks = roll.LOOKS
    elsewhere = frozenset({Verb.FREE, Verb.ELECT}) | CURES
    back = False  # the rollback does not stop at an edited file
    cured = staticmethod(recovery.recover)

    def __init__(self, node: NodeSpec, target: BrokerMode, policy: Policy) -> None:
        self.node, self.target, self._policy = node, target, policy
        self.name = f"{node.name} to {target}"
        self.samples, self.interval = policy.stable_samples, policy.sample_interval
        self.patience = policy.start_timeout
        self.nodes = (node,)
        self._green = HealthyTimer(0.0, self.interval)
        self._first = CanaryBake(node.id, target, policy.canary_bake)
        self._troubles = Recoveries()
        self._moved: MovedSince | None = None
        self._reviving = Reviving()

    def resume(self, progress: StepProgress) -> Self:
        self._green = replace(self._green, held=progress.healthy_seconds)
        self._first = replace(self._first, held=progress.healthy_seconds, worse=progress.worse)
        self._reviving = Reviving(progress.recoveries)
        return super().resume(progress)

    @property
    def progress(self) -> StepProgress:
        kept = replace(super().progress, healthy_seconds=self._green.held, worse=self._first.worse)
        return replace(kept, recoveries=self._reviving.renewed)

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        self._moved = moved_since(self._moved, view, first)
        decision = explain_stalled_dual_write(
            view, self._moved.old, self.node.id, self.target, self.next(view, first, self._moved.old)
        )
        judged = self.cured(view, self.node.id, decision, self._troubles)
        decision, self._troubles = self._reviving.cured(view, judged.decision), judged.troubles
        self.looks = roll.LOOKS | self._reviving.wants
        self.nodes = () if self._reviving.asks_controllers else (self.node,)
        self.acts_after = float("inf") if self._troubles.tried or self._reviving.sees_to_the_end else 0.0
        return decision

    def undo(self) -> None:
        self._reviving.undo()

    def next(self, view: ClusterView, first: ClusterView, before: ClusterView) -> Decision:
        """Decide what is left to do if every leader works. `before`: the observation since which the dual-write must have moved."""
        del first, before
        self._first, decision = self._first.saw(view, roll.decide_restart(view, self.node.id, self.target))
        if isinstance(decision, Done) and roll.is_canary(view, self.node.id, self.target):
            return self._baked(view, decision)
        return decision

    def _baked(self, view: ClusterView, done: Done) -> Decision:
        gate = roll.may_bake(view)
        self._green = self._green.saw(view.taken_at, green=gate.met)
        return self._first.baked(done, gate, self._green.held)

    def act(self, world: StepContext, act: Act) -> None:
        if self._reviving.acted(world, self.name, act):
            return
        self._troubles = self._troubles.acted(act.verb)  # before it begins: a failed try counts
        match act.verb:
            case Verb.FREE:
                self._free(world)
            case Verb.ELECT:
                self._elect(world)
            case Verb.ROLL_BACK_CANARY:
                self._take_back(world)
            case Verb.START | Verb.REWRITE | Verb.RESTART:
                self._own(world, act.verb)
            case _:
                super().act(world, act)

    def _own(self, world: StepContext, verb: Verb) -> None:
        """Act on this broker itself: its file, then its process."""
        if self.target is BrokerMode.MIGRATION:
            note_registered(world, self.node.id)
        if verb is not Verb.START:
            install(world, self.node, roll.STAGE[self.target], back=self.back)
        if verb is Verb.START:
            self._start(world)
        if verb is Verb.RESTART:
            self._restart(world)

    def _restart(self, world: StepContext) -> None:
        self._green = self._green.forgotten()  # of an earlier restart
        seconds = stop(world, self.node)
        world.say(f"{self.node.name} stopped after {seconds:.1f} s.")
        moved = self._left_in_charge(world, seconds)
        self._start(world)
        if not moved.met:
            raise Refused(f"{self.name}: {format_reasons(moved.reasons)}", moved.reasons)

    def _start(self, world: StepContext) -> None:
        """Start the broker after `while_down`. If `while_down` fails, the broker is started all the same and the error raised."""
        try:
            self.while_down(world)
        except KMigrateError:
            start(world, self.node)
            raise
        start(world, self.node)

    def _elect(self, world: StepContext) -> None:
        left = roll.left_out(world.observer.look(Fields.ZOOKEEPER | Fields.PARTITIONS), self.node.id)
        world.tools.admin.elect_preferred(left)

    def _free(self, world: StepContext) -> None:
        """Restart the leader with the file it has, if it is still to blame."""
        view = world.observer.look(Fields.BROKERS | Fields.PARTITIONS)
        found = recovery.to_free(view, self.node.id, world.tools.wire(self.node).replica_lags())
        leader = next((broker for broker in world.spec.brokers if broker.id == found), None)
        if leader is None:
            world.say(str(found))
            return
        if not (gate := ours(world, self.name, leader)).met:
            world.say(f"Not restarting {leader.name} now: {format_reasons(gate.reasons)}")
            return
        restart(world, leader)
        world.say(f"Restarted {leader.name}. Search its log for 'alter-partition' and ERROR.")

    def _take_back(self, world: StepContext) -> NoReturn:
        """Run the rollback step for this one broker to its end. This run never continues, whatever the result."""
        worse, mode = self._first.worse, canary.before(self.target)
        self._green = self._green.forgotten()  # the time counted so far belongs to the failed mode
        try:
            run_step(RollBackCanary(self.node, mode, self._policy), world)
            end = (canary.rolled_back(world.observer.look(Fields.ZOOKEEPER), self.node.id, mode),)
        except (Refused, TimedOut, Failed) as error:
            end = (canary.not_rolled_back(self.node.id, str(error)), *getattr(error, "reasons", ()))
        raise Refused(f"{self.name}: {format_reasons((*worse, *end[:1]))}", (*worse, *end))

    def while_down(self, world: StepContext) -> None:
        """Work on the node's machine between stop and start."""

    def _left_in_charge(self, world: StepContext, seconds: float) -> gates.Gate:
        """G12, checked only after a slow stop: an observation costs downtime. A failed one must not keep the broker down."""
        if seconds < gates.slow_stop_limit(0):
            return gates.MET
        try:
            view = world.observer.look(Fields.PARTITIONS)
        except KMigrateError as error:
            world.say(f"Could not read whether the slow stop of {self.node.name} left leaders behind (G12): {error}")
            return gates.MET
        return gates.after_stop(view, self.node.id, seconds)


class RollBackBroker(RollBroker):
    """Roll one broker back to migration mode, which needs a moving dual-write, or to its original file."""

    back = True
    cured = staticmethod(back_cures.recover)
    elsewhere = RollBroker.elsewhere | {Verb.RAISE}

    def __init__(self, node: NodeSpec, target: BrokerMode, policy: Policy) -> None:
        super().__init__(node, target, policy)
        self.name = f"roll back {node.name} to {target}"

    def next(self, view: ClusterView, first: ClusterView, before: ClusterView) -> Decision:
        del first
        return rollback.decide_roll_back(view, before, self.node.id, self.target)

    def act(self, world: StepContext, act: Act) -> None:
        if act.verb is Verb.RAISE:
            self._troubles = self._troubles.acted(act.verb)
            self._raise(world)
        else:
            super().act(world, act)

    def _raise(self, world: StepContext) -> None:
        view, lags = world.observer.look(Fields.PARTITIONS), world.tools.wire(self.node).replica_lags()
        if why_not := recovery.to_tell(view, self.node.id, lags):
            world.say(why_not)
            return
        elect_anew(world)

    def while_down(self, world: StepContext) -> None:
        """Write meta.properties of version 0 before a ZooKeeper start; a broker exits with version 1 (G10)."""
        if self.target is not BrokerMode.ZOOKEEPER:
            return
        host, what = (
            world.tools.host(self.node),
            f"meta.properties of {self.node.name}, which is down, could not be read or written",
        )
        files = retry(world, what, lambda: host.files(self.node))
        for folder in node_files.needs_version_0(files):
            world.say(f"{self.node.name}: {folder}/meta.properties changes from version 1 to 0, which ZooKeeper brokers need.")
            text = node_files.version_0((files.meta or {})[folder])
            retry(world, what, partial(host.put_meta, self.node, folder, text, world.fence.token))


class RollBackCanary(RollBackBroker):
    """Roll back only the first broker of a pass, because it is worse; no other rollback step runs."""

    def __init__(self, node: NodeSpec, target: BrokerMode, policy: Policy) -> None:
        super().__init__(node, target, policy)
        self.name = f"roll back canary {node.name} to {target}"

    def next(self, view: ClusterView, first: ClusterView, before: ClusterView) -> Decision:
        decision = rollback.decide_roll_back_canary(view, before, self.node.id, self.target)
        untouched = stage_on_disk(view.brokers[self.node.id].files) is not roll.STAGE[self.target]
        if isinstance(decision, Wait) and untouched and view.taken_at - first.taken_at > _WAY_BACK_WITHIN:
            return Refuse(decision.reasons)
        return decision

    def act(self, world: StepContext, act: Act) -> None:
        note_rolled_back(world, self.node.id, self.target)
        super().act(world, act)

    def _left_in_charge(self, world: StepContext, seconds: float) -> gates.Gate:
        """A degraded broker may stop slowly, or be killed in the end; that says nothing about the controller."""
        del world, seconds
        return gates.MET
