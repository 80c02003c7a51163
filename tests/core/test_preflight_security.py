"""Rules, principals, secrets and the way to ZooKeeper; each defect gives exactly its code, and no finding shows a secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.model import ConnectionFacts, Malformed, NodeFiles, Reason
from airflow_provider_kmigrate.core.preflight.checks import findings
from airflow_provider_kmigrate.core.preflight.findings import Severity
from tests.core.preflight_around import (
    ACL_CLASS,
    KRAFT_FILE,
    PLAIN,
    RULE,
    SASL_CONTROLLERS,
    SCRAM,
    Row,
    beside_brokers,
    by_two_names,
    codes,
    environment,
    everywhere,
    large_topic,
    remote,
    rules,
    running_1,
    secured,
    tree,
    written_1,
)
from tests.core.test_preflight import (
    Change,
    both,
    broker_1,
    config,
    controller_files,
    controller_ids,
    healthy,
    known,
    spec,
)


def known_type(text: str) -> Change:
    """Every broker runs with a keystore of this type."""
    return lambda view, facts: (view, replace(facts, configs={i: config(i, ssl_keystore_type=text) for i in facts.configs}))


ROWS: list[Row] = [
    ("custom authorizer", everywhere(authorizer_class_name="com.example.Rules"), ["B8a"]),
    ("custom authorizer, ready for KRaft", both(everywhere(authorizer_class_name="com.example.Rules"), spec(controller_properties={"authorizer.class.name": "com.example.KRaft"})), []),
    ("custom authorizer with rules in ZooKeeper", both(everywhere(authorizer_class_name="com.example.Rules", confluent_authorizer_access_rule_providers="CONFLUENT,ZK_ACL"), spec(controller_properties={"authorizer.class.name": "com.example.KRaft"})), ["B8a", "B8a"]),
    ("custom authorizer with rules in KRaft", both(everywhere(authorizer_class_name="com.example.Rules", confluent_authorizer_access_rule_providers="CONFLUENT,ZK_ACL"), spec(controller_properties={"authorizer.class.name": "com.example.KRaft", "confluent.authorizer.access.rule.providers": "CONFLUENT,KRAFT_ACL"})), []),
    ("custom authorizer that is ZooKeeper's by its name", both(everywhere(authorizer_class_name="com.example.Rules"), spec(controller_properties={"authorizer.class.name": "com.example.ZkRules"})), []),
    ("custom authorizer that names ZooKeeper", both(everywhere(authorizer_class_name="com.example.Rules"), spec(controller_properties={"authorizer.class.name": "com.example.zookeeper.Rules"})), ["B8a"]),
    ("keys of others that controllers do not get", both(everywhere(authorizer_class_name="com.example.Rules", confluent_license="x"), spec(controller_properties={"authorizer.class.name": "com.example.KRaft"})), ["B8a"]),
    ("keys of others, but no class of theirs on controllers", everywhere(cruise_control_metrics_topic="x"), []),
    ("authorizer of one broker", running_1(authorizer_class_name=ACL_CLASS), ["B18"]),
    ("rule", rules(RULE), []),
    ("rule of an unknown operation", rules(replace(RULE, operation="Fly")), ["B8c"]),
    ("rule for a principal without a type", rules(replace(RULE, principal="alice")), ["B8c"]),
    ("malformed rule", both(rules(RULE), tree(malformed=(Malformed("/kafka-acl/Topic/x", "{"),))), ["B8c"]),
    ("malformed user", tree(malformed=(Malformed("/config/users/alice", '{"SCRAM-SHA-256":"stored_key=hunter2'),)), ["B8c"]),
    ("rule for a group", rules(replace(RULE, principal="Group:staff")), ["W14"]),
    ("rule with a pattern for a user", rules(replace(RULE, principal="User:app-*")), ["W14"]),
    ("rule for every user", rules(replace(RULE, principal="User:*")), []),
    ("prefix that is a star", rules(replace(RULE, name="*", pattern="PREFIXED")), ["W14"]),
    ("rules without authorizer", tree(acls=(RULE,)), ["W14"]),
    ("SCRAM users", tree(scram_users=("alice",)), []),
    ("SCRAM users before 3.5-IV2", both(everywhere(inter_broker_protocol_version="3.5-IV1"), tree(scram_users=("alice",))), ["B1b", "B9a"]),
    ("tokens before 3.6-IV2", both(everywhere(inter_broker_protocol_version="3.6-IV1", delegation_token_secret_key="x"), tree(tokens=2)), ["B9a", "B1b"]),
    ("tokens without key", tree(tokens=2), ["B9a"]),
    ("tokens with key", both(everywhere(delegation_token_master_key="x"), tree(tokens=2)), []),
    ("SCRAM for controllers", spec(controller_security="SASL_SSL", controller_properties={"sasl.mechanism.controller.protocol": "SCRAM-SHA-512"}), ["B9d"]),
    ("PLAIN for controllers, login not in the files", spec(controller_security="SASL_SSL", controller_properties={"sasl.mechanism.controller.protocol": "PLAIN"}), ["B9d"]),
    ("PLAIN for controllers, login as between brokers", both(everywhere(**PLAIN), SASL_CONTROLLERS), []),
    ("SCRAM between brokers, PLAIN for controllers, no login for that", both(everywhere(**SCRAM), spec(controller_security="SASL_SSL", controller_properties={"sasl.mechanism.controller.protocol": "PLAIN"})), ["B9d"]),
    ("SCRAM between brokers, PLAIN for controllers", both(everywhere(**SCRAM, sasl_mechanism_controller_protocol="PLAIN", listener_name_controller_plain_sasl_jaas_config="x"), SASL_CONTROLLERS), []),
    ("PLAIN between brokers, SCRAM for controllers in a file", both(everywhere(**PLAIN, sasl_mechanism_controller_protocol="SCRAM-SHA-256"), SASL_CONTROLLERS), ["B9d"]),
    ("SCRAM inherited by controllers", both(spec(controller_security="SASL_SSL"), everywhere(sasl_mechanism_inter_broker_protocol="SCRAM-SHA-256")), ["B9d"]),
    ("guarded znodes", tree(guarded=("sasl",)), ["B10a"]),
    ("TLS towards ZooKeeper", everywhere(zookeeper_ssl_client_enable="true"), ["B10a"]),
    ("znodes to be guarded", everywhere(zookeeper_set_acl="true"), ["B10a"]),
    ("files differ towards ZooKeeper", written_1(zookeeper_ssl_protocol="TLSv1.2"), ["B10a", "B10a"]),
    ("controller without ZooKeeper's identity", both(everywhere(zookeeper_set_acl="true"), controller_files(NodeFiles(KRAFT_FILE, {}, has_metadata_log=False))), ["B10a", "B10a"]),
    ("ZooKeeper with TLS, no file says how", known(connections=ConnectionFacts(zookeeper=("TLS",))), ["B10a"]),
    ("ZooKeeper with SASL", known(connections=ConnectionFacts(zookeeper=("SASL",))), ["B10a"]),
    ("key stores of controllers on machines of brokers", both(everywhere(ssl_keystore_location="/k"), beside_brokers), []),
    ("our own znode is open", tree(open_root="/_kmigrate"), ["W22"]),
    ("ZooKeeper without an identity", both(environment(one_machine=False), known(connections=ConnectionFacts(anonymous=True))), ["W8", "W22"]),
    ("ZooKeeper without an identity, all on this machine", known(connections=ConnectionFacts(anonymous=True)), []),
    ("a webhook that cannot be called", known(connections=ConnectionFacts(refused=(Reason("N03", "connection deployer: no TLS"),))), ["N03"]),
    ("large znodes", large_topic, ["B10b"]),
    ("password without secret", tree(broker_settings={"1": ("ssl.keystore.password",)}), ["B11", "B16", "W13"]),
    ("passwords, secrets differ", both(tree(broker_settings={"1": ("listener.name.a.plain.sasl.jaas.config",)}), both(everywhere(password_encoder_secret="a"), written_1(password_encoder_secret="b"))), ["B11", "B16", "W13"]),
    ("password with secret", both(tree(broker_settings={"1": ("ssl.key.password",)}), everywhere(password_encoder_secret="a")), ["B16", "W13"]),
    ("password with secret, in the file too", both(tree(broker_settings={"1": ("ssl.key.password",)}), everywhere(password_encoder_secret="a", ssl_key_password="b")), ["B16", "W13"]),
    ("password written into the file after it was set", both(both(everywhere(password_encoder_secret="a"), tree(broker_settings={"1": ("ssl.key.password",)})), broker_1(files=NodeFiles(config(1, password_encoder_secret="a", ssl_key_password="b"), {"/data": {}}))), ["B16", "W13"]),
    ("key store that a broker cannot read", broker_1(files=NodeFiles(config(1), {"/data": {}}, unreadable=("/2023/ks.jks",))), ["C11"]),
    ("key store that a controller cannot read", controller_files(NodeFiles(KRAFT_FILE, {}, has_metadata_log=False, unreadable=("/k",))), ["C11"]),
    ("key stores of controllers", everywhere(ssl_keystore_location="/k", ssl_truststore_location="/t"), ["C11"]),
    ("keystore of a listener", tree(broker_settings={"1": ("listener.name.tls.ssl.keystore.location",)}), ["B16", "W13"]),
    ("keystore of all brokers", both(tree(broker_settings={"<default>": ("ssl.truststore.location",)}), written_1(ssl_truststore_location="/t")), ["B16", "W13"]),
    ("keystore that the file has, too", both(tree(broker_settings={"1": ("listener.name.tls.ssl.keystore.location",)}), everywhere(listener_name_tls_ssl_keystore_location="/k")), ["W13"]),
    ("keystore of a listener that the file has for all", both(tree(broker_settings={"1": ("listener.name.tls.ssl.keystore.location",)}), everywhere(ssl_keystore_location="/k")), ["C11", "W13"]),
    ("keystore exchanged since, another one in the file", both(tree(broker_settings={"1": ("listener.name.tls.ssl.keystore.location",)}), both(everywhere(ssl_keystore_location="/2023"), running_1(ssl_keystore_location="/2023", listener_name_tls_ssl_keystore_location="/2026"))), ["B16", "C11", "W13"]),
    ("keystore exchanged since in its place", both(tree(broker_settings={"1": ("listener.name.tls.ssl.keystore.location",)}), both(everywhere(ssl_keystore_location="/k"), running_1(ssl_keystore_location="/k", listener_name_tls_ssl_keystore_location="/k"))), ["C11", "W13"]),
    ("keystore of another type since", both(tree(broker_settings={"<default>": ("ssl.keystore.type",)}), both(everywhere(ssl_keystore_type="JKS"), known_type("PEM"))), ["B16", "W13"]),
    ("keystore by a reference", both(tree(broker_settings={"1": ("ssl.keystore.location",)}), both(everywhere(config_providers="env", ssl_keystore_location="${env:K}"), running_1(config_providers="env", ssl_keystore_location="/k"))), ["W13"]),
    ("truststore where the file has a keystore", both(tree(broker_settings={"1": ("listener.name.tls.ssl.truststore.location",)}), everywhere(ssl_keystore_location="/k")), ["B16", "C11", "W13"]),
    ("keystore of a listener where the file has that of another", both(tree(broker_settings={"1": ("listener.name.tls.ssl.keystore.location",)}), everywhere(listener_name_b_ssl_keystore_location="/k")), ["B16", "W13"]),
    ("login of a listener, one for all does not count", both(tree(broker_settings={"1": ("listener.name.a.plain.sasl.jaas.config",)}), everywhere(password_encoder_secret="a", sasl_jaas_config="b")), ["B16", "W13"]),
    ("mechanisms of a listener, others in the file for all", both(tree(broker_settings={"0": ("listener.name.a.sasl.enabled.mechanisms",)}), everywhere(sasl_enabled_mechanisms="PLAIN")), ["B16", "W13"]),
    ("mechanisms of a listener", tree(broker_settings={"0": ("listener.name.a.sasl.enabled.mechanisms",)}), ["B16", "W13"]),
    ("connections of a listener", tree(broker_settings={"0": ("listener.name.a.max.connections",)}), ["W13"]),
    ("listener opened", both(tree(broker_settings={"1": ("listeners",)}), running_1(listeners="A://:1,B://:2")), ["B16", "W13"]),
    ("listener opened, and in the file", both(tree(broker_settings={"1": ("listeners",)}), everywhere(listeners="A://:1,B://:2")), ["W13"]),
    ("protocols of listeners", both(tree(broker_settings={"1": ("listener.security.protocol.map",)}), everywhere(listener_security_protocol_map="A:SSL")), ["B16", "W13"]),
    ("engine of TLS on controllers", everywhere(ssl_engine_factory_class="com.example.Engine"), ["B8a"]),
    ("provider of references on controllers", everywhere(config_providers="vault", config_providers_vault_class="com.example.Vault"), ["B8a"]),
    ("provider of Kafka's", everywhere(config_providers="env", config_providers_env_class="org.apache.kafka.common.config.provider.EnvVarConfigProvider"), []),
    ("class of brokers alone", everywhere(replica_selector_class="com.example.Selector"), []),
    ("class named for controllers", spec(controller_properties={"metric.reporters": "x", "security.x.class": "com.example.X"}), ["B8a"]),
    ("custom principals", everywhere(principal_builder_class="com.example.Names"), ["B8a"]),
    ("Kafka's own principals", everywhere(principal_builder_class="org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"), []),
    ("no super users", secured(super_users=""), ["B13b"] * 3),
    ("brokers no super users", secured(), ["B13b"] * 3),
    ("everybody allowed, but not before the log is loaded", secured(super_users="", allow_everyone_if_no_acl_found="true"), ["B13b"]),
    ("everybody allowed, one controller", both(secured(super_users="", allow_everyone_if_no_acl_found="true"), controller_ids(3000)), ["W3"]),
    ("everybody allowed, SASL", both(secured(**PLAIN, super_users="", allow_everyone_if_no_acl_found="true"), SASL_CONTROLLERS), ["B13b"]),
    ("anonymous brokers among super users", secured(super_users="User:ANONYMOUS"), []),
    ("TLS brokers that ask for no certificate", secured(security_inter_broker_protocol="SSL"), ["B13b"] * 3),
    ("TLS brokers, name not shown", both(secured(security_inter_broker_protocol="SSL", ssl_client_auth="required"), spec(controller_security="SSL")), ["B13b"] * 3),
    ("SASL brokers among super users", both(secured(**PLAIN), SASL_CONTROLLERS), []),
    ("SASL brokers, controllers in the clear", secured(**PLAIN), ["B13b"]),
    ("SASL brokers, controllers in the clear, no super user there", both(secured(**PLAIN), spec(controller_properties={"super.users": "User:broker;User:ANONYMOUS"})), []),
    ("SASL brokers, TLS controllers that ask for no certificate", both(secured(**PLAIN), spec(controller_security="SSL")), ["B9f", "B13b"]),
    ("SASL brokers, TLS controllers, name not shown", both(secured(**PLAIN, ssl_client_auth="required"), spec(controller_security="SSL")), ["B13b"]),
    ("SASL brokers, controllers with another authorizer", both(secured(**PLAIN), spec(controller_properties={"authorizer.class.name": "com.example.KRaft"})), []),
    ("super users by reference", secured(super_users="${env:SUPER_USERS}", config_providers="env"), ["B13b"] * 3),
    ("super users by a reference that controllers could not resolve", secured(super_users="${env:SUPER_USERS}"), ["C10", *["B13b"] * 3]),
    ("SASL brokers not among them", both(secured(**PLAIN, super_users="User:admin"), SASL_CONTROLLERS), ["B13b"] * 3),
    ("Kerberos brokers", both(secured(security_inter_broker_protocol="SASL_PLAINTEXT"), SASL_CONTROLLERS), ["B13b"] * 3 + ["B9d"]),
    ("rules in another ZooKeeper", both(rules(), everywhere(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", authorizer_zookeeper_url="acls:2181")), ["B8d"] * 3),
    ("rules in another chroot", everywhere(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", authorizer_zookeeper_url="zk:2181/acls"), ["B8d"] * 3),
    ("rules in the same chroot of servers with other names", everywhere(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", authorizer_zookeeper_url="10.0.0.1:2181/kafka"), ["B8d"] * 3),
    ("rules in the same ZooKeeper, said twice", everywhere(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", authorizer_zookeeper_url="zk2,ZK/kafka"), []),
    ("rules at a reference", everywhere(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", authorizer_zookeeper_url="${env:ACLS}"), ["B8d"] * 3),
    ("no authorizer, rules in another ZooKeeper", everywhere(authorizer_zookeeper_url="acls:2181"), []),
    ("ensemble on each broker's machine", both(remote(600.0), everywhere(zookeeper_connect="localhost:2181/kafka")), ["B17"]),
    ("first server on each broker's machine", both(remote(600.0), everywhere(zookeeper_connect="[::1]:2181,zk2:2181/kafka")), ["B17"]),
    ("all servers on each broker's machine", both(remote(600.0), everywhere(zookeeper_connect="localhost:2181, 127.0.0.1:2182/kafka")), ["B17"]),
    ("ensemble on the machines of controllers, too", both(both(remote(600.0), everywhere(zookeeper_connect="127.0.0.1:2181/kafka")), beside_brokers), []),
    ("all ports of containers on this machine", both(both(remote(600.0), everywhere(zookeeper_connect="127.0.0.1:2181/kafka")), by_two_names), []),
    ("chroot after every server", both(known(chroot="/kafka,zk2:2181/kafka"), everywhere(zookeeper_connect="zk1:2181/kafka,zk2:2181/kafka")), ["W21"]),
]  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_one_defect_gives_its_code(change: Change, expected: list[str]) -> None:
    assert codes(change(*healthy())) == expected


@pytest.mark.parametrize(
    ("connect", "severity"),
    [
        ("localhost:2181/kafka", Severity.BLOCK),
        ("localhost:2181,[::1]:2182/kafka", Severity.BLOCK),
        ("localhost:2181,zk2:2181/kafka", Severity.WARN),
        ("zk1:2181,zk2:2181,127.0.0.1/kafka", Severity.WARN),
    ],
)
def test_controllers_go_on_to_the_next_server_of_zookeeper(connect: str, severity: Severity) -> None:
    (found,) = findings(*both(remote(600.0), everywhere(zookeeper_connect=connect))(*healthy()))
    assert (found.code, found.severity) == ("B17", severity)


@pytest.mark.parametrize(
    ("url", "severity"),
    [
        ("acls:2181", Severity.BLOCK),
        ("zk:2181/acls", Severity.BLOCK),
        ("10.0.0.1:2181/kafka", Severity.UNKNOWN),
        ("zk:2182/kafka", Severity.UNKNOWN),
        ("${env:ACLS}", Severity.UNKNOWN),
    ],
)
def test_rules_elsewhere_block_where_the_chroot_tells(url: str, severity: Severity) -> None:
    keys = {"authorizer_class_name": ACL_CLASS, "super_users": "User:ANONYMOUS", "authorizer_zookeeper_url": url}
    found = findings(*everywhere(**keys)(*healthy()))
    assert [(each.code, each.severity) for each in found] == [("B8d", severity)] * 3


SECRETS = {"password_encoder_secret": "hunter2", "sasl_jaas_config": 'username="broker" password="hunter2";'}


@pytest.mark.parametrize("change", [row[1] for row in ROWS], ids=[row[0] for row in ROWS])
def test_no_finding_holds_a_secret(change: Change) -> None:
    def keep(properties: Mapping[str, str]) -> dict[str, str]:
        return {**properties, **{key.replace("_", "."): value for key, value in SECRETS.items()}}

    view, facts = change(*healthy())
    brokers = {i: replace(b, files=replace(b.files, properties=keep(b.files.properties or {}))) for i, b in view.brokers.items()}
    assert "hunter2" not in "".join(map(str, findings(replace(view, brokers=brokers), facts)))
