"""What `kmigrate init` reads: ZooKeeper, then each broker and the agent on its machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_provider_kmigrate.clients.connections import settings_for
from airflow_provider_kmigrate.clients.hosts.agent import Agents
from airflow_provider_kmigrate.clients.tools import Tools, open_tools
from airflow_provider_kmigrate.clients.wire import describe_log_dirs, read_startup_config
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.preflight.first_file import (
    FirstBroker,
    FirstFacts,
    choose_endpoint,
    parse_registration,
)
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError
from airflow_provider_kmigrate.node.command import build_reach, make_lookup
from airflow_provider_kmigrate.observe.stored import releases_of

_AT_ONCE = 16  # brokers that are asked
_BROKERS = "/brokers/ids"


def read_first_facts(options: argparse.Namespace) -> FirstFacts:
    """Ask ZooKeeper for the brokers, each broker for its release and directories, and each agent for the file. Raises ours.

    A broker or an agent that does not answer is a doubt in its entry; ZooKeeper must answer.
    """
    spec = ClusterSpec(options.name, "", options.zookeeper, options.kafka, (), ())
    settings = settings_for(spec, make_lookup(spec, options.connections))
    ports = list_ports(settings.kafka.properties.get("bootstrap.servers", ""))
    agents = _open_agents(spec, options) if options.ssh else None
    try:
        with open_tools(settings, options.name) as tools:
            cluster_id, ids = tools.zk.cluster_id(), sorted(filter(str.isdigit, tools.zk.children(_BROKERS)), key=int)
            read = partial(read_first_broker, tools, agents, options.ssh, ports)
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                brokers = list(threads.map(read, tools.zk.read_children(_BROKERS, ids)))
    finally:
        if agents is not None:
            agents.close()
    return FirstFacts(options.name, cluster_id, options.zookeeper, options.kafka, brokers, options.ssh)


def read_first_broker(
    tools: Tools, agents: Agents | None, ssh: str, ports: Sequence[int], znode: tuple[str, bytes]
) -> FirstBroker:
    """One broker by its znode's data, by itself and by its machine's agent."""
    broker, registration = int(znode[0]), parse_registration(znode[1])
    host, port = choose_endpoint(registration, ports)
    rack = registration.get("rack")
    first = FirstBroker(broker, host, port, rack if isinstance(rack, str) else None)
    if not host or port is None:
        return replace(first, doubts=("ZooKeeper does not show which of its listeners clients use.",))
    node = NodeSpec(broker, NodeRole.BROKER, host, port, HostSpec("agent", ssh_conn_id=ssh), first.rack, None)
    doubts: list[str] = []

    def read_or_doubt(what: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except KMigrateError as error:
            doubts.append(f"{what} not known: {error}")
            return None

    release = read_or_doubt("Its release is", lambda: _read_release_line(tools, node))
    directories = read_or_doubt("Its directories are", lambda: describe_log_dirs(tools.wire(node)))
    properties = read_or_doubt("Its file is", lambda: _read_properties_path(agents, node)) if agents is not None else None
    software = read_or_doubt("Its full release is", lambda: _read_release(agents, node)) if agents is not None else None
    paths = None if directories is None else tuple(directory.path for directory in directories)
    return replace(first, release=release, log_dirs=paths, properties=properties, software=software, doubts=tuple(doubts))


def _read_properties_path(agents: Agents, node: NodeSpec) -> str | None:
    """The properties file that the agent's node.json has for its broker; None without one."""
    role = agents(node, None).ask("hello").get("roles", {}).get(str(NodeRole.BROKER)) or {}
    path = role.get("properties")
    return path if isinstance(path, str) else None


def _read_release(agents: Agents, node: NodeSpec) -> str | None:
    """The full release that runs, as the agent reports it; None if it does not. Raises `Failed` if the disk has another one."""
    software = agents(node, None).facts(node.name, str(NodeRole.BROKER)).get("software") or {}
    runs, on_disk = software.get("release") or None, software.get("disk_release") or None
    if runs and on_disk and runs != on_disk:
        raise Failed(f"it runs {runs}, and its disk has {on_disk}")
    return runs


def _read_release_line(tools: Tools, node: NodeSpec) -> str | None:
    """The release line of its software, such as 3.9; None if it does not say."""
    release = releases_of({node.id: read_startup_config(tools.wire(node), node.id)})[node.id]
    return release and release.partition("-")[0]


def _open_agents(spec: ClusterSpec, options: argparse.Namespace) -> Agents:
    any_node = NodeSpec(0, NodeRole.BROKER, "", 0, HostSpec("agent", ssh_conn_id=options.ssh))
    reached = replace(spec, brokers=(any_node,))
    return build_reach(reached, make_lookup(reached, options.connections)).agents()


def list_ports(servers: str) -> list[int]:
    """The ports of `bootstrap.servers`, each once."""
    ports = (server.strip().rpartition(":")[2] for server in servers.split(","))
    return list(dict.fromkeys(int(port) for port in ports if port.isascii() and port.isdigit()))
