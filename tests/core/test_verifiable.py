"""Kafka's own tools as witnesses: lines as the 3.9.2 jars print them."""

from __future__ import annotations

import json
from dataclasses import replace

from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.events.model import (
    Ack,
    Commit,
    DeliveryRun,
    Ownership,
    OwnershipChange,
    Position,
    Remark,
    SendFailure,
    Start,
    Stop,
)
from airflow_provider_kmigrate.core.ledger import balance
from tests.kit.verifiable import UNKNOWN, UNREADABLE, consumer_events, producer_events
from tests.verdicts import verdict_of

PRODUCER = """\
[2027-02-20 10:00:00,000] WARN some log line (org.apache.kafka.clients.NetworkClient)
{"timestamp":1795241479000,"name":"startup_complete"}
{"timestamp":1795241479346,"name":"producer_send_success","key":"21","value":"357","offset":4320,"topic":"st","partition":0}
{"timestamp":1795241479350,"name":"producer_send_success","key":null,"value":"7.358","offset":12,"topic":"st","partition":1}
{"timestamp":1795241479351,"name":"producer_send_error","topic":"st","key":null,"value":"359","message":"Expiring 1 record","exception":"class org.apache.kafka.common.errors.TimeoutException"}
{"timestamp":1795241480000,"name":"shutdown_complete"}
{"timestamp":1795241480001,"name":"tool_data","sent":3,"acked":2,"target_throughput":120,"avg_throughput":119.9}
""".splitlines()
CONSUMER = """\
{"timestamp":1795241479000,"name":"startup_complete"}
{"timestamp":1795241479100,"name":"partitions_revoked","partitions":[]}
{"timestamp":1795241479200,"name":"partitions_assigned","partitions":[{"topic":"st","partition":0},{"topic":"st","partition":1}]}
{"timestamp":1795241479299,"name":"record_data","key":null,"value":"1","topic":"st","partition":0,"offset":0}
{"timestamp":1795241479300,"name":"records_consumed","count":8,"partitions":[{"topic":"st","partition":0,"count":5,"minOffset":0,"maxOffset":4},{"topic":"st","partition":1,"count":3,"minOffset":10,"maxOffset":12}]}
{"timestamp":1795241479310,"name":"offsets_committed","offsets":[{"topic":"st","partition":0,"offset":5}],"success":true}
{"timestamp":1795241479400,"name":"records_consumed","count":2,"partitions":[{"topic":"st","partition":0,"count":2,"minOffset":5,"maxOffset":7}]}
{"timestamp":1795241479410,"name":"offsets_committed","offsets":[],"success":false,"error":"rebalance"}
{"timestamp":1795241479500,"name":"partitions_revoked","partitions":[{"topic":"st","partition":0},{"topic":"st","partition":1}]}
{"timestamp":1795241479600,"name":"shutdown_complete"}
""".splitlines()


def test_producer_lines() -> None:
    start, one, two, failed, stop = producer_events(PRODUCER, "vp1")
    assert isinstance(start, Start)
    assert isinstance(one, Ack)
    assert (one.topic, one.partition, one.first, one.last, one.seq_first, one.t_sent_ms, one.t_acked_ms) == (
        "st",
        0,
        4320,
        4320,
        357,
        None,
        1795241479346,
    )
    assert isinstance(two, Ack)
    assert (two.seq_first, two.seq_last) == (358, 358)
    assert isinstance(failed, SendFailure)
    assert (failed.seq_first, failed.t_failed_ms) == (359, 1795241479351)
    assert isinstance(stop, Stop)
    assert stop.clean
    assert [event.stamp.event_seq for event in (start, one, two, failed, stop)] == [0, 1, 2, 3, 4]


def test_a_producer_line_that_got_lost_shows_in_the_totals() -> None:
    stop = list(producer_events([line for line in PRODUCER if '"offset":12' not in line], "vp1"))[-1]
    assert isinstance(stop, Stop)
    assert not stop.clean


def test_a_killed_producer_has_no_stop() -> None:
    assert not any(isinstance(event, Stop) for event in producer_events(PRODUCER[:-2], "vp1"))


