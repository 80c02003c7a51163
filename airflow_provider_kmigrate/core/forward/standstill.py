"""A dual-write that has ended although everybody runs, and when doing something about it is the cure.

Kafka says "Will retry" (at INFO) and never succeeds. Two causes, both seen on real brokers after ZooKeeper was away for seconds while
topics were made (Kafka 3.9.2):

* The answer to a write was lost with the connection. The active controller goes on with the version of /migration from before; each of its
  later writes ends with "BadVersion for /migration". /migration does not change at all any more. Another controller reads it anew.
* A topic is in ZooKeeper in part only (`clients.half_made`). The next controller that is elected fails in its first full sync, and so does
  each one after it. /migration shows the old leader's epoch for ever, though its version moves with every attempt.
"""

from __future__ import annotations

from airflow_provider_kmigrate.core import gates
from airflow_provider_kmigrate.core.gates import Gate, together
from airflow_provider_kmigrate.core.metadata.equivalence import Kind
from airflow_provider_kmigrate.core.model import Act, ClusterView, Decision, Migration, Refuse, Verb, Wait

PATIENCE = 20.0  # seconds; /migration moves every 0.5 s
_A_PARTITION = 0.002  # seconds more for each: a full sync reads all states, and writes only what differs
_MANY = 100_000  # partitions, where it is not known how many there are
MOST_CURES = 3  # what they did not cure, another one would not
FORGOTTEN_AFTER = 600.0  # seconds of health: what ends it later is another trouble
_LACKING = frozenset({Kind.EXTRA_TOPIC.value, Kind.LEADER.value})  # nobody can have meant what ZooKeeper has instead


class Standstill:
    """Since when /migration stands still, over the looks of one life; `times`: cures that were begun, in earlier lives too."""

    def __init__(self, times: int = 0) -> None:
        self.times = times
        self._since: ClusterView | None = None  # the same leader, nothing dual-written since
        self._untouched: ClusterView | None = None  # and not tried, either
        self._well_since: float | None = None
        self._decided = False  # a cure, at the last look
        self.pending = False  # whether a cure comes, if it goes on so

    @property
    def suspected(self) -> bool:
        """Whether it did not move between two looks."""
        return self._since is not None

    def patience(self, partitions: int) -> float:
        """Seconds until the next cure, twice as many each time."""
        return float((PATIENCE + _A_PARTITION * partitions) * 2**self.times)

    def cured(self, view: ClusterView, decision: Decision) -> Decision:
        """The decision, or the cure where it has waited for the dual-write to move for too long."""
        self._decided = False
        told = [reason.text for reason in decision.reasons if reason.code == "G07"] if isinstance(decision, Wait) else []
        self._forget(view, well=isinstance(decision, Wait) and decision.healthy)
        if view.zk is not None and view.quorum is None:
            return decision  # a look without the quorum says neither
        self.pending = False
        if not isinstance(decision, Wait) or not told:
            self._since = self._untouched = None
            return decision
        self._since = self._since if self._since and _same(self._since, view) else view
        untouched = self._untouched if self._untouched and _same(self._untouched, view) else view
        self._untouched = untouched if _version(untouched) == _version(view) else view
        patience = self.patience(_MANY if view.partitions is None else len(view.partitions))
        self.pending = self.times < MOST_CURES
        if not self.pending or view.taken_at - self._since.taken_at < patience:
            return decision
        gate = may_cure(view)
        if not gate.met:
            self.pending = False
            return Wait((*decision.reasons, *gate.reasons))
        verb = Verb.FAIL_OVER if view.taken_at - self._untouched.taken_at >= patience else Verb.MEND
        return self._begun(verb, f"The dual-write stands still although ZooKeeper answers: {told[0]}")

    def found(self, view: ClusterView, refusal: Refuse) -> Decision:
        """The refusal of a difference that lasts, or its cure where ZooKeeper merely lacks what KRaft has: it was lost on its way.

        Not where ZooKeeper has more, or something else: a new leader would write over it, and somebody may have meant it (D05).
        """
        lacking = {reason.code for reason in refusal.reasons} <= _LACKING
        if not lacking or self.times >= MOST_CURES or not may_cure(view).met:
            return refusal
        return self._begun(Verb.FAIL_OVER, f"A new leader writes to ZooKeeper what was lost: {refusal.reasons[0].text}")

    def _begun(self, verb: Verb, text: str) -> Act:
        self.times += 1  # before it is begun: who remembers it knows what a life that ended in it has left
        self._decided = True
        self._since = self._untouched = None
        return Act(verb, text)

    def _forget(self, view: ClusterView, *, well: bool) -> None:
        began = view.taken_at if self._well_since is None else self._well_since
        self._well_since = began if well else None
        if self._well_since is not None and view.taken_at - self._well_since >= FORGOTTEN_AFTER:
            self.times = 0

    def undo(self) -> None:
        """What was decided on last was not begun, whether it was a cure or not."""
        self.times -= self._decided
        self._decided = False


def may_cure(view: ClusterView) -> Gate:
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
