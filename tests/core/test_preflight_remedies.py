"""A remedy that is followed as it is written ends its finding, and leads into no other block."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.model import ConnectionFacts, ZooKeeperServer
from airflow_provider_kmigrate.core.node_files.properties import parse_properties
from airflow_provider_kmigrate.core.preflight.checks import blocking_findings, run_checks
from tests.core import preflight_files_rows as files
from tests.core import preflight_views as base
from tests.core import preflight_written_rows as written
from tests.core.preflight_around import ACL_CLASS, LOGIN, SCRAM, environment, everywhere, remote, running_1, secured, tree
from tests.core.preflight_places_rows import beside, beside_broker_0
from tests.core.preflight_protection_rows import (
    CONTROLLERS_ANY_NAME,
    IN_CLEAR,
    READABLE,
    SCRAM_BETWEEN,
    SSL_CONTROLLERS,
    TLS_ONLY,
)
from tests.core.preflight_rows import ROWS
from tests.core.preflight_views import Case, Change, both, controller_ids, healthy, known, spec, started

_OFFER = re.compile(r"; (write|remove) ((?:`[^`]+`(?: and )?)+)")
_WHOSE = re.compile(r"broker (\d+): |the controllers: ")


def edited(case: Case, broker: int, write: Mapping[str, str], remove: set[str]) -> Case:
    view, facts = case
    seen = view.brokers[broker]
    kept = {key: value for key, value in (seen.files.properties or {}).items() if key not in remove}
    changed = replace(seen, files=replace(seen.files, properties={**kept, **write}))
    return replace(view, brokers={**view.brokers, broker: changed}), facts


def in_cluster_file(case: Case, write: Mapping[str, str]) -> Case:
    view, facts = case
    return view, replace(facts, spec=replace(facts.spec, controller_properties={**facts.spec.controller_properties, **write}))


def followed(case: Case) -> tuple[Case, list[str]]:
    """The case with every line that its findings offer, written where it belongs, and the codes that offered one."""
    offering = []
    for finding in run_checks(*case):
        whose = _WHOSE.match(finding.reason.text)
        offers = {act: re.findall(r"`([^`]+)`", quoted) for act, quoted in _OFFER.findall(finding.reason.text)}
        if whose is None or not offers:
            assert not offers, f"it does not say where to write this: {finding}"
            continue
        offering.append(finding.code)
        write, remove = parse_properties("\n".join(offers.get("write", ()))), set(offers.get("remove", ()))
        case = edited(case, int(whose[1]), write, remove) if whose[1] else in_cluster_file(case, write)
    return case, offering


CASES = [*ROWS, *base.DEFECTS, *written.ROWS, *files.REPAIRED]


@pytest.mark.parametrize("change", [row[1] for row in CASES], ids=[row[0] for row in CASES])
def test_every_line_that_a_finding_offers_ends_it(change: Change) -> None:
    before = change(*healthy())
    after, offering = followed(before)
    left = blocking_findings(run_checks(*after))
    assert not [each.code for each in left if _OFFER.search(each.reason.text)]
    assert Counter(each.code for each in left) <= Counter(each.code for each in blocking_findings(run_checks(*before))) - Counter(
        offering
    )


@given(st.sampled_from(files.REPAIRED), st.sampled_from(CASES))
def test_every_line_that_a_finding_offers_ends_it_beside_another_defect(
    one: tuple[str, Change, list[str]], other: tuple[str, Change, list[str]]
) -> None:
    try:
        before = one[1](*other[1](*healthy()))
    except AssertionError:  # the other took away what this one changes
        return
    after, offering = followed(before)
    left = Counter(each.code for each in blocking_findings(run_checks(*after)))
    assert left <= Counter(each.code for each in blocking_findings(run_checks(*before)))
    assert not offering or left.total() < len(blocking_findings(run_checks(*before)))


def test_the_lines_of_some_findings_were_followed() -> None:
    offering = {code for row in CASES for code in followed(row[1](*healthy()))[1]}
    providers = spec(controller_properties={"ssl.key.password": "${vault:kafka:key}"})
    assert offering | set(followed(providers(*healthy()))[1]) == {"C04", "C10"}


def every_file(restarted: bool = False, /, **keys: str) -> Change:
    """Keys written into each broker's file; an empty value: the key is taken out."""

    def change(view: base.ClusterView, facts: base.PreflightFacts) -> Case:
        named = {key.replace("_", "."): value for key, value in keys.items()}
        case, remove = (view, facts), {key for key, value in named.items() if not value}
        for broker in view.brokers:
            case = edited(case, broker, {key: value for key, value in named.items() if value}, remove)
        return started(*case) if restarted else case

    return change


