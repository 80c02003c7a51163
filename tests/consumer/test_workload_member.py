"""One group member against a scripted client: the order of its writing, and what it does when the coordinator moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.applications.runs import pack_content
from airflow_provider_kmigrate.core.events.model import Commit, DeliveryRun, Event, Ownership, Remark, TopicPartition
from airflow_provider_kmigrate.probe.clients import Lifetime, Receiver, Setup

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Message:
    """A record as librdkafka hands it over, or an error."""

    def __init__(self, where: TopicPartition, offset: int, code: int | None = None) -> None:
        self._where, self._offset, self._code = where, offset, code

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)

    def topic(self) -> str:
        return self._where.topic

    def partition(self) -> int:
        return self._where.partition

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return pack_content(b"p", self._offset, 1_000, 50)


Answer = list[KafkaPartition] | KafkaError


class Client:
    """A consumer that plays a script: what `poll` gives, what `committed` answers; and records its calls."""

    def __init__(self, lifetime: Lifetime, polls: list[Message | None], answers: list[Answer]) -> None:
        self._life, self._polls, self._answers = lifetime, polls, answers
        self.assigned: list[list[tuple[str, int, int]]] = []
        self.committed_offsets: list[list[int]] = []
        self.refuse_commits = False
        self.end = 0
        self._callbacks: dict[str, Callable[..., None]] = {}

    def __call__(self, properties: dict[str, str]) -> Consumer:
        self.properties = properties
        return cast(Consumer, self)

    def subscribe(self, topics: list[str], **callbacks: Callable[..., None]) -> None:
        self._callbacks = callbacks

    def poll(self, timeout: float) -> Message | None:
        if not self.assigned:
            self._callbacks["on_assign"](self, [KafkaPartition("t", 0), KafkaPartition("t", 1)])
        if not self._polls:
            self._life.end()
            return None
        return self._polls.pop(0)

    def committed(self, partitions: list[KafkaPartition], timeout: float) -> list[KafkaPartition]:
        answer = self._answers.pop(0)
        if isinstance(answer, KafkaError):
            raise KafkaException(answer)
        return answer

    def _assign(self, partitions: list[KafkaPartition]) -> None:
        self.assigned.append([(one.topic, one.partition, one.offset) for one in partitions])

    assign = incremental_assign = _assign

    def unassign(self) -> None: ...

    def incremental_unassign(self, partitions: list[KafkaPartition]) -> None: ...

    def commit(self, offsets: list[KafkaPartition], asynchronous: bool) -> list[KafkaPartition]:
        if self.refuse_commits:
            raise KafkaException(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))
        self.committed_offsets.append([one.offset for one in offsets])
        return offsets

    def consumer_group_metadata(self) -> bytes:
        return b"CGMDv2:\x05\x00\x00\x00g\x00m\x00\x01"

    def get_watermark_offsets(self, where: KafkaPartition, timeout: float, cached: bool) -> tuple[int, int]:
        return 0, self.end

    def close(self) -> None:
        self._callbacks["on_revoke"](self, [KafkaPartition("t", 0), KafkaPartition("t", 1)])


def play(folder: Path, polls: list[Message | None], answers: list[Answer], **options: Any) -> tuple[Client, list[Event]]:
    """Run a member through a script; what it did and what it wrote."""
    folder.mkdir(exist_ok=True)
    lifetime = Lifetime(folder)
    client = Client(lifetime, polls, answers)
    client.refuse_commits = options.pop("refuse_commits", False)
    Receiver(Setup(folder, "m", {}, ("t",), lifetime), group="g", connect=client, **options).run()
    return client, read_events(folder).events


def kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in sorted(events, key=lambda event: event.stamp.event_seq)]


OFFSETS: list[Answer] = [[KafkaPartition("t", 0, 7), KafkaPartition("t", 1, OFFSET_INVALID)]]


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_member_writes_before_it_commits_and_releases_after(tmp_path: Path, strategy: str) -> None:
    polls = [Message(A, 7), Message(A, 8), None, Message(B, 0)]
    client, events = play(tmp_path, list(polls), list(OFFSETS), strategy=strategy)
    assert kinds(events) == ["Start", "Ownership", "DeliveryRun", "DeliveryRun", "Commit", "Ownership", "Stop"]
    assert client.assigned == [[("t", 0, 7), ("t", 1, OFFSET_BEGINNING)]]
    assert client.committed_offsets == [[9, 1]]
    assert {event.generation for event in events if isinstance(event, (DeliveryRun, Ownership))} == {5}


def test_a_coordinator_that_moved_is_asked_again_for_the_offsets(tmp_path: Path) -> None:
    moved: Answer = KafkaError(KafkaError.NOT_COORDINATOR)
    partly: Answer = [KafkaPartition("t", 0, 7), KafkaPartition("t", 1, 3)]
    client, events = play(tmp_path, [Message(A, 7)], [moved, moved, partly])
    assert client.assigned == [[("t", 0, 7), ("t", 1, 3)]]
    assert not any(isinstance(event, Remark) for event in events)


def test_partitions_are_assigned_again_when_a_poll_says_that_the_coordinator_moved(tmp_path: Path) -> None:
    polls = [Message(A, 7), Message(A, 0, KafkaError.NOT_COORDINATOR), Message(A, 8)]
    client, events = play(tmp_path, list(polls), list(OFFSETS))
    assert client.assigned[1:] == [[("t", 0, 8), ("t", 1, OFFSET_BEGINNING)]]
    assert {event.code for event in events if isinstance(event, Remark)} == {"consumer-error", "consumer-assigned-again"}


def test_other_errors_are_noted_and_nothing_is_assigned_again(tmp_path: Path) -> None:
    client, events = play(tmp_path, [Message(A, 0, KafkaError.UNKNOWN_TOPIC_OR_PART)], list(OFFSETS))
    assert len(client.assigned) == 1
    assert [event.code for event in events if isinstance(event, Remark)] == ["consumer-error"]


def test_a_refused_commit_is_written_down_as_refused(tmp_path: Path) -> None:
    _, events = play(tmp_path, [Message(A, 7)], list(OFFSETS), refuse_commits=True)
    assert [(event.ok, event.error) for event in events if isinstance(event, Commit)] == [(False, "REBALANCE_IN_PROGRESS")]
