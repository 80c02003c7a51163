"""The floor: a bare script that makes the same stops, starts and waits as the DAG, without a single check beyond them.

It is what a person in a hurry would write, and the measure of what the DAG's care costs. Never use it on a cluster that matters.
`python -m benchmarks.floor CLUSTER_FILE BOOTSTRAP ZOOKEEPER [RESULT]` prints, and writes to RESULT, seconds per phase as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from airflow_provider_kmigrate.clients.settings import WireSecurity
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.migration.plan import MIGRATION, split_into_stages
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.node_files.properties import RenderFacts, render_broker_file, render_controller_file
from airflow_provider_kmigrate.exceptions import Unavailable
from airflow_provider_kmigrate.spec import load
from tests.kit.localcluster import members
from tests.kit.localcluster.agents import agent_of
from tests.kit.localcluster.plan import folder_of
from tests.kit.processes import NodeProcess

TOKEN = 0


def wait(check: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until a condition holds. Raises `TimeoutError`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check():
            return
        time.sleep(0.1)
    raise TimeoutError(check.__name__)


class Floor:
    """One migration from end to end."""

    def __init__(self, spec: ClusterSpec, bootstrap: str, zookeeper: str) -> None:
        self.spec = spec
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self.zk = KazooClient(zookeeper)
        self.zk.start(timeout=15)
        self.originals = {node.id: Path(node.hosts.properties).read_text() for node in spec.brokers}
        self.facts = RenderFacts.of(spec, "3.9")
        self.phases: list[dict[str, object]] = []
        self.acts: list[dict[str, object]] = []  # as the tool's journal has them

    def run(self) -> None:
        """Do the whole migration by bare acts, and time each stage."""
        acts = (self.controllers, self.first_roll, self.copy, self.second_roll, self.finalize)
        by_stage = {act.__name__: act for act in acts}
        for name in (name for name, _ in split_into_stages(MIGRATION) if name in by_stage):
            began = time.monotonic()
            by_stage.pop(name)()
            self.phases.append({"name": name, "seconds": round(time.monotonic() - began, 3)})
        assert not by_stage, f"no stages of the plan: {', '.join(by_stage)}"

    def controllers(self) -> None:
        """Write, format and start each controller, and wait for its flag."""
        for node in self.spec.controllers:
            Path(node.hosts.properties).write_text(self._controller_text(node, FileStage.CONTROLLER_MIGRATION))
            with agent_of(node, self.spec.cluster_id) as host:
                host.format_storage(node, self.spec.cluster_id, "3.9", TOKEN)
            members.start(folder_of(node))
        for node in self.spec.controllers:
            wait(lambda node=node: self._flag(node) is True)

    def first_roll(self) -> None:
        """Restart each broker into migration mode."""
        self._roll(FileStage.MIGRATION)

    def copy(self) -> None:
        """Wait until the copy is over and the dual-write moves."""
        wait(lambda: self._written() > 0)
        copied = self._written()
        wait(lambda: self._written() > copied)

    def second_roll(self) -> None:
        """Restart each broker into KRaft mode."""
        self._roll(FileStage.KRAFT)

    def finalize(self) -> None:
        """Restart each controller without its flag, and wait until `/migration` stands still."""
        for node in self.spec.controllers:
            self._restart(node, self._controller_text(node, FileStage.CONTROLLER_FINAL))
            wait(lambda node=node: self._flag(node) is False)
        last = -1
        while last != (last := self._written()):  # it stands still for 1.5 s, which the DAG waits for too
            time.sleep(1.5)

    def _written(self) -> int:
        """How far the dual-write to ZooKeeper is, as a metadata offset."""
        return int(json.loads(self.zk.get("/migration")[0])["kraft_metadata_offset"])

    def _roll(self, stage: FileStage) -> None:
        for node in self.spec.brokers:
            self._restart(node, render_broker_file(self.originals[node.id], stage, self.facts))
            wait(lambda node=node: self._back(node))
        self._elect()

    def _act(self, step: str) -> None:
        self.acts.append({"kind": "act", "step": step, "at": time.time()})

    def _restart(self, node: NodeSpec, text: str) -> None:
        self._act(f"restart {node.name}")
        Path(node.hosts.properties).write_text(text)
        process = NodeProcess(folder_of(node))
        if not process.wait_gone(process.signal(signal.SIGTERM), node.stop_timeout):
            raise TimeoutError(node.name)
        members.start(folder_of(node))

    def _controller_text(self, node: NodeSpec, stage: FileStage) -> str:
        return render_controller_file(self.originals[self.spec.brokers[0].id], node, stage, self.facts)

    def _flag(self, node: NodeSpec) -> bool | None:
        try:
            with Wire(node.host, node.port, WireSecurity()) as wire:
                return wire.api_versions().migration_ready
        except Unavailable:
            return None

    def _back(self, node: NodeSpec) -> bool:
        metadata = self.admin.list_topics(timeout=10)
        rows = [p for topic in metadata.topics.values() for p in topic.partitions.values() if node.id in p.replicas]
        return node.id in metadata.brokers and all(node.id in p.isrs and p.leader >= 0 for p in rows)

    def _elect(self) -> None:
        topics = self.admin.list_topics(timeout=10).topics.values()
        moved = [TopicPartition(t.topic, p.id) for t in topics for p in t.partitions.values() if p.leader != p.replicas[0]]
        if moved:
            self._act("preferred leaders")
            self.admin.elect_leaders(ElectionType.PREFERRED, moved).result(30)
        wait(
            lambda: all(
                p.leader == p.replicas[0]
                for t in self.admin.list_topics(timeout=10).topics.values()
                for p in t.partitions.values()
            )
        )


def main() -> None:
    """Time a migration that only waits for what Kafka needs; leave the figures as JSON."""
    spec, bootstrap, zookeeper = load(sys.argv[1]), sys.argv[2], sys.argv[3]
    floor = Floor(spec, bootstrap, zookeeper)
    began = time.monotonic()
    floor.run()
    result = json.dumps({"seconds": round(time.monotonic() - began, 3), "phases": floor.phases, "acts": floor.acts})
    floor.zk.stop()
    print(result)
    if len(sys.argv) > 4:
        Path(sys.argv[4]).write_text(result)


if __name__ == "__main__":
    main()
