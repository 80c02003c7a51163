"""Restart one broker in its next mode."""

from __future__ import annotations

from airflow_provider_kmigrate.core import gates, roll, stuck_leader
from airflow_provider_kmigrate.core.cluster import NodeSpec, Policy
from airflow_provider_kmigrate.core.model import Act, BrokerMode, ClusterView, Decision, Done, Look, Reason, Wait
from airflow_provider_kmigrate.core.waiting import as_decision
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.files import install
from airflow_provider_kmigrate.steps.green import Green
from airflow_provider_kmigrate.steps.journal import told
from airflow_provider_kmigrate.steps.run import Step, World

ROLL_LOOKS = (
    Look.BROKERS
    | Look.CONTROLLERS
    | Look.ZOOKEEPER
    | Look.GROUPS
    | Look.PARTITIONS
    | Look.MIN_INSYNC
    | Look.PROCESSES
    | Look.FILES
)


class RollBroker(Step):
    """Bring one broker into migration mode or into KRaft mode; `core.roll.decide_restart` says when, and what is left."""

    looks = ROLL_LOOKS

    def __init__(self, node: NodeSpec, target: BrokerMode, policy: Policy, held: float = 0.0) -> None:
        self.node, self.target = node, target
        self.name = f"{node.name} to {target}"
        self.samples, self.interval, self._bake = policy.stable_samples, policy.sample_interval, policy.canary_bake
        self.patience = policy.start_timeout
        self.nodes = (node,)
        self._green = Green(held, self.interval)
        self._stuck_since: float | None = None  # since when one leader has not taken this broker back
        self._stuck_for = stuck_leader.PATIENCE  # seconds; twice as many after each time that it was merely slow

    @property
    def held(self) -> float:
        """Seconds that the first broker of the pass has baked so far."""
        return self._green.held

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        return self._freed(view, self.next(view, first))

    def next(self, view: ClusterView, first: ClusterView) -> Decision:
        """What is left to do, if every leader does its part."""
        del first
        decision = roll.decide_restart(view, self.node.id, self.target)
        if isinstance(decision, Done) and roll.is_canary(view, self.node.id, self.target):
            return self._baked(view, decision)
        return decision

    def _freed(self, view: ClusterView, decision: Decision) -> Decision:
        """The cure where one leader has not taken this broker back for long; `core.stuck_leader` says why that happens."""
        codes = {reason.code for reason in decision.reasons} if isinstance(decision, Wait) else set()
        leader = stuck_leader.stuck_leader(view, self.node.id) if codes == {"R05"} else None
        self._stuck_since = None if leader is None else self._stuck_since or view.taken_at
        if leader is None or self._stuck_since is None or view.taken_at - self._stuck_since < self._stuck_for:
            return decision
        gate = stuck_leader.may_restart(view, self.node.id, leader)
        if not gate.met:
            return Wait((*getattr(decision, "reasons", ()), *gate.reasons))
        text = f"Broker {leader} takes {self.node.name} back for none of its partitions, all other leaders did: it is restarted."
        return Act("free", text)

    def _baked(self, view: ClusterView, done: Done) -> Decision:
        gate = roll.may_bake(view)
        self._green.saw(view, gate.met)
        if not gate.met:
            return as_decision(gate, "")
        if self.held >= self._bake:
            return done
        text = f"{self.node.name} bakes as the first of this pass: green for {self.held:.0f} of {self._bake:.0f} s."
        return Wait((Reason("T04", text, "What its new mode does to the cluster is seen on one broker first."),), healthy=True)

    def act(self, world: World, act: Act) -> None:
        host = world.tools.host(self.node)
        if act.verb == "free":
            self._free(world)
            return
        if act.verb == "start":
            host.start(self.node, world.fence.token)
            return
        install(world, self.node, roll.STAGE[self.target])
        if act.verb == "rewrite":
            return
        seconds = host.stop(self.node, world.fence.token)
        world.say(f"{self.node.name} stopped after {seconds:.1f} s.")
        moved = self._left_in_charge(world, seconds)
        self.while_down(world)
        host.start(self.node, world.fence.token)
        if not moved.met:
            raise Refused(f"{self.name}: {told(moved.reasons)}", moved.reasons)

    def _free(self, world: World) -> None:
        """Restart the leader with the file it has, unless this broker still catches up with it."""
        self._stuck_since, self._stuck_for = None, 2 * self._stuck_for
        view = world.observer.look(Look.BROKERS | Look.PARTITIONS)
        leader = next((b for b in world.spec.brokers if b.id == stuck_leader.stuck_leader(view, self.node.id)), None)
        lags = world.tools.wire(self.node).replica_lags()
        behind = max((lags.get((p.topic, p.index), 0) for p in view.partitions or () if self.node.id not in p.isr), default=0)
        if leader is None or behind > stuck_leader.CAUGHT_UP:
            world.say(f"{self.node.name} is {behind} records behind: it still catches up, nobody is restarted.")
            return
        host = world.tools.host(leader)
        seconds = host.stop(leader, world.fence.token)
        host.start(leader, world.fence.token)
        world.say(
            f"{leader.name} stopped after {seconds:.1f} s and started again; look for 'alter-partition' and ERROR in its log."
        )

    def while_down(self, world: World) -> None:
        """What else has to be done on the node's machine between stop and start."""

    def traces(self, world: World) -> str:
        return world.tools.host(self.node).log_tail(self.node)

    def _left_in_charge(self, world: World, seconds: float) -> gates.Gate:
        """G12, looked at only after a slow stop: a look costs time in which the broker is down."""
        if seconds < gates.slow_stop_limit(0):
            return gates.MET
        view = world.observer.look(Look.PARTITIONS)
        gate = gates.left_in_charge(view, self.node.id, seconds)
        return gate if gate.standing is gates.Standing.NEVER else gates.MET
