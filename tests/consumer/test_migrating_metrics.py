"""A migrating member's figures."""

from __future__ import annotations

from airflow_provider_kmigrate.applications.migrating.runner import as_text, metrics_of
from tests.core.member_talk import KAFKA, T0, Talk


def test_kip_125s_figures() -> None:
    assert metrics_of(None) == {"ActiveKafkaCoordinationCount": 0, "KafkaOwnedPartitionsCount": 0}
    talk = Talk().delivering(KAFKA, frozenset({T0}))
    assert metrics_of(talk.member) == {"ActiveKafkaCoordinationCount": 1, "KafkaOwnedPartitionsCount": 1}


def test_prometheus_reads_them_whatever_the_names_hold() -> None:
    """The text as prometheus-client 0.26's own parser took it."""
    metrics = {"ActiveKafkaCoordinationCount": 1, "KafkaOwnedPartitionsCount": 3}
    text = as_text(metrics, 'a "group"\\', "two\nlines", 1.5)
    labels = r'{group="a \"group\"\\",client="two\nlines"}'
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        f"kmigrate_consumer_kafka_coordination_active{labels} 1",
        f"kmigrate_consumer_kafka_owned_partitions{labels} 3",
        f"kmigrate_consumer_kafka_members_age_seconds{labels} 1.500",
    ]
    assert text.endswith("\n")
    assert "age" not in as_text(metrics, "g", "c", float("inf"))
