"""The topic ids on a real broker's disk: what the broker itself makes of changed files, and what preflight says of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import Fields, ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.preflight.findings import PreflightFinding, Severity
from airflow_provider_kmigrate.steps.prepare import observe_preflight
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster import ready
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.system import nodes
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ENDS = ("have failed (kafka.log.LogManager)", "Exiting Kafka due to fatal exception during startup")
OTHER = "ZGVmZ2hpamtsbW5vcHFycw"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    shape = Shape(name="ids", brokers=2, controllers=1)
    with lent(tmp_path_factory.mktemp("ids") / "cluster", shape) as there:
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan("orders", 3, replication=2)])
        yield there


def start_in_vain(cluster: LocalCluster, broker: NodeSpec) -> None:
    """A broker that starts once its old registration is gone says that it cannot, and ends."""
    with ready.registry(cluster.plan) as registry:
        ready.wait_expired(broker, registry, time.monotonic() + 60.0)
    process = nodes.of(broker)
    before = process.log.stat().st_size
    process.start()
    wait_for(
        lambda: process.log.read_bytes()[before:].decode(errors="replace"),
        lambda said: any(end in said for end in ENDS),
        "the broker says that it cannot start",
        120,
    )
    wait_for(process.find, lambda found: found.state is ProcessState.STOPPED, "the broker ends", 120)


def find_on_disk(cluster: LocalCluster) -> list[PreflightFinding]:
    with direct.context(cluster, acting=False) as context:
        return [finding for finding in observe_preflight(context).found if finding.code == "B25"]


def topic_id_in(path: Path) -> str:
    return path.read_text().split("topic_id:")[1].strip()


def read_in_sync(cluster: LocalCluster) -> dict[str, tuple[int, ...]]:
    """The replicas in sync of each partition of orders, once the others are all in sync."""
    with direct.context(cluster, acting=False) as context:
        return wait_for(
            lambda: {
                partition.name: partition.isr
                for partition in context.observer.observe(Fields.PARTITIONS).partitions or ()
                if partition.topic == "orders"
            },
            lambda seen: {len(seen.get(f"orders-{number}", ())) for number in (1, 2)} == {2},
            "the other partitions are in sync",
            60,
        )


def test_what_a_brokers_disk_has_of_topics_is_compared_with_zookeeper(cluster: LocalCluster) -> None:
    broker = cluster.plan.brokers[1]
    data = cluster.data_of(broker)
    first, second = (data / f"orders-{number}" / "partition.metadata" for number in (0, 1))
    wait_for(lambda: first.exists() and second.exists(), bool, "the broker writes the ids of its partitions", 60)
    assert find_on_disk(cluster) == []
    topic_id = topic_id_in(first)

    second.unlink()
    (missing,) = find_on_disk(cluster)
    assert (missing.severity, f"{second.parent}" in missing.reason.text) == (Severity.WARN, True)

    with nodes.down(nodes.of(broker), cluster):
        for text in ("", "version: 0\n", f"version: 0\ntopic_id: {'A' * 22}\n"):  # empty after a loss of power; an id of zeros
            first.write_text(text)
            start_in_vain(cluster, broker)
        first.write_text(f"version: 0\ntopic_id: {OTHER}\n")
        stray = data / "gone-0"
        stray.mkdir()
        (stray / "partition.metadata").write_text(f"version: 0\ntopic_id: {OTHER}\n")
    wait_for(second.exists, bool, "a broker in ZooKeeper mode writes a missing id when it starts", 60)
    assert topic_id_in(second) == topic_id
    found = {finding.severity: finding.reason.text for finding in find_on_disk(cluster)}
    assert found.keys() == {Severity.BLOCK, Severity.WARN}
    assert f"{first.parent} ({OTHER})" in found[Severity.BLOCK]
    assert str(stray) in found[Severity.WARN]
    in_sync = {name: len(isr) for name, isr in read_in_sync(cluster).items()}
    assert in_sync == {"orders-0": 1, "orders-1": 2, "orders-2": 2}, "the broker does not serve the partition of another id"
