"""The probe and the load without a cluster: runs from records, event files, plans, progress."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.applications.event_log import EventLog, EventReader, FileSink, read_events
from airflow_provider_kmigrate.applications.runs import AckRuns, Content, DeliveryRuns, pack_content, unpack_content
from airflow_provider_kmigrate.core.events.model import (
    UNKNOWN_OFFSET,
    Ack,
    Commit,
    DeliveryRun,
    Latencies,
    Ownership,
    OwnershipChange,
    Position,
    Remark,
    SendFailure,
    Slow,
    Stamp,
    Start,
    TopicPartition,
    WriterRole,
)
from airflow_provider_kmigrate.exceptions import Failed, Refused
from airflow_provider_kmigrate.probe.clients import Lifetime, Setup
from airflow_provider_kmigrate.probe.kafka_calls import matches_any
from airflow_provider_kmigrate.probe.stream import StreamProgress
from tests.kit.stream import Stream, read_plan
from tests.kit.workload import GroupPlan, SharingSender, Workload, WorkloadPlan, plan_of

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Numbering:
    """Stamps as an event log gives them, on a clock that is set by hand."""

    def __init__(self) -> None:
        self.number = -1
        self.now_ms = 1_000

    def __call__(self) -> Stamp:
        self.number += 1
        return Stamp("w", self.number, self.now_ms)


@given(st.text(max_size=40), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 200))
def test_a_record_says_whose_it_is(producer: str, seq: int, sent: int, size: int) -> None:
    value = pack_content(producer.encode(), seq, sent, size)
    assert unpack_content(value) == Content(producer, seq, sent)
    assert len(value) >= size


@pytest.mark.parametrize("value", [None, b"", b"short", b"somebody else's record, long enough"])
def test_a_foreign_record_says_nothing(value: bytes | None) -> None:
    assert unpack_content(value) is None


def test_acks_become_runs_and_every_latency_is_kept() -> None:
    runs, stamp = AckRuns("p"), Numbering()
    for seq, offset, latency in (
        (0, 10, 500),
        (1, 11, 150_000),
        (2, 13, 700),
        (3, UNKNOWN_OFFSET, 100),
        (4, UNKNOWN_OFFSET, 100),
    ):
        runs.add_ack(A, offset, Content("p", seq, 1_000 + seq), latency)
    runs.add_ack(B, 5, Content("p", 0, 1_000), 900)
    runs.add_failure(B, Content("p", 1, 1_001), "_MSG_TIMED_OUT", 120_000_000)
    events = runs.drain(stamp)
    acks = [event for event in events if isinstance(event, Ack)]
    assert [(ack.partition, ack.first, ack.last, ack.seq_first, ack.seq_last, ack.count) for ack in acks] == [
        (0, 10, 11, 0, 1, 2),
        (0, 13, 13, 2, 2, 1),
        (0, -1, -1, 3, 4, 2),
        (1, 5, 5, 0, 0, 1),
    ]
    assert all(ack.flaw() is None for ack in acks)
    assert acks[0].t_acked_ms == 1_001 + 150
    (latencies,) = (event for event in events if isinstance(event, Latencies))
    assert sorted(latencies.values_us) == [100, 100, 500, 700, 900, 150_000, 120_000_000]
    (slow,) = (event for event in events if isinstance(event, Slow))
    assert [(record.seq, record.latency_us) for record in slow.records] == [(1, 150_000), (1, 120_000_000)]
    (failure,) = (event for event in events if isinstance(event, SendFailure))
    assert (failure.seq_first, failure.error, failure.t_failed_ms) == (1, "_MSG_TIMED_OUT", 121_001)
    assert [event.stamp.event_seq for event in events] == list(range(len(events)))


def test_a_drained_producer_starts_again() -> None:
    runs, stamp = AckRuns("p"), Numbering()
    runs.add_ack(A, 0, Content("p", 0, 1_000), 500)
    runs.drain(stamp)
    stamp.now_ms = 2_000
    runs.add_ack(A, 1, Content("p", 1, 1_001), 500)
    ack, latencies = runs.drain(stamp)
    assert isinstance(ack, Ack)
    assert isinstance(latencies, Latencies)
    assert (ack.first, ack.count, latencies.t_from_ms, latencies.values_us) == (1, 1, 1_000, (500,))


def test_a_delivery_run_notes_its_longest_wait() -> None:
    runs = DeliveryRuns("g", "m")
    for offset, sent, now in ((0, 1_000, 1_010), (1, 1_020, 1_030), (2, 5_000, 5_040), (3, 5_001, 6_000)):
        runs.add_delivery(A, offset, now, sent, Content("p", offset, sent))
    (run,) = runs.drain(Numbering(), 7)
    assert (run.t_sent_ms, run.t_first_ms, run.t_last_ms, run.gap_ms, run.generation) == (1_000, 1_010, 6_000, 960, 7)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([A, B]), st.integers(0, 9), st.sampled_from("pq"), st.integers(0, 9), st.booleans()),
        max_size=40,
    )
)
def test_runs_hold_exactly_what_was_delivered(rows: list[tuple[TopicPartition, int, str, int, bool]]) -> None:
    """Whatever comes in whatever order, and wherever it is cut into events."""
    runs, stamp, found = DeliveryRuns("g", "m"), Numbering(), list[DeliveryRun]()
    for where, offset, producer, seq, cut in rows:
        runs.add_delivery(where, offset, 1_000, 0, Content(producer, seq, 0))
        if cut:
            found += runs.drain(stamp, 1)
    found += runs.drain(stamp, 1)
    for where in (A, B):
        mine = sorted((run for run in found if run.partition == where.partition), key=lambda run: run.seq)
        reported = [(run.first + i, run.producer, (run.producer_seq or 0) + i) for run in mine for i in range(run.count)]
        assert reported == [row[1:4] for row in rows if row[0] == where]
        assert [run.seq for run in mine] == [sum(run.count for run in mine[:i]) for i in range(len(mine))]
        assert all(run.flaw() is None for run in mine)


def begun(folder: Path, writer: str) -> EventLog:
    log = EventLog(FileSink(folder), writer)
    log.write(Start(log.stamp(), WriterRole.CONSUMER, group="g"))
    log.flush()
    return log


def test_a_closed_log_is_whole_and_marked(tmp_path: Path) -> None:
    log = begun(tmp_path, "m")
    assert not (tmp_path / "m.done").exists()
    log.close(clean=True)
    reading = read_events(tmp_path)
    assert [event.stamp[:2] for event in reading.events] == [("m", 0), ("m", 1)]
    assert json.loads((tmp_path / "m.done").read_text()) == {"events": 2, "clean": True}


def test_a_writers_name_is_used_once(tmp_path: Path) -> None:
    begun(tmp_path, "m")
    with pytest.raises(Failed):
        begun(tmp_path, "m")


def test_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    log = begun(tmp_path, "m")
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write('{"v":2,"kind"')
    reader = EventReader(tmp_path)
    first = reader.read()
    assert (len(first.events), first.refused) == (1, [])
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write(":}\n")
    log.write(Remark(log.stamp(), "c", "text"))
    log.flush()
    second = reader.read()
    assert (len(second.events), len(second.refused)) == (1, 1)
    assert not reader.read().events


def test_ownership_has_one_order_and_survives_a_torn_line(tmp_path: Path) -> None:
    one, two = begun(tmp_path, "m"), begun(tmp_path, "n")
    one.write_ownership("g", 1, OwnershipChange.ACQUIRED, [A])
    with (tmp_path / "ownership.jsonl").open("a") as file:
        file.write('{"v":2,"kind":"owner')  # a member was killed here
    two.write_ownership("g", 2, OwnershipChange.ACQUIRED, [A])
    one.write_ownership("g", 1, OwnershipChange.LOST, [A])
    reading = read_events(tmp_path)
    changes = [event for event in reading.events if isinstance(event, Ownership)]
    assert [(change.member, change.change) for change in changes] == [("m", "acquired"), ("n", "acquired"), ("m", "lost")]
    positions = [change.position or 0 for change in changes]
    assert positions == sorted(set(positions))
    assert len(reading.refused) == 1


def test_a_disk_that_takes_a_line_in_parts_has_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:7]))
    begun(tmp_path, "m").write_ownership("g", 1, OwnershipChange.ACQUIRED, [A])
    reading = read_events(tmp_path)
    assert (len(reading.events), reading.refused) == (2, [])


def test_a_folder_that_was_removed_stays_removed(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    log = begun(folder, "m")
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    log.write_ownership("g", 1, OwnershipChange.RELEASED, [A])
    assert not folder.exists()


PLAN = WorkloadPlan(("^load-", "x"), 300.0, 2, (GroupPlan("g", 2, "eager"), GroupPlan("h", 1, topics=("x",))), run="r")


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    Stream(tmp_path, {}, PLAN)._prepare()
    assert read_plan(tmp_path, plan_of) == PLAN


def test_a_plan_has_one_process_a_producer_and_member() -> None:
    assert set(PLAN.senders()) == {"producer0-r", "producer1-r"}
    assert {writer: group.name for writer, group in PLAN.group_of().items()} == {"g.0-r": "g", "g.1-r": "g", "h.0-r": "h"}
    assert [PLAN.topics_of(group) for group in PLAN.groups] == [("^load-", "x"), ("x",)]


def test_each_partition_belongs_to_one_of_the_senders(tmp_path: Path) -> None:
    setup = Setup(tmp_path, "w", {"bootstrap.servers": "127.0.0.1:1"}, ("t",), Lifetime(tmp_path))
    partitions = tuple(TopicPartition(topic, index) for topic in ("load-a", "x") for index in range(6))
    senders = [SharingSender(setup._replace(writer=f"w{i}"), (i, 3), rate=1.0, record_bytes=50) for i in range(3)]
    assert sorted(where for sender in senders for where in sender.select_partitions(partitions)) == sorted(partitions)


def test_a_folder_without_a_workload_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        Workload.attach(tmp_path)
    assert [reason.code for reason in caught.value.reasons] == ["Y01"]


def test_a_used_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(Refused):
        Workload(tmp_path, {}, PLAN).start()


def test_progress_follows_what_is_written(tmp_path: Path) -> None:
    log, progress, group = begun(tmp_path, "m"), StreamProgress(tmp_path), GroupPlan("g", 2)
    assert progress.update().started == {"m"}
    assert group.unsettled(progress, [A, B]).startswith("group g: 2 of 2 partitions without an owner (")
    log.write_ownership("g", 1, OwnershipChange.ACQUIRED, [A, B])
    assert group.unsettled(progress.update(), [A, B]) == "1 of 2 members of group g own partitions"
    assert not GroupPlan("g", 1).unsettled(progress, [A, B])
    plan = WorkloadPlan(("t", "^b"), groups=(GroupPlan("g", 1, topics=("t",)), GroupPlan("g", 1)))
    other = TopicPartition("b1", 0)
    assert plan.describe_unowned(progress, []) == "no broker shows topic t of group g"
    assert plan.describe_unowned(progress, [A, B]) == "no broker shows topic ^b of group g"
    assert plan.describe_unowned(progress, [A, B, other]) == "group g: 1 of 3 partitions without an owner (b1-0)"
    log.write_ownership("g", 2, OwnershipChange.RELEASED, [B])
    begun(tmp_path, "n").write_ownership("g", 2, OwnershipChange.ACQUIRED, [B])
    assert not group.unsettled(progress.update(), [A, B])


def test_the_last_commit_of_an_earlier_attempt_takes_nothing_back(tmp_path: Path) -> None:
    """Files are read by their names, which begin with no time: the end of a probe waited a minute for what was committed already."""
    for writer, offset in (("probe.0-aaaaaa", 10), ("probe.0-ffffff", 4)):  # the second one is the earlier attempt's
        log = begun(tmp_path, writer)
        log.write(Ack(log.stamp(), writer, A.topic, A.partition, 0, offset - 1, offset, 0, offset - 1, None, 0))
        log.write(Commit(log.stamp(), "g", writer, None, (Position(A.topic, A.partition, offset),), ok=True))
        log.flush()
    progress = StreamProgress(tmp_path).update()
    assert (progress.committed["g"], progress.count_uncommitted("g", (A.topic,))) == ({A: 10}, 0)


@pytest.mark.parametrize(
    ("patterns", "topic", "found"), [(("a",), "ab", False), (("^a",), "ab", True), (("^b", "ab"), "ab", True)]
)
def test_topics_are_matched_as_librdkafka_subscribes(patterns: tuple[str, ...], topic: str, found: bool) -> None:
    assert matches_any(patterns, topic) is found
