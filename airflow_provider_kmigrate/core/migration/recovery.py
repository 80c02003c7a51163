"""What is acted on only once it has lasted.

A dual-write that has ended although everybody runs, and when doing something about it is the cure.

Kafka says "Will retry" (at INFO) and never succeeds. Two causes, both seen on real brokers after ZooKeeper was away for seconds while
topics were made (Kafka 3.9.2):

* The answer to a write was lost with the connection. The active controller goes on with the version of /migration from before; each of its
  later writes ends with "BadVersion for /migration". /migration does not change at all any more. Another controller reads it anew.
* A topic is in ZooKeeper in part only (`clients.partition_states`). The next controller that is elected fails in its first full sync, and so does
  each one after it. /migration shows the old leader's epoch for ever, though its version moves with every attempt.

A broker that is not back, because the dual-write has ended and with it what tells brokers in migration mode.

What a broker in migration mode knows of topics, leaders and ISRs comes from the thread of the active controller that writes to ZooKeeper, behind
each write: where that fails again and again (`standstill` says how), it tells nobody anything. A broker that is started in migration mode then
waits for a word of the controller and answers nobody, though the controllers have unfenced it; and one that goes on there does not hear that
another one is back (Kafka 3.9.2, `KRaftMigrationDriver.MetadataChangeEvent`; seen on real brokers, for as long as nobody sees to the dual-write).

A leader that takes nobody back into its ISRs, and when restarting it is the cure.

When the owner of a cluster changes between ZooKeeper and KRaft, each broker in migration mode rebuilds the client of its threads
`to-controller-alter-partition` and `to-controller-forwarding` at the same moment. Both use sensors of the same names, and where the one
removes them while the other adds its own, that one ends with "A metric named ... already exists" (Kafka 3.9.2; the error and what follows
were seen twice on real brokers, the race behind it is read from its stack trace; what follows was seen once more, without the log). A broker whose alter-partition thread has ended goes on serving, but can neither shrink nor grow an ISR until
it is restarted: whichever broker restarts next never comes back into the ISR of that leader's partitions. A leader whose partition epochs are
ahead of ZooKeeper's (`clients.partition_states`) looks the same; a way back raises these, before it comes to this cure.

The cures of a broker that is back, and lacks nothing but a place in ISRs or leaders for its partitions; each comes after its own patience.

At one look there is one cure at most: whoever has decided on one, or waits for more than the ISRs, leaves nothing for the others to see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from airflow_provider_kmigrate.core import gates
from airflow_provider_kmigrate.core.decision import Act, Decision, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.gates import MET, Gate, not_yet, together
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.model import (
    Broker,
    BrokerMode,
    Cause,
    ClusterView,
    Migration,
    Partition,
    ProcessState,
    Reason,
    ZkController,
    could_not_read,
)
from airflow_provider_kmigrate.core.phase import ended, kraft_owns
from airflow_provider_kmigrate.core.text import join_ids, summarize


@dataclass(frozen=True, slots=True)
class HoldTimer:
    """Since when something is there, without a look in which it was not; `patience`: seconds that it has to last."""

    patience: float
    since: float | None = None

    def saw(self, at: float, *, there: bool) -> HoldTimer:
        """With one look more, taken at `at`."""
        if not there:
            return replace(self, since=None)
        return self if self.since is not None else replace(self, since=at)

    def due(self, at: float) -> bool:
        """Whether it has lasted long enough."""
        return self.since is not None and at - self.since >= self.patience

    def acted(self) -> HoldTimer:
        """After an act: twice the patience, from nothing."""
        return HoldTimer(2 * self.patience)


PATIENCE = 20.0  # seconds; /migration moves every 0.5 s
_A_PARTITION = 0.002  # seconds more for each: a full sync reads all states, and writes only what differs
_MANY = 100_000  # partitions, where it is not known how many there are
MAX_RECOVERIES = 3  # what they did not cure, another one would not
FORGOTTEN_AFTER = 600.0  # seconds of health: what ends it later is another trouble


@dataclass(frozen=True, slots=True)
class StalledDualWrite:
    """Since when /migration stands still, over the looks of one life.

    `times`: cures that were begun, in earlier lives too. `since`: the same leader, and nothing dual-written since that look; `untouched`: and not
    tried, either. `decided`: a cure, at the last look; `pending`: one comes, if it goes on so.
    """

    times: int = 0
    since: ClusterView | None = None
    untouched: ClusterView | None = None
    well_since: float | None = None
    decided: bool = False
    pending: bool = False

    @property
    def suspected(self) -> bool:
        """Whether it did not move between two looks."""
        return self.since is not None

    def patience(self, partitions: int) -> float:
        """Seconds until the next cure, twice as many each time."""
        return float((PATIENCE + _A_PARTITION * partitions) * 2**self.times)

    def cured(self, view: ClusterView, decision: Decision) -> tuple[StalledDualWrite, Decision]:
        """With one look more; the decision, or the cure where it has waited for the dual-write to move for too long."""
        known = self._well(view, well=isinstance(decision, Wait) and decision.healthy)
        if view.zk is not None and view.quorum is None:
            return known, decision  # a look without the quorum says neither
        told = (
            [reason.text for reason in decision.reasons if reason.cause is Cause.DUAL_WRITE_STALLED]
            if isinstance(decision, Wait)
            else []
        )
        if not isinstance(decision, Wait) or not told:
            return replace(known, since=None, untouched=None, pending=False), decision
        known = known.still(view)
        return known.due(view, decision, told[0]) if known.pending else (known, decision)

    def still(self, view: ClusterView) -> StalledDualWrite:
        """With a look that waits for it to move."""
        since = self.since if self.since and _same(self.since, view) else view
        untouched = self.untouched if self.untouched and _same(self.untouched, view) else view
        untouched = untouched if _version(untouched) == _version(view) else view
        return replace(self, since=since, untouched=untouched, pending=self.times < MAX_RECOVERIES)

    def due(self, view: ClusterView, decision: Wait, told: str) -> tuple[StalledDualWrite, Decision]:
        """The cure, once it has waited for long enough and nothing speaks against it. `told`: what it waits for, in words."""
        patience = self.patience(_MANY if view.partitions is None else len(view.partitions))
        if self.since is None or self.untouched is None or view.taken_at - self.since.taken_at < patience:
            return self, decision
        gate = may_recover(view)
        if not gate.met:
            return replace(self, pending=False), Wait((*decision.reasons, *gate.reasons))
        verb = Verb.FAIL_OVER if view.taken_at - self.untouched.taken_at >= patience else Verb.MEND
        return self._begun(), Act(verb, f"The dual-write stands still although ZooKeeper answers: {told}")

    def found(self, view: ClusterView, refusal: Refuse) -> tuple[StalledDualWrite, Decision]:
        """The refusal of a difference that lasts, or its cure where ZooKeeper merely lacks what KRaft has: it was lost on its way.

        Not where ZooKeeper has more, or something else: a new leader would write over it, and somebody may have meant it (D05).
        """
        lacking = all(reason.cause is Cause.ZOOKEEPER_MISSES for reason in refusal.reasons)
        if not lacking or self.times >= MAX_RECOVERIES or not may_recover(view).met:
            return self, refusal
        return self._begun(), Act(Verb.FAIL_OVER, f"A new leader writes to ZooKeeper what was lost: {refusal.reasons[0].text}")

    def _begun(self) -> StalledDualWrite:
        """Counted before it is begun: who remembers it knows what a life that ended in it has left."""
        return replace(self, times=self.times + 1, decided=True, since=None, untouched=None)

    def _well(self, view: ClusterView, *, well: bool) -> StalledDualWrite:
        """Nothing is decided yet at this look; what was is forgotten after minutes of health."""
        began = view.taken_at if self.well_since is None else self.well_since
        forgotten = well and view.taken_at - began >= FORGOTTEN_AFTER
        return replace(self, decided=False, well_since=began if well else None, times=0 if forgotten else self.times)

    def undone(self) -> StalledDualWrite:
        """What was decided on last was not begun, whether it was a cure or not."""
        return replace(self, times=self.times - self.decided, decided=False)


def may_recover(view: ClusterView) -> Gate:
    """A failover must neither finalize nor meet a quorum that is not whole, and would be in vain with a client-metrics subscription."""
    return together((gates.all_flagged(view), gates.quorum_healthy(view), gates.no_client_metrics(view)))


def _same(since: ClusterView, view: ClusterView) -> bool:
    """Whether the same controller leads, and nothing was dual-written since; what was not read is never the same."""
    return _written(since) == _written(view) is not None


def _written(view: ClusterView) -> tuple[int, int, int, int] | None:
    """Who leads, and what /migration says was dual-written last; None where either is unknown, or the copy not over."""
    found, quorum = view.zk.migration if view.zk else None, view.quorum
    if not isinstance(found, Migration) or found.metadata_offset <= 0 or quorum is None:
        return None
    return quorum.leader_id, quorum.leader_epoch, found.metadata_epoch, found.metadata_offset


def _version(view: ClusterView) -> int:
    found = view.zk.migration if view.zk else None
    return found.version if isinstance(found, Migration) else -1


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


PATIENCE = 20.0  # seconds; a follower that has caught up is taken back within one. Below the 30 s after which a task defers: only tasks act
CAUGHT_UP = 1000  # records behind the leader's high watermark that traffic explains


def stuck_leader(view: ClusterView, follower: int) -> int | None:
    """The one leader of all partitions that lack `follower` in their ISR, where it lacks in all that this leader leads."""
    partitions = [p for p in view.partitions or () if follower in p.replicas and p.leader != follower]
    lacking = [p for p in partitions if follower not in p.isr]
    leaders = {p.leader for p in lacking}
    if len(leaders) != 1:
        return None
    (leader,) = leaders
    alone = leader >= 0 and all(follower not in p.isr for p in partitions if p.leader == leader)
    return leader if alone else None


def lagging_replicas(view: ClusterView, follower: int, lags: Mapping[tuple[str, int], int]) -> int | None:
    """Records that `follower` is behind where it is out of the ISR; None where the partitions were not read, or it tells no lag of one of them.

    `lags`: what it tells, per topic and partition.
    """
    if view.partitions is None:
        return None
    told = [lags.get((p.topic, p.index)) for p in view.lacking(follower) if follower not in p.isr]
    known = [lag for lag in told if lag is not None]
    return max(known, default=0) if len(known) == len(told) else None


def may_restart(view: ClusterView, follower: int, leader: int) -> Gate:
    """Whether the leader may stop although `follower` is out of its ISRs: each of them has somebody else, and nothing else is amiss.

    Where it is alone in an ISR that is below min.insync.replicas nobody writes with acks=all anyway, and nobody but a restart of it ends that: its
    partitions have no leader until it is back, and lose nothing, but what was written with acks=1 where unclean leaders are allowed.
    """
    return together(
        (_nobody_down(view), _only_this(view, follower, leader), _others_in_sync(view, leader), _owner_answers(view, leader))
    )


def _nobody_down(view: ClusterView) -> Gate:
    down = sorted(broker.id for broker in view.brokers.values() if broker.mode is None)
    return MET if not down else not_yet(Reason("R01", f"Brokers that do not answer: {join_ids(down)}."))


def _only_this(view: ClusterView, follower: int, leader: int) -> Gate:
    rows = [p for p in view.partitions or () if p.under_replicated]
    others = [p.name for p in rows if not _explained(p, follower, leader) and not _unwritable(view, p, leader)]
    return MET if not others else not_yet(Reason("S02", f"Other partitions are under-replicated too: {summarize(others)}."))


def _explained(partition: Partition, follower: int, leader: int) -> bool:
    return partition.leader == leader and set(partition.replicas) - set(partition.isr) == {follower}


def _unwritable(view: ClusterView, partition: Partition, leader: int) -> bool:
    needed = (view.min_insync or {}).get(partition.topic)
    return _alone(partition, leader) and needed is not None and needed > 1


def _alone(partition: Partition, leader: int) -> bool:
    return partition.leader == leader and set(partition.replicas) != {leader} and set(partition.isr) == {leader}


def _others_in_sync(view: ClusterView, leader: int) -> Gate:
    alone = [p.name for p in view.partitions or () if _alone(p, leader) and not _unwritable(view, p, leader)]
    if not alone:
        return MET
    return not_yet(Reason("S02", f"Broker {leader} is the only one in sync for {len(alone)} partitions: {summarize(alone)}."))


def _owner_answers(view: ClusterView, leader: int) -> Gate:
    """A broker that is stopped while its controller is away waits 300 s (G11)."""
    controller = view.zk.controller if view.zk else None
    if not isinstance(controller, ZkController):
        return not_yet(could_not_read("who is controller"))
    answering = [c for c in view.controllers.values() if c.answers]
    named = view.brokers[leader].controller_id == controller.broker_id if leader in view.brokers else False
    if len(answering) * 2 > len(view.controllers) if controller.is_kraft else named:
        return MET
    return not_yet(Reason("G28", f"Broker {leader} has no controller that answers."))


DEAF_FOR = 8.0  # seconds; a follower that has caught up is taken back within one

_STUCK, _LEFT_OUT, _DEAF = HoldTimer(PATIENCE), HoldTimer(roll.LEFT_OUT_FOR), HoldTimer(DEAF_FOR)

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
    leader = stuck_leader(view, broker) if out_of_isrs(decision) else None
    troubles = replace(troubles, stuck=troubles.stuck.saw(view.taken_at, there=leader is not None))
    if leader is None or not out_of_isrs(decision) or not troubles.stuck.due(view.taken_at):
        return Recovered(decision, troubles)
    gate = may_restart(view, broker, leader)
    if not gate.met:
        return Recovered(Wait((*decision.reasons, *gate.reasons)), troubles)
    text = f"Broker {leader} takes broker {broker} back for none of its partitions: it is restarted."
    return Recovered(Act(Verb.FREE, text), troubles)


def _led(view: ClusterView, broker: int, judged: Recovered) -> Recovered:
    """The cure where a takeover has left partitions of this broker without a leader; `leaders` says why that happens."""
    left = roll.left_out(view, broker) if out_of_isrs(judged.decision) else ()
    troubles = replace(judged.troubles, left_out=judged.troubles.left_out.saw(view.taken_at, there=bool(left)))
    if not troubles.left_out.due(view.taken_at):
        return Recovered(judged.decision, troubles)
    text = f"Broker {broker} is back, but {len(left)} of its partitions have no leader: the takeover left them out."
    return Recovered(Act(Verb.ELECT, text), troubles)


def to_free(view: ClusterView, broker: int, lags: Lags) -> int | str:
    """Asked again just before the cure: the leader to restart, or why it is none, as a sentence."""
    leader = stuck_leader(view, broker)
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
    behind = lagging_replicas(view, broker, lags)
    if behind is None:
        return f"How far broker {broker} is behind could not be read; nothing is done. Are all its log directories online?"
    still = f"Broker {broker} is {behind} records behind: it still catches up, nothing is done."
    return still if behind > CAUGHT_UP else ""
