"""`kmigrate node ansible`: a role that installs kmigrate-node as `node install` does, with the same script, and its inventory and playbook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.exceptions import Failed
from airflow_provider_kmigrate.node.inventory import name_group, render_inventory

ROLE = "kmigrate_node"
_HEAD = "# Written by `kmigrate node ansible`. Run it again after an update of kmigrate.\n"
_ACTS = ": (writes|would write|removes|would remove) "
_TASKS = [
    {
        "name": "Install kmigrate-node, or show what would be written (check mode)",
        "ansible.builtin.script": {
            "cmd": "{{ kmigrate_cluster }}.sh {{ inventory_hostname | quote }} {{ '--dry-run' if ansible_check_mode else '' }}",
            "executable": "/bin/sh",
        },
        "become": True,
        "check_mode": False,
        "register": "kmigrate_node_installed",
        "changed_when": f"kmigrate_node_installed.stdout is search('{_ACTS}')",
    },
    {
        "name": "Show what the machine said",
        "ansible.builtin.debug": {"var": "kmigrate_node_installed.stdout_lines"},
        "when": "kmigrate_node_installed is changed",
    },
]


def render_role(scripts: Mapping[str, str], machines: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Path -> content of all files. `scripts`: the whole script of each cluster; `machines`: its machines, by name."""
    groups = ":".join(map(name_group, machines))
    play = [{"name": "kmigrate-node on the machines of Kafka", "hosts": groups, "gather_facts": False, "roles": [ROLE]}]
    return {
        "hosts.yml": render_inventory(machines),
        "kmigrate.yml": _HEAD + yaml.safe_dump(play, sort_keys=False, width=1000),
        f"roles/{ROLE}/tasks/main.yml": _HEAD + yaml.safe_dump(_TASKS, sort_keys=False, width=1000),
        **{f"roles/{ROLE}/files/{cluster}.sh": script for cluster, script in scripts.items()},
    }


def write_role(files: Mapping[str, str], folder: Path, say: Callable[[str], object]) -> None:
    """Write the files; an inventory that is there stays, because its owner adds users and keys to it. Raises `Failed`."""
    for name, text in files.items():
        path = folder / name
        if name == "hosts.yml" and path.exists():
            say(f"{path} stays as it is")
            continue
        atomic.make_folder(path.parent)
        try:
            is_there = path.exists() and path.read_bytes() == text.encode()
        except OSError as error:
            raise Failed(f"cannot read {path}: {error}") from error
        if not is_there:
            atomic.replace(path, text.encode(), 0o644)
        say(f"{path} {'is there' if is_there else 'was written'}")
