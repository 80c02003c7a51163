"""Coordinators of groups on real brokers: who accepts a group, and when all is settled."""

from __future__ import annotations

from airflow_provider_kmigrate.clients import wire_groups
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.steps.run import StepContext
from tests.system.road import done, everybody_in_sync
from tests.waiting import wait_for

GROUPS = tuple(f"team-{number:02}" for number in range(60))
WHAT = Fields.BROKERS | Fields.PARTITIONS | Fields.COORDINATORS


def settled(here: StepContext, partitions: int) -> ClusterView:
    """Everything in sync and led by its preferred replica; every broker answers."""

    def holds(view: ClusterView) -> bool:
        counted = sum(partition.topic == OFFSETS.name for partition in view.partitions or ())
        known = view.coordinators.counts[OFFSETS.name] if view.coordinators else {}
        return counted == partitions and everybody_in_sync(view) and len(known) == len(here.spec.brokers) and all(known.values())

    wait_for(lambda: here.observer.observe(WHAT), holds, "all replicas in sync", 120.0)
    done(here, "leaders")
    return wait_for(lambda: here.observer.observe(WHAT), holds, "all brokers answer")


def acceptors(here: StepContext) -> dict[str, int]:
    """How many brokers take themselves for the coordinator of each group."""
    described = [wire_groups.describe_groups_at(here.tools.wire(node), GROUPS) for node in here.spec.brokers]
    return {group: sum(not isinstance(one[group], KMigrateError) for one in described) for group in GROUPS}
