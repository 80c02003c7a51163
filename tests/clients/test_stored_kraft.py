"""KRaft's side of every kind, answered by a node of our own."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin import (
    DescribeAclsResponse,
    DescribeClientQuotasResponse,
    DescribeConfigsResponse,
    DescribeUserScramCredentialsResponse,
    ListTransactionsResponse,
)

from airflow_provider_kmigrate.clients.messages import DescribeDelegationTokenResponse
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, Unavailable
from airflow_provider_kmigrate.observe import stored
from airflow_provider_kmigrate.observe.stored import NotReported
from tests.clients.fake_node import KRAFT, FakeNode, api_versions

ACLS, CONFIGS, TOKENS, QUOTAS, SCRAM, TRANSACTIONS = 29, 32, 41, 48, 50, 66
SERVED = {**KRAFT, ACLS: (1, 3), TOKENS: (1, 3), QUOTAS: (0, 1), SCRAM: (0, 0), TRANSACTIONS: (0, 1)}
CANARY = "canary-90b1"


def ask(answers: dict[int, Any], read: Any, *arguments: Any) -> Any:
    with FakeNode({18: api_versions(SERVED), **answers}) as node, Wire("127.0.0.1", node.port) as wire:
        return read(wire, *arguments)


def configs(*entries: tuple[str, str | None, int], code: int = 0) -> DescribeConfigsResponse:
    """Entries (name, value, source) with themselves as their only synonym."""
    result = DescribeConfigsResponse.DescribeConfigsResult
    entry = result.DescribeConfigsResourceResult
    listed = [
        entry(
            name=name,
            value=value,
            read_only=False,
            config_source=source,
            is_sensitive=value is None,
            synonyms=[entry.DescribeConfigsSynonym(name=name, value=value, source=source)],
        )
        for name, value, source in entries
    ]
    return DescribeConfigsResponse(
        results=[result(error_code=code, error_message=None, resource_type=4, resource_name="0", configs=listed)]
    )


def test_only_dynamic_settings_of_the_requested_level_are_read() -> None:
    answer = configs(
        *[("log.cleaner.threads", "2", 2), ("log.retention.ms", "9", 3), ("log.dirs", "/d", 4), ("num.io.threads", "8", 5)],
        ("ssl.keystore.password", None, 2),
    )
    assert ask({CONFIGS: lambda _: answer}, stored.read_broker_settings, 0) == {
        "log.cleaner.threads": "2",
        "ssl.keystore.password": "(hidden)",
    }
    assert ask({CONFIGS: lambda _: answer}, stored.read_broker_settings, None) == {"log.retention.ms": "9"}


def test_a_setting_that_a_broker_has_of_its_own_and_by_default() -> None:
    answer = configs(("log.retention.ms", "1", 2))
    synonym = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult.DescribeConfigsSynonym
    answer.results[0].configs[0].synonyms.append(synonym(name="log.retention.ms", value="9", source=3))
    assert ask({CONFIGS: lambda _: answer}, stored.read_broker_settings, 0) == {"log.retention.ms": "1"}


def test_quotas() -> None:
    entry = DescribeClientQuotasResponse.EntryData
    parts = [entry.EntityData(entity_type="client-id", entity_name=None), entry.EntityData(entity_type="user", entity_name="a b")]
    found = entry(entity=parts, values=[entry.ValueData(key="producer_byte_rate", value=1000.0)])
    answer = DescribeClientQuotasResponse(error_code=0, error_message=None, entries=[found])
    assert ask({QUOTAS: answer}, stored.read_quotas) == {"user a b, client-id <default>": {"producer_byte_rate": "1000"}}


def test_credentials() -> None:
    result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    info = result.CredentialInfo
    infos = [info(mechanism=1, iterations=4096), info(mechanism=2, iterations=8192), info(mechanism=9, iterations=1)]
    found = result(user="alice", error_code=0, error_message=None, credential_infos=infos)
    answer = DescribeUserScramCredentialsResponse(error_code=0, error_message=None, results=[found])
    assert ask({SCRAM: answer}, stored.read_credentials) == {
        "user alice": {
            "SCRAM-SHA-256": "4096 iterations",
            "SCRAM-SHA-512": "8192 iterations",
            "mechanism 9": "1 iteration",
        }
    }


def acls(code: int = 0) -> DescribeAclsResponse:
    resource = DescribeAclsResponse.DescribeAclsResource
    rules = [
        resource.AclDescription(principal="User:a", host="*", operation=operation, permission_type=permission)
        for operation, permission in ((3, 3), (10, 2), (99, 3))
    ]
    found = [
        resource(resource_type=kind, resource_name="t", pattern_type=pattern, acls=rules[:1])
        for kind, pattern in ((5, 4), (9, 3))
    ]
    found.append(resource(resource_type=2, resource_name="t", pattern_type=3, acls=rules))
    return DescribeAclsResponse(error_code=code, error_message=None, resources=[] if code else found)


def test_acls() -> None:
    found = ask({ACLS: acls()}, stored.read_acls)
    assert {resource: sorted(rules) for resource, rules in found.items()} == {
        "transactional id t (prefixed)": ["allow read to User:a from *"],
        "code 9 t": ["allow read to User:a from *"],
        "topic t": ["allow code 99 to User:a from *", "allow read to User:a from *", "deny describe configs to User:a from *"],
    }


def test_without_an_authorizer_acls_are_not_reported() -> None:
    with pytest.raises(NotReported):
        ask({ACLS: acls(54)}, stored.read_acls)


def tokens(code: int = 0) -> DescribeDelegationTokenResponse:
    token = DescribeDelegationTokenResponse.DescribedDelegationToken
    renewer = token.DescribedDelegationTokenRenewer(principal_type="User", principal_name="bob")
    found = token(
        principal_type="User",
        principal_name="alice",
        token_id="id",
        hmac=CANARY.encode(),
        token_requester_principal_type="User",
        token_requester_principal_name="alice",
        issue_timestamp=1,
        expiry_timestamp=2,
        max_timestamp=3,
        renewers=[renewer],
    )
    return DescribeDelegationTokenResponse(error_code=code, tokens=[] if code else [found])


def test_a_token_without_its_hmac() -> None:
    found = ask({TOKENS: tokens()}, stored.read_tokens, 0)
    assert found == {"token id": {"owner": "User:alice", "renewers": "User:bob", "issued": "1", "expires": "2", "latest": "3"}}
    assert CANARY not in repr(found)


@pytest.mark.parametrize("source", [None, 5])
def test_a_plain_connection_to_brokers_without_tokens(source: int | None) -> None:
    listed = [] if source is None else [("delegation.token.secret.key", None, source)]
    with pytest.raises(NotReported):
        ask({TOKENS: tokens(64), CONFIGS: lambda _: configs(*listed)}, stored.read_tokens, 0)


def test_brokers_whose_tokens_are_off() -> None:
    with pytest.raises(NotReported):
        ask({TOKENS: tokens(61)}, stored.read_tokens, 0)


def test_a_plain_connection_to_brokers_with_tokens_is_unknown() -> None:
    with pytest.raises(Failed):
        ask({TOKENS: tokens(64), CONFIGS: lambda _: configs(("delegation.token.secret.key", None, 4))}, stored.read_tokens, 0)


@pytest.mark.parametrize(("ids", "highest"), [([], None), ([3, 1000, 7], 1000)])
def test_the_highest_producer_id(ids: list[int], highest: int | None) -> None:
    state = ListTransactionsResponse.TransactionState
    states = [state(transactional_id=str(number), producer_id=number, transaction_state="Empty") for number in ids]
    answer = ListTransactionsResponse(error_code=0, unknown_state_filters=[], transaction_states=states)
    assert ask({TRANSACTIONS: answer}, stored.read_highest_producer_id) == highest


READS = {
    CONFIGS: (lambda code: lambda _: configs(code=code), lambda wire: stored.read_broker_settings(wire, 0)),
    QUOTAS: (lambda code: DescribeClientQuotasResponse(error_code=code, entries=None), stored.read_quotas),
    SCRAM: (lambda code: DescribeUserScramCredentialsResponse(error_code=code, results=[]), stored.read_credentials),
    ACLS: (acls, stored.read_acls),
    TOKENS: (tokens, lambda wire: stored.read_tokens(wire, 0)),
    TRANSACTIONS: (lambda code: ListTransactionsResponse(error_code=code), stored.read_highest_producer_id),
}


@pytest.mark.parametrize("key", READS)
@pytest.mark.parametrize(("code", "error"), [(31, AuthenticationFailed), (14, Unavailable), (42, Failed)])
def test_errors_are_never_an_empty_answer(key: int, code: int, error: type[Exception]) -> None:
    answer, read = READS[key]
    with pytest.raises(error):
        ask({key: answer(code)}, read)  # type: ignore[no-untyped-call]
