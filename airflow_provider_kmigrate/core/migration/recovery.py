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

**Stuck leader** (`find_stuck_leader`, `recover`). When the cluster's owner changes, each broker in migration mode rebuilds the clients
of its threads `to-controller-alter-partition` and `to-controller-forwarding` at once. Their sensors share names: if one removes
them while the other adds its own, that one ends with "A metric named ... already exists" (Kafka 3.9.2; seen three times on real
brokers, the race is read from the stack trace; the effect was seen once more without the log). Without its alter-partition thread
a leader cannot change an ISR until it is restarted. A leader whose partition epochs are ahead of ZooKeeper's
(`clients.partition_states`) shows the same; a rollback raises these first.

At most one recovery is decided per observation; each kind has its own hold time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeGuard

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
    BrokerMode,
    Cause,
    ClusterView,
    Fields,
    Partition,
    Reason,
    ZkController,
    could_not_read,
)
from airflow_provider_kmigrate.core.migration import gates, roll
from airflow_provider_kmigrate.core.migration.gates import Gate, combine_gates, not_yet, not_yet_if
from airflow_provider_kmigrate.core.migration.phase import kraft_owns, migration_has_ended
from airflow_provider_kmigrate.core.shared.text import count_of, summarize


@dataclass(frozen=True, slots=True)
class HoldTimer:
    """How long a condition has held without interruption; `patience`: its hold time in seconds."""

    patience: float
    since: float | None = None

    def add_sample(self, at: float, *, holds: bool) -> HoldTimer:
        """Add one observation, taken at `at`."""
        if not holds:
            return replace(self, since=None)
        return self if self.since is not None else replace(self, since=at)

    def expired(self, at: float) -> bool:
        """Whether it has held long enough."""
        return self.since is not None and at - self.since >= self.patience

    def back_off(self) -> HoldTimer:
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

    def hold_time(self, partitions: int) -> float:
        """Seconds until the next recovery, twice as many each time."""
        return float((STALLED_FOR + _A_PARTITION * partitions) * 2**self.times)

    def decide_recovery(self, view: ClusterView, decision: Decision) -> tuple[StalledDualWrite, Decision]:
        """Add one observation; return the decision, or a recovery if the dual-write has stalled for too long."""
        state = self._add_health(view, healthy=isinstance(decision, Wait) and decision.healthy)
        if view.zk is not None and view.quorum is None:
            return state, decision  # an observation without the quorum proves neither
        waiting = decision.reasons if isinstance(decision, Wait) else ()
        stall_text = next((reason.text for reason in waiting if reason.cause is Cause.DUAL_WRITE_STALLED), None)
        if not isinstance(decision, Wait) or stall_text is None:
            return replace(state, since=None, untouched=None, pending=False), decision
        state = state.add_stalled_view(view)
        return state.recover_when_due(view, decision, stall_text) if state.pending else (state, decision)

    def add_stalled_view(self, view: ClusterView) -> StalledDualWrite:
        """Add an observation that waits for the dual-write to move."""
        since = self.since if self.since and _is_unchanged(self.since, view) else view
        untouched = self.untouched if self.untouched and _is_unchanged(self.untouched, view) else view
        untouched = untouched if _migration_version(untouched) == _migration_version(view) else view
        return replace(self, since=since, untouched=untouched, pending=self.times < MAX_RECOVERIES)

    def recover_when_due(self, view: ClusterView, decision: Wait, waiting: str) -> tuple[StalledDualWrite, Decision]:
        """Return a recovery once the hold time has passed and no gate forbids it. `waiting`: the text of the wait."""
        patience = self.hold_time(_MANY if view.partitions is None else len(view.partitions))
        if self.since is None or self.untouched is None or view.taken_at - self.since.taken_at < patience:
            return self, decision
        gate = may_recover(view)
        if not gate.met:
            return replace(self, pending=False), Wait((*decision.reasons, *gate.reasons))
        verb = Verb.CONTROLLER_FAILOVER if view.taken_at - self.untouched.taken_at >= patience else Verb.COMPLETE
        return self._count_recovery(), Act(verb, f"The dual-write has stalled although ZooKeeper answers: {waiting}")

    def repair_difference(self, view: ClusterView, refusal: Refuse) -> tuple[StalledDualWrite, Decision]:
        """Return the refusal of a permanent difference, or a recovery if ZooKeeper only misses what KRaft has: the write was lost.

        No recovery if ZooKeeper has more or something else: a new leader would overwrite it, and it may be intended (D05).
        """
        missing = all(reason.cause is Cause.ZOOKEEPER_MISSES for reason in refusal.reasons)
        if not missing or self.times >= MAX_RECOVERIES or not may_recover(view).met:
            return self, refusal
        text = f"Electing a new leader, which writes to ZooKeeper what was lost: {refusal.reasons[0].text}"
        return self._count_recovery(), Act(Verb.CONTROLLER_FAILOVER, text)

    def _count_recovery(self) -> StalledDualWrite:
        """Count a recovery before it begins, so that it is counted even if the process is killed in it."""
        return replace(self, times=self.times + 1, decided=True, since=None, untouched=None)

    def _add_health(self, view: ClusterView, *, healthy: bool) -> StalledDualWrite:
        """State before this observation's decision; minutes of health reset the count."""
        began = view.taken_at if self.healthy_since is None else self.healthy_since
        forgotten = healthy and view.taken_at - began >= FORGOTTEN_AFTER
        return replace(self, decided=False, healthy_since=began if healthy else None, times=0 if forgotten else self.times)

    def withdraw_decision(self) -> StalledDualWrite:
        """Withdraw the last decision, which was not begun; a decision without recovery changes nothing."""
        return replace(self, times=self.times - self.decided, decided=False)


