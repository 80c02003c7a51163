"""A leader that takes nobody back into its ISRs, and when restarting it is the cure.

When the owner of a cluster changes between ZooKeeper and KRaft, each broker in migration mode rebuilds the client of its threads
`to-controller-alter-partition` and `to-controller-forwarding` at the same moment. Both use sensors of the same names, and where the one
removes them while the other adds its own, that one ends with "A metric named ... already exists" (Kafka 3.9.2; the error and what follows
were seen twice on real brokers, the race behind it is read from its stack trace; what follows was seen once more, without the log). A broker whose alter-partition thread has ended goes on serving, but can neither shrink nor grow an ISR until
it is restarted: whichever broker restarts next never comes back into the ISR of that leader's partitions. A leader whose partition epochs are
ahead of ZooKeeper's (`clients.partition_states`) looks the same; a way back raises these, before it comes to this cure.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kmigrate.core.gates import MET, Gate, not_yet, together
from airflow_provider_kmigrate.core.listing import join_ids, summarize
from airflow_provider_kmigrate.core.model import ClusterView, Partition, Reason, ZkController
from airflow_provider_kmigrate.core.unread import could_not_read

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
