"""Every client of one cluster, opened together and closed together; and what restarts instances of consumer applications.

`Instances` restarts an instance as another kind of member, by the user's own command or webhook, or by its systemd units, which
kmigrate's agent on its machine stops and starts. A command gets the placeholders
`{group}`, `{instance}`, `{host}` and `{kind}` (zookeeper, migrating or kafka; `stopped` in a cutover), runs without a shell, and ends
with 0 once the instance was restarted, or stopped; it may be run again with the same kind. A webhook is a POST with

    {"cluster": ..., "group": ..., "instance": ..., "host": ..., "kind": ..., "token": ...}

as JSON, answered by 2xx once the instance was or will be restarted; `token` grows with each run of kmigrate, so that a service may
refuse an outdated one. Neither reports the instance's state: its members in ZooKeeper and Kafka do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import httpx

from airflow_provider_kmigrate.clients.brokers_admin import Admin
from airflow_provider_kmigrate.clients.commands import BROKEN_CONNECTION, command_environment, fill_placeholders, run_command
from airflow_provider_kmigrate.clients.group_reads import topic_settings
from airflow_provider_kmigrate.clients.hosts import Host, host_for
from airflow_provider_kmigrate.clients.hosts.agent import Agents, AgentUnits, Pipe, ssh_needs_airflow
from airflow_provider_kmigrate.clients.identity import has_kerberos_provider
from airflow_provider_kmigrate.clients.key_stores import find_certificate_end
from airflow_provider_kmigrate.clients.oauth import end_of_token
from airflow_provider_kmigrate.clients.sasl import GSSAPI, OAUTHBEARER
from airflow_provider_kmigrate.clients.settings import (
    ClusterSettings,
    HostSettings,
    SshSettings,
    WebhookSettings,
    WireSecurity,
    ZooKeeperSettings,
)
from airflow_provider_kmigrate.clients.tls import make_context
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.clients.wire_groups import GroupsAt
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.clients.zookeeper_session import has_identity
from airflow_provider_kmigrate.core.cluster_state.model import ConnectionFacts
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, InstanceSpec, NodeRole, NodeSpec, Served, UnitSpec
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import Failed, Refused, TimedOut, Unavailable, Unreachable
from airflow_provider_kmigrate.masking import mask_words

if TYPE_CHECKING:
    from airflow_provider_kmigrate.clients.holding import Holding
    from airflow_provider_kmigrate.clients.offsets_log import OffsetsLog
    from airflow_provider_kmigrate.core.groups.offsets import CopyPlan

Settings = TypeVar("Settings", HostSettings, WebhookSettings)

_SHOWN, _READ = 500, 8_192  # characters of an answer that a message carries, and bytes that are read of it

_log = logging.getLogger("httpx")
if _log.level == logging.NOTSET:  # each call's whole address, which may hold a secret
    _log.setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Instances:
    """The commands and webhooks of one cluster's groups, and the agents of their units."""

    cluster: str
    hosts: Mapping[str, HostSettings | Refused]
    webhooks: Mapping[str, WebhookSettings | Refused]
    agent: Callable[[UnitSpec], AgentUnits] | None = None

    def require(self, group: GroupSpec, *, must_answer: bool) -> None:
        """Raises `Refused` if a connection of the group cannot be used, or an agent does not know a unit: known before anything of it is moved.

        An agent that does not answer raises `Unavailable` if it `must_answer`; a rollback does what it can.
        """
        if group.conn_id:
            _require_usable(self.hosts[group.conn_id])
        for instance in group.instances:
            if instance.webhook:
                _require_usable(self.webhooks[instance.webhook])
            for unit in instance.units.values():
                try:
                    self._agent_of(unit).require(unit)
                except Unavailable:
                    if must_answer:
                        raise

    def switch(self, group: GroupSpec, instance: InstanceSpec, kind: str, token: int) -> None:
        """Restart the instance as `kind`; returns once the command ends or the webhook answers, within `switch_timeout`.

        Its units of other kinds are known to be stopped before that of `kind` starts. Raises `Failed` if it refuses, `TimedOut` and
        `Unreachable` if the result is unknown.
        """
        if instance.units:
            self._switch_units(instance, kind, token)
            return
        body = {"group": group.name, "instance": instance.name, "host": instance.host, "kind": kind}
        if instance.webhook:
            self._call_webhook(group, instance, {"cluster": self.cluster, **body, "token": token})
        else:
            self._run_command(group, instance, body)

    def _agent_of(self, unit: UnitSpec) -> AgentUnits:
        if self.agent is None:
            raise Failed(f"{unit.name}: no agent is known.")
        return self.agent(unit)

    def _switch_units(self, instance: InstanceSpec, kind: str, token: int) -> None:
        for other in (unit for other_kind, unit in instance.units.items() if other_kind != kind):
            self._agent_of(other).stop(other, token)
        if (unit := instance.units.get(kind)) is not None:
            self._agent_of(unit).start(unit, token)

    def _run_command(self, group: GroupSpec, instance: InstanceSpec, placeholders: Mapping[str, str]) -> None:
        environment = command_environment(_require_usable(self.hosts[group.conn_id]).environment if group.conn_id else None)
        code, stderr = run_command(fill_placeholders(instance.switch, placeholders), environment, group.switch_timeout)
        what = f"{instance.name} of group {group.name}: its switch command"
        if code == BROKEN_CONNECTION:
            raise Unreachable(f"{what} found no connection: {stderr}")
        if code != 0:
            raise Failed(f"{what} ended with exit code {code}: {stderr}")

    def _call_webhook(self, group: GroupSpec, instance: InstanceSpec, body: Mapping[str, str | int]) -> None:
        settings, what = (
            _require_usable(self.webhooks[instance.webhook]),
            f"{instance.name} of group {group.name}: webhook {instance.webhook}",
        )
        try:
            status, answer_text = asyncio.run(_post_within(settings, body, group.switch_timeout))
        except (TimeoutError, httpx.TimeoutException) as error:
            raise TimedOut(f"{what}: no answer within {group.switch_timeout:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:  # its text may show the address, which may hold a secret
            raise Unreachable(f"{what}: {type(error).__name__}") from None
        except OSError as error:  # httpx has errors of its own for the network
            raise Failed(f"{what}: cannot read the CA file {settings.ca_file}: {error}") from error
        except Exception as error:  # noqa: BLE001 - an answer may be any bytes, and of them its library raises whatever it likes
            raise Unreachable(f"{what}: its answer is not HTTP ({type(error).__name__})") from None
        if not httpx.codes.is_success(status):
            raise Failed(f"{what} answered {status}: {printable(mask_words(answer_text)[:_SHOWN])}")


def _require_usable(settings: Settings | Refused) -> Settings:
    if isinstance(settings, Refused):
        raise settings
    return settings


async def _post_within(settings: WebhookSettings, body: Mapping[str, str | int], seconds: float) -> tuple[int, str]:
    """The status and the beginning of the answer, within so many seconds; httpx's own timeouts apply to each chunk.

    The rest of an answer is not read, and none is decompressed: it may have no end.
    """
    from airflow_provider_kmigrate.clients.metrics import default_tls_context  # noqa: PLC0415  # only a webhook needs it

    verify = make_context(settings.ca_file) if settings.ca_file else default_tls_context()
    client = httpx.AsyncClient(headers=settings.headers, auth=settings.login, timeout=seconds, verify=verify)
    async with asyncio.timeout(seconds), client, client.stream("POST", settings.url, json=body) as answer:
        beginning = b""
        async for chunk in answer.aiter_raw(_READ):
            beginning += chunk
            if len(beginning) >= _READ:
                break
        return answer.status_code, beginning[:_READ].decode(errors="replace")


WIRE_TIMEOUT = 2.0  # seconds a call: a slower node is a finding, not worth waiting for


class Wires:
    """One kept connection to each node, made on first use."""

    def __init__(self, security: Mapping[NodeRole, WireSecurity]) -> None:
        self._security = security
        self._wires: dict[tuple[str, int, NodeRole], Wire] = {}

    def __call__(self, node: NodeSpec) -> Wire:
        """The connection to a node; it connects at its first call."""
        key = (node.host, node.port, node.role)
        wire = self._wires.get(key)
        # setdefault is atomic: two concurrent threads get the same object, and the other one was never connected
        return wire or self._wires.setdefault(key, Wire(node.host, node.port, self._security[node.role], WIRE_TIMEOUT))

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
    connections: ConnectionFacts = field(default_factory=ConnectionFacts)
    signing_key: str = field(default="", repr=False)  # of approvals

    def groups_at(self, node: NodeSpec) -> GroupsAt:
        """The consumer groups at one broker."""
        return GroupsAt(self.wire(node))

    def offsets_log(self) -> OffsetsLog:
        """The raw log of `__consumer_offsets`."""
        from airflow_provider_kmigrate.clients.offsets_log import OffsetsLog  # noqa: PLC0415  # only repairs and expansions read it

        return OffsetsLog(self.kafka)

    def commit_offsets(self, plan: CopyPlan, holding: Holding) -> None:
        """Commit a plan's offsets in Kafka, for a group without members. Raises as `group_writes.commit_in_kafka`."""
        from airflow_provider_kmigrate.clients.group_writes import commit_in_kafka  # noqa: PLC0415  # only a cutover copies

        commit_in_kafka(self.kafka, plan, holding)

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """As `clients.group_reads` reads it; empty if no broker answers."""
        return topic_settings(self.kafka, topics)


def connection_facts(settings: ClusterSettings) -> ConnectionFacts:
    """How the connections of these settings are protected, by their sections of the cluster file."""
    wires, zk = {"kafka": settings.brokers, "quorum": settings.controllers}, settings.zookeeper
    unverified = {name for name, wire in wires.items() if wire.protocol.endswith("SSL") and not wire.verify_hostname}
    readable = {
        name
        for name, wire in wires.items()
        if wire.protocol == "SASL_PLAINTEXT" and wire.sasl_mechanism in {"PLAIN", OAUTHBEARER}
    }
    return ConnectionFacts(
        frozenset(unverified | ({"zookeeper"} if zk.use_tls and not zk.verify_hostname else set())),
        frozenset(readable | ({"zookeeper"} if zk.digest and not zk.use_tls else set())),
        tuple(name for name, used in (("TLS", zk.use_tls), ("SASL", zk.sasl_mechanism)) if used),
        not has_identity(zk),
        tuple(
            reason
            for settings_or_refusal in (*settings.group_hosts.values(), *settings.webhooks.values())
            if isinstance(settings_or_refusal, Refused)
            for reason in settings_or_refusal.reasons
        ),
        settings.brokers.sasl_mechanism == GSSAPI and not has_kerberos_provider(),
        settings.controllers.sasl_mechanism if settings.controllers.protocol.startswith("SASL_") else None,
        _find_ends(settings),
    )


def _find_ends(settings: ClusterSettings) -> dict[str, float]:
    """When what these connections log in with ends: the certificate or the fixed token of each section."""
    ends = dict[str, float | None]()
    sections: tuple[tuple[str, WireSecurity | ZooKeeperSettings], ...] = (
        ("kafka", settings.brokers),
        ("quorum", settings.controllers),
        ("zookeeper", settings.zookeeper),
    )
    for name, connection in sections:
        store = connection.key_store if isinstance(connection, WireSecurity) else None
        if path := store or connection.cert_file:
            ends[f"certificate of {name}"] = find_certificate_end(path, connection.key_password, is_store=store is not None)
        if isinstance(connection, WireSecurity) and connection.oauth and connection.oauth.token:
            ends[f"token of {name}"] = end_of_token(connection.oauth.token)
    return {what: end for what, end in ends.items() if end is not None}


OpenSsh = Callable[[SshSettings, str], Pipe]
"""Opens a pipe to `kmigrate-node` on a host, through an Airflow SSH connection."""


def _open_ssh_pipe(settings: ClusterSettings, ssh: OpenSsh, node: Served) -> Pipe:
    return ssh(settings.ssh[node.hosts.ssh_conn_id], node.host)


@contextmanager
def open_tools(settings: ClusterSettings, cluster: str = "", ssh: OpenSsh | None = None) -> Iterator[Tools]:
    """As `assemble_tools`, without Airflow: clients of ZooKeeper and of the brokers' admin API made from the settings."""
    with assemble_tools(settings, ZooKeeper(settings.zookeeper), Admin(settings.kafka), cluster, ssh) as tools:
        yield tools


@contextmanager
def assemble_tools(
    settings: ClusterSettings, zk: ZooKeeper, admin: Admin, cluster: str = "", ssh: OpenSsh | None = None
) -> Iterator[Tools]:
    """Tools that connect on first use and are closed at the end in any case. `cluster`: its name, for webhooks.

    Raises `Refused` without `ssh` if nodes are behind an Airflow SSH connection.
    """
    if ssh is None and settings.ssh:
        raise ssh_needs_airflow(next(iter(settings.ssh)))

    def environment_of(node: Served) -> Mapping[str, str] | None:
        connection = settings.hosts.get(node.hosts.conn_id)
        return connection.environment if connection else None

    def host_of(node: NodeSpec) -> Host:
        return host_for(node, environment_of(node), agents, settings.cluster_id)

    def agent_of(unit: UnitSpec) -> AgentUnits:
        return AgentUnits(agents(unit, environment_of(unit)), settings.cluster_id)

    wires = Wires({NodeRole.BROKER: settings.brokers, NodeRole.CONTROLLER: settings.controllers})
    agents = Agents(partial(_open_ssh_pipe, settings, ssh) if ssh else None)
    try:
        instances = Instances(cluster, settings.group_hosts, settings.webhooks, agent_of)
        chroot, kafka = settings.zookeeper.chroot, settings.kafka.properties
        yield Tools(zk, admin, wires, host_of, chroot, instances, kafka, connection_facts(settings), settings.signing_key)
    finally:
        for client in (wires, agents, admin, zk):
            client.close()
