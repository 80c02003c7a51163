"""A leader that cannot change an ISR any more, since Kafka's own thread for it is dead: found and restarted, on real brokers under load.

In Kafka 3.9.2 the thread dies when the cluster's owner changes ("A metric named ... already exists"); that race can't be made, its effect can.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import lent
from tests.kit.localcluster.plan import Shape
from tests.old_consumer.jvm_application import Load
from tests.system.broken_thread import break_thread
from tests.system.by_hand import process_of

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.proof, pytest.mark.timeout(600)]

PARTITIONS = 12
THREAD = "to-controller-alter-partition-channel-manager"


def test_rolls_restart_a_leader_whose_thread_is_dead(tmp_path: Path) -> None:
    """A leader that ZooKeeper's controller serves, and one in migration mode, as at the change of owner."""
    with lent(tmp_path / "cluster", Shape("stuck")) as cluster:
        create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan("orders", PARTITIONS)])
        with Load(cluster.bootstrap, "orders", PARTITIONS), direct.context(cluster) as here:
            direct.prepare(here)
            direct.provision(here)
            roll_beside_a_stuck_leader(here, BrokerMode.MIGRATION, tmp_path)
            direct.roll(here, BrokerMode.MIGRATION)
            direct.copy(here)
            roll_beside_a_stuck_leader(here, BrokerMode.KRAFT, tmp_path)


def roll_beside_a_stuck_leader(here: StepContext, target: BrokerMode, folder: Path) -> None:
    first = direct.to_roll(here, target)
    assert first is not None
    stuck = next(node for node in here.spec.brokers if node.id != first)
    before = pid_of(stuck)
    break_thread(before, THREAD, folder)
    direct.step(here, "roll", node=first, target=target)
    text = f"Broker {stuck.id} alone keeps broker {first} out of the ISRs"
    assert text in (folder / "kmigrate" / "journal" / "run.jsonl").read_text()
    assert pid_of(stuck) != before


def pid_of(node: NodeSpec) -> int:
    pid = process_of(node).find().pid
    assert pid is not None
    return pid
