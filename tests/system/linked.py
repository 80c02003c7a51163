"""A local cluster whose links can be broken: the tool's to ZooKeeper and to each node, the brokers' and the controllers' to ZooKeeper, and
one broker's to the controllers.

The cluster file stays as it is, so that what is written into nodes' files are their true addresses; only the tool's own connections go
through the proxy. Brokers have the proxy in `zookeeper.connect` from the start; controllers, whose files are made from a broker's,
get another one as their file is put in place, and so does the broker with links to the controllers: what it tells them goes where its
file says, whatever they tell it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.clients.connections import read_connections
from airflow_provider_kmigrate.clients.hosts import Host
from airflow_provider_kmigrate.clients.hosts.agent import AgentObservation
from airflow_provider_kmigrate.clients.hosts.files import sha256
from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster_state.model import NodeFiles
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import HOST, Plan, free_ports
from tests.system.proxy import Links

ZOOKEEPER, OF_BROKERS, OF_CONTROLLERS = "tool to ZooKeeper", "brokers to ZooKeeper", "controllers to ZooKeeper"


def to(node: NodeSpec) -> str:
    """The name of the tool's link to this node."""
    return f"tool to {node.name}"


def between(broker: NodeSpec, controller: NodeSpec) -> str:
    """The name of the broker's link to this controller."""
    return f"{broker.name} to {controller.name}"


def with_own_links(plan: Plan) -> tuple[NodeSpec, ...]:
    """The broker that reaches each controller through a link; a cluster of one has none."""
    return plan.brokers[1:2]


def links_of(plan: Plan) -> Links:
    zookeeper = plan.ports["zookeeper"]
    nodes = {to(node): node.port for node in (*plan.brokers, *plan.controllers)}
    nodes |= {between(broker, one): one.port for broker in with_own_links(plan) for one in plan.controllers}
    nodes |= dict.fromkeys((ZOOKEEPER, OF_BROKERS, OF_CONTROLLERS), zookeeper)
    return Links(dict(zip(nodes, free_ports(len(nodes)), strict=True)), nodes)


def put_between(cluster: LocalCluster, links: Links) -> None:
    """Brokers reach ZooKeeper through `links` from their next start on, and so does every `context` of this cluster; it must be down."""
    plan = cluster.plan
    for node in plan.brokers:
        path = Path(node.hosts.properties or "")
        path.write_text(path.read_text().replace(plan.zookeeper, f"{HOST}:{links.ports[OF_BROKERS]}"))
    _ports(cluster).write_text(json.dumps(links.ports))


@contextmanager
def context(cluster: LocalCluster, run: str = "run", *, acting: bool = True) -> Iterator[StepContext]:
    """`direct.context` through the links, where there are any."""
    path = _ports(cluster)
    if not path.exists():
        with direct.context(cluster, run, acting=acting) as here:
            yield here
        return
    ports: dict[str, int] = json.loads(path.read_text())
    known = _connections(cluster.plan, ports)
    plan = cluster.plan
    with direct.context(cluster, run, acting=acting, connections=known, wired=lambda tools: _wired(tools, plan, ports)) as here:
        yield here


def _ports(cluster: LocalCluster) -> Path:
    return cluster.folder / "links.json"


def _connections(plan: Plan, ports: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    name, known = plan.shape.name, {key: dict(value) for key, value in read_connections(plan.connections_path).items()}
    brokers = ",".join(f"{HOST}:{ports[to(node)]}" for node in plan.brokers)
    known[f"{name}_zookeeper"]["host"] = f"{HOST}:{ports[ZOOKEEPER]}"
    known[f"{name}_kafka"]["extra"] = {"bootstrap.servers": brokers}
    return known


def _wired(tools: Tools, plan: Plan, ports: Mapping[str, int]) -> Tools:
    def wire(node: NodeSpec) -> Wire:
        return tools.wire(replace(node, port=ports[to(node)]))

    def host(node: NodeSpec) -> Host:
        there = tools.host(node)
        if node.role is NodeRole.CONTROLLER:
            brokers, controllers = (f"{HOST}:{ports[name]}" for name in (OF_BROKERS, OF_CONTROLLERS))
            return _LinkedHost(there, {brokers: controllers})  # type: ignore[return-value]
        if node in with_own_links(plan):
            own = {f"{one.id}@{one.endpoint}": f"{one.id}@{HOST}:{ports[between(node, one)]}" for one in plan.controllers}
            return _LinkedHost(there, own)  # type: ignore[return-value]
        return there

    return replace(tools, wire=wire, host=host)


class _LinkedHost:
    """A host that puts links into its node's file, in place of what is behind them, and does not report it: it would pass for an administrator's edit."""

    def __init__(self, host: Host, links: Mapping[str, str]) -> None:
        self._host, self._links = host, links

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def observe(self, node: NodeSpec) -> AgentObservation:
        seen = self._host.observe(node)
        assert isinstance(seen, AgentObservation)
        file = seen.facts["file"]
        if file is None:
            return seen
        text = self._without_links(file["text"])
        return AgentObservation(node, {**seen.facts, "file": {**file, "text": text, "sha256": sha256(text)}})

    def files(self, node: NodeSpec) -> NodeFiles:
        return self.observe(node).files()

    def read_properties(self, node: NodeSpec) -> str:
        return self._without_links(self._host.read_properties(node))

    def _without_links(self, text: str) -> str:
        for there, link in self._links.items():
            text = text.replace(link, there)
        return text

    def put_properties(self, node: NodeSpec, text: str, token: int) -> str:
        for there, link in self._links.items():
            text = text.replace(there, link)
        return self._host.put_properties(node, text, token)
