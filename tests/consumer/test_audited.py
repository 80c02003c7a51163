"""The wrapper around confluent-kafka's consumer, on librdkafka's mock brokers: same face, trustworthy record, no stall."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.applications.assignment import AssignmentTimeouts
from airflow_provider_kmigrate.applications.audited import AuditedConsumer, Membership, parse_group_metadata
from airflow_provider_kmigrate.applications.event_log import FileSink, TopicSink, read_events
from airflow_provider_kmigrate.core.events.model import (
    UNKNOWN_OFFSET,
    Commit,
    DeliveryRun,
    Event,
    Heartbeat,
    Ownership,
    OwnershipChange,
    Position,
    Remark,
    Start,
    Stop,
    TopicPartition,
)
from airflow_provider_kmigrate.core.ledger import balance
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Failed
from tests.consumer.mock_kafka import NOT_COORDINATOR, OFFSET_FETCH, MockKafka
from tests.kit.load import read_topic
from tests.waiting import wait_until

PARTITIONS, EACH = 4, 50
ALL = PARTITIONS * EACH


@pytest.fixture
def full(kafka: MockKafka) -> MockKafka:
    kafka.topic("t", PARTITIONS)
    kafka.fill("t", dict.fromkeys(range(PARTITIONS), EACH))
    return kafka


def properties(kafka: MockKafka, **more: Any) -> dict[str, Any]:
    fixed = {"bootstrap.servers": kafka.bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
    return {**fixed, "enable.auto.commit": False, **{name.replace("_", "."): value for name, value in more.items()}}


def quick(kafka: MockKafka) -> dict[str, Any]:
    """The mock rebalances a second before a session would end."""
    return properties(kafka, session_timeout_ms=2000, heartbeat_interval_ms=200)


def read(consumer: Any, count: int, timeout: float = 20.0) -> list[TopicPartition]:
    """Poll until so many records came."""
    found: list[TopicPartition] = []
    deadline = time.monotonic() + timeout
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} records came"
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(TopicPartition(message.topic(), message.partition()))
    return found


def events(folder: Path) -> list[Event]:
    reading = read_events(folder)
    assert reading.refused == []
    return sorted(reading.events, key=lambda event: event.stamp.event_seq)


def of(kind: type, found: Sequence[Event]) -> list[Any]:
    return [event for event in found if isinstance(event, kind)]


def covered(found: Sequence[Event]) -> dict[int, list[tuple[int, int]]]:
    runs: dict[int, list[tuple[int, int]]] = {}
    for run in of(DeliveryRun, found):
        runs.setdefault(run.partition, []).append((run.first, run.last))
    return runs


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_everything_that_came_is_written_before_it_is_committed(full: MockKafka, tmp_path: Path, strategy: str) -> None:
    consumer = AuditedConsumer.of(properties(full, partition_assignment_strategy=strategy), FileSink(tmp_path))
    consumer.subscribe(["t"])
    read(consumer, ALL)
    assert consumer.position([KafkaPartition("t", 0)])[0].offset == EACH
    committed = consumer.commit(asynchronous=False)
    assert {one.offset for one in committed or []} == {EACH}
    consumer.close()
    consumer.close()

    found = events(tmp_path)
    assert [event.stamp.event_seq for event in found] == list(range(len(found))), "no number is missing"
    start, stop = found[0], found[-1]
    assert isinstance(start, Start)
    assert (start.group, start.topics, start.reset) == ("g", ("t",), "earliest")
    assert isinstance(stop, Stop)
    assert stop.clean
    assert {partition: (min(runs)[0], max(runs)[1]) for partition, runs in covered(found).items()} == dict.fromkeys(
        range(4), (0, 49)
    )
    assert sum(run.count for run in of(DeliveryRun, found)) == ALL
    (commit,) = of(Commit, found)
    assert commit.ok
    assert set(commit.offsets) == {Position("t", partition, EACH) for partition in range(4)}
    assert all(run.stamp.event_seq < commit.stamp.event_seq for run in of(DeliveryRun, found))
    assert commit.generation is not None
    assert {run.generation for run in of(DeliveryRun, found)} == {commit.generation}
    acquired, released = of(Ownership, found)
    assert (acquired.change, released.change) == (OwnershipChange.ACQUIRED, OwnershipChange.RELEASED)
    assert acquired.position < released.position
    assert len(acquired.partitions) == len(released.partitions) == PARTITIONS
    assert acquired.stamp.event_seq < min(run.stamp.event_seq for run in of(DeliveryRun, found))
    facts = balance(found)
    assert {reason.cause for reason in facts.reasons} == {AuditCause.NOTHING_ACKED}, "only that no producer said anything"
    assert (tmp_path / f"{consumer.writer}.done").exists()


def test_the_next_member_goes_on_behind_the_commit(full: MockKafka, tmp_path: Path) -> None:
    for count in (80, ALL - 80):
        consumer = AuditedConsumer.of(quick(full), FileSink(tmp_path))
        consumer.subscribe(["t"])
        read(consumer, count)
        consumer.commit(asynchronous=False)
        consumer.close()
    facts = balance(events(tmp_path))
    assert facts.delivered == {"g": ALL}
    assert facts.violations == {}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_joiner_takes_over_without_double_ownership(full: MockKafka, tmp_path: Path, strategy: str) -> None:
    settings = {**quick(full), "partition.assignment.strategy": strategy}
    first, second = (AuditedConsumer.of(settings, FileSink(tmp_path)) for _ in range(2))
    with first, second:
        first.subscribe(["t"])
        read(first, ALL)
        first.commit(asynchronous=False)  # not in on_revoke: the mock refuses commits while a group rebalances, brokers do not
        second.subscribe(["t"])
        deadline = time.monotonic() + 20
        while not (first.assignment() and second.assignment()):
            assert time.monotonic() < deadline, "the joiner got nothing"
            first.poll(0.05)
            second.poll(0.05)
        full.fill("t", dict.fromkeys(range(PARTITIONS), EACH))
        left = ALL
        while left:
            assert time.monotonic() < deadline, f"{left} records did not come"
            messages = [first.poll(0.02), second.poll(0.02)]
            left -= sum(message is not None and message.error() is None for message in messages)
    facts = balance(read_events(tmp_path).events)
    assert facts.delivered == {"g": 2 * ALL}
    assert facts.violations == {}
    assert {reason.cause for reason in facts.reasons} == {AuditCause.NOTHING_ACKED}


def test_batches_are_written_too(full: MockKafka, tmp_path: Path) -> None:
    with AuditedConsumer(Consumer(properties(full)), FileSink(tmp_path), reset="earliest") as consumer:
        consumer.subscribe(["t"])
        count, deadline = 0, time.monotonic() + 20
        while count < ALL and time.monotonic() < deadline:
            count += len(consumer.consume(64, timeout=0.5))
    assert sum(run.count for run in of(DeliveryRun, events(tmp_path))) == ALL == count


def test_automatic_and_asynchronous_commits_are_seen_where_the_wrapper_makes_the_consumer(
    full: MockKafka, tmp_path: Path
) -> None:
    theirs: list[int] = []
    settings = {**properties(full), "enable.auto.commit": True, "auto.commit.interval.ms": 200}
    settings["on_commit"] = lambda _, partitions: theirs.append(len(partitions))
    consumer = AuditedConsumer.of(settings, FileSink(tmp_path))
    consumer.subscribe(["t"])
    read(consumer, ALL)
    deadline = time.monotonic() + 10
    while not theirs:
        assert time.monotonic() < deadline, "no automatic commit"
        consumer.poll(0.1)
    consumer.commit(offsets=[KafkaPartition("t", 0, 7)], asynchronous=True)
    before = len(theirs)
    while len(theirs) == before:
        assert time.monotonic() < deadline, "no asynchronous commit"
        consumer.poll(0.1)
    consumer.close()
    commits = of(Commit, events(tmp_path))
    assert any((Position("t", 0, 7),) == commit.offsets for commit in commits)
    assert {at.offset for commit in commits for at in commit.offsets} >= {7, EACH}


def test_no_reader_sees_a_commit_before_its_delivery(full: MockKafka, tmp_path: Path) -> None:
    """Though batches are written once a minute only, and commits are automatic."""
    settings = {**properties(full), "enable.auto.commit": True, "auto.commit.interval.ms": 200}
    consumer = AuditedConsumer.of(settings, FileSink(tmp_path), batch_s=60.0)
    with consumer:
        consumer.subscribe(["t"])
        read(consumer, ALL)
        deadline = time.monotonic() + 10
        while not (commits := of(Commit, read_events(tmp_path).events)):
            assert time.monotonic() < deadline, "no automatic commit"
            consumer.poll(0.1)
        runs = of(DeliveryRun, read_events(tmp_path).events)
        for at in commits[0].offsets:
            assert max(run.last + 1 for run in runs if run.partition == at.partition) >= at.offset


def test_a_refused_commit_is_written_and_raised(full: MockKafka, tmp_path: Path) -> None:
    with AuditedConsumer.of(properties(full), FileSink(tmp_path)) as consumer:
        consumer.subscribe(["t"])
        read(consumer, ALL)
        full.fail(8, 22, 22, 22)  # ILLEGAL_GENERATION
        with pytest.raises(KafkaException):
            consumer.commit(offsets=[KafkaPartition("t", 1, 5)], asynchronous=False)
    refused = [commit for commit in of(Commit, events(tmp_path)) if not commit.ok]
    assert [(commit.offsets, commit.error) for commit in refused] == [((Position("t", 1, 5),), "ILLEGAL_GENERATION")]


def test_callbacks_get_the_wrapper_and_their_offsets_count(full: MockKafka, tmp_path: Path) -> None:
    seen: list[str] = []

    def assigned(consumer: AuditedConsumer, partitions: list[KafkaPartition]) -> None:
        seen.append("assigned")
        for one in partitions:
            one.offset = 40
        consumer.assign(partitions)

    def revoked(consumer: AuditedConsumer, partitions: list[KafkaPartition]) -> None:
        seen.append(f"revoked {len(partitions)}")
        consumer.commit(asynchronous=False)

    with AuditedConsumer.of(properties(full), FileSink(tmp_path)) as consumer:
        consumer.subscribe(["t"], on_assign=assigned, on_revoke=revoked)
        read(consumer, 40)
    assert seen == ["assigned", "revoked 4"]
    found = events(tmp_path)
    assert {partition: min(runs)[0] for partition, runs in covered(found).items()} == dict.fromkeys(range(4), 40)
    (commit,) = of(Commit, found)
    released = of(Ownership, found)[-1]
    assert commit.stamp.event_seq < released.stamp.event_seq


def test_callbacks_that_raise_change_nothing_of_what_is_recorded(full: MockKafka, tmp_path: Path) -> None:
    """librdkafka assigns and releases the partitions all the same: without the release two owners would be reported."""

    def broken(_: AuditedConsumer, partitions: list[KafkaPartition]) -> None:
        raise ValueError(f"{len(partitions)} partitions")

    consumer = AuditedConsumer.of(properties(full), FileSink(tmp_path))
    consumer.subscribe(["t"], on_assign=broken, on_revoke=broken)
    with pytest.raises(ValueError, match="4 partitions"):
        read(consumer, 1)
    read(consumer, ALL)
    assert consumer.positions() == {TopicPartition("t", partition): EACH for partition in range(PARTITIONS)}
    with pytest.raises(ValueError, match="4 partitions"):
        consumer.close()
    assert [event.change for event in of(Ownership, events(tmp_path))] == [OwnershipChange.ACQUIRED, OwnershipChange.RELEASED]


@pytest.mark.slow
def test_a_member_that_is_closed_while_it_is_given_partitions_ends_at_once(full: MockKafka, tmp_path: Path) -> None:
    """Its group answers nothing any more: a question cost 20 s, or an error out of `close`."""
    messages: list[str] = []
    # A plain consumer that is closed there does not leave its group either: the next one waits until this session is over.
    consumer = AuditedConsumer.of(quick(full), FileSink(tmp_path))
    consumer.subscribe(["t"], on_assign=lambda _, given: messages.append(f"given {len(given)}"))
    time.sleep(2.0)  # it joins by a thread of librdkafka's, and the application does not poll: `close` calls the callback
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < 10.0
    assert messages == [f"given {PARTITIONS}"]
    found = events(tmp_path)
    assert of(Ownership, found) == [], "it read nothing, and no event says that it gave them back"
    assert [(event.clean, event.reason) for event in of(Stop, found)] == [(True, "")]
    with AuditedConsumer.of(quick(full), FileSink(tmp_path)) as next_one:
        next_one.subscribe(["t"])
        read(next_one, ALL)
    facts = balance(read_events(tmp_path).events)
    assert (facts.delivered, facts.violations) == ({"g": ALL}, {})


def test_an_assignment_that_waits_is_served_before_the_consumer_closes(full: MockKafka, tmp_path: Path) -> None:
    """Served by librdkafka's own close, after the session has expired, it stops the process for ever: once in some 30 times."""
    order: list[str] = []

    class Closes(Consumer):
        def close(self) -> None:
            order.append("closes")
            super().close()

    consumer = AuditedConsumer.of(quick(full), FileSink(tmp_path), connect=Closes)
    consumer.subscribe(["t"], on_assign=lambda _, given: order.append(f"given {len(given)}"))
    time.sleep(2.0)  # the assignment comes by a thread of librdkafka's; nothing shows it before `close` is called
    consumer.close()
    assert order == [f"given {PARTITIONS}", "closes"]


