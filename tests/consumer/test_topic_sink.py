"""A sink in an events topic, with a producer of our own: what brokers refuse, or do not confirm, is not taken for written."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from airflow_provider_kmigrate.applications import event_log
from airflow_provider_kmigrate.applications.event_log import TopicSink
from airflow_provider_kmigrate.core.events.model import Ownership, OwnershipChange, Stamp, TopicPartition
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, TimedOut

REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


class FakeProducer:
    """Brokers answer each record with `answer` at the next poll; `silent`: with nothing. `topic_error`: what they say of the topic."""

    answer: KafkaError | None = None
    topic_error: KafkaError | None = None
    silent = False

    def __init__(self, _properties: object) -> None:
        self.waiting: list[Callable[[KafkaError | None, object], None]] = []

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        assert timeout > 0
        return SimpleNamespace(topics={topic: SimpleNamespace(error=self.topic_error, partitions={0: None})})

    def produce(self, _topic: str, _line: str, _writer: str, _partition: int, on_delivery: Any) -> None:
        self.waiting.append(on_delivery)

    def poll(self, _timeout: float) -> None:
        waiting, self.waiting = self.waiting, self.waiting if self.silent else []
        for delivered in () if self.silent else waiting:
            delivered(self.answer, None)

    def flush(self, timeout: float) -> int:
        self.poll(timeout)
        return len(self.waiting)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> type[FakeProducer]:
    class Mine(FakeProducer):
        pass

    monkeypatch.setattr(event_log, "Producer", Mine)
    return Mine


OWNED = Ownership(Stamp("w", 0, 1), "g", "m", 1, OwnershipChange.ACQUIRED, (TopicPartition("t", 0),))


def test_a_topic_that_cannot_be_read_has_no_sink(brokers: type[FakeProducer]) -> None:
    brokers.topic_error = REFUSED
    with pytest.raises(AuthenticationFailed, match="the events topic e"):
        TopicSink({}, "e")


def test_an_event_that_was_given_up_is_reported_once(brokers: type[FakeProducer]) -> None:
    brokers.answer, sink = REFUSED, TopicSink({}, "e")
    with pytest.raises(KMigrateError, match="the events topic e"):
        sink.append("w", ["line"])
    brokers.answer = None
    sink.append("w", ["line"])


def test_a_change_of_ownership_is_written_only_if_a_broker_says_so(brokers: type[FakeProducer]) -> None:
    sink = TopicSink({}, "e")
    sink.write_ownership(OWNED)
    brokers.answer = REFUSED
    with pytest.raises(AuthenticationFailed, match="the events topic e"):
        sink.write_ownership(OWNED)


def test_a_rebalance_does_not_wait_for_brokers_without_end(brokers: type[FakeProducer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_OWN_S", 0.0)
    answered = FakeProducer.poll
    polls = iter([True] * 9)

    def poll(producer: FakeProducer, timeout: float) -> None:
        producer.silent = next(polls, False)
        answered(producer, timeout)

    monkeypatch.setattr(brokers, "poll", poll)
    with pytest.raises(TimedOut, match="did not acknowledge"):
        TopicSink({}, "e").write_ownership(OWNED)


def test_events_that_nobody_acknowledged_are_no_clean_end(brokers: type[FakeProducer]) -> None:
    brokers.silent = True
    sink = TopicSink({}, "e")
    sink.append("w", ["one", "two"])
    with pytest.raises(TimedOut, match="2 events of w were not acknowledged"):
        sink.close("w", 2, clean=True)
