"""A local cluster whose links can be broken: the tool's to ZooKeeper and to each node, the brokers' and the controllers' to ZooKeeper.

The cluster file stays as it is, so that what is written into nodes' files are their true addresses; only the tool's own connections go
through the proxy. Brokers have the proxy in `zookeeper.connect` from the start; controllers, whose files are made from a broker's,
get another one as their file is put in place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.clients.connections import read_connections
from airflow_provider_kmigrate.clients.hosts.base import Host
from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster import NodeSpec, Role
from airflow_provider_kmigrate.localcluster.cluster import LocalCluster
from airflow_provider_kmigrate.localcluster.plan import HOST, Plan, free_ports
from airflow_provider_kmigrate.steps.run import World
from benchmarks import direct
from tests.system.proxy import Links

ZOOKEEPER, OF_BROKERS, OF_CONTROLLERS = "tool to ZooKeeper", "brokers to ZooKeeper", "controllers to ZooKeeper"


def to(node: NodeSpec) -> str:
    """The name of the tool's link to this node."""
    return f"tool to {node.name}"


def links_of(plan: Plan) -> Links:
    zookeeper = plan.ports["zookeeper"]
    nodes = {to(node): node.port for node in (*plan.brokers, *plan.controllers)}
    nodes |= dict.fromkeys((ZOOKEEPER, OF_BROKERS, OF_CONTROLLERS), zookeeper)
    return Links(dict(zip(nodes, free_ports(len(nodes)), strict=True)), nodes)


def put_between(cluster: LocalCluster, links: Links) -> None:
    """Brokers reach ZooKeeper through `links` from their next start on, and so does every `world` of this cluster; it must be down."""
    plan = cluster.plan
    for node in plan.brokers:
        path = Path(node.hosts.properties or "")
        path.write_text(path.read_text().replace(plan.zookeeper, f"{HOST}:{links.ports[OF_BROKERS]}"))
    _ports(cluster).write_text(json.dumps(links.ports))


@contextmanager
def world(cluster: LocalCluster, run: str = "run", *, acting: bool = True) -> Iterator[World]:
    """`direct.world` through the links, where there are any."""
    path = _ports(cluster)
    if not path.exists():
        with direct.world(cluster, run, acting=acting) as here:
            yield here
        return
    ports: dict[str, int] = json.loads(path.read_text())
    known = _connections(cluster.plan, ports)
    with direct.world(cluster, run, acting=acting, connections=known, wired=lambda tools: _wired(tools, ports)) as here:
        yield here


def _ports(cluster: LocalCluster) -> Path:
    return cluster.folder / "links.json"


def _connections(plan: Plan, ports: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    name, known = plan.shape.name, {key: dict(value) for key, value in read_connections(plan.connections_path).items()}
    brokers = ",".join(f"{HOST}:{ports[to(node)]}" for node in plan.brokers)
    known[f"{name}_zookeeper"]["host"] = f"{HOST}:{ports[ZOOKEEPER]}"
    known[f"{name}_kafka"]["extra"] = {"bootstrap.servers": brokers}
    return known


def _wired(tools: Tools, ports: Mapping[str, int]) -> Tools:
    def wire(node: NodeSpec) -> Wire:
        return tools.wire(replace(node, port=ports[to(node)]))

    def host(node: NodeSpec) -> Host:
        there = tools.host(node)
        return _ControllerHost(there, ports) if node.role is Role.CONTROLLER else there  # type: ignore[return-value]

    return replace(tools, wire=wire, host=host)


class _ControllerHost:
    """A controller's host that puts the controllers' link to ZooKeeper into its file, instead of the brokers'."""

    def __init__(self, host: Host, ports: Mapping[str, int]) -> None:
        self._host, self._ports = host, ports

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def put_properties(self, node: NodeSpec, text: str, token: int) -> str:
        brokers, controllers = (f"{HOST}:{self._ports[name]}" for name in (OF_BROKERS, OF_CONTROLLERS))
        return self._host.put_properties(node, text.replace(brokers, controllers), token)