def test_no_record_is_taken_away_by_a_close(full: MockKafka, tmp_path: Path) -> None:
    """With partitions assigned a poll would take one, and the automatic commit would cover it."""
    given = {**quick(full), "enable.auto.commit": True, "auto.commit.interval.ms": 100}
    with AuditedConsumer.of(given, FileSink(tmp_path)) as consumer:
        consumer.subscribe(["t"])
        read(consumer, 10)
        time.sleep(0.5)  # librdkafka fetches the others meanwhile
    with AuditedConsumer.of(given, FileSink(tmp_path)) as next_one:
        next_one.subscribe(["t"])
        read(next_one, ALL - 10)
    facts = balance(read_events(tmp_path).events)
    assert (facts.delivered, facts.violations) == ({"g": ALL}, {})


def test_no_record_of_partitions_assigned_by_hand_is_taken_away_by_a_close(full: MockKafka, tmp_path: Path) -> None:
    given = {**quick(full), "enable.auto.commit": True, "auto.commit.interval.ms": 60_000}
    with AuditedConsumer.of(given, FileSink(tmp_path)) as consumer:
        consumer.assign([KafkaPartition("t", 0, 0)])
        read(consumer, 10)
        wait_until(
            lambda: consumer.get_watermark_offsets(KafkaPartition("t", 0), cached=True)[1] == EACH, "the others are fetched"
        )
    asking = Consumer(given)
    assert [one.offset for one in asking.committed([KafkaPartition("t", 0)], timeout=10)] == [10]
    asking.close()


