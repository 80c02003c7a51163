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
    """The nodes of each machine, by its `host` as it is written first. Raises `SpecError` for nodes that no agent can serve."""
    found: dict[str, tuple[NodeSpec, ...]] = {}
    names: dict[str, str] = {}
    for node in spec.nodes():
        if node.hosts.driver != "agent":
            raise _refused(f"{node.name} has the driver {node.hosts.driver}: there is nothing to install for it.")
        host = names.setdefault(machine(node.host), node.host)
        if any(other.role is node.role for other in found.get(host, ())):
            raise _refused(f"{host} has two {node.role}s: kmigrate-node serves one broker and one controller of a machine.")
        found[host] = (*found.get(host, ()), node)
    return found


def _refused(text: str) -> SpecError:
    return SpecError.because(Reason("F04", text))
