"""The sending process: numbered records to every partition of some topics, at an exact rate, each acknowledgement recorded.

librdkafka, idempotent, acks=all. The rate is open-loop: a stalled cluster delays acknowledgements, never the sending, so
latencies are not flattered by a producer that waits. Latencies are librdkafka's own, from `produce()` to the acknowledgement.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from airflow_provider_kmigrate.consumer import runs
from airflow_provider_kmigrate.consumer.event_log import FileSink
from airflow_provider_kmigrate.consumer.kafka_calls import PartitionWatch
from airflow_provider_kmigrate.consumer.producer import AuditedProducer
from airflow_provider_kmigrate.consumer.workload.life import Life
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.exceptions import TimedOut

#: With more than one request in flight a leader change makes librdkafka 2.16 store records twice in spite of idempotence: of two
#: requests under way the first is refused (NOT_LEADER), the second arrives out of sequence, librdkafka takes a new producer epoch
#: for all partitions, and whatever was stored and not yet acknowledged elsewhere is sent again under it (librdkafka issue 4953;
#: measured: 4 records of 136,000 in two rolls of an overloaded cluster). A ledger's own client must not be the one that repeats.
_IN_FLIGHT: Final = "1"
DEFAULTS: Final = {
    "enable.idempotence": "true",
    "acks": "all",
    "max.in.flight.requests.per.connection": _IN_FLIGHT,
    "linger.ms": "2",
    "message.timeout.ms": "120000",
    "topic.metadata.refresh.interval.ms": "5000",  # of the default 300 s: partitions that are added are used soon
}
#: Records that a partition gets in a row. librdkafka sends one partition's records a request, and requests are what costs: 500 of
#: one record a second took 0.5 of a core on each of three brokers, 100 of five records 0.18 (measured). A partition of 108 still
#: has a record under way every 1.1 s at 500 records/s.
_IN_A_ROW: Final = 5
_FIRST_TOPIC_S = 60.0
_FLUSH_S = 130.0  # longer than message.timeout.ms: by then every record is acknowledged or given up


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """A sender's settings. `rate`: records per second of this process; it feeds the `share` (index, count) of the partitions."""

    events: Path
    writer: str
    properties: Mapping[str, str]
    topics: tuple[str, ...]
    rate: float = 500.0
    share: tuple[int, int] = (0, 1)
    record_bytes: int = 100
    tick_s: float = 0.02


class Sender:
    """Runs until `life` is over; then waits for outstanding acknowledgements and writes its stop."""

    def __init__(self, settings: SenderSettings, life: Life) -> None:
        self._settings = settings
        self._life = life
        self._name = settings.writer.encode()
        self._numbers: Counter[TopicPartition] = Counter()
        self._turn = 0
        self._here: TopicPartition | None = None
        self._due_here = 0
        self._refused: set[TopicPartition] = set()
        producer = Producer({**DEFAULTS, **settings.properties, "client.id": settings.writer})
        self._producer = AuditedProducer(
            producer,
            FileSink(settings.events),
            writer=settings.writer,
            topics=settings.topics,
            identify=_content,
            each_latency=True,
            must_write=True,
        )
        self._watch = PartitionWatch(producer, settings.topics)

    def run(self) -> None:
        """Send until the end. Raises `TimedOut` if there is no topic to write to."""
        reason = "it ended with an error"
        try:
            self._watch.start()
            self._wait_for_topics()
            self._produce()
            reason = self._finish()
        finally:
            self._watch.end()
            if not self._life.abandoned:
                self._producer.close(0.0, reason=reason)

    def _wait_for_topics(self) -> None:
        deadline = time.monotonic() + _FIRST_TOPIC_S
        while not self._watch.partitions and not self._life.over:
            if time.monotonic() > deadline:
                raise TimedOut(f"no topic matches {', '.join(self._settings.topics)} within {_FIRST_TOPIC_S:.0f} s")
            self._producer.poll(0.1)

    def _produce(self) -> None:
        """Send the records that are due, in ticks; acknowledgements are served in between."""
        began, sent, tick = time.monotonic(), 0, self._settings.tick_s
        next_tick = began
        while not self._life.over:
            now = time.monotonic()
            self._producer.slipped(now - next_tick)
            due = int((now - began) * self._settings.rate)
            while sent < due:
                self._send()
                sent += 1
            next_tick += tick * max(1, -(-(now - next_tick) // tick))
            self._poll_until(next_tick)

    def _poll_until(self, deadline: float) -> None:
        while (left := deadline - time.monotonic()) > 0:
            self._producer.poll(max(left, 0.001))  # returns when it has served something; of less than 1 ms it makes a busy loop

    def _send(self) -> None:
        where = self._next_partition()
        if where is None:
            return
        now_ms = self._producer.log.clock.now_ms()
        value = runs.pack(self._name, self._numbers[where], now_ms, self._settings.record_bytes)
        try:
            self._producer.produce(where.topic, value, partition=where.partition, timestamp=now_ms)
        except BufferError:  # librdkafka's queue is full: it drains by acknowledgement or time-out, so this ends
            self._producer.poll(0.1)
        except KafkaException as error:  # a partition that its metadata does not know yet
            self._refuse(where, error.args[0])
        else:
            self._numbers[where] += 1

    def _refuse(self, where: TopicPartition, error: KafkaError) -> None:
        if where not in self._refused:
            self._refused.add(where)
            self._producer.log.remark("producer-refused", f"{where.topic}-{where.partition}: {error.str()}")

    def _next_partition(self) -> TopicPartition | None:
        if self._due_here == 0:
            self._here, self._due_here = self._move_on(), _IN_A_ROW
        self._due_here -= 1
        return self._here

    def _move_on(self) -> TopicPartition | None:
        partitions = self._watch.partitions
        for _ in range(len(partitions)):
            self._turn += 1
            where = partitions[self._turn % len(partitions)]
            if self._is_mine(where):
                return where
        return None

    def _is_mine(self, where: TopicPartition) -> bool:
        index, count = self._settings.share
        return count == 1 or (crc32(where.topic.encode()) + where.partition) % count == index

    def _finish(self) -> str:
        """Wait for every outstanding acknowledgement; returns why the record is incomplete, or an empty text."""
        deadline = time.monotonic() + _FLUSH_S
        while len(self._producer) and time.monotonic() < deadline and not self._life.abandoned:
            self._producer.flush(0.5)
        left = len(self._producer)
        return f"{left} records were neither acknowledged nor failed within {_FLUSH_S:.0f} s" if left else ""


def _content(message: Message) -> runs.Content | None:
    return runs.unpack(message.value())