def test_partitions_that_are_assigned_by_hand(full: MockKafka, tmp_path: Path) -> None:
    with AuditedConsumer.of(properties(full), FileSink(tmp_path)) as consumer:
        consumer.assign([KafkaPartition("t", 2, 10)])
        read(consumer, 5)
        consumer.seek(KafkaPartition("t", 2, 10))
        read(consumer, 40)
    found = events(tmp_path)
    assert of(Ownership, found) == []
    assert of(Start, found)[0].topics == ("t",)
    assert sum(run.count for run in of(DeliveryRun, found)) == 45


def test_a_moved_coordinator_does_not_stall_the_member(full: MockKafka, tmp_path: Path) -> None:
    """One NOT_COORDINATOR to OffsetFetch after an assignment stops a plain librdkafka member for good."""
    full.fail(OFFSET_FETCH, NOT_COORDINATOR)
    with AuditedConsumer.of(properties(full), FileSink(tmp_path)) as consumer:
        consumer.subscribe(["t"])
        read(consumer, ALL)
    assert sum(run.count for run in of(DeliveryRun, events(tmp_path))) == ALL


def test_a_stall_that_a_poll_reports_is_ended(full: MockKafka, tmp_path: Path) -> None:
    """Here the application assigns without offsets, so that librdkafka asks for them itself and receives NOT_COORDINATOR."""

    def assigned(consumer: AuditedConsumer, partitions: list[KafkaPartition]) -> None:
        full.fail(OFFSET_FETCH, NOT_COORDINATOR)
        consumer.assign([KafkaPartition(one.topic, one.partition) for one in partitions])

    with AuditedConsumer.of(properties(full), FileSink(tmp_path)) as consumer:
        consumer.subscribe(["t"], on_assign=assigned)
        read(consumer, ALL)
    codes = [remark.code for remark in of(Remark, events(tmp_path))]
    assert codes.count("consumer-error") >= 1
    assert "consumer-assigned-again" in codes


