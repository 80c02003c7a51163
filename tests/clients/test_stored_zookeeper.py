"""ZooKeeper's side of every kind as Kafka 3.9 writes it, and what is broken: named, and its content never shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import StoredKind
from airflow_provider_kmigrate.exceptions import Failed
from airflow_provider_kmigrate.observe import stored

CANARY = "canary-77aa"
SCRAM = f"salt={CANARY}=,stored_key={CANARY},server_key={CANARY},iterations=8192"


class Tree:
    """What the module uses of `clients.zookeeper.ZooKeeper`, over a mapping of paths to data."""

    def __init__(self, znodes: dict[str, Any]) -> None:
        self._znodes = {path: data if isinstance(data, bytes) else json.dumps(data).encode() for path, data in znodes.items()}

    def children(self, path: str) -> list[str]:
        below = (znode.removeprefix(f"{path}/") for znode in self._znodes if znode.startswith(f"{path}/"))
        return sorted({name.partition("/")[0] for name in below})

    def read_children(self, folder: str, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        return ((name, self._znodes.get(f"{folder}/{name}", b"")) for name in names)

    def children_by_path(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        return ((path, self.children(path)) for path in paths if self.children(path))

    def read(self, path: str) -> tuple[bytes, int] | None:
        return (self._znodes[path], 0) if path in self._znodes else None


def config(**keys: str) -> dict[str, Any]:
    return {"version": 1, "config": {key.replace("__", "-").replace("_", "."): value for key, value in keys.items()}}


def quota(**keys: str) -> dict[str, Any]:
    return {"version": 1, "config": keys}


def read(kind: StoredKind, **znodes: Any) -> Any:
    return stored.read_kind(Tree(znodes), kind)


@pytest.mark.parametrize("kind", list(StoredKind))
def test_an_empty_tree_has_none_of_any_kind(kind: StoredKind) -> None:
    assert read(kind) == {}


def test_settings_of_one_broker_and_of_all() -> None:
    znodes = {
        "/config/brokers/0": config(log_cleaner_threads="2", ssl_keystore_password=CANARY, my_plugin_secret=CANARY),
        "/config/brokers/<default>": config(log_retention_ms="1000"),
    }
    found = read(StoredKind.BROKER_SETTINGS, **znodes)
    assert found == {
        "broker 0": {"log.cleaner.threads": "2", "ssl.keystore.password": "(hidden)", "my.plugin.secret": "(hidden)"},
        "all brokers": {"log.retention.ms": "1000"},
    }


def test_quotas_of_every_kind_of_entity() -> None:
    znodes = {
        "/config/users/a%20b%2Fc": quota(producer_byte_rate="1000", **{"SCRAM-SHA-256": SCRAM}),
        "/config/users/<default>/clients/app": quota(request_percentage="12.5"),
        "/config/users/a%20b%2Fc/clients/<default>": quota(consumer_byte_rate="2000.0"),
        "/config/clients/<default>": quota(controller_mutation_rate="3"),
        "/config/ips/10.0.0.1": quota(connection_creation_rate="50"),
        "/config/ips/<default>": quota(),
    }
    found = read(StoredKind.QUOTAS, **znodes)
    assert {entity: values for entity, values in found.items() if values} == {
        "user a b/c": {"producer_byte_rate": "1000"},
        "user <default>, client-id app": {"request_percentage": "12.5"},
        "user a b/c, client-id <default>": {"consumer_byte_rate": "2000"},
        "client-id <default>": {"controller_mutation_rate": "3"},
        "ip 10.0.0.1": {"connection_creation_rate": "50"},
    }


def test_only_mechanism_and_iterations_of_a_credential_are_read() -> None:
    user = quota(producer_byte_rate="1", **{"SCRAM-SHA-256": SCRAM, "SCRAM-SHA-512": SCRAM})
    found = read(StoredKind.CREDENTIALS, **{"/config/users/al%20ice": user})
    assert found == {"user al ice": {"SCRAM-SHA-256": "8192 iterations", "SCRAM-SHA-512": "8192 iterations"}}


def test_acls_of_both_stores() -> None:
    rule = {"principal": "User:a", "permissionType": "Allow", "operation": "DescribeConfigs", "host": "*"}
    znodes = {
        "/kafka-acl/Topic/t": {"version": 1, "acls": [rule, {**rule, "permissionType": "Deny"}]},
        "/kafka-acl/TransactionalId/x": {"version": 1, "acls": []},
        "/kafka-acl-extended/prefixed/Group/g": {"version": 1, "acls": [rule]},
    }
    found = read(StoredKind.ACLS, **znodes)
    assert {resource: sorted(rules) for resource, rules in found.items()} == {
        "topic t": ["allow describe configs to User:a from *", "deny describe configs to User:a from *"],
        "group g (prefixed)": ["allow describe configs to User:a from *"],
    }


def test_tokens_and_producer_ids() -> None:
    token = {
        "version": 3,
        "owner": "User%3Aalice",
        "tokenRequester": "User%3Aalice",
        "renewers": ["User%3Abob"],
        "issueTimestamp": 1,
        "maxTimestamp": 3,
        "expiryTimestamp": 2,
        "tokenId": "id",
        "hmac": CANARY,
    }
    found = read(StoredKind.TOKENS, **{"/delegation_token/tokens/id": token})
    assert found == {
        "token id": {"owner": "User:alice", "renewers": "User:bob", "issued": "1", "expires": "2", "latest": "3"},
    }
    block = {"version": 1, "broker": 0, "block_start": "1000", "block_end": "1999"}
    assert read(StoredKind.PRODUCER_IDS, **{"/latest_producer_id_block": block}) == {"producer ids": {"highest": "1999"}}


def test_before_the_first_producer_id_the_block_is_there_and_empty() -> None:
    assert read(StoredKind.PRODUCER_IDS, **{"/latest_producer_id_block": b""}) == {}


BROKEN = [b"{" + CANARY.encode(), CANARY.encode(), json.dumps({"config": CANARY}).encode(), json.dumps([CANARY]).encode()]


@pytest.mark.parametrize("data", BROKEN)
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (StoredKind.BROKER_SETTINGS, "/config/brokers/0"),
        (StoredKind.QUOTAS, "/config/users/alice"),
        (StoredKind.QUOTAS, "/config/users/alice/clients/app"),
        (StoredKind.CREDENTIALS, "/config/users/alice"),
        (StoredKind.ACLS, "/kafka-acl/Topic/t"),
        (StoredKind.TOKENS, "/delegation_token/tokens/id"),
        (StoredKind.PRODUCER_IDS, "/latest_producer_id_block"),
    ],
)
def test_a_broken_znode_is_named_without_its_content(kind: StoredKind, path: str, data: bytes) -> None:
    with pytest.raises(Failed) as caught:
        read(kind, **{path: data})
    assert path in str(caught.value)
    assert CANARY not in repr(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("value", ["iterations=many", CANARY, f"salt={CANARY}", ""])
def test_a_broken_credential_is_not_shown_either(value: str) -> None:
    with pytest.raises(Failed) as caught:
        read(StoredKind.CREDENTIALS, **{"/config/users/alice": quota(**{"SCRAM-SHA-256": value})})
    assert CANARY not in repr(caught.value)


@pytest.mark.parametrize("kind", list(StoredKind))
def test_no_secret_of_any_kind_gets_out(kind: StoredKind) -> None:
    znodes = {
        "/config/brokers/0": config(ssl_keystore_password=CANARY, sasl_jaas_config=CANARY),
        "/config/users/alice": quota(**{"SCRAM-SHA-512": SCRAM, "producer_byte_rate": "1", "odd": CANARY}),
    }
    assert CANARY not in repr(read(kind, **znodes))
