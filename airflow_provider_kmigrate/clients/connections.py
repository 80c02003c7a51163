"""Turn connections into settings: one set of rules for Airflow's hooks and, without Airflow, for a `connections.json`.

| type | used for | host, login, password | extra |
| --- | --- | --- | --- |
| kmigrate_zookeeper | the brokers' ZooKeeper | `zk1:2181,zk2:2181/chroot`; login and password: digest, or SASL with `sasl_mechanism` | ZOOKEEPER_EXTRAS |
| kafka | brokers | unused | librdkafka's properties, as Airflow's Kafka provider has them |
| kmigrate_controller | the controller listener | login and password: SASL; host: what *Test* asks | CONTROLLER_EXTRAS |
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from airflow_provider_kmigrate.clients.settings import (
    ClusterSettings,
    HostSettings,
    KafkaSettings,
    SshSettings,
    WebhookSettings,
    WireSecurity,
    ZooKeeperSettings,
)
from airflow_provider_kmigrate.clients.wire import MECHANISMS, from_kafka
from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Refused

Connection = Mapping[str, Any]

_SECRET_NAME = re.compile(r"passw|passphrase|secret|token|jaas|key\.pem|digest|auth_data|credential|private", re.IGNORECASE)
_INSTEAD = dict.fromkeys(("digest", "auth_data", "zk_digest"), "Write the user into login and its password into password.")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)+)"')
_SHORTEST_LINE = 8  # a shorter line is no secret of its own, and hiding it would hide half the log


class ConnectionFields:
    """Reads fields and collects every problem; `check` raises them all at once."""

    def __init__(self, conn_id: str, connection: Connection, conn_type: str, extras: Iterable[str] | None) -> None:
        """`extras`: the names that `extra` may have; None: any. Raises `Refused` at once for another type of connection."""
        self.conn_id = conn_id
        self._connection = connection
        self._reasons: list[Reason] = []
        self._check_type(conn_type)
        self.extra = self._parsed_extra()
        if extras is not None:
            self._check_names(tuple(extras))

    def field(self, name: str) -> str | None:
        """A field of the connection itself as text; None if it is empty."""
        value = self._connection.get(name)
        return None if value in (None, "") else str(value)

    def text(self, name: str) -> str | None:
        """An extra that is text."""
        value = self._extra(name)
        if value is None or isinstance(value, str):
            return value
        self._wrong(name, "text")
        return None

    def flag(self, name: str, *, default: bool) -> bool:
        """An extra that is true or false; connection URIs carry them as text."""
        value = self._extra(name)
        flag = {"true": True, "false": False, "none": default}.get(str(value).lower())
        if flag is None:
            self._wrong(name, "true or false")
        return bool(flag)

    def seconds(self, name: str, *, default: float) -> float:
        """An extra that is a time in seconds, above 0."""
        value = self._extra(name)
        try:
            seconds = default if value is None else float("nan" if isinstance(value, bool) else value)
        except (TypeError, ValueError):
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            self._wrong(name, "seconds above 0")
        return seconds

    def choice(self, name: str, known: tuple[str, ...]) -> str | None:
        """An extra that is one of `known`, in any case."""
        value = (self.text(name) or "").upper()
        if value in known:
            return value
        if value:
            self._wrong(name, f"one of {', '.join(known)}")
        return None

    def mapping(self, name: str) -> dict[str, str]:
        """An extra that maps names of environment variables to text; may be given as JSON text."""
        value = _from_json(self._extra(name) or {})
        if isinstance(value, Mapping) and all(_is_variable(key) and isinstance(text, str) for key, text in value.items()):
            return dict(value)
        self._wrong(name, "a mapping of environment variables to text")
        return {}

    def refuse(self, text: str, why: str, remedy: str) -> None:
        """Note one more problem; `text` must not contain a secret."""
        self._reasons.append(Reason("N03", f"connection {self.conn_id}: {text}. {why} {remedy}"))

    def check(self) -> None:
        """Raise `Refused` with every problem found."""
        if self._reasons:
            raise Refused("\n  ".join(str(reason) for reason in self._reasons), self._reasons)

    def _extra(self, name: str) -> Any:
        """None if empty: forms leave unused fields empty."""
        value = self.extra.get(name)
        return None if value == "" else value

    def _wrong(self, name: str, expected: str) -> None:
        self.refuse(f"{name} has a wrong value", f"Expected {expected}.", f"Correct {name} in the connection's extra.")

    def _parsed_extra(self) -> Mapping[str, Any]:
        extra = _from_json(self._connection.get("extra") or {})
        if isinstance(extra, Mapping):
            return extra
        self.refuse("extra is not a JSON object", "kmigrate reads its settings from it.", "Write extra as a JSON object.")
        return {}

    def _check_type(self, wanted: str) -> None:
        found = (self.field("conn_type") or "").replace("-", "_")
        if found != wanted:
            text = f"its type is {found or 'empty'}, not {wanted}"
            self.refuse(text, "Its fields mean something else.", f"Name a connection of type {wanted}.")
            self.check()

    def _check_names(self, known: tuple[str, ...]) -> None:
        for name in self.extra:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                remedy = f"Write {near[0]}." if near else f"Remove it; known are {', '.join(known)}."
                remedy = _INSTEAD.get(name, remedy)
                self.refuse(f"extra has the unknown key {name}", "A setting with a typo would silently not apply.", remedy)


def secrets_of(connection: Connection) -> tuple[str, ...]:
    """Every secret of a connection, longest first, in each form that a log could show.

    Airflow masks extras by their names and knows neither `ssl.key.pem` nor `sasl.jaas.config`, nor the lines of a PEM text.
    """
    found: set[str] = set()
    password = connection.get("password")
    if isinstance(password, str) and password:
        found |= {*_forms(password), f"{connection.get('login') or ''}:{password}"}
    for value in _secret_values(_from_json(connection.get("extra") or {}), secret=False):
        found.update(_forms(value))
    return tuple(sorted(found, key=lambda secret: (-len(secret), secret)))


def _secret_values(value: object, *, secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _secret_values(inner, secret=secret or bool(_SECRET_NAME.search(str(key))))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _secret_values(inner, secret=secret)
    elif secret and isinstance(value, str | int) and not isinstance(value, bool):
        yield str(value)
        inner = _from_json(value)
        if isinstance(inner, Mapping | list):
            yield from _secret_values(inner, secret=True)


def _forms(secret: str) -> Iterator[str]:
    """A secret as it is, as JSON or repr escapes it, line by line, and the quoted parts of a JAAS line."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield from _QUOTED.findall(secret)
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= _SHORTEST_LINE and not line.startswith("-----"))


