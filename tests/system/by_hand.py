"""What a person in a hurry does to a cluster's nodes: no look first, no gate, no token. It makes the disasters that kmigrate keeps away."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kazoo.client import KazooClient

from airflow_provider_kmigrate.core.cluster_state.model import ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.node_files.properties import RenderFacts, render_broker_file, render_controller_file
from airflow_provider_kmigrate.spec import load
from tests.kit.localcluster import members
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import folder_of
from tests.kit.processes import NodeProcess

_STOP_S = 40.0


class ByHand:
    """Made while every broker still has its original file."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.brokers = cluster.plan.brokers
        self.controllers = cluster.plan.controllers
        self._originals = {node.id: Path(node.hosts.properties).read_text() for node in self.brokers}
        self._facts = RenderFacts.of(load(cluster.spec_path), "3.9")

    def put(self, node: NodeSpec, stage: FileStage) -> None:
        """A node's file as it is in a stage."""
        Path(node.hosts.properties).write_text(self._text(node, stage))

    def _text(self, node: NodeSpec, stage: FileStage) -> str:
        if stage.of_controller:
            return render_controller_file(self._originals[0], node, stage, self._facts)
        return render_broker_file(self._originals[node.id], stage, self._facts)

    def restart(self, node: NodeSpec, stage: FileStage) -> None:
        self.put(node, stage)
        self.stop(node)
        self.start(node)

    def stop(self, node: NodeSpec, timeout: float = _STOP_S) -> None:
        """SIGTERM; returns once it is gone."""
        self._end(node, signal.SIGTERM, timeout)

    def kill(self, node: NodeSpec) -> None:
        self._end(node, signal.SIGKILL, _STOP_S)

    def _end(self, node: NodeSpec, number: signal.Signals, timeout: float) -> None:
        process = process_of(node)
        assert process.wait_gone(process.signal(number), timeout), f"{node.name} did not stop within {timeout} s"

    def start(self, node: NodeSpec) -> None:
        members.start(folder_of(node))

    def runs(self, node: NodeSpec) -> bool:
        return process_of(node).find().state is ProcessState.RUNNING

    @contextmanager
    def zookeeper(self) -> Iterator[KazooClient]:
        """A client below the cluster's chroot."""
        client = KazooClient(self.cluster.zookeeper)
        client.start(timeout=30)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    @contextmanager
    def zookeeper_frozen(self) -> Iterator[None]:
        """SIGSTOP, and SIGCONT whatever happens."""
        process = NodeProcess(self.cluster.plan.zookeeper_folder)
        process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.signal(signal.SIGCONT)


def process_of(node: NodeSpec) -> NodeProcess:
    return NodeProcess(folder_of(node))
