"""What is not told of `__consumer_offsets` is not nothing. A real topic: tests/provider/test_inventory_real.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_provider_kmigrate.clients import offsets_topic
from airflow_provider_kmigrate.exceptions import KMigrateError

DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


class Told:
    """A consumer's answers, in place of a cluster whose rights would have to be taken away between two requests."""

    def __init__(self, topic: KafkaError | None, partition: KafkaError | None, *, there: bool = True) -> None:
        self._topics = {offsets_topic.OFFSETS_TOPIC: SimpleNamespace(partitions={0: None}, error=topic)} if there else {}
        self._partition = partition

    def list_topics(self, timeout: float) -> Any:
        del timeout
        return SimpleNamespace(topics=self._topics)

    def offsets_for_times(self, asked: list[Any], timeout: float) -> list[Any]:
        del timeout
        return [SimpleNamespace(partition=one.partition, offset=-1, error=self._partition) for one in asked]


def starts(told: Told) -> list[Any]:
    return offsets_topic._starts(told, 0, 100, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("told", [Told(DENIED, None), Told(None, DENIED)])
def test_what_is_refused_is_not_taken_for_nothing(told: Told) -> None:
    with pytest.raises(KafkaException):
        starts(told)


def test_nothing_written_since_and_no_topic_are_nothing() -> None:
    assert starts(Told(None, None)) == []
    assert starts(Told(None, None, there=False)) == []


def test_properties_that_librdkafka_refuses_are_told_as_ours() -> None:
    with pytest.raises(KMigrateError, match="properties of a Kafka connection"):
        offsets_topic.recent({"no.such.setting": "1"}, 0)
