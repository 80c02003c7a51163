"""Connections as settings: one set of rules for Airflow's hooks and, without Airflow, for a `connections.json`.

| type | used for | host, login, password | extra |
| --- | --- | --- | --- |
| kmigrate_zookeeper | the brokers' ZooKeeper | `zk1:2181,zk2:2181/chroot`; login and password: digest, or SASL with `sasl_mechanism` | ZOOKEEPER_EXTRAS |
| kafka | brokers | unused | librdkafka's properties, as Airflow's Kafka provider has them |
| kmigrate_controller | the controller listener | login and password: SASL; host: what *Test* asks | CONTROLLER_EXTRAS |
| kmigrate_host | the nodes' commands | unused | HOST_EXTRAS: names and values for their environment |
| http | webhooks that restart instances of consumers | as Airflow's HTTP provider has them, `schema` http or https | headers |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from airflow_provider_kmigrate.clients.connection_fields import Connection, Fields
from airflow_provider_kmigrate.clients.settings import (
    ClusterSettings,
    HostSettings,
    KafkaSettings,
    WebhookSettings,
    WireSecurity,
    ZooKeeperSettings,
)
from airflow_provider_kmigrate.clients.wire_security import MECHANISMS, from_kafka
from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Refused

ZOOKEEPER, KAFKA, CONTROLLER, HOST = "kmigrate_zookeeper", "kafka", "kmigrate_controller", "kmigrate_host"
HTTP = "http"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
ZOOKEEPER_MECHANISMS = ("DIGEST-MD5", "GSSAPI")
_TLS_EXTRAS = ("ca_file", "cert_file", "key_file", "key_password", "verify_hostname")
ZOOKEEPER_EXTRAS = ("chroot", "session_timeout", "connect_timeout", "use_tls", *_TLS_EXTRAS, "sasl_mechanism")
CONTROLLER_EXTRAS = ("protocol", *_TLS_EXTRAS, "sasl_mechanism")
HOST_EXTRAS = ("environment", "secret_environment")

Lookup = Callable[[str], Connection]
_ZOOKEEPER_PORT = "2181"
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
    """Raises `Refused` with everything that is wrong with the connection."""
    fields = Fields(conn_id, connection, ZOOKEEPER, ZOOKEEPER_EXTRAS)
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
    fields = Fields(conn_id, connection, KAFKA, None)
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
    fields = Fields(conn_id, connection, CONTROLLER, CONTROLLER_EXTRAS)
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
    """The controller that *Test* asks, from host (`ctl0:9093`) and port; None where host is empty."""
    fields = Fields(conn_id, connection, CONTROLLER, CONTROLLER_EXTRAS)
    host = fields.field("host")
    match = _SERVER.fullmatch(f"{host}")
    port = (match[2] if match else None) or fields.field("port") or ""
    if host and not (match and port.isdigit()):
        fields.refuse("host is no controller's address", "Expected host:port.", "Write it, or leave host empty.")
    fields.check()
    return (match[1], int(port)) if host and match else None


def host_settings(conn_id: str, connection: Connection) -> HostSettings:
    """The environment that the nodes' commands get."""
    fields = Fields(conn_id, connection, HOST, HOST_EXTRAS)
    plain, secret = fields.mapping("environment"), fields.mapping("secret_environment")
    for name in sorted(plain.keys() & secret.keys()):
        fields.refuse(f"{name} is in environment and in secret_environment", "Only one can apply.", "Remove one.")
    fields.check()
    return HostSettings(plain | secret)


def webhook_settings(conn_id: str, connection: Connection) -> WebhookSettings:
    """The address, from schema (http or https), host, port, or a whole URL in host, as Airflow's HTTP provider takes them."""
    fields = Fields(conn_id, connection, HTTP, None)
    host, port, login = fields.field("host") or "", fields.field("port"), fields.field("login")
    url = host if "://" in host else f"{fields.field('schema') or 'http'}://{host}"
    if not host or not url.startswith(("http://", "https://")):
        fields.refuse("host is no address of an HTTP service", "Nobody would be told.", "Write its host, or its whole URL.")
    fields.check()
    headers = {str(name): str(value) for name, value in fields.extra.items()}
    return WebhookSettings(f"{url}:{port}" if port else url, headers, (login, fields.field("password") or "") if login else None)


