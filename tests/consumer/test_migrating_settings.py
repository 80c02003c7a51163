"""Settings of the migrating consumer: taken apart, and refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer

from airflow_provider_kmigrate.applications.migrating import MigratingConsumer
from airflow_provider_kmigrate.applications.migrating.consumer import kafka_properties
from airflow_provider_kmigrate.applications.migrating.settings import parse_settings, registration_of
from airflow_provider_kmigrate.core.member.assignors import Strategy
from airflow_provider_kmigrate.core.member.registration import Registration
from airflow_provider_kmigrate.exceptions import Refused

LEAST = {"group.id": "g", "zookeeper.connect": "zk1:2181,zk2:2181/kafka"}


def test_settings_are_taken_apart() -> None:
    given = {
        **LEAST,
        "zookeeper.session.timeout.ms": "4000",
        "partition.assignment.strategy": "roundrobin",
        "auto.commit.enable": "false",
        "coordination.migration.enabled": "true",
        "coordination.migration.bootstrap.servers": "other:9092",
        "bootstrap.servers": "b:9092",
    }
    found = parse_settings(given)
    assert (found.zookeeper.hosts, found.zookeeper.chroot, found.zookeeper.session_timeout) == (
        "zk1:2181,zk2:2181",
        "/kafka",
        4.0,
    )
    assert (found.strategy, found.auto_commit, found.migrates) == (Strategy.ROUND_ROBIN, False, True)
    assert found.data["bootstrap.servers"] == "b:9092"
    assert found.embedded["bootstrap.servers"] == "other:9092"
    assert not {name for name in found.data if name.startswith(("zookeeper.", "coordination."))}


@pytest.mark.parametrize(
    "wrong",
    [
        {"group.id": ""},
        {"zookeeper.connect": ""},
        {"group.instance.id": "x"},
        {"group.protocol": "consumer"},
        {"partition.assignment.strategy": "cooperative-sticky"},
        {"offsets.storage": "kafka"},
        {"coordination.migration.partition.assignment.strategy": "range"},
        {"coordination.migration.stage": "old"},
        {"zookeeper.ssl.crl.enable": "true"},
        {"topic.blacklist": "secret.*"},
        {"mirror.topics.blacklist": "secret.*"},
        {"mirror.topics.whitelist": "orders.*"},
        {"mirror.consumer.numthreads": "4"},
        {"consumer.timeout.ms": "1000"},
        {"zookeeper.sesion.timeout.ms": "4000"},
        {"zookeeper.session.timeout": "4000"},
        {"zookeeper.session.timeout.ms": "4s"},
        {"session.timeout.ms": "4s"},
        {"group.id": "billing/ids"},
        {"group.id": ".."},
        {"group.id": "a\nb"},
        {"consumer.id": "a/b"},
        {"consumer.id": "."},
        {"coordination.migration.enabled": "no"},
        {"enable.auto.commit": "off"},
        {"exclude.internal.topics": "yes"},
        {"zookeeper.set.acl": "on"},
        {"zookeeper.ssl.client.enable": "enabled"},
        {"zookeeper.ssl.endpoint.identification.algorithm": "ldaps"},
        {"zookeeper.connect": " , /kafka"},
    ],
)
def test_what_it_cannot_do_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(Refused) as refused:
        parse_settings({**LEAST, **wrong})
    ((name, _),) = wrong.items()
    (reason,) = refused.value.reasons
    assert name in reason.text
    assert reason.meaning
    assert reason.next_step


def test_blanks_around_a_value_change_nothing() -> None:
    """As in a file of Java's properties, where Kafka takes them away; ZooKeeper's client drops servers without a name."""
    given = {
        **LEAST,
        "zookeeper.connect": " zk1:2181 , zk2:2181,, /kafka/ ",
        "coordination.migration.enabled": "False ",
        "enable.auto.commit": " F",
        "zookeeper.ssl.client.enable": "TRUE ",
        "zookeeper.ssl.endpoint.identification.algorithm": " HTTPS",
    }
    found = parse_settings(given)
    assert (found.zookeeper.hosts, found.zookeeper.chroot) == ("zk1:2181,zk2:2181", "/kafka")
    assert (found.migrates, found.auto_commit, found.zookeeper.use_tls) == (False, False, True)
    assert found.zookeeper.verify_hostname


@pytest.mark.parametrize("off", ["", "none"])
def test_host_names_of_zookeeper_are_not_verified_only_where_that_is_written(off: str) -> None:
    name = "zookeeper.ssl.endpoint.identification.algorithm"
    assert parse_settings(LEAST).zookeeper.verify_hostname
    assert not parse_settings({**LEAST, name: off}).zookeeper.verify_hostname


@pytest.mark.parametrize("reading", [parse_settings, kafka_properties])
def test_a_setting_by_both_names_has_to_agree(reading: Callable[..., Any]) -> None:
    reading({**LEAST, "auto.commit.enable": "false", "enable.auto.commit": False})
    with pytest.raises(Refused, match=r"auto\.commit\.enable is false, and enable\.auto\.commit True"):
        reading({**LEAST, "enable.auto.commit": True, "auto.commit.enable": "false"})


def test_an_old_consumers_stores_are_no_settings_of_ours() -> None:
    found = parse_settings({**LEAST, "offsets.storage": "ZooKeeper", "dual.commit.enabled": "false"})
    assert not {"offsets.storage", "dual.commit.enabled"} & {*found.data, *found.embedded}


# every name of kafka.consumer.ConsumerConfig and kafka.utils.ZKConfig of 1.1.1, but those of MirrorMaker, with its default
OLD = {
    "group.id": "g",
    "zookeeper.connect": "zk:2181",
    "zookeeper.session.timeout.ms": "6000",
    "zookeeper.connection.timeout.ms": "6000",
    "zookeeper.sync.time.ms": "2000",
    "consumer.id": "one",
    "socket.timeout.ms": "30000",
    "socket.receive.buffer.bytes": "65536",
    "fetch.message.max.bytes": "1048576",
    "num.consumer.fetchers": "1",
    "auto.commit.enable": "true",
    "auto.commit.interval.ms": "60000",
    "queued.max.message.chunks": "2",
    "rebalance.max.retries": "4",
    "fetch.min.bytes": "1",
    "fetch.wait.max.ms": "100",
    "rebalance.backoff.ms": "2000",
    "refresh.leader.backoff.ms": "200",
    "offsets.channel.backoff.ms": "1000",
    "offsets.channel.socket.timeout.ms": "10000",
    "offsets.commit.max.retries": "5",
    "offsets.storage": "zookeeper",
    "dual.commit.enabled": "false",
    "coordination.migration.poll.interval.ms": "500",
    "auto.offset.reset": "smallest",
    "consumer.timeout.ms": "-1",
    "exclude.internal.topics": "true",
    "partition.assignment.strategy": "range",
    "client.id": "g",
}


def test_an_old_consumers_settings_can_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    """In every stage: librdkafka is given only what it knows, and what has no effect is reported once."""
    MigratingConsumer(OLD).close()
    (message,) = [record.getMessage() for record in caplog.records if "without any effect" in record.getMessage()]
    settings = (
        "num.consumer.fetchers queued.max.message.chunks refresh.leader.backoff.ms rebalance.max.retries rebalance.backoff.ms"
    )
    offsets = "offsets.commit.max.retries offsets.channel.backoff.ms offsets.channel.socket.timeout.ms dual.commit.enabled"
    zookeeper = "zookeeper.connection.timeout.ms zookeeper.sync.time.ms coordination.migration.poll.interval.ms"
    assert {one.rpartition(": ")[0].rpartition(" ")[2] for one in message.split("; ")} == {
        *settings.split(),
        *offsets.split(),
        *zookeeper.split(),
    }
    for properties in (parse_settings(OLD).embedded, kafka_properties(OLD)):
        Consumer(dict(properties)).close()


@pytest.mark.parametrize(
    ("given", "limit_ms"),
    [
        ({}, 15_000),
        ({"session.timeout.ms": "6000"}, 2_000),
        ({"session.timeout.ms": "6000", "fetch.wait.max.ms": 4_000}, 5_500),
        ({"socket.timeout.ms": 1_000}, 1_000),
        ({"coordination.migration.session.timeout.ms": 30_000}, 10_000),
        ({"coordination.migration.socket.timeout.ms": 20_000}, 20_000),
    ],
)
def test_a_commit_without_an_answer_takes_less_than_a_session(given: dict[str, Any], limit_ms: int) -> None:
    assert parse_settings({**LEAST, **given}).embedded["socket.timeout.ms"] == limit_ms


@pytest.mark.parametrize("name", ["assign", "seek", "store_offsets", "unassign", "unsubscribe"])
def test_what_it_does_not_have_is_refused_by_name(name: str) -> None:
    unmade = object.__new__(MigratingConsumer)
    with pytest.raises(AttributeError, match=f"has no {name}\\. [A-Z]"):
        getattr(unmade, name)
    assert not hasattr(unmade, "whatever")


def test_a_subscription_is_topics_or_one_wildcard() -> None:
    assert registration_of(["a", "b"], 7) == Registration("static", {"a": 1, "b": 1})
    assert registration_of(["^app.*$"], 7) == Registration("white_list", {"app.*": 1})
    for wrong in (["^a", "b"], ["^a{x"]):
        with pytest.raises(Refused):
            registration_of(wrong, 7)


def test_a_white_list_that_stage_kafka_reads_otherwise_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    registration_of(["^app.*"], 7)
    assert not caplog.records
    registration_of(["^app"], 7)
    assert "by ^app: change it for stage kafka" in caplog.text


@pytest.mark.parametrize(
    ("topics", "said"), [({"orders": 3}, "{'orders': 3}"), ("orders", "'orders'"), (["orders", 3], "3"), ([], "[]"), ([""], "''")]
)
def test_a_subscription_that_is_no_list_of_names_is_refused(topics: Any, said: str) -> None:
    """The old consumer's `{"orders": 3}` asks for three streams; a text is a list of letters to Python."""
    with pytest.raises(Refused) as refused:
        registration_of(topics, 7)
    (reason,) = refused.value.reasons
    assert reason.code == "Y06"
    assert said in reason.text
    assert "stream" in reason.text
    assert "list" in reason.text
