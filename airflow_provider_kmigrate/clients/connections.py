"""Turn connections into settings: one set of rules for Airflow's hooks and, without Airflow, for a `connections.json`.

| type | used for | host, login, password | extra |
| --- | --- | --- | --- |
| kmigrate_zookeeper | the brokers' ZooKeeper | `zk1:2181,zk2:2181/chroot`; login and password: digest, or DIGEST-MD5 with `sasl_mechanism` | ZOOKEEPER_EXTRAS |
| kafka | brokers | unused | librdkafka's properties, as Airflow's Kafka provider has them |
| kmigrate_controller | the controller listener | login and password: SASL (OAUTHBEARER: the client's id and secret); host: what *Test* asks | CONTROLLER_EXTRAS |
| kmigrate_host | the nodes' commands | unused | HOST_EXTRAS: names and values for their environment |
| ssh | the nodes' machines | login, password and port; the hosts are in the cluster file | as Airflow's SSH provider has them |
| generic | the signature of approvals | password: any secret of 32 characters or more | unused |
| http | webhooks that restart instances of consumers | as Airflow's HTTP provider has them, `schema` http or https | headers |

A connection is a mapping as Airflow has it: `conn_type`, `host`, `port`, `login`, `password`, `schema` and `extra` (a mapping or its
JSON text). Fields are read strictly, and one `Refused` lists every problem: N03 for a missing connection, another type, an
unknown extra, a wrong, missing or contradictory value, and for what kmigrate cannot use.
"""

from __future__ import annotations

import difflib
import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import SplitResult, unquote, unquote_plus, urlsplit

from airflow_provider_kmigrate.clients.identity import ENDPOINT, TOKEN, security_from_kafka
from airflow_provider_kmigrate.clients.sasl import GSSAPI, MECHANISMS, OAUTHBEARER, is_kerberos_installed
from airflow_provider_kmigrate.clients.settings import (
    ClusterSettings,
    HostSettings,
    KafkaSettings,
    KerberosLogin,
    OAuthLogin,
    SshSettings,
    WebhookSettings,
    WireSecurity,
    ZooKeeperSettings,
)
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, Served
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.masking import hide_values

Connection = Mapping[str, Any]

_SECRET_NAME = re.compile(
    r"passw|passphrase|secret|token|jaas|key\.pem|digest|auth_data|credential|private|connection_string|(?:api|access|account).?key",
    re.IGNORECASE,
)
_PLAIN_HEADERS = frozenset({"accept", "accept-encoding", "accept-language", "content-type", "user-agent", "verify"})
_PLAIN_WORDS = re.compile(r"[a-z]+(?:[-_. /]?(?:20\d\d|\d{1,2})(?!\d)|[-_. /][a-z]+)*", re.IGNORECASE)
_INSTEAD = dict.fromkeys(("digest", "auth_data", "zk_digest"), "Write the user into login and its password into password.")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)+)"')
_NAMED = re.compile(r"(?:^|;)([A-Za-z]+)=([^;]+)")
_BEHIND_SCHEME = re.compile(r"^[A-Za-z]+ +(\S+)$")
_SHORTEST_LINE = 8  # a shorter line is no secret of its own, and hiding it would hide half the log


def is_port(text: str) -> bool:
    """Whether `text` is the number of a port."""
    return re.fullmatch(r"[0-9]{1,5}", text) is not None and 0 < int(text) < 1 << 16