def file_1(**keys: str) -> Change:
    """Keys written into the file of broker 1."""
    named = {key.replace("_", "."): value for key, value in keys.items()}
    return lambda view, facts: edited((view, facts), 1, named, set())


def cluster_file(**keys: str) -> Change:
    return lambda view, facts: in_cluster_file((view, facts), {key.replace("_", "."): value for key, value in keys.items()})


def case_of(case: Case) -> Change:
    return lambda _view, _facts: case


SASL_CONTROLLERS = spec(controller_security="SASL_SSL", controller_security_written=True)
LOGIN_OF_CONTROLLERS = {"listener_name_controller_plain_sasl_jaas_config": LOGIN}
SCRAM_OVER_TLS = both(everywhere(**SCRAM), SASL_CONTROLLERS)
ENCRYPTED = both(tree(broker_settings={"1": ("ssl.key.password",)}), everywhere(ssl_key_password="x"))
KEYSTORE = tree(broker_settings={"1": ("listener.name.tls.ssl.keystore.location",)})
PREPARED = {
    "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL",
    "sasl_mechanism_controller_protocol": "PLAIN",
    **LOGIN_OF_CONTROLLERS,
}
PORT_TAKEN, PLACE_TAKEN = case_of(beside("PLAINTEXT://:9092,SSL://:9093")), case_of(beside_broker_0("/data"))


def other_port(view: base.ClusterView, facts: base.PreflightFacts) -> Case:
    moved = tuple(replace(node, port=9094) for node in facts.spec.controllers)
    return spec(controllers=moved)(view, facts)


def other_place(view: base.ClusterView, facts: base.PreflightFacts) -> Case:
    moved = tuple(replace(node, log_dir="/kraft") for node in facts.spec.controllers)
    return spec(controllers=moved)(view, facts)


