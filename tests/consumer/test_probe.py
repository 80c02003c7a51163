"""The probe: where its replicas lie, and that it is whole through a broker's restart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, combine
from airflow_provider_kmigrate.core.cluster_state.model import ProcessState
from airflow_provider_kmigrate.core.ledger import balance
from airflow_provider_kmigrate.core.migration.gates import PROBE_FRESH
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.probe import command as cli
from airflow_provider_kmigrate.probe.latency import read_figures
from airflow_provider_kmigrate.probe.probe import TOPIC, Probe, ProbeRuns, assign_replicas, ensure_topic, wait_for_flow
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
    probe = Probe(tmp_path / "p", {"bootstrap.servers": "127.0.0.1:1"})
    assert probe.status() == {}
    probe.stop()
    assert cli.main(["status", "--dir", str(tmp_path / "p")]) == 3
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
        pids = {name: process.pid for name, process in probe.status().items()}
        again = Probe(tmp_path / "run", properties)
        again.start()
        assert {name: process.pid for name, process in again.status().items()} == pids
        with agent_of(cluster.plan.brokers[1], cluster.plan.cluster_id) as host:
            host.stop(cluster.plan.brokers[1], 1)
        cluster.up()
        acked = probe.facts().acked
        wait_until(lambda: probe.facts().acked > acked + 200, "records after the restart")
        again.stop()
    finally:
        probe.stop(0.0)
    assert {process.state for process in probe.status().values()} == {ProcessState.STOPPED}
    facts = probe.facts()
    findings, health = probe.evidence()
    verdict = combine(findings, [health])
    assert verdict.outcome is AuditOutcome.PASS, verdict.headline
    assert facts.delivered == {"kmigrate-probe": facts.acked}
    with pytest.raises(Refused):
        probe.start()
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
def test_a_run_is_judged_while_it_runs_and_ended_by_any_process(cluster: LocalCluster, tmp_path: Path) -> None:
    properties = {"bootstrap.servers": cluster.bootstrap, "sasl.password": "canary-probe-5up3r"}
    try:
        events = ProbeRuns(tmp_path, properties).begin("first")
        assert ProbeRuns(tmp_path, properties).begin("first") == events, "it goes on"
        acked, _ = wait_for_flow(events)
        reading = read_events(events)
        assert acked > 0
        assert verdict_of(balance(reading.events)) is AuditOutcome.INCONCLUSIVE, "no client has stopped"
        running = balance(reading.events, refused=reading.refused, alive_since=round(time.time() * 1000) - 10_000)
        assert (verdict_of(running), running.reasons) == (AuditOutcome.PASS, ())
        ProbeRuns(tmp_path, properties).begin("second")
        assert {process.state for process in Probe(tmp_path / "first", properties).status().values()} == {ProcessState.STOPPED}
    finally:
        assert ProbeRuns(tmp_path, properties).end() == ("first", "second")
    for run in ("first", "second"):
        facts = Probe(tmp_path / run, properties).facts()
        assert (verdict_of(facts), facts.reasons) == (AuditOutcome.PASS, ())
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in written if b"canary-probe" in path.read_bytes()] == []
