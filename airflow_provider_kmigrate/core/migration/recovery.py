"""Recovery of a stalled dual-write, and of a leader that keeps a restarted broker out of its ISRs or partitions.

**Stalled dual-write** (`StalledDualWrite`). Kafka logs "Will retry" (INFO) and never succeeds. Two causes, both seen on real
brokers (3.9.2) after ZooKeeper was unreachable for seconds while topics were created:

* The answer to a write was lost with the connection. The active controller keeps the old version of /migration, so each later
  write fails with "BadVersion for /migration". /migration no longer changes. A new controller reads it again.
* A topic is in ZooKeeper in part only (`clients.partition_states`). Each newly elected controller fails in its first full sync.
  /migration keeps the old leader's epoch, but its version moves with every attempt.

**No metadata in migration mode** (`explain_stalled_dual_write`). A broker in migration mode learns topics, leaders and ISRs from
the controller thread that writes to ZooKeeper, after each write. If that fails, a started broker stays unresponsive, although
unfenced, and others do not learn that it is back (Kafka 3.9.2, `KRaftMigrationDriver.MetadataChangeEvent`; seen on real brokers).

**Stuck leader** (`stuck_leader`, `recover`). When the cluster's owner changes, each broker in migration mode rebuilds the clients
of its threads `to-controller-alter-partition` and `to-controller-forwarding` at once. Their sensors share names: if one removes
them while the other adds its own, that one ends with "A metric named ... already exists" (Kafka 3.9.2; seen twice on real
brokers, the race is read from the stack trace; the effect was seen once more without the log). Without its alter-partition thread
a leader cannot change an ISR until it is restarted. A leader whose partition epochs are ahead of ZooKeeper's
(`clients.partition_states`) shows the same; a rollback raises these first.

At most one recovery is decided per observation; each kind has its own hold time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeGuard

from airflow_provider_kmigrate.core import gates
from airflow_provider_kmigrate.core.decision import Act, Decision, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.gates import Gate, not_yet, not_yet_if, together
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.model import (
    Broker,
    BrokerMode,
    Cause,
    ClusterView,
    Fields,
    Partition,
    Reason,
    ZkController,
    could_not_read,
)
from airflow_provider_kmigrate.core.phase import ended, kraft_owns
from airflow_provider_kmigrate.core.text import summarize


@dataclass(frozen=True, slots=True)
class HoldTimer:
    """How long a condition has held without interruption; `patience`: its hold time in seconds."""

    patience: float
    since: float | None = None

    def observe(self, at: float, *, there: bool) -> HoldTimer:
        """Add one observation, taken at `at`."""
        if not there:
            return replace(self, since=None)
        return self if self.since is not None else replace(self, since=at)

    def expired(self, at: float) -> bool:
        """Whether it has held long enough."""
        return self.since is not None and at - self.since >= self.patience

    def acted(self) -> HoldTimer:
        """Start again after an act, with twice the hold time."""
        return HoldTimer(2 * self.patience)


STALLED_FOR = 20.0  # seconds; /migration moves every 0.5 s
_A_PARTITION = 0.002  # seconds more for each: a full sync reads all states, and writes only what differs
_MANY = 100_000  # partitions, if their number is unknown
MAX_RECOVERIES = 3  # if three did not help, a fourth would not
FORGOTTEN_AFTER = 600.0  # seconds of health: a later stall is a new problem


@dataclass(frozen=True, slots=True)
class StalledDualWrite:
    """How long /migration has not advanced, over the observations of one process.

    `times`: recoveries begun, in earlier processes too. `since`: first observation with the same leader and nothing dual-written
    later; `untouched`: the same, and /migration's version unchanged too. `decided`: the last observation decided a recovery;
    `pending`: one follows if the stall lasts.
    """

    times: int = 0
    since: ClusterView | None = None
    untouched: ClusterView | None = None
    healthy_since: float | None = None
    decided: bool = False
    pending: bool = False

    def patience(self, partitions: int) -> float:
        """Seconds until the next recovery, twice as many each time."""
        return float((STALLED_FOR + _A_PARTITION * partitions) * 2**self.times)

    def observe(self, view: ClusterView, decision: Decision) -> tuple[StalledDualWrite, Decision]:
        """Add one observation; return the decision, or a recovery if the dual-write has stalled for too long."""
        known = self._observe_health(view, healthy=isinstance(decision, Wait) and decision.healthy)
        if view.zk is not None and view.quorum is None:
            return known, decision  # an observation without the quorum proves neither
        waiting = decision.reasons if isinstance(decision, Wait) else ()
        stalled = next((reason.text for reason in waiting if reason.cause is Cause.DUAL_WRITE_STALLED), None)
        if not isinstance(decision, Wait) or stalled is None:
            return replace(known, since=None, untouched=None, pending=False), decision
        known = known.observe_stall(view)
        return known.recovery(view, decision, stalled) if known.pending else (known, decision)

    def observe_stall(self, view: ClusterView) -> StalledDualWrite:
        """Add an observation that waits for the dual-write to move."""
        since = self.since if self.since and _same(self.since, view) else view
        untouched = self.untouched if self.untouched and _same(self.untouched, view) else view
        untouched = untouched if _version(untouched) == _version(view) else view
        return replace(self, since=since, untouched=untouched, pending=self.times < MAX_RECOVERIES)

    def recovery(self, view: ClusterView, decision: Wait, waiting: str) -> tuple[StalledDualWrite, Decision]:
        """Return a recovery once the hold time has passed and no gate forbids it. `waiting`: the text of the wait."""
        patience = self.patience(_MANY if view.partitions is None else len(view.partitions))
        if self.since is None or self.untouched is None or view.taken_at - self.since.taken_at < patience:
            return self, decision
        gate = may_recover(view)
        if not gate.met:
            return replace(self, pending=False), Wait((*decision.reasons, *gate.reasons))
        verb = Verb.CONTROLLER_FAILOVER if view.taken_at - self.untouched.taken_at >= patience else Verb.COMPLETE
        return self._begun(), Act(verb, f"The dual-write has stalled although ZooKeeper answers: {waiting}")

    def repair_difference(self, view: ClusterView, refusal: Refuse) -> tuple[StalledDualWrite, Decision]:
        """Return the refusal of a permanent difference, or a recovery if ZooKeeper only misses what KRaft has: the write was lost.

        No recovery if ZooKeeper has more or something else: a new leader would overwrite it, and it may be intended (D05).
        """
        missing = all(reason.cause is Cause.ZOOKEEPER_MISSES for reason in refusal.reasons)
        if not missing or self.times >= MAX_RECOVERIES or not may_recover(view).met:
            return self, refusal
        text = f"Electing a new leader, which writes to ZooKeeper what was lost: {refusal.reasons[0].text}"
        return self._begun(), Act(Verb.CONTROLLER_FAILOVER, text)

    def _begun(self) -> StalledDualWrite:
        """Count a recovery before it begins, so that it is counted even if the process is killed in it."""
        return replace(self, times=self.times + 1, decided=True, since=None, untouched=None)

    def _observe_health(self, view: ClusterView, *, healthy: bool) -> StalledDualWrite:
        """State before this observation's decision; minutes of health reset the count."""
        began = view.taken_at if self.healthy_since is None else self.healthy_since
        forgotten = healthy and view.taken_at - began >= FORGOTTEN_AFTER
        return replace(self, decided=False, healthy_since=began if healthy else None, times=0 if forgotten else self.times)

    def withdrawn(self) -> StalledDualWrite:
        """Withdraw the last decision, which was not begun; a decision without recovery changes nothing."""
        return replace(self, times=self.times - self.decided, decided=False)


