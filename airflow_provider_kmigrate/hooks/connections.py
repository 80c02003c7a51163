"""Airflow's connections, with every secret masked: one hook for each outside system, and all settings of a cluster file.

A hook returns the client that kmigrate's own tasks use. Brokers have the connection type `kafka` of Airflow's Kafka provider, with its form
and its *Test*: the same connections serve both packages.
"""

from __future__ import annotations

from abc import abstractmethod

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from airflow_provider_kmigrate.clients.connections import (
    CONTROLLER,
    HOST,
    ZOOKEEPER,
    Connection,
    controller_address,
    controller_security,
    host_settings,
    missing,
    named_connections,
    secrets_of,
    settings_for,
    zookeeper_settings,
)
from airflow_provider_kmigrate.clients.hosts.agent import PATH, Pipe
from airflow_provider_kmigrate.clients.settings import (
    ClusterSettings,
    HostSettings,
    SshSettings,
    WireSecurity,
    ZooKeeperSettings,
)
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.core.model import Malformed, Reason, ZkView
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Refused, Unavailable

_FIELDS = ("conn_type", "host", "port", "login", "password", "schema", "extra")
_NEXT = {
    AuthenticationFailed: "Next: check this connection's user, password and TLS files, and what that user may do.",
    Unavailable: "Next: check the address and the port, and that this machine may reach them.",
}


def get(conn_id: str, conn_type: str, named_in: str = "") -> Connection:
    """The connection, its secrets masked in every log from now on; in a triggerer too, on its loop or in a thread (Airflow 3.3).

    Raises `Refused` if there is none; `named_in` says what needs it.
    """
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise missing(conn_id, conn_type, named_in) from error
    # not `extra_dejson`: it reads broken JSON as an empty mapping, and its masks come after the fact
    found = {name: getattr(connection, name) for name in _FIELDS}
    for secret in secrets_of(found):
        mask_secret(secret)
    return found


_SERVE = ("sudo", "-n", PATH, "serve")


def open_ssh(settings: SshSettings, host: str, argv: tuple[str, ...] = _SERVE) -> Pipe:
    """A pipe to `kmigrate-node` on a host, or to another program there. Raises as `SshPipe`, and `Refused` without Airflow's SSH provider."""
    try:
        from airflow_provider_kmigrate.hooks.ssh import SshPipe  # noqa: PLC0415  # an extra that few clusters need
    except ImportError as error:
        text = f"connection {settings.conn_id} needs Airflow's SSH provider, which is not installed here: {error}. Install it on each "
        text += "worker and the triggerer: `pip install 'airflow-provider-kmigrate[ssh]'`."
        raise Refused.because(Reason("N03", text)) from error
    return SshPipe(settings, host, argv)


def settings_of(spec: ClusterSpec) -> ClusterSettings:
    """Addresses and identities of a whole cluster, from its file.

    Raises `Refused` for a missing connection, saying where the cluster file names it, and for a wrong one, saying how.
    """
    named = named_connections(spec)

    def lookup(conn_id: str) -> Connection:
        return get(conn_id, *named[conn_id])

    return settings_for(spec, lookup)


class _TestedHook(BaseHook):
    """A hook whose *Test* says what it observed, or what failed and what to do next."""

    def test_connection(self) -> tuple[bool, str]:
        """Airflow's *Test* of a connection."""
        try:
            return True, self._test()
        except KMigrateError as error:
            advice = next((text for kind, text in _NEXT.items() if isinstance(error, kind)), "")
            return False, f"{error} {advice}".strip()

    @abstractmethod
    def _test(self) -> str:
        """What answered, in a sentence. Raises `KMigrateError`."""


