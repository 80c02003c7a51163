"""ZooKeeper's side of the metadata beside topics: what Kafka 3.9 keeps under /config, /kafka-acl, /delegation_token.

These znodes hold secrets: salted passwords, keystore passwords. Nothing of a value leaves this module but what `core.metadata.stored` shows,
and a znode that is not as Kafka writes it is named without its content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote

from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.metadata import stored
from airflow_provider_kmigrate.core.model import Entities, StoredKind
from airflow_provider_kmigrate.exceptions import Failed

Value = TypeVar("Value")

_USERS, _CLIENTS, _IPS = "/config/users", "/config/clients", "/config/ips"
_LITERAL, _EXTENDED = "/kafka-acl", "/kafka-acl-extended"
_TOKENS = "/delegation_token/tokens"  # a path, not a token
_BLOCK = "/latest_producer_id_block"
_SCRAM = "SCRAM-"


def read(zk: ZooKeeper, kind: StoredKind) -> Entities:
    """One kind, as ZooKeeper has it now. Raises what the client raises, and `Failed` where a znode is not what Kafka writes."""
    return _READS[kind](zk)


def _broker_settings(zk: ZooKeeper) -> Entities:
    return {stored.broker(name): _shown(config) for name, config in _configs(zk, "/config/brokers")}


def _shown(config: Mapping[str, str]) -> dict[str, str]:
    return {key: stored.broker_setting(key, value) for key, value in config.items()}


def _quotas(zk: ZooKeeper) -> Entities:
    users = dict(_configs(zk, _USERS))
    pairs = dict(zk.families(f"{_USERS}/{user}/clients" for user in users))
    found = {
        **{_entity(user=user): _numbers(config) for user, config in users.items()},
        **{_entity(client=client): _numbers(config) for client, config in _configs(zk, _CLIENTS)},
        **{_entity(ip=ip): _numbers(config) for ip, config in _configs(zk, _IPS)},
    }
    for path, clients in pairs.items():
        user = path.removeprefix(f"{_USERS}/").removesuffix("/clients")
        found |= {_entity(user=user, client=client): _numbers(config) for client, config in _these(zk, path, clients)}
    return found


def _entity(**names: str) -> str:
    kinds = {"user": "user", "client": "client-id", "ip": "ip"}
    return stored.quota_entity({kinds[kind]: None if name == "<default>" else unquote(name) for kind, name in names.items()})


def _numbers(config: Mapping[str, str]) -> dict[str, str]:
    return {key: stored.quota_value(value) for key, value in config.items() if not key.startswith(_SCRAM)}


def _credentials(zk: ZooKeeper) -> Entities:
    return {f"user {unquote(user)}": _iterations(user, config) for user, config in _configs(zk, _USERS)}


def _iterations(user: str, config: Mapping[str, str]) -> dict[str, str]:
    """Of `salt=...,stored_key=...,server_key=...,iterations=4096` the last part only."""

    def count(value: str) -> str:
        return stored.credential(int(dict(part.split("=", 1) for part in value.split(","))["iterations"]))

    scram = {key: value for key, value in config.items() if key.startswith(_SCRAM)}
    return {key: _understood(f"{_USERS}/{user}", count, value) for key, value in scram.items()}


def _acls(zk: ZooKeeper) -> Entities:
    prefixed = [(pattern, f"{_EXTENDED}/{pattern}") for pattern in zk.children(_EXTENDED)]
    rules = (rule for pattern, root in [("literal", _LITERAL), *prefixed] for rule in _rules(zk, stored.words(pattern), root))
    return stored.acls(rules)


def _rules(zk: ZooKeeper, pattern: str, root: str) -> Iterator[stored.Acl]:
    for folder, names in zk.families(f"{root}/{kind}" for kind in zk.children(root)):
        resource = stored.words(folder.rpartition("/")[2])
        for name, data in zk.each(folder, names):
            for rule in _understood(f"{folder}/{name}", _list_of_acls, data):
                yield _acl(pattern, resource, name, rule)


def _list_of_acls(data: bytes) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(data)["acls"] if data else []
    keys = ("permissionType", "operation", "principal", "host")
    return [{key: str(rule[key]) for key in keys} for rule in found]


def _acl(pattern: str, resource: str, name: str, rule: Mapping[str, str]) -> stored.Acl:
    permission, operation = stored.words(rule["permissionType"]), stored.words(rule["operation"])
    return stored.Acl(pattern, resource, name, permission, operation, rule["principal"], rule["host"])


def _tokens(zk: ZooKeeper) -> Entities:
    found = zk.each(_TOKENS, zk.children(_TOKENS))
    return {f"token {name}": _understood(f"{_TOKENS}/{name}", _token, data) for name, data in found}


def _token(data: bytes) -> dict[str, str]:
    fields = json.loads(data)
    renewers = [unquote(renewer) for renewer in fields["renewers"]]
    times = (int(fields[key]) for key in ("issueTimestamp", "expiryTimestamp", "maxTimestamp"))
    return stored.token(unquote(fields["owner"]), renewers, *times)


def _producer_ids(zk: ZooKeeper) -> Entities:
    """Brokers create the znode when they start, and write into it when somebody needs the first id."""
    data, _ = zk.read(_BLOCK) or (b"", 0)
    return {stored.PRODUCER_IDS: {stored.HIGHEST: str(_understood(_BLOCK, _block_end, data))}} if data else {}


def _block_end(data: bytes) -> int:
    return int(json.loads(data)["block_end"])


def _configs(zk: ZooKeeper, folder: str) -> Iterator[tuple[str, dict[str, str]]]:
    return _these(zk, folder, zk.children(folder))


def _these(zk: ZooKeeper, folder: str, names: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
    return ((name, _understood(f"{folder}/{name}", _config, data)) for name, data in zk.each(folder, names))


def _config(data: bytes) -> dict[str, str]:
    """No data at all: the znode is only there for those below it."""
    return {str(key): str(value) for key, value in json.loads(data)["config"].items()} if data else {}


def _understood(path: str, parse: Callable[[Any], Value], data: Any) -> Value:
    try:
        return parse(data)
    except (ValueError, TypeError, KeyError, AttributeError):  # no cause either: it would quote the content
        raise Failed(f"{path} is not what Kafka writes; what it holds may be secret and is not shown") from None


_READS: Mapping[StoredKind, Callable[[ZooKeeper], Entities]] = {
    StoredKind.BROKER_SETTINGS: _broker_settings,
    StoredKind.QUOTAS: _quotas,
    StoredKind.CREDENTIALS: _credentials,
    StoredKind.ACLS: _acls,
    StoredKind.TOKENS: _tokens,
    StoredKind.PRODUCER_IDS: _producer_ids,
}
