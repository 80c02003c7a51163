"""Kafka's own definitions say what is known, what is secret, what ends, and which classes are foreign."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.node_files import kafka_keys
from airflow_provider_kmigrate.core.node_files.kafka_keys import (
    HIDDEN,
    find_ending_keys,
    find_key,
    find_strongest_name,
    find_unknown_keys,
    is_secret,
    kafka_rules,
    list_foreign_classes,
    visible_value,
)


def test_the_data_is_of_every_release_that_migrates_and_of_later_ones() -> None:
    rules = kafka_rules()
    assert [release.rpartition(".")[0] for release in rules.with_zookeeper] == ["3.6", "3.7", "3.8", "3.9", "3.9"]
    assert all(release.startswith("4.") for release in rules.later)
    assert all(key.releases <= {*rules.with_zookeeper, *rules.later} for key in rules.keys.values())


@pytest.mark.parametrize(
    "key",
    [
        "ssl.keystore.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.truststore.certificates",
        "sasl.jaas.config",
        "listener.name.client.scram-sha-256.sasl.jaas.config",
        "listener.name.client.ssl.key.password",
        "delegation.token.master.key",
        "password.encoder.old.secret",
        "zookeeper.ssl.truststore.password",
        "config.providers.vault.param.token",
        "metrics.context.token",
        "rsm.config.secret",
        "confluent.license",
        "listener.name.client.plugin.password",
        "num.partition",
        "",
    ],
)
def test_passwords_and_what_kafka_does_not_know_are_secret(key: str) -> None:
    assert is_secret(key)
    assert visible_value(key, "CANARY-7f31") == HIDDEN


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("num.io.threads", "8", "8"),
        ("listener.name.client.ssl.keystore.location", "/k.jks", "/k.jks"),
        ("listener.name.client.plain.connections.max.reauth.ms", "9", "9"),
        ("super.users", "User:a", "User:a"),
        ("sasl.oauthbearer.token.endpoint.url", "https://id.example/token", "https://id.example/token"),
        ("sasl.oauthbearer.token.endpoint.url", "https://kafka:CANARY-7f31@id.example/token", HIDDEN),
        ("sasl.oauthbearer.jwks.endpoint.url", "https://CANARY-7f31@id.example", HIDDEN),
        ("zookeeper.connect", "zk1:2181/kafka", "zk1:2181/kafka"),
    ],
)
def test_other_values_are_shown_unless_a_url_has_a_user(key: str, value: str, shown: str) -> None:
    assert visible_value(key, value) == shown


@given(st.from_regex(r"[a-z]{1,12}(\.[a-z]{1,12}){0,4}", fullmatch=True))
def test_a_value_is_shown_only_of_a_key_that_some_release_defines(key: str) -> None:
    assert is_secret(key) or find_key(key) is not None


@pytest.mark.parametrize(
    ("key", "strongest"),
    [
        ("log.retention.hours", ("log.retention.ms", 3_600_000)),
        ("log.retention.minutes", ("log.retention.ms", 60_000)),
        ("log.retention.ms", ("log.retention.ms", 1)),
        ("log.roll.hours", ("log.roll.ms", 3_600_000)),
        ("log.roll.jitter.hours", ("log.roll.jitter.ms", 3_600_000)),
        ("num.partitions", ("num.partitions", 1)),
        ("unknown", ("unknown", 1)),
    ],
)
def test_names_of_one_setting_have_the_units_of_kafkas_converters(key: str, strongest: tuple[str, int]) -> None:
    assert find_strongest_name(key) == strongest


def test_keys_that_end_are_those_that_the_newest_release_lacks() -> None:
    keys = ("log.message.format.version", "delegation.token.master.key", "num.partitions", "x.y", "listener.name.a.ssl.protocol")
    assert find_ending_keys(dict.fromkeys(keys, "x")) == ["delegation.token.master.key", "log.message.format.version"]


def test_unknown_keys_are_those_without_a_definition_and_without_a_prefix_of_kafkas() -> None:
    keys = (
        "a.b",
        "num.partition",
        "leader.replication.throttled.rate",
        "config.providers.file.class",
        "metrics.context.x",
        "num.partitions",
    )
    assert find_unknown_keys(dict.fromkeys(keys, "x")) == ["a.b", "leader.replication.throttled.rate", "num.partition"]
    assert find_unknown_keys({"add.partitions.to.txn.retry.backoff.ms": "1"}) == [
        "add.partitions.to.txn.retry.backoff.ms"
    ]  # of 4.0


def test_foreign_classes_are_found_in_every_kind_of_key() -> None:
    properties = {
        "principal.builder.class": "com.example.Names",
        "metric.reporters": "org.apache.kafka.common.metrics.JmxReporter, com.example.Reporter,com.example.sub.Other$Inner",
        "security.providers": "com.example.Fips",
        "config.providers.vault.class": "com.example.Vault",
        "listener.name.a.oauthbearer.sasl.jaas.config": 'com.example.Login required secret="x";org.apache.kafka.Ours optional;',
        "listener.name.a.oauthbearer.sasl.server.callback.handler.class": "com.example.Handler",
        "ssl.engine.factory.class": "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory",
        "listeners": "PLAINTEXT://kafka.example.Com:9092",
        "ssl.keystore.password": "com.example.Password",
        "super.users": "User:CN=com.example.Kafka",
    }
    assert list_foreign_classes(properties) == {
        "config.providers.vault.class": ("com.example.Vault",),
        "listener.name.a.oauthbearer.sasl.jaas.config": ("com.example.Login",),
        "listener.name.a.oauthbearer.sasl.server.callback.handler.class": ("com.example.Handler",),
        "metric.reporters": ("com.example.Reporter", "com.example.sub.Other$Inner"),
        "principal.builder.class": ("com.example.Names",),
        "security.providers": ("com.example.Fips",),
    }


def test_the_data_is_read_once_and_late() -> None:
    kafka_keys.kafka_rules.cache_clear()
    assert kafka_keys.kafka_rules() is kafka_keys.kafka_rules()
    assert kafka_keys.kafka_rules.cache_info().misses == 1
