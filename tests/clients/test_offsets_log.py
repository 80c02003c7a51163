"""The raw log of `__consumer_offsets` without a broker: a full queue, a refusal, a log whose start moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException

from airflow_provider_kmigrate.clients import offsets_log
from airflow_provider_kmigrate.clients.offsets_log import OffsetsLog
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import StrayRecord
from airflow_provider_kmigrate.exceptions import Failed, Fenced, KMigrateError, TimedOut, Unavailable
from tests.core.offsets_bytes import Log
from tests.kit.held import Held

STRAYS = [StrayRecord(f"g{number}", None, number, b"key") for number in range(5)]


class Queue:
    """A producer whose queue holds two records; `stuck`: brokers take none of them; `answer`: theirs to each."""

    stuck = False
    refusal: KafkaError | None = None
    answer: KafkaError | None = None

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
            callback(self.answer, None)
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
    OffsetsLog({}).remove(STRAYS, Held())
    assert SENT == [0, 1, 2, 3, 4]


def test_the_fence_is_read_again_before_every_few_of_them(queue: type[Queue], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_log, "_FEW", 2)
    with pytest.raises(Fenced):
        OffsetsLog({}).remove(STRAYS, Held(checks=2))
    assert SENT == [0, 1, 2, 3]


def test_brokers_that_take_nothing_end_it_in_time(queue: type[Queue]) -> None:
    queue.stuck = True
    with pytest.raises(TimedOut, match="repeat it"):
        OffsetsLog({}).remove(STRAYS, Held(), timeout=0.0)


def test_brokers_that_confirm_nothing_are_not_believed(queue: type[Queue]) -> None:
    queue.stuck = True
    with pytest.raises(TimedOut, match="repeat it"):
        OffsetsLog({}).remove(STRAYS[:2], Held())


def test_a_copy_that_a_broker_refuses_is_not_taken_for_removed(queue: type[Queue]) -> None:
    queue.answer = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KMigrateError, match="removing copies in __consumer_offsets"):
        OffsetsLog({}).remove(STRAYS[:2], Held())


def test_a_partition_that_is_not_there_is_an_error_of_ours(queue: type[Queue]) -> None:
    queue.refusal = KafkaError(KafkaError._UNKNOWN_PARTITION)
    with pytest.raises(KMigrateError, match="removing copies"):
        OffsetsLog({}).remove(STRAYS, Held())


def test_a_copy_without_its_key_is_not_removed(queue: type[Queue]) -> None:
    with pytest.raises(Failed, match="of g in partition 1"):
        OffsetsLog({}).remove([StrayRecord("g", None, 1, b"")], Held())


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


@dataclass(frozen=True)
class Read:
    """What a consumer hands out: a record, or the end of the partition without a key."""

    at: int
    raw_key: bytes | None = None
    raw_value: bytes | None = None

    def error(self) -> KafkaError | None:
        return None if self.raw_key else KafkaError(KafkaError._PARTITION_EOF)

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000

    def key(self) -> bytes | None:
        return self.raw_key

    def value(self) -> bytes | None:
        return self.raw_value


def test_a_leader_that_does_not_know_its_end_yet_hides_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetches end at the high watermark, which a leader that was just elected learns from its followers."""
    log, key = Log(), GroupPartition("billing", "orders", 0)
    log.commit(3, key, 7, 1_000)
    (record,) = log.records
    batches = [[Read(0)], [Read(0, record.key, record.value)], [Read(1)]]
    consumer = SimpleNamespace(assign=lambda _: None, close=lambda: None, consume=lambda *_: batches.pop(0))
    marks = {TopicPartition("__consumer_offsets", 3): LogMark(start=0, end=1)}
    monkeypatch.setattr(offsets_log, "read_marks", lambda *_, **__: marks)
    monkeypatch.setattr(offsets_log, "Consumer", lambda *_, **__: consumer)
    assert [trail.newest.offset for trail in OffsetsLog({}).read()["billing"].commits[key].values()] == [7]
    assert batches == []


