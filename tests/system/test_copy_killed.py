"""The controller that copies ZooKeeper's metadata is killed, and so is the next one: a third one copies all of it, and the migration goes on."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.system import evidence, nodes
from tests.waiting import beside

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow(seconds=90), pytest.mark.timeout(900)]

BEGUN, ENDED = "Starting ZK migration", "Completed migration of metadata from ZooKeeper to KRaft"
TOPICS = [TopicPlan(f"t{number}", 8, replication=2, config={"retention.ms": str(10_000_000 + number)}) for number in range(100)]


def kill_in_the_copy(cluster: LocalCluster, killed: list[str], over: threading.Event) -> None:
    """SIGKILL the controller that has begun to copy, and the next one that does; each is started again at once, as systemd does it."""
    while len(killed) < 2 and not over.wait(0.005):
        for node in cluster.plan.controllers:
            process = nodes.of(node)
            said = process.log.read_text(errors="replace") if process.log.exists() else ""
            if node.name in killed or BEGUN not in said or ENDED in said:
                continue
            process.wait_gone(process.signal(signal.SIGKILL), 30.0)
            if ENDED not in process.log.read_text(errors="replace"):
                killed.append(node.name)
            process.start()


def test_the_copy_ends_though_two_controllers_are_killed_in_it(tmp_path: Path) -> None:
    killed: list[str] = []
    with lent(tmp_path / "cluster", Shape(name="copy", brokers=2, controllers=3)) as cluster:
        create_topics({"bootstrap.servers": cluster.bootstrap}, TOPICS)
        with direct.context(cluster) as here:
            before = (here.observer.observe(Fields.TOPICS).topics or ({}, {}))[0]
            with beside(lambda over: kill_in_the_copy(cluster, killed, over)):
                direct.to_copied(here)
            direct.forward(here)
            view = here.observer.observe(evidence.EVERYTHING | Fields.TOPICS)
    assert len(set(killed)) == 2, killed
    assert position_of(view).phase is Phase.FINALIZED
    assert view.modes() == dict.fromkeys(range(2), BrokerMode.KRAFT)
    after = (view.topics or ({}, {}))[1]
    assert {plan.name for plan in TOPICS} <= before.keys()
    for name, topic in before.items():
        kept = after[name]
        assert (kept.topic_id, kept.configs, kept.partitions.keys()) == (topic.topic_id, topic.configs, topic.partitions.keys())
