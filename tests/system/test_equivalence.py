"""Every kind of metadata on real brokers: copied, written to both sides, changed behind KRaft's back, and healed by a failover."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka.protocol.admin import IncrementalAlterConfigsRequest
from kazoo.client import KazooClient

from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields, Stored, StoredKind
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.migration.equivalence import (
    describe_changes,
    describe_equality,
    find_changes,
    find_differences,
    nothing_lost,
    unread_kind_reasons,
)
from airflow_provider_kmigrate.core.migration.gates import GateState
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.system.quotas import alter_quota

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=60), pytest.mark.timeout(300)]

CANARY = "canary-4f1d9c"
BOTH = Fields.BROKERS | Fields.CONTROLLERS | Fields.ZOOKEEPER | Fields.TOPICS | Fields.STORED


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two brokers with Kafka's ACL authorizer; every client is a super user."""
    secured = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}
    with lent(tmp_path / "cluster", Shape(name="kinds", brokers=2, controllers=1), secured) as there:
        yield there


def test_all_kinds_from_zookeeper_to_hybrid_and_behind_krafts_back(cluster: LocalCluster) -> None:
    fill(cluster)
    said: list[str] = []
    with direct.context(cluster) as here:
        direct.to_hybrid(here)
        done = direct.step(here, "equivalent")
        assert isinstance(done, Done)
        view = here.observer.observe(BOTH)
        assert unread_kind_reasons(view) == ()
        check_copied(view)
        change(cluster)
        assert isinstance(direct.step(here, "equivalent"), Done)
        changed = here.observer.observe(BOTH)
        check_changed(changed)
        before = here.backup.read_inventory()
        assert find_changes(view, before) == ()
        behind_its_back(cluster)
        alter_quota(cluster.plan.brokers[0], {"ip": "10.0.0.1"}, "connection_creation_rate", None)
        earlier, later = here.observer.observe(BOTH), here.observer.observe(BOTH)
        direct.step(here, "controller failover")
        assert isinstance(direct.step(here, "equivalent"), Done)
        healed = (here.observer.observe(BOTH).stored or {})[StoredKind.QUOTAS]
    found = {(each.entity, each.zookeeper, each.kraft) for each in find_differences(later)}
    assert found == {
        ("user alice producer_byte_rate", "4711", "2000000"),
        ("ip 10.0.0.1 connection_creation_rate", "50", "absent"),  # Kafka never deletes the last quota of an address (measured)
        ("broker 0 log.cleaner.threads", "3", "2"),
    }
    made = {
        ("user alice producer_byte_rate", True),
        ("user carol consumer_byte_rate", True),
        ("user alice SCRAM-SHA-256", True),
        ("all brokers log.retention.ms", True),
        ("topic bills allow read to User:alice from *", True),
    }
    assert {(each.entity, each.held) for each in find_changes(changed, before)} == made
    unheld = {("user alice producer_byte_rate", False), ("ip 10.0.0.1 connection_creation_rate", False)}
    assert {(each.entity, each.held) for each in find_changes(later, before)} == (
        made - {("user alice producer_byte_rate", True)}
    ) | unheld
    gate = nothing_lost(earlier, later)
    assert (gate.state, [reason.code for reason in gate.reasons]) == (GateState.NEVER, ["E08", "E08"])
    assert healed.zookeeper["user alice"] == {"producer_byte_rate": "2000000"}
    assert not healed.zookeeper.get("ip 10.0.0.1"), "an empty znode may stay"
    said += [
        describe_equality(view),
        describe_equality(changed),
        *map(str, gate.reasons),
        repr((view, changed, earlier, later, before)),
    ]
    said.append(describe_changes(find_changes(later, before)))
    journals = (cluster.folder.parent / "kmigrate" / "journal").glob("*.jsonl")
    assert CANARY not in "".join([*said, *(path.read_text() for path in journals)])