def may_recover(view: ClusterView) -> Gate:
    """Whether a failover is safe (it neither finalizes nor meets an unhealthy quorum), and client metrics do not make it useless."""
    return together((gates.all_flagged(view), gates.quorum_healthy(view), gates.no_client_metrics(view)))


def _same(since: ClusterView, view: ClusterView) -> bool:
    """Whether the same controller leads and nothing was dual-written since; unread values are never the same."""
    return _written(since) == _written(view) is not None


def _written(view: ClusterView) -> tuple[int, int, int, int] | None:
    """The leader and the last dual-written position of /migration; None if either is unknown or the copy is not over."""
    found, quorum = view.migration, view.quorum
    if found is None or found.metadata_offset <= 0 or quorum is None:
        return None
    return quorum.leader_id, quorum.leader_epoch, found.metadata_epoch, found.metadata_offset


def _version(view: ClusterView) -> int:
    return view.migration.version if view.migration else -1


CONTROLLER_DOWN_FIELDS = Fields.POSITION | Fields.NODES
"""The fields that show whether a controller is down and may be started."""


def recover_dual_write(
    view: ClusterView, decision: Decision, stalled: StalledDualWrite, down: tuple[int, Decision] | None
) -> tuple[Decision, StalledDualWrite, Fields]:
    """Return the decision or a recovery, the new state, and the fields that the next observation must read beside the step's own.

    After a recovery, a controller that is down was stopped by a process that was killed in it; no other one is started here.
    """
    begun = stalled.times > 0
    left_down = down if begun and not isinstance(decision, Refuse) else None
    kept, decision = stalled.observe(view, _of_controller(left_down[1]) if left_down else decision)
    wants = CONTROLLER_DOWN_FIELDS if begun and view.unresponsive_controllers() else Fields(0)
    return decision, kept, wants if kept.since is None else wants | Fields.CLIENT_METRICS


