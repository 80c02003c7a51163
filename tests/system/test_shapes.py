"""Clusters of other shapes than the demo's, migrated by the same steps without Airflow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.ledger import balance
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from tests.kit.account import account_of, judge_equal, kafka_of, log_dirs
from tests.kit.judge import Foreign
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.kit.verifiable import events_of
from tests.kit.workload import GroupPlan, Workload, WorkloadPlan
from tests.system import evidence
from tests.verdicts import verdict_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow(seconds=50), pytest.mark.timeout(300)]


@contextmanager
def serving(folder: Path, shape: Shape, topic: TopicPlan) -> Iterator[LocalCluster]:
    with lent(folder / "cluster", shape) as cluster:
        create_topics({"bootstrap.servers": cluster.bootstrap}, [topic])
        yield cluster


def migrate(cluster: LocalCluster) -> None:
    """To the end, each node started once a pass."""
    with direct.context(cluster) as context:
        direct.forward(context)
        assert position_of(context.observer.observe(evidence.EVERYTHING)).phase is Phase.FINALIZED
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
        foreign = Foreign(kafka_of(cluster, tmp_path / "foreign"))
        try:
            foreign.create_topic(3)
            foreign.start()
            workload.start()
            migrate(cluster)
            workload.stop()
            account = account_of(cluster, workload, foreign, ["orders"])
            assert account.failures == ()
            differs_behind_krafts_back(cluster, foreign)
        finally:
            foreign.close()
            workload.stop(drain=0.0)
    assert account.ledger["acked"] > 1_000
    assert account.judged.acknowledged > 1_000


def differs_behind_krafts_back(cluster: LocalCluster, foreign: Foreign) -> None:
    """The judge has read both sides: each change of one of them is found."""
    keeper = KazooClient(cluster.zookeeper)
    keeper.start(timeout=20)
    try:
        keeper.set("/config/topics/orders", json.dumps({"version": 1, "config": {"retention.ms": "4711"}}).encode())
        [problem] = judge_equal(cluster, foreign.kafka, 0.0).problems
        assert "between ZooKeeper and KRaft: topic orders: retention.ms is 4711 and missing" in problem
        held = json.loads(keeper.get("/brokers/topics/orders")[0])
        keeper.set("/brokers/topics/orders", json.dumps(held | {"topic_id": "AAAAAAAAAAAAAAAAAAAAAA"}).encode())
        assert len(judge_equal(cluster, foreign.kafka, 0.0).problems) == 2, "the brokers have another id, too"
    finally:
        keeper.stop()
        keeper.close()


@pytest.mark.long
def test_five_brokers_in_racks_with_one_controller_and_jvm_clients(tmp_path: Path) -> None:
    shape = Shape(name="five", brokers=5, controllers=1, racks=3)
    with serving(tmp_path, shape, TopicPlan("orders", 15)) as cluster:
        load = Foreign(kafka_of(cluster, tmp_path / "foreign"), "orders", rate=200, keys=0, members=2)
        try:
            load.start()
            migrate(cluster)
            load.stop()
            judged = load.judge(log_dirs(cluster)) + judge_equal(cluster, load.kafka)
        finally:
            load.close()
    facts = balance(list(events_of(load)))
    assert (verdict_of(facts), facts.reasons) == (AuditOutcome.PASS, ())
    assert (judged.problems, judged.doubts) == ((), ())
    assert facts.acked == judged.acknowledged > 2_000
