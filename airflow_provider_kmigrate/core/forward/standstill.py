"""A dual-write that has ended although everybody runs, and when doing something about it is the cure.

Kafka says "Will retry" (at INFO) and never succeeds. Two causes, both seen on real brokers after ZooKeeper was away for seconds while
topics were made (Kafka 3.9.2):

* The answer to a write was lost with the connection. The active controller goes on with the version of /migration from before; each of its
  later writes ends with "BadVersion for /migration". /migration does not change at all any more. Another controller reads it anew.
* A topic is in ZooKeeper in part only (`clients.half_made`). The next controller that is elected fails in its first full sync, and so does
  each one after it. /migration shows the old leader's epoch for ever, though its version moves with every attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_kmigrate.core import gates
from airflow_provider_kmigrate.core.decision import Act, Decision, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.gates import Gate, together
from airflow_provider_kmigrate.core.model import Cause, ClusterView, Migration

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
