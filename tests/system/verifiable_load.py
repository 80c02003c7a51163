"""Kafka's own VerifiableProducer and VerifiableConsumers as the load: JVM clients, judged by the same ledger as ours."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from airflow_provider_kmigrate.clients.processes import Launch, NodeProcess
from airflow_provider_kmigrate.core.events import Event
from airflow_provider_kmigrate.core.ledger import Facts, balance
from tests.kit.localcluster import config, runtime
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.verifiable import consumer_events, producer_events

# The tool sets retries=0 where the file does not: a producer that loses records on the first move of a leader.
_PRODUCER = {"enable.idempotence": "true", "retries": "2147483647", "delivery.timeout.ms": "300000"}
_LOGGING = "log4j.rootLogger=ERROR, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
_GROUP = "verifiable"


class VerifiableLoad:
    """One producer and two members of a group on `topic`; their folders lie in the cluster's, so `down` and `clean` end them.

    `folder`: they lie there instead, and `stop` alone ends them. `keys`: how many different ones the records have in turn, so that all
    partitions get some all the time; 0: none, and a partition gets as many as a batch holds before the next one does.
    """

    def __init__(self, cluster: LocalCluster, topic: str, rate: int, *, keys: int = 0, folder: Path | None = None) -> None:
        self._cluster, self._topic, self._rate, self._keys = cluster, topic, rate, keys
        folder = folder or cluster.folder
        self._producer = NodeProcess(folder / "client-producer")
        self._consumers = [NodeProcess(folder / f"client-consumer{member}") for member in range(2)]

    def start(self, timeout: float = 60.0) -> None:
        where = ["--bootstrap-server", self._cluster.bootstrap, "--topic", self._topic]
        for consumer in self._consumers:
            group = ["--group-id", _GROUP, "--reset-policy", "earliest", "--session-timeout", "30000"]
            self._spawn(consumer, "VerifiableConsumer", [*where, *group])
        rate = ["--throughput", str(self._rate), "--acks", "-1", "--producer.config", f"{self._producer.folder}/p.properties"]
        keys = ["--repeating-keys", str(self._keys)] if self._keys else []
        self._spawn(self._producer, "VerifiableProducer", [*where, *rate, *keys])
        self._wait(lambda: self.facts().acked > 0 and self._delivered() > 0, "the first delivery", timeout)

    def _spawn(self, process: NodeProcess, tool: str, arguments: list[str]) -> None:
        found = runtime.find()
        process.folder.mkdir(parents=True)
        (process.folder / "log4j.properties").write_text(_LOGGING)
        (process.folder / "p.properties").write_text(config.render(_PRODUCER))
        main = f"org.apache.kafka.tools.{tool}"
        process.define(Launch(found.command(main, arguments, kind="tool", heap="96m", folder=process.folder), env=found.env))
        process.start()

    def stop(self) -> Facts:
        """Producer first, then the consumers once they have read everything, or did not in a minute."""
        _end(self._producer)
        with contextlib.suppress(AssertionError):
            self._wait(lambda: self._delivered() >= self.facts().acked, "everything to be read", 60.0)
        for consumer in self._consumers:
            _end(consumer)
        return self.facts()

    def kill(self) -> None:
        """End whatever runs of it at once."""
        for process in (self._producer, *self._consumers):
            if process.folder.exists():
                process.signal(signal.SIGKILL)

    def facts(self) -> Facts:
        return balance(list(self.events()))

    def events(self) -> Iterator[Event]:
        """Of all three, so far."""
        yield from producer_events(_lines(self._producer), "producer")
        for consumer in self._consumers:
            yield from consumer_events(_lines(consumer), consumer.folder.name, _GROUP, [self._topic])

    def _delivered(self) -> int:
        return self.facts().delivered.get(_GROUP, 0)

    def _wait(self, holds: Callable[[], bool], what: str, timeout: float) -> None:
        deadline, consumer = time.monotonic() + timeout, self._consumers[0]
        while not holds():
            ended = consumer.wait_gone(consumer.find().pid, 0.3)
            assert not ended, f"{consumer.folder.name} ended: {consumer.log_tail(20)}"
            assert time.monotonic() < deadline, f"in vain: {what}; {self._producer.log_tail(5)}"


def _lines(process: NodeProcess) -> list[str]:
    """Whole lines only: the last one may be half written."""
    return [line for line in Path(process.log).read_text(errors="replace").splitlines(keepends=True) if line.endswith("\n")]


def _end(process: NodeProcess) -> None:
    assert process.wait_gone(process.signal(signal.SIGTERM), 60.0), f"{process.folder.name} does not end"