def dynamic_overrides(hosts: str) -> Change:
    """All brokers have it dynamically that nobody but these machines may connect."""
    keys = {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": hosts}

    def change(view: base.ClusterView, facts: base.PreflightFacts) -> Case:
        configs = {broker: {**(config or {}), **keys} for broker, config in facts.configs.items()}
        return tree(broker_settings={"<default>": tuple(keys)})(view, replace(facts, configs=configs))

    return change


#: (finding, what is wrong, what its entry in the runbook says to do)
STEPS: list[tuple[str, Change, Change]] = [
    ("B9e", everywhere(**PREPARED), SASL_CONTROLLERS),
    ("B9e", everywhere(**PREPARED), spec(controller_listener="QUORUM")),
    ("B9e", both(everywhere(**TLS_ONLY), spec(controller_security_written=False)), spec(controller_security_written=True)),
    ("B9e", both(everywhere(**TLS_ONLY), spec(controller_security_written=False)), spec(controller_security="SSL", controller_security_written=True)),
    ("B9d", SCRAM_OVER_TLS, both(SSL_CONTROLLERS, cluster_file(ssl_client_auth="required"))),
    ("B9f", both(SCRAM_OVER_TLS, SSL_CONTROLLERS), cluster_file(ssl_client_auth="required")),
    ("B9d", SCRAM_OVER_TLS, every_file(sasl_mechanism_controller_protocol="PLAIN", **LOGIN_OF_CONTROLLERS)),
    ("B9d", both(everywhere(**READABLE | {"sasl_enabled_mechanisms": "SCRAM-SHA-256", "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-256"}), IN_CLEAR), both(SASL_CONTROLLERS, every_file(sasl_mechanism_controller_protocol="PLAIN", **LOGIN_OF_CONTROLLERS))),
    ("B9f", both(everywhere(**SCRAM_BETWEEN), IN_CLEAR), SASL_CONTROLLERS),
    ("B9f", both(everywhere(**SCRAM_BETWEEN), IN_CLEAR), cluster_file(sasl_mechanism_controller_protocol="PLAIN")),
    ("B9f", both(everywhere(**TLS_ONLY, **CONTROLLERS_ANY_NAME), SSL_CONTROLLERS), every_file(**CONTROLLERS_ANY_NAME)),
    ("B9f", both(everywhere(**TLS_ONLY, **CONTROLLERS_ANY_NAME), SSL_CONTROLLERS), cluster_file(**CONTROLLERS_ANY_NAME)),
    ("B9f", known(connections=ConnectionFacts(unverified=frozenset({"kafka"}))), spec(unverified=frozenset({"kafka"}))),
    ("B9f", known(connections=ConnectionFacts(unverified=frozenset({"kafka"}))), known(connections=ConnectionFacts())),
    ("B8a", everywhere(authorizer_class_name="com.example.Rules"), cluster_file(authorizer_class_name="com.example.KRaft")),
    ("B11", ENCRYPTED, every_file(password_encoder_secret="x")),
    ("B13b", secured(super_users=""), every_file(True, super_users="User:ANONYMOUS;User:admin")),
    ("B16", KEYSTORE, file_1(listener_name_tls_ssl_keystore_location="/k")),
    ("B16", both(KEYSTORE, both(everywhere(ssl_keystore_location="/2023"), running_1(ssl_keystore_location="/2023", listener_name_tls_ssl_keystore_location="/2026"))), file_1(listener_name_tls_ssl_keystore_location="/2026")),
    ("B17", both(remote(600.0), everywhere(zookeeper_connect="localhost:2181/kafka")), every_file(True, zookeeper_connect="zk:2181/kafka")),
    ("B17", both(remote(600.0), everywhere(zookeeper_connect="localhost:2181/kafka")), environment(servers=(ZooKeeperServer("node0:2181", "3.8.4"),))),
    ("B26", everywhere(max_connections="26"), cluster_file(max_connections="2147483647")),
    ("B26", both(everywhere(max_connections_per_ip="0", max_connections_per_ip_overrides="node0:9"), cluster_file(max_connections_per_ip_overrides="")), cluster_file(max_connections_per_ip="2147483647")),
    ("B26", dynamic_overrides("node0:9"), dynamic_overrides(",".join(f"node{number}:9" for number in (0, 1, 2, 3000, 3001, 3002)))),
    ("C04", known(chroot="/other"), known(chroot="/kafka")),
    ("C04", everywhere(listeners="A://:9092,CONTROLLER://:9094", inter_broker_listener_name="A", listener_security_protocol_map="A:PLAINTEXT,CONTROLLER:PLAINTEXT"), spec(controller_listener="QUORUM")),
    ("C04", cluster_file(metadata_max_idle_interval_ms="0"), spec(controller_properties={})),
    ("C10", cluster_file(ssl_key_password="${vault:a:b}"), cluster_file(config_providers="vault")),
    ("B2b", controller_ids(2, 3001, 3002), controller_ids(3000, 3001, 3002)),
    ("M01", PORT_TAKEN, other_port),
    ("M01", PLACE_TAKEN, other_place),
    ("B8d", everywhere(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", authorizer_zookeeper_url="zk:2181/acls"), every_file(True, authorizer_zookeeper_url="")),
]  # fmt: skip


@pytest.mark.parametrize(("code", "wrong", "remedy"), STEPS, ids=[f"{row[0]}-{number}" for number, row in enumerate(STEPS)])
def test_a_step_of_the_runbook_ends_its_finding_and_begins_no_other(code: str, wrong: Change, remedy: Change) -> None:
    before = wrong(*healthy())
    assert code in {each.code for each in blocking_findings(run_checks(*before))}
    after = blocking_findings(run_checks(*remedy(*before)))
    assert code not in {each.code for each in after}
    assert Counter(each.code for each in after) <= Counter(each.code for each in blocking_findings(run_checks(*before)))
