"""Directories that no partition of a real broker has: what preflight says of them, and what Kafka does once controllers own the cluster."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.steps.prepare import observe_preflight
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Shape
from tests.system import nodes
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow(seconds=150), pytest.mark.timeout(900)]

OTHER, PUT_AWAY = "ZGVmZ2hpamtsbW5vcHFycw", f"old-0.{'a' * 32}-stray"
REFUSAL = "does not have a topic ID, which is not allowed when running in KRaft mode"


def test_directories_of_no_partition_are_named_and_one_without_id_makes_a_broker_refuse_the_controllers(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster")
    cluster.end_with_this_process()
    try:
        cluster.up(Shape(name="strays", brokers=3, controllers=1))
        create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan("orders", 3, replication=2)])
        broker = cluster.plan.brokers[1]
        data = cluster.data_of(broker)
        held = [f"orders-{number}" for number in range(3)]
        wait_for(lambda: [(data / name).exists() for name in held].count(True), lambda count: count == 2, "its replicas", 60)
        (foreign,) = [name for name in held if not (data / name).exists()]
        source = next(path for path in (cluster.data_of(node) / foreign for node in cluster.plan.brokers) if path.exists())
        wait_for((source / "partition.metadata").exists, bool, "the id is written", 60)
        with direct.context(cluster) as here:
            direct.prepare(here)
        with nodes.down(nodes.of(broker), cluster):
            shutil.copytree(source, data / foreign)
            for name in ("gone-0", PUT_AWAY):
                (data / name).mkdir()
                (data / name / "partition.metadata").write_text(f"version: 0\ntopic_id: {OTHER}\n")
            (data / "nameless-0").mkdir()
        with direct.context(cluster, acting=False) as here:
            found = [finding for finding in observe_preflight(here).found if finding.code == "B25"]
        said = {finding.severity: [each.reason.text for each in found if each.severity is finding.severity] for finding in found}
        assert (len(said[Severity.WARN]), len(said[Severity.BLOCK])) == (3, 1), said
        assert "nameless-0" in said[Severity.BLOCK][0]
        assert all(any(name in text for text in said[Severity.WARN]) for name in (foreign, "gone-0", PUT_AWAY)), said
        assert "broker 1 1 (" in said[Severity.WARN][0]

        with direct.context(cluster) as here:  # preflight would stop here: what it says is what Kafka does
            direct.provision(here)
            direct.roll(here, BrokerMode.MIGRATION)
            direct.copy(here)
            log = nodes.of(broker).log
            wait_for(lambda: REFUSAL in log.read_text(errors="replace"), bool, "the broker refuses the controllers' request", 120)
            assert (data / foreign).exists(), "a broker that refuses the request renames nothing"
    finally:
        cluster.clean()
