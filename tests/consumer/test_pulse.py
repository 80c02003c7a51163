"""Clients that live and are not polled say so; those that are dead, closed or dropped do not."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, Producer

from airflow_provider_kmigrate.applications.audited import AuditedConsumer
from airflow_provider_kmigrate.applications.event_log import FileSink, read_events
from airflow_provider_kmigrate.applications.producer import AuditedProducer
from airflow_provider_kmigrate.core.events.model import DeliveryRun, Event, Heartbeat, Ownership, Stop
from airflow_provider_kmigrate.core.ledger import balance
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Failed
from tests.waiting import wait_until

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
SOON = {"batch_s": 0.02, "beat_s": 0.05}


def events(folder: Path) -> list[Event]:
    return read_events(folder).events


def beats(folder: Path) -> int:
    return sum(isinstance(event, Heartbeat) for event in events(folder))


def pulses() -> int:
    return sum(thread.name == "kmigrate-pulse" for thread in threading.enumerate())


def a_producer(folder: Path, **more: Any) -> AuditedProducer:
    return AuditedProducer(Producer(NOWHERE), FileSink(folder), **{**SOON, **more})


def a_consumer(folder: Path) -> AuditedConsumer:
    """One that is given one record, and is then at work on it."""
    message = SimpleNamespace(
        error=lambda: None, topic=lambda: "t", partition=lambda: 0, offset=lambda: 7, timestamp=lambda: (0, -1)
    )
    face = {"consumer_group_metadata": lambda: None, "subscribe": lambda *_, **__: None, "close": lambda: None}
    mine = AuditedConsumer(cast("Consumer", SimpleNamespace(**face, poll=lambda _: message)), FileSink(folder), **SOON)
    mine.subscribe(["t"])
    mine.poll(0)
    return mine


def test_a_producer_between_two_requests_lives(tmp_path: Path) -> None:
    producer = a_producer(tmp_path)
    begun = producer.log.clock.now_ms()
    wait_until(lambda: beats(tmp_path) >= 2, timeout=10, what="signs of life")
    assert AuditCause.NO_STOP not in {reason.cause for reason in balance(events(tmp_path), alive_since=begun + 1).reasons}
    producer.close()


def test_a_consumer_at_work_on_a_batch_lives_and_what_it_was_given_is_written(tmp_path: Path) -> None:
    consumer = a_consumer(tmp_path)
    wait_until(lambda: beats(tmp_path) >= 1, timeout=10, what="signs of life")
    found = sorted(events(tmp_path), key=lambda event: event.stamp.event_seq)
    kinds = [type(event) for event in found]
    assert kinds.index(DeliveryRun) < kinds.index(Heartbeat)
    consumer.close()


def test_a_client_that_was_polled_recently_writes_no_extra_sign_of_life(tmp_path: Path) -> None:
    producer, other = a_producer(tmp_path / "polled", batch_s=10.0), a_producer(tmp_path / "other")
    wait_until(lambda: beats(tmp_path / "other") >= 4, timeout=10, what="as many chances for the first one")
    assert beats(tmp_path / "polled") == 0
    producer.close()
    other.close()


@pytest.mark.parametrize("make", [a_producer, a_consumer])
def test_nothing_comes_behind_the_last_event(make: Any, tmp_path: Path) -> None:
    clients = [make(tmp_path) for _ in range(8)]
    wait_until(lambda: beats(tmp_path) >= 1, timeout=10, what="signs of life")
    for client in clients:
        client.close()
    wait_until(lambda: pulses() == 0, timeout=10, what="the end of the thread")
    by_writer = {event.stamp.writer: event for event in sorted(events(tmp_path), key=lambda event: event.stamp.event_seq)}
    assert all(isinstance(event, Stop) and event.clean for event in by_writer.values())
    assert not {AuditCause.NUMBERS_MISSING, AuditCause.NO_STOP, AuditCause.RECORD_INCOMPLETE} & {
        reason.cause for reason in balance(events(tmp_path)).reasons
    }


@pytest.mark.slow
def test_a_client_that_the_application_dropped_gives_no_more_signs(tmp_path: Path) -> None:
    producer = a_producer(tmp_path)
    wait_until(lambda: beats(tmp_path) >= 1, timeout=10, what="signs of life")
    del producer
    gc.collect()
    wait_until(lambda: pulses() == 0, timeout=10, what="the end of the thread")
    assert AuditCause.NO_STOP in {reason.cause for reason in balance(events(tmp_path)).reasons}


class Full:
    """A disk that is full after the first line."""

    def __init__(self) -> None:
        self.tried = 0

    def append(self, writer: str, lines: Sequence[str]) -> None:
        self.tried += 1
        if self.tried > 1:
            raise Failed("full")

    def write_ownership(self, event: Ownership) -> None: ...

    def close(self, writer: str, events: int, *, clean: bool) -> None: ...


def test_an_audit_that_cannot_be_written_stops_no_pulse_and_no_application() -> None:
    sink = Full()
    with AuditedProducer(Producer(NOWHERE), sink, **SOON):
        wait_until(lambda: sink.tried > 3, timeout=10, what="signs of life")
    assert sink.tried > 3


def test_a_client_that_must_write_starts_no_pulse(tmp_path: Path) -> None:
    with a_producer(tmp_path, must_write=True):
        assert pulses() == 0


def test_a_forked_child_gives_no_sign_for_its_parent(tmp_path: Path) -> None:
    """The parent is gone at once, as one that was killed is; its child lives on with a copy of the client."""
    alive, end_of_life = os.pipe()  # the child keeps its end open for as long as it lives
    script = f"""
import os, pathlib, sys, time
from confluent_kafka import Producer
from airflow_provider_kmigrate.applications.event_log import FileSink
from airflow_provider_kmigrate.applications.producer import AuditedProducer
producer = AuditedProducer(Producer({NOWHERE!r}), FileSink({str(tmp_path)!r}), batch_s=0.02, beat_s=0.05)
while not any('"heartbeat"' in path.read_text() for path in pathlib.Path({str(tmp_path)!r}).glob("*.jsonl")):
    time.sleep(0.01)
if os.fork() == 0:
    time.sleep(1.0)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, pass_fds=[end_of_life])
    os.close(end_of_life)
    seen = beats(tmp_path)
    assert seen >= 1
    assert os.read(alive, 1) == b"", "the child has ended"
    os.close(alive)
    assert beats(tmp_path) == seen