@pytest.mark.parametrize("timeout", [0.0, 600.0])
def test_a_log_that_cannot_be_read_to_its_end_is_not_taken_for_whole(monkeypatch: pytest.MonkeyPatch, timeout: float) -> None:
    failed = SimpleNamespace(error=lambda: KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), partition=lambda: 3, offset=lambda: 1)
    batches = [[], [failed], [Read(1)]]
    consumer = SimpleNamespace(assign=lambda _: None, close=lambda: None, consume=lambda *_: batches.pop(0))
    marks = {TopicPartition("__consumer_offsets", 3): LogMark(start=0, end=1)}
    monkeypatch.setattr(offsets_log, "read_marks", lambda *_, **__: marks)
    monkeypatch.setattr(offsets_log, "Consumer", lambda *_, **__: consumer)
    text = "1 partition of __consumer_offsets was not read within 0 s" if timeout == 0.0 else "reading __consumer_offsets"
    with pytest.raises(KMigrateError, match=text):
        OffsetsLog({}).read(timeout=timeout)


def test_a_partition_whose_ends_cannot_be_read_is_not_taken_for_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {TopicPartition("__consumer_offsets", 3): LogMark(unread="no leader")}
    monkeypatch.setattr(offsets_log, "read_marks", lambda *_, **__: marks)
    with pytest.raises(Unavailable, match="could not be read, partition 3: no leader"):
        OffsetsLog({}).read()


class Ends:
    """The ends of the only partition, which has nothing left to read: of all records, and before the first open transaction."""

    def __init__(self, whole: list[int], stable: list[int]) -> None:
        self.left = {IsolationLevel.READ_UNCOMMITTED: whole, IsolationLevel.READ_COMMITTED: stable}
        self.asked = 0

    def __call__(self, *_: object, isolation: IsolationLevel) -> dict[TopicPartition, LogMark]:
        ends = self.left[isolation]
        end = ends.pop(0) if len(ends) > 1 else ends[0]
        self.asked += 1
        return {TopicPartition("__consumer_offsets", 3): LogMark(start=end, end=end)}


def test_records_behind_a_transaction_that_hangs_are_not_taken_for_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest commit that can be read would be imported over a newer one of another group, which the transaction hides."""
    monkeypatch.setattr(offsets_log, "read_marks", Ends([90], [50]))
    monkeypatch.setattr(offsets_log, "_TRANSACTIONS_S", 0.0)
    with pytest.raises(
        Unavailable, match=r"K81.*hide records of partitions of __consumer_offsets: 3 from offset 50 on"
    ) as hidden:
        OffsetsLog({}).read()
    assert [reason.code for reason in hidden.value.reasons] == ["K81"]


def test_transactions_that_were_open_at_the_beginning_are_waited_for_and_later_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = Ends([90, 120], [50, 70, 90])
    monkeypatch.setattr(offsets_log, "read_marks", ends)
    monkeypatch.setattr(offsets_log, "_POLL_S", 0.0)
    assert OffsetsLog({}).read() == {}
    assert ends.asked == 4


def test_whether_the_log_is_readable_does_not_depend_on_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends([90], [50])
    monkeypatch.setattr(offsets_log, "read_marks", ends)
    OffsetsLog({}).prove_readable()
    assert ends.asked == 1, "it is asked once and waits for nothing"


def test_of_each_partition_the_newest_record_is_kept_and_a_removal_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    log, key, other = Log(), GroupPartition("billing", "orders", 0), GroupPartition("shop", "orders", 0)
    for place, of, offset in [(1, key, 5), (1, key, 6), (4, key, 7), (4, key, None), (1, other, 9)]:
        log.commit(place, of, offset, 1_000 + len(log.records))
    log.group(4, "billing", 2_000)
    log.group(4, "billing", 3_000, there=False)
    monkeypatch.setattr(offsets_log, "_records", lambda *_, **__: iter(log.records))
    found = OffsetsLog({}).read(["billing"])
    assert {
        group: [(place, trail.newest.offset) for place, trail in each.commits[key].items()] for group, each in found.items()
    } == {"billing": [(1, 6), (4, None)]}
    assert found["billing"].states == []


def test_a_record_that_librdkafka_hands_out_again_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log, key = Log(), GroupPartition("billing", "orders", 0)
    for offset in (5, 6, 7):
        log.commit(1, key, offset, 1_000 + offset)
    monkeypatch.setattr(offsets_log, "_records", lambda *_, **__: iter([*log.records, *log.records[:2]]))
    (trail,) = OffsetsLog({}).read()["billing"].commits[key].values()
    assert (trail.newest.offset, trail.previous and trail.previous.offset, trail.times) == (7, 6, (1_005, 1_007, True))