def _from_json(value: object) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _is_variable(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


ZOOKEEPER, KAFKA, CONTROLLER, HOST = "kmigrate_zookeeper", "kafka", "kmigrate_controller", "kmigrate_host"
HTTP, SSH, SPARK, SIGNING = "http", "ssh", "spark", "generic"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
ZOOKEEPER_MECHANISMS = ("DIGEST-MD5", "GSSAPI")
_TLS_EXTRAS = ("ca_file", "cert_file", "key_file", "key_password", "verify_hostname")
ZOOKEEPER_EXTRAS = ("chroot", "session_timeout", "connect_timeout", "use_tls", *_TLS_EXTRAS, "sasl_mechanism")
CONTROLLER_EXTRAS = ("protocol", *_TLS_EXTRAS, "sasl_mechanism")
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
    "ssl.keystore.location": "name PEM files in ssl.certificate.location and ssl.key.location",
    "ssl_engine": "name PEM files in ssl.ca.location, ssl.certificate.location and ssl.key.location",
}


def zookeeper_settings(conn_id: str, connection: Connection) -> ZooKeeperSettings:
    """The ZooKeeper settings of a connection. Raises `Refused` with every problem of it."""
    fields = ConnectionFields(conn_id, connection, ZOOKEEPER, ZOOKEEPER_EXTRAS)
    login, password = fields.field("login"), fields.field("password")
    mechanism = fields.choice("sasl_mechanism", ZOOKEEPER_MECHANISMS)
    use_tls = fields.flag("use_tls", default=False)
    settings = ZooKeeperSettings(
        hosts=_servers(fields),
        chroot=_chroot(fields),
        session_timeout=fields.seconds("session_timeout", default=10.0),
        connect_timeout=fields.seconds("connect_timeout", default=10.0),
        use_tls=use_tls,
        **_tls(fields, used=use_tls, switch="use_tls"),
        digest=f"{login}:{password}" if login and password and not mechanism else None,
        sasl_mechanism=mechanism,
        sasl_user=login if mechanism else None,
        sasl_password=password if mechanism else None,
    )
    if mechanism != "GSSAPI":
        _login_complete(fields, needed=mechanism is not None)
    if login and not mechanism and ":" in login:
        fields.refuse("login has a colon", "ZooKeeper ends a digest's user name at the first one.", "Use another user.")
    fields.check()
    return settings


