"""What `kmigrate-node` reports of a machine, compared with the cluster file: every difference, before a run meets it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any

from airflow_provider_kmigrate.core.cluster import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.preflight.actors import KAFKA_STOPS
from airflow_provider_kmigrate.core.text import systemd_seconds

LEAST_FREE = 16 * 1024 * 1024
"""Bytes that a folder must have free: a properties file, its replaced ones and the records of a job fit in."""

MOST_SKEW = 5.0
"""Seconds by which a machine's clock may differ, beyond what the question itself took."""

_REINSTALL = "Run `kmigrate node install CLUSTER.yaml`."
_EDIT = "Correct the cluster file, or /etc/kmigrate/node.json on that machine."
Json = Mapping[str, Any]


def of_machine(hello: Json, version: str, nodes: Iterable[NodeSpec]) -> Iterator[Reason]:
    """What is wrong with the agent itself. `version`: of the agent that this kmigrate brings."""
    host, roles = hello.get("host"), {str(node.role) for node in nodes}
    if hello.get("agent") != version:
        yield Reason("M03", f"{host} has kmigrate-node {hello.get('agent')}, this kmigrate brings {version}. {_REINSTALL}")
    if not hello.get("root"):
        yield Reason("M03", f"kmigrate-node on {host} does not run as root and cannot stop a unit. Start it by `sudo -n`.")
    for role in sorted(hello.get("roles", {}).keys() - roles):
        yield Reason("M03", f"node.json on {host} has the role {role}, the cluster file has no {role} there. {_EDIT}")
    for role in sorted(roles - hello.get("roles", {}).keys()):
        yield Reason("M03", f"the cluster file has a {role} on {host}, node.json there does not. {_REINSTALL}")


def of_node(node: NodeSpec, role: Json, facts: Json, skew: float) -> Iterator[Reason]:
    """What is wrong with one node. `role`: as `hello` describes it; `skew`: the seconds by which its clock surely differs."""
    yield from _paths(node, role)
    after = systemd_seconds(facts["unit"].get("TimeoutStopUSec", ""))
    if after is not None and after <= max(KAFKA_STOPS, node.stop_timeout):
        yield Reason("W7", f"{node.name}: TimeoutStopSec of {role.get('service')} is {after:g} s.")
    if node.role is NodeRole.BROKER and role.get("stop_timeout", inf) <= KAFKA_STOPS:
        yield Reason("W7", f"{node.name}: stop_timeout in node.json is {role['stop_timeout']:g} s.")
    yield from _boot(node, role, facts)
    if abs(skew) > MOST_SKEW:
        yield Reason("W8", f"the clock of {node.host} differs by {skew:+.1f} s from the one here.")
    for path, free in sorted(_free(node, facts).items()):
        if free < LEAST_FREE:
            text = f"{node.name}: {path} has {free / 1024 / 1024:.1f} MiB free, {LEAST_FREE // 1024 // 1024} are needed. Free some space there."
            yield Reason("M03", text)


def _boot(node: NodeSpec, role: Json, facts: Json) -> Iterator[Reason]:
    """O07, O11: a machine that boots must come back in its stage, so a controller starts there if it is one of the quorum, and only then.

    `Restart=` is not judged: it does nothing after a stop by systemctl, and a unit that ends again and again is M08.
    """
    enabled, formatted = facts["boot_enabled"], any(folder.get("meta") for folder in facts["log_dirs"].values())
    if enabled is False and (node.role is NodeRole.BROKER or formatted):
        yield Reason("O07", f"{node.name}: its unit is not enabled at boot. The unit: {role.get('service')}, on {node.host}.")
    if enabled is True and node.role is NodeRole.CONTROLLER and not formatted:
        text = f"{node.name}: its unit is enabled at boot, but its directory is not formatted: it would fail at each boot."
        yield Reason("O11", f"{text} The unit: {role.get('service')}, on {node.host}.")


def _paths(node: NodeSpec, role: Json) -> Iterator[Reason]:
    if role["properties"] != node.hosts.properties:
        text = f"{node.name}: node.json has the properties file {role['properties']}, the cluster file {node.hosts.properties}. {_EDIT}"
        yield Reason("M03", text)
    if node.role is NodeRole.CONTROLLER and role["log_dirs"] != [node.log_dir]:
        text = (
            f"{node.name}: node.json has the directories {', '.join(role['log_dirs'])}, the cluster file {node.log_dir}. {_EDIT}"
        )
        yield Reason("M03", text)
    if node.role is NodeRole.CONTROLLER and not role["has_storage_tool"]:
        text = f"{node.name}: storage_tool in node.json is no program: the controller's directory could not be formatted. Name kafka-storage.sh."
        yield Reason("M03", text)


def _free(node: NodeSpec, facts: Json) -> dict[str, int]:
    """Free bytes of each path that a run writes to, as far as they are known."""
    file = {node.hosts.properties: facts["file"]["free"]} if facts["file"] else {}
    folders = {path: folder["free"] for path, folder in facts["log_dirs"].items()}
    return {path: free for path, free in (file | folders).items() if free is not None}


def summary(role: Json, facts: Json, skew: float) -> str:
    """A node's state, in a few words."""
    unit, backend = facts["unit"], role.get("service") or role.get("backend")
    boots = {True: "starts at boot", False: "does not start at boot"}.get(facts["boot_enabled"], "may start at boot")
    shown = [
        f"{name}={unit[key]}" for key, name in (("TimeoutStopUSec", "TimeoutStopSec"), ("Restart", "Restart")) if key in unit
    ]
    return ", ".join((f"{backend} {facts['process']['state']}", *shown, boots, f"clock {skew:+.1f} s"))
