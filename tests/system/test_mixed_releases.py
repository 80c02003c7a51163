"""A real broker that somebody upgrades in the middle of a roll: the next restart is held by name, and a rollback is not."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Process
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.exceptions import TimedOut
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.run import run_step
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster import jars
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.system import evidence, nodes

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow(seconds=200), pytest.mark.timeout(900)]

USUAL, OTHER = "3.9.1", "3.9.2"
_STOPS_S = 60.0


def install(cluster: LocalCluster, broker_id: int, release: str) -> None:
    """As a package manager and an administrator: this release on the broker's disk, then a restart of it, behind kmigrate's back."""
    node = next(node for node in cluster.plan.brokers if node.id == broker_id)
    class_path = ":".join(map(str, jars.jars(release)))
    definition = Path(cluster.plan.agent_config(node.id))
    document = json.loads(definition.read_text())
    document["roles"]["broker"]["process"]["env"]["CLASSPATH"] = class_path
    definition.write_text(json.dumps(document))
    process = nodes.of(node)
    launch = process.read_launch()
    process.define(replace(launch, env={**launch.env, "CLASSPATH": class_path}))
    assert process.wait_gone(process.signal(signal.SIGTERM), _STOPS_S)
    process.start()


def find_processes(cluster: LocalCluster) -> dict[str, Process]:
    return {node.name: nodes.of(node).find() for node in (*cluster.plan.brokers, *cluster.plan.controllers)}


def test_a_broker_that_was_upgraded_in_a_roll_holds_the_next_restart_and_no_rollback(tmp_path: Path) -> None:
    target = BrokerMode.MIGRATION
    with lent(tmp_path / "cluster", Shape(name="mixed", brokers=3, controllers=1, kafka_release=USUAL)) as cluster:
        create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan("orders", 6, 3)])
        with direct.context(cluster) as here:
            direct.until(here, "first_roll")
            rolled = direct.to_roll(here, target)
            assert rolled is not None
            direct.step(here, "roll", node=rolled, target=target)
        install(cluster, rolled, OTHER)
        before = find_processes(cluster)
        with direct.context(cluster) as here:
            waiting = next(broker for broker in here.spec.brokers if broker.id != rolled)
            step = RollBroker(waiting, target, here.spec.policy)
            step.patience = 120.0  # the upgraded one must be back before it is the only reason
            with pytest.raises(TimedOut, match=rf"R15.*broker {rolled} runs Kafka {re.escape(OTHER)}"):
                run_step(step, here)
        assert find_processes(cluster) == before, "nothing was stopped"
        with direct.context(cluster) as here:
            run_rollback(here)
            view = here.observer.observe(evidence.EVERYTHING)
        assert position_of(view).phase is Phase.ZOOKEEPER
        assert view.modes() == dict.fromkeys(range(3), BrokerMode.ZOOKEEPER)