def kafka_settings(conn_id: str, connection: Connection) -> KafkaSettings:
    """The properties of librdkafka as text, without `debug`: its output can carry credentials."""
    fields = ConnectionFields(conn_id, connection, KAFKA, None)
    properties = {name: _property(fields, name, value) for name, value in fields.extra.items() if name != "debug"}
    settings = KafkaSettings(properties)
    if len(settings.servers) != settings.bootstrap.count(",") + 1:
        found = "bootstrap.servers is missing or no list of servers"
        fields.refuse(
            found, "Expected host:port,host:port.", 'Add it to extra: {"bootstrap.servers": "kafka0:9092,kafka1:9092"}.'
        )
    _usable(fields, properties)
    fields.check()
    return settings


def controller_security(conn_id: str, connection: Connection) -> WireSecurity:
    """TLS and SASL of the controller listener."""
    fields = ConnectionFields(conn_id, connection, CONTROLLER, CONTROLLER_EXTRAS)
    protocol = fields.choice("protocol", PROTOCOLS) or "PLAINTEXT"
    sasl = protocol.startswith("SASL_")
    security = WireSecurity(
        protocol=protocol,
        **_tls(fields, used=protocol.endswith("SSL"), switch="protocol SSL or SASL_SSL"),
        sasl_mechanism=fields.choice("sasl_mechanism", MECHANISMS),
        sasl_user=fields.field("login"),
        sasl_password=fields.field("password"),
    )
    _login_complete(fields, needed=sasl)
    if sasl != bool(fields.extra.get("sasl_mechanism")):
        text = f"protocol is {protocol} and sasl_mechanism is {security.sasl_mechanism or 'empty'}"
        fields.refuse(
            text,
            "A mechanism belongs to the SASL protocols only.",
            f"Choose one of {', '.join(MECHANISMS)}, or PLAINTEXT.",
        )
    fields.check()
    return security


def controller_address(conn_id: str, connection: Connection) -> tuple[str, int] | None:
    """The controller that *Test* asks, from host (`ctl0:9093`) and port; None if host is empty."""
    fields = ConnectionFields(conn_id, connection, CONTROLLER, CONTROLLER_EXTRAS)
    host = fields.field("host")
    match = _SERVER.fullmatch(f"{host}")
    port = (match[2] if match else None) or fields.field("port") or ""
    if host and not (match and port.isdigit()):
        fields.refuse("host is not a controller's address", "Expected host:port.", "Write it, or leave host empty.")
    fields.check()
    return (match[1], int(port)) if host and match else None


def host_settings(conn_id: str, connection: Connection) -> HostSettings:
    """The environment of the nodes' commands."""
    fields = ConnectionFields(conn_id, connection, HOST, HOST_EXTRAS)
    plain, secret = fields.mapping("environment"), fields.mapping("secret_environment")
    for name in sorted(plain.keys() & secret.keys()):
        fields.refuse(f"{name} is in environment and in secret_environment", "Only one can apply.", "Remove one.")
    fields.check()
    return HostSettings(plain | secret)


_UNVERIFIED = ("no_host_key_check", "ignore_hostkey_verification", "allow_host_key_change")


def ssh_settings(conn_id: str, connection: Connection) -> SshSettings:
    """The connection as it is, if it verifies the machines' host keys."""
    fields = ConnectionFields(conn_id, connection, SSH, None)
    for name in _UNVERIFIED:
        if fields.flag(name, default=False):
            why = "Any machine could then pretend to be a node, and get its files with their secrets."
            remedy = "Remove it, and add the key of each node to ~/.ssh/known_hosts of Airflow's user on each worker and the triggerer."
            fields.refuse(f"{name} is true", why, remedy)
    fields.check()
    return SshSettings(conn_id, connection)


_REQUESTS = ("allow_redirects", "cert", "check_response", "max_redirects", "proxies", "stream", "timeout", "trust_env")


