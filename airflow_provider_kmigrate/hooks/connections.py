"""Airflow's connections, with every secret masked: one hook for each outside system, and all settings of a cluster file.

A hook returns the client that kmigrate's own tasks use. Brokers have the connection type `kafka` of Airflow's Kafka provider, with its form
and its *Test*: the same connections serve both packages.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from airflow.providers.apache.kafka.hooks.client import KafkaAdminClientHook
from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from airflow_provider_kmigrate.airflow_releases import AirflowNotFoundException
from airflow_provider_kmigrate.clients.brokers_admin import Admin
from airflow_provider_kmigrate.clients.connections import (
    CONTROLLER,
    HOST,
    KAFKA,
    ZOOKEEPER,
    Connection,
    SettingsReaders,
    compose_settings,
    controller_address,
    controller_security,
    host_settings,
    kafka_settings,
    missing_connection,
    named_connections,
    secrets_of,
    zookeeper_settings,
)
from airflow_provider_kmigrate.clients.hosts.agent import PATH, Pipe
from airflow_provider_kmigrate.clients.settings import (
    ClusterSettings,
    HostSettings,
    KafkaSettings,
    SshSettings,
    WireSecurity,
    ZooKeeperSettings,
)
from airflow_provider_kmigrate.clients.tools import Tools, assemble_tools
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.cluster_state.model import Malformed, Reason, ZkView
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Refused, Unavailable
from airflow_provider_kmigrate.masking import hide_values

_FIELDS = ("conn_type", "host", "port", "login", "password", "schema", "extra")
_NEXT = {
    AuthenticationFailed: "Next: check this connection's user, password and TLS files, and what that user may do.",
    Unavailable: "Next: check the address and the port, and that this machine may reach them.",
}


def get_connection(conn_id: str, conn_type: str, named_in: str = "") -> Connection:
    """The connection, its secrets masked in every log from now on; in a triggerer too, on its loop or in a thread (Airflow 3.3).

    Raises `Refused` if there is none; `named_in` says what needs it. Raises `Unavailable` if a command cannot ask Airflow's own stores.
    """
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        if os.environ.get("_AIRFLOW_PROCESS_CONTEXT") == "server":
            _require_answering_stores(conn_id)
        raise missing_connection(conn_id, conn_type, named_in) from error
    # not `extra_dejson`: it reads broken JSON as an empty mapping, and its masks come after the fact
    connection_fields = {name: getattr(connection, name) for name in _FIELDS}
    secrets = secrets_of(connection_fields)
    hide_values(secrets)
    for secret in secrets:
        mask_secret(secret)
    return connection_fields


def _require_answering_stores(conn_id: str) -> None:
    """Airflow takes a database or a secrets backend that does not answer for one without the connection. A task asks neither, but its API server."""
    from airflow.configuration import ensure_secrets_loaded  # noqa: PLC0415  # a command that found nothing

    for store in ensure_secrets_loaded():
        try:
            store.get_connection(conn_id=conn_id)
        except Exception as error:  # noqa: BLE001  # of whatever database or secrets backend
            text = f"Whether there is a connection {conn_id} is not known: {type(store).__name__} of Airflow does not answer ({type(error).__name__})."
            raise Unavailable(f"{text} Start Airflow's database, or name an exported file with --connections.") from None


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

    def __init__(self, zookeeper_conn_id: str = default_conn_name, *, named_in: str = "") -> None:
        """`named_in`: what names the connection, for the refusal of a missing one; so in each hook here."""
        super().__init__()
        self.zookeeper_conn_id, self._named_in = zookeeper_conn_id, named_in

    @cached_property
    def settings(self) -> ZooKeeperSettings:
        """ZooKeeper's settings; raises `Refused` for a missing or wrong connection."""
        return zookeeper_settings(self.zookeeper_conn_id, get_connection(self.zookeeper_conn_id, self.conn_type, self._named_in))

    def get_conn(self) -> ZooKeeper:
        """A client that connects at its first call; close it."""
        return ZooKeeper(self.settings)

    def _test(self) -> str:
        with self.get_conn() as client:
            return f"{self.settings.hosts}{self.settings.chroot} holds {_summary(client.view())}."


def _summary(view: ZkView) -> str:
    brokers = f"brokers {', '.join(map(str, view.broker_ids))}" if view.broker_ids else "no registered broker"
    controller = view.controller
    if controller is None:
        controller_text = "no controller at the moment"
    elif isinstance(controller, Malformed):
        controller_text = f"{controller.path} with a content that is not Kafka's"
    else:
        controller_text = f"controller {controller.broker_id} ({'KRaft' if controller.is_kraft else 'ZooKeeper mode'})"
    return f"Kafka cluster {view.cluster_id}: {brokers}, {controller_text}"


