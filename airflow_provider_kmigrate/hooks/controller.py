"""Connection type `kmigrate_controller`."""

from __future__ import annotations

from airflow.sdk import BaseHook

from airflow_provider_kmigrate.clients.connections import CONTROLLER, controller_address, controller_security
from airflow_provider_kmigrate.clients.settings import WireSecurity
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.hooks import connection


class KRaftControllerHook(BaseHook):
    """TLS and SASL of the controller listener; the controllers' addresses are in the cluster file."""

    conn_name_attr = "controller_conn_id"
    default_conn_name = "kmigrate_controller_default"
    conn_type = CONTROLLER
    hook_name = "KRaft controllers (kmigrate)"

    def __init__(self, controller_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.controller_conn_id = controller_conn_id

    def get_conn(self) -> WireSecurity:
        """The security of every `Wire` to a controller; raises `Refused` for a missing or wrong connection."""
        return controller_security(self.controller_conn_id, connection.get(self.controller_conn_id, self.conn_type))

    def wire(self, host: str, port: int) -> Wire:
        """A client of one controller, which connects at its first call; close it."""
        return Wire(host, port, self.get_conn())

    def test_connection(self) -> tuple[bool, str]:
        """Ask the controller in `host`, which is used for nothing else; without one only the fields are checked."""
        return connection.tested(self._look)

    def _look(self) -> str:
        found = connection.get(self.controller_conn_id, self.conn_type)
        security = controller_security(self.controller_conn_id, found)
        address = controller_address(self.controller_conn_id, found)
        if address is None:
            return f"The fields are valid ({security.protocol}); no controller was contacted. To test one, write its address into Host."
        with Wire(*address, security) as wire:
            ready = wire.api_versions().migration_ready
            cluster_id, leader, _ = wire.describe_cluster()
        flag = "ready for a migration from ZooKeeper" if ready else "without the migration flag"
        return f"Controller {wire.endpoint} answers: cluster {cluster_id}, leader {leader}, {flag}."
