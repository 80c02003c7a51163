"""Commands that install the agent on a machine over ssh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.node.command import main
from tests.kit.machines import CLUSTER, NODE, PORT, USER, Machine, Template

CLUSTER_FILE = """\
name: prod
cluster_id: "{cluster}"
zookeeper: {{conn_id: zk}}
kafka: {{conn_id: kf}}
hosts: {{properties: /etc/kafka/server.properties, ssh_conn_id: prod_ssh}}
brokers: [{{id: {node}, host: {host}}}]
controllers: [{{id: 3000, host: {host}, properties: /etc/kafka/controller.properties, log_dir: /var/lib/kafka/controller}}]
"""


def fields(template: Template, **extra: Any) -> dict[str, Any]:
    """The Airflow connection to every machine of a template."""
    known = {"key_file": str(template.key), "host_key": template.host_key, "look_for_keys": False, "conn_timeout": 5}
    return {"conn_type": "ssh", "login": USER, "port": PORT, "extra": known | extra}


class Command:
    """The command of a user with a cluster file and its connections."""

    def __init__(self, machine: Machine, template: Template, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self.file, self.connections = capsys, folder / "prod.yaml", folder / "connections.json"
        self.file.write_text(CLUSTER_FILE.format(cluster=CLUSTER, node=NODE, host=machine.address))
        self.connections.write_text(json.dumps({"prod_ssh": fields(template)}))

    def __call__(self, *words: str) -> tuple[int, str]:
        code = main([words[0], str(self.file), "--connections", str(self.connections), *words[1:]])
        said = self._capsys.readouterr()
        return code, said.out + said.err


def allow_more(machine: Machine) -> None:
    """A login of an administrator, who may run anything by sudo."""
    machine.path("/etc/sudoers.d/admin").write_text(f"{USER} ALL=(ALL) NOPASSWD: ALL\n")
