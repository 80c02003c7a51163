"""Nodes beside each other on a machine."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec
from tests.core.preflight_views import Case, config, healthy


def beside_broker_0(log_dir: str, **extra: str) -> Case:
    """Controller 3001 on the host of broker 0, whose data lies in /data."""
    view, facts = healthy()
    moved = [replace(node, host="node0", log_dir=log_dir) if node.id == 3001 else node for node in facts.spec.controllers]
    properties = {key.replace("_", "."): value for key, value in extra.items()}
    return view, replace(facts, spec=replace(facts.spec, controllers=tuple(moved), controller_properties=properties))


SAME, PODS = ("ssh", "{host}", "kmigrate-node", "serve"), ("docker", "exec", "-i", "kafka-{id}", "kmigrate-node", "serve")


def beside(opened: str, port: int = 9093, host: str = "node0", connect: tuple[str, ...] = SAME, **extra: str) -> Case:
    """Controller 3001 on the machine of broker 0, whose file has these listeners."""
    view, facts = healthy()
    hosts = HostSpec("agent", "/etc/kafka/server.properties", connect=connect)
    nodes = [
        replace(node, hosts=hosts, **({"host": host, "port": port} if node.id == 3001 else {}))  # type: ignore[arg-type]
        for node in facts.spec.nodes()
    ]
    files = replace(view.brokers[0].files, properties=config(0, listeners=opened))
    spec = replace(facts.spec, brokers=tuple(nodes[:3]), controllers=tuple(nodes[3:]), controller_properties=extra)
    brokers = {**view.brokers, 0: replace(view.brokers[0], files=files)}
    return replace(view, brokers=brokers), replace(facts, spec=spec)
