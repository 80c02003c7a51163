"""Every client of one cluster, opened together and closed together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from airflow_provider_kmigrate.clients.admin import Admin
from airflow_provider_kmigrate.clients.group_reads import topic_settings
from airflow_provider_kmigrate.clients.hosts import Host, host_for
from airflow_provider_kmigrate.clients.instances import Instances
from airflow_provider_kmigrate.clients.settings import ClusterSettings, WireSecurity
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.cluster import NodeSpec, Role
from airflow_provider_kmigrate.exceptions import Unavailable

WIRE_TIMEOUT = 2.0  # seconds a call: a slower node is a finding, not worth waiting for


class Wires:
    """One kept connection to each node, made on first use."""

    def __init__(self, security: Mapping[Role, WireSecurity], timeout: float = WIRE_TIMEOUT) -> None:
        self._security = security
        self._timeout = timeout
        self._wires: dict[tuple[str, int, Role], Wire] = {}

    def __call__(self, node: NodeSpec) -> Wire:
        key = (node.host, node.port, node.role)
        found = self._wires.get(key)
        # setdefault is atomic: two concurrent threads get the same object, and the other one was never connected
        return found or self._wires.setdefault(key, Wire(node.host, node.port, self._security[node.role], self._timeout))

    def close(self) -> None:
        """Close every open connection."""
        for wire in tuple(self._wires.values()):
            wire.close()


@dataclass(frozen=True)
class Tools:
    """The clients that steps and observers use; `chroot` is that of the ZooKeeper connection, empty for none."""

    zk: ZooKeeper
    admin: Admin
    wire: Callable[[NodeSpec], Wire]
    host: Callable[[NodeSpec], Host]
    chroot: str = ""
    instances: Instances = field(default_factory=lambda: Instances("", {}, {}))
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)  # librdkafka's properties

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """As `clients.group_reads` reads it; empty if no broker answers."""
        try:
            return topic_settings(self.kafka, topics)
        except Unavailable:
            return {}


@contextmanager
def opened(settings: ClusterSettings, cluster: str = "") -> Iterator[Tools]:
    """Tools that connect on first use and are closed at the end in any case. `cluster`: its name, for webhooks."""

    def host(node: NodeSpec) -> Host:
        connection = settings.hosts.get(node.hosts.conn_id)
        return host_for(node, connection.environment if connection else None)

    wires = Wires({Role.BROKER: settings.brokers, Role.CONTROLLER: settings.controllers})
    admin, zk = Admin(settings.kafka), ZooKeeper(settings.zookeeper)
    try:
        instances = Instances(cluster, settings.hosts, settings.webhooks)
        yield Tools(zk, admin, wires, host, settings.zookeeper.chroot, instances, settings.kafka.properties)
    finally:
        for client in (wires, admin, zk):
            client.close()
