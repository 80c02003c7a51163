"""The table of docs/metrics.md against real JMX: what each gauge of Kafka says in a phase, and what kmigrate reads instead."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.migration.gates import dual_write_lag
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.monitoring.gauges import PHASES
from airflow_provider_kmigrate.core.monitoring.witness import find_contradictions, read_gauges
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster import runtime
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import HOST, Shape, folder_of
from tests.system import evidence
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow(seconds=110), pytest.mark.timeout(540)]
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
NEVER_SHIPPED = (
    "MetadataType",
    "MigrationIneligibleBrokerCount",
    "MigrationIneligibleControllerCount",
    "ZooKeeperBlockingKRaftMillis",
)


@dataclass(frozen=True)
class Jmx:
    """Kafka's own JmxTool, one process a question."""

    cluster: LocalCluster

    def gauges(self, node: NodeSpec) -> dict[str, str]:
        """Name of each bean of the node's type KafkaController -> its value."""
        java, port = runtime.find(), self.cluster.plan.ports[f"{folder_of(node).name} jmx"]
        argv = [
            java.java,
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            java.class_path,
            "org.apache.kafka.tools.JmxTool",
            "--one-time",
            "--report-format",
            "properties",
        ]
        argv += ["--jmx-url", f"service:jmx:rmi:///jndi/rmi://{HOST}:{port}/jmxrmi"]
        argv += ["--object-name", "kafka.controller:type=KafkaController,*"]
        said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
        return dict(re.findall(r"name=(\w+):Value=(\S+)", said))

    def of_controllers(self, *names: str) -> set[tuple[str, ...]]:
        found = [self.gauges(node) for node in self.cluster.plan.controllers]
        return {tuple(gauges.get(name, "absent") for name in names) for gauges in found}

    def agree(self, view: ClusterView) -> bool:
        """Whether the second witness has nothing against an observation; the controllers' gauges as an exporter would print them."""
        found = {}
        for node in self.cluster.plan.controllers:
            named = self.gauges(node)
            lines = [f'kafka_controller_KafkaController_Value{{name="{name}",}} {value}' for name, value in named.items()]
            found[node.id] = read_gauges("\n".join(lines).encode())
        return find_contradictions(view, found) == ()

    def of_brokers(self, name: str) -> set[str]:
        return {self.gauges(node).get(name, "absent") for node in self.cluster.plan.brokers}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("metrics") / "cluster")
    try:
        cluster.up(Shape(name="metrics", brokers=3, controllers=1, jmx=True))
        create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan("orders", 6)])
        yield cluster
    finally:
        cluster.down()


def observe(cluster: LocalCluster) -> ClusterView:
    with direct.context(cluster, "looking", acting=False) as here:
        return here.observer.observe(evidence.EVERYTHING)


def test_each_phase_of_the_table(cluster: LocalCluster) -> None:
    jmx = Jmx(cluster)
    assert jmx.of_brokers("ZkMigrationState") == {"4"}
    assert position_of(observe(cluster)).phase is Phase.ZOOKEEPER

    with direct.context(cluster, "metrics") as here:
        direct.prepare(here)
        direct.provision(here)
        assert jmx.of_controllers("ZkMigrationState") == {("2",)}
        assert jmx.agree(observe(cluster))
        direct.until(here, "second_roll")
    view = observe(cluster)
    assert jmx.of_controllers("ZkMigrationState", "MigratingZkBrokerCount") == {("1", "3")}
    assert (position_of(view).phase, len(view.in_mode(BrokerMode.MIGRATION))) == (Phase.DUAL_WRITE_ZOOKEEPER, 3)
    assert jmx.agree(view)
    near_zero(cluster, jmx)

    with direct.context(cluster, "metrics") as here:
        direct.roll(here, BrokerMode.KRAFT)
    view = observe(cluster)
    assert jmx.of_controllers("ZkMigrationState", "MigratingZkBrokerCount") == {("1", "0")}
    assert (position_of(view).phase, len(view.in_mode(BrokerMode.KRAFT))) == (Phase.DUAL_WRITE, 3)
    assert jmx.agree(view)
    near_zero(cluster, jmx)
    names = set(jmx.gauges(cluster.plan.controllers[0]))
    assert names >= {"ZkMigrationState", "MigratingZkBrokerCount", "ZkWriteBehindLag", "ActiveControllerCount"}
    assert names.isdisjoint(NEVER_SHIPPED)

    with direct.context(cluster, "metrics") as here:
        direct.finalize(here)
    assert jmx.of_controllers("ZkMigrationState") == {("3",)}
    finalized = observe(cluster)
    assert position_of(finalized).phase is Phase.FINALIZED
    assert jmx.agree(finalized)
    assert not jmx.agree(view), "what was observed before the finalization"


def near_zero(cluster: LocalCluster, jmx: Jmx) -> None:
    """Kafka's own lag and ours, read at almost one time, of a cluster at rest."""

    def both() -> tuple[int, int | None]:
        ((theirs,),) = jmx.of_controllers("ZkWriteBehindLag")
        return int(theirs), dual_write_lag(observe(cluster))

    wait_for(both, lambda seen: seen[0] <= 2 and seen[1] is not None and seen[1] <= 2, "no lag by both readings", 60.0)


def test_the_document_has_every_phase_and_every_metric_of_the_kip() -> None:
    text = DOCUMENT.read_text()
    assert {
        f"| {number} | {phase.value} |" for phase, number in PHASES.items() if f"| {number} | {phase.value} |" not in text
    } == set()
    assert [name for name in (*NEVER_SHIPPED, "ZkMigrationState", "ZkWriteBehindLag", "Features") if name not in text] == []
