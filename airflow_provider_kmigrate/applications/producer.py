"""A confluent-kafka producer that records what the brokers acknowledged, and what it gave up.

Wrap your own::

    producer = AuditedProducer(Producer(properties), FileSink("/var/log/audit"), name="orders", on_delivery=yours)

Records are numbered per partition when they are acknowledged, because only then the partition is known. If each record carries
its number, `identify` reads it, and the audit also sees reordered records. A transaction's records count when it is committed;
aborted records stay in the log, but no client should read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from airflow_provider_kmigrate.applications.audited import Identify, partition_and_offset
from airflow_provider_kmigrate.applications.event_log import EventLog, Sink, new_writer_name
from airflow_provider_kmigrate.applications.runs import BEAT_S, AckRuns, AuditedClient, Content
from airflow_provider_kmigrate.core.events.model import Event, Start, TopicPartition, WriterRole
from airflow_provider_kmigrate.core.shared.text import count_of

OnDelivery = Callable[[KafkaError | None, Message], object]


class AuditedProducer(AuditedClient):
    """A producer that wraps `producer`; methods without a description, and all other methods, are the producer's own.

    `on_delivery` is called for every record without a callback of its own; one in the producer's properties is not called.
    Acknowledgements are written every `batch_s` seconds, when `poll` or `flush` is called. If neither is called for `beat_s`
    seconds, a thread gives the heartbeats (`applications.runs`). With `must_write` there is none: it could not report a failure.
    `each_latency`: see `AckRuns`.
    """

    def __init__(
        self,
        producer: Producer,
        sink: Sink,
        *,
        name: str = "producer",
        writer: str | None = None,
        on_delivery: OnDelivery | None = None,
        batch_s: float = 1.0,
        beat_s: float = BEAT_S,
        each_latency: bool = False,
        identify: Identify | None = None,
        topics: Iterable[str] = (),
        must_write: bool = False,
    ) -> None:
        super().__init__(EventLog(sink, writer or new_writer_name(name), must_write=must_write), batch_s, beat_s)
        self._producer = producer
        self._on_delivery = on_delivery
        self._identify = identify
        self._runs = AckRuns(self.log.writer, each_latency=each_latency)
        self._numbers: Counter[TopicPartition] = Counter()
        self._in_transaction: list[tuple[KafkaError | None, Message]] | None = None
        self._closed = False
        self.log.write(Start(self.log.stamp(), WriterRole.PRODUCER, topics=tuple(topics)))
        self.log.flush()
        if not must_write:
            self._pulse.start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    def produce(  # noqa: PLR0917  # the producer's own
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """As the producer's; its delivery report is recorded before `on_delivery` (or `callback`) is called."""
        rest = {"timestamp": timestamp} if headers is None else {"timestamp": timestamp, "headers": headers}
        recording_callback = partial(self._handle_delivery, on_delivery or callback)
        self._producer.produce(topic, value, key, partition, on_delivery=recording_callback, **rest)

    def produce_batch(
        self, topic: str, messages: list[dict[str, Any]], partition: int = -1, on_delivery: OnDelivery | None = None
    ) -> int:
        """As the producer's: returns how many were queued, and sets `_error` in each message that was not."""
        recorded_messages = [
            {**message, "callback": partial(self._handle_delivery, message.get("callback") or on_delivery)}
            for message in messages
        ]
        queued: int = self._producer.produce_batch(topic, recorded_messages, partition)
        for original, recorded in zip(messages, recorded_messages, strict=True):
            if "_error" in recorded:
                original["_error"] = recorded["_error"]
        return queued

    def poll(self, timeout: float = -1.0) -> int:
        """As the producer's; writes the events whose time has come."""
        served: int = self._producer.poll(timeout)
        self._write_if_due()
        return served

    def flush(self, timeout: float = -1.0) -> int:
        """As the producer's: returns how many records are still unsent. Writes every event."""
        unsent: int = self._producer.flush(timeout)
        self._write_if_due()
        self._write_events()
        return unsent

    def _handle_delivery(self, own_callback: OnDelivery | None, error: KafkaError | None, message: Message) -> None:
        if self._in_transaction is None:
            self._record_delivery_report(error, message)
        else:
            self._in_transaction.append((error, message))
        if (callback := own_callback or self._on_delivery) is not None:
            callback(error, message)

    def _record_delivery_report(self, error: KafkaError | None, message: Message) -> None:
        topic_partition, offset = partition_and_offset(message)
        latency_us = round((message.latency() or 0.0) * 1_000_000)
        with self._lock:
            content = self._content_of(topic_partition, message, latency_us)
            if error is None:
                self._runs.add_ack(topic_partition, offset, content, latency_us)
            else:
                self._runs.add_failure(topic_partition, content, error.name(), latency_us)

    def _content_of(self, topic_partition: TopicPartition, message: Message, latency_us: int) -> Content:
        if self._identify and (content := self._identify(message)) is not None:
            return content
        self._numbers[topic_partition] += 1
        return Content(self.writer, self._numbers[topic_partition] - 1, self.log.clock.now_ms() - latency_us // 1000)

    def _drain_events(self) -> list[Event]:
        return self._runs.drain(self.log.stamp)

    def begin_transaction(self) -> None:
        """As the producer's; its records are held back from the events until the commit."""
        self._producer.begin_transaction()
        self._in_transaction = []

    def commit_transaction(self, *args: Any) -> None:
        """As the producer's; its records count from now on."""
        self._producer.commit_transaction(*args)
        sent, self._in_transaction = self._in_transaction or [], None
        for error, message in sent:
            self._record_delivery_report(error, message)
        self._write_events()

    def abort_transaction(self, *args: Any) -> None:
        """As the producer's; its records count for nothing."""
        self._producer.abort_transaction(*args)
        sent, self._in_transaction = self._in_transaction or [], None
        self.log.remark("producer-aborted", f"{count_of(len(sent), 'record')} of an aborted transaction")

    def close(self, timeout: float = 130.0, *, reason: str = "") -> None:
        """Flush and write the last event, which reports records neither acknowledged nor failed within `timeout` seconds.

        The producer itself stays open.
        """
        if self._closed:
            return
        self._closed = True
        unsent = self.flush(timeout)
        if unsent:
            reason = f"{count_of(unsent, 'record was', 'records were')} neither acknowledged nor failed within {timeout:g} s"
        with self._lock:
            self._stopped.set()
            self.log.close(clean=not reason, reason=reason)
