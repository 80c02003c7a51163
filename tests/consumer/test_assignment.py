"""The way round librdkafka's stall, without librdkafka: what is asked and assigned, and when nothing must be touched."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.applications.assignment import Assignment, AssignmentTimeouts
from airflow_provider_kmigrate.core.events.model import TopicPartition

NOW = AssignmentTimeouts(committed=0.3, unresponsive_after=0.0, check_every=0.0, answer=0.1)
AT = dict[int, int]


@dataclass
class FakeConsumer:
    """One topic "t"; `failures` are raised one by one before anything is answered."""

    committed_at: AT = field(default_factory=dict)
    ends: AT = field(default_factory=dict)
    failures: list[int] = field(default_factory=list)
    eager: bool = False
    calls: list[tuple[str, AT]] = field(default_factory=list)

    def _note(self, what: str, partitions: list[KafkaPartition]) -> None:
        self.calls.append((what, {one.partition: one.offset for one in partitions}))

    def assign(self, partitions: list[KafkaPartition]) -> None:
        self._note("assign", partitions)

    def incremental_assign(self, partitions: list[KafkaPartition]) -> None:
        if self.eager:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self._note("incremental_assign", partitions)

    def incremental_unassign(self, partitions: list[KafkaPartition]) -> None:
        self._note("incremental_unassign", partitions)

    def pause(self, partitions: list[KafkaPartition]) -> None:
        self._note("pause", partitions)

    def committed(self, partitions: list[KafkaPartition], *, timeout: float) -> list[KafkaPartition]:
        assert timeout > 0
        if self.failures:
            raise KafkaException(KafkaError(self.failures.pop(0)))
        return [KafkaPartition("t", one.partition, self.committed_at.get(one.partition, OFFSET_INVALID)) for one in partitions]

    def get_watermark_offsets(self, partition: KafkaPartition, *, timeout: float, cached: bool) -> tuple[int, int]:
        assert timeout > 0
        assert not cached
        if partition.partition not in self.ends:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return 0, self.ends[partition.partition]


@dataclass
class Bench:
    consumer: FakeConsumer
    reset: str | None = "earliest"
    remarks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.assignment = Assignment(self.consumer, lambda code, _: self.remarks.append(code), self.reset, NOW)

    def start(self, *partitions: int) -> AT:
        starts = self.assignment.resolve_starts([KafkaPartition("t", partition) for partition in partitions])
        self.assignment.assign(starts)
        self.assignment.hold(starts)
        return {one.partition: one.offset for one in starts}


@pytest.mark.parametrize(
    ("reset", "expected"), [("earliest", OFFSET_BEGINNING), ("smallest", OFFSET_BEGINNING), ("latest", 9), (None, OFFSET_INVALID)]
)
def test_a_group_without_a_commit_begins_where_reset_says(reset: str | None, expected: int) -> None:
    bench = Bench(FakeConsumer(committed_at={0: 5}, ends={1: 9}), reset)
    assert bench.start(0, 1) == {0: 5, 1: expected}


def test_passing_errors_are_asked_through() -> None:
    bench = Bench(FakeConsumer(committed_at={0: 5}, failures=[KafkaError.NOT_COORDINATOR]))
    assert bench.start(0) == {0: 5}
    assert bench.remarks == []


def test_a_refusal_for_good_is_not_asked_again() -> None:
    consumer = FakeConsumer(failures=[KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.NOT_COORDINATOR])
    bench = Bench(consumer)
    assert bench.start(0) == {0: OFFSET_INVALID}
    assert bench.remarks == ["consumer-no-offsets"]
    assert len(consumer.failures) == 1


def test_the_protocol_is_found_out_once() -> None:
    bench = Bench(FakeConsumer(eager=True))
    bench.start(0)
    bench.start(0, 1)
    assert [what for what, _ in bench.consumer.calls] == ["assign", "assign"]


def test_a_repeated_assignment_resumes_behind_the_last_record_and_leaves_paused_ones_paused() -> None:
    for eager in (True, False):
        bench = Bench(FakeConsumer(committed_at={0: 5, 1: 6}, eager=eager))
        bench.start(0, 1)
        bench.assignment.record_delivery(TopicPartition("t", 0), 41)
        bench.assignment.pause([KafkaPartition("t", 1)], paused=True)
        bench.consumer.calls.clear()
        bench.assignment.on_coordinator_moved()
        bench.assignment.on_coordinator_moved()
        at = {0: 42, 1: 6}
        assigned = [("assign", at)] if eager else [("incremental_unassign", at), ("incremental_assign", at)]
        assert bench.consumer.calls == [*assigned, ("pause", {1: OFFSET_INVALID})]


def test_a_rebalance_that_is_under_way_wins() -> None:
    bench = Bench(FakeConsumer(committed_at={0: 5}))
    bench.start(0)
    bench.consumer.eager = True  # refuses now
    bench.assignment.assign_again("the coordinator moved")
    assert bench.remarks == ["consumer-assigned-again", "consumer-assign-refused"]


def test_records_that_wait_and_do_not_come() -> None:
    bench = Bench(FakeConsumer(committed_at={0: 5, 1: 5}, ends={0: 9, 1: 9}))
    bench.start(0, 1)
    bench.consumer.calls.clear()
    bench.assignment.reassign_stalled()
    assert bench.consumer.calls[-1] == ("incremental_assign", {0: 5, 1: 5})


@pytest.mark.parametrize(
    ("committed", "ends", "reset"),
    [
        ({0: 9}, {0: 9}, "earliest"),  # nothing waits
        ({0: 5}, {}, "earliest"),  # no leader to ask
        ({}, {0: 9}, None),  # where it stands is librdkafka's knowledge: assigning again might skip records
    ],
)
def test_silence_that_is_none(committed: AT, ends: AT, reset: str | None) -> None:
    bench = Bench(FakeConsumer(committed_at=committed, ends=ends), reset)
    bench.start(0)
    bench.consumer.calls.clear()
    bench.assignment.reassign_stalled()
    assert bench.consumer.calls == []


def test_what_the_application_paused_is_not_silent() -> None:
    bench = Bench(FakeConsumer(committed_at={0: 5}, ends={0: 9}))
    bench.start(0)
    bench.assignment.pause([KafkaPartition("t", 0)], paused=True)
    bench.consumer.calls.clear()
    bench.assignment.reassign_stalled()
    assert bench.consumer.calls == []
    bench.assignment.pause([KafkaPartition("t", 0)], paused=False)
    bench.assignment.reassign_stalled()
    assert bench.consumer.calls


def test_a_commit_that_a_partition_does_not_answer_is_not_taken_for_none() -> None:
    """It would begin where the group has no commit, and skip or repeat records."""
    unread = SimpleNamespace(error=KafkaError(KafkaError.NOT_COORDINATOR), offset=OFFSET_INVALID)
    consumer: Any = SimpleNamespace(committed=lambda *_, **__: [unread])
    with pytest.raises(KafkaException, match="NOT_COORDINATOR"):
        Assignment(consumer, lambda *_: None, OFFSET_BEGINNING, NOW)._fetch_committed([KafkaPartition("t", 0)])