def test_consumer_lines() -> None:
    events = list(consumer_events(CONSUMER, "vc1", "vg", ["st"]))
    start = events[0]
    assert isinstance(start, Start)
    assert (start.group, start.topics) == ("vg", ("st",))
    assert [(event.change, len(event.partitions)) for event in events if isinstance(event, Ownership)] == [
        (OwnershipChange.RELEASED, 0),
        (OwnershipChange.ACQUIRED, 2),
        (OwnershipChange.RELEASED, 2),
    ]
    runs = [event for event in events if isinstance(event, DeliveryRun)]
    assert [(run.partition, run.first, run.last, run.count, run.seq, run.is_exact) for run in runs] == [
        (0, 0, 4, 5, 0, True),
        (1, 10, 12, 3, 0, True),
        (0, 5, 7, 2, 5, False),
    ]
    commits = [event for event in events if isinstance(event, Commit)]
    assert [(commit.offsets, commit.ok, commit.error) for commit in commits] == [
        ((Position("st", 0, 5),), True, None),
        ((), False, "rebalance"),
    ]
    assert isinstance(events[-1], Stop)
    assert [event.stamp.event_seq for event in events] == list(range(len(events)))


def verbose(*offsets: int, count: int | None = None) -> list[str]:
    reported = [
        {"timestamp": 1, "name": "record_data", "key": None, "value": "1", "topic": "st", "partition": 0, "offset": at}
        for at in offsets
    ]
    part = {"topic": "st", "partition": 0, "count": count or len(offsets), "minOffset": min(offsets), "maxOffset": max(offsets)}
    return [
        json.dumps(line) for line in (*reported, {"timestamp": 2, "name": "records_consumed", "count": 1, "partitions": [part]})
    ]


def test_verbose_output_tells_which_records_a_poll_over_gaps_held() -> None:
    events = list(consumer_events([*verbose(3, 4, 6, 9), *verbose(11, 12)], "vc1", "vg", ["st"]))
    assert [(run.first, run.last, run.count, run.seq) for run in events if isinstance(run, DeliveryRun)] == [
        (3, 4, 2, 0),
        (6, 6, 1, 2),
        (9, 9, 1, 3),
        (11, 12, 2, 4),
    ]
    assert [event.stamp.event_seq for event in events] == list(range(4))


def test_records_that_are_not_all_reported_leave_the_sum() -> None:
    (run,) = consumer_events(verbose(3, 9, count=5), "vc1", "vg", ["st"])
    assert isinstance(run, DeliveryRun)
    assert (run.first, run.last, run.count) == (3, 9, 5)


def test_an_unreadable_line_leaves_a_hole() -> None:
    broken = [line[:60] if "minOffset" in line else line for line in CONSUMER]
    events = list(consumer_events(broken, "vc1", "vg", ["st"]))
    assert [event.code for event in events if isinstance(event, Remark)] == [UNREADABLE, UNREADABLE]
    assert set(range(len(events) + 2)) - {event.stamp.event_seq for event in events} == {3, 6}


def test_a_contradiction_leaves_a_hole_too() -> None:
    backwards = CONSUMER[4].replace('"minOffset":0', '"minOffset":9')
    (remark,) = consumer_events([backwards], "vc1", "vg", ["st"])
    assert isinstance(remark, Remark)
    assert remark.stamp.event_seq > 0


def test_both_tools_together_make_a_whole_ledger() -> None:
    sent = ['{"timestamp":1000,"name":"startup_complete"}']
    for i in range(8):
        line = {"timestamp": 1001 + i, "name": "producer_send_success", "key": None, "value": str(i), "topic": "st"}
        sent.append(json.dumps(line | {"offset": i if i < 5 else i + 5, "partition": 0 if i < 5 else 1}))
    sent.append('{"timestamp":2000,"name":"tool_data","sent":8,"acked":8}')
    read = [line for line in CONSUMER if '"minOffset":5' not in line]
    events = [*producer_events(sent, "vp1"), *consumer_events(read, "vc1", "vg", ["st"])]
    facts = balance(events)
    assert (verdict_of(facts), facts.reasons, facts.acked, facts.delivered) == (AuditOutcome.PASS, (), 8, {"vg": 8})
    shorter = [
        replace(event, last=event.last - 1, count=event.count - 1) if isinstance(event, DeliveryRun) else event
        for event in events
    ]
    assert balance(shorter).lost.count == 1  # committed behind it; of the last one nothing says that it was passed


def test_a_new_kind_of_line_is_kept_in_sight() -> None:
    (remark,) = consumer_events(['{"timestamp":1,"name":"telepathy"}'], "vc1", "vg", ["st"])
    assert isinstance(remark, Remark)
    assert remark.code == UNKNOWN