def webhook_settings(conn_id: str, connection: Connection, *, tls: bool = True) -> WebhookSettings:
    """How to call a webhook, from a connection of Airflow's HTTP provider.

    Its address is in schema (http or https), host and port, or a whole URL in host. Extras are headers, but `verify`, the path of a CA file. `tls` false: the cluster file confirms an address without TLS.
    """
    fields = ConnectionFields(conn_id, connection, HTTP, None)
    url, login = _address(fields), fields.field("login")
    if url.startswith("http://") and tls:
        why = "Its login, its headers and the run's token would be readable on the network."
        remedy = "Write https into schema. If http is meant, confirm it by `webhook_tls: false` in the group's entry of the cluster file."
        fields.refuse("its address is http, without TLS", why, remedy)
    for name in (name for name in _REQUESTS if name in fields.extra):
        fields.refuse(f"extra has {name}", "It is no header, and a webhook has no such option.", f"Remove {name}.")
    if str(verify := fields.extra.get("verify")).lower() in {"false", "0"}:
        fields.refuse(
            "verify is false", "Any service could pass for this one.", "Write the path of its CA file, or remove verify."
        )
    fields.check()
    headers = {str(name): str(value) for name, value in fields.extra.items() if name != "verify"}
    ca_file = verify if isinstance(verify, str) and verify.startswith("/") else None
    return WebhookSettings(url, headers, (login, fields.field("password") or "") if login else None, ca_file)


def _address(fields: ConnectionFields) -> str:
    """The URL of a webhook; the port belongs behind the host, also of a whole URL."""
    host, port = fields.field("host") or "", fields.field("port")
    try:
        url = urlsplit(host if "://" in host else f"{fields.field('schema') or 'http'}://{host}")
    except ValueError:  # one bracket of an IPv6 address; its text may hold a secret
        url = urlsplit("")
    if not url.netloc or url.scheme not in {"http", "https"}:
        fields.refuse(
            "host is not the address of an HTTP service", "The webhook could not be called.", "Write its host, or its whole URL."
        )
    return url._replace(netloc=f"{url.netloc}:{port}" if port else url.netloc).geturl()


_SHORTEST_KEY = 32  # characters; 16 random bytes in hex


def signing_key(conn_id: str, connection: Connection) -> str:
    """The secret that signs approvals: the password of the connection."""
    fields = ConnectionFields(conn_id, connection, SIGNING, None)
    key = fields.field("password") or ""
    if len(key) < _SHORTEST_KEY:
        text = f"its password has {len(key)} characters"
        fields.refuse(text, "It signs approvals, and a short one can be guessed.", f"Enter {_SHORTEST_KEY} random ones or more.")
    fields.check()
    return key


def settings_for(spec: ClusterSpec, lookup: Lookup) -> ClusterSettings:
    """The settings to reach all of a cluster. `lookup` returns a connection by its id and raises `Refused` if it does not exist."""
    kafka = kafka_settings(spec.kafka_conn_id, lookup(spec.kafka_conn_id))
    brokers = from_kafka(kafka)
    return ClusterSettings(
        zookeeper=zookeeper_settings(spec.zookeeper_conn_id, lookup(spec.zookeeper_conn_id)),
        kafka=kafka,
        brokers=brokers,
        controllers=_controllers(spec, brokers, lookup),
        hosts={conn_id: host_settings(conn_id, lookup(conn_id)) for conn_id in host_connections(spec)},
        group_hosts={conn_id: _or_refusal(host_settings, conn_id, lookup) for conn_id in _group_connections(spec)},
        webhooks={
            conn_id: _or_refusal(webhook_settings, conn_id, lookup, tls=_tls_of_webhook(spec, conn_id))
            for conn_id in _webhook_connections(spec)
        },
        ssh={conn_id: ssh_settings(conn_id, lookup(conn_id)) for conn_id in ssh_connections(spec)},
        cluster_id=spec.cluster_id,
        signing_key=signing_key(signing, lookup(signing)) if (signing := _signing_connection(spec)) else "",
    )


def _signing_connection(spec: ClusterSpec) -> str:
    return spec.approvers.signing_conn_id if spec.approvers else ""


def host_connections(spec: ClusterSpec) -> list[str]:
    """The ids of the connections that nodes name for their commands, each once."""
    return sorted({node.hosts.conn_id for node in spec.nodes()} - {""})


def ssh_connections(spec: ClusterSpec) -> list[str]:
    """The ids of the SSH connections that nodes name, each once."""
    return sorted({node.hosts.ssh_conn_id for node in spec.nodes()} - {""})


def _group_connections(spec: ClusterSpec) -> list[str]:
    return sorted({group.conn_id for group in spec.groups} - {""})


def _webhook_connections(spec: ClusterSpec) -> list[str]:
    return sorted({instance.webhook for group in spec.groups for instance in group.instances} - {""})


def _or_refusal(read: Callable[..., Settings], conn_id: str, lookup: Lookup, **given: bool) -> Settings | Refused:
    """Settings for groups, or why they cannot be used: that stops the groups that name them, and never a rollback of the cluster."""
    try:
        return read(conn_id, lookup(conn_id), **given)
    except Refused as refused:
        return refused