def _of_controller(decision: Decision) -> Decision:
    return Act(Verb.START_CONTROLLER, decision.text) if isinstance(decision, Act) else decision


def explain_stalled_dual_write(
    view: ClusterView, before: ClusterView, broker: int, target: BrokerMode, decision: Decision
) -> Decision:
    """Add G07 to a wait for a started broker, if brokers depend on a dual-write that no observation shows to advance.

    A healthy wait is for a broker that is back, such as one that bakes, and stays as it is. `before`: earlier observation to
    measure movement from, if this one alone does not prove it.
    """
    started = _started(view.broker(broker), target)
    if not isinstance(decision, Wait) or decision.healthy or not started or not _depend(view, target):
        return decision
    gate = gates.dual_write_alive(view, before)
    return decision if gate.met else Wait((*decision.reasons, *gate.reasons))


def _started(broker: Broker, target: BrokerMode) -> bool:
    """Whether it runs in its new mode, or is unresponsive because it gets no metadata; a KRaft broker reads the log itself."""
    return broker.mode is target or (broker.starts and target is BrokerMode.MIGRATION)


def _depend(view: ClusterView, target: BrokerMode) -> bool:
    """Whether any broker, this one included, gets its metadata from the dual-write thread."""
    modes = {target, *(broker.mode for broker in view.brokers.values())}
    return kraft_owns(view) and not ended(view) and BrokerMode.MIGRATION in modes


STUCK_FOR = 20.0  # seconds; a caught-up follower is back within one. Below the 30 s after which a task defers: only tasks act
CAUGHT_UP = 1000  # records behind the leader's high watermark that traffic explains


def stuck_leader(view: ClusterView, follower: int) -> int | None:
    """The one leader of all partitions that miss `follower` in their ISR, if all that it leads miss it; else None."""
    partitions = [p for p in view.partitions or () if follower in p.replicas and p.leader != follower]
    missing = [p for p in partitions if follower not in p.isr]
    leaders = {p.leader for p in missing}
    if len(leaders) != 1:
        return None
    (leader,) = leaders
    alone = leader >= 0 and all(follower not in p.isr for p in partitions if p.leader == leader)
    return leader if alone else None


