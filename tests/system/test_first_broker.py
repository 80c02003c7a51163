"""A real broker that is slow in its new mode is taken back alone, and the cluster serves as before."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_provider_kmigrate.core.cluster_state.decision import Verb
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape, folder_of
from tests.kit.processes import NodeProcess
from tests.system import evidence

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=45), pytest.mark.timeout(240)]

PAUSE, RUN = 1.6, 0.4  # seconds: four of five requests wait, 0.8 s on average


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with lent(tmp_path / "cluster", Shape(name="first", controllers=1)) as there:
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan("orders", 12)])
        yield there


class Pauses:
    """The JVM of one node stands still most of the time, from the first line that says so to the last."""

    def __init__(self, node: NodeSpec) -> None:
        self._process, self._over = NodeProcess(folder_of(node)), threading.Event()
        self._thread = threading.Thread(target=self._pulse, daemon=True)
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)
        if "bakes as the first" in line and not self._thread.ident:
            self._thread.start()
        if line.startswith(f"Decided to {Verb.ROLL_BACK_CANARY}"):
            self.end()

    def end(self) -> None:
        self._over.set()
        if self._thread.ident:
            self._thread.join()

    def _pulse(self) -> None:
        pid = self._process.find().pid
        assert pid is not None
        with contextlib.suppress(ProcessLookupError):
            while not self._over.is_set():
                os.kill(pid, signal.SIGSTOP)
                self._over.wait(PAUSE)
                os.kill(pid, signal.SIGCONT)
                self._over.wait(RUN)


def write_everywhere(cluster: LocalCluster) -> int:
    """Records acknowledged by every in-sync replica of every partition."""
    acknowledged: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "delivery.timeout.ms": 20_000})
    for partition in range(12):
        producer.produce("orders", b"x", partition=partition, on_delivery=lambda error, _: acknowledged.append(error))
    producer.flush(30)
    return acknowledged.count(None)


def roll_the_first(cluster: LocalCluster, here: StepContext) -> tuple[NodeSpec, list[str], list[str]]:
    direct.prepare(here)
    direct.provision(here)
    broker = direct.to_roll(here, BrokerMode.MIGRATION)
    assert broker is not None
    node = here.spec.node(NodeRole.BROKER, broker)
    pauses = Pauses(node)
    try:
        with pytest.raises(Refused) as refused:
            direct.step(replace(here, say=pauses.say), "roll", node=node.id, target=BrokerMode.MIGRATION)
    finally:
        pauses.end()
    return node, [str(reason) for reason in refused.value.reasons], pauses.said


def test_a_broker_that_is_slow_in_its_new_mode_is_taken_back_alone(cluster: LocalCluster) -> None:
    spec = load(cluster.spec_path)
    originals = {node.id: Path(node.hosts.properties or "").read_bytes() for node in spec.brokers}
    with direct.context(cluster, spec=replace(spec, policy=replace(spec.policy, canary_bake=12.0))) as here:
        node, reasons, said = roll_the_first(cluster, here)
        print("\n".join(reasons))  # noqa: T201 - the figures
        assert [reason[:5] for reason in reasons] == ["[V23]", "[V26]"], said
        view = here.observer.observe(evidence.EVERYTHING)
    assert position_of(view).phase is Phase.PRE_MIGRATION
    assert set(view.modes().values()) == {BrokerMode.ZOOKEEPER}
    assert not any(partition.is_under_replicated for partition in view.partitions or ())
    assert view.zk is not None
    assert view.zk.rolled_back == {node.id: BrokerMode.ZOOKEEPER}
    assert {other.id: evidence.starts(other) for other in spec.brokers} == {
        other.id: 3 if other.id == node.id else 1 for other in spec.brokers
    }
    assert {other.id: Path(other.hosts.properties or "").read_bytes() for other in spec.brokers} == originals
    assert write_everywhere(cluster) == 12