def _tls_of_webhook(spec: ClusterSpec, conn_id: str) -> bool:
    """Whether a webhook must have TLS: unless every group that names it confirms that it has none."""
    return any(group.webhook_tls for group in spec.groups for instance in group.instances if instance.webhook == conn_id)


def missing(conn_id: str, conn_type: str, named_in: str = "") -> Refused:
    """The refusal for a connection that does not exist; `named_in` says where it is named."""
    text = f"There is no connection {conn_id}{f', which {named_in} names' if named_in else ''}."
    text += f" Create it: airflow connections add {conn_id} --conn-type {conn_type} {_EXAMPLES[conn_type]}"
    return Refused.because(Reason("N03", text))


def named_connections(spec: ClusterSpec) -> dict[str, tuple[str, str]]:
    """Every connection id of a cluster file -> (the type that it must have, where it is named)."""
    where = f"in {spec.path}" if spec.path else "in the cluster file"
    named = dict.fromkeys(_webhook_connections(spec), (HTTP, f"a webhook {where}"))
    named |= dict.fromkeys(_group_connections(spec), (HOST, f"a group's conn_id {where}"))
    named |= dict.fromkeys(host_connections(spec), (HOST, f"hosts.conn_id {where}"))
    named |= dict.fromkeys(ssh_connections(spec), (SSH, f"hosts.ssh_conn_id {where}"))
    if signing := _signing_connection(spec):
        named[signing] = (SIGNING, f"approvers.signing_conn_id {where}")
    if spec.controller_conn_id:
        named[spec.controller_conn_id] = (CONTROLLER, f"quorum.conn_id {where}")
    named[spec.kafka_conn_id] = (KAFKA, f"kafka.conn_id {where}")
    named[spec.zookeeper_conn_id] = (ZOOKEEPER, f"zookeeper.conn_id {where}")
    return named


def read_connections(path: str | Path) -> Mapping[str, Connection]:
    """A file `{conn_id: {conn_type: ..., host: ..., extra: {...}}}`, as `airflow connections import` reads it."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _no_connections(f"{path} cannot be read as JSON: {type(error).__name__}") from error
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise _no_connections(f"{path} is not a JSON object of connections")
    return found


def _no_connections(text: str) -> Refused:
    return Refused.because(Reason("N03", f"{text}."))


def lookup_in(connections: Mapping[str, Connection], spec: ClusterSpec) -> Lookup:
    """A `Lookup` in the connections that `read_connections` returned."""
    named = named_connections(spec)

    def lookup(conn_id: str) -> Connection:
        if conn_id not in connections:
            raise missing(conn_id, *named[conn_id])
        return connections[conn_id]

    return lookup


def _controllers(spec: ClusterSpec, brokers: WireSecurity, lookup: Lookup) -> WireSecurity:
    """Controllers without a connection of their own use the brokers' identity."""
    wanted = spec.controller_security
    if spec.controller_conn_id:
        security = controller_security(spec.controller_conn_id, lookup(spec.controller_conn_id))
        if security.protocol != wanted:
            found = f"connection {spec.controller_conn_id} has protocol {security.protocol}"
            _contradict(spec, found, "Make both the same.")
        return security
    if wanted.startswith("SASL_") and not brokers.sasl_mechanism:
        _contradict(
            spec, f"connection {spec.kafka_conn_id} has no SASL", f"Name a connection of type {CONTROLLER} in quorum.conn_id."
        )
    return WireSecurity() if wanted == "PLAINTEXT" else replace(brokers, protocol=wanted)


def _contradict(spec: ClusterSpec, found: str, remedy: str) -> NoReturn:
    text = f"{found}, and quorum.security_protocol in {spec.path or 'the cluster file'} is {spec.controller_security}. {remedy}"
    raise Refused.because(Reason("N03", text))


def _servers(fields: ConnectionFields) -> str:
    """`host:port,host:port`; a server without a port has the connection's, else 2181."""
    text = (fields.field("host") or "").partition("/")[0]
    matches = [_SERVER.fullmatch(server.strip()) for server in text.split(",")]
    if not text or not all(matches):
        found = "host is empty" if not text else "host is not a list of servers"
        fields.refuse(found, "Expected host:port,host:port/chroot.", "Write it as the brokers' zookeeper.connect has it.")
        return ""
    port = fields.field("port") or _ZOOKEEPER_PORT
    return ",".join(f"{match[1]}:{match[2] or port}" for match in matches if match)