def may_recover(view: ClusterView) -> Gate:
    """Whether a failover is safe (it neither finalizes nor meets an unhealthy quorum), and client metrics do not make it useless."""
    leaders = [controller for controller in view.controllers.values() if view.quorum and controller.id == view.quorum.leader_id]
    software = [gates.software_unchanged(leader, with_java=False) for leader in leaders]
    return combine_gates(
        (gates.all_controllers_flagged(view), gates.quorum_healthy(view), gates.no_client_metrics(view), *software)
    )


def _is_unchanged(since: ClusterView, view: ClusterView) -> bool:
    """Whether the same controller leads and nothing was dual-written since; unread values are never the same."""
    return _dual_written_position(since) == _dual_written_position(view) is not None


def _dual_written_position(view: ClusterView) -> tuple[int, int, int, int] | None:
    """The leader and the last dual-written position of /migration; None if either is unknown or the copy is not over."""
    migration, quorum = view.migration, view.quorum
    if migration is None or migration.metadata_offset <= 0 or quorum is None:
        return None
    return quorum.leader_id, quorum.leader_epoch, migration.metadata_epoch, migration.metadata_offset


def _migration_version(view: ClusterView) -> int:
    return view.migration.version if view.migration else -1


REPAIRS = frozenset({Verb.START_CONTROLLER, Verb.COMPLETE, Verb.CONTROLLER_FAILOVER})
"""The acts that recover a stalled dual-write."""
CONTROLLER_DOWN_FIELDS = Fields.POSITION | Fields.NODES
"""The fields that show whether a controller is down and may be started."""


def recover_dual_write(
    view: ClusterView, decision: Decision, stalled: StalledDualWrite, down: tuple[int, Decision] | None
) -> tuple[Decision, StalledDualWrite, Fields]:
    """Return the decision or a recovery, the new state, and the fields that the next observation must read beside the step's own.

    After a recovery, a controller that is down was stopped by a process that was killed in it; no other one is started here.
    """
    begun = stalled.times > 0
    down_controller = down if begun and not isinstance(decision, Refuse) else None
    new_state, decision = stalled.decide_recovery(view, _as_controller_start(down_controller[1]) if down_controller else decision)
    wants = CONTROLLER_DOWN_FIELDS if begun and view.unresponsive_controllers() else Fields(0)
    return decision, new_state, wants if new_state.since is None else wants | Fields.CLIENT_METRICS


