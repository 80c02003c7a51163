"""KRaft's side of the metadata beside topics, as one node tells it.

Brokers in KRaft mode serve all of these, controllers only settings and ACLs (Kafka 3.9). A broker that is still on ZooKeeper answers
too, but with what ZooKeeper holds: whoever calls chooses the node. Brokers keep sensitive values back by themselves; a delegation
token's HMAC, which they do tell, is dropped here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kafka.protocol.admin import (
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeConfigsRequest,
    DescribeUserScramCredentialsRequest,
    ListTransactionsRequest,
)

from airflow_provider_kmigrate.clients.kafka_errors import check
from airflow_provider_kmigrate.clients.messages import DescribeDelegationTokenRequest
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.metadata import stored
from airflow_provider_kmigrate.core.model import Entities
from airflow_provider_kmigrate.exceptions import Failed

_ANY = 1
_BROKER = 4  # ConfigResource.Type
_OF_ONE, _OF_ALL = 2, 3  # DescribeConfigs' sources: dynamic of one broker, dynamic default of all
_SECURITY_DISABLED = 54
_TOKENS_NOT_HERE, _TOKENS_OFF = 64, 61
_TOKEN_KEYS = ("delegation.token.secret.key", "delegation.token.master.key")
_DEFAULT_VALUE = 5  # the source of a setting that nobody has set

_RESOURCES: Final = {2: "topic", 3: "group", 4: "cluster", 5: "transactional id", 6: "delegation token", 7: "user"}
_PATTERNS: Final = {3: "literal", 4: "prefixed"}
_PERMISSIONS: Final = {2: "deny", 3: "allow"}
_OPERATION_NAMES = (
    *("all", "read", "write", "create", "delete", "alter", "describe", "cluster action", "describe configs", "alter configs"),
    *("idempotent write", "create tokens", "describe tokens"),
)
_OPERATIONS: Final = dict(enumerate(_OPERATION_NAMES, start=2))


class NotTold(Exception):
    """Nobody tells it, and the text says why; no failure."""


def broker_settings(wire: Wire, broker: int | None) -> dict[str, str]:
    """The dynamic settings of the broker that is asked, or (None) the default of all brokers, which any node tells."""
    source = _OF_ALL if broker is None else _OF_ONE
    found = {
        synonym.name: stored.broker_setting(synonym.name, synonym.value)
        for entry in _configs(wire, broker, None)
        for synonym in entry.synonyms
        if synonym.source == source
    }
    return dict(sorted(found.items()))


def quotas(wire: Wire) -> Entities:
    """Every client quota of the cluster, by entity (DescribeClientQuotas). Raises ours."""
    answer = wire.ask(DescribeClientQuotasRequest, 0, 1, components=[], strict=False)
    check(answer.error_code, f"{wire.endpoint} DescribeClientQuotas", answer.error_message)
    return {
        stored.quota_entity({part.entity_type: part.entity_name for part in entry.entity}): {
            value.key: stored.quota_value(value.value) for value in entry.values
        }
        for entry in answer.entries or ()
    }


def credentials(wire: Wire) -> Entities:
    """Every SCRAM credential, by user: mechanism and iterations, never a secret (DescribeUserScramCredentials). Raises ours."""
    answer = wire.ask(DescribeUserScramCredentialsRequest, 0, 0, users=None)
    where = f"{wire.endpoint} DescribeUserScramCredentials"
    check(answer.error_code, where, answer.error_message)
    for each in answer.results:
        check(each.error_code, where, each.error_message)
    return {f"user {each.user}": dict(map(_credential, each.credential_infos)) for each in answer.results}


def acls(wire: Wire) -> Entities:
    """Raises `NotTold` where the node has no authorizer."""
    any_of = ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")
    nobody = ("resource_name_filter", "principal_filter", "host_filter")
    answer = wire.ask(DescribeAclsRequest, 1, 3, **dict.fromkeys(any_of, _ANY), **dict.fromkeys(nobody))
    if answer.error_code == _SECURITY_DISABLED:
        raise NotTold("no authorizer is configured")
    check(answer.error_code, f"{wire.endpoint} DescribeAcls", answer.error_message)
    return stored.acls(rule for resource in answer.resources for rule in _rules(resource))


def tokens(wire: Wire, broker: int) -> Entities:
    """Those that the asking principal may see. Raises `NotTold` where the brokers are configured without tokens."""
    answer = wire.ask(DescribeDelegationTokenRequest, 1, 3, owners=None)
    if answer.error_code == _TOKENS_OFF or (answer.error_code == _TOKENS_NOT_HERE and not _uses_tokens(wire, broker)):
        raise NotTold("the brokers are configured without them")
    if answer.error_code == _TOKENS_NOT_HERE:
        raise Failed(f"{wire.endpoint} tells delegation tokens over TLS or SASL only, and our connection is neither")
    check(answer.error_code, f"{wire.endpoint} DescribeDelegationToken")
    return {f"token {each.token_id}": _token(each) for each in answer.tokens}


def highest_producer_id(wire: Wire) -> int | None:
    """The highest of those that this broker coordinates transactions of; None where it has none."""
    answer = wire.ask(ListTransactionsRequest, 0, 1)
    check(answer.error_code, f"{wire.endpoint} ListTransactions")
    return max((state.producer_id for state in answer.transaction_states), default=None)


def _configs(wire: Wire, broker: int | None, keys: list[str] | None) -> Iterator[Any]:
    name = "" if broker is None else str(broker)
    resource = DescribeConfigsRequest.DescribeConfigsResource
    wanted = [resource(resource_type=_BROKER, resource_name=name, configuration_keys=keys)]
    for result in wire.ask(DescribeConfigsRequest, 1, 4, resources=wanted, include_synonyms=True).results:
        check(result.error_code, f"{wire.endpoint} DescribeConfigs", result.error_message)
        yield from result.configs


def _uses_tokens(wire: Wire, broker: int) -> bool:
    """Whether the broker has a key for tokens; its value is kept back, where it comes from is not."""
    return any(entry.config_source != _DEFAULT_VALUE for entry in _configs(wire, broker, list(_TOKEN_KEYS)))


def _credential(info: Any) -> tuple[str, str]:
    mechanism = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}.get(info.mechanism, f"mechanism {info.mechanism}")
    return mechanism, stored.credential(info.iterations)


def _rules(resource: Any) -> Iterator[stored.Acl]:
    pattern = _named(_PATTERNS, resource.pattern_type)
    kind = _named(_RESOURCES, resource.resource_type)
    for rule in resource.acls:
        permission, operation = _named(_PERMISSIONS, rule.permission_type), _named(_OPERATIONS, rule.operation)
        yield stored.Acl(pattern, kind, resource.resource_name, permission, operation, rule.principal, rule.host)


def _token(found: Any) -> dict[str, str]:
    owner = f"{found.principal_type}:{found.principal_name}"
    renewers = [f"{each.principal_type}:{each.principal_name}" for each in found.renewers]
    return stored.token(owner, renewers, found.issue_timestamp, found.expiry_timestamp, found.max_timestamp)


def _named(names: Mapping[int, str], code: int) -> str:
    """A code that is newer than this table differs from every name, and is seen."""
    return names.get(code, f"code {code}")