def fill(cluster: LocalCluster) -> None:
    """All kinds, in ZooKeeper mode."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan("orders", 3, 2)])
    first, second = cluster.plan.brokers
    alter_quota(first, {"user": "alice"}, "producer_byte_rate", 1_000_000)
    alter_quota(first, {"user": "a b/c", "client-id": "app"}, "request_percentage", 12.5)
    alter_quota(first, {"client-id": None}, "consumer_byte_rate", 2_000_000)
    alter_quota(first, {"ip": "10.0.0.1"}, "connection_creation_rate", 50)
    upsert(admin, "alice", 4096)
    upsert(admin, "bob", 8192)
    alter_config(first, "0", "log.cleaner.threads", "2")
    alter_config(first, "0", "kmigrate.plugin.password", CANARY)
    alter_config(second, "1", "num.io.threads", "5")
    alter_config(first, "", "log.retention.ms", "86400000")
    allow(admin, "orders", ResourcePatternType.LITERAL)
    allow(admin, "pay", ResourcePatternType.PREFIXED)
    transact(cluster)


def change(cluster: LocalCluster) -> None:
    """Through KRaft: changed, made and deleted."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    first = cluster.plan.brokers[0]
    alter_quota(first, {"user": "alice"}, "producer_byte_rate", 2_000_000)
    alter_quota(first, {"user": "carol"}, "consumer_byte_rate", 5)
    upsert(admin, "alice", 10_000)
    alter_config(first, "", "log.retention.ms", "43200000")
    allow(admin, "bills", ResourcePatternType.LITERAL)


def check_copied(view: ClusterView) -> None:
    stored = view.stored or {}
    quotas, acls = stored[StoredKind.QUOTAS], stored[StoredKind.ACLS]
    assert quotas.kraft["user a b/c, client-id app"] == {"request_percentage": "12.5"}
    assert quotas.kraft["client-id <default>"] == {"consumer_byte_rate": "2000000"}
    assert quotas.kraft["ip 10.0.0.1"] == {"connection_creation_rate": "50"}
    assert set(acls.kraft) == {"topic orders", "topic pay (prefixed)"}
    assert stored[StoredKind.CREDENTIALS].kraft["user bob"] == {"SCRAM-SHA-256": "8192 iterations"}
    settings = stored[StoredKind.BROKER_SETTINGS]
    assert settings.kraft["broker 0"] == {"kmigrate.plugin.password": "(hidden)", "log.cleaner.threads": "2"}
    assert settings.kraft["all brokers"] == {"log.retention.ms": "86400000"}
    assert set(settings.unreported) == {"broker 1"}, "it is in migration mode"
    assert set(stored[StoredKind.TOKENS].unreported) == {Stored.EVERY}, "the brokers have no key for tokens"
    assert stored[StoredKind.PRODUCER_IDS].kraft, "a transaction has a producer id"
    assert "4 quotas, 2 SCRAM credentials and 2 ACLs" in describe_equality(view)


def check_changed(view: ClusterView) -> None:
    stored = view.stored or {}
    assert stored[StoredKind.QUOTAS].zookeeper["user alice"] == {"producer_byte_rate": "2000000"}
    assert stored[StoredKind.QUOTAS].zookeeper["user carol"] == {"consumer_byte_rate": "5"}
    assert stored[StoredKind.CREDENTIALS].zookeeper["user alice"] == {"SCRAM-SHA-256": "10000 iterations"}
    assert stored[StoredKind.BROKER_SETTINGS].zookeeper["all brokers"] == {"log.retention.ms": "43200000"}
    assert "topic bills" in stored[StoredKind.ACLS].zookeeper


def behind_its_back(cluster: LocalCluster) -> None:
    """As a tool that writes ZooKeeper does: KRaft is not informed."""
    client = KazooClient(cluster.zookeeper)
    client.start()
    try:
        for path, key, value in (
            ("/config/users/alice", "producer_byte_rate", "4711"),
            ("/config/brokers/0", "log.cleaner.threads", "3"),
        ):
            held = json.loads(client.get(path)[0])
            held["config"][key] = value
            client.set(path, json.dumps(held).encode())
    finally:
        client.stop()
        client.close()


def alter_config(node: NodeSpec, name: str, key: str, value: str) -> None:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    setting = resource.AlterableConfig(name=key, config_operation=0, value=value)
    wanted = [resource(resource_type=4, resource_name=name, configs=[setting])]
    with Wire(node.host, node.port, timeout=20.0) as wire:
        (answer,) = wire.ask(IncrementalAlterConfigsRequest, 0, 1, resources=wanted, validate_only=False).responses
    assert answer.error_code == 0, answer


def upsert(admin: AdminClient, user: str, iterations: int) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, iterations)
    for future in admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, info, CANARY.encode())]).values():
        future.result(timeout=20)


def allow(admin: AdminClient, topic: str, pattern: ResourcePatternType) -> None:
    rule = AclBinding(ResourceType.TOPIC, topic, pattern, "User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)
    for future in admin.create_acls([rule]).values():
        future.result(timeout=20)


def transact(cluster: LocalCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "t1"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("orders", b"1")
    producer.commit_transaction(30)
