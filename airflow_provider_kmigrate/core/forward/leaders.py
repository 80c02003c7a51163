"""Bring leadership back to the preferred replicas after a roll, in batches that clients hardly feel; and leaders that nobody elects."""

from __future__ import annotations

from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Verb, Wait
from airflow_provider_kmigrate.core.model import ClusterView, Partition
from airflow_provider_kmigrate.core.phase import kraft_owns
from airflow_provider_kmigrate.core.unread import could_not_read

LEFT_OUT_FOR = 10.0  # seconds; a partition whose only replica has just been unfenced has a leader within one
MOST_ROUNDS = 20  # however many partitions there are, this many elections must do: each costs a pause


def not_preferred(view: ClusterView) -> tuple[Partition, ...]:
    """Partitions that could be led by their preferred replica (the first, in sync) and are not."""
    return tuple(p for p in view.partitions or () if p.leader != p.replicas[0] and p.replicas[0] in p.isr)


def batch(view: ClusterView, size: int, total: int) -> tuple[Partition, ...]:
    """The next partitions to elect: `size` of them, or more where `total` would take more than 20 rounds."""
    return not_preferred(view)[: max(size, -(-total // MOST_ROUNDS))]


def decide_leaders(view: ClusterView) -> Decision:
    """Elect while a partition is not led by its preferred replica."""
    if view.partitions is None:
        return Wait((could_not_read("the partitions"),))
    left = not_preferred(view)
    if not left:
        return Done("Every partition is led by its preferred replica.")
    return Act(Verb.ELECT, f"{len(left)} partitions are not led by their preferred replica.")


def left_out(view: ClusterView, broker: int) -> tuple[Partition, ...]:
    """Partitions that lack nothing but a leader, this broker being in their ISR, where nothing else keeps it from taking part.

    The broker that registers last brings the takeover: its partitions that had no leader just then are copied so, it is unfenced in the
    middle of the copy, and nobody elects later (measured with 10,000 partitions and one replica each: 3,204 of them). Empty where anything
    else is amiss, or where ZooKeeper owns the cluster: then its controller elects.
    """
    lacking = view.lacking(broker)
    return lacking if kraft_owns(view) and all(broker in p.isr for p in lacking) else ()
