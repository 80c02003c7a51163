"""The embedded consumer's commits that nobody waits for any more."""

from __future__ import annotations

from types import SimpleNamespace

from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.applications.migrating.kafka import EmbeddedConsumer
from airflow_provider_kmigrate.applications.migrating.settings import parse
from airflow_provider_kmigrate.core.events import TopicPartition

ALONE = parse({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "zookeeper.connect": "127.0.0.1:1"})
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_commit_that_was_given_up_is_not_sent() -> None:
    """Its partition may be released by then, and another member may have committed further."""
    sent: list[KafkaPartition] = []
    consumer = EmbeddedConsumer(ALONE, "g_a", "roundrobin", bool, bool)
    consumer.joined = True  # as in a group
    consumer._consumer = SimpleNamespace(commit=lambda offsets, **_: sent.extend(offsets) or offsets)
    given_up, waited_for = consumer.commit(T0, 120), consumer.commit(T1, 7)
    assert given_up.cancel()
    consumer._serve(0.0)
    assert [(one.partition, one.offset) for one in sent] == [(1, 7)]
    assert waited_for.result(0) is True
    assert not waited_for.cancel()
