"""The table of keys is complete, and each mistake in a file has its own code."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import level_of, same_version, version_of
from airflow_provider_kmigrate.core.node_files.config_matrix import (
    NOT_INHERITED,
    STAGE_RULES,
    FileStage,
    Rule,
    chroot_of,
    find_problems,
    find_references,
    find_rule,
    inter_broker_listener,
    is_forbidden,
    may_be_added,
    read_node_id,
    stage_of,
)
from airflow_provider_kmigrate.core.node_files.kafka_keys import kafka_rules

ORIGINAL = {"broker.id": "1", "zookeeper.connect": "zk1:2181,zk2:2181/kafka", "log.dirs": "/data"}
KRAFT = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.quorum.voters": "3000@c:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
}
CONTROLLER = {
    **KRAFT,
    "process.roles": "controller",
    "node.id": "3000",
    "listeners": "CONTROLLER://c:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "log.dir": "/kraft",
    "metadata.log.dir": "/kraft",
}
MIGRATION = {
    **{key: value for key, value in KRAFT.items() if key not in {"process.roles", "node.id"}},
    **ORIGINAL,
    "zookeeper.metadata.migration.enable": "True",
    "inter.broker.protocol.version": "3.9",
}
FLAGGED_CONTROLLER = {**CONTROLLER, "zookeeper.connect": "zk1:2181/kafka", "zookeeper.metadata.migration.enable": "true"}
HEALTHY = {
    FileStage.ZOOKEEPER: ORIGINAL,
    FileStage.MIGRATION: MIGRATION,
    FileStage.KRAFT: KRAFT,
    FileStage.CONTROLLER_MIGRATION: FLAGGED_CONTROLLER,
    FileStage.CONTROLLER_FINAL: CONTROLLER,
}


def test_every_row_says_something_for_every_stage() -> None:
    letters = {str(letter) for letter in Rule}
    assert all(len(row) == len(FileStage) and set(row) <= letters for row in STAGE_RULES.values())


@pytest.mark.parametrize("stage", FileStage)
def test_a_healthy_file_is_recognised_and_has_no_problem(stage: FileStage) -> None:
    assert stage_of(HEALTHY[stage]) is stage
    assert find_problems(HEALTHY[stage], stage, chroot="/kafka", metadata_version="3.9-IV0") == ()


@pytest.mark.parametrize(
    "properties",
    [{}, {"broker.id": "1"}, {"process.roles": "broker,controller"}, {"process.roles": "observer"}],
)
def test_a_file_of_no_stage_is_none(properties: dict[str, str]) -> None:
    assert stage_of(properties) is None
    assert [reason.code for reason in find_problems(properties, FileStage.ZOOKEEPER)] == ["O06"]


@pytest.mark.parametrize(
    ("stage", "changes", "code"),
    [
        (FileStage.MIGRATION, {"zookeeper.metadata.migration.enable": "false"}, "O06"),
        (FileStage.ZOOKEEPER, {"broker.id": None}, "C04"),
        (FileStage.ZOOKEEPER, {"broker.id": "-1"}, "C04"),
        (FileStage.ZOOKEEPER, {"broker.id": "one"}, "C04"),
        (FileStage.ZOOKEEPER, {"node.id": "2"}, "C04"),
        (FileStage.KRAFT, {"node.id": None}, "C04"),
        (FileStage.ZOOKEEPER, {"broker.id": "1001"}, "C04"),
        (FileStage.MIGRATION, {"broker.id": "20", "reserved.broker.max.id": "19"}, "C04"),
        (FileStage.MIGRATION, {"inter.broker.protocol.version": None}, "C04"),
        (FileStage.MIGRATION, {"controller.quorum.voters": " "}, "C04"),
        (FileStage.CONTROLLER_MIGRATION, {"zookeeper.connect": None}, "C04"),
        (FileStage.CONTROLLER_FINAL, {"log.dir": None}, "C04"),
        (FileStage.KRAFT, {"control.plane.listener.name": "CP"}, "C04"),
        (FileStage.KRAFT, {"zookeeper.ssl.client.enable": "true"}, "C04"),
        (FileStage.KRAFT, {"zookeeper.metadata.migration.enable": "true"}, "C04"),
        (FileStage.ZOOKEEPER, {"controller.listener.names": "CONTROLLER"}, "C04"),
        (FileStage.CONTROLLER_FINAL, {"zookeeper.connect": "zk1:2181/kafka"}, "C04"),
        (FileStage.ZOOKEEPER, {"zookeeper.connect": "zk1:2181"}, "C04"),
        (FileStage.CONTROLLER_MIGRATION, {"zookeeper.connect": "zk1:2181/kafka2"}, "C04"),
        (FileStage.MIGRATION, {"inter.broker.protocol.version": "3.8"}, "C04"),
        (FileStage.MIGRATION, {"inter.broker.protocol.version": "2.8"}, "C04"),
        (FileStage.ZOOKEEPER, {"listeners": "CONTROLLER://:9092"}, "C04"),
        (FileStage.ZOOKEEPER, {"listeners": "PLAINTEXT://:9092, controller://:9093"}, "C04"),
        (FileStage.CONTROLLER_FINAL, {"ssl.key.password": "${vault:kafka:key}"}, "C10"),
        (FileStage.CONTROLLER_MIGRATION, {"metadata.max.idle.interval.ms": "0"}, "C04"),
        (FileStage.CONTROLLER_MIGRATION, {"metadata.max.idle.interval.ms": "1001"}, "C04"),
        (FileStage.CONTROLLER_MIGRATION, {"metadata.max.idle.interval.ms": "half"}, "C04"),
        (FileStage.CONTROLLER_FINAL, {"listeners": "OTHER://c:9093"}, "C04"),
        (FileStage.KRAFT, {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}, "C04"),
    ],
)
def test_one_mistake_has_one_code(stage: FileStage, changes: dict[str, str | None], code: str) -> None:
    changed = HEALTHY[stage] | changes
    properties = {key: value for key, value in changed.items() if value is not None}

    found = find_problems(properties, stage, chroot="/kafka", metadata_version="3.9-IV0")

    assert [reason.code for reason in found] == [code]


@pytest.mark.parametrize(
    ("stage", "idle"),
    [(FileStage.CONTROLLER_MIGRATION, "1"), (FileStage.CONTROLLER_MIGRATION, " 1000 "), (FileStage.CONTROLLER_FINAL, "0")],
)
def test_how_often_an_idle_controller_writes_matters_while_it_migrates(stage: FileStage, idle: str) -> None:
    assert find_problems(HEALTHY[stage] | {"metadata.max.idle.interval.ms": idle}, stage) == ()


@pytest.mark.parametrize(
    "changes", [{"zookeeper.connect": "${file:/etc/kafka/zk:connect}"}, {"inter.broker.protocol.version": "${env:IBP}"}]
)
def test_what_only_the_node_can_resolve_is_no_mistake(changes: dict[str, str]) -> None:
    assert find_problems(MIGRATION | changes, FileStage.MIGRATION, chroot="/kafka", metadata_version="3.9-IV0") == ()


@pytest.mark.parametrize(
    ("value", "providers"),
    [
        ("${file:/a:b}", ("file",)),
        ('user="${file:/a:u}" password="${vault:x/y:p}";', ("file", "vault")),
        ("${HOST}", ()),
        ("RULE:^CN=(.*?),.*$/$1/", ()),
        ("${env:A}", ("env",)),
    ],
)
def test_references_are_distinguished_from_other_dollars(value: str, providers: tuple[str, ...]) -> None:
    assert find_references(value) == providers


def test_a_high_id_is_fine_where_ids_are_not_generated() -> None:
    properties = ORIGINAL | {"broker.id": "5000", "broker.id.generation.enable": "false"}
    assert find_problems(properties, FileStage.ZOOKEEPER) == ()


def test_values_that_may_be_secret_are_in_no_reason() -> None:
    properties = KRAFT | {"zookeeper.ssl.keystore.password": "geheim", "password.encoder.secret": "geheim"}
    assert "geheim" not in str(find_problems(properties, FileStage.KRAFT))
    assert len(find_problems(properties, FileStage.KRAFT)) == 2


@pytest.mark.parametrize(
    ("connect", "chroot"),
    [("a:1,b:2", ""), ("a:1,b:2/", ""), ("a:1/k", "/k"), (" a:1,b:2/k/x/ ", "/k/x")],
)
def test_the_chroot_is_what_follows_the_first_slash(connect: str, chroot: str) -> None:
    assert chroot_of(connect) == chroot


@pytest.mark.parametrize(
    ("properties", "expected"),
    [({"broker.id": " 7 "}, 7), ({"node.id": "8"}, 8), ({"broker.id": "-1"}, None), ({"broker.id": "x"}, None), ({}, None)],
)
def test_the_id_is_explicit_or_unknown(properties: dict[str, str], expected: int | None) -> None:
    assert read_node_id(properties) == expected


@pytest.mark.parametrize(
    ("properties", "name"),
    [({}, "PLAINTEXT"), ({"security.inter.broker.protocol": "SSL"}, "SSL"), ({"inter.broker.listener.name": "INT"}, "INT")],
)
def test_the_inter_broker_listener_has_kafkas_defaults(properties: dict[str, str], name: str) -> None:
    assert inter_broker_listener(properties) == name


def test_listener_keys_belong_to_the_inter_broker_listener_only() -> None:
    stage = FileStage.CONTROLLER_FINAL
    assert find_rule("listener.name.int.ssl.keystore.location", stage, "INT") is Rule.SAME
    assert find_rule("listener.name.ext.ssl.keystore.location", stage, "INT") is Rule.ABSENT
    assert find_rule("listener.name.int.plugin.key", stage, "INT") is Rule.SAME


@pytest.mark.parametrize("stage", [FileStage.CONTROLLER_MIGRATION, FileStage.CONTROLLER_FINAL])
def test_controllers_inherit_every_key_that_kafka_defines_less_those_with_a_reason(stage: FileStage) -> None:
    keys = [key.name for key in kafka_rules().keys.values() if not key.releases.isdisjoint(kafka_rules().with_zookeeper)]
    left_behind = {key for key in keys if find_rule(key, stage) is Rule.ABSENT}
    by_a_row = {key for key in keys if is_forbidden(key, stage)}
    with_reason = {
        key for key in keys if any(key == row or (row.endswith("*") and key.startswith(row[:-1])) for row in NOT_INHERITED)
    }
    in_no_file = {key for key in keys if kafka_rules().keys[key].mode == "dynamic-only"}
    assert len(keys) > 300
    assert left_behind == by_a_row | with_reason | in_no_file
    assert all(NOT_INHERITED.values())


@pytest.mark.parametrize("stage", [FileStage.CONTROLLER_MIGRATION, FileStage.CONTROLLER_FINAL])
def test_controllers_have_the_brokers_defaults_of_every_topic_setting(stage: FileStage) -> None:
    defaults_of_topics = [key for keys in kafka_rules().topics.values() for key, _ in keys]
    assert len(defaults_of_topics) == 36
    assert [key for key in defaults_of_topics if find_rule(key, stage) is not Rule.SAME] == []
    assert find_rule("log.retention.hours", FileStage.KRAFT) is Rule.SAME


@pytest.mark.parametrize(
    "key",
    [
        "security.providers",
        "client.quota.callback.class",
        "broker.session.timeout.ms",
        "max.connections",
        "max.connections.per.ip.overrides",
        "max.connection.creation.rate",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.context.region",
        "metrics.jmx.exclude",
        "kafka.metrics.reporters",
        "config.providers.vault.param.address",
        "producer.id.expiration.ms",
        "transactional.id.expiration.ms",
        "socket.request.max.bytes",
        "connection.failed.authentication.delay.ms",
        "request.timeout.ms",
        "alter.config.policy.kraft.compatibility.enable",
        "super.users",
        "num.io.threads",
    ],
)
def test_siblings_of_what_controllers_missed_are_inherited(key: str) -> None:
    assert find_rule(key, FileStage.CONTROLLER_FINAL) is Rule.SAME


@pytest.mark.parametrize(
    "key",
    [
        "log.dir",
        "broker.rack",
        "advertised.listeners",
        "early.start.listeners",
        "reserved.broker.max.id",
        "replica.selector.class",
        "remote.log.storage.manager.class.name",
        "authorizer.zookeeper.url",
        "confluent.license",
        "rsm.config.secret",
        "num.partition",
        "host.name",
        "min.insync.replicas.typo",
    ],
)
def test_what_is_a_brokers_own_or_unknown_to_kafka_is_not(key: str) -> None:
    assert find_rule(key, FileStage.CONTROLLER_FINAL) is Rule.ABSENT
    assert find_rule(key, FileStage.KRAFT) is Rule.SAME


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("3.9", 21),
        ("3.9.2", 21),
        ("3.9-IV0", 21),
        ("3.8", 20),
        ("3.7", 19),
        ("3.6-IV1", 13),
        ("3.9-IV1", None),
        ("2.8", None),
        ("x", None),
    ],
)
def test_versions_have_kafkas_levels(version: str, level: int | None) -> None:
    assert level_of(version) == level


def test_version_names_of_one_level_are_the_same() -> None:
    assert same_version("3.9", "3.9-IV0")
    assert same_version("2.8-IV1", "2.8-IV1")
    assert not same_version("3.8", "3.9")
    assert not same_version("2.8", "3.9")
    assert version_of(14) == "3.6-IV2"
    assert version_of(22) is None


@pytest.mark.parametrize("key", ["advertised.listeners", "early.start.listeners", "security.inter.broker.protocol"])
def test_no_cluster_file_gives_controllers_what_kafka_refuses_on_them(key: str) -> None:
    """The releases' own KafkaConfig: `tests/localcluster/test_kafka_rules_real.py`."""
    assert key in NOT_INHERITED
    assert not any(may_be_added(key, stage) for stage in FileStage if stage.of_controller)
    assert may_be_added("super.users", FileStage.CONTROLLER_MIGRATION)
