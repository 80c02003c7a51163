"""`node check`: every verb that a run needs, tried on each node without changing anything.

Its token is 0, below that of every run: a machine where a run has acted refuses to write, and no run is ever refused because of a check.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_kmigrate.clients.hosts.agent import AgentHost, Connection
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeRole, NodeSpec, Served
from airflow_provider_kmigrate.core.preflight.agent import (
    find_machine_problems,
    find_node_problems,
    find_original,
    find_render_problems,
    find_unit_problems,
    summary,
)
from airflow_provider_kmigrate.core.shared.text import indent_further_lines, printable
from airflow_provider_kmigrate.exceptions import Fenced, KMigrateError

_TOKEN = 0


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """One node, or one machine without an answer. `problems`: whole sentences, each with what to do."""

    what: str
    seen: str = ""
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        description = printable(f"{self.what}: {self.seen}")
        if not self.problems:
            return f"ok    {description}"
        return "\n".join(
            (f"FAIL  {description.rstrip(': ')}", *(f"      {indent_further_lines(text)}" for text in self.problems))
        )


def check_machine(
    connection: Connection, nodes: Sequence[Served], version: str, spec: ClusterSpec, clock: Callable[[], float] = time.time
) -> Iterator[NodeCheck]:
    """One line for each node and unit of a machine. `version`: of the agent that it should have; `spec`: of the cluster; `clock`: seconds since 1970."""
    try:
        hello = connection.ask("hello")
    except KMigrateError as error:
        yield NodeCheck(_describe_nodes(nodes), problems=(str(error),))
        return
    machine = tuple(map(str, find_machine_problems(hello, version, nodes)))
    for node in nodes:
        if (role := hello["roles"].get(node.role)) is None:
            yield NodeCheck(_describe_nodes([node]), problems=machine)
            continue
        if not isinstance(node, NodeSpec):
            yield NodeCheck(_describe_nodes([node]), "an application's unit; tried hello", machine)
            continue
        neighbours = [other for other in nodes if other is not node and isinstance(other, NodeSpec)]
        yield _check_node(AgentHost(connection, spec.cluster_id, clock), spec, node, role, machine=machine, neighbours=neighbours)


def _describe_nodes(nodes: Sequence[Served]) -> str:
    names = (node.name if isinstance(node, NodeSpec) else node.role for node in nodes)
    return f"{', '.join(names)} on {nodes[0].host}"


def _check_node(
    host: AgentHost,
    spec: ClusterSpec,
    node: NodeSpec,
    role: dict[str, Any],
    *,
    machine: tuple[str, ...],
    neighbours: Sequence[NodeSpec],
) -> NodeCheck:
    problems, proven = list(machine), ["hello"]
    try:
        observation = host.observe(node)
        facts, skew = observation.facts, observation.clock_ahead or 0.0
        problems += map(str, find_node_problems(node, role, facts, skew, neighbours))
        _try_verbs(host, node, facts, proven.append)
        if node.role is NodeRole.BROKER or role["has_storage_tool"]:  # a controller without one is a problem already
            problems += map(str, find_unit_problems(node, host.try_tool(node)))
            proven += ["the storage tool"] * (node.role is NodeRole.CONTROLLER)
        if (original := find_original(node, facts)) is not None:
            problems += map(str, find_render_problems(spec, node, original))
            proven.append("the files of later stages (made, not written)")
        return NodeCheck(_describe_nodes([node]), f"{summary(role, facts, skew)}; tried {', '.join(proven)}", tuple(problems))
    except KMigrateError as error:
        return NodeCheck(_describe_nodes([node]), f"tried {', '.join(proven)}", (*problems, str(error)))


def _try_verbs(host: AgentHost, node: NodeSpec, facts: Mapping[str, Any], worked: Callable[[str], None]) -> None:
    """Try each verb, and name those that `worked`. Raises `KMigrateError` for the first one that did not."""
    host.files(node)
    worked("facts")
    host.log_tail(node)
    worked("read_log")
    try:
        if facts["file"]:
            host.put_properties(node, facts["file"]["text"], _TOKEN)
            worked("install_file (the same bytes)")
        if node.role is NodeRole.BROKER and facts["process"]["state"] == "running":
            host.start(node, _TOKEN)
            worked("start (it runs)")
    except Fenced:
        worked("no write, because a run of kmigrate has acted here")
