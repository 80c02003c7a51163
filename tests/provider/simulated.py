"""The simulated cluster of tests/steps behind Airflow's operators: real DAG, real tasks and triggers, no process, no waiting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import yaml

from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.znodes import COUNTS, EXPANSION, NOTES, WRITABLE, Operation, Znode
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterEnvironment, ClusterView, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.controllers import ProvisionController
from airflow_provider_kmigrate.steps.prepare import observe_preflight, plan_from_here
from airflow_provider_kmigrate.steps.run import run_step
from airflow_provider_kmigrate.utils.step_context import OpenCluster, read_only_context
from tests.clients.memory_zookeeper import Ensemble, MemoryZooKeeper
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import CLUSTER_ID
from tests.steps.sim_zookeeper import STATE, SimZooKeeper

_OF_THE_CLUSTER = {*WRITABLE, *NOTES, EXPANSION, COUNTS, STATE}


class SimSession(MemoryZooKeeper):
    """What a backup and a handover need beside what the fence uses."""

    def __init__(self, ensemble: Ensemble, cluster: SimZooKeeper) -> None:
        super().__init__(ensemble)
        self._cluster = cluster

    def read(self, path: str) -> tuple[bytes, int] | None:
        return self._cluster.read(path) if path in _OF_THE_CLUSTER else super().read(path)

    def commit(self, operations: Sequence[Operation], holding: Holding | None = None) -> list[int | None]:
        if not any(operation.path in _OF_THE_CLUSTER for operation in operations):
            return super().commit(operations, holding)
        super().commit([], holding)  # the fence
        assert holding is not None
        self._cluster.commit(operations, holding)
        return []

    def tree(self) -> Iterator[tuple[str, bytes | None]]:
        return iter(self._cluster.tree())

    def state_paths(self) -> list[str]:
        return self._cluster.state_paths()

    def read_znodes(self, paths: Sequence[str]) -> Iterator[tuple[str, Znode]]:
        return self._cluster.read_znodes(paths)


@dataclass
class Rehearsal:
    """A simulated cluster, its cluster file, and `open` for `utils.step_context.opener`.

    `blind_observations`: so many observations see no broker. `failure`: what opening it raises. The first `hanging` observations end when they are `released`;
    `observed`: they all have begun.
    """

    path: Path
    cluster: SimCluster
    ensemble: Ensemble = field(default_factory=lambda: Ensemble(CLUSTER_ID))
    blind_observations: int = 0
    failure: Exception | None = None
    opened: int = 0
    observations: int = 0
    observed: Event = field(default_factory=Event)
    hanging: int = 0
    released: Event = field(default_factory=Event)
    closed: Event = field(default_factory=Event)

    @contextmanager
    def open(self, spec: ClusterSpec) -> Iterator[OpenCluster]:
        assert spec.path == str(self.path)
        self.opened += 1
        if self.failure is not None:
            raise self.failure
        session = SimSession(self.ensemble, SimZooKeeper(self.cluster))
        try:
            yield OpenCluster(self.cluster.tools(session), self, self.cluster.clock)
        finally:
            session.close()
            self.closed.set()

    def observe(self, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        self.observations += 1
        if self.observations >= self.hanging:
            self.observed.set()
        if self.observations <= self.hanging:
            assert self.released.wait(60.0)
        view = self.cluster.observe(what, nodes, groups)
        return replace(view, brokers={}) if self.observations <= self.blind_observations else view

    def environment(self, view: ClusterView) -> ClusterEnvironment:
        return self.cluster.environment(view)

    def restarts(self) -> int:
        return sum(node.stops for node in self.cluster.nodes.values())


def rehearsal(folder: Path, cluster: SimCluster, **policy: Any) -> Rehearsal:
    """Write the cluster file of a simulated cluster into `folder`."""
    path = folder / "sim.yaml"
    path.write_text(yaml.safe_dump(document(cluster, **policy)))
    return Rehearsal(path, cluster)


def in_dual_write(sim: Rehearsal, folder: Path) -> None:
    """Every broker in KRaft mode."""
    context = sim.cluster.context(folder)
    for node in sim.cluster.spec.controllers:
        run_step(ProvisionController(node, sim.cluster.spec.cluster_id), context)
    for mode in (BrokerMode.MIGRATION, BrokerMode.KRAFT):
        for broker in sim.cluster.spec.brokers:
            run_step(RollBroker(broker, mode, sim.cluster.spec.policy), context)


def plan_of(sim: Rehearsal) -> dict[str, Any]:
    """The plan of its migration, as `kmigrate plan` and a preflight make it; needs the fixture that opens the cluster."""
    with read_only_context(str(sim.path)) as context:
        return plan_from_here(context, observe_preflight(context))


def document(cluster: SimCluster, **policy: Any) -> dict[str, Any]:
    """What a user would write about the simulated cluster."""
    return {
        "name": cluster.spec.name,
        "cluster_id": CLUSTER_ID,
        "zookeeper": {"conn_id": "sim_zookeeper"},
        "kafka": {"conn_id": "sim_kafka"},
        "hosts": {"connect": ["agent-of", "{id}"]},
        "brokers": [_node(node) for node in cluster.spec.brokers],
        "controllers": [_node(node) for node in cluster.spec.controllers],
        "policy": {"min_soak": 3.0, "canary_bake": 0.0, **policy},
        "rehearsal": True,
    }


def _node(node: NodeSpec) -> dict[str, Any]:
    own = {"log_dir": node.log_dir, "properties": f"/{node.hosts.properties}"}
    return {"id": node.id, "host": node.host, "port": node.port, **own}
