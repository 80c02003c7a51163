"""What `kmigrate-node` reports of a machine, compared with the cluster file: every difference, before a run meets it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Any, Final

from airflow_provider_kmigrate.core.cluster_state.model import Reason, ServiceUnit, Software
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeRole, NodeSpec, Served
from airflow_provider_kmigrate.core.migration.gates import describe_software_changes, describe_unknown_software
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, read_setting, stage_of
from airflow_provider_kmigrate.core.node_files.properties import (
    RenderFacts,
    parse_properties,
    render_broker_file,
    render_controller_file,
)
from airflow_provider_kmigrate.core.node_files.service_unit import (
    KAFKA_STOPS,
    find_closed,
    find_conflicts,
    find_kill,
    find_missing_stop,
    find_reaching_commands,
    is_of_cluster,
    is_of_zookeeper,
    systemd_seconds,
)
from airflow_provider_kmigrate.core.preflight.units import list_hidden_keys
from airflow_provider_kmigrate.core.shared.text import count_of, join_ids, printable, summarize
from airflow_provider_kmigrate.exceptions import Refused

LEAST_FREE = 16 * 1024 * 1024
"""Bytes that a folder must have free: a properties file, its replaced ones and the records of a job fit in."""

MOST_SKEW = 5.0
"""Seconds by which a machine's clock may differ, beyond what the question itself took."""

_REINSTALL = "Run `kmigrate node install CLUSTER.yaml`."
_ANY_VERSION: Final = "3.9"  # of a file that names none: the files are not written
# What systemd says of a unit that it would not start; all else that it says is a warning.
_REFUSED: Final = re.compile(r" is not executable|Failed to |Refusing|bad unit file")
_EDIT = "Correct the cluster file, or /etc/kmigrate/node.json on that machine."
Json = Mapping[str, Any]


def find_machine_problems(hello: Json, version: str, nodes: Iterable[Served]) -> Iterator[Reason]:
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


def find_node_problems(
    node: NodeSpec, role: Json, facts: Json, skew: float, neighbours: Iterable[NodeSpec] = ()
) -> Iterator[Reason]:
    """What is wrong with one node. `role`: as `hello` describes it; `skew`: the seconds by which its clock surely differs.

    `neighbours`: the other nodes of its machine.
    """
    yield from _check_paths(node, role)
    yield from _check_unit(node, role, facts, neighbours)
    after = systemd_seconds(facts["unit"].get("TimeoutStopUSec", ""))
    if after is not None and after <= max(KAFKA_STOPS, node.stop_timeout):
        yield Reason("W7", f"{node.name}: TimeoutStopSec of {role.get('service')} is {after:g} s.")
    if node.role is NodeRole.BROKER and role.get("stop_timeout", inf) <= KAFKA_STOPS:
        yield Reason("W7", f"{node.name}: stop_timeout in node.json is {role['stop_timeout']:g} s.")
    yield from _check_boot(node, role, facts)
    if changes := describe_software_changes(Software.from_agent(facts.get("software", {}))):
        yield Reason("R15", f"{node.name}: a restart would start {' and '.join(changes)}.")
    if abs(skew) > MOST_SKEW:
        yield Reason("W8", f"the clock of {node.host} differs by {skew:+.1f} s from the one here.")
    for path, free in sorted(_free_bytes(node, facts).items()):
        if free < LEAST_FREE:
            text = f"{node.name}: {path} has {free / 1024 / 1024:.1f} MiB free, {LEAST_FREE // 1024 // 1024} are needed. Free some space there."
            yield Reason("M03", text)


def find_unit_problems(node: NodeSpec, verified: Iterable[str]) -> Iterator[Reason]:
    """What would keep a unit from starting, by what `systemd-analyze verify` says of it: a program that is not there, a unit that it needs and is not."""
    refused = [text for text in map(printable, verified) if _REFUSED.search(text)]
    if refused:
        text = f"{node.name}: its unit would not start. systemd says: {summarize(refused)}."
        yield Reason("M03", f"{text} Correct the unit on {node.host}, then run `systemctl daemon-reload` there.")


def find_original(node: NodeSpec, facts: Json) -> str | None:
    """A broker's file before its first restart, from which all others are made; None: no broker, no file, or a later stage's. Raises `Refused`."""
    text: str | None = (facts["file"] or {}).get("text") if node.role is NodeRole.BROKER else None
    return text if text is not None and stage_of(parse_properties(text)) is FileStage.ZOOKEEPER else None


