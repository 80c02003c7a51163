"""Names of TLS clients by their certificates: what Kafka's own mapper says (tests/localcluster), and nothing where that is not certain."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import Certificate
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import PreflightFinding, Severity
from airflow_provider_kmigrate.core.preflight.tls_names import map_subject
from tests.core.preflight_around import environment, secured, tree
from tests.core.preflight_views import Change, both, healthy, spec
from tests.core.tls_name_rows import NOT_CERTAIN, ROWS


@pytest.mark.parametrize(("subject", "rules", "name"), ROWS)
def test_rules_make_names_as_kafka_does(subject: str, rules: str, name: str | None) -> None:
    assert map_subject(subject, rules) == name


@pytest.mark.parametrize(("subject", "rules"), NOT_CERTAIN)
def test_what_only_java_knows_is_not_known(subject: str, rules: str) -> None:
    assert map_subject(subject, rules) is None


NAME = "CN=node{},OU=kafka"
TLS = {"security_inter_broker_protocol": "SSL", "ssl_client_auth": "required"}


def shown(*names: str | None) -> Change:
    return environment(certificates={broker: Certificate(name=name) for broker, name in enumerate(names)})


def names_found(users: str, *changes: Change, **keys: str) -> list[PreflightFinding]:
    case = secured(super_users=users, **TLS, **keys)(*healthy())
    for change in (spec(controller_security="SSL"), shown(*(NAME.format(broker) for broker in range(3))), *changes):
        case = change(*case)
    return [finding for finding in run_checks(*case) if finding.code == "B13b"]


ALL = ";".join(f"User:{NAME.format(broker)}" for broker in range(3))


def test_only_the_controllers_names_are_not_known_if_brokers_certificates_are_seen() -> None:
    (found,) = names_found(ALL)
    assert found.severity is Severity.UNKNOWN
    assert "will know the controllers," in found.reason.text


def test_a_broker_that_is_no_super_user_by_its_certificate_blocks() -> None:
    found = names_found(ALL.replace("node1", "node9"))
    assert [finding.severity for finding in found] == [Severity.BLOCK, Severity.UNKNOWN]
    assert "broker 1 is known as User:CN=node1,OU=kafka, which is not among super.users" in found[0].reason.text


def test_names_are_those_that_the_listeners_rules_make() -> None:
    rules = {"ssl_principal_mapping_rules": "RULE:^CN=(.*?),.*$/$1/U,DEFAULT"}
    (found,) = names_found("User:NODE0;User:NODE1;User:NODE2", **rules)
    assert found.severity is Severity.UNKNOWN
    assert [finding.severity for finding in names_found(ALL, **rules)].count(Severity.BLOCK) == 3


def test_names_at_the_controllers_are_those_of_their_own_listener() -> None:
    """It gets the rules of the brokers' listener; the cluster file may say otherwise."""
    of_listener = {"listener_name_ssl_ssl_principal_mapping_rules": "RULE:^CN=(.*?),.*$/$1/"}
    users = "User:node0;User:node1;User:node2"
    (found,) = names_found(users, **of_listener)
    assert found.severity is Severity.UNKNOWN
    other = spec(controller_properties={"listener.name.controller.ssl.principal.mapping.rules": "DEFAULT"})
    found, _ = names_found(users, other, **of_listener)
    assert found.severity is Severity.BLOCK
    assert "broker 0 as User:CN=node0,OU=kafka" in found.reason.text


@pytest.mark.parametrize(
    "change",
    [
        shown(None, None, None),
        both(secured(super_users=ALL, **TLS, listener_name_ssl_ssl_keystore_location="/other", listeners="PLAINTEXT://:9092,SSL://:9093"), environment()),
        tree(broker_settings={"<default>": ("ssl.keystore.location",)}),
        tree(broker_settings={str(broker): ("listener.name.ssl.ssl.keystore.type",) for broker in range(3)}),
    ],
    ids=["no subject", "another key store at the listener that was asked", "a dynamic key store of all", "of each broker"],
)  # fmt: skip
def test_a_certificate_that_may_be_another_one_shows_nothing(change: Change) -> None:
    found = names_found(ALL, change)
    assert {finding.severity for finding in found} == {Severity.UNKNOWN}
    assert len(found) >= 3
