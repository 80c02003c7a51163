"""The audit of a real run: its verdict, its levels, its report; and what faults planted in the run's own files make of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("py4j", reason="only Spark's own environment has it")

from airflow_provider_kmigrate.audit import connector, fingerprint, job, request
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import AuditPolicy
from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, AuditVerdict, Level
from airflow_provider_kmigrate.core.events.lines import decode, encode
from airflow_provider_kmigrate.core.events.model import DeliveryRun, Event, Ownership, OwnershipChange, Stop
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from tests.kit import spark_job
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.agents import agent_of
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Shape
from tests.kit.workload import GroupPlan, Workload, WorkloadPlan
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=60)]
GROUP = "billing"
OWNERSHIP = "ownership.jsonl"


class Run:
    """One real run: the logs are observed, then the broker is restarted; a user's streaming job reads all the time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = LocalCluster(folder / "cluster")
        self.events = folder / "load" / "events"
        self.request = folder / "request.json"
        self.stream: subprocess.Popen[bytes] | None = None

    def play(self, spark: Any) -> None:
        self.cluster.up(Shape(name="run", brokers=1, controllers=1, racks=0))
        properties = {"bootstrap.servers": self.cluster.bootstrap}
        create_topics(properties, [TopicPlan("orders", 4, replication=1)])
        plan = WorkloadPlan(("orders",), 200.0, 1, (GroupPlan(GROUP, 2),), batch_s=0.2)
        workload = Workload(self.folder / "load", properties, plan)
        workload.start()
        self.stream = self.start_stream()
        (self.folder / "kafka.json").write_text(json.dumps(properties))
        logs = {"properties": str(self.folder / "kafka.json"), "topics": ["orders"], "before": str(self.folder / "before.json")}
        source = {"level": "L3", "lines": [str(self.events)]}
        self.request.write_text(json.dumps({"sources": [source], "logs": logs, "report": {"cluster": "run"}}))
        wanted = request.load(self.request)
        assert wanted.logs is not None
        assert fingerprint.observe_before(spark.session, wanted.logs).logs.records > 0
        self.wait_first_batch()
        node = self.cluster.plan.brokers[0]
        with agent_of(node, self.cluster.plan.cluster_id) as host:
            host.stop(node, 1)
        self.cluster.up()
        workload.stop()
        self.stream.terminate()
        assert self.stream.wait(90) == 0, (self.folder / "stream.log").read_text()[-2000:]

    def start_stream(self) -> subprocess.Popen[bytes]:
        where = ["--bootstrap", self.cluster.bootstrap, "--topic=orders", "--folder", str(self.folder / "stream")]
        words = [sys.executable, "-m", spark_job.__name__, *where, "--jars", ",".join(connector.resolve_kafka_jars())]
        with (self.folder / "stream.log").open("wb") as log:
            return subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)

    def wait_first_batch(self) -> None:
        first = self.folder / "stream" / "checkpoint" / "commits" / "0"
        wait_until(first.exists, f"the first batch; see {self.folder / 'stream.log'}", timeout=90)

    def close(self) -> None:
        if self.stream is not None and self.stream.poll() is None:
            os.killpg(self.stream.pid, signal.SIGKILL)
            self.stream.wait(10)
        self.cluster.clean()

    def audited(self, spark: Any) -> job.Result:
        wanted = request.load(self.request)
        assert wanted.logs is not None
        found = fingerprint.compare_since(spark.session, wanted.logs)
        also = [(found.findings, found.health)]
        return job.audit_sources(wanted.sources, wanted.policy, spark, also=also)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Iterator[Run]:
    run = Run(tmp_path_factory.mktemp("run"))
    try:
        run.play(spark)
        yield run
    finally:
        run.close()


def test_a_real_run_passes_and_names_its_levels(real: Run, spark: Any, tmp_path: Path) -> None:
    result = real.audited(spark)
    assert result.verdict.outcome is AuditOutcome.PASS, result.verdict.headline
    assert result.verdict.proven == (Level.LOG, Level.CONSUMER, Level.PRODUCER)
    facts = result.sources[0].facts
    assert facts.acked == facts.delivered[GROUP] > 500
    wanted = request.load(real.request).report
    assert wanted is not None
    job.write_report(
        wanted,
        result,
        spark,
        lambda: job.measure_audit(spark, lambda: job.list_audited(result, spark), wanted.journals),
        tmp_path,
    )
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["verdict"]["outcome"] == "PASS"
    assert len(document["owners"]) == 4
    assert all(f">{label}" in (tmp_path / "report.html").read_text() for label in ("L0", "L2", "L3"))


def test_a_streaming_job_has_every_record_of_it_once(real: Run, duck: Engine) -> None:
    acked = job.audit_sources([Source(Level.PRODUCER, lines=(str(real.events),))], AuditPolicy(), duck).sources[0].facts.acked
    assert json.loads((real.folder / "stream" / "sink.json").read_text()) == {"records": acked, "distinct": acked}


