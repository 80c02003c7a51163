"""What a broker runs with against what its file says: each difference that a restart would make is named, and no other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.files.config_matrix import FileStage
from airflow_provider_kmigrate.core.files.properties import RenderFacts, broker_properties, kept_by, parse
from airflow_provider_kmigrate.core.model import BrokerMode, NodeFiles, Taken
from airflow_provider_kmigrate.core.preflight.checks import findings
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.core.preflight.written import differences
from tests.core.test_preflight import FORMATTED, Case, Change, ClusterView, PreflightFacts, broker_1, codes, config, healthy

DEFAULTS = {"num.io.threads": "8", "log.retention.hours": "168", "min.insync.replicas": "1", "log.dir": "/tmp/kafka-logs"}


def edited(running: Mapping[str, str | None] | None = None, effective: Mapping[str, str] | None = None, **file: str) -> Change:
    """Broker 1's file says this, after it was started with `running`; both beside what every broker has."""

    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        view, _ = broker_1(files=NodeFiles(config(1, **file), FORMATTED))(view, facts)
        taken = {**facts.environment.taken, 1: Taken({**config(1), "node.id": "1", **(running or {})}, DEFAULTS)}
        configs = {**facts.configs, 1: {**DEFAULTS, **config(1), **(effective or {})}}
        return view, replace(facts, environment=replace(facts.environment, taken=taken), configs=configs)

    return change


def kept(name: str | None) -> Change:
    return broker_1(files=NodeFiles(config(1), FORMATTED, kept_by=name))


ROWS: list[tuple[str, Change, list[str]]] = [
    ("as it was", edited(), []),
    ("data directories moved", edited({"log.dirs": "/a"}, log_dirs="/a,/b"), ["B15"]),
    ("one directory under its other name", edited({"log.dir": "/a"}, log_dirs="/a"), []),
    ("listeners edited", edited({"listeners": "PLAINTEXT://:9092"}, listeners="SSL://:9093"), ["B15"]),
    ("key of a listener added", edited(listener_name_internal_ssl_client_auth="required"), ["B15"]),
    ("fewer copies of new topics", edited({"default.replication.factor": "3"}, default_replication_factor="1"), ["B15"]),
    ("authorizer taken out", edited({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}), ["B15"]),
    ("ensemble moved", edited({"zookeeper.connect": "zk:2181/kafka"}, zookeeper_connect="zk9:2181/kafka"), ["B15"]),
    ("threads edited", edited({"num.io.threads": "8"}, num_io_threads="16"), ["B15"]),
    ("both kinds", edited(num_io_threads="16", advertised_listeners="PLAINTEXT://x:1"), ["B15", "B15"]),
    ("an own key added", edited(my_reporter_port="9"), ["B15"]),
    ("an own key as before: brokers do not report what they do not know", edited({"my.port": None}, my_port="9"), []),
    ("default written out", edited(num_io_threads="8"), []),
    ("default taken out", edited({"num.io.threads": "8"}), []),
    ("set dynamically and in the file", edited({"num.io.threads": "8"}, {"num.io.threads": "16"}, num_io_threads="16"), []),
    ("blanks and case", edited({"a.b": "1, 2 ", "c": "True", "d": "08"}, a_b="1,2", c="true", d="8"), []),
    ("retention in another unit", edited({"log.retention.ms": "172800000"}, log_retention_hours="48"), []),
    ("retention shortened in another unit", edited({"log.retention.hours": "168"}, log_retention_minutes="60"), ["B15"]),
    ("the default retention in another unit", edited(log_retention_ms="604800000"), []),
    ("the stronger name wins", edited({"log.retention.ms": "9", "log.retention.hours": "1"}, log_retention_ms="9"), []),
    ("a reference", edited({"log.dirs": "/a"}, log_dirs="${file:/etc/x:dirs}"), []),
    ("a reference where nothing was", edited(log_dirs="${file:/etc/x:dirs}"), ["B15"]),
    ("a secret", edited({"ssl.key.password": None}, ssl_key_password="hunter2"), []),
    ("a secret added", edited(ssl_key_password="hunter2"), ["B15"]),
    ("a secret taken out", edited({"ssl.key.password": None}), ["B15"]),
    ("hostnames not checked", edited({"ssl.endpoint.identification.algorithm": ""}, ssl_endpoint_identification_algorithm=""), []),
    ("the command line overrides the file", edited({"log.dirs": "/pod-1"}), ["B15"]),
    ("protocol version taken out", edited({}, inter_broker_protocol_version=""), ["B15"]),
    ("login for the controllers' listener", edited(sasl_mechanism_controller_protocol="PLAIN", listener_name_controller_plain_sasl_jaas_config="x"), []),
    ("other mechanism for controllers", edited({"sasl.mechanism.controller.protocol": "GSSAPI"}, sasl_mechanism_controller_protocol="PLAIN"), []),
    ("login of a listener that only begins so", edited(listener_name_controllers_plain_sasl_jaas_config="x"), ["B15"]),
    ("voters, which only controllers' peers read", edited(controller_quorum_voters="3000@c:9093"), []),
    ("secret for dynamic passwords", edited(password_encoder_secret="a", password_encoder_old_secret="b"), []),
    ("secret for dynamic passwords taken out", edited({"password.encoder.secret": None}), ["B15"]),
    ("other cipher for dynamic passwords", edited(password_encoder_cipher_algorithm="DES"), ["B15"]),
    ("its id where it was generated", edited({"broker.id": "-1", "node.id": "-1"}, {"broker.id": "-1"}), []),
    ("ids that are no longer generated", edited(broker_id_generation_enable="false"), []),
    ("the id of another", edited(broker_id="7"), ["M01", "B15"]),
    ("a file of another stage", edited(zookeeper_metadata_migration_enable="true", log_dirs="/b"), ["C04"] * 3),
    ("written by Ansible", kept("Ansible"), ["W9"]),
    ("written by hand", kept(None), []),
]  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_a_restart_would_change_is_named(change: Change, expected: list[str]) -> None:
    assert codes(change(*healthy())) == expected


