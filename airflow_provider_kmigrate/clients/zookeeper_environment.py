"""What preflight reads of ZooKeeper beside a `ZkView`: dynamic settings, users, ACLs, times, and the servers themselves.

Only the names of settings are kept: brokers have passwords among them.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from kazoo.protocol.serialization import Exists

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper_session import Kind, Read, Session
from airflow_provider_kmigrate.core.model import Malformed
from airflow_provider_kmigrate.core.preflight.environment import Acl, Registration, ZooKeeperServer, ZooKeeperTree

_CHANGES = ("/config/changes", "/kafka-acl-changes", "/kafka-acl-extended-changes")
_GUARDED = ("/controller_epoch", "/brokers/topics", "/config")
_WRITES = 2 | 4  # ZooKeeper's WRITE and CREATE
_CMAK = "/kafka-manager"  # outside all chroots
_VERSION = re.compile(r"Zookeeper version: ([0-9][0-9.]*)")
_NEWEST = 20  # notifications that are reported
_SRVR_TIMEOUT = 3.0
_ANSWER = 65_536


class _Reading:
    """One pass over the tree; keeps the newest time in any stat, and the malformed znodes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.latest = 0.0
        self.malformed: list[Malformed] = []

    def children(self, *paths: str) -> list[list[str]]:
        found = self._session.read("children", *(Read(Kind.CHILDREN, path) for path in paths))
        return [sorted(names or ()) for names in found]

    def data(self, folder: str, names: Iterable[str]) -> Iterator[tuple[str, bytes, Any]]:
        """(name, data, stat) of each child of `folder` that exists."""
        for path, (data, stat) in self._session.stream(folder, Kind.DATA, (f"{folder}/{name}" for name in names)):
            self._saw(stat)
            yield path.removeprefix(f"{folder}/"), data or b"", stat

    def one(self, path: str) -> Any:
        (found,) = self._session.read(path, Read(Kind.DATA, path))
        if found:
            self._saw(found[1])
        return found

    def settings(self, folder: str, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The keys set for each entity; entities without any are left out.

        An unreadable znode is only named: it may hold salted passwords.
        """
        found = {}
        for name, data, _ in self.data(folder, names):
            if not data:  # Kafka creates it as a parent, such as for a user whose quotas are all of single clients
                continue
            keys = znodes.configs(f"{folder}/{name}", data)
            if isinstance(keys, Malformed):
                self.malformed.append(Malformed(keys.path, ""))
            elif keys:
                found[unquote(name)] = tuple(sorted(keys))
        return found

    def _saw(self, stat: Any) -> None:
        self.latest = max(self.latest, stat.ctime / 1000, stat.mtime / 1000)


class _Rule(NamedTuple):
    """A folder of ACLs: `/kafka-acl/Topic` and, for other patterns, `/kafka-acl-extended/prefixed/Topic`."""

    folder: str
    resource: str
    pattern: str


def tree(session: Session) -> ZooKeeperTree:
    """Read all of it at about one time; raises as `Session.read`."""
    reading = _Reading(session)
    brokers, users, tokens, ids = reading.children("/config/brokers", "/config/users", "/delegation_token/tokens", "/brokers/ids")
    seqid, feature = reading.one("/brokers/seqid"), reading.one("/feature")
    scram = {
        user: keys
        for user, keys in reading.settings("/config/users", users).items()
        if any(key.startswith("SCRAM-") for key in keys)
    }
    return ZooKeeperTree(
        broker_settings=reading.settings("/config/brokers", brokers),
        scram_users=tuple(scram),
        tokens=len(tokens),
        acls=tuple(_acls(reading)),
        has_feature=feature is not None,
        generated_ids=seqid[1].version if seqid else 0,
        changed=_changed(reading),
        registrations=_registrations(reading, ids),
        guarded=_guarded(session),
        malformed=tuple(reading.malformed),
        latest=reading.latest,
        cmak=_exists(session, _CMAK),
    )


def servers(settings: ZooKeeperSettings, timeout: float = _SRVR_TIMEOUT) -> tuple[ZooKeeperServer, ...]:
    """The answer of each server of the connection to `srvr`; `timeout`: seconds for each."""
    return tuple(ZooKeeperServer(address, _version(address, settings, timeout)) for address in settings.hosts.split(","))


def _acls(reading: _Reading) -> Iterator[Acl]:
    kinds, patterns = reading.children("/kafka-acl", "/kafka-acl-extended")
    rules = [_Rule(f"/kafka-acl/{kind}", kind, "LITERAL") for kind in kinds]
    for pattern in patterns:
        folder = f"/kafka-acl-extended/{pattern}"
        (kinds,) = reading.children(folder)
        rules += [_Rule(f"{folder}/{kind}", kind, pattern.upper()) for kind in kinds]
    for rule in rules:
        (names,) = reading.children(rule.folder)
        for name, data, _ in reading.data(rule.folder, names):
            found = _rules(rule, name, data)
            if isinstance(found, Malformed):
                reading.malformed.append(found)
            else:
                yield from found


def _rules(where: _Rule, name: str, data: bytes) -> list[Acl] | Malformed:
    try:
        return [_acl(where, name, entry) for entry in json.loads(data)["acls"]]
    except (ValueError, TypeError, KeyError):
        return Malformed(f"{where.folder}/{name}", znodes.readable(data))


def _acl(where: _Rule, name: str, entry: Mapping[str, Any]) -> Acl:
    principal, operation, permission = (str(entry[key]) for key in ("principal", "operation", "permissionType"))
    return Acl(where.resource, name, where.pattern, principal, operation, permission)


def _changed(reading: _Reading) -> tuple[tuple[str, float], ...]:
    """The newest notifications of changed settings and ACLs, newest first; Kafka keeps each for some 15 minutes."""
    found = []
    for folder, names in zip(_CHANGES, reading.children(*_CHANGES), strict=True):
        for _, data, stat in reading.data(folder, names[-_NEWEST:]):
            found.append((_entity(data) if folder == _CHANGES[0] else "access rules", stat.ctime / 1000))
    return tuple(sorted(found, key=lambda change: -change[1])[:_NEWEST])


def _entity(data: bytes) -> str:
    try:
        return f"settings of {json.loads(data)['entity_path']}"
    except (ValueError, TypeError, KeyError):
        return "settings"


def _registrations(reading: _Reading, ids: Iterable[str]) -> dict[int, Registration]:
    found = {}
    for name, data, stat in reading.data("/brokers/ids", (name for name in ids if name.isdecimal())):
        try:
            broker_time = int(json.loads(data)["timestamp"]) / 1000
        except (ValueError, TypeError, KeyError):
            continue
        found[int(name)] = Registration(broker_time, stat.ctime / 1000)
    return found


def _guarded(session: Session) -> tuple[str, ...]:
    """The identity schemes without which Kafka's znodes cannot be written."""
    client = session.client()
    waiting = [client.get_acls_async(path) for path in _GUARDED]
    schemes = set()
    for path, result in zip(_GUARDED, waiting, strict=True):
        acls, _ = session.result(f"ACL of {path}", result)
        if not any(acl.id.scheme == "world" and acl.perms & _WRITES for acl in acls):
            schemes |= {acl.id.scheme for acl in acls} - {"world"}
    return tuple(sorted(schemes))


def _exists(session: Session, path: str) -> bool:
    """True if a znode outside our chroot exists; kazoo's own call would put the chroot in front."""
    client = session.client()
    result = client.handler.async_result()
    client._call(Exists(path, None), result)  # noqa: SLF001  # as zookeeper_reads does
    return session.result(path, result) is not None


def _version(address: str, settings: ZooKeeperSettings, timeout: float) -> str | None:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout) as raw:
            raw.settimeout(timeout)
            stream = _tls(settings).wrap_socket(raw, server_hostname=host.strip("[]")) if settings.use_tls else raw
            stream.sendall(b"srvr")
            match = _VERSION.search(_all_of(stream).decode(errors="replace"))
    except (OSError, ValueError):
        return None
    return match[1].rstrip(".") if match else None


def _all_of(stream: socket.socket) -> bytes:
    data = b""
    while len(data) < _ANSWER and (chunk := stream.recv(4096)):
        data += chunk
    return data


def _tls(settings: ZooKeeperSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ca_file)
    context.check_hostname = settings.verify_hostname
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file, settings.key_password)
    return context
