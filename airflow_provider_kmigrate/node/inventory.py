"""How an administrator reaches the machines of clusters: Ansible's inventory in YAML, or one that is derived from cluster files.

For `node install`, `check` and `known-hosts` alone, over OpenSSH: a run of kmigrate uses the connections of its cluster file. What is read of
a host, its groups and `all`: `ansible_host`, `ansible_port`, `ansible_user`, `ansible_ssh_private_key_file`, `ansible_become`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from airflow_provider_kmigrate.clients.hosts.agent import PATH
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import Served, normalize_host
from airflow_provider_kmigrate.core.shared.text import printable, summarize
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.spec.yaml_nodes import MOST_BYTES, read_yaml

SSH_PORT: Final = 22
_SERVE = (PATH, "serve")
_DEEPEST = 20  # groups in groups
_ADDRESS = re.compile(
    r"[A-Za-z0-9_:\[][\w.:%\[\]-]*", re.ASCII
)  # nothing that ssh reads as an option, or that looks like another
_USER = re.compile(r"[A-Za-z0-9_][\w.@\\-]*")
_OPTIONS = ("BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=10", "ServerAliveInterval=3", "ServerAliveCountMax=3")


@dataclass(frozen=True, slots=True)
class SshAccess:
    """How one machine is reached. `user` empty: as ssh decides. `has_sudo`: root is reached by `sudo -n`; else the user is root."""

    address: str
    port: int = SSH_PORT
    user: str = ""
    key_file: str = ""
    has_sudo: bool = True

    def __post_init__(self) -> None:
        """Raises `Refused` (N03) for what ssh would read as an option, or that is no plain word."""
        if not _ADDRESS.fullmatch(self.address) or (self.user and not _USER.fullmatch(self.user)) or "{{" in self.key_file:
            shown = printable(f"{self.address} {self.user} {self.key_file}")
            raise Refused.because(Reason("N03", f"A machine has no plain address, user or key file: {shown}."))

    def build_command(self, known_hosts: Path | None = None) -> tuple[str, ...]:
        """The command that runs `kmigrate-node serve` there. Host keys are verified, by `known_hosts` or ssh's own files."""
        options = (
            *_OPTIONS,
            *([] if known_hosts is None else [f"UserKnownHostsFile={known_hosts}", "GlobalKnownHostsFile=/dev/null"]),
        )
        user = ("-l", self.user) if self.user else ()
        key = ("-i", self.key_file, "-o", "IdentitiesOnly=yes") if self.key_file else ()
        words = tuple(word for option in options for word in ("-o", option))
        sudo = ("sudo", "-n") if self.has_sudo else ()
        return ("ssh", "-T", *words, "-p", str(self.port), *user, *key, self.address, *sudo, *_SERVE)


Inventory = Mapping[str, SshAccess]  # by `normalize_host` of its name


def read_inventory(path: Path) -> Inventory:
    """Raises `Refused` (N03) for a file that is none, or a value that is not plain."""
    try:
        with path.open("rb") as file:
            document = read_yaml(file.read(MOST_BYTES + 1))
    except (OSError, ValueError) as error:
        raise _refuse(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(document, dict) or not all(isinstance(group, dict | None) for group in document.values()):
        raise _refuse(path, "is no inventory of Ansible in YAML: groups, with `hosts`, `vars` and `children`")
    inherited = _mapping(path, "all", (document.get("all") or {}).get("vars"))
    values: dict[str, dict[str, Any]] = {}
    for name, group in document.items():
        for host, found in _list_hosts(path, str(name), group or {}, inherited, 0):
            values[host] = values.get(host, {}) | found
    return {normalize_host(host): _read_access(path, host, found) for host, found in values.items()}


def _list_hosts(
    path: Path, name: str, group: Mapping[str, Any], inherited: Mapping[str, Any], depth: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each host of a group and of its groups, with the variables that hold for it: the innermost win."""
    if depth > _DEEPEST:
        raise _refuse(path, f"has groups that are nested more than {_DEEPEST} deep")
    variables = {**inherited, **_mapping(path, name, group.get("vars"))}
    for child, below in _mapping(path, name, group.get("children")).items():
        yield from _list_hosts(path, str(child), _mapping(path, str(child), below), variables, depth + 1)
    for host, own in _mapping(path, name, group.get("hosts")).items():
        yield str(host), {**variables, **_mapping(path, str(host), own)}


def _mapping(path: Path, name: str, value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _refuse(path, f"has no mapping where {name} needs one")
    return value


def _read_access(path: Path, host: str, values: Mapping[str, Any]) -> SshAccess:
    address, user = str(values.get("ansible_host", host)), str(values.get("ansible_user") or "")
    port, sudo = values.get("ansible_port", SSH_PORT), values.get("ansible_become", True)
    key_file = str(values.get("ansible_ssh_private_key_file") or "")
    if isinstance(port, bool) or not str(port).isdecimal() or not 0 < int(port) < 1 << 16 or not isinstance(sudo, bool):
        raise _refuse(path, f"has no port, or no true or false as ansible_become, for {host}: {port!r} {sudo!r}")
    return SshAccess(address, int(port), user, str(Path(key_file).expanduser()) if key_file else "", sudo and user != "root")


def _refuse(path: Path, text: str) -> Refused:
    return Refused.because(Reason("N03", f"{path} {printable(text)}."))


def find_access(inventory: Inventory, host: str) -> SshAccess:
    """Raises `Refused` (N03) for a host that the inventory does not name."""
    if (access := inventory.get(normalize_host(host))) is None:
        raise Refused.because(Reason("N03", f"The inventory has no host {host}; it has {summarize(inventory)}."))
    return access


def reach_by_inventory(
    machines: Mapping[str, tuple[Served, ...]], inventory: Inventory, known_hosts: Path | None
) -> dict[str, tuple[Served, ...]]:
    """The machines, reached as the inventory says and not as their cluster file does. Raises `Refused` as `find_access`."""
    commands = {host: find_access(inventory, host).build_command(known_hosts) for host in machines}
    return {
        host: tuple(
            replace(node, hosts=replace(node.hosts, connect=commands[host], ssh_conn_id="", conn_id="")) for node in nodes
        )
        for host, nodes in machines.items()
    }


def render_inventory(machines_by_cluster: Mapping[str, Mapping[str, object]]) -> str:
    """An inventory of the machines of each cluster, to which its owner adds users, ports and keys; Ansible reads it too."""
    children = {
        name_group(cluster): {"vars": {"kmigrate_cluster": cluster}, "hosts": {host: {} for host in machines}}
        for cluster, machines in machines_by_cluster.items()
    }
    head = "# Machines of the cluster files. Add ansible_user, ansible_port, ansible_ssh_private_key_file, or ansible_host of a host.\n"
    document = {"all": {"vars": {"ansible_become": True}, "children": children}}
    return head + yaml.safe_dump(document, sort_keys=False, default_flow_style=False)


def name_group(cluster: str) -> str:
    """The name of a cluster's group: Ansible allows letters, digits and underscores."""
    return "kmigrate_" + re.sub(r"\W", "_", cluster)