class ConnectionFields:
    """Reads fields and collects every problem; `check` raises them all at once."""

    def __init__(self, conn_id: str, connection: Connection, conn_type: str, extras: Iterable[str] | None) -> None:
        """`extras`: the names that `extra` may have; None: any. Raises `Refused` at once for another type of connection."""
        self.conn_id = conn_id
        self._connection = connection
        self._reasons: list[Reason] = []
        hide_values(secrets_of(connection))
        self._check_type(conn_type)
        self.extra = self._parse_extra()
        if extras is not None:
            self._check_names(tuple(extras))

    def field(self, name: str) -> str | None:
        """A field of the connection itself as text; None if it is empty."""
        value = self._connection.get(name)
        return None if value in (None, "") else str(value)

    def port(self) -> str:
        """The port of the connection as digits; empty if it has none."""
        port = self.field("port") or ""
        if not port or is_port(port):
            return port
        self.add_problem("port is not one", "Expected a whole number from 1 to 65535.", "Correct it, or leave it empty.")
        return ""

    def text(self, name: str) -> str | None:
        """An extra that is text."""
        value = self._extra_or_none(name)
        if value is None or isinstance(value, str):
            return value
        self._add_wrong_value(name, "text")
        return None

    def flag(self, name: str, *, default: bool) -> bool:
        """An extra that is true or false; connection URIs carry them as text."""
        value = self._extra_or_none(name)
        flag = {"true": True, "false": False, "none": default}.get(str(value).lower())
        if flag is None:
            self._add_wrong_value(name, "true or false")
        return bool(flag)

    def seconds(self, name: str, *, default: float) -> float:
        """An extra that is a time in seconds, above 0."""
        value = self._extra_or_none(name)
        try:
            seconds = default if value is None else float("nan" if isinstance(value, bool) else value)
        except (TypeError, ValueError):
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            self._add_wrong_value(name, "seconds above 0")
        return seconds

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        """An extra that is one of `choices`, in any case."""
        value = (self.text(name) or "").upper()
        if value in choices:
            return value
        if value:
            self._add_wrong_value(name, f"one of {', '.join(choices)}")
        return None

    def mapping(self, name: str) -> dict[str, str]:
        """An extra that maps names of environment variables to text; may be given as JSON text."""
        value = _parse_json(self._extra_or_none(name) or {})
        if isinstance(value, Mapping) and all(_is_variable_name(key) and isinstance(text, str) for key, text in value.items()):
            return dict(value)
        self._add_wrong_value(name, "a mapping of environment variables to text")
        return {}

    def add_problem(self, text: str, why: str, remedy: str) -> None:
        """Note one more problem; `text` must not contain a secret."""
        self._reasons.append(Reason("N03", f"connection {self.conn_id}: {text}. {why} {remedy}"))

    def refuse_problems(self) -> None:
        """Raise `Refused` with every problem found."""
        if self._reasons:
            raise Refused("\n  ".join(str(reason) for reason in self._reasons), self._reasons)

    def _extra_or_none(self, name: str) -> Any:
        """None if empty: forms leave unused fields empty."""
        value = self.extra.get(name)
        return None if value == "" else value

    def _add_wrong_value(self, name: str, expected: str) -> None:
        self.add_problem(f"{name} has a wrong value", f"Expected {expected}.", f"Correct {name} in the connection's extra.")

    def _parse_extra(self) -> Mapping[str, Any]:
        extra = _parse_json(self._connection.get("extra") or {})
        if isinstance(extra, Mapping):
            return extra
        self.add_problem("extra is not a JSON object", "kmigrate reads its settings from it.", "Write extra as a JSON object.")
        return {}

    def _check_type(self, expected_type: str) -> None:
        actual_type = (self.field("conn_type") or "").replace("-", "_")
        if actual_type != expected_type:
            text = f"its type is {actual_type or 'empty'}, not {expected_type}"
            self.add_problem(text, "Its fields mean something else.", f"Name a connection of type {expected_type}.")
            self.refuse_problems()

    def _check_names(self, known_names: tuple[str, ...]) -> None:
        for name in self.extra:
            if name not in known_names:
                near = difflib.get_close_matches(name, known_names, n=1)
                remedy = f"Write {near[0]}." if near else f"Remove it; known are {', '.join(known_names)}."
                remedy = _INSTEAD.get(name, remedy)
                self.add_problem(f"extra has the unknown key {name}", "A setting with a typo would silently not apply.", remedy)


def secrets_of(connection: Connection) -> tuple[str, ...]:
    """Every secret of a connection, longest first, in each form that a log could show.

    Airflow masks extras by their names and knows neither `ssl.key.pem` nor `sasl.jaas.config`, nor the lines of a PEM text.
    """
    secrets: set[str] = set()
    password = connection.get("password")
    if isinstance(password, str) and password:
        login = f"{connection.get('login') or ''}:{password}"
        secrets |= {*_printed_forms(password), login, b64encode(login.encode()).decode()}  # the last as HTTP sends it
    for value in _secrets_of_http(connection):
        secrets.update(_printed_forms(value))
    for value in _secret_values(_parse_json(connection.get("extra") or {}), secret=False):
        secrets.update(_printed_forms(value))
    return tuple(sorted(secrets, key=lambda secret: (-len(secret), secret)))


def _secrets_of_http(connection: Connection) -> Iterator[str]:
    """What a webhook's address may hold, as it is written and decoded, and its headers: any service names its own key.

    Plain words under a name that says nothing of a secret stay: hiding `orders-prod` would hide a cluster's name from its pages.
    """
    host, is_webhook = str(connection.get("host") or ""), connection.get("conn_type") == HTTP
    url = _split_url(host if "://" in host else f"//{host}")
    parts = [("password", url.password or ""), *(part.partition("=")[::2] for part in url.query.split("&"))]
    parts += [("", part) for part in (url.username or "", *url.path.split("/")) if is_webhook]
    named = [(name, form) for name, part in parts for form in (part, unquote(part), unquote_plus(part))]
    headers = _parse_json(connection.get("extra") or {})
    if is_webhook and isinstance(headers, Mapping):
        named += [(str(name), str(value)) for name, value in headers.items() if value and str(name).lower() not in _PLAIN_HEADERS]
    for name, value in named:
        if value and (is_secret_name(name) or name.lower() == "authorization" or not _PLAIN_WORDS.fullmatch(value)):
            yield from (value, *_BEHIND_SCHEME.findall(value))


