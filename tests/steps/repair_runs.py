"""A simulated __consumer_offsets with copies in two partitions, and what its repair must leave."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_kmigrate.core.cluster_state.model import FetchedOffset
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.migration.coordinator import hash_group
from tests.steps.expansion_runs import stored
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import Mortal

OLD, NEW = 10, 15
WHERE = TopicPartition("t", 0)


def broken() -> tuple[SimCluster, dict[str, FetchedOffset]]:
    """All groups committed under 10; the topic was expanded and all brokers restarted; every third group has committed since."""
    cluster = SimCluster(offsets_partitions=OLD)
    cluster.log.read()
    right = {group: offsets[WHERE] for groups in cluster.offsets.values() for group, offsets in groups.items()}
    cluster.offsets_partitions = NEW
    for node in cluster.spec.brokers:
        cluster.stop(node)
        cluster.start(node)
    cluster.disasters.clear()
    assert set(cluster.counts.values()) == {NEW}
    for group in moving(right)[::3]:
        right[group] = FetchedOffset(right[group].offset + 50, 3, "since")
        cluster.offsets.setdefault(hash_group(group) % NEW, {})[group] = {WHERE: right[group]}
    cluster.mortal = Mortal()
    return cluster, right


def moving(groups: Iterable[str]) -> list[str]:
    return sorted(group for group in groups if hash_group(group) % OLD != hash_group(group) % NEW)


def check_repaired(cluster: SimCluster, right: dict[str, FetchedOffset]) -> None:
    assert cluster.disasters == []
    assert stored(cluster) == {group: [(hash_group(group) % NEW, {WHERE: one})] for group, one in right.items()}
