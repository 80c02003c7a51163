"""Beside the load of a rehearsal: topics to make, the ledger in short, and an events topic read whole."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import NewTopic

from airflow_provider_kmigrate.applications.event_log import FolderEvents
from airflow_provider_kmigrate.clients.admin import connect, error_of
from airflow_provider_kmigrate.core.events import model as vocabulary
from airflow_provider_kmigrate.core.events.lines import BadEvent, decode
from airflow_provider_kmigrate.core.events.model import Ack, Event, Latencies, Ownership, SendFailure, Slow
from airflow_provider_kmigrate.exceptions import TimedOut
from airflow_provider_kmigrate.probe.kafka_calls import kafka_calls, wait_for_leaders
from tests.kit.stream import Stream
from tests.verdicts import verdict_of

_POLL_S: Final = 0.1
_STALL_US: Final = 100_000  # a record that waits longer is stalled


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic to create; `replication` -1: the brokers' default."""

    name: str
    partitions: int = 12
    replication: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


def create_topics(properties: Mapping[str, str], plans: Sequence[TopicPlan], timeout: float = 60.0) -> None:
    """Create missing topics and wait until every partition has a leader. Raises ours; `TimedOut` after `timeout` s."""
    deadline = time.monotonic() + timeout
    what = f"creating {len(plans)} topics"
    with kafka_calls(what):
        admin = connect(properties)
        new = [NewTopic(plan.name, plan.partitions, plan.replication, config=dict(plan.config)) for plan in plans]
        for future in admin.create_topics(new, request_timeout=timeout).values():
            _unless_there(future, deadline)
        wait_for_leaders(admin, {plan.name: plan.partitions for plan in plans}, deadline - time.monotonic())


def _unless_there(future: Future[None], deadline: float) -> None:
    try:
        future.result(max(1.0, deadline - time.monotonic()))
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def create_topic_again(properties: Mapping[str, str], name: str, partitions: int, timeout: float = 30.0) -> None:
    """Create a topic, one replica each, that was deleted just now, within `timeout` s; raises Kafka's own error.

    Metadata no longer name it some time before the controller is done: until then ZooKeeper says "marked for deletion".
    """
    deadline = time.monotonic() + timeout
    admin = connect(properties)  # a client that nothing refers to ends with its requests
    while error := admin.create_topics([NewTopic(name, partitions, 1)])[name].exception(timeout):
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
            raise error
        time.sleep(0.2)


@dataclass(frozen=True, slots=True)
class Produce:
    """The latency of acknowledgements, from sent to acknowledged or given up; None: no producer reported it.

    `stalled_record_s` is the sum of the latencies above 100 ms. `exact`: computed from every single latency; else from buckets
    (0.8 %) or not from all.
    """

    records: int
    longest_ms: float | None
    p999_ms: float | None
    stalled_record_s: float
    exact: bool = True

    @classmethod
    def of(cls, counted: Mapping[int, int], *, exact: bool = True) -> Produce:
        """The figures of latencies in microseconds, each with the number of its records."""
        counts = sorted(counted.items())
        top, p999 = (vocabulary.counted_quantile(counts, share) for share in (1.0, 0.999))
        stalled = sum(value * count for value, count in counts if value > _STALL_US)
        return cls(
            sum(counted.values()),
            None if top is None else top / 1000,
            None if p999 is None else p999 / 1000,
            stalled / 1_000_000,
            exact,
        )


def produce_of(events: Sequence[Event]) -> Produce:
    """The latencies of all producers: each of them where a producer wrote each, else those of its acknowledgements."""
    values, measured, owed = Counter[int](), Counter[str](), Counter[str]()
    for event in events:
        if isinstance(event, Latencies):
            values.update(event.values_us)
            measured[event.producer] += len(event.values_us)
        elif isinstance(event, Ack):
            owed[event.producer] += event.count
        elif isinstance(event, SendFailure):
            owed[event.producer] += event.seq_last - event.seq_first + 1
    others = (event.latency for event in events if isinstance(event, Ack) and event.producer not in measured)
    for number, count in vocabulary.merge_histograms(others):
        values[round(vocabulary.bucket_middle(number))] += count
    return Produce.of(values, exact=measured == owed)