class KafkaAdminHook(KafkaAdminClientHook):
    """The brokers' admin API, on top of the Kafka provider's hook: `get_conn` and `create_topic` are its own.

    `get_admin` returns the client of kmigrate's tasks: each read is tried four times, and errors are kmigrate's.
    """

    def __init__(self, kafka_config_id: str = KafkaAdminClientHook.default_conn_name, *, named_in: str = "") -> None:
        super().__init__(kafka_config_id)
        self._named_in = named_in

    @cached_property
    def settings(self) -> KafkaSettings:
        """Properties of librdkafka; raises `Refused` for a missing or wrong connection."""
        return kafka_settings(self.kafka_config_id, get_connection(self.kafka_config_id, KAFKA, self._named_in))

    def get_admin(self) -> Admin:
        """A client that connects at its first call; close it."""
        return Admin(self.settings)


class KRaftControllerHook(_TestedHook):
    """One KRaft controller: `host` is its address; a cluster file names all of them, and takes only TLS and SASL from here.

    *Test* asks that controller; without one only the fields are checked.
    """

    conn_name_attr = "controller_conn_id"
    default_conn_name = "kmigrate_controller_default"
    conn_type = CONTROLLER
    hook_name = "KRaft controllers (kmigrate)"

    def __init__(self, controller_conn_id: str = default_conn_name, *, named_in: str = "") -> None:
        super().__init__()
        self.controller_conn_id, self._named_in = controller_conn_id, named_in

    @cached_property
    def security(self) -> WireSecurity:
        """TLS and SASL of the controller listener; raises `Refused` for a missing or wrong connection."""
        return controller_security(self.controller_conn_id, self._connection())

    @cached_property
    def address(self) -> tuple[str, int] | None:
        """Host and port of the controller; None if the connection has no host. Raises as `security`."""
        return controller_address(self.controller_conn_id, self._connection())

    def get_conn(self) -> Wire:
        """A client of the controller that connects at its first call; close it. Raises `Refused` without a host, and as `security`."""
        if self.address is None:
            text = f"Connection {self.controller_conn_id} has no host. Write a controller's address into it, such as ctl0:9093."
            raise Refused.because(Reason("N03", text))
        return Wire(*self.address, self.security)

    def _connection(self) -> Connection:
        return get_connection(self.controller_conn_id, self.conn_type, self._named_in)

    def _test(self) -> str:
        if self.address is None:
            protocol = self.security.protocol
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

    def __init__(self, host_conn_id: str = default_conn_name, *, named_in: str = "") -> None:
        super().__init__()
        self.host_conn_id, self._named_in = host_conn_id, named_in

    def get_conn(self) -> HostSettings:
        """The hosts' settings; raises `Refused` for a missing or wrong connection."""
        return host_settings(self.host_conn_id, get_connection(self.host_conn_id, self.conn_type, self._named_in))

    def _test(self) -> str:
        names = sorted(self.get_conn().environment)
        variables = f"the variables {', '.join(names)}" if names else "no variables"
        return f"The commands of the cluster file get {variables}; no command was run. The preflight runs `connect`."


class ClusterHooks:
    """The hooks of one cluster file, by which tasks and triggers reach the cluster. Each connection of a hook is read once."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        self._types_and_places = named_connections(spec)
        self.zookeeper = ZooKeeperHook(spec.zookeeper_conn_id, named_in=self._place_of(spec.zookeeper_conn_id))
        self.kafka = KafkaAdminHook(spec.kafka_conn_id, named_in=self._place_of(spec.kafka_conn_id))

    def settings(self) -> ClusterSettings:
        """Addresses and identities of the whole cluster.

        Raises `Refused` for a missing connection, saying where the cluster file names it, and for a wrong one, saying how.
        """
        readers = SettingsReaders(
            zookeeper=lambda _: self.zookeeper.settings,
            kafka=lambda _: self.kafka.settings,
            controllers=lambda conn_id: KRaftControllerHook(conn_id, named_in=self._place_of(conn_id)).security,
            hosts=lambda conn_id: BrokerHostHook(conn_id, named_in=self._place_of(conn_id)).get_conn(),
            lookup=lambda conn_id: get_connection(conn_id, *self._types_and_places[conn_id]),
        )
        return compose_settings(self._spec, readers)

    @contextmanager
    def open_tools(self) -> Iterator[Tools]:
        """Every client of the cluster: each connects on first use, and all are closed at the end. Raises as `settings`."""
        settings = self.settings()
        with assemble_tools(settings, self.zookeeper.get_conn(), self.kafka.get_admin(), self._spec.name, open_ssh) as tools:
            yield tools

    def _place_of(self, conn_id: str) -> str:
        return self._types_and_places[conn_id][1]
