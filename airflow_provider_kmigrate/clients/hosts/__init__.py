"""Node machines: the interface `Host`, whatever the driver, and the drivers behind it.

Every verb that changes something takes the run's fencing token; a driver that has seen a higher one raises `Fenced`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from airflow_provider_kmigrate.clients.hosts.agent import AgentHost, Agents
from airflow_provider_kmigrate.clients.hosts.files import backup_name, sha256
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import NodeFiles, Process, Reason
from airflow_provider_kmigrate.exceptions import SpecError


class Host(Protocol):
    """A driver; thread-safe for different nodes. All methods raise `Unreachable`, `TimedOut`, `Fenced` or `Failed`."""

    def status(self, node: NodeSpec) -> Process:
        """The node's process now; raises for an unreachable host, which never counts as stopped."""

    def start(self, node: NodeSpec, token: int) -> None:
        """Start the process unless it runs; returns once it exists, which does not mean that it serves."""

    def stop(self, node: NodeSpec, token: int) -> float:
        """Send SIGTERM and wait until the process is gone; returns the seconds. Never SIGKILL: raises `TimedOut` instead."""

    def read_properties(self, node: NodeSpec) -> str:
        """The text of server.properties; raises `Failed` if it does not exist."""

    def put_properties(self, node: NodeSpec, text: str, token: int) -> str:
        """Replace server.properties atomically (create it if absent), keeping the old one beside it; returns the new SHA-256."""

    def files(self, node: NodeSpec) -> NodeFiles:
        """Parsed properties, their hash, and the meta.properties of every log directory."""

    def format_storage(self, node: NodeSpec, cluster_id: str, release: str, token: int) -> None:
        """Format the node's directories for KRaft with that metadata version; refuses directories that hold data."""

    def put_meta(self, node: NodeSpec, folder: str, text: str, token: int) -> None:
        """Replace the meta.properties of one log directory; the node must be down."""

    def wipe_storage(self, node: NodeSpec, cluster_id: str, token: int) -> None:
        """Move a stopped controller's own directories away; kept under another name if the driver can."""

    def log_tail(self, node: NodeSpec, lines: int = 40) -> str:
        """The end of the node's log for a failure message, with its path; empty if the driver cannot read it."""


def kept_as(node: NodeSpec, text: str) -> str:
    """The path on the node's machine under which a replaced file is kept; kmigrate-node's folder is that of a plain node.json."""
    if node.hosts.driver == "agent":
        return f"/var/lib/kmigrate/{node.role}/kept-{sha256(text)[:16]}.properties"
    return backup_name(node.hosts.properties, text)


def host_for(node: NodeSpec, env: Mapping[str, str] | None = None, agents: Agents | None = None, cluster_id: str = "") -> Host:
    """The driver that the cluster file names for `node`; `env`: what its connection adds to the environment of `connect`.

    `agents`: the open connections; without it the host has one of its own. `cluster_id`: every change of an agent names it.
    Raises `SpecError` for an unknown driver.
    """
    if node.hosts.driver == "agent":
        return AgentHost((agents or Agents())(node, env), cluster_id)
    if node.hosts.driver == "local":
        from airflow_provider_kmigrate.clients.hosts.local import LocalHost  # noqa: PLC0415  # no task of a real cluster needs it

        return LocalHost()
    text = f"{node.name}: there is no host driver {node.hosts.driver!r}. Write driver: agent or local."
    raise SpecError.because(Reason("F04", text))