def test_only_names_are_shown() -> None:
    (found,) = findings(*edited({"ssl.key.password": None}, sasl_jaas_config="hunter2", log_dirs="/b")(*healthy()))
    assert found.severity is Severity.BLOCK
    assert "broker 1" in found.reason.text
    assert "log.dirs, sasl.jaas.config, ssl.key.password" in found.reason.text
    assert "hunter2" not in str(found)


def test_a_version_that_is_not_in_force_is_said_once() -> None:
    assert codes(edited({"inter.broker.protocol.version": "3.9"}, inter_broker_protocol_version="3.8")(*healthy())) == ["B1a"]


def test_a_broker_in_migration_mode_is_compared_with_the_file_that_it_was_given() -> None:
    view, facts = healthy()
    lines = {**config(1), "listeners": "PLAINTEXT://node1:9092", "log.dirs": "/data"}
    text = broker_properties("\n".join(map("=".join, lines.items())), FileStage.MIGRATION, RenderFacts.of(facts.spec, "3.9-IV0"))
    file = parse(text)
    taken = {**facts.environment.taken, 1: Taken({**file, "node.id": "1"}, DEFAULTS)}
    view, _ = broker_1(mode=BrokerMode.MIGRATION, files=NodeFiles(file, FORMATTED))(view, facts)
    facts = replace(facts, configs={**facts.configs, 1: file}, environment=replace(facts.environment, taken=taken))
    assert codes((view, facts)) == []
    view, _ = broker_1(files=NodeFiles({**file, "sasl.mechanism.controller.protocol": "PLAIN"}, FORMATTED))(view, facts)
    assert codes((view, facts)) == ["B15"]


_KEYS = st.sampled_from(
    ["log.retention.ms", "log.retention.hours", "log.dir", "log.dirs", "node.id", "broker.id", "x", "ssl.key"]
)
_FILES = st.dictionaries(_KEYS, st.text("0123ab, ", max_size=4))


@given(_FILES, _FILES, _FILES)
def test_a_file_that_was_not_edited_never_differs(file: dict[str, str], defaults: dict[str, str], force: dict[str, str]) -> None:
    assert differences(file, Taken(dict(file), defaults), force) == ()
    secret: dict[str, str | None] = dict.fromkeys(file)
    assert differences(file, Taken(secret, defaults), force) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Ansible managed\nbroker.id=1\n", "Ansible"),
        ("#\n# This file is managed by Puppet.\n# DO NOT EDIT\n", "Puppet"),
        ("! Generated by Chef for node1\n", "Chef"),
        ("# Generated by Docker\nbroker.id=1\n", None),
        ("# see https://ansible.example/kafka for how\n", None),
        ("# see the role in our Ansible\n# topics are created by teams\n", None),
        ("# the log cleaner is managed here\n", None),
        ("managed.by=ansible\n", None),
        ("", None),
    ],
)
def test_who_a_file_says_that_it_is_written_by(text: str, expected: str | None) -> None:
    assert kept_by(text) == expected