def _as_controller_start(decision: Decision) -> Decision:
    return Act(Verb.START_CONTROLLER, decision.text) if isinstance(decision, Act) else decision


def explain_stalled_dual_write(
    view: ClusterView, before: ClusterView, broker: int, target: BrokerMode, decision: Decision
) -> Decision:
    """Add G07 to a wait for a started broker, if brokers depend on a dual-write that no observation shows to advance.

    A healthy wait is for a broker that is back, such as one that bakes, and stays as it is. `before`: earlier observation to
    measure movement from, if this one alone does not prove it.
    """
    observed = view.broker(broker)
    is_waiting_for_metadata = observed.is_starting and target is BrokerMode.MIGRATION  # a KRaft broker reads the log itself
    started = observed.mode is target or is_waiting_for_metadata
    if not isinstance(decision, Wait) or decision.healthy or not started or not _any_broker_needs_dual_write(view, target):
        return decision
    gate = gates.dual_write_alive(view, before)
    return decision if gate.met else Wait((*decision.reasons, *gate.reasons))


def _any_broker_needs_dual_write(view: ClusterView, target: BrokerMode) -> bool:
    """Whether any broker, this one included, gets its metadata from the dual-write thread."""
    modes = {target, *(broker.mode for broker in view.brokers.values())}
    return kraft_owns(view) and not migration_has_ended(view) and BrokerMode.MIGRATION in modes


STUCK_FOR = 20.0  # seconds; a caught-up follower is back within one. Below the 30 s after which a task defers: only tasks act
CAUGHT_UP = 1000  # records behind the leader's end that traffic explains


def find_stuck_leader(view: ClusterView, follower: int) -> int | None:
    """The one leader of all partitions that miss `follower` in their ISR; None if there are several, as of a follower that catches up.

    It may lead others that have the follower in their ISRs, from before its thread died (seen on real brokers: 9 of 27). Whether the
    follower only catches up is known by the ends of the logs (`explain_own_lag`).
    """
    leaders = {
        p.leader for p in view.partitions or () if follower in p.replicas and follower not in p.isr and p.leader != follower
    }
    return next(iter(leaders)) if len(leaders) == 1 and min(leaders) >= 0 else None


Ends = Mapping[tuple[str, int], int]  # (topic, partition) -> the next offset of a log


def lags_of(view: ClusterView, follower: int, own_ends: Ends, leaders_ends: Ends) -> dict[tuple[str, int], int]:
    """Records by which the follower's logs end before their leaders', where it is out of the ISR; 0 without a leader. What was not read is left out."""
    lags = {}
    for partition in view.missing_isr(follower):
        place = partition.topic, partition.index
        leader_end = leaders_ends.get(place) if partition.leader >= 0 else own_ends.get(place)
        if leader_end is not None and place in own_ends:
            lags[place] = max(0, leader_end - own_ends[place])
    return lags


def largest_lag(view: ClusterView, follower: int, lags: Mapping[tuple[str, int], int]) -> int | None:
    """Records by which `follower` lags where it is out of the ISR (`lags_of`); None if partitions or any of these were not read."""
    if view.partitions is None:
        return None
    lags_out_of_isr = [lags.get((p.topic, p.index)) for p in view.missing_isr(follower) if follower not in p.isr]
    known_lags = [lag for lag in lags_out_of_isr if lag is not None]
    return max(known_lags, default=0) if len(known_lags) == len(lags_out_of_isr) else None


def may_restart_leader(view: ClusterView, follower: int, leader: int) -> Gate:
    """Whether the leader may stop although `follower` is out of its ISRs: each ISR has another replica, all else is healthy.

    A leader alone in an ISR below min.insync.replicas takes no acks=all writes anyway, and only its restart ends that. Its
    partitions have no leader until it is back. They lose nothing, except acks=1 writes if unclean leaders are allowed.
    """
    others = (
        _no_other_under_replicated(view, follower, leader),
        _others_in_sync(view, leader),
        _controller_answers(view, leader),
    )
    return combine_gates((roll.no_other_broker_down(view), *others))