def lagging_replicas(view: ClusterView, follower: int, lags: Mapping[tuple[str, int], int]) -> int | None:
    """Records by which `follower` lags where it is out of the ISR, by its own `lags`; None if partitions or any of these were not read."""
    if view.partitions is None:
        return None
    found = [lags.get((p.topic, p.index)) for p in view.missing_isr(follower) if follower not in p.isr]
    known = [lag for lag in found if lag is not None]
    return max(known, default=0) if len(known) == len(found) else None


def may_restart(view: ClusterView, follower: int, leader: int) -> Gate:
    """Whether the leader may stop although `follower` is out of its ISRs: each ISR has another replica, all else is healthy.

    A leader alone in an ISR below min.insync.replicas takes no acks=all writes anyway, and only its restart ends that. Its
    partitions have no leader until it is back. They lose nothing, except acks=1 writes if unclean leaders are allowed.
    """
    others = (_only_this(view, follower, leader), _others_in_sync(view, leader), _owner_answers(view, leader))
    return together((roll.no_other_down(view), *others))


def _only_this(view: ClusterView, follower: int, leader: int) -> Gate:
    rows = [p for p in view.partitions or () if p.under_replicated]
    others = [p.name for p in rows if not _explained(p, follower, leader) and not _unwritable(view, p, leader)]
    return not_yet_if(others, Reason("S02", f"Other partitions are under-replicated too: {summarize(others)}."))


def _explained(partition: Partition, follower: int, leader: int) -> bool:
    return partition.leader == leader and set(partition.replicas) - set(partition.isr) == {follower}


def _unwritable(view: ClusterView, partition: Partition, leader: int) -> bool:
    needed = (view.min_insync or {}).get(partition.topic)
    return _alone(partition, leader) and needed is not None and needed > 1


def _alone(partition: Partition, leader: int) -> bool:
    return partition.leader == leader and set(partition.replicas) != {leader} and set(partition.isr) == {leader}


def _others_in_sync(view: ClusterView, leader: int) -> Gate:
    alone = [p.name for p in view.partitions or () if _alone(p, leader) and not _unwritable(view, p, leader)]
    text = f"Broker {leader} is the only in-sync replica of {len(alone)} partitions: {summarize(alone)}."
    return not_yet_if(alone, Reason("S02", text))


def _owner_answers(view: ClusterView, leader: int) -> Gate:
    """G28: a broker that is stopped while its controller does not answer waits 300 s."""
    controller = view.zk.controller if view.zk else None
    if not isinstance(controller, ZkController):
        return not_yet(could_not_read("who is controller"))
    answering = len(view.controllers) - len(view.unresponsive_controllers())
    named = view.broker(leader).controller_id == controller.broker_id
    answers = answering * 2 > len(view.controllers) if controller.is_kraft else named
    return not_yet_if(not answers, Reason("G28", f"Broker {leader} has no controller that answers."))


OUT_OF_ISR_FOR = 8.0  # seconds; a caught-up follower is back within one

_TIMERS: Mapping[Verb, HoldTimer] = {
    Verb.RESTART_LEADER: HoldTimer(STUCK_FOR),  # one leader does not add the broker to its ISRs
    Verb.ELECT: HoldTimer(roll.LEFT_OUT_FOR),  # partitions of it have no leader
    Verb.RAISE: HoldTimer(OUT_OF_ISR_FOR),  # it is not in its ISRs after the handover to ZooKeeper
}

Lags = Mapping[tuple[str, int], int]  # (topic, partition) -> records that the broker reports it is behind


