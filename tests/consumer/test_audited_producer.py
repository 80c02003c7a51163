"""The wrapper around confluent-kafka's producer, on librdkafka's mock brokers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from airflow_provider_kmigrate.applications import runs
from airflow_provider_kmigrate.applications.audited import AuditedConsumer
from airflow_provider_kmigrate.applications.event_log import FileSink, read_events
from airflow_provider_kmigrate.applications.producer import AuditedProducer
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.events.model import Ack, Event, Latencies, Remark, SendFailure, Stop
from airflow_provider_kmigrate.core.ledger import balance
from tests.consumer.mock_kafka import MockKafka
from tests.kit.load import produce_of
from tests.verdicts import verdict_of

PRODUCE, MSG_SIZE_TOO_LARGE = 0, 10


@pytest.fixture
def settings(kafka: MockKafka) -> dict[str, Any]:
    kafka.topic("t", 4)
    return {"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "log_level": 0, "linger.ms": 0}


def events(folder: Path) -> list[Event]:
    reading = read_events(folder)
    assert reading.refused == []
    return sorted(reading.events, key=lambda event: (event.stamp.writer, event.stamp.event_seq))


def of(kind: type, found: Sequence[Event]) -> list[Any]:
    return [event for event in found if isinstance(event, kind)]


def offsets(found: Sequence[Event]) -> list[tuple[int, int]]:
    return sorted((ack.partition, offset) for ack in of(Ack, found) for offset in range(ack.first, ack.last + 1))


def test_acknowledgements_and_callbacks(settings: dict[str, Any], tmp_path: Path) -> None:
    called: list[tuple[int, int]] = []
    defaults: list[int] = []

    def mine(error: KafkaError | None, message: Message) -> None:
        assert error is None
        called.append((message.partition() or 0, message.offset() or 0))

    with AuditedProducer(
        Producer(settings), FileSink(tmp_path), name="orders", on_delivery=lambda _, m: defaults.append(m.offset() or 0)
    ) as producer:
        for number in range(60):
            producer.produce("t", f"v{number}", "k", number % 3, on_delivery=mine)
        producer.produce("t", "v", None, 3, mine, timestamp=5, headers={"h": b"x"})
        assert producer.produce_batch("t", [{"value": "a", "callback": mine}, {"value": "b"}], partition=3) == 2
        producer.poll(0)
        assert producer.flush(10) == 0
    found = events(tmp_path)
    assert offsets(found) == sorted([*called, (3, 2)])
    assert defaults == [2]
    numbers = {ack.partition: sorted((ack.seq_first, ack.seq_last) for ack in of(Ack, found)) for ack in of(Ack, found)}
    assert all(first == 0 for (first, _), *_rest in numbers.values())
    assert of(Latencies, found) == []
    assert of(Stop, found)[0].clean


def test_both_wrappers_make_a_whole_ledger(settings: dict[str, Any], tmp_path: Path) -> None:
    with AuditedProducer(Producer(settings), FileSink(tmp_path), topics=["t"], each_latency=True) as producer:
        for number in range(200):
            producer.produce("t", str(number), partition=number % 4)
    properties = {
        "bootstrap.servers": settings["bootstrap.servers"],
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    with AuditedConsumer(Consumer({**properties, "enable.auto.commit": False}), FileSink(tmp_path), reset="earliest") as consumer:
        consumer.subscribe(["t"])
        left = 200
        while left:
            message = consumer.poll(5)
            assert message is not None, f"{left} records did not come"
            left -= 1
        consumer.commit(asynchronous=False)
    events = read_events(tmp_path).events
    facts = balance(events)
    assert verdict_of(facts) is AuditOutcome.PASS, facts.reasons
    assert (facts.acked, facts.delivered) == (200, {"g": 200})
    assert produce_of(events).exact


def test_records_that_carry_their_number(settings: dict[str, Any], tmp_path: Path) -> None:
    def identify(message: Message) -> runs.Content | None:
        return runs.unpack_content(message.value())

    with AuditedProducer(Producer(settings), FileSink(tmp_path), identify=identify) as producer:
        for number in range(10, 15):
            producer.produce("t", runs.pack_content(b"p", number, 1_000, 64), partition=1)
    (ack,) = of(Ack, events(tmp_path))
    assert (ack.seq_first, ack.seq_last, ack.first, ack.last, ack.t_sent_ms) == (10, 14, 0, 4, 1_000)


def test_what_was_given_up(kafka: MockKafka, settings: dict[str, Any], tmp_path: Path) -> None:
    kafka.fail(PRODUCE, MSG_SIZE_TOO_LARGE)
    with AuditedProducer(Producer({**settings, "enable.idempotence": False}), FileSink(tmp_path)) as producer:
        producer.produce("t", "v", partition=0)
        producer.flush(10)
        producer.produce("t", "w", partition=0)
    found = events(tmp_path)
    (failure,) = of(SendFailure, found)
    assert (failure.topic, failure.partition, failure.error) == ("t", 0, "MSG_SIZE_TOO_LARGE")
    assert offsets(found) == [(0, 0)]


def test_what_a_transaction_aborts_counts_for_nothing(settings: dict[str, Any], tmp_path: Path) -> None:
    with AuditedProducer(Producer({**settings, "transactional.id": "x"}), FileSink(tmp_path)) as producer:
        producer.init_transactions(10)
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            for number in range(5):
                producer.produce("t", str(number), partition=2)
            producer.flush(10)
            end(10)
    found = events(tmp_path)
    assert sum(ack.count for ack in of(Ack, found)) == 5
    assert min(ack.first for ack in of(Ack, found)) >= 5
    assert of(Remark, found)[0].code == "producer-aborted"


def test_a_producer_that_cannot_deliver_in_time_says_so(settings: dict[str, Any], tmp_path: Path) -> None:
    nowhere = {**settings, "bootstrap.servers": "127.0.0.1:1"}
    producer = AuditedProducer(Producer(nowhere), FileSink(tmp_path))
    producer.produce("t", "v")
    producer.close(0.1)
    (stop,) = of(Stop, events(tmp_path))
    assert not stop.clean
    assert "1 record " in stop.reason