def _secret_values(value: object, *, secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _secret_values(inner, secret=secret or is_secret_name(str(key)))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _secret_values(inner, secret=secret)
    elif isinstance(value, str | int) and not isinstance(value, bool):
        if secret:
            yield str(value)
        inner = _parse_json(value)  # such as Google's `keyfile_dict`, whose own name says nothing of a secret
        if isinstance(inner, Mapping | list):
            yield from _secret_values(inner, secret=secret)


def is_secret_name(name: str) -> bool:
    """Whether what has this name may be a secret. A token endpoint's address is shown: it is what an operator must find in an error."""
    return bool(_SECRET_NAME.search(name)) and not name.endswith((".url", "token_endpoint", "token_ca_file"))


def _printed_forms(secret: str) -> Iterator[str]:
    """A secret as it is, as JSON or repr escapes it, line by line, the quoted parts of a JAAS line, and the keys of a connection string."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield from _QUOTED.findall(secret)
    yield from (value for name, value in _NAMED.findall(secret) if is_secret_name(name))
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= _SHORTEST_LINE and not line.startswith("-----"))


def _parse_json(value: object) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except ValueError:
        return value


def _is_variable_name(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


ZOOKEEPER, KAFKA, CONTROLLER, HOST = "kmigrate_zookeeper", "kafka", "kmigrate_controller", "kmigrate_host"
HTTP, SSH, SPARK, SIGNING, FILES = "http", "ssh", "spark", "generic", "aws"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
ZOOKEEPER_MECHANISMS = ("DIGEST-MD5", "GSSAPI")
_TLS_EXTRAS = ("ca_file", "cert_file", "key_file", "key_password", "verify_hostname")
_KERBEROS_EXTRAS = ("kerberos_service", "principal", "keytab")
ZOOKEEPER_EXTRAS = ("chroot", "session_timeout", "connect_timeout", "use_tls", *_TLS_EXTRAS, "sasl_mechanism", *_KERBEROS_EXTRAS)
_LOGIN_EXTRAS = (*_KERBEROS_EXTRAS, "token_endpoint", "scope", "token_ca_file")
CONTROLLER_EXTRAS = ("protocol", *_TLS_EXTRAS, "sasl_mechanism", *_LOGIN_EXTRAS)
HOST_EXTRAS = ("environment", "secret_environment")

Lookup = Callable[[str], Connection]
Settings = TypeVar("Settings", HostSettings, WebhookSettings)
_EXAMPLES = {
    ZOOKEEPER: "--conn-host zk1:2181,zk2:2181/kafka",
    KAFKA: """--conn-extra '{"bootstrap.servers": "kafka0:9092"}'""",
    CONTROLLER: """--conn-extra '{"protocol": "PLAINTEXT"}'""",
    HOST: """--conn-extra '{"environment": {}}'""",
    HTTP: "--conn-schema https --conn-host deployer.example.org/restart",
    SPARK: "--conn-host spark://spark-master --conn-port 7077",
    FILES: "--conn-login KEY --conn-password SECRET, or the type of its file system",
    SIGNING: "--conn-password $(openssl rand -hex 32)",
    SSH: """--conn-login kmigrate --conn-extra '{"key_file": "/etc/kmigrate/id_ed25519"}'""",
}
_ZOOKEEPER_PORT = "2181"
_ON = frozenset({"true", "t", "1"})  # as librdkafka reads it; it takes 0 and f for false
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_CHROOT = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/\x00-\x20]+)+")
_UNUSABLE = {
    "ssl.key.pem": "write the key to a file and name it in ssl.key.location",
    "ssl.certificate.pem": "write the certificate to a file and name it in ssl.certificate.location",
    "ssl.ca.pem": "write the certificates to a file and name it in ssl.ca.location",
    "ssl_engine": "name files in ssl.ca.location, ssl.certificate.location and ssl.key.location",
    "enable.sasl.oauthbearer.unsecure.jwt": "name a token endpoint, or write a token into sasl.oauthbearer.token",
}


def zookeeper_settings(conn_id: str, connection: Connection) -> ZooKeeperSettings:
    """The ZooKeeper settings of a connection. Raises `Refused` with every problem of it."""
    fields = ConnectionFields(conn_id, connection, ZOOKEEPER, ZOOKEEPER_EXTRAS)
    login, password = fields.field("login"), fields.field("password")
    mechanism = fields.choice("sasl_mechanism", ZOOKEEPER_MECHANISMS)
    use_tls = fields.flag("use_tls", default=False)
    settings = ZooKeeperSettings(
        hosts=_read_servers(fields),
        chroot=_read_chroot(fields),
        session_timeout=fields.seconds("session_timeout", default=10.0),
        connect_timeout=fields.seconds("connect_timeout", default=10.0),
        use_tls=use_tls,
        **_read_tls(fields, used=use_tls, switch="use_tls"),
        digest=f"{login}:{password}" if login and password and not mechanism else None,
        sasl_mechanism=mechanism,
        sasl_user=login if mechanism == "DIGEST-MD5" else None,
        sasl_password=password if mechanism == "DIGEST-MD5" else None,
        kerberos=_read_kerberos(fields, "zookeeper") if mechanism == GSSAPI else None,
    )
    if mechanism == GSSAPI:
        _check_kerberos(fields)
        if login or password:
            fields.add_problem(
                "login or password is set", "Kerberos takes neither.", "Write principal and keytab into extra, or have a ticket."
            )
    else:
        _check_login(fields, needed=mechanism is not None)
    if login and not mechanism and ":" in login:
        fields.add_problem("login has a colon", "ZooKeeper ends a digest's user name at the first one.", "Use another user.")
    fields.refuse_problems()
    return settings


def kafka_settings(conn_id: str, connection: Connection) -> KafkaSettings:
    """The properties of librdkafka as text, without `debug`: its output can carry credentials."""
    fields = ConnectionFields(conn_id, connection, KAFKA, None)
    properties = {name: _property_text(fields, name, value) for name, value in fields.extra.items() if name != "debug"}
    settings = KafkaSettings(properties)
    if len(settings.servers) != settings.bootstrap.count(",") + 1:
        problem = "bootstrap.servers is missing or no list of servers"
        fields.add_problem(
            problem, "Expected host:port,host:port.", 'Add it to extra: {"bootstrap.servers": "kafka0:9092,kafka1:9092"}.'
        )
    _check_usable(fields, properties)
    fields.refuse_problems()
    return settings


def controller_security(conn_id: str, connection: Connection) -> WireSecurity:
    """TLS and SASL of the controller listener."""
    fields = ConnectionFields(conn_id, connection, CONTROLLER, CONTROLLER_EXTRAS)
    protocol = fields.choice("protocol", PROTOCOLS) or "PLAINTEXT"
    sasl = protocol.startswith("SASL_")
    mechanism = fields.choice("sasl_mechanism", MECHANISMS)
    security = WireSecurity(
        protocol=protocol,
        **_read_tls(fields, used=protocol.endswith("SSL"), switch="protocol SSL or SASL_SSL"),
        sasl_mechanism=mechanism,
        sasl_user=fields.field("login"),
        sasl_password=fields.field("password"),
        oauth=_read_oauth(fields) if mechanism == OAUTHBEARER else None,
        kerberos=_read_kerberos(fields, "kafka") if mechanism == GSSAPI else None,
    )
    if mechanism == GSSAPI:
        _check_kerberos(fields)
    elif mechanism != OAUTHBEARER:
        _check_login(fields, needed=sasl)
    if sasl != bool(fields.extra.get("sasl_mechanism")):
        text = f"protocol is {protocol} and sasl_mechanism is {security.sasl_mechanism or 'empty'}"
        fields.add_problem(
            text,
            "A mechanism belongs to the SASL protocols only.",
            f"Choose one of {', '.join(MECHANISMS)}, or PLAINTEXT.",
        )
    fields.refuse_problems()
    return security


def _read_oauth(fields: ConnectionFields) -> OAuthLogin:
    """Client credentials at `token_endpoint`; without one the password is a fixed token."""
    endpoint, password = fields.text("token_endpoint"), fields.field("password") or ""
    if not endpoint:
        if not password:
            fields.add_problem(
                "token_endpoint is missing", "OAUTHBEARER needs a source of tokens.", "Add it, or a token as password."
            )
        return OAuthLogin(token=password)
    login = OAuthLogin(
        endpoint, fields.field("login") or "", password, fields.text("scope") or "", (), fields.text("token_ca_file")
    )
    _check_client_credentials(fields, login)
    return login


def _read_kerberos(fields: ConnectionFields, service: str) -> KerberosLogin:
    return KerberosLogin(fields.text("kerberos_service") or service, fields.text("principal"), fields.text("keytab"))


def controller_address(conn_id: str, connection: Connection) -> tuple[str, int] | None:
    """The controller that *Test* asks, from host (`ctl0:9093`) and port; None if host is empty."""
    fields = ConnectionFields(conn_id, connection, CONTROLLER, CONTROLLER_EXTRAS)
    host = fields.field("host")
    match = _SERVER.fullmatch(f"{host}")
    port = (match[2] if match else None) or fields.field("port") or ""
    if host and not (match and is_port(port)):
        fields.add_problem("host is not a controller's address", "Expected host:port.", "Write it, or leave host empty.")
    fields.refuse_problems()
    return (match[1], int(port)) if host and match else None


def host_settings(conn_id: str, connection: Connection) -> HostSettings:
    """The environment of the nodes' commands."""
    fields = ConnectionFields(conn_id, connection, HOST, HOST_EXTRAS)
    plain, secret = fields.mapping("environment"), fields.mapping("secret_environment")
    for name in sorted(plain.keys() & secret.keys()):
        fields.add_problem(f"{name} is in environment and in secret_environment", "Only one can apply.", "Remove one.")
    fields.refuse_problems()
    return HostSettings(plain | secret)


_UNVERIFIED = ("no_host_key_check", "ignore_hostkey_verification", "allow_host_key_change")


def ssh_settings(conn_id: str, connection: Connection) -> SshSettings:
    """The connection as it is, if it verifies the machines' host keys."""
    fields = ConnectionFields(conn_id, connection, SSH, None)
    for name in _UNVERIFIED:
        if fields.flag(name, default=False):
            why = "Any machine could then pretend to be a node, and get its files with their secrets."
            remedy = "Remove it, and add the key of each node to ~/.ssh/known_hosts of Airflow's user on each worker and the triggerer."
            fields.add_problem(f"{name} is true", why, remedy)
    fields.refuse_problems()
    return SshSettings(conn_id, connection)


_HEADER = re.compile(r"[!#$%&'*+.^`|~\w-]+", re.ASCII)
_FRAMING = frozenset({"connection", "content-length", "host", "transfer-encoding", "trailer", "upgrade"})
_REQUESTS = ("allow_redirects", "cert", "check_response", "max_redirects", "proxies", "stream", "timeout", "trust_env")


def webhook_settings(conn_id: str, connection: Connection, *, tls: bool = True) -> WebhookSettings:
    """How to call a webhook, from a connection of Airflow's HTTP provider.

    Its address is in schema (http or https), host and port, or a whole URL in host. Extras are headers, but `verify`, the path of a CA file. `tls` false: the cluster file confirms an address without TLS.
    """
    fields = ConnectionFields(conn_id, connection, HTTP, None)
    url, login = _webhook_url(fields), fields.field("login")
    if url.startswith("http://") and tls:
        why = "Its login, its headers and the run's token would be readable on the network."
        remedy = "Write https into schema. If http is meant, confirm it by `webhook_tls: false` in the group's entry of the cluster file."
        fields.add_problem("its address is http, without TLS", why, remedy)
    for name in (name for name in _REQUESTS if name in fields.extra):
        fields.add_problem(f"extra has {name}", "It is no header, and a webhook has no such option.", f"Remove {name}.")
    if str(verify := fields.extra.get("verify")).lower() in {"false", "0"}:
        fields.add_problem(
            "verify is false", "Any service could pass for this one.", "Write the path of its CA file, or remove verify."
        )
    headers = {str(name): str(value) for name, value in fields.extra.items() if name != "verify"}
    for name in (name for name, value in headers.items() if name not in _REQUESTS and not _may_be_header(name, value)):
        why = "A header is printable ASCII without a space at its ends; those that frame a request, such as Host, kmigrate writes itself."
        fields.add_problem(f"extra has {name!r}, which cannot be sent as a header", why, "Remove it, or correct its value.")
    fields.refuse_problems()
    ca_file = verify if isinstance(verify, str) and verify.startswith("/") else None
    return WebhookSettings(url, headers, (login, fields.field("password") or "") if login else None, ca_file)


def _may_be_header(name: str, value: str) -> bool:
    """Whether any service reads it as one header, and the request around it as ours."""
    is_sent = _HEADER.fullmatch(name) is not None and value.isascii() and value.isprintable() and value == value.strip()
    return is_sent and name.lower() not in _FRAMING


def _webhook_url(fields: ConnectionFields) -> str:
    """The URL of a webhook; the port belongs behind the host, also of a whole URL."""
    host, port = fields.field("host") or "", fields.port()
    url = _split_url(host if "://" in host else f"{fields.field('schema') or 'http'}://{host}")
    if not url.netloc or url.scheme not in {"http", "https"}:
        fields.add_problem(
            "host is not the address of an HTTP service", "The webhook could not be called.", "Write its host, or its whole URL."
        )
    return url._replace(netloc=f"{url.netloc}:{port}" if port else url.netloc).geturl()


_SHORTEST_KEY = 32  # characters; 16 random bytes in hex


def signing_key(conn_id: str, connection: Connection) -> str:
    """The secret that signs approvals: the password of the connection."""
    fields = ConnectionFields(conn_id, connection, SIGNING, None)
    key = fields.field("password") or ""
    if len(key) < _SHORTEST_KEY:
        text = f"its password has {count_of(len(key), 'character')}"
        fields.add_problem(
            text, "It signs approvals, and a short one can be guessed.", f"Enter {_SHORTEST_KEY} random ones or more."
        )
    fields.refuse_problems()
    return key


class SettingsReaders(NamedTuple):
    """Read the settings of one connection each, by its id; `lookup` returns a connection of Airflow's own types. All raise `Refused`."""

    zookeeper: Callable[[str], ZooKeeperSettings]
    kafka: Callable[[str], KafkaSettings]
    controllers: Callable[[str], WireSecurity]
    hosts: Callable[[str], HostSettings]
    lookup: Lookup


def settings_for(spec: ClusterSpec, lookup: Lookup) -> ClusterSettings:
    """The settings to reach all of a cluster. `lookup` returns a connection by its id and raises `Refused` if it does not exist."""
    readers = SettingsReaders(
        zookeeper=lambda conn_id: zookeeper_settings(conn_id, lookup(conn_id)),
        kafka=lambda conn_id: kafka_settings(conn_id, lookup(conn_id)),
        controllers=lambda conn_id: controller_security(conn_id, lookup(conn_id)),
        hosts=lambda conn_id: host_settings(conn_id, lookup(conn_id)),
        lookup=lookup,
    )
    return compose_settings(spec, readers)


def compose_settings(spec: ClusterSpec, readers: SettingsReaders) -> ClusterSettings:
    """The settings to reach all of a cluster. Raises as the readers do, but for connections of groups: their refusals are in the settings."""
    lookup = readers.lookup
    kafka = readers.kafka(spec.kafka_conn_id)
    brokers = security_from_kafka(kafka)
    return ClusterSettings(
        zookeeper=readers.zookeeper(spec.zookeeper_conn_id),
        kafka=kafka,
        brokers=brokers,
        controllers=_security_of_controllers(spec, brokers, readers.controllers),
        hosts={conn_id: readers.hosts(conn_id) for conn_id in host_connections(spec)},
        group_hosts={conn_id: _read_or_refusal(readers.hosts, conn_id) for conn_id in _group_connections(spec)},
        webhooks={
            conn_id: _read_or_refusal(partial(_read_webhook, lookup, tls=_needs_tls(spec, conn_id)), conn_id)
            for conn_id in _webhook_connections(spec)
        },
        ssh={conn_id: ssh_settings(conn_id, lookup(conn_id)) for conn_id in ssh_connections(spec)},
        cluster_id=spec.cluster_id,
        signing_key=signing_key(signing, lookup(signing)) if (signing := _signing_connection(spec)) else "",
    )


def _read_webhook(lookup: Lookup, conn_id: str, *, tls: bool) -> WebhookSettings:
    return webhook_settings(conn_id, lookup(conn_id), tls=tls)


def _signing_connection(spec: ClusterSpec) -> str:
    return spec.approvers.signing_conn_id if spec.approvers else ""


def _list_served(spec: ClusterSpec) -> list[Served]:
    """All that is behind an agent."""
    return [*spec.nodes(), *spec.units()]


def host_connections(spec: ClusterSpec) -> list[str]:
    """The ids of the connections that nodes, and units of applications, have for their commands, each once."""
    return sorted({served.hosts.conn_id for served in _list_served(spec)} - {""})


def ssh_connections(spec: ClusterSpec) -> list[str]:
    """The ids of the SSH connections that nodes, and units of applications, are behind, each once."""
    return sorted({served.hosts.ssh_conn_id for served in _list_served(spec)} - {""})


def _group_connections(spec: ClusterSpec) -> list[str]:
    return sorted({group.conn_id for group in spec.groups} - {""})


def _job_connections(spec: ClusterSpec) -> list[str]:
    return sorted({job.command_conn_id for job in spec.spark_jobs} - {""})


def _webhook_connections(spec: ClusterSpec) -> list[str]:
    return sorted({instance.webhook for group in spec.groups for instance in group.instances} - {""})


def _read_or_refusal(read: Callable[[str], Settings], conn_id: str) -> Settings | Refused:
    """Settings for groups, or why they cannot be used: that stops the groups that name them, and never a rollback of the cluster."""
    try:
        return read(conn_id)
    except Refused as refused:
        return refused


def _needs_tls(spec: ClusterSpec, conn_id: str) -> bool:
    """Whether a webhook must have TLS: unless every group that names it confirms that it has none."""
    return any(group.webhook_tls for group in spec.groups for instance in group.instances if instance.webhook == conn_id)


def missing_connection(conn_id: str, conn_type: str, named_in: str = "") -> Refused:
    """The refusal for a connection that does not exist; `named_in` says where it is named."""
    text = f"There is no connection {conn_id}{f', which {named_in} names' if named_in else ''}."
    text += f" Create it: airflow connections add {conn_id} --conn-type {conn_type} {_EXAMPLES[conn_type]}"
    return Refused.because(Reason("N03", text))


def named_connections(spec: ClusterSpec) -> dict[str, tuple[str, str]]:
    """Every connection id of a cluster file -> (the type that it must have, where it is named)."""
    in_file = f"in {spec.path}" if spec.path else "in the cluster file"
    types_and_places = dict.fromkeys(_webhook_connections(spec), (HTTP, f"a webhook {in_file}"))
    types_and_places |= dict.fromkeys(_group_connections(spec), (HOST, f"a group's conn_id {in_file}"))
    types_and_places |= dict.fromkeys(_job_connections(spec), (HOST, f"a job's command_conn_id {in_file}"))
    types_and_places |= dict.fromkeys(
        sorted({job.conn_id for job in spec.spark_jobs} - {""}), (FILES, f"a job's conn_id {in_file}")
    )
    if spec.audit:
        types_and_places[spec.audit.conn_id] = (SPARK, f"audit.conn_id {in_file}")
    types_and_places |= dict.fromkeys(host_connections(spec), (HOST, f"hosts.conn_id {in_file}"))
    types_and_places |= dict.fromkeys(ssh_connections(spec), (SSH, f"hosts.ssh_conn_id {in_file}"))
    if signing := _signing_connection(spec):
        types_and_places[signing] = (SIGNING, f"approvers.signing_conn_id {in_file}")
    if spec.controller_conn_id:
        types_and_places[spec.controller_conn_id] = (CONTROLLER, f"quorum.conn_id {in_file}")
    types_and_places[spec.kafka_conn_id] = (KAFKA, f"kafka.conn_id {in_file}")
    types_and_places[spec.zookeeper_conn_id] = (ZOOKEEPER, f"zookeeper.conn_id {in_file}")
    return types_and_places


def read_connections(path: str | Path) -> Mapping[str, Connection]:
    """A file `{conn_id: {conn_type: ..., host: ..., extra: {...}}}`, as `airflow connections import` reads it."""
    try:
        connections = read_json(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise _bad_connections_file(f"{path} cannot be read as JSON: {_describe_json_fault(error)}") from error
    if not isinstance(connections, dict) or not all(isinstance(connection, dict) for connection in connections.values()):
        raise _bad_connections_file(f"{path} is not a JSON object of connections")
    return connections


def _describe_json_fault(error: OSError | ValueError) -> str:
    """What is wrong and where, without a character of the file: it may hold passwords."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.partition(':')[0]}, in line {error.lineno} at character {error.colno}"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "it is not UTF-8" if isinstance(error, UnicodeError) else str(error)


def _bad_connections_file(text: str) -> Refused:
    return Refused.because(Reason("N03", f"{text}."))


def lookup_in(connections: Mapping[str, Connection], spec: ClusterSpec) -> Lookup:
    """A `Lookup` in the connections that `read_connections` returned."""
    types_and_places = named_connections(spec)

    def lookup(conn_id: str) -> Connection:
        if conn_id not in connections:
            raise missing_connection(conn_id, *types_and_places[conn_id])
        return connections[conn_id]

    return lookup


def _security_of_controllers(
    spec: ClusterSpec, brokers: WireSecurity, read_security: Callable[[str], WireSecurity]
) -> WireSecurity:
    """Controllers without a connection of their own use the brokers' identity."""
    expected_protocol = spec.controller_security
    if spec.controller_conn_id:
        security = read_security(spec.controller_conn_id)
        if security.protocol != expected_protocol:
            problem = f"connection {spec.controller_conn_id} has protocol {security.protocol}"
            _refuse_contradiction(spec, problem, "Make both the same.")
        return security
    if expected_protocol.startswith("SASL_") and not brokers.sasl_mechanism:
        _refuse_contradiction(
            spec, f"connection {spec.kafka_conn_id} has no SASL", f"Name a connection of type {CONTROLLER} in quorum.conn_id."
        )
    return WireSecurity() if expected_protocol == "PLAINTEXT" else replace(brokers, protocol=expected_protocol)


def _refuse_contradiction(spec: ClusterSpec, problem: str, remedy: str) -> NoReturn:
    text = f"{problem}, and quorum.security_protocol in {spec.path or 'the cluster file'} is {spec.controller_security}. {remedy}"
    raise Refused.because(Reason("N03", text))


def _read_servers(fields: ConnectionFields) -> str:
    """`host:port,host:port`; a server without a port has the connection's, else 2181."""
    text = (fields.field("host") or "").partition("/")[0]
    matches = [_SERVER.fullmatch(server.strip()) for server in text.split(",")]
    if not text or not all(match and is_port(match[2] or _ZOOKEEPER_PORT) for match in matches):
        problem = "host is empty" if not text else "host is not a list of servers"
        fields.add_problem(problem, "Expected host:port,host:port/chroot.", "Write it as the brokers' zookeeper.connect has it.")
        return ""
    port = fields.port() or _ZOOKEEPER_PORT
    return ",".join(f"{match[1]}:{match[2] or port}" for match in matches if match)


def _read_chroot(fields: ConnectionFields) -> str:
    """From host, from extra, or from the path of a connection URI; they must agree."""
    in_host = (fields.field("host") or "").partition("/")[1:]
    places = {"host": "".join(in_host), "extra.chroot": fields.text("chroot") or "", "schema": fields.field("schema") or ""}
    given_chroots = {place: f"/{chroot.strip('/')}" for place, chroot in places.items() if chroot.strip("/")}
    if len(set(given_chroots.values())) > 1:
        fields.add_problem(
            f"{' and '.join(given_chroots)} name different chroots", "Only one can be right.", "Write it in one place."
        )
    chroot = next(iter(given_chroots.values()), "")
    if "," in given_chroots.get("host", ""):
        fields.add_problem(
            "host has a chroot before its last server",
            "ZooKeeper's client would take the rest of the text for a part of the path, and use the first server only.",
            "Write the chroot once, at the end. If zookeeper.connect of the brokers is like that, write their first server into host,"
            " and all behind it, as it is, into extra.chroot.",
        )
    elif chroot and not _CHROOT.fullmatch(chroot):
        fields.add_problem(
            "the chroot is not a znode's path",
            "Expected /name once, at the end of host.",
            "Write it as the brokers have it.",
        )
    return chroot


def _read_tls(fields: ConnectionFields, *, used: bool, switch: str) -> dict[str, Any]:
    files = {name: fields.text(name) for name in ("ca_file", "cert_file", "key_file", "key_password")}
    given_names = [name for name, value in files.items() if value]
    if given_names and not used:
        fields.add_problem(
            f"{', '.join(given_names)} without {switch}", "The connection would not be encrypted.", f"Set {switch}."
        )
    if (files["key_file"] or files["key_password"]) and not files["cert_file"]:
        fields.add_problem("a key without cert_file", "A key proves nothing without its certificate.", "Add cert_file.")
    return {**files, "verify_hostname": fields.flag("verify_hostname", default=True)}


def _check_login(fields: ConnectionFields, *, needed: bool) -> None:
    login, password = fields.field("login"), fields.field("password")
    if bool(login) != bool(password) or (needed and not login):
        absent = [name for name, value in (("login", login), ("password", password)) if not value]
        fields.add_problem(f"{' and '.join(absent)} missing", "A user needs both.", "Fill in login and password.")


def _property_text(fields: ConnectionFields, name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    fields.add_problem(f"{name} has a wrong value", "Expected text, a number, true or false.", f"Correct {name} in extra.")
    return ""


def _check_usable(fields: ConnectionFields, properties: Mapping[str, str]) -> None:
    """Refuse what librdkafka would take but the wire client could not; both must have the same identity."""
    for name, remedy in _UNUSABLE.items():
        if name in properties:
            fields.add_problem(f"{name} cannot be used", "kmigrate's own client could not use it.", f"Instead, {remedy}.")
    for name in properties:
        if name.endswith("_cb") or name == "plugin.library.paths":
            fields.add_problem(f"{name} cannot be used", "kmigrate does not run code from a connection.", "Remove it.")
    verification = properties.get("enable.ssl.certificate.verification", "true")
    if verification.lower() not in _ON:
        text = f"enable.ssl.certificate.verification is {verification}"
        fields.add_problem(text, "Any server could then pretend to be a broker.", "Name the CA in ssl.ca.location.")
    if properties.get("ssl.endpoint.identification.algorithm", "https") not in {"https", "none"}:
        text = "ssl.endpoint.identification.algorithm has a wrong value"
        fields.add_problem(text, "Host names would be verified by one client of kmigrate only.", "Write https, or remove it.")
    _check_protocol(fields, properties)


def _check_protocol(fields: ConnectionFields, properties: Mapping[str, str]) -> None:
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        fields.add_problem(
            "security.protocol has a wrong value", f"Expected one of {', '.join(PROTOCOLS)}.", "Correct it in extra."
        )
    if not protocol.startswith("SASL_"):
        return
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms")
    if mechanism not in MECHANISMS:
        why = f"kmigrate's own client speaks {', '.join(MECHANISMS)}."
        fields.add_problem("its sasl.mechanism cannot be used", why, "Give kmigrate a user with one of these.")
    elif mechanism == OAUTHBEARER:
        _check_oauth(fields, properties)
    elif mechanism == GSSAPI:
        _check_kerberos(fields)
    else:
        _require_properties(fields, properties, "sasl.username", "sasl.password")


def _require_properties(fields: ConnectionFields, properties: Mapping[str, str], *names: str) -> None:
    for name in names:
        if not properties.get(name):
            fields.add_problem(f"{name} is missing", f"{properties['security.protocol'].upper()} needs it.", "Add it to extra.")


def _check_oauth(fields: ConnectionFields, properties: Mapping[str, str]) -> None:
    """A fixed token, or client credentials; librdkafka and the wire client must both find the same one."""
    if properties.get(TOKEN):
        if clash := [name for name in ("sasl.oauthbearer.method", ENDPOINT) if properties.get(name)]:
            text = f"{TOKEN} and {clash[0]} are both set"
            fields.add_problem(text, "Only one can be the source of tokens.", "Remove one.")
        return
    if properties.get("sasl.oauthbearer.method", "").lower() != "oidc":
        text = f"neither {TOKEN} nor sasl.oauthbearer.method=oidc is set"
        remedy = f"Write oidc there, and {ENDPOINT}, sasl.oauthbearer.client.id and .secret; or write a token into {TOKEN}."
        fields.add_problem(text, "OAUTHBEARER needs a source of tokens.", remedy)
        return
    if properties.get("sasl.oauthbearer.grant.type", "client_credentials") != "client_credentials":
        fields.add_problem("sasl.oauthbearer.grant.type cannot be used", "kmigrate sends client credentials.", "Remove it.")
    if security := security_from_kafka(KafkaSettings(properties)).oauth:
        _check_client_credentials(fields, security)
    else:
        _require_properties(fields, properties, ENDPOINT)


def _check_client_credentials(fields: ConnectionFields, login: OAuthLogin) -> None:
    url = _split_url(login.endpoint)
    host = _host_or_none(url)
    if url.scheme not in {"http", "https"} or not host or url.username or url.password or url.fragment:
        fields.add_problem(
            "the token endpoint is not an address", "Expected https://host/path, without a user.", "Correct it in extra."
        )
    elif url.scheme == "http" and host not in {"localhost", "127.0.0.1", "::1"}:
        why = "The client's secret and its tokens would be readable on the network."
        fields.add_problem("the token endpoint is http, without TLS", why, "Write https.")
    if not login.client_id or not login.client_secret:
        fields.add_problem("the client's id or secret is missing", "A token endpoint asks for both.", "Add them.")


def _split_url(text: str) -> SplitResult:
    """The parts of an address; none if it is not one. The text may hold a secret, so its error is not kept."""
    try:
        return urlsplit(text if text.isprintable() else "")
    except ValueError:  # one bracket of an IPv6 address
        return urlsplit("")


def _host_or_none(url: SplitResult) -> str | None:
    try:
        return url.hostname if url.port is None or url.port > 0 else None
    except ValueError:
        return None


def _check_kerberos(fields: ConnectionFields) -> None:
    if not is_kerberos_installed():
        remedy = "pip install 'airflow-provider-kmigrate[kerberos]' on every worker and the triggerer."
        fields.add_problem("its sasl.mechanism is GSSAPI", "The Python package gssapi is not installed here.", remedy)
