"""Settings to reach each outside system: frozen, comparable, and without secrets in `repr`.

Airflow's hooks build these from connections; without Airflow, `read_connections` builds them from the same JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_kmigrate.exceptions import Refused

_BROKER_PORT = 9092
_SERVER = re.compile(r"(?:[A-Za-z_]+://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class KerberosLogin:
    """GSSAPI: the other side is `service`/HOST. Without `keytab` the ticket cache of the process counts (KRB5CCNAME)."""

    service: str = "kafka"
    principal: str | None = None  # None: the keytab's first one, or the ticket cache's own
    keytab: str | None = None


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """`hosts` is `host:port,host:port` without chroot; `chroot` is empty or starts with a slash. Times in seconds."""

    hosts: str
    chroot: str = ""
    session_timeout: float = 10.0
    connect_timeout: float = 10.0
    use_tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify_hostname: bool = True
    digest: str | None = field(default=None, repr=False)  # user:password of the digest scheme
    sasl_mechanism: str | None = None  # DIGEST-MD5 or GSSAPI
    sasl_user: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    kerberos: KerberosLogin | None = None  # GSSAPI; None: `zookeeper`/HOST, with the ticket cache of the process
    set_acl: bool = False  # a migrating consumer's znodes: closed to all but their creator


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """librdkafka properties, such as `bootstrap.servers`; also the source of TLS and SASL for the wire client."""

    properties: Mapping[str, str] = field(repr=False)

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers`; empty if it is not set."""
        return self.properties.get("bootstrap.servers", "")

    @property
    def servers(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each bootstrap server; as in librdkafka, a protocol in front is allowed and the port optional."""
        split = (_SERVER.fullmatch(server.strip()) for server in self.bootstrap.split(","))
        return tuple((match[1].strip("[]"), int(match[2] or _BROKER_PORT)) for match in split if match)


@dataclass(frozen=True, slots=True)
class OAuthLogin:
    """Where the token of OAUTHBEARER comes from: `token`, which never changes, or client credentials at `endpoint` (RFC 6749, 4.4)."""

    endpoint: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    extensions: tuple[tuple[str, str], ...] = ()  # SASL extensions (KIP-342)
    ca_file: str | None = None  # of the endpoint's certificate authority; None: those of the machine
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class WireSecurity:
    """TLS and SASL of a connection to one node; PLAINTEXT by default."""

    protocol: str = "PLAINTEXT"  # PLAINTEXT | SSL | SASL_PLAINTEXT | SASL_SSL
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify_hostname: bool = True
    sasl_mechanism: str | None = None  # one of clients.sasl.MECHANISMS
    sasl_user: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    oauth: OAuthLogin | None = None
    kerberos: KerberosLogin | None = None
    key_store: str | None = None  # PKCS#12, instead of cert_file and key_file; `key_password` opens it


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Additions to the environment of a node's commands; the values may be secrets."""

    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SshSettings:
    """An Airflow SSH connection that verifies host keys. `fields` are Airflow's own, for `SSHHook`; they hold its secrets."""

    conn_id: str
    fields: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """The user's own service that restarts instances; address and headers may hold secrets."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    login: tuple[str, str] | None = field(default=None, repr=False)
    ca_file: str | None = None  # of the service's certificate authority; None: those of the machine


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings to reach everything of one cluster.

    `hosts` and `ssh` have an entry for each connection id that nodes name; `group_hosts` and `webhooks` for each that consumer groups name,
    which may be the refusal of the connection.
    """

    zookeeper: ZooKeeperSettings
    kafka: KafkaSettings
    brokers: WireSecurity
    controllers: WireSecurity
    hosts: Mapping[str, HostSettings] = field(default_factory=dict)
    group_hosts: Mapping[str, HostSettings | Refused] = field(default_factory=dict)
    webhooks: Mapping[str, WebhookSettings | Refused] = field(default_factory=dict)
    ssh: Mapping[str, SshSettings] = field(default_factory=dict)
    cluster_id: str = ""
    signing_key: str = field(default="", repr=False)  # of approvals; empty: the ACL of their znodes protects them
