"""What kmigrate asks of a node's machine, whatever reaches it.

Every verb that changes something takes the run's fencing token; a driver that has seen a higher one raises `Fenced`.
"""

from __future__ import annotations

from typing import Protocol

from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import NodeFiles, Process


class Host(Protocol):
    """Drivers are thread-safe for different nodes; all raise `Unreachable`, `TimedOut`, `Fenced` or `Failed`."""

    def status(self, node: NodeSpec) -> Process:
        """The node's process now; an unreachable host raises, it never counts as stopped."""

    def start(self, node: NodeSpec, token: int) -> None:
        """Start the process unless it runs; returns once it exists, which does not mean that it serves."""

    def stop(self, node: NodeSpec, token: int) -> float:
        """SIGTERM and wait until the process is gone; the seconds that took. Never SIGKILL: `TimedOut` instead."""

    def read_properties(self, node: NodeSpec) -> str:
        """The text of server.properties; raises `Failed` where there is none."""

    def put_properties(self, node: NodeSpec, text: str, token: int) -> str:
        """Replace server.properties atomically (created where absent), keep the old one beside it; the new SHA-256."""

    def files(self, node: NodeSpec) -> NodeFiles:
        """Parsed properties, their hash, and the meta.properties of every log directory."""

    def format_storage(self, node: NodeSpec, cluster_id: str, release: str, token: int) -> None:
        """Format the node's directories for KRaft with that metadata version; refuses directories that hold data."""

    def put_meta(self, node: NodeSpec, folder: str, text: str, token: int) -> None:
        """Replace the meta.properties of one log directory; the node must be down."""

    def wipe_storage(self, node: NodeSpec, cluster_id: str, token: int) -> None:
        """Take a stopped controller's own directories out of the way; they are kept under another name where the driver can."""

    def log_tail(self, node: NodeSpec, lines: int = 40) -> str:
        """The end of the node's log for a failure message, with where it is; empty where the driver cannot read it."""
