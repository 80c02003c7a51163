"""The probe: where its replicas lie, and that it is whole through a broker's restart."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, combine
from airflow_provider_kmigrate.core.ledger import balance
from airflow_provider_kmigrate.core.ledger.health import Demand
from airflow_provider_kmigrate.core.migration.gates import PROBE_FRESH
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.probe import command as cli
from airflow_provider_kmigrate.probe.latency import read_figures
from airflow_provider_kmigrate.probe.probe import (
    TOPIC,
    Probe,
    ProbeEnd,
    assign_replicas,
    ensure_topic,
    find_flow,
    has_ended,
    stop_runs,
)
from tests.kit.localcluster.agents import agent_of
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.verdicts import verdict_of
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("racks", "expected"),
    [
        ({0: None}, [[0]]),
        ({0: None, 1: None}, [[0, 1], [1, 0]]),
        ({0: None, 1: None, 2: None, 3: None}, [[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1]]),
        ({0: "a", 1: "a", 2: "b", 3: "b"}, [[0, 2, 1], [1, 2, 3], [2, 0, 3], [3, 0, 1]]),
        ({0: "a", 1: "b", 2: "c"}, [[0, 1, 2], [1, 2, 0], [2, 0, 1]]),
    ],
)
def test_replicas_lie_on_other_brokers_and_in_other_racks(racks: dict[int, str | None], expected: list[list[int]]) -> None:
    assert assign_replicas(racks, sorted(racks)) == expected


@given(st.dictionaries(st.integers(0, 50), st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=12))
def test_every_layout_is_lawful(racks: dict[int, str | None]) -> None:
    found = assign_replicas(racks, sorted(racks))
    assert [replicas[0] for replicas in found] == sorted(racks)
    for replicas in found:
        assert len(replicas) == len(set(replicas)) == min(3, len(racks))
        possible = min(len(replicas), len(set(racks.values())))
        assert len({racks[broker] for broker in replicas}) == possible, "as many racks as there are"


def test_before_the_first_start(tmp_path: Path) -> None:
    Probe(tmp_path / "p", {"bootstrap.servers": "127.0.0.1:1"}).stop()
    assert cli.main(["stop", "--dir", str(tmp_path / "p")]) == 0
    assert cli.main(["verdict", "--dir", str(tmp_path / "p")]) == 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lent(tmp_path_factory.mktemp("probe") / "cluster", Shape(name="probe", brokers=3, controllers=1, racks=3)) as found:
        yield found


@pytest.mark.cluster
@pytest.mark.slow(seconds=60)
def test_through_a_restart_of_a_broker(cluster: LocalCluster, tmp_path: Path) -> None:
    properties = {"bootstrap.servers": cluster.bootstrap}
    probe = Probe(tmp_path / "run", properties, rate=20.0)
    try:
        probe.start()
        metadata = AdminClient(properties).list_topics(TOPIC, timeout=10).topics[TOPIC]
        assert {partition.replicas[0] for partition in metadata.partitions.values()} == {0, 1, 2}
        assert all(len(partition.replicas) == 3 for partition in metadata.partitions.values())
        assert ensure_topic(properties, TOPIC) == 3, "what is there is kept"
        wait_until(lambda: read_figures(tmp_path).before, "what the sender measured first")
        figures = read_figures(tmp_path)
        assert set(figures.before or ()) == set(figures.now) == {f"{TOPIC}-{partition}" for partition in range(3)}
        assert figures.age < PROBE_FRESH
        assert {round(one.rate / 20.0) for one in (figures.before or {}).values()} == {1}
        assert all(0.0 < one.p95 < 5.0 for one in figures.now.values())
        with agent_of(cluster.plan.brokers[1], cluster.plan.cluster_id) as host:
            host.stop(cluster.plan.brokers[1], 1)
        cluster.up()
        acked = probe.facts().acked
        wait_until(lambda: probe.facts().acked > acked + 200, "records after the restart")
        assert not has_ended(probe.folder)
        assert probe.find_end() is None
    finally:
        probe.stop()
    assert has_ended(probe.folder)
    facts = probe.facts()
    findings, health = probe.evidence()
    verdict = combine(findings, [health])
    assert verdict.outcome is AuditOutcome.PASS, verdict.headline
    assert facts.delivered == {"kmigrate-probe": facts.acked}
    second = Probe(tmp_path / "second", properties, rate=20.0)
    try:
        second.start()
        wait_until(lambda: second.facts().acked > 50, "records of the second run")
    finally:
        second.stop()
    facts = second.facts()
    assert facts.delivered == {"kmigrate-probe": facts.acked}, "it begins where the first one ended"


@pytest.mark.cluster
@pytest.mark.slow(seconds=60)
def test_another_attempt_goes_on_with_a_run_and_nothing_counts_as_lost(cluster: LocalCluster, tmp_path: Path) -> None:
    """Of another process, which runs; of the same one; after one whose process is told to end."""
    properties = {"bootstrap.servers": cluster.bootstrap, "sasl.password": "canary-probe-5up3r"}
    first, second = Probe(tmp_path / "run", properties), Probe(tmp_path / "run", properties)
    beside = subprocess.Popen(command("run", tmp_path / "run", "--bootstrap", cluster.bootstrap))
    try:
        wait_until(lambda: _acked(first) > 20, "records of the other process")
        first.start()
        assert beside.wait(60) == 0, "another one has taken its run"
        assert find_flow(first.events, 30.0)
        reading = read_events(first.events)
        assert verdict_of(balance(reading.events)) is AuditOutcome.INCONCLUSIVE, "a client has not stopped"
        running = balance(reading.events, refused=reading.refused, alive_since=round(time.time() * 1000) - 10_000)
        assert (verdict_of(running), running.reasons) == (AuditOutcome.PASS, ())
        starting = threading.Thread(target=second.start)
        starting.start()
        wait_until(lambda: first.find_end() is ProbeEnd.TAKEN_OVER, "another attempt has its run")
        first.stop(0.0)
        starting.join(60.0)
        assert find_flow(second.events, 30.0)
        second.cancel()
        assert second.find_end() is ProbeEnd.CANCELLED
        second.stop(0.0)
        assert has_ended(second.folder)
        first = Probe(tmp_path / "run", properties)
        first.start()
        assert find_flow(first.events, 30.0)
        assert stop_runs([]) == []
        ending = threading.Thread(target=stop_runs, args=([first.folder],))
        ending.start()
        wait_until(lambda: first.find_end() is ProbeEnd.STOPPED, "it is told to end")
    finally:
        beside.kill()
        for probe in (first, second):
            probe.stop()
    ending.join(30.0)
    assert not ending.is_alive()
    facts = first.facts()
    assert (verdict_of(facts), facts.reasons, facts.violations) == (AuditOutcome.PASS, (), {})
    assert facts.delivered == {"kmigrate-probe": facts.acked}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in written if b"canary-probe" in path.read_bytes()] == []


@pytest.mark.cluster
@pytest.mark.long  # `test_probe_runs` has its decisions
@pytest.mark.slow(seconds=100)
def test_a_killed_attempt_is_never_a_loss_and_the_next_steps_gate_passes(cluster: LocalCluster, tmp_path: Path) -> None:
    killed = subprocess.Popen(command("run", tmp_path / "run", "--bootstrap", cluster.bootstrap))
    probe = Probe(tmp_path / "run", {"bootstrap.servers": cluster.bootstrap})
    try:
        wait_until(lambda: read_figures(tmp_path).before, "what it measured first")
        before = read_figures(tmp_path).before
        killed.kill()
        killed.wait(10)
        ended = time.time()
        assert not has_ended(probe.folder), "a minute must pass before its silence says so"
        probe.start()
        assert time.time() - ended > 50
        step_began = round(time.time() * 1000) + 1_000
        assert read_figures(tmp_path).before == before, "what another attempt measures may lie between two restarts"
        wait_until(lambda: _acked(probe) > 100 and time.time() * 1000 > step_began + 5_000, "records of the next one")
    finally:
        killed.kill()
        probe.stop()
    reading = read_events(probe.events)
    facts = balance(reading.events, refused=reading.refused)
    assert (verdict_of(facts), facts.lost.count) == (AuditOutcome.INCONCLUSIVE, 0)
    assert ({reason.cause for reason in facts.reasons}, facts.violations) == ({AuditCause.NO_STOP}, {})
    later = balance(reading.events, refused=reading.refused, demand=Demand(since=step_began, everywhere=True))
    assert (verdict_of(later), later.reasons) == (AuditOutcome.PASS, ())


@pytest.mark.cluster
@pytest.mark.slow(seconds=60)
def test_the_probe_of_another_run_is_ended_before_the_next_one_begins(cluster: LocalCluster, tmp_path: Path) -> None:
    one = subprocess.Popen(command("run", tmp_path / "one", "--bootstrap", cluster.bootstrap))
    next_run = Probe(tmp_path / "two", {"bootstrap.servers": cluster.bootstrap})
    try:
        wait_until(lambda: _acked(Probe(tmp_path / "one", {})) > 20, "records of the first run")
        next_run.start()
        assert has_ended(tmp_path / "one")
        assert one.wait(30) == 0
        wait_until(lambda: _acked(next_run) > 20, "records of the next run")
        assert subprocess.Popen(command("stop", tmp_path / "one")).wait(60) == 0
    finally:
        one.kill()
        next_run.stop()
    for run in ("one", "two"):
        facts = Probe(tmp_path / run, {}).facts()
        assert (verdict_of(facts), facts.reasons) == (AuditOutcome.PASS, ())
        assert facts.delivered == {"kmigrate-probe": facts.acked}
    assert subprocess.run(command("verdict", tmp_path / "one"), check=False, stdout=subprocess.DEVNULL).returncode == 0


def command(verb: str, folder: Path, *options: str) -> list[str]:
    call = "import sys; from airflow_provider_kmigrate.probe.command import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", call, verb, "--dir", str(folder), *options]


def _acked(probe: Probe) -> int:
    return probe.facts().acked if probe.events.is_dir() else 0