def test_unreported_offsets_are_left_to_librdkafka(full: MockKafka, tmp_path: Path) -> None:
    full.fail(OFFSET_FETCH, *[NOT_COORDINATOR] * 2)
    timeouts = AssignmentTimeouts(committed=0.0)
    with AuditedConsumer.of(properties(full), FileSink(tmp_path), timeouts=timeouts) as consumer:
        consumer.subscribe(["t"])
        read(consumer, ALL)
    assert of(Remark, events(tmp_path))[0].code == "consumer-no-offsets"


class BrokenDisk:
    """A sink that refuses some of its lines."""

    def __init__(self, folder: Path, refuse: Callable[[int], bool]) -> None:
        self._inner = FileSink(folder)
        self._refuse = refuse
        self._calls = 0

    def _check(self) -> None:
        self._calls += 1
        if self._refuse(self._calls):
            raise Failed("no space left on device")

    def append(self, writer: str, lines: Sequence[str]) -> None:
        self._check()
        self._inner.append(writer, lines)

    def write_ownership(self, event: Ownership) -> None:
        self._check()
        self._inner.write_ownership(event)

    def close(self, writer: str, events: int, *, clean: bool) -> None:
        self._inner.close(writer, events, clean=clean)


def test_an_audit_that_cannot_write_does_not_stop_the_application_and_says_so(full: MockKafka, tmp_path: Path) -> None:
    sink = BrokenDisk(tmp_path, lambda call: call == 2)
    with AuditedConsumer.of(properties(full), sink, batch_s=0.1) as consumer:
        consumer.subscribe(["t"])
        read(consumer, ALL)
        consumer.commit(asynchronous=False)
    found = events(tmp_path)
    stop = found[-1]
    assert isinstance(stop, Stop)
    assert not stop.clean
    assert "no space left" in stop.reason
    assert {reason.cause for reason in balance(found).reasons} >= {AuditCause.NUMBERS_MISSING, AuditCause.RECORD_INCOMPLETE}, (
        "numbers are missing, and the writer says so"
    )


