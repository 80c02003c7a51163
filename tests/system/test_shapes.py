"""Clusters of other shapes than the demo's, migrated by the same steps without Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.phase import Phase, where
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.kit.workload import GroupPlan, Workload, WorkloadPlan
from tests.system import evidence
from tests.system.verifiable_load import VerifiableLoad
from tests.verdicts import verdict_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=50), pytest.mark.timeout(300)]


@contextmanager
def serving(folder: Path, shape: Shape, topic: TopicPlan) -> Iterator[LocalCluster]:
    with lent(folder / "cluster", shape) as cluster:
        create_topics({"bootstrap.servers": cluster.bootstrap}, [topic])
        yield cluster


def migrate(cluster: LocalCluster) -> None:
    """To the end, each node started once a pass."""
    with direct.context(cluster) as context:
        direct.forward(context)
        assert where(context.observer.observe(evidence.EVERYTHING)).phase is Phase.FINALIZED
        refused_to_go_back(cluster, context)
    assert {evidence.starts(node) for node in cluster.plan.brokers} == {3}
    assert {evidence.starts(node) for node in cluster.plan.controllers} == {2}


def refused_to_go_back(cluster: LocalCluster, context: StepContext) -> None:
    """After finalization there is no rollback, and asking for it changes nothing."""
    wait_until(lambda: evidence.all_know_the_leader(cluster), "every node knows the leader")
    before = evidence.footprint(cluster)
    with pytest.raises(Refused) as refused:
        run_rollback(context)
    assert refused.value.reasons[0].code == "P12"
    assert evidence.footprint(cluster) == before


def test_the_smallest_cluster_below_a_chroot(tmp_path: Path) -> None:
    """Everything is down whenever its only broker is; nothing may be lost all the same."""
    shape = Shape(name="least", brokers=1, controllers=1, racks=0, chroot="/kafka/least")
    with serving(tmp_path, shape, TopicPlan("orders", 3)) as cluster:
        plan = WorkloadPlan(("orders",), rate=100.0, groups=(GroupPlan("readers", 1),))
        workload = Workload(tmp_path / "load", {"bootstrap.servers": cluster.bootstrap}, plan)
        try:
            workload.start()
            migrate(cluster)
            workload.stop()
            facts = workload.facts()
        finally:
            workload.stop(drain=0.0)
    assert (verdict_of(facts), facts.reasons) == (AuditOutcome.PASS, ())
    assert facts.acked > 1_000


@pytest.mark.long
def test_five_brokers_in_racks_with_one_controller_and_jvm_clients(tmp_path: Path) -> None:
    shape = Shape(name="five", brokers=5, controllers=1, racks=3)
    with serving(tmp_path, shape, TopicPlan("orders", 15)) as cluster:
        load = VerifiableLoad(cluster, "orders", rate=200)
        load.start()
        migrate(cluster)
        facts = load.stop()
    assert (verdict_of(facts), facts.reasons) == (AuditOutcome.PASS, ())
    assert facts.acked > 2_000