def summary_of(workload: Stream) -> dict[str, Any]:
    """Figures with units in their names, reasons as sentences, and the first counter-examples of each violation."""
    facts, produce = workload.facts(), produce_of(workload.read_all_events().events)
    gap = facts.longest_gap
    violations = {name: [str(case) for case in finding.cases[:5]] for name, finding in facts.violations.items()}
    return {
        "verdict": str(verdict_of(facts)),
        "complete": facts.complete,
        "reasons": [str(reason) for reason in facts.reasons],
        "acked": facts.acked,
        "delivered": dict(facts.delivered),
        "lost": facts.lost.count,
        "unseen": facts.unseen.count,
        "duplicated": facts.duplicated,
        "reordered": facts.reordered.count,
        "committed_unprocessed": facts.commit_gap.count,
        "diverged": facts.diverged.count,
        "double_owned_ms": facts.double_owned.count,
        "send_failures": facts.send_failures,
        "longest_stall_ms": produce.longest_ms,
        "p999_ms": produce.p999_ms,
        "stalled_record_s": produce.stalled_record_s,
        "longest_delivery_gap_ms": None if gap is None else gap.ms,
        "violations": violations,
    }


def stalls_between(events: Sequence[Event], start_ms: int, end_ms: int) -> Produce:
    """The latencies of the records sent from `start_ms` up to `end_ms`: for the stall of one restart or election.

    Exact above the threshold at which records are noted one by one. Below it a record counts by the second of its
    acknowledgement, which moves quantiles a little and the longest latency not at all.
    """
    noted = [event for event in events if isinstance(event, Slow)]
    values = [record.latency_us for event in noted for record in event.records if start_ms <= record.t_sent_ms < end_ms]
    threshold = min((event.threshold_us for event in noted), default=_STALL_US)
    for event in events:
        if isinstance(event, Latencies) and start_ms <= (event.t_from_ms + event.stamp.t_ms) / 2 < end_ms:
            values += [value for value in event.values_us if value <= threshold]
    return Produce.of(Counter(values))


def read_topic(properties: Mapping[str, str], topic: str, timeout: float = 60.0) -> FolderEvents:
    """Read everything that the topic held at the start; `TimedOut` if that takes longer than `timeout` s.

    For small topics; `audit.stream` reads large ones into files.
    """
    reading = FolderEvents()
    for message in _messages(properties, topic, time.monotonic() + timeout):
        value, where = message.value() or b"", f"{topic}-{message.partition()} offset {message.offset()}"
        try:
            reading.events.append(_placed(decode(value.decode(errors="replace")), message.offset() or 0))
        except BadEvent as error:
            reading.refused.append(f"{where} {value[:80]!r}: {error}")
    return reading


def _placed(event: Event, offset: int) -> Event:
    """The event with its `position`, read from a topic at this offset."""
    return replace(event, position=offset) if isinstance(event, Ownership) else event


def _messages(properties: Mapping[str, str], topic: str, deadline: float) -> Iterator[Message]:
    fixed = {"group.id": "kmigrate-events", "enable.auto.commit": "false", "enable.partition.eof": "true"}
    consumer = Consumer({**properties, **fixed})
    try:
        left = {partition: end for partition, end in _ends(consumer, topic).items() if end}
        consumer.assign([KafkaPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
        while left:
            if time.monotonic() > deadline:
                raise TimedOut(f"the events topic {topic} was not read in time")
            message = consumer.poll(_POLL_S)
            if message is not None and not _ended(message, left):
                yield message
    except KafkaException as error:
        raise error_of(error.args[0], f"the events topic {topic}") from error
    finally:
        consumer.close()


def _ends(consumer: Consumer, topic: str) -> dict[int, int]:
    """The end of each partition now; 0 for an empty one."""
    found = consumer.list_topics(topic, timeout=30.0).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    marks = {index: consumer.get_watermark_offsets(KafkaPartition(topic, index), timeout=10.0) for index in found.partitions}
    return {index: end if end > start else 0 for index, (start, end) in marks.items()}


def _ended(message: Message, left: dict[int, int]) -> bool:
    """True for the end of a partition instead of a record; drops partitions that are read."""
    error, partition, offset = message.error(), message.partition(), message.offset()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    if partition not in left:
        return True  # written since
    if error is not None or (offset or 0) + 1 >= left[partition]:
        del left[partition]
    return error is not None