def find_render_problems(spec: ClusterSpec, node: NodeSpec, original: str) -> tuple[Reason, ...]:
    """Why kmigrate could not make this broker's files of later stages, and of the first broker's file those of the controllers."""
    version = read_setting(parse_properties(original), "inter.broker.protocol.version") or _ANY_VERSION
    facts = RenderFacts.of(spec, version)
    try:
        for stage in (FileStage.MIGRATION, FileStage.KRAFT):
            render_broker_file(original, stage, facts)
        for controller in spec.controllers if node == spec.brokers[0] else ():
            for stage in (FileStage.CONTROLLER_MIGRATION, FileStage.CONTROLLER_FINAL):
                render_controller_file(original, controller, stage, facts)
    except Refused as refused:
        return tuple(replace(reason, text=f"{node.name}: {reason.text}") for reason in refused.reasons)
    return ()


def _check_unit(node: NodeSpec, role: Json, facts: Json, neighbours: Iterable[NodeSpec]) -> Iterator[Reason]:
    """B19, R13, W7, M03: what preflight finds, before there is a run."""
    names, beside = [other.name for other in neighbours], facts.get("beside", 0)
    if (names or beside) and (commands := find_reaching_commands(facts["unit"])):
        others = join_ids(names) or count_of(beside, "other Kafka process", "other Kafka processes")
        text = f"{node.name}: {role.get('service')} would end {others} on {node.host}, too: {summarize(commands)}."
        yield Reason("B19", text)
    excluded = [unit for unit in find_conflicts(facts["unit"]) if is_of_zookeeper(unit) or (names and is_of_cluster(unit))]
    if excluded:
        text = f"{node.name}: {role.get('service')} and {join_ids(excluded)} exclude each other (Conflicts=): systemd stops one when the other starts."
        yield Reason("B19", text)
    if node.role is NodeRole.CONTROLLER and (setting := find_closed(facts["unit"], node.log_dir or "/")):
        fix = "PrivateTmp=no" if setting.startswith("PrivateTmp") else f"ReadWritePaths={node.log_dir}"
        text = f"{node.name}: the process of {role.get('service')} could not write to {node.log_dir} ({setting})"
        yield Reason("M03", f"{text}. Add `{fix}` to its unit on {node.host}, then run `systemctl daemon-reload` there.")
    if keys := list_hidden_keys(node.role, ServiceUnit(facts["unit"])):
        text = f"{node.name}: {role.get('service')} starts Kafka with --override of keys that kmigrate must write: {', '.join(keys)}."
        yield Reason("R13", text)
    if starts := facts.get("starts"):
        text = f"{node.name}: {role.get('service')} starts Kafka with {summarize(starts)}, not with {role['properties']}."
        yield Reason("R13", text)
    if missing := find_missing_stop(facts["unit"], facts.get("behind", False)):
        yield Reason("B19", f"{node.name}: a stop of {role.get('service')} would leave Kafka running: {missing}.")
    if kill := find_kill(facts["unit"], facts.get("behind", False)):
        yield Reason("W7", f"{node.name}: {role.get('service')} kills Kafka instead of stopping it: {summarize([kill])}.")


def _check_boot(node: NodeSpec, role: Json, facts: Json) -> Iterator[Reason]:
    """O07, O11: a machine that boots must come back in its stage, so a controller starts there if it is one of the quorum, and only then.

    `Restart=` is not judged: it does nothing after a stop by systemctl, and a unit that ends again and again is M08.
    """
    enabled, formatted = facts["boot_enabled"], any(folder.get("meta") for folder in facts["log_dirs"].values())
    if enabled is False and (node.role is NodeRole.BROKER or formatted):
        yield Reason("O07", f"{node.name}: its unit is not enabled at boot. The unit: {role.get('service')}, on {node.host}.")
    if enabled is True and node.role is NodeRole.CONTROLLER and not formatted:
        text = f"{node.name}: its unit is enabled at boot, but its directory is not formatted: it would fail at each boot."
        yield Reason("O11", f"{text} The unit: {role.get('service')}, on {node.host}.")


def _check_paths(node: NodeSpec, role: Json) -> Iterator[Reason]:
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


def _free_bytes(node: NodeSpec, facts: Json) -> dict[str, int]:
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
    software = Software.from_agent(facts.get("software", {}))
    installed = [f"Kafka {software.disk_release}"] * bool(software.disk_release)
    installed += [f"Java {software.disk_java_version}"] * bool(software.disk_java_version)
    parts = describe_unknown_software(software, runs=facts["process"]["state"] == "running") if "software" in facts else ""
    installed += [f"not known: {parts}"] * bool(parts)
    return ", ".join((f"{backend} {facts['process']['state']}", *installed, *shown, boots, f"clock {skew:+.1f} s"))
