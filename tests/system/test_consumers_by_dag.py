"""Two real old consumers become plain Kafka consumers, by the real DAG, under load, and old ones again: nothing lost, no two owners."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.core.events.model import DeliveryRun
from airflow_provider_kmigrate.core.ledger import Facts
from airflow_provider_kmigrate.core.member.group_seen import MemberKind
from benchmarks.rehearsal import Rehearsal
from tests.system import group_under_load
from tests.system.group_under_load import APPLICATION, GROUP, TOPIC, kinds, under_load

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=240), pytest.mark.timeout(660)]
OLD, MIGRATING, PLAIN = MemberKind.ZOOKEEPER, MemberKind.MIGRATING, MemberKind.KAFKA


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    with under_load(tmp_path_factory.mktemp("consumers"), "groups") as there:
        yield there


def messages(run: dict[str, Any], rehearsal: Rehearsal) -> str:
    return f"{json.dumps(run, indent=1)}\n{rehearsal.dag_log.read_text()[-6000:]}"


def test_there_and_back(rehearsal: Rehearsal) -> None:
    assert kinds(rehearsal) == [OLD, OLD]
    approved = {"approve_rollback": rehearsal.cluster.plan.cluster_id, "goal": "zookeeper_consumers"}
    runs = rehearsal.run_dags([("kmigrate_consumers", {}), ("kmigrate_consumers_rollback", approved)])
    run = next(runs)
    assert run["state"] == "success", messages(run, rehearsal)
    assert kinds(rehearsal) == [PLAIN, PLAIN]
    client = KazooClient(rehearsal.cluster.zookeeper)
    client.start()
    try:
        assert client.exists(f"/consumers/{GROUP}/migration") is None
        assert client.get_children(f"/consumers/{GROUP}/offsets/{TOPIC}") == [str(n) for n in range(6)]
    finally:
        client.stop()
        client.close()
    run = next(runs)
    assert run["state"] == "success", messages(run, rehearsal)
    assert kinds(rehearsal) == [OLD, OLD]
    facts = judged(rehearsal)
    faults = (facts.lost, facts.reordered, facts.double_owned)
    assert [fault.count for fault in faults] == [0, 0, 0], facts
    assert group_under_load.repeated(rehearsal, facts) == []
    assert facts.complete, facts.reasons


def judged(rehearsal: Rehearsal) -> Facts:
    """Everything drained, everybody stopped: what the group was delivered against what was acknowledged."""
    group_under_load.drained(rehearsal)
    rehearsal.stop_applications()
    events = read_events(group_under_load.events_of(rehearsal)).events
    lives = {event.member for event in events if isinstance(event, DeliveryRun)}
    assert len(lives) == 5 * APPLICATION.instances, "old, migrating, plain, migrating, old"
    return group_under_load.judged(rehearsal)
