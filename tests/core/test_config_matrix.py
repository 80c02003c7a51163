"""The table of keys is complete, and each mistake in a file has its own code."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.files.config_matrix import (
    MATRIX,
    FileStage,
    Rule,
    chroot_of,
    inter_broker_listener,
    node_id,
    problems,
    references,
    rule,
    stage_of,
)
from airflow_provider_kmigrate.core.model import level_of, same_version, version_of

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


#: Kafka's names for the brokers' defaults of topics' settings (ServerTopicConfigSynonyms of 3.9).
DEFAULTS_OF_TOPICS = [
    "compression.gzip.level", "compression.lz4.level", "compression.type", "compression.zstd.level",
    "log.cleaner.delete.retention.ms", "log.cleaner.max.compaction.lag.ms", "log.cleaner.min.cleanable.ratio",
    "log.cleaner.min.compaction.lag.ms", "log.cleanup.policy", "log.flush.interval.messages", "log.flush.interval.ms",
    "log.flush.scheduler.interval.ms", "log.index.interval.bytes", "log.index.size.max.bytes",
    "log.local.retention.bytes", "log.local.retention.ms", "log.message.downconversion.enable",
    "log.message.format.version", "log.message.timestamp.after.max.ms", "log.message.timestamp.before.max.ms",
    "log.message.timestamp.difference.max.ms", "log.message.timestamp.type", "log.preallocate", "log.retention.bytes",
    "log.retention.hours", "log.retention.minutes", "log.retention.ms", "log.roll.hours", "log.roll.jitter.hours",
    "log.roll.jitter.ms", "log.roll.ms", "log.segment.bytes", "log.segment.delete.delay.ms", "message.max.bytes",
    "min.insync.replicas", "unclean.leader.election.enable",
]  # fmt: skip


def test_every_row_says_something_for_every_stage() -> None:
    letters = {str(letter) for letter in Rule}
    assert all(len(row) == len(FileStage) and set(row) <= letters for row in MATRIX.values())


@pytest.mark.parametrize("stage", FileStage)
def test_a_healthy_file_is_recognised_and_has_no_problem(stage: FileStage) -> None:
    assert stage_of(HEALTHY[stage]) is stage
    assert problems(HEALTHY[stage], stage, chroot="/kafka", metadata_version="3.9-IV0") == ()


@pytest.mark.parametrize(
    "properties",
    [{}, {"broker.id": "1"}, {"process.roles": "broker,controller"}, {"process.roles": "observer"}],
)
def test_a_file_of_no_stage_is_none(properties: dict[str, str]) -> None:
    assert stage_of(properties) is None
    assert [reason.code for reason in problems(properties, FileStage.ZOOKEEPER)] == ["O06"]


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

    found = problems(properties, stage, chroot="/kafka", metadata_version="3.9-IV0")

    assert [reason.code for reason in found] == [code]


@pytest.mark.parametrize(
    ("stage", "idle"),
    [(FileStage.CONTROLLER_MIGRATION, "1"), (FileStage.CONTROLLER_MIGRATION, " 1000 "), (FileStage.CONTROLLER_FINAL, "0")],
)
def test_how_often_an_idle_controller_writes_matters_while_it_migrates(stage: FileStage, idle: str) -> None:
    assert problems(HEALTHY[stage] | {"metadata.max.idle.interval.ms": idle}, stage) == ()


@pytest.mark.parametrize(
    "changes", [{"zookeeper.connect": "${file:/etc/kafka/zk:connect}"}, {"inter.broker.protocol.version": "${env:IBP}"}]
)
def test_what_only_the_node_can_resolve_is_no_mistake(changes: dict[str, str]) -> None:
    assert problems(MIGRATION | changes, FileStage.MIGRATION, chroot="/kafka", metadata_version="3.9-IV0") == ()


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
    assert references(value) == providers


def test_a_high_id_is_fine_where_ids_are_not_generated() -> None:
    properties = ORIGINAL | {"broker.id": "5000", "broker.id.generation.enable": "false"}
    assert problems(properties, FileStage.ZOOKEEPER) == ()


def test_values_that_may_be_secret_are_in_no_reason() -> None:
    properties = KRAFT | {"zookeeper.ssl.keystore.password": "geheim", "password.encoder.secret": "geheim"}
    assert "geheim" not in str(problems(properties, FileStage.KRAFT))
    assert len(problems(properties, FileStage.KRAFT)) == 2


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
    assert node_id(properties) == expected


@pytest.mark.parametrize(
    ("properties", "name"),
    [({}, "PLAINTEXT"), ({"security.inter.broker.protocol": "SSL"}, "SSL"), ({"inter.broker.listener.name": "INT"}, "INT")],
)
def test_the_inter_broker_listener_has_kafkas_defaults(properties: dict[str, str], name: str) -> None:
    assert inter_broker_listener(properties) == name


def test_listener_keys_belong_to_the_inter_broker_listener_only() -> None:
    stage = FileStage.CONTROLLER_FINAL
    assert rule("listener.name.int.ssl.keystore.location", stage, "INT") is Rule.SAME
    assert rule("listener.name.ext.ssl.keystore.location", stage, "INT") is Rule.ABSENT
    assert rule("num.io.threads", stage) is Rule.ABSENT


@pytest.mark.parametrize("stage", [FileStage.CONTROLLER_MIGRATION, FileStage.CONTROLLER_FINAL])
def test_controllers_have_the_brokers_defaults_of_every_topic_setting(stage: FileStage) -> None:
    assert [key for key in DEFAULTS_OF_TOPICS if rule(key, stage) is not Rule.SAME] == []
    assert rule("log.dir", stage) is Rule.ABSENT
    assert rule("log.retention.hours", FileStage.KRAFT) is Rule.SAME


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