def test_a_long_wait_is_interrupted_to_write(full: MockKafka, tmp_path: Path) -> None:
    with AuditedConsumer.of(properties(full), FileSink(tmp_path), batch_s=0.1) as consumer:
        consumer.subscribe(["t"])
        read(consumer, ALL)
        assert consumer.poll(0.5) is None
        assert sum(run.count for run in of(DeliveryRun, events(tmp_path))) == ALL
        assert len(of(Heartbeat, events(tmp_path))) >= 3


def test_events_through_a_topic(full: MockKafka, tmp_path: Path) -> None:
    full.topic("audit", 3)
    sink = TopicSink({"bootstrap.servers": full.bootstrap, "log_level": 0}, "audit")
    with AuditedConsumer.of(properties(full), sink) as consumer:
        consumer.subscribe(["t"])
        read(consumer, ALL)
        consumer.commit(asynchronous=False)
    full.fill("audit", {0: 1})
    reading = read_topic({"bootstrap.servers": full.bootstrap, "log_level": 0}, "audit")
    assert len(reading.refused) == 1
    assert "audit-0" in reading.refused[0]
    found = sorted(reading.events, key=lambda event: event.stamp.event_seq)
    assert [event.stamp.event_seq for event in found] == list(range(len(found)))
    assert sum(run.count for run in of(DeliveryRun, found)) == ALL
    acquired, released = of(Ownership, found)
    assert acquired.position < released.position


def test_group_metadata() -> None:
    assert parse_group_metadata(b"CGMDv2:\x05\x00\x00\x00gr\xc3\xbcppe\x00m\x00\x01") == Membership("grüppe", 5)
    assert parse_group_metadata(b"CGMDv2:\xff\xff\xff\xffg\x00\x00\x01") == Membership("g", None)
    for unknown in (None, b"", b"CGMDv9:\x05\x00\x00\x00", b"CGMDv2:\x05"):
        assert parse_group_metadata(unknown) is None


def test_a_further_subscription_is_another_start(full: MockKafka, tmp_path: Path) -> None:
    consumer = AuditedConsumer.of(properties(full), FileSink(tmp_path))
    consumer.subscribe(["other"])
    consumer.subscribe(["other", "t"])
    consumer.close()
    assert [start.topics for start in of(Start, events(tmp_path))] == [("other",), ("other", "t")]


def test_a_member_tells_where_it_begins(full: MockKafka, tmp_path: Path) -> None:
    """By number where the group had committed; a group's very first start is at the reset, whose offset is unknown."""
    for folder in ("first", "second"):
        with AuditedConsumer.of(quick(full), FileSink(tmp_path / folder)) as consumer:
            consumer.subscribe(["t"])
            read(consumer, ALL if folder == "first" else 0)
            deadline = time.monotonic() + 10
            while not consumer.assignment():
                assert time.monotonic() < deadline, "nothing was assigned"
                consumer.poll(0.1)
            if folder == "first":
                consumer.commit(asynchronous=False)
    starts = {}
    for folder in ("first", "second"):
        taken = [change for change in of(Ownership, events(tmp_path / folder)) if change.change is OwnershipChange.ACQUIRED]
        starts[folder] = {offset for change in taken for offset in change.starts}
    assert starts == {"first": {UNKNOWN_OFFSET}, "second": {EACH}}