def _chroot(fields: ConnectionFields) -> str:
    """From host, from extra, or from the path of a connection URI; they must agree."""
    in_host = (fields.field("host") or "").partition("/")[1:]
    places = {"host": "".join(in_host), "extra.chroot": fields.text("chroot") or "", "schema": fields.field("schema") or ""}
    given = {place: f"/{chroot.strip('/')}" for place, chroot in places.items() if chroot.strip("/")}
    if len(set(given.values())) > 1:
        fields.refuse(f"{' and '.join(given)} name different chroots", "Only one can be right.", "Write it in one place.")
    chroot = next(iter(given.values()), "")
    if "," in given.get("host", ""):
        fields.refuse(
            "host has a chroot before its last server",
            "ZooKeeper's client would take the rest of the text for a part of the path, and use the first server only.",
            "Write the chroot once, at the end. If zookeeper.connect of the brokers is like that, write their first server into host,"
            " and all behind it, as it is, into extra.chroot.",
        )
    elif chroot and not _CHROOT.fullmatch(chroot):
        fields.refuse(
            "the chroot is not a znode's path",
            "Expected /name once, at the end of host.",
            "Write it as the brokers have it.",
        )
    return chroot


def _tls(fields: ConnectionFields, *, used: bool, switch: str) -> dict[str, Any]:
    files = {name: fields.text(name) for name in ("ca_file", "cert_file", "key_file", "key_password")}
    given = [name for name, value in files.items() if value]
    if given and not used:
        fields.refuse(f"{', '.join(given)} without {switch}", "The connection would not be encrypted.", f"Set {switch}.")
    if (files["key_file"] or files["key_password"]) and not files["cert_file"]:
        fields.refuse("a key without cert_file", "A key proves nothing without its certificate.", "Add cert_file.")
    return {**files, "verify_hostname": fields.flag("verify_hostname", default=True)}


def _login_complete(fields: ConnectionFields, *, needed: bool) -> None:
    login, password = fields.field("login"), fields.field("password")
    if bool(login) != bool(password) or (needed and not login):
        absent = [name for name, value in (("login", login), ("password", password)) if not value]
        fields.refuse(f"{' and '.join(absent)} missing", "A user needs both.", "Fill in login and password.")


def _property(fields: ConnectionFields, name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    fields.refuse(f"{name} has a wrong value", "Expected text, a number, true or false.", f"Correct {name} in extra.")
    return ""


def _usable(fields: ConnectionFields, properties: Mapping[str, str]) -> None:
    """Refuse what librdkafka would take but the wire client could not; both must have the same identity."""
    for name, remedy in _UNUSABLE.items():
        if name in properties:
            fields.refuse(f"{name} cannot be used", "kmigrate's own client reads PEM files only.", f"Instead, {remedy}.")
    for name in properties:
        if name.endswith("_cb") or name == "plugin.library.paths":
            fields.refuse(f"{name} cannot be used", "kmigrate does not run code from a connection.", "Remove it.")
    verification = properties.get("enable.ssl.certificate.verification", "true")
    if verification.lower() not in _ON:
        text = f"enable.ssl.certificate.verification is {verification}"
        fields.refuse(text, "Any server could then pretend to be a broker.", "Name the CA in ssl.ca.location.")
    if properties.get("ssl.endpoint.identification.algorithm", "https") not in {"https", "none"}:
        text = "ssl.endpoint.identification.algorithm has a wrong value"
        fields.refuse(text, "Host names would be verified by one client of kmigrate only.", "Write https, or remove it.")
    _usable_protocol(fields, properties)


def _usable_protocol(fields: ConnectionFields, properties: Mapping[str, str]) -> None:
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        fields.refuse("security.protocol has a wrong value", f"Expected one of {', '.join(PROTOCOLS)}.", "Correct it in extra.")
    if not protocol.startswith("SASL_"):
        return
    if (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms")) not in MECHANISMS:
        why = f"kmigrate's own client speaks {', '.join(MECHANISMS)}."
        remedy = (
            "Give kmigrate a user with one of these. Kerberos or OAUTHBEARER alone: open a listener for it (operator's guide)."
        )
        fields.refuse("its sasl.mechanism cannot be used", why, remedy)
    for name in ("sasl.username", "sasl.password"):
        if not properties.get(name):
            fields.refuse(f"{name} is missing", f"{protocol} needs it.", "Add it to extra.")