def _no_other_under_replicated(view: ClusterView, follower: int, leader: int) -> Gate:
    rows = [p for p in view.partitions or () if p.is_under_replicated]
    others = [p.name for p in rows if not _misses_only_follower(p, follower, leader) and not _is_unwritable(view, p, leader)]
    return not_yet_if(others, Reason("S02", f"Other partitions are under-replicated too: {summarize(others)}."))


def _misses_only_follower(partition: Partition, follower: int, leader: int) -> bool:
    return partition.leader == leader and set(partition.replicas) - set(partition.isr) == {follower}


def _is_unwritable(view: ClusterView, partition: Partition, leader: int) -> bool:
    needed = (view.min_insync or {}).get(partition.topic)
    return _is_leader_alone(partition, leader) and needed is not None and needed > 1


def _is_leader_alone(partition: Partition, leader: int) -> bool:
    return partition.leader == leader and set(partition.replicas) != {leader} and set(partition.isr) == {leader}


def _others_in_sync(view: ClusterView, leader: int) -> Gate:
    alone = [p.name for p in view.partitions or () if _is_leader_alone(p, leader) and not _is_unwritable(view, p, leader)]
    text = f"Broker {leader} is the only in-sync replica of {count_of(len(alone), 'partition')}: {summarize(alone)}."
    return not_yet_if(alone, Reason("S02", text))


def _controller_answers(view: ClusterView, leader: int) -> Gate:
    """G28: a broker that is stopped while its controller does not answer waits 300 s."""
    controller = view.zk.controller if view.zk else None
    if not isinstance(controller, ZkController):
        return not_yet(could_not_read("who is controller"))
    answering = len(view.controllers) - len(view.unresponsive_controllers())
    names_controller = view.broker(leader).controller_id == controller.broker_id
    answers = answering * 2 > len(view.controllers) if controller.is_kraft else names_controller
    return not_yet_if(not answers, Reason("G28", f"Broker {leader} has no controller that answers."))


OUT_OF_ISR_FOR = 8.0  # seconds; a caught-up follower is back within one

_TIMERS: Mapping[Verb, HoldTimer] = {
    Verb.RESTART_LEADER: HoldTimer(STUCK_FOR),  # one leader does not add the broker to its ISRs
    Verb.ELECT: HoldTimer(roll.LEFT_OUT_FOR),  # partitions of it have no leader
    Verb.RAISE: HoldTimer(OUT_OF_ISR_FOR),  # it is not in its ISRs after the handover to ZooKeeper
}

Lags = Mapping[tuple[str, int], int]  # (topic, partition) -> records that a log ends before its leader's


@dataclass(frozen=True, slots=True)
class Recoveries:
    """Hold times of one process. Once a recovery was `tried`, this process must finish the wait: no other process knows of it."""

    timers: Mapping[Verb, HoldTimer] = field(default_factory=lambda: _TIMERS)
    tried: bool = False

    def reset_timers(self) -> Recoveries:
        """After an observation in which nothing is to be recovered: what has lasted begins again."""
        if all(timer.since is None for timer in self.timers.values()):
            return self
        return replace(self, timers={verb: replace(timer, since=None) for verb, timer in self.timers.items()})

    def back_off(self, verb: Verb) -> Recoveries:
        """After that recovery, done or not: the next of its kind waits twice as long."""
        if verb not in self.timers:
            return self
        return Recoveries({**self.timers, verb: self.timers[verb].back_off()}, tried=True)


class Recovered(NamedTuple):
    """The decision or a recovery, and the hold times so far."""

    decision: Decision
    recoveries: Recoveries

    def act_if_lasting(self, view: ClusterView, condition: object, act: Act) -> Recovered:
        """Add one observation of what `act` recovers from; `act` replaces the decision once the hold time has expired."""
        timer = self.recoveries.timers[act.verb].add_sample(view.taken_at, holds=bool(condition))
        recoveries = replace(self.recoveries, timers={**self.recoveries.timers, act.verb: timer})
        return Recovered(act if timer.expired(view.taken_at) else self.decision, recoveries)


