"""The clients of the probe: one sends numbered records, one receives them as a member of a group; each writes its events.

The sender: every partition of some topics, at an exact rate; librdkafka, idempotent, acks=all. The rate is open-loop: a stalled
cluster delays acknowledgements, never the sending, so latencies are not flattered by a producer that waits. Latencies are
librdkafka's own, from `produce()` to the acknowledgement.

The receiver commits its deliveries once a second. `applications.audited` has the order of its writes, and its workaround for
librdkafka's stall.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.applications import runs
from airflow_provider_kmigrate.applications.assignment import topic_partition_of
from airflow_provider_kmigrate.applications.audited import AuditedConsumer
from airflow_provider_kmigrate.applications.event_log import FileSink
from airflow_provider_kmigrate.applications.producer import AuditedProducer
from airflow_provider_kmigrate.clients.identity import librdkafka_properties
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import TimedOut
from airflow_provider_kmigrate.probe.kafka_calls import PartitionWatch, kafka_calls
from airflow_provider_kmigrate.probe.latency import LatencyRecorder

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
_TICK_S = 0.02
_FIRST_TOPIC_S = 60.0
_FLUSH_S = 130.0  # longer than message.timeout.ms: by then every record is acknowledged or given up


class Setup(NamedTuple):
    """What a sender and a receiver both need. `topics`: names, or patterns that begin with `^`."""

    events: Path
    writer: str
    properties: Mapping[str, str]
    topics: tuple[str, ...]
    lifetime: Lifetime


class Sender:
    """Sends `rate` records per second to all partitions, one after another, until its lifetime is over.

    Then it waits for outstanding acknowledgements and writes its stop.
    """

    def __init__(self, setup: Setup, *, rate: float, record_bytes: int = 100) -> None:
        self._topics, self._lifetime, self._rate, self._record_bytes = setup.topics, setup.lifetime, rate, record_bytes
        self._name = setup.writer.encode()
        self._numbers: Counter[TopicPartition] = Counter()
        self._turn = 0
        self._here: TopicPartition | None = None
        self._due_here = 0
        self._refused: set[TopicPartition] = set()
        self._latency = LatencyRecorder(setup.events.parent)
        producer = Producer({**DEFAULTS, **librdkafka_properties(setup.properties), "client.id": setup.writer})
        self._producer = AuditedProducer(
            producer,
            FileSink(setup.events),
            writer=setup.writer,
            topics=setup.topics,
            on_delivery=self._latency.add_delivery_report,
            identify=_unpack_message,
            each_latency=True,
            must_write=True,
        )
        self._watch = PartitionWatch(producer, setup.topics)

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
            if not self._lifetime.abandoned:
                self._producer.close(0.0, reason=reason)

    def _wait_for_topics(self) -> None:
        deadline = time.monotonic() + _FIRST_TOPIC_S
        while not self._watch.partitions and not self._lifetime.over:
            if time.monotonic() > deadline:
                raise TimedOut(f"no topic matches {', '.join(self._topics)} within {_FIRST_TOPIC_S:.0f} s")
            self._producer.poll(0.1)

    def _produce(self) -> None:
        """Send the records that are due, in ticks; acknowledgements are served in between."""
        began = next_tick = time.monotonic()
        sent = 0
        while not self._lifetime.over:
            now = time.monotonic()
            due = int((now - began) * self._rate)
            while sent < due:
                self._send()
                sent += 1
            next_tick += _TICK_S * max(1, -(-(now - next_tick) // _TICK_S))
            self._poll_until(next_tick)
            self._latency.write_if_due()

    def _poll_until(self, deadline: float) -> None:
        while (remaining_s := deadline - time.monotonic()) > 0:
            self._producer.poll(
                max(remaining_s, 0.001)
            )  # returns when it has served something; of less than 1 ms it makes a busy loop

    def _send(self) -> None:
        topic_partition = self._next_partition()
        if topic_partition is None:
            return
        now_ms = self._producer.log.clock.now_ms()
        value = runs.pack_content(self._name, self._numbers[topic_partition], now_ms, self._record_bytes)
        try:
            self._producer.produce(topic_partition.topic, value, partition=topic_partition.partition, timestamp=now_ms)
        except BufferError:  # librdkafka's queue is full: it drains by acknowledgement or time-out, so this ends
            self._producer.poll(0.1)
        except KafkaException as error:  # a partition that its metadata does not know yet
            self._record_refusal(topic_partition, error.args[0])
        else:
            self._numbers[topic_partition] += 1

    def _record_refusal(self, topic_partition: TopicPartition, error: KafkaError) -> None:
        if topic_partition not in self._refused:
            self._refused.add(topic_partition)
            self._producer.log.remark("producer-refused", f"{topic_partition.topic}-{topic_partition.partition}: {error.str()}")

    def _next_partition(self) -> TopicPartition | None:
        if self._due_here == 0:
            self._turn += 1
            selected = self.select_partitions(self._watch.partitions)
            self._here, self._due_here = (selected[self._turn % len(selected)] if selected else None), _IN_A_ROW
        self._due_here -= 1
        return self._here

    def select_partitions(self, partitions: tuple[TopicPartition, ...]) -> tuple[TopicPartition, ...]:
        """Those of the partitions that this sender feeds: all."""
        return partitions

    def _finish(self) -> str:
        """Wait for every outstanding acknowledgement; returns why the record is incomplete, or an empty text."""
        deadline = time.monotonic() + _FLUSH_S
        while len(self._producer) and time.monotonic() < deadline and not self._lifetime.abandoned:
            self._producer.flush(0.5)
        outstanding = len(self._producer)
        return (
            f"{count_of(outstanding, 'record was', 'records were')} neither acknowledged nor failed within {_FLUSH_S:.0f} s"
            if outstanding
            else ""
        )


def _unpack_message(message: Message) -> runs.Content | None:
    return runs.unpack_content(message.value())


RECEIVER_DEFAULTS: Final = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
    "session.timeout.ms": "30000",
    "topic.metadata.refresh.interval.ms": "5000",  # of the default 300 s: new topics and partitions are found soon
    "fetch.wait.max.ms": "100",
    "fetch.min.bytes": "65536",  # with the line above: ten fetches a second and broker, however slowly records trickle in
}
_POLL_S = 0.1


class Receiver:
    """Receives until its lifetime is over; then commits, leaves the group and writes its stop.

    Batches of `batch_s` seconds are written and committed. `connect` makes the client from its properties.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        group: str,
        strategy: str = "cooperative-sticky",
        batch_s: float = 1.0,
        connect: Callable[[dict[str, Any]], Consumer] = Consumer,
    ) -> None:
        self._topics, self._lifetime, self._batch_s = setup.topics, setup.lifetime, batch_s
        self._committed: dict[TopicPartition, int] = {}
        fixed = {"group.id": group, "client.id": setup.writer, "partition.assignment.strategy": strategy}
        self._consumer = AuditedConsumer.of(
            {**RECEIVER_DEFAULTS, **librdkafka_properties(setup.properties), **fixed},
            FileSink(setup.events),
            writer=setup.writer,
            batch_s=batch_s,
            identify=_unpack_message,
            must_write=True,
            connect=connect,
        )

    def run(self) -> None:
        """Receive until the end. Raises ours if librdkafka calls an error fatal."""
        reason = "it ended with an error"
        try:
            self._consumer.subscribe(list(self._topics), on_revoke=self._on_revoke, on_lost=self._on_lost)
            self._consume()
            reason = ""
        finally:
            self._consumer.close(clean=not reason, reason=reason)

    def _consume(self) -> None:
        """Polls one record at a time; librdkafka has fetched them anyway, so single polls cost little."""
        next_commit = time.monotonic() + self._batch_s
        while not self._lifetime.over:
            message = self._consumer.poll(_POLL_S)
            error = None if message is None else message.error()
            if error is not None and error.fatal():
                with kafka_calls("consuming"):
                    raise KafkaException(error)
            now = time.monotonic()
            if now >= next_commit:
                next_commit = now + self._batch_s
                self._commit_deliveries()

    def _commit_deliveries(self) -> None:
        """Commit deliveries that are not committed yet. A refusal is recorded, and retried with the next batch."""
        due = {
            topic_partition: offset
            for topic_partition, offset in self._consumer.positions().items()
            if self._committed.get(topic_partition) != offset
        }
        if not due:
            return
        try:
            answer = self._consumer.commit(
                offsets=[KafkaPartition(*topic_partition, offset) for topic_partition, offset in due.items()], asynchronous=False
            )
        except KafkaException:
            return
        failed = {topic_partition_of(partition) for partition in answer or () if partition.error is not None}
        self._committed |= {topic_partition: offset for topic_partition, offset in due.items() if topic_partition not in failed}

    def _on_revoke(self, _: AuditedConsumer, partitions: list[KafkaPartition]) -> None:
        self._commit_deliveries()
        self._on_lost(_, partitions)

    def _on_lost(self, _: AuditedConsumer, partitions: list[KafkaPartition]) -> None:
        """Drop uncommitted deliveries: a commit would fail, or overwrite that of another member that owns the partitions already."""
        for partition in partitions:
            self._committed.pop(topic_partition_of(partition), None)


_CHECK_S = 1.0


class Lifetime:
    """Ends when it is asked to, or when the folder of the events is gone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next_check = 0.0
        self._ended = False

    def end(self) -> None:
        """End the client when it next reads `over`."""
        self._ended = True

    @property
    def over(self) -> bool:
        """True if the client must end. The folder is checked once a second."""
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + _CHECK_S
            self._ended |= self.abandoned
        return self._ended

    @property
    def abandoned(self) -> bool:
        """True if the folder is gone: no audit will read what is written now."""
        return not self._folder.is_dir()
