"""Kafka calls of the probe besides producing and consuming; librdkafka's errors become ours."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from airflow_provider_kmigrate.clients.admin import error_of
from airflow_provider_kmigrate.core.events import model as events
from airflow_provider_kmigrate.core.ledger import book
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import KMigrateError, TimedOut

_POLL_S = 0.1
_LIST_TOPICS_S = 10.0
_EVERY_S = 2.0  # between two lists of partitions


@contextmanager
def kafka_calls(action: str) -> Iterator[None]:
    """Turn librdkafka's exceptions into ours."""
    try:
        yield
    except KafkaException as error:
        raise error_of(error.args[0], action) from error
    except TimeoutError as error:
        raise TimedOut(f"{action}: no answer in time") from error


def wait_for_leaders(admin: AdminClient, partition_counts: Mapping[str, int], timeout: float) -> None:
    """Wait until each topic has this many partitions, all with leaders; `TimedOut` after `timeout` s."""
    deadline = time.monotonic() + timeout
    while not _has_leaders(admin, partition_counts):
        if time.monotonic() > deadline:
            raise TimedOut(f"not every partition of {count_of(len(partition_counts), 'topic')} had a leader in time")
        time.sleep(_POLL_S)


def _has_leaders(admin: AdminClient, partition_counts: Mapping[str, int]) -> bool:
    topics = admin.list_topics(timeout=10.0).topics
    return all(
        name in topics
        and len(topics[name].partitions) >= count
        and all(part.leader >= 0 for part in topics[name].partitions.values())
        for name, count in partition_counts.items()
    )


def matches_any(patterns: Sequence[str], topic: str) -> bool:
    """True if a subscription to these names and patterns holds the topic."""
    return any(book.subscription_matches(pattern, topic) for pattern in patterns)


def partitions_of(client: Producer | AdminClient, patterns: Sequence[str]) -> tuple[events.TopicPartition, ...]:
    """Every partition of the topics, in order. Raises ours."""
    with kafka_calls("listing topics"):
        topics = client.list_topics(timeout=_LIST_TOPICS_S).topics
    names = sorted(name for name, topic in topics.items() if matches_any(patterns, name) and topic.error is None)
    return tuple(events.TopicPartition(name, index) for name in names for index in sorted(topics[name].partitions))


class PartitionWatch(threading.Thread):
    """Keeps the list of partitions fresh beside a loop that must not wait for metadata. Caller: the producer's loop."""

    def __init__(self, client: Producer, patterns: Sequence[str]) -> None:
        super().__init__(daemon=True, name="partition-watch")
        self._client, self._patterns = client, patterns
        self._end = threading.Event()
        self.partitions: tuple[events.TopicPartition, ...] = ()  # replaced as a whole, never changed

    def run(self) -> None:
        """Refresh the partitions until `end`; keeps the former list while no broker answers."""
        while not self._end.is_set():
            try:
                self.partitions = partitions_of(self._client, self._patterns) or self.partitions
            except KMigrateError:  # the former list serves until the brokers answer again
                self._end.wait(_POLL_S)
            self._end.wait(_EVERY_S if self.partitions else _POLL_S)

    def end(self) -> None:
        """Stop the thread and wait for it, at most 15 s."""
        self._end.set()
        self.join(timeout=15.0)
