"""The load's processes: against librdkafka's own mock brokers, and (marked) against a real cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest
from confluent_kafka import Producer

from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.cluster_state.model import ProcessState
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from tests.kit.load import TopicPlan, create_topics, produce_of
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.kit.stream import Stream
from tests.kit.workload import GroupPlan, Workload, WorkloadPlan
from tests.verdicts import verdict_of
from tests.waiting import wait_until


@pytest.fixture
def mock_brokers() -> Iterator[str]:
    """The addresses of three mock brokers inside this process; topics load-a and load-b have 4 partitions each."""
    home = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 3, "log_level": 0})
    found = home.list_topics(timeout=10.0)
    for topic in ("load-a", "load-b"):
        wait_until(lambda topic=topic: len(home.list_topics(topic, timeout=10.0).topics[topic].partitions) == 4, topic)  # type: ignore[misc]
    yield ",".join(f"{broker.host}:{broker.port}" for broker in found.brokers.values())
    home.flush(0)


def receiver(stream: Stream, errors: IO[bytes] | int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """The first receiver of a stream of which nothing else runs."""
    stream._prepare()
    command = [sys.executable, "-m", stream.module, str(stream.folder), stream.plan.receivers()[0]]
    return subprocess.Popen(command, stderr=errors)


def events_of(stream: Stream, ending: str) -> Path:
    return stream.events / f"{stream.plan.receivers()[0]}.{ending}"


def test_a_client_process_says_where_it_is(mock_brokers: str, tmp_path: Path) -> None:
    load = Workload(tmp_path / "one", {"bootstrap.servers": mock_brokers}, WorkloadPlan(("^load-",), groups=(GroupPlan("g", 1),)))
    log = tmp_path / "log"
    with log.open("wb") as errors:
        process = receiver(load, errors)
    try:
        wait_until(events_of(load, "jsonl").exists, "an event file")
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "in run_client" in log.read_text(), "where its threads are")
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0, "and goes on"
    finally:
        process.kill()


@pytest.mark.slow
def test_a_client_process_ends_cleanly_by_signal_and_when_its_folder_goes(mock_brokers: str, tmp_path: Path) -> None:
    properties, plan = {"bootstrap.servers": mock_brokers}, WorkloadPlan(("^load-",), groups=(GroupPlan("g", 1),))
    one, load = Workload(tmp_path / "one", properties, plan), Workload(tmp_path / "two", properties, plan)
    processes = [receiver(stream) for stream in (one, load)]
    try:
        for stream in (one, load):
            wait_until(lambda stream=stream: events_of(stream, "jsonl").exists(), "an event file")  # type: ignore[misc]
        processes[0].send_signal(signal.SIGTERM)
        assert processes[0].wait(90) == 0  # librdkafka gives a request up after 60 s
        assert json.loads(events_of(one, "done").read_text())["clean"] is True
        load.folder.rename(tmp_path / "gone")
        assert processes[1].wait(90) == 0  # librdkafka gives a request up after 60 s
        assert not load.folder.exists()
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_process_that_cannot_start_says_why(tmp_path: Path) -> None:
    load = Workload(tmp_path, {}, WorkloadPlan(("t",)))
    load._prepare()
    command = [sys.executable, "-m", Workload.module, str(tmp_path), *load.plan.senders()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "bootstrap.servers" in result.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lent(tmp_path_factory.mktemp("workload") / "cluster", Shape(brokers=1, controllers=1, racks=0)) as found:
        yield found


@pytest.fixture
def running(cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workload]:
    """A workload of two groups on topics of its own."""
    name = f"{request.node.name}-"
    properties = {"bootstrap.servers": cluster.bootstrap, "session.timeout.ms": "6000"}
    create_topics(properties, [TopicPlan(f"{name}a", 6), TopicPlan(f"{name}b", 3, config={"retention.ms": "3600000"})])
    groups = (GroupPlan(f"{name}coop", 2), GroupPlan(f"{name}eager", 2, "eager"))
    workload = Workload(tmp_path / "w", properties, WorkloadPlan((f"^{name}",), rate=500, producers=2, groups=groups))
    try:
        workload.start()
        yield workload
    finally:
        workload.stop(drain=0.0)


def member(workload: Workload, prefix: str) -> psutil.Process:
    (pid,) = (process.pid for writer, process in workload.status().items() if writer.startswith(prefix))
    assert pid is not None
    return psutil.Process(pid)


@pytest.mark.cluster
@pytest.mark.slow(seconds=50)
def test_everything_acknowledged_is_delivered_and_new_topics_are_taken_in(cluster: LocalCluster, running: Workload) -> None:
    pattern = running.plan.topics[0][1:]
    progress = running.progress()
    wait_until(lambda: progress.update().acked > 2_000, "2,000 records")
    create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan(f"{pattern}new", 2)])
    new = TopicPartition(f"{pattern}new", 1)
    wait_until(lambda: progress.update().ends.get(new, 0) > 20, "records on the new topic")
    again = Workload.attach(running.folder)
    assert {process.state for process in again.status().values()} == {ProcessState.RUNNING}
    again.stop()
    facts = running.facts()
    assert (verdict_of(facts), facts.reasons) == (AuditOutcome.PASS, ())
    assert set(facts.delivered.values()) == {facts.acked}
    produce = produce_of(running.read_all_events().events)
    assert (produce.exact, produce.records) == (True, facts.acked)
    assert produce.longest_ms == facts.longest_stall_ms
    assert {process.state for process in running.status().values()} == {ProcessState.STOPPED}
    again.stop()


@pytest.mark.cluster
@pytest.mark.slow(seconds=50)
def test_a_killed_consumer_is_never_clean_by_accident(running: Workload) -> None:
    progress = running.progress()
    wait_until(lambda: progress.update().acked > 1_000, "1,000 records")
    member(running, f"{running.plan.groups[0].name}.0").kill()
    acked = progress.update().acked
    wait_until(lambda: progress.update().acked > acked + 5_000, "5,000 records more")
    running.stop()
    facts = running.facts()
    assert verdict_of(facts) is not AuditOutcome.PASS
    assert not facts.complete
    assert AuditCause.NO_STOP in {reason.cause for reason in facts.reasons}
    assert facts.lost.count == 0
    assert facts.unseen.count == 0
    assert facts.commit_gap.count == 0


@pytest.mark.cluster
@pytest.mark.slow(seconds=50)
def test_a_killed_producer_is_incomplete(running: Workload) -> None:
    progress = running.progress()
    wait_until(lambda: progress.update().acked > 1_000, "1,000 records")
    member(running, "producer0").kill()
    running.stop()
    facts = running.facts()
    assert (verdict_of(facts), facts.lost.count) == (AuditOutcome.INCONCLUSIVE, 0)