def settings_for(spec: ClusterSpec, lookup: Lookup) -> ClusterSettings:
    """How to reach all of a cluster; `lookup` gives a connection by its id, raising `Refused` where there is none."""
    kafka = kafka_settings(spec.kafka_conn_id, lookup(spec.kafka_conn_id))
    brokers = from_kafka(kafka)
    return ClusterSettings(
        zookeeper=zookeeper_settings(spec.zookeeper_conn_id, lookup(spec.zookeeper_conn_id)),
        kafka=kafka,
        brokers=brokers,
        controllers=_controllers(spec, brokers, lookup),
        hosts={conn_id: host_settings(conn_id, lookup(conn_id)) for conn_id in host_connections(spec)},
        webhooks={conn_id: webhook_settings(conn_id, lookup(conn_id)) for conn_id in webhook_connections(spec)},
    )


def host_connections(spec: ClusterSpec) -> tuple[str, ...]:
    """The ids of the connections that nodes and consumer groups name for their commands, each once."""
    return tuple(sorted(({node.hosts.conn_id for node in spec.nodes()} | {group.conn_id for group in spec.groups}) - {""}))


def webhook_connections(spec: ClusterSpec) -> tuple[str, ...]:
    """The ids of the connections that instances name for their webhooks, each once."""
    return tuple(sorted({instance.webhook for group in spec.groups for instance in group.instances} - {""}))


def missing(conn_id: str, conn_type: str, named_in: str = "") -> Refused:
    """The refusal for a connection that does not exist; `named_in` says where it is named."""
    text = f"There is no connection {conn_id}{f', which {named_in} names' if named_in else ''}."
    remedy = f"Create it: airflow connections add {conn_id} --conn-type {conn_type} {_example(conn_type)}"
    reason = Reason("N01", text, "Addresses and secrets of a cluster live in Airflow connections.", remedy)
    return Refused(str(reason), (reason,))


def named_connections(spec: ClusterSpec) -> dict[str, tuple[str, str]]:
    """Every connection id of a cluster file -> (the type that it must have, where it is named)."""
    where = f"in {spec.path}" if spec.path else "in the cluster file"
    named = dict.fromkeys(webhook_connections(spec), (HTTP, f"a webhook {where}"))
    named |= dict.fromkeys((group.conn_id for group in spec.groups if group.conn_id), (HOST, f"a group's conn_id {where}"))
    named |= dict.fromkeys(sorted({node.hosts.conn_id for node in spec.nodes()} - {""}), (HOST, f"hosts.conn_id {where}"))
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
        raise _no_connections(f"{path} is no JSON object of connections")
    return found


def _no_connections(text: str) -> Refused:
    remedy = "Write it with: airflow connections export --file-format json FILE"
    return Refused.because(Reason("N08", f"{text}.", "Without Airflow, connections are read from it.", remedy))


def lookup_in(connections: Mapping[str, Connection], spec: ClusterSpec) -> Lookup:
    """Look connections up in what `read_connections` gave."""
    named = named_connections(spec)

    def lookup(conn_id: str) -> Connection:
        if conn_id not in connections:
            raise missing(conn_id, *named[conn_id])
        return connections[conn_id]

    return lookup


def _controllers(spec: ClusterSpec, brokers: WireSecurity, lookup: Lookup) -> WireSecurity:
    """Without a connection of their own the controllers take the identity that the brokers take."""
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
    text = f"{found}, and quorum.security in {spec.path or 'the cluster file'} is {spec.controller_security}."
    reason = Reason("N03", text, "Controllers are configured with one and asked with the other.", remedy)
    raise Refused(str(reason), (reason,))


def _servers(fields: Fields) -> str:
    """`host:port,host:port`; a server without port has the connection's, else 2181."""
    text = (fields.field("host") or "").partition("/")[0]
    matches = [_SERVER.fullmatch(server.strip()) for server in text.split(",")]
    if not text or not all(matches):
        found = "host is empty" if not text else "host is no list of servers"
        fields.refuse(found, "Expected host:port,host:port/chroot.", "Write it as the brokers' zookeeper.connect has it.")
        return ""
    port = fields.field("port") or _ZOOKEEPER_PORT
    return ",".join(f"{match[1]}:{match[2] or port}" for match in matches if match)


