"""Migrating members in threads or processes of their own, a load, and what both wrote down."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaException, Message, Producer

from airflow_provider_kmigrate.applications.audited import AuditedConsumer
from airflow_provider_kmigrate.applications.event_log import FileSink, read_events
from airflow_provider_kmigrate.applications.migrating import MigratingConsumer, audited_of
from airflow_provider_kmigrate.applications.migrating.runner import Connect
from airflow_provider_kmigrate.applications.migrating.zookeeper import GroupSession
from airflow_provider_kmigrate.applications.producer import AuditedProducer
from airflow_provider_kmigrate.core.events.model import Commit, DeliveryRun, Event, Ownership, TopicPartition
from airflow_provider_kmigrate.core.ledger import Facts, balance
from airflow_provider_kmigrate.core.ledger.facts import Case


class Beside(threading.Thread, ABC):
    """A thread that ends with its block, and with it what went wrong in it comes out."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ending = threading.Event()
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self.ending.set()
        self.join(60.0)
        assert not self.is_alive(), "it does not end"
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001  # for the test's own thread
            self.error = error

    @abstractmethod
    def work(self) -> None:
        """What it does until `ending` is set."""


class Load(Beside):
    """Some hundred records a second into every partition of a topic in turn."""

    def __init__(self, bootstrap: str, folder: Path, topic: str, partitions: int) -> None:
        super().__init__()
        self.producer = AuditedProducer(Producer({"bootstrap.servers": bootstrap, "linger.ms": 5}), FileSink(folder))
        self.topic, self.partitions, self.sent = topic, partitions, 0

    def work(self) -> None:
        while not self.ending.wait(0.01):
            for partition in range(self.partitions):
                self.producer.produce(self.topic, f"{self.sent}".encode(), partition=partition)
                self.sent += 1
            self.producer.poll(0)
        self.producer.close(60.0)


class Member(Beside):
    """A migrating member that polls in a thread of its own and keeps what it saw."""

    def __init__(self, properties: Mapping[str, Any], folder: Path, topics: list[str], connect: Connect = GroupSession) -> None:
        super().__init__()
        made = partial(MigratingConsumer, connect=connect)
        self.consumer = AuditedConsumer.of(properties, FileSink(folder), connect=made, incremental=True)  # type: ignore[arg-type]
        self.topics = topics
        self.owned: set[TopicPartition] = set()
        self.late: list[TopicPartition] = []  # records that came of what was not owned
        self.answered_at: list[int] = []  # errors, by their codes

    def work(self) -> None:
        self.consumer.subscribe(self.topics, on_assign=self.gain, on_revoke=self.lose, on_lost=self.lose)
        while not self.ending.is_set():
            message = self.consumer.poll(0.2)
            if message is not None:
                self.see(message)
        self.consumer.close()

    def see(self, message: Message) -> None:
        where = TopicPartition(message.topic() or "", message.partition() or 0)
        error = message.error()
        if error is not None:
            self.answered_at.append(error.code())
        elif where not in self.owned:
            self.late.append(where)

    @property
    def foreign(self) -> frozenset[TopicPartition]:
        """What it knows others to hold in Kafka."""
        view = self.consumer._runner.member.view
        return view.foreign if view else frozenset()

    def gain(self, _: Any, partitions: list[Any]) -> None:
        self.owned |= {TopicPartition(one.topic, one.partition) for one in partitions}

    def lose(self, _: Any, partitions: list[Any]) -> None:
        self.owned -= {TopicPartition(one.topic, one.partition) for one in partitions}


class Plain(Member):
    """A plain consumer of confluent-kafka, with the one assignor that is asked of those that follow migrating members."""

    def __init__(self, properties: Mapping[str, Any], folder: Path, topics: list[str]) -> None:
        Beside.__init__(self)
        given = {name: value for name, value in properties.items() if not name.startswith(("zookeeper.", "coordination."))}
        self.consumer = AuditedConsumer.of({**given, "partition.assignment.strategy": "range"}, FileSink(folder))
        self.topics, self.owned, self.late, self.answered_at = topics, set(), [], []
        self.refused: set[int] = set()

    def see(self, message: Message) -> None:
        error = message.error()
        if error is None:
            super().see(message)
        else:
            self.refused.add(error.code())


def process(properties: Mapping[str, Any], folder: Path, topics: list[str]) -> subprocess.Popen[bytes]:
    """A migrating member as a process, to be killed; it commits explicitly, once what it was delivered is written down."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.consumer.migrating_group", json.dumps(properties), str(folder), *topics]
    )


def main(properties: str, folder: str, *topics: str) -> None:
    consumer = audited_of(json.loads(properties), folder)
    consumer.subscribe(list(topics))
    while True:
        if consumer.poll(0.2) is not None:
            with suppress(KafkaException):  # it woke up, and the partition is not its own any more
                consumer.commit(asynchronous=False)


def places(folder: Path) -> set[tuple[str, int, int]]:
    """Topic, partition and offset of every record of which is written that it was delivered."""
    runs = [event for event in read_events(folder).events if isinstance(event, DeliveryRun)]
    return {(run.topic, run.partition, offset) for run in runs for offset in range(run.first, run.last + 1)}


def delivered(folder: Path) -> int:
    """How many different ones they are."""
    return len(places(folder))


def at_once(folder: Path) -> list[tuple[DeliveryRun, DeliveryRun]]:
    """Deliveries of one partition by two members at overlapping times; their clocks are one machine's."""
    runs = sorted(
        (event for event in read_events(folder).events if isinstance(event, DeliveryRun)),
        key=lambda run: (run.topic, run.partition, run.t_first_ms, run.t_last_ms),
    )
    return [
        (one, other)
        for one, other in pairwise(runs)
        if (one.topic, one.partition) == (other.topic, other.partition)
        and one.member != other.member
        and one.t_last_ms > other.t_first_ms
    ]


def deliverers(folder: Path) -> set[str]:
    """The members that were delivered anything, as far as it is written."""
    return {event.member for event in read_events(folder).events if isinstance(event, DeliveryRun)}


def losses(folder: Path) -> list[Ownership]:
    """What members lost, and found out later."""
    events = read_events(folder).events
    return [event for event in events if isinstance(event, Ownership) and event.until_ms is not None]


def again_after_commit(events: Iterable[Event]) -> list[Case]:
    """Records that came again although the member that had been delivered them first had said that they were committed: beyond what a
    loss may cost. Their clocks are one machine's.
    """
    events = list(events)
    committed: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for event in events:
        for one in event.offsets if isinstance(event, Commit) and event.ok else ():
            committed.setdefault((event.member, one.topic, one.partition), []).append((event.stamp.t_ms, one.offset))

    def commit(case: Case) -> int:
        commits = committed.get((case.members[0], case.topic, case.partition), [])
        return max((offset for t_ms, offset in commits if t_ms < (case.from_ms or 0)), default=0)

    return [case for case in balance(events, max_cases=1_000_000).redelivered.cases if case.first < commit(case)]


def facts(folder: Path) -> Facts:
    reading = read_events(folder)
    return balance(reading.events, refused=reading.refused)


if __name__ == "__main__":
    main(*sys.argv[1:])
