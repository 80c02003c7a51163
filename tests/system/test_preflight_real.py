"""Preflight on a real cluster on which several things are made wrong: it finds exactly those, and changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka.protocol.admin import AlterPartitionReassignmentsRequest
from kazoo.client import KazooClient

from airflow_provider_kmigrate.core.cluster_state.model import Fields, ZkController
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.steps.prepare import Preflight, observe_preflight
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.system import evidence, secured

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

CHROOT = "/kafka/main"
RULE = {"version": 1, "acls": [{"principal": "User:alice", "permissionType": "Allow", "operation": "Read", "host": "*"}]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lent(tmp_path_factory.mktemp("preflight") / "cluster", Shape(name="preflight", chroot=CHROOT)) as there:
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan("orders", 6)])
        yield there


@pytest.fixture
def zookeeper(cluster: LocalCluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.plan.zookeeper)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def observe(cluster: LocalCluster) -> Preflight:
    """As the DAG looks; nothing is different afterwards."""
    before = evidence.footprint(cluster)
    with direct.context(cluster, acting=False) as context:
        found = observe_preflight(context)
    assert evidence.footprint(cluster) == before
    return found


def codes(found: Preflight) -> list[str]:
    return sorted(finding.code for finding in found.found)


def configure(
    cluster: LocalCluster, kind: ResourceType, name: str, client: dict[str, str] | None = None, **settings: str
) -> None:
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()
    ]
    admin = AdminClient(client or {"bootstrap.servers": cluster.bootstrap})  # type: ignore[arg-type]
    (done,) = admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=entries)]).values()
    done.result(20)


def test_a_healthy_cluster_is_ready_and_every_field_was_read(cluster: LocalCluster) -> None:
    found = observe(cluster)
    assert codes(found) == []
    environment = found.facts.environment
    assert environment.unread == ()
    assert set(environment.releases.values()) == {"3.9-IV0"}
    assert {each.error for dirs in environment.log_dirs.values() for each in dirs or ()} == {""}
    assert [server.version for server in environment.servers if server.version and server.version.startswith("3.8")]
    assert environment.tree is not None
    assert environment.tree.registrations.keys() == {0, 1, 2}


def test_a_file_that_was_edited_after_the_start_is_named(cluster: LocalCluster) -> None:
    path = Path(cluster.plan.brokers[1].hosts.properties)
    original, written = path.read_text(), path.stat()
    try:
        path.write_text(f"# Ansible managed\n{original}\nmin.insync.replicas=1\nnum.io.threads=9\nlog.retention.minutes=10080\n")
        found = observe(cluster)
    finally:
        path.write_text(original)
        os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))  # one that is younger than its process would be R13
    found_of = sorted((finding.code, finding.reason.text) for finding in found.found)
    assert [code for code, _ in found_of] == ["B15", "B15", "W9"]
    assert [text for _, text in found_of[:2]] == [
        "broker 1 does not run with what its file says of min.insync.replicas",
        "broker 1 does not run with what its file says of num.io.threads",
    ]


def test_a_secured_cluster_is_ready_and_what_its_controllers_would_miss_is_named(tmp_path: Path) -> None:
    try:
        there = secured.up(tmp_path)
        admin = there.client(secured.TOOL, "PLAIN")
        known = partial(direct.context, there.cluster, connections=there.connections, acting=False)
        with known(spec=there.spec) as context:
            assert codes(observe_preflight(context)) == []
        with known(spec=replace(there.spec, controller_security="PLAINTEXT")) as context:
            (found,) = observe_preflight(context).found
        assert found.code == "B13b"
        assert "the controllers as User:ANONYMOUS" in found.reason.text
        store = str(tmp_path / f"{there.spec.brokers[1].name}-store.pem")
        configure(there.cluster, ResourceType.BROKER, "1", admin, listener_name_secure_ssl_keystore_location=store)
        with known(spec=there.spec) as context:
            said = {finding.code: finding.reason.text for finding in observe_preflight(context).found}
        assert "listener.name.secure.ssl.keystore.location" in said["W13"]
        assert said.keys().isdisjoint({"B15", "B16"})  # the file has ssl.keystore.location for all listeners
    finally:
        LocalCluster(tmp_path / "cluster").clean()


def slow_move(cluster: LocalCluster) -> None:
    """A reassignment that will not end: two megabytes to move, a byte a second."""
    create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan("moving", 1, replication=1)])
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(20):
        producer.produce("moving", bytes(100_000), partition=0)
    assert producer.flush(30) == 0
    configure(
        cluster,
        ResourceType.TOPIC,
        "moving",
        leader_replication_throttled_replicas="*",
        follower_replication_throttled_replicas="*",
    )
    for node in cluster.plan.brokers:
        configure(
            cluster,
            ResourceType.BROKER,
            str(node.id),
            leader_replication_throttled_rate="1",
            follower_replication_throttled_rate="1",
        )
    with direct.context(cluster, acting=False) as context:
        view = context.observer.observe(Fields.ZOOKEEPER | Fields.PARTITIONS | Fields.BROKERS)
        assert view.zk is not None
        assert isinstance(view.zk.controller, ZkController)
        (home,) = (partition.leader for partition in view.partitions or () if partition.topic == "moving")
        topic = AlterPartitionReassignmentsRequest.ReassignableTopic
        away = topic.ReassignablePartition(partition_index=0, replicas=[(home + 1) % 3])
        wire = context.tools.wire(context.spec.node(NodeRole.BROKER, view.zk.controller.broker_id))
        answer = wire.ask(
            AlterPartitionReassignmentsRequest, 0, 0, timeout_ms=10_000, topics=[topic(name="moving", partitions=[away])]
        )
    assert [part.error_code for each in answer.responses for part in each.partitions] == [0]


def test_what_was_planted_is_found_and_nothing_else(cluster: LocalCluster, zookeeper: KazooClient) -> None:
    plans = [TopicPlan("single", 2, replication=1), TopicPlan("tight", 2), TopicPlan("__CruiseControlMetrics", 1)]
    create_topics({"bootstrap.servers": cluster.bootstrap}, plans)
    configure(cluster, ResourceType.TOPIC, "tight", min_insync_replicas="3")
    configure(cluster, ResourceType.BROKER, "1", log_cleaner_threads="2")
    zookeeper.create(f"{CHROOT}/kafka-acl-extended/prefixed/Topic/*", json.dumps(RULE).encode(), makepath=True)
    zookeeper.create(f"{CHROOT}/kafka-acl/Topic/broken", b"{", makepath=True)
    zookeeper.create("/kafka-manager")
    slow_move(cluster)

    found = observe(cluster)
    with direct.context(cluster, acting=False) as context:
        assert context.observer.observe(Fields.REASSIGNMENTS).moving == ("moving-0",)

    reported = {code: [each for each in found.found if each.code == code] for code in codes(found)}
    text = "\n".join(map(str, found.found))
    assert sorted(reported) == ["B14", "B8c", "S02", "S04", "W1", "W13", "W14", "W9"], text
    assert "moving-0" in reported["S04"][0].reason.text
    assert "topic moving" in reported["B14"][0].reason.text
    assert "/kafka-acl/Topic/broken" in reported["B8c"][0].reason.text
    assert "tight" in reported["W1"][0].reason.text
    assert "single" in reported["W1"][1].reason.text
    assert "broker 1: log.cleaner.threads" in reported["W13"][0].reason.text
    acts = reported["W9"][0].reason.text
    assert all(sign in acts for sign in ("__CruiseControlMetrics", "/kafka-manager", "settings of topics/tight")), acts
    assert {each.severity for each in found.found} == {Severity.BLOCK, Severity.WARN}


def test_without_airflow_by_command(cluster: LocalCluster, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("kmigrate")), "preflight", str(cluster.spec_path)]
    command += ["--connections", str(cluster.plan.connections_path), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in {0, 1}, done.stderr
    document = json.loads((tmp_path / "preflight.json").read_text())
    assert document["outcome"] == ("BLOCKED" if done.returncode else "READY")
    assert document["seen"]["brokers"] == 3
    assert (tmp_path / "preflight.html").exists()
