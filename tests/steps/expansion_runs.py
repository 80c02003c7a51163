"""Expansions of a simulated __consumer_offsets: up to a step, and what must hold afterwards."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, FetchedOffset, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS, hash_group
from airflow_provider_kmigrate.core.migration.plan import EXPANSION, find_step
from airflow_provider_kmigrate.steps.catalog import run_plan
from airflow_provider_kmigrate.steps.run import StepContext
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import parse

TO_20 = {"partitions": 20}


def stored(cluster: SimCluster) -> dict[str, list[tuple[int, dict[TopicPartition, FetchedOffset]]]]:
    """Group -> each partition that holds offsets of it, with them: the independent reader."""
    found: dict[str, list[tuple[int, dict[TopicPartition, FetchedOffset]]]] = {}
    for partition, groups in sorted(cluster.offsets.items()):
        for group, offsets in groups.items():
            found.setdefault(group, []).append((partition, offsets))
    return found


def check_expanded(
    cluster: SimCluster, before: dict[str, list[tuple[int, dict[TopicPartition, FetchedOffset]]]], count: int
) -> None:
    assert cluster.disasters == []
    assert set(cluster.counts.values()) == {count} == {cluster.offsets_partitions}
    assert stored(cluster) == {group: [(hash_group(group) % count, offsets)] for group, [(_, offsets)] in before.items()}
    for (role, _), node in cluster.nodes.items():
        if role is NodeRole.BROKER:
            assert parse(node.text)[OFFSETS.setting] == str(count)
            assert node.running == node.text


def up_to(context: StepContext, kind: str, **arguments: object) -> None:
    """The plan up to a step, without it."""
    run_plan(context, EXPANSION[: EXPANSION.index(find_step(EXPANSION, kind))], TO_20 | arguments)


def moving(count: int = 20) -> list[str]:
    return [group for group in (f"team-{n}" for n in range(12)) if hash_group(group) % 10 != hash_group(group) % count]


def meanwhile(cluster: SimCluster, when: float | Callable[[], bool], act: Callable[[], object]) -> None:
    """Do this once, so many seconds from now, or once that is so, before an observation."""
    observe, began, left = cluster.observe, cluster.clock.time, [act]

    def observed(what: Fields, *given: object) -> ClusterView:
        due = when() if callable(when) else cluster.clock.time - began >= when
        if left and due:
            left.pop()()
        return observe(what, *given)  # type: ignore[arg-type]

    cluster.observe = observed  # type: ignore[method-assign]
