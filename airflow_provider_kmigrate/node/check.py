"""`node check`: every verb that a run needs, tried on each node without changing anything.

Its token is 0, below that of every run: a machine where a run has acted refuses to write, and no run is ever refused because of a check.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_kmigrate.clients.hosts.agent import AgentHost, Connection
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.preflight.agent import find_machine_problems, find_node_problems, summary
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
    connection: Connection, nodes: Sequence[NodeSpec], version: str, cluster_id: str, clock: Callable[[], float] = time.time
) -> Iterator[NodeCheck]:
    """One line for each node of a machine. `version`: of the agent that it should have; `clock`: seconds since 1970."""
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
        neighbours = [other for other in nodes if other is not node]
        yield _check_node(AgentHost(connection, cluster_id, clock), node, role, machine, neighbours)


def _describe_nodes(nodes: Sequence[NodeSpec]) -> str:
    return f"{', '.join(node.name for node in nodes)} on {nodes[0].host}"


def _check_node(
    host: AgentHost, node: NodeSpec, role: dict[str, Any], machine: tuple[str, ...], neighbours: Sequence[NodeSpec]
) -> NodeCheck:
    problems, proven = list(machine), ["hello"]
    try:
        observation = host.observe(node)
        facts, skew = observation.facts, observation.clock_ahead or 0.0
        problems += map(str, find_node_problems(node, role, facts, skew, neighbours))
        _try_verbs(host, node, facts, proven.append)
        if node.role is NodeRole.CONTROLLER and role["has_storage_tool"]:
            host.try_tool(node)
            proven.append("the storage tool")
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
