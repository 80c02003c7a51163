"""The drivers that reach nodes' machines, behind `base.Host`."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kmigrate.clients.hosts.base import Host
from airflow_provider_kmigrate.clients.hosts.command import CommandHost
from airflow_provider_kmigrate.clients.hosts.local import LocalHost
from airflow_provider_kmigrate.clients.hosts.runner import LocalRunner
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import SpecError


def host_for(node: NodeSpec, env: Mapping[str, str] | None = None) -> Host:
    """The driver that the cluster file names for `node`; `env`: what its connection adds to the commands' environment.

    Raises `SpecError` for an unknown driver.
    """
    if node.hosts.driver == "local":
        return LocalHost()
    if node.hosts.driver == "command":
        return CommandHost(LocalRunner(env))
    text = f"{node.name}: there is no host driver {node.hosts.driver!r}."
    raise SpecError.because(
        Reason("F04", text, "Nothing else reaches the node's machine.", "Write driver: local, or driver: command.")
    )
