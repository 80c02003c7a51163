"""The raw log of `__consumer_offsets` without a broker: a full queue, a refusal, a log whose start moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_provider_kmigrate.clients import offsets_log
from airflow_provider_kmigrate.clients.offsets_log import OffsetsLog
from airflow_provider_kmigrate.core.events import LogMark, TopicPartition
from airflow_provider_kmigrate.core.offsets_repair import StrayRecord
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, TimedOut

STRAYS = [StrayRecord(f"g{number}", None, number, b"key") for number in range(5)]


class Queue:
    """A producer whose queue holds two records; `stuck`: brokers take none of them."""

    stuck = False
    refusal: KafkaError | None = None

    def __init__(self, _properties: dict[str, Any], **_: Any) -> None:
        self.waiting: list[Callable[..., None]] = []
        self.polls = 0

    def produce(self, _topic: str, _value: None, _key: bytes, place: int, on_delivery: Callable[..., None]) -> None:
        if self.refusal and place == 3:
            raise KafkaException(self.refusal)
        if len(self.waiting) == 2:
            raise BufferError("Local: Queue full")
        self.waiting.append(on_delivery)
        SENT.append(place)

    def poll(self, _timeout: float) -> None:
        for callback in [] if self.stuck else self.waiting:
            callback(None, None)
        self.waiting = self.waiting if self.stuck else []

    def flush(self, timeout: float) -> int:
        self.poll(timeout)
        return len(self.waiting)


SENT: list[int] = []


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> type[Queue]:
    class Mine(Queue):
        pass

    SENT.clear()
    monkeypatch.setattr(offsets_log, "Producer", Mine)
    return Mine


def test_more_copies_than_the_queue_holds_are_all_removed(queue: type[Queue]) -> None:
    OffsetsLog({}).remove(STRAYS)
    assert SENT == [0, 1, 2, 3, 4]


def test_brokers_that_take_nothing_end_it_in_time(queue: type[Queue]) -> None:
    queue.stuck = True
    with pytest.raises(TimedOut, match="repeat it"):
        OffsetsLog({}).remove(STRAYS, timeout=0.0)


def test_a_partition_that_is_not_there_is_an_error_of_ours(queue: type[Queue]) -> None:
    queue.refusal = KafkaError(KafkaError._UNKNOWN_PARTITION)
    with pytest.raises(KMigrateError, match="removing copies"):
        OffsetsLog({}).remove(STRAYS)


def test_a_copy_without_its_key_is_not_removed(queue: type[Queue]) -> None:
    with pytest.raises(Failed, match="of g in partition 1"):
        OffsetsLog({}).remove([StrayRecord("g", None, 1, b"")])


def test_a_log_whose_start_moved_is_read_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def refusing(properties: dict[str, Any], **_: Any) -> None:
        seen.append(properties)
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG))

    marks = {TopicPartition("__consumer_offsets", 0): LogMark(start=1, end=2)}
    monkeypatch.setattr(offsets_log, "read_marks", lambda *_, **__: marks)
    monkeypatch.setattr(offsets_log, "Consumer", refusing)
    with pytest.raises(KMigrateError):
        OffsetsLog({"auto.offset.reset": "latest"}).read()
    assert seen[0]["auto.offset.reset"] == "earliest"