def _chroot(fields: Fields) -> str:
    """From host, from extra, or from the path of a connection URI; they must agree."""
    in_host = (fields.field("host") or "").partition("/")[1:]
    places = {"host": "".join(in_host), "extra.chroot": fields.text("chroot") or "", "schema": fields.field("schema") or ""}
    given = {place: f"/{chroot.strip('/')}" for place, chroot in places.items() if chroot.strip("/")}
    if len(set(given.values())) > 1:
        fields.refuse(f"{' and '.join(given)} name different chroots", "Only one can be right.", "Write it in one place.")
    chroot = next(iter(given.values()), "")
    if chroot and ("," in chroot or not _CHROOT.fullmatch(chroot)):
        fields.refuse(
            "the chroot is no path of a znode",
            "Expected /name, once, at the end of host.",
            "Write it as the brokers have it.",
        )
    return chroot


def _tls(fields: Fields, *, used: bool, switch: str) -> dict[str, Any]:
    files = {name: fields.text(name) for name in ("ca_file", "cert_file", "key_file", "key_password")}
    given = [name for name, value in files.items() if value]
    if given and not used:
        fields.refuse(f"{', '.join(given)} without {switch}", "The connection would not be encrypted.", f"Set {switch}.")
    if (files["key_file"] or files["key_password"]) and not files["cert_file"]:
        fields.refuse("a key without cert_file", "A key proves nothing without its certificate.", "Add cert_file.")
    return {**files, "verify_hostname": fields.flag("verify_hostname", default=True)}


def _login_complete(fields: Fields, *, needed: bool) -> None:
    login, password = fields.field("login"), fields.field("password")
    if bool(login) != bool(password) or (needed and not login):
        absent = [name for name, value in (("login", login), ("password", password)) if not value]
        fields.refuse(f"{' and '.join(absent)} missing", "A user is known by both.", "Fill in login and password.")


def _property(fields: Fields, name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    fields.refuse(f"{name} has a wrong value", "Expected text, a number, true or false.", f"Correct {name} in extra.")
    return ""


def _usable(fields: Fields, properties: Mapping[str, str]) -> None:
    """What librdkafka would take but the wire client could not; both must be the same identity."""
    for name, remedy in _UNUSABLE.items():
        if name in properties:
            fields.refuse(f"{name} cannot be used", "kmigrate's own client reads PEM files only.", f"Instead, {remedy}.")
    for name in properties:
        if name.endswith("_cb"):
            fields.refuse(f"{name} cannot be used", "kmigrate runs no code that a connection names.", "Remove it.")
    if properties.get("enable.ssl.certificate.verification") == "false":
        text = "enable.ssl.certificate.verification is false"
        fields.refuse(text, "Whoever answers could then be anybody.", "Name the CA in ssl.ca.location.")
    _usable_protocol(fields, properties)


def _usable_protocol(fields: Fields, properties: Mapping[str, str]) -> None:
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        fields.refuse("security.protocol has a wrong value", f"Expected one of {', '.join(PROTOCOLS)}.", "Correct it in extra.")
    if not protocol.startswith("SASL_"):
        return
    if (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms")) not in MECHANISMS:
        why = f"kmigrate's own client speaks {', '.join(MECHANISMS)}."
        fields.refuse("its sasl.mechanism cannot be used", why, "Give kmigrate a user with one of these.")
    for name in ("sasl.username", "sasl.password"):
        if not properties.get(name):
            fields.refuse(f"{name} is missing", f"{protocol} needs it.", "Add it to extra.")


def _example(conn_type: str) -> str:
    return {
        ZOOKEEPER: "--conn-host zk1:2181,zk2:2181/kafka",
        KAFKA: """--conn-extra '{"bootstrap.servers": "kafka0:9092"}'""",
        CONTROLLER: """--conn-extra '{"protocol": "PLAINTEXT"}'""",
        HOST: """--conn-extra '{"environment": {}}'""",
        HTTP: "--conn-schema https --conn-host deployer.example.org/restart",
    }[conn_type]