@dataclass(frozen=True, slots=True)
class Recoveries:
    """Hold times of one process. Once a recovery was `tried`, this process must finish the wait: no other process knows of it."""

    timers: Mapping[Verb, HoldTimer] = field(default_factory=lambda: _TIMERS)
    tried: bool = False

    def acted(self, verb: Verb) -> Recoveries:
        """After that recovery, done or not: the next of its kind waits twice as long."""
        if verb not in self.timers:
            return self
        return Recoveries({**self.timers, verb: self.timers[verb].acted()}, tried=True)


class Recovered(NamedTuple):
    """The decision or a recovery, and the hold times so far."""

    decision: Decision
    recoveries: Recoveries

    def observe(self, view: ClusterView, there: object, act: Act) -> Recovered:
        """Add one observation of what `act` recovers from; `act` replaces the decision once the hold time has expired."""
        timer = self.recoveries.timers[act.verb].observe(view.taken_at, there=bool(there))
        recoveries = replace(self.recoveries, timers={**self.recoveries.timers, act.verb: timer})
        return Recovered(act if timer.expired(view.taken_at) else self.decision, recoveries)


def recover(view: ClusterView, broker: int, decision: Decision, recoveries: Recoveries) -> Recovered:
    """Return the decision, or the recovery of a leader that is stuck or missing."""
    return _with_leaders(view, broker, _leader_restarted(view, broker, Recovered(decision, recoveries)))


def out_of_isrs(decision: Decision) -> TypeGuard[Wait]:
    """Whether a broker misses only a place in ISRs, or leaders for its partitions."""
    return isinstance(decision, Wait) and {reason.cause for reason in decision.reasons} == {Cause.OUT_OF_ISR}


def _leader_restarted(view: ClusterView, broker: int, judged: Recovered) -> Recovered:
    """Restart one leader that has kept this broker out of its ISRs for too long (cause: `stuck_leader`)."""
    waiting = judged.decision
    leader = stuck_leader(view, broker) if out_of_isrs(waiting) else None
    text = f"Broker {leader} keeps broker {broker} out of the ISR of all its partitions: restarting broker {leader}."
    restarted = judged.observe(view, leader is not None, Act(Verb.RESTART_LEADER, text))
    if leader is None or not out_of_isrs(waiting) or restarted.decision is waiting:
        return restarted
    gate = may_restart(view, broker, leader)
    return restarted if gate.met else Recovered(Wait((*waiting.reasons, *gate.reasons)), restarted.recoveries)


def _with_leaders(view: ClusterView, broker: int, judged: Recovered) -> Recovered:
    """Elect leaders if a takeover left partitions of this broker without one (cause: `roll.left_out`)."""
    left = roll.left_out(view, broker) if out_of_isrs(judged.decision) else ()
    text = (
        f"Broker {broker} is up, but {len(left)} of its partitions have no leader: the takeover skipped them. Electing leaders."
    )
    return judged.observe(view, left, Act(Verb.ELECT, text))


def leader_to_restart(view: ClusterView, broker: int, lags: Lags) -> int | str:
    """The leader to restart, checked again just before; or, as a sentence, why there is none."""
    leader = stuck_leader(view, broker)
    if leader is None:
        return f"No leader keeps broker {broker} out of all its ISRs any more; nothing is done."
    return own_fault(view, broker, lags) or leader


def reason_not_to_elect(view: ClusterView, broker: int, lags: Lags) -> str:
    """Why no controller is elected, checked again just before, as a sentence; empty if one must be elected."""
    if view.partitions is not None and not view.missing_isr(broker):
        return f"Broker {broker} is back in its ISRs; nothing is done."
    return own_fault(view, broker, lags)


def own_fault(view: ClusterView, broker: int, lags: Lags) -> str:
    """Why no other broker is the cause: it is far behind, or its lag is unread. Empty if it has caught up."""
    behind = lagging_replicas(view, broker, lags)
    if behind is None:
        return (
            f"Could not read how far broker {broker} is behind; nothing is done. Check that all its log directories are online."
        )
    return f"Broker {broker} is {behind} records behind: it is still catching up; nothing is done." if behind > CAUGHT_UP else ""
