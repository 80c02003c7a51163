"""A node of a local cluster through its agent, as kmigrate acts on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_kmigrate.clients.hosts import Host, host_for
from airflow_provider_kmigrate.clients.hosts.agent import Agents
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec


@contextmanager
def agent_of(node: NodeSpec, cluster_id: str) -> Iterator[Host]:
    """The node's host, over a connection that ends afterwards."""
    agents = Agents()
    try:
        yield host_for(node, None, agents, cluster_id)
    finally:
        agents.close()