def recover(view: ClusterView, broker: int, decision: Decision, recoveries: Recoveries) -> Recovered:
    """Return the decision, or the recovery of a leader that is stuck or missing."""
    return _elect_skipped_leaders(view, broker, _restart_stuck_leader(view, broker, Recovered(decision, recoveries)))


def is_wait_for_own_isrs(decision: Decision) -> TypeGuard[Wait]:
    """Whether a broker misses only a place in ISRs, or leaders for its partitions."""
    return isinstance(decision, Wait) and {reason.cause for reason in decision.reasons} == {Cause.OUT_OF_ISR}


def is_wait_for_isrs(decision: Decision) -> TypeGuard[Wait]:
    """Whether nothing but a place in ISRs is missed, by the broker itself or by another one."""
    causes = {reason.cause for reason in decision.reasons} if isinstance(decision, Wait) else set()
    return bool(causes) and causes <= {Cause.OUT_OF_ISR, Cause.UNDER_REPLICATED}


def follower_out_of_isrs(view: ClusterView, broker: int) -> int:
    """The broker that is out of ISRs: `broker`, or another one if that alone is. It may have died before `broker` was to restart."""
    out = [other.id for other in view.running_brokers() if view.missing_isr(other.id)]
    return out[0] if len(out) == 1 else broker


def _restart_stuck_leader(view: ClusterView, broker: int, judged: Recovered) -> Recovered:
    """Restart one leader that has kept a broker out of its ISRs for too long (cause: `find_stuck_leader`)."""
    waiting = judged.decision
    follower = follower_out_of_isrs(view, broker)
    leader = find_stuck_leader(view, follower) if is_wait_for_isrs(waiting) else None
    kept_out = count_of(len(view.missing_isr(follower)), "partition")
    text = f"Broker {leader} alone keeps broker {follower} out of the ISRs of {kept_out}: restarting broker {leader}."
    restarted = judged.act_if_lasting(view, leader is not None, Act(Verb.RESTART_LEADER, text))
    if leader is None or not is_wait_for_isrs(waiting) or restarted.decision is waiting:
        return restarted
    gate = may_restart_leader(view, follower, leader)
    return restarted if gate.met else Recovered(Wait((*waiting.reasons, *gate.reasons)), restarted.recoveries)


def _elect_skipped_leaders(view: ClusterView, broker: int, judged: Recovered) -> Recovered:
    """Elect leaders if a takeover left partitions of this broker without one (cause: `roll.skipped_by_takeover`)."""
    skipped = roll.skipped_by_takeover(view, broker) if is_wait_for_own_isrs(judged.decision) else ()
    text = f"Broker {broker} is up, and the takeover left {count_of(len(skipped), 'partition')} of it without a leader. Electing leaders."
    return judged.act_if_lasting(view, skipped, Act(Verb.ELECT, text))


def leader_to_restart(view: ClusterView, broker: int, lags: Lags) -> int | str:
    """The leader to restart, checked again just before; or, as a sentence, why there is none."""
    leader = find_stuck_leader(view, broker)
    if leader is None:
        return f"No leader alone keeps broker {broker} out of ISRs any more; nothing is done."
    return explain_own_lag(view, broker, lags) or leader


def reason_not_to_elect(view: ClusterView, broker: int, lags: Lags) -> str:
    """Why no controller is elected, checked again just before, as a sentence; empty if one must be elected."""
    if view.partitions is not None and not view.missing_isr(broker):
        return f"Broker {broker} is back in its ISRs; nothing is done."
    return explain_own_lag(view, broker, lags)


def explain_own_lag(view: ClusterView, broker: int, lags: Lags) -> str:
    """Why no other broker is the cause: it is far behind, or its lag is unread. Empty if it has caught up."""
    behind = largest_lag(view, broker, lags)
    if behind is None:
        return (
            f"Could not read how far broker {broker} is behind; nothing is done. Check that all its log directories are online."
        )
    return (
        f"Broker {broker} is {count_of(behind, 'record')} behind: it is still catching up; nothing is done."
        if behind > CAUGHT_UP
        else ""
    )