class Files:
    """The lines of a run's files, changed as a fault would have made them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines = {path.name: [decode(line) for line in path.read_text().splitlines()] for path in folder.glob("*.jsonl")}

    def member(self) -> tuple[str, list[Event]]:
        """A file in which some partition was delivered at least six times."""
        return next((name, lines) for name, lines in self.lines.items() if len(runs(lines)) >= 6)

    def other(self, name: str) -> tuple[str, list[Event]]:
        """The file of another member of the group."""
        return next((each, lines) for each, lines in self.lines.items() if each not in {name, OWNERSHIP} and runs(lines))

    def save(self) -> None:
        for name, events in self.lines.items():
            (self.folder / name).write_text("".join(encode(event) + "\n" for event in events))


def runs(events: Iterable[Event]) -> list[DeliveryRun]:
    """Those of one partition, each with more than one record."""
    found = [event for event in events if isinstance(event, DeliveryRun)]
    first = found[0].partition if found else None
    return [run for run in found if run.partition == first and run.count > 1]


def swapped(events: list[Event], old: Event, *new: Event) -> None:
    at = events.index(old)
    events[at : at + 1] = new


def counted_on(events: list[Event], run: DeliveryRun, records: int) -> None:
    """Of the same partition, everything behind `run` has this many deliveries more before it."""
    for at in range(events.index(run) + 1, len(events)):
        event = events[at]
        if isinstance(event, DeliveryRun) and event.partition == run.partition:
            events[at] = replace(event, seq=event.seq + records)


def lose(files: Files) -> None:
    """The member was never given the last record of a poll."""
    _, events = files.member()
    run = runs(events)[2]
    counted_on(events, run, -1)
    swapped(events, run, replace(run, last=run.last - 1, count=run.count - 1))


def repeat(files: Files) -> None:
    """After a rebalance the member was given the last record before it again: one delivery more."""
    _, events = files.member()
    one, other = runs(events)[2:4]
    counted_on(events, other, other.first - one.last)
    number = None if other.producer_seq is None else other.producer_seq - (other.first - one.last)
    again = {"first": one.last, "count": other.last - one.last + 1, "producer_seq": number}
    more = replace(other, **again, generation=(other.generation or 0) + 1)
    swapped(events, other, more)


def reorder(files: Files) -> None:
    """Two polls of a partition came the other way round."""
    _, events = files.member()
    one, other = runs(events)[2:4]
    places = ("first", "last", "count", "producer", "producer_seq")
    reported = {name: getattr(other, name) for name in places}, {name: getattr(one, name) for name in places}
    swapped(events, one, replace(one, **reported[0]))
    swapped(events, other, replace(other, seq=one.seq + other.count, **reported[1]))


def acquired(files: Files, run: DeliveryRun) -> Ownership:
    """How the member of this run came to its partition; a busy machine makes a group rebalance, so that there may be several."""
    return max(
        (
            event
            for event in files.lines[OWNERSHIP]
            if isinstance(event, Ownership)
            and event.member == run.member
            and event.change is OwnershipChange.ACQUIRED
            and run.partition in {place.partition for place in event.partitions}
            and event.stamp.t_ms <= run.t_last_ms
        ),
        key=lambda event: event.stamp.t_ms,
    )


def own_twice(files: Files) -> None:
    """Another member took a partition while its owner still had it."""
    name, events = files.member()
    other, others = files.other(name)
    run = runs(events)[2]
    stop = next(event for event in others if isinstance(event, Stop))
    number, writer = stop.stamp.event_seq, stop.stamp.writer
    swapped(others, stop, replace(stop, stamp=stop.stamp._replace(event_seq=number + 2)))
    taken = acquired(files, run)
    where = tuple(place for place in taken.partitions if place.partition == run.partition)
    for step, change in enumerate((OwnershipChange.ACQUIRED, OwnershipChange.RELEASED)):
        stamp = stop.stamp._replace(event_seq=number + step, t_ms=run.t_last_ms + 500 * step)
        position = (taken.position or 0) + 1 + step
        files.lines[OWNERSHIP].append(Ownership(stamp, GROUP, writer, 1, change, where, position=position))
    assert other != name


def forget(files: Files) -> None:
    """An event never reached the disk."""
    _, events = files.member()
    events.remove(runs(events)[2])


def cut(files: Files) -> None:
    """A member was killed, and the end of its account is missing."""
    _, events = files.member()
    del events[events.index(runs(events)[3]) :]


def verdict(folder: Path, engine: Engine) -> AuditVerdict:
    return job.audit_sources([Source(Level.PRODUCER, lines=(str(folder),))], AuditPolicy(), engine).verdict


class Planted(NamedTuple):
    """A fault, the verdict that it must make, and the cause that must be in it."""

    plant: Callable[[Files], None]
    outcome: AuditOutcome
    cause: AuditCause


PLANTED = (
    Planted(lose, AuditOutcome.FAIL, AuditCause.LOST),
    Planted(repeat, AuditOutcome.FAIL, AuditCause.REDELIVERED),
    Planted(reorder, AuditOutcome.FAIL, AuditCause.REORDERED),
    Planted(own_twice, AuditOutcome.FAIL, AuditCause.DOUBLE_OWNED),
    Planted(forget, AuditOutcome.INCONCLUSIVE, AuditCause.NUMBERS_MISSING),
    Planted(cut, AuditOutcome.INCONCLUSIVE, AuditCause.NO_STOP),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.plant.__name__)
def test_what_is_planted_flips_the_verdict(real: Run, engine: Engine, tmp_path: Path, planted: Planted) -> None:
    folder = tmp_path / "events"
    shutil.copytree(real.events, folder)
    files = Files(folder)
    planted.plant(files)
    files.save()
    found = verdict(folder, engine)
    findings = {finding.reason.cause: finding for finding in found.findings if finding.outcome is not AuditOutcome.PASS}
    assert (found.outcome, planted.cause in findings) == (planted.outcome, True), found.headline
    if planted.outcome is AuditOutcome.FAIL:
        assert findings[planted.cause].examples
    else:
        assert AuditCause.LOST not in findings, "a lost audit event is no lost record"
