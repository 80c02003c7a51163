"""Disks, certificates, addresses and stops; each defect gives exactly its code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import Severity
from tests.core.preflight_around import environment, everywhere
from tests.core.preflight_machines_rows import GIB, ROWS, addresses, certificate, controller_at, everything_at, on_disk, room
from tests.core.preflight_views import Change, both, codes, healthy


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_one_defect_gives_its_code(change: Change, expected: list[str]) -> None:
    assert codes(change(*healthy())) == expected


@pytest.mark.parametrize(
    ("change", "severity", "text"),
    [
        (room(256 << 20), Severity.WARN, "/data of broker 1 256 MiB"),
        (room((256 << 20) - 1), Severity.BLOCK, "/data of broker 1 255 MiB"),
        (room(GIB), Severity.WARN, "1024 MiB"),
        (certificate(2.1), Severity.WARN, "broker 1 on 20"),
        (certificate(1.9), Severity.BLOCK, "broker 1 on 20"),
        (certificate(-1.0), Severity.BLOCK, "before the soak"),
        (controller_at("[::1]"), Severity.BLOCK, "3000 [::1]"),
        (addresses("127.0.1.1", "10.0.0.7"), Severity.BLOCK, "an address of itself alone: 3001 node3001 is 127.0.1.1"),
        (addresses(), Severity.BLOCK, "own machine does not know their host: 3001 node3001"),
        (environment(addresses={3000: ("10.0.0.6",), 3002: ("10.0.0.8",)}), Severity.UNKNOWN, "was not read: 3001"),
        (
            on_disk(other=3),
            Severity.BLOCK,
            "another topic id than ZooKeeper: broker 1 3; such as /data/orders-0 (AAAAAAAAAAAAAAAAAAAAAA)",
        ),
        (on_disk(malformed=1), Severity.BLOCK, "cannot read: broker 1 1; such as /data/orders-0"),
        (on_disk(missing=1), Severity.WARN, "no topic id: broker 1 1; such as /data/orders-0"),
        (on_disk(stray=1), Severity.WARN, "rename them to *-stray and keep them: broker 1 1 (3 MiB); such as /data/orders-0"),
        (on_disk(unassigned=1), Severity.WARN, "of partitions that other brokers have; Kafka will rename them"),
        (on_disk(unidentified=1), Severity.BLOCK, "no partition of this broker have no topic id: broker 1 1 (3 MiB)"),
        (on_disk(put_away=1), Severity.WARN, "*-stray, which Kafka serves no more and never deletes: broker 1 1 (3 MiB)"),
        (on_disk(deleted=1), Severity.WARN, "*-delete, which Kafka deletes a minute after it has started: broker 1 1 (3 MiB)"),
        (on_disk(permission=1), Severity.UNKNOWN, "not read (permission): broker 1 1"),
        (everywhere(max_connections="26"), Severity.BLOCK, "max.connections=26 (the controllers' file), and a controller may have 27 connections"),
        (everywhere(max_connection_creation_rate="2"), Severity.WARN, "27 connections to a new active controller take more than 9 s"),
        (everywhere(max_connections_per_ip_overrides="node1:4"), Severity.BLOCK, "would refuse nodes at the controllers' listener: node1 (up to 5 connections)"),
        (everywhere(max_connections_per_ip="0", max_connections_per_ip_overrides="10.0.0.0:100"), Severity.UNKNOWN, "by other names: node0 (up to 5 connections)"),
        (
            everywhere(max_connections_per_ip="0", max_connections_per_ip_overrides="${env:NODES}", config_providers="env"),
            Severity.UNKNOWN,
            "the value at the controllers of max.connections.per.ip.overrides",
        ),
        (everywhere(max_connections="${env:MOST}", config_providers="env"), Severity.UNKNOWN, "the value at the controllers of max.connections"),
    ],
)  # fmt: skip
def test_what_stops_a_migration_in_its_middle_blocks(change: Change, severity: Severity, text: str) -> None:
    (found,) = run_checks(*change(*healthy()))
    assert found.severity is severity
    assert text in found.reason.text


def test_a_cluster_of_one_machine_may_have_its_own_address() -> None:
    view, facts = healthy()
    brokers, controllers = (
        tuple(replace(node, host=f"127.0.0.{place}") for place, node in enumerate(nodes, start))
        for start, nodes in ((1, facts.spec.brokers), (11, facts.spec.controllers))
    )
    local = replace(facts, spec=replace(facts.spec, brokers=brokers, controllers=controllers))
    assert "B22" not in codes((view, local))


def test_on_one_machine_everybody_reaches_what_is_its_own() -> None:
    """M01: here all nodes have one port."""
    assert "B22" not in codes(both(everything_at("one"), addresses("127.0.1.1"))(*healthy()))
