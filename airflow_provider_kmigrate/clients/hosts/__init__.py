"""Node machines: the interface `Host`, for the agent on a machine, or for a machine that is dead for good.

Every verb that changes something takes the run's fencing token; an agent that has seen a higher one raises `Fenced`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Never, Protocol

from airflow_provider_kmigrate.clients.hosts.agent import AgentHost, Agents, Restart
from airflow_provider_kmigrate.core.cluster_state.model import (
    NodeFiles,
    PartitionIds,
    Process,
    ProcessState,
    Reason,
    TopicMetadata,
)
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.exceptions import Refused


class HostObservation(Protocol):
    """What one request to a machine found out about a node."""

    def process(self) -> Process:
        """The node's process."""

    def files(self) -> NodeFiles:
        """Parsed properties, their hash, and the meta.properties of every log directory. Raises `Refused` for an unknown directory."""


class Host(Protocol):
    """A driver; thread-safe for different nodes. All methods raise `Unreachable`, `TimedOut`, `Fenced` or `Failed`."""

    def observe(self, node: NodeSpec) -> HostObservation:
        """The node's process and files now, by one request; raises for an unreachable host, which never counts as stopped."""

    def files(self, node: NodeSpec) -> NodeFiles:
        """`observe` for the files alone."""

    def start(self, node: NodeSpec, token: int) -> None:
        """Start the process unless it runs; returns once it exists, which does not mean that it serves."""

    def stop(self, node: NodeSpec, token: int, say: Callable[[str], object] = str, unresponsive_after: float = inf) -> float:
        """Send SIGTERM and wait until the process is gone; returns the seconds. Never SIGKILL: raises `TimedOut` instead.

        Raises `Unreachable` some 10 s after the machine's last answer, or `unresponsive_after` seconds if that is less: the stop may yet happen.
        `say`: hears what is waited for.
        """

    def restart(self, node: NodeSpec, how: Restart, token: int) -> float:
        """Stop, write files and start, in one job of the machine; returns the seconds of the stop."""

    def read_properties(self, node: NodeSpec) -> str:
        """The text of server.properties; raises `Failed` if it does not exist."""

    def put_properties(self, node: NodeSpec, text: str, token: int) -> str:
        """Replace server.properties atomically (create it if absent), keeping the old one; returns the new SHA-256."""

    def kept_as(self, node: NodeSpec, text: str) -> str:
        """The path on the node's machine under which a replaced server.properties is kept."""

    def format_storage(self, node: NodeSpec, cluster_id: str, release: str, token: int) -> None:
        """Format the node's directories for KRaft with that metadata version; refuses directories that hold data."""

    def put_meta(self, node: NodeSpec, folder: str, text: str, token: int) -> None:
        """Replace the meta.properties of one log directory; the node must be down."""

    def wipe_storage(self, node: NodeSpec, cluster_id: str, token: int) -> None:
        """Move a stopped controller's own directories away; they are kept under another name."""

    def leftovers(self, node: NodeSpec) -> Sequence[tuple[str, str]]:
        """What migrations and rollbacks have left on the machine: (kind, path), as `core.migration.leftovers` names the kinds."""

    def compare_topic_ids(self, node: NodeSpec, topics: Iterable[TopicMetadata]) -> PartitionIds:
        """Compare each partition on a broker's disks with `topics`, all that there are. Raises `Refused` if the agent is too old."""

    def find_addresses(self, node: NodeSpec) -> tuple[str, ...]:
        """The addresses that the node's host has on its own machine; the first is the one it binds. Raises `Refused` if the agent is too old."""

    def remove(self, node: NodeSpec, left: Sequence[tuple[str, str]], kinds: Sequence[str], token: int) -> None:
        """Remove the `leftovers` of these kinds, if they are still the `left` ones; no path is named to the machine."""

    def log_tail(self, node: NodeSpec) -> str:
        """The end of the node's log for a failure message."""


class GoneObservation:
    """What is observed of a machine that is gone."""

    def __init__(self, node: NodeSpec) -> None:
        self._node = node

    def process(self) -> Process:
        """It is stopped."""
        return Process(ProcessState.STOPPED, killed_after=inf)

    def files(self) -> NodeFiles:
        """There is no file, and the directory is not formatted."""
        meta: dict[str, dict[str, str]] | None = {self._node.log_dir: {}} if self._node.log_dir else None
        return NodeFiles(None, meta, has_metadata_log=False)


class GoneHost:
    """`hosts.Host` for nodes of driver `gone`: observed like a stopped node; every other verb is refused."""

    def observe(self, node: NodeSpec) -> GoneObservation:
        """A stopped node."""
        return GoneObservation(node)

    def files(self, node: NodeSpec) -> NodeFiles:
        """As `observe`."""
        return self.observe(node).files()

    def log_tail(self, node: NodeSpec) -> str:
        """One sentence in place of a log."""
        return f"{node.name} is gone: it has no log"

    def leftovers(self, node: NodeSpec) -> Sequence[tuple[str, str]]:
        """Nothing: the disk is gone."""
        del node
        return ()

    def refuse(self, node: NodeSpec, *_given: object, **_named: object) -> Never:
        """Raises `Refused` (M07). Only a node whose endpoint answers is asked to stop: it lives."""
        raise Refused.because(Reason("M07", f"{node.name} is declared gone in the cluster file."))

    start = stop = restart = refuse
    read_properties = put_properties = kept_as = refuse
    format_storage = put_meta = wipe_storage = remove = compare_topic_ids = find_addresses = refuse


def host_for(node: NodeSpec, env: Mapping[str, str] | None, agents: Agents, cluster_id: str) -> Host:
    """The driver that the cluster file names for `node`.

    `env`: what its connection adds to the environment of `connect`; `agents`: the open connections; every change of an agent names
    `cluster_id`.
    """
    return GoneHost() if node.hosts.driver == "gone" else AgentHost(agents(node, env), cluster_id)
