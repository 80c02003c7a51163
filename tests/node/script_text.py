"""The script that installs the agent, for a small cluster file."""

from __future__ import annotations

from airflow_provider_kmigrate.node.command import group_by_machine
from airflow_provider_kmigrate.node.script import AGENT, InstallOptions, build_install_script
from airflow_provider_kmigrate.spec import loads

FILE = """\
name: prod
cluster_id: q1Sh-9_ISia_zwGINzRvyQ
zookeeper: {conn_id: zk}
kafka: {conn_id: kf}
hosts: {properties: /etc/kafka/server.properties, ssh_conn_id: prod_ssh}
brokers: [{id: 0, host: kafka0}, {id: 1, host: kafka1}]
controllers:
  - {id: 3000, host: kafka0, properties: "/etc/kafka/it's.properties", port: 9093, log_dir: /var/lib/kraft}
  - {id: 3001, host: ctl1, log_dir: /var/lib/kraft}
"""
SETUP = InstallOptions(user="root", login="root", storage_tool="/bin/true")
MACHINES = group_by_machine(loads(FILE))


def text(setup: InstallOptions = SETUP) -> str:
    return build_install_script("prod", MACHINES, setup, AGENT.read_text())