class ZooKeeperHook(_TestedHook):
    """The brokers' ZooKeeper: host is their `zookeeper.connect`, chroot included. *Test* reads the cluster's znodes once."""

    conn_name_attr = "zookeeper_conn_id"
    default_conn_name = "kmigrate_zookeeper_default"
    conn_type = ZOOKEEPER
    hook_name = "ZooKeeper (kmigrate)"

    def __init__(self, zookeeper_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.zookeeper_conn_id = zookeeper_conn_id

    def settings(self) -> ZooKeeperSettings:
        """ZooKeeper's settings; raises `Refused` for a missing or wrong connection."""
        return zookeeper_settings(self.zookeeper_conn_id, get(self.zookeeper_conn_id, self.conn_type))

    def get_conn(self) -> ZooKeeper:
        """A client that connects at its first call; close it."""
        return ZooKeeper(self.settings())

    def _test(self) -> str:
        settings = self.settings()
        with ZooKeeper(settings) as client:
            return f"{settings.hosts}{settings.chroot} holds {_summary(client.view())}."


def _summary(view: ZkView) -> str:
    brokers = f"brokers {', '.join(map(str, view.broker_ids))}" if view.broker_ids else "no registered broker"
    controller = view.controller
    if controller is None:
        who = "no controller at the moment"
    elif isinstance(controller, Malformed):
        who = f"{controller.path} with a content that is not Kafka's"
    else:
        who = f"controller {controller.broker_id} ({'KRaft' if controller.is_kraft else 'ZooKeeper mode'})"
    return f"Kafka cluster {view.cluster_id}: {brokers}, {who}"


class KRaftControllerHook(_TestedHook):
    """One KRaft controller: `host` is its address; a cluster file names all of them, and takes only TLS and SASL from here.

    *Test* asks that controller; without one only the fields are checked.
    """

    conn_name_attr = "controller_conn_id"
    default_conn_name = "kmigrate_controller_default"
    conn_type = CONTROLLER
    hook_name = "KRaft controllers (kmigrate)"

    def __init__(self, controller_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.controller_conn_id = controller_conn_id

    def security(self) -> WireSecurity:
        """TLS and SASL of the controller listener; raises `Refused` for a missing or wrong connection."""
        return controller_security(self.controller_conn_id, get(self.controller_conn_id, self.conn_type))

    def address(self) -> tuple[str, int] | None:
        """Host and port of the controller; None if the connection has no host. Raises as `security`."""
        return controller_address(self.controller_conn_id, get(self.controller_conn_id, self.conn_type))

    def get_conn(self) -> Wire:
        """A client of the controller that connects at its first call; close it. Raises `Refused` without a host, and as `security`."""
        address = self.address()
        if address is None:
            text = f"Connection {self.controller_conn_id} has no host. Write a controller's address into it, such as ctl0:9093."
            raise Refused.because(Reason("N03", text))
        return Wire(*address, self.security())

    def _test(self) -> str:
        if self.address() is None:
            protocol = self.security().protocol
            return f"The fields are valid ({protocol}); no controller was contacted. To test one, write its address into Host."
        with self.get_conn() as wire:
            ready = wire.api_versions().migration_ready
            cluster_id, leader, _ = wire.describe_cluster()
        flag = "ready for a migration from ZooKeeper" if ready else "without the migration flag"
        return f"Controller {wire.endpoint} answers: cluster {cluster_id}, leader {leader}, {flag}."


class BrokerHostHook(_TestedHook):
    """The environment of the commands that reach machines (`connect`, `switch`); the commands are in the cluster file.

    *Test* checks only the fields: a connection may not decide what runs on Airflow's machine, so nothing is run.
    """

    conn_name_attr = "host_conn_id"
    default_conn_name = "kmigrate_host_default"
    conn_type = HOST
    hook_name = "Broker hosts (kmigrate)"

    def __init__(self, host_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.host_conn_id = host_conn_id

    def get_conn(self) -> HostSettings:
        """The hosts' settings; raises `Refused` for a missing or wrong connection."""
        return host_settings(self.host_conn_id, get(self.host_conn_id, self.conn_type))

    def _test(self) -> str:
        names = sorted(self.get_conn().environment)
        variables = f"the variables {', '.join(names)}" if names else "no variables"
        return f"The commands of the cluster file get {variables}; no command was run. The preflight runs `connect`."
