"""Connection type `kmigrate_host`."""

from __future__ import annotations

from airflow.sdk import BaseHook

from airflow_provider_kmigrate.clients.connections import HOST, host_settings
from airflow_provider_kmigrate.clients.hosts import Host, host_for
from airflow_provider_kmigrate.clients.settings import HostSettings
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.hooks import connection


class BrokerHostHook(BaseHook):
    """The environment of the commands that reach the nodes' machines; the commands are in the cluster file."""

    conn_name_attr = "host_conn_id"
    default_conn_name = "kmigrate_host_default"
    conn_type = HOST
    hook_name = "Broker hosts (kmigrate)"

    def __init__(self, host_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.host_conn_id = host_conn_id

    def get_conn(self) -> HostSettings:
        """The hosts' settings; raises `Refused` for a missing or wrong connection."""
        return host_settings(self.host_conn_id, connection.get(self.host_conn_id, self.conn_type))

    def host(self, node: NodeSpec) -> Host:
        """The driver that the cluster file names for `node`, with this environment."""
        return host_for(node, self.get_conn().environment)

    def test_connection(self) -> tuple[bool, str]:
        """Check only the fields: a connection may not decide what runs on Airflow's machine, so nothing is run."""
        return connection.tested(self._look)

    def _look(self) -> str:
        names = sorted(self.get_conn().environment)
        variables = f"the variables {', '.join(names)}" if names else "no variables"
        return f"The commands of the cluster file get {variables}; no command was run. The preflight runs the status commands."
