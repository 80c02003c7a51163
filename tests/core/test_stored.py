"""What two sides tell in two spellings becomes one text, and a secret never becomes any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.migration import equivalence
from airflow_provider_kmigrate.core.migration.equivalence import HIDDEN


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("log.retention.ms", True),
        ("log.cleaner.threads", True),
        ("max.connections.per.ip.overrides", True),
        ("listener.name.internal.max.connection.creation.rate", True),
        ("leader.replication.throttled.rate", True),
        ("ssl.keystore.location", True),
        ("listener.name.client.ssl.truststore.type", True),
        ("listeners", True),
        ("ssl.keystore.password", False),
        ("ssl.key.password", False),
        ("ssl.keystore.key", False),
        ("listener.name.client.ssl.keystore.password", False),
        ("listener.name.client.scram-sha-256.sasl.jaas.config", False),
        ("sasl.jaas.config", False),
        ("delegation.token.secret.key", False),
        ("password.encoder.secret", False),
        ("remote.log.storage.manager.impl.secret", False),
        ("log.shipper.password", False),
        ("my.plugin.token", False),
        ("", False),
    ],
)
def test_only_listed_settings_are_shown(key: str, shown: bool) -> None:
    assert equivalence.visible_broker_setting(key, "value") == ("value" if shown else HIDDEN)


def test_what_a_broker_keeps_back_is_there_and_hidden() -> None:
    assert equivalence.visible_broker_setting("log.retention.ms", None) == HIDDEN


@given(st.text(alphabet="abcdefgh.", max_size=30), st.text(min_size=12))
def test_a_secret_of_a_plugin_is_never_shown(name: str, secret: str) -> None:
    assert secret not in equivalence.visible_broker_setting(f"plugin.{name}", secret)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1000", "1000"),
        ("1000.0", "1000"),
        (1000.0, "1000"),
        ("1e6", "1000000"),
        (12.5, "12.5"),
        ("12.50", "12.5"),
        ("x", HIDDEN),
    ],
)
def test_a_number_has_one_text(value: str | float, text: str) -> None:
    assert equivalence.format_quota(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_quota_is_equal_however_it_was_written(value: float) -> None:
    assert equivalence.format_quota(repr(value)) == equivalence.format_quota(value)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_what_is_no_finite_number_is_still_a_text(value: str) -> None:
    assert equivalence.format_quota(value) == value


def test_entities_of_quotas_do_not_depend_on_the_order_of_their_parts() -> None:
    assert equivalence.quota_entity({"client-id": None, "user": "a"}) == "user a, client-id <default>"
    assert equivalence.quota_entity({"user": "a", "client-id": None}) == "user a, client-id <default>"
    assert equivalence.quota_entity({"ip": "::1"}) == "ip ::1"


@pytest.mark.parametrize("name", ["TransactionalId", "TRANSACTIONAL_ID", "transactional id"])
def test_one_name_in_all_spellings(name: str) -> None:
    assert equivalence.normalize_name(name) == "transactional id"


def test_default_and_single_brokers() -> None:
    assert [equivalence.broker_entity(name) for name in (None, "", "<default>", "7", 7)] == [
        *["all brokers"] * 3,
        "broker 7",
        "broker 7",
    ]


def test_rules_are_gathered_by_resource() -> None:
    read = equivalence.ComparedAcl("literal", "topic", "t", "allow", "read", "User:a", "*")
    found = equivalence.group_acls([read, read._replace(operation="write"), read._replace(pattern="prefixed")])
    assert {resource: sorted(rules) for resource, rules in found.items()} == {
        "topic t": ["allow read to User:a from *", "allow write to User:a from *"],
        "topic t (prefixed)": ["allow read to User:a from *"],
    }


def test_the_order_of_renewers_does_not_matter() -> None:
    assert equivalence.token_settings("User:a", ["User:b", "User:c"], 1, 2, 3) == equivalence.token_settings(
        "User:a", ["User:c", "User:b"], 1, 2, 3
    )
