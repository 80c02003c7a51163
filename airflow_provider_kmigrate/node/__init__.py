"""`kmigrate-node` on the machines: its one file beside this one, and the commands that install it and check it.

python -m airflow_provider_kmigrate.node install CLUSTER.yaml
python -m airflow_provider_kmigrate.node check CLUSTER.yaml
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec, machine
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import SpecError

AGENT = Path(__file__).with_name("kmigrate-node")


def version_of(agent: str) -> str:
    """The version in the text of an agent's file."""
    found = re.search(r'^VERSION = "(.+)"$', agent, re.MULTILINE)
    return found[1] if found else "unknown"


def machines(spec: ClusterSpec) -> Mapping[str, tuple[NodeSpec, ...]]:
    """The nodes of each machine, by its `host` as it is written first; none that is declared gone.

    Raises `SpecError` for nodes that no agent can serve.
    """
    found: dict[str, tuple[NodeSpec, ...]] = {}
    names: dict[str, str] = {}
    for node in (node for node in spec.nodes() if node not in gone(spec)):
        host = names.setdefault(machine(node.host), node.host)
        if any(other.role is node.role for other in found.get(host, ())):
            text = f"{host} has two {node.role}s: kmigrate-node serves one broker and one controller of a machine."
            raise SpecError.because(Reason("F04", text))
        found[host] = (*found.get(host, ()), node)
    return found


def gone(spec: ClusterSpec) -> tuple[NodeSpec, ...]:
    """The nodes whose machines the cluster file declares dead for good (`driver: gone`): there is nothing to reach."""
    return tuple(node for node in spec.nodes() if node.hosts.driver == "gone")
