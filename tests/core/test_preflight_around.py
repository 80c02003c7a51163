"""What lies around a healthy cluster; each defect gives exactly its code, and each thing that is not told a finding of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster import HostSpec
from airflow_provider_kmigrate.core.findings.finding import Severity
from airflow_provider_kmigrate.core.findings.rules import RULES
from airflow_provider_kmigrate.core.model import Malformed, NodeFiles, PartitionMetadata, TopicMetadata
from airflow_provider_kmigrate.core.preflight import security as preflight_security
from airflow_provider_kmigrate.core.preflight.checks import PreflightFacts, findings
from airflow_provider_kmigrate.core.preflight.surroundings import Acl, LogDir, Registration, Surroundings, ZooKeeperServer
from tests.core import test_preflight as base
from tests.core import test_preflight_written as written
from tests.core.test_preflight import (
    NOW,
    Case,
    Change,
    ClusterView,
    both,
    broker_1,
    config,
    controller_files,
    controller_ids,
    healthy,
    known,
    orders,
    spec,
    started,
    zk,
)

ACL_CLASS = "kafka.security.authorizer.AclAuthorizer"
RULE = Acl("Topic", "orders", "LITERAL", "User:alice", "Read", "Allow")
RATE = ("leader.replication.throttled.rate",)
Row = tuple[str, Change, list[str]]


def around(**changes: Any) -> Change:
    return lambda view, facts: (view, replace(facts, around=replace(facts.around, **changes)))


def tree(**changes: Any) -> Change:
    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        assert facts.around.tree is not None
        return around(tree=replace(facts.around.tree, **changes))(view, facts)

    return change


def everywhere(**changes: str) -> Change:
    """Every broker's file and running configuration with other keys; an underscore stands for a dot."""

    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        configs = {i: config(i, **changes) for i in facts.configs}
        brokers = {i: replace(b, files=replace(b.files, properties=configs[i])) for i, b in view.brokers.items()}
        return started(replace(view, brokers=brokers), replace(facts, configs=configs))

    return change


def running_1(**changes: str) -> Change:
    return lambda view, facts: (view, replace(facts, configs={**facts.configs, 1: config(1, **changes)}))


def written_1(**changes: str) -> Change:
    """Broker 1's file, with which it was restarted; what is in force is as before."""
    return both(broker_1(files=NodeFiles(config(1, **changes), None, {"/data": {}})), started)


def topics(**configs: str) -> Change:
    """The topic `orders` with overrides, on both sides."""

    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        assert view.topics is not None
        named = {key.replace("_", "."): value for key, value in configs.items()}
        changed = {**view.topics[0], "orders": TopicMetadata("orders", "id", {}, named)}
        return replace(view, topics=(changed, changed)), facts

    return change


def named(name: str) -> Change:
    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        assert view.topics is not None
        more = {**view.topics[0], name: TopicMetadata(name, "id", {})}
        return replace(view, topics=(more, more)), facts

    return change


def large_topic(view: ClusterView, facts: PreflightFacts) -> Case:
    partitions = {index: PartitionMetadata((0, 1, 2), 0) for index in range(40_000)}
    large = {"large": TopicMetadata("large", "id", partitions)}
    return replace(view, topics=(large, large)), facts


def release(text: str, stated: str = "") -> Change:
    return both(around(releases=dict.fromkeys(range(3), text)), spec(kafka_release=stated))


def rules(*found: Acl) -> Change:
    return both(everywhere(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS"), tree(acls=found))


def secured(**changes: str) -> Change:
    return everywhere(**{"authorizer_class_name": ACL_CLASS, "super_users": "User:broker;User:admin", **changes})


def beside_brokers(view: ClusterView, facts: PreflightFacts) -> Case:
    """Every controller on the machine of a broker."""
    pairs = zip(facts.spec.controllers, facts.spec.brokers, strict=True)
    return spec(controllers=tuple(replace(controller, host=broker.host) for controller, broker in pairs))(view, facts)


def by_two_names(view: ClusterView, facts: PreflightFacts) -> Case:
    """One machine, which the cluster file calls 127.0.0.1 for brokers and localhost for controllers."""
    brokers = tuple(replace(broker, host="127.0.0.1") for broker in facts.spec.brokers)
    controllers = tuple(
        replace(controller, host="localhost", log_dir=f"/kraft{controller.id}") for controller in facts.spec.controllers
    )
    return spec(brokers=brokers, controllers=controllers)(view, facts)


def commanded(**changes: Any) -> Change:
    """Every node by commands, on machines of their own."""

    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        hosts = HostSpec("command", "/etc/kafka/server.properties", **changes)
        brokers, controllers = (
            tuple(replace(node, hosts=hosts) for node in nodes) for nodes in (facts.spec.brokers, facts.spec.controllers)
        )
        return view, replace(facts, spec=replace(facts.spec, brokers=brokers, controllers=controllers))

    return change


def dirs(*found: LogDir) -> Change:
    return around(log_dirs={0: (LogDir("/data"),), 1: found, 2: (LogDir("/data"),)})


def both_dirs(version: str) -> Change:
    return both(everywhere(inter_broker_protocol_version=version), both(release(version), dirs(LogDir("/a"), LogDir("/b"))))


TWO_FORMS = NodeFiles(config(1), None, {"/a": {"version": "0", "broker.id": "1"}, "/b": {"version": "1", "node.id": "1"}})
STRANGE_DIR = NodeFiles(config(1), None, {"/a": {"version": "0", "broker.id": "2"}})
KRAFT_FILE = {"process.roles": "controller", "zookeeper.connect": "zk:2181/kafka", "node.id": "3001"}

VERSIONS: list[Row] = [
    ("release 3.5", release("3.5-IV2"), ["B1c"]),
    ("release of before", release("3.3-IV3"), ["B1c"]),
    ("release without ZooKeeper", release("4.0-IV3"), ["B1c"]),
    ("release not told", release(""), ["B1c"]),
    ("3.6, patch not told", release("3.6-IV2"), ["B1c"]),
    ("3.6.1", release("3.6-IV2", "3.6.1"), ["B1c"]),
    ("3.6.2", release("3.6-IV2", "3.6.2"), ["W4"]),
    ("3.7.0", release("3.7-IV4", "3.7.0"), ["B1c"]),
    ("3.7.1", release("3.7-IV4", "3.7.1"), ["W4"]),
    ("3.7.2", release("3.7-IV4", "3.7.2"), []),
    ("3.8, patch not told", release("3.8-IV0"), ["W4"]),
    ("3.8.1", release("3.8-IV0", "3.8.1"), []),
    ("3.9.0", release("3.9-IV0", "3.9.0"), []),
    ("another release than the cluster file says", release("3.9-IV0", "3.8.1"), ["B12a"]),
    ("mixed releases", around(releases={0: "3.9-IV0", 1: "3.8-IV0", 2: "3.9-IV0"}), ["B12a", "W4"]),
    ("version behind the release", both(release("3.9-IV0"), everywhere(inter_broker_protocol_version="3.8-IV0")), ["W15"]),
    ("ensemble 3.4", around(servers=(ZooKeeperServer("zk:2181", "3.4.14"),)), ["B12b"]),
    ("ensemble silent", around(servers=(ZooKeeperServer("zk:2181"),)), ["B12b"]),
    ("ensemble not asked", around(servers=()), ["B12b"]),
    ("two directories on 3.6", both_dirs("3.6-IV2"), ["B7a", "B1c"]),
    ("two directories on 3.7", both_dirs("3.7-IV2"), ["B1c", "W5"]),
    ("two directories on 3.9", both_dirs("3.9-IV0"), []),
    ("directory failed", dirs(LogDir("/a", "KAFKA_STORAGE_ERROR")), ["B7b"]),
    ("directories not told", around(log_dirs={}), ["B7b"]),
    ("tiered storage on 3.8", both(release("3.8-IV0", "3.8.1"), everywhere(inter_broker_protocol_version="3.8", remote_log_storage_system_enable="true")), ["W16"]),
    ("tiered storage on 3.9", everywhere(remote_log_storage_system_enable="true"), []),
]  # fmt: skip

INTERNAL = {"inter_broker_listener_name": "INTERNAL", "listener_security_protocol_map": "INTERNAL:SASL_SSL,CLIENTS:SSL"}
LOGIN = 'required username="broker" password="x";'
PLAIN = {**INTERNAL, "sasl_mechanism_inter_broker_protocol": "PLAIN", "listener_name_internal_plain_sasl_jaas_config": LOGIN}
SCRAM = {
    **INTERNAL,
    "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-256",
    "listener_name_internal_scram-sha-256_sasl_jaas_config": LOGIN,
}
SASL_CONTROLLERS = spec(controller_security="SASL_SSL")

SECURITY: list[Row] = [
    ("custom authorizer", everywhere(authorizer_class_name="com.example.Rules"), ["B8a"]),
    ("custom authorizer, ready for KRaft", both(everywhere(authorizer_class_name="com.example.Rules"), spec(controller_properties={"authorizer.class.name": "com.example.KRaft"})), []),
    ("authorizer of one broker", running_1(authorizer_class_name=ACL_CLASS), ["B8b"]),
    ("rule", rules(RULE), []),
    ("rule of an unknown operation", rules(replace(RULE, operation="Fly")), ["B8c"]),
    ("rule for nobody", rules(replace(RULE, principal="alice")), ["B8c"]),
    ("malformed rule", both(rules(RULE), tree(malformed=(Malformed("/kafka-acl/Topic/x", "{"),))), ["B8c"]),
    ("malformed user", tree(malformed=(Malformed("/config/users/alice", '{"SCRAM-SHA-256":"stored_key=hunter2'),)), ["B8c"]),
    ("rule for a group", rules(replace(RULE, principal="Group:staff")), ["W14"]),
    ("rule with a pattern for a user", rules(replace(RULE, principal="User:app-*")), ["W14"]),
    ("rule for everybody", rules(replace(RULE, principal="User:*")), []),
    ("prefix that is a star", rules(replace(RULE, name="*", pattern="PREFIXED")), ["W14"]),
    ("rules without authorizer", tree(acls=(RULE,)), ["W14"]),
    ("SCRAM users", tree(scram_users=("alice",)), []),
    ("SCRAM users before 3.5-IV2", both(everywhere(inter_broker_protocol_version="3.5-IV1"), tree(scram_users=("alice",))), ["B1b", "B9a"]),
    ("tokens before 3.6-IV2", both(everywhere(inter_broker_protocol_version="3.6-IV1", delegation_token_secret_key="x"), tree(tokens=2)), ["B9b", "W15"]),
    ("tokens without key", tree(tokens=2), ["B9b"]),
    ("tokens with key", both(everywhere(delegation_token_master_key="x"), tree(tokens=2)), []),
    ("SCRAM for controllers", spec(controller_security="SASL_SSL", controller_properties={"sasl.mechanism.controller.protocol": "SCRAM-SHA-512"}), ["B9c"]),
    ("PLAIN for controllers, login not in the files", spec(controller_security="SASL_SSL", controller_properties={"sasl.mechanism.controller.protocol": "PLAIN"}), ["B9d"]),
    ("PLAIN for controllers, login as between brokers", both(everywhere(**PLAIN), SASL_CONTROLLERS), []),
    ("SCRAM between brokers, PLAIN for controllers, no login for that", both(everywhere(**SCRAM), spec(controller_security="SASL_SSL", controller_properties={"sasl.mechanism.controller.protocol": "PLAIN"})), ["B9d"]),
    ("SCRAM between brokers, PLAIN for controllers", both(everywhere(**SCRAM, sasl_mechanism_controller_protocol="PLAIN", listener_name_controller_plain_sasl_jaas_config="x"), SASL_CONTROLLERS), []),
    ("PLAIN between brokers, SCRAM for controllers in a file", both(everywhere(**PLAIN, sasl_mechanism_controller_protocol="SCRAM-SHA-256"), SASL_CONTROLLERS), ["B9c"]),
    ("SCRAM inherited by controllers", both(spec(controller_security="SASL_SSL"), everywhere(sasl_mechanism_inter_broker_protocol="SCRAM-SHA-256")), ["B9c"]),
    ("guarded znodes", tree(guarded=("sasl",)), ["B10a"]),
    ("TLS towards ZooKeeper", everywhere(zookeeper_ssl_client_enable="true"), ["B10a"]),
    ("znodes to be guarded", everywhere(zookeeper_set_acl="true"), ["B10a"]),
    ("files differ towards ZooKeeper", written_1(zookeeper_ssl_protocol="TLSv1.2"), ["B10a", "B10a"]),
    ("controller without ZooKeeper's identity", both(everywhere(zookeeper_set_acl="true"), controller_files(NodeFiles(KRAFT_FILE, None, {}, has_metadata_log=False))), ["B10a", "B10a"]),
    ("large znodes", large_topic, ["B10b"]),
    ("password without secret", tree(broker_settings={"1": ("ssl.keystore.password",)}), ["B11", "B16", "W11", "W13"]),
    ("passwords, secrets differ", both(tree(broker_settings={"1": ("listener.name.a.plain.sasl.jaas.config",)}), both(everywhere(password_encoder_secret="a"), written_1(password_encoder_secret="b"))), ["B11", "B16", "W11", "W13"]),
    ("password with secret", both(tree(broker_settings={"1": ("ssl.key.password",)}), everywhere(password_encoder_secret="a")), ["B16", "W11", "W13"]),
    ("password with secret, in the file too", both(tree(broker_settings={"1": ("ssl.key.password",)}), everywhere(password_encoder_secret="a", ssl_key_password="b")), ["W11", "W13"]),
    ("password written into the file after it was set", both(both(everywhere(password_encoder_secret="a"), tree(broker_settings={"1": ("ssl.key.password",)})), broker_1(files=NodeFiles(config(1, password_encoder_secret="a", ssl_key_password="b"), None, {"/data": {}}))), ["W11", "W13"]),
    ("keystore of a listener", tree(broker_settings={"1": ("listener.name.tls.ssl.keystore.location",)}), ["B16", "W13"]),
    ("keystore of all brokers", both(tree(broker_settings={"<default>": ("ssl.truststore.location",)}), written_1(ssl_truststore_location="/t")), ["B16", "W13"]),
    ("keystore that the file has, too", both(tree(broker_settings={"1": ("listener.name.tls.ssl.keystore.location",)}), everywhere(listener_name_tls_ssl_keystore_location="/k")), ["W13"]),
    ("keystore of a listener that the file has for all", both(tree(broker_settings={"1": ("listener.name.tls.ssl.keystore.location",)}), everywhere(ssl_keystore_location="/k")), ["W13"]),
    ("truststore where the file has a keystore", both(tree(broker_settings={"1": ("listener.name.tls.ssl.truststore.location",)}), everywhere(ssl_keystore_location="/k")), ["B16", "W13"]),
    ("keystore of a listener where the file has that of another", both(tree(broker_settings={"1": ("listener.name.tls.ssl.keystore.location",)}), everywhere(listener_name_b_ssl_keystore_location="/k")), ["B16", "W13"]),
    ("login of a listener, one for all does not count", both(tree(broker_settings={"1": ("listener.name.a.plain.sasl.jaas.config",)}), everywhere(password_encoder_secret="a", sasl_jaas_config="b")), ["B16", "W11", "W13"]),
    ("mechanisms of a listener, others in the file for all", both(tree(broker_settings={"0": ("listener.name.a.sasl.enabled.mechanisms",)}), everywhere(sasl_enabled_mechanisms="PLAIN")), ["B16", "W13"]),
    ("mechanisms of a listener", tree(broker_settings={"0": ("listener.name.a.sasl.enabled.mechanisms",)}), ["B16", "W13"]),
    ("connections of a listener", tree(broker_settings={"0": ("listener.name.a.max.connections",)}), ["W13"]),
    ("listener opened", both(tree(broker_settings={"1": ("listeners",)}), running_1(listeners="A://:1,B://:2")), ["B16", "W13"]),
    ("listener opened, and in the file", both(tree(broker_settings={"1": ("listeners",)}), everywhere(listeners="A://:1,B://:2")), ["W13"]),
    ("protocols of listeners", both(tree(broker_settings={"1": ("listener.security.protocol.map",)}), everywhere(listener_security_protocol_map="A:SSL")), ["B16", "W13"]),
    ("custom principals", everywhere(principal_builder_class="com.example.Names"), ["B13a"]),
    ("Kafka's own principals", everywhere(principal_builder_class="org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"), []),
    ("no super users", secured(super_users=""), ["B13b"] * 3),
    ("brokers no super users", secured(), ["B13b"] * 3),
    ("everybody allowed, but not before the log is loaded", secured(super_users="", allow_everyone_if_no_acl_found="true"), ["B13c"]),
    ("everybody allowed, one controller", both(secured(super_users="", allow_everyone_if_no_acl_found="true"), controller_ids(3000)), ["W3"]),
    ("everybody allowed, SASL", both(secured(**PLAIN, super_users="", allow_everyone_if_no_acl_found="true"), SASL_CONTROLLERS), ["B13c"]),
    ("anonymous brokers among super users", secured(super_users="User:ANONYMOUS"), []),
    ("TLS brokers that ask for no certificate", secured(security_inter_broker_protocol="SSL"), ["B13b"] * 3),
    ("TLS brokers, name not told", both(secured(security_inter_broker_protocol="SSL", ssl_client_auth="required"), spec(controller_security="SSL")), ["B13b"] * 3),
    ("SASL brokers among super users", both(secured(**PLAIN), SASL_CONTROLLERS), []),
    ("SASL brokers, controllers in the clear", secured(**PLAIN), ["B13c"]),
    ("SASL brokers, controllers in the clear, nobody a super user there", both(secured(**PLAIN), spec(controller_properties={"super.users": "User:broker;User:ANONYMOUS"})), []),
    ("SASL brokers, TLS controllers that ask for no certificate", both(secured(**PLAIN), spec(controller_security="SSL")), ["B13c"]),
    ("SASL brokers, TLS controllers, name not told", both(secured(**PLAIN, ssl_client_auth="required"), spec(controller_security="SSL")), ["B13c"]),
    ("SASL brokers, controllers with another authorizer", both(secured(**PLAIN), spec(controller_properties={"authorizer.class.name": "com.example.KRaft"})), []),
    ("super users by reference", secured(super_users="${env:SUPER_USERS}"), ["B13b"] * 3),
    ("SASL brokers not among them", both(secured(**PLAIN, super_users="User:admin"), SASL_CONTROLLERS), ["B13b"] * 3),
    ("Kerberos brokers", both(secured(security_inter_broker_protocol="SASL_PLAINTEXT"), SASL_CONTROLLERS), ["B13b"] * 3 + ["B9d"]),
    ("rules in another ZooKeeper", both(rules(), everywhere(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", authorizer_zookeeper_url="acls:2181")), ["B8d"] * 3),
    ("rules in another chroot", everywhere(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", authorizer_zookeeper_url="zk:2181/acls"), ["B8d"] * 3),
    ("rules in the same chroot of servers with other names", everywhere(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", authorizer_zookeeper_url="10.0.0.1:2181/kafka"), ["B8d"] * 3),
    ("rules in the same ZooKeeper, said twice", everywhere(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", authorizer_zookeeper_url="zk2,ZK/kafka"), []),
    ("rules at a reference", everywhere(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", authorizer_zookeeper_url="${env:ACLS}"), ["B8d"] * 3),
    ("rules of nobody in another ZooKeeper", everywhere(authorizer_zookeeper_url="acls:2181"), []),
    ("ensemble on each broker's machine", both(commanded(kill_after=600.0), everywhere(zookeeper_connect="localhost:2181/kafka")), ["B17"]),
    ("first server on each broker's machine", both(commanded(kill_after=600.0), everywhere(zookeeper_connect="[::1]:2181,zk2:2181/kafka")), ["B17"]),
    ("all servers on each broker's machine", both(commanded(kill_after=600.0), everywhere(zookeeper_connect="localhost:2181, 127.0.0.1:2182/kafka")), ["B17"]),
    ("ensemble on the machines of controllers, too", both(both(commanded(kill_after=600.0), everywhere(zookeeper_connect="127.0.0.1:2181/kafka")), beside_brokers), []),
    ("all ports of containers on this machine", both(both(commanded(kill_after=600.0), everywhere(zookeeper_connect="127.0.0.1:2181/kafka")), by_two_names), []),
    ("ensemble on this machine, and all nodes", everywhere(zookeeper_connect="localhost:2181/kafka"), []),
]  # fmt: skip

ALIKE: list[Row] = [
    ("super users of one broker", both(secured(super_users="User:ANONYMOUS"), written_1(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS;User:x")), ["B18"]),
    ("super users in another order", both(secured(super_users="User:x;User:ANONYMOUS"), written_1(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS; User:x")), []),
    ("one broker in the middle of a change of its listener", running_1(security_inter_broker_protocol="SSL"), ["B18"]),
    ("one listener by two names", both(everywhere(inter_broker_listener_name="PLAINTEXT"), running_1(security_inter_broker_protocol="PLAINTEXT")), []),
    ("unclean elections of one broker", both(everywhere(unclean_leader_election_enable="false"), running_1(unclean_leader_election_enable="true")), ["B18"]),
    ("unclean elections, the default written out", running_1(unclean_leader_election_enable="false"), []),
    ("everybody, the default written out", both(secured(super_users="User:ANONYMOUS"), written_1(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", allow_everyone_if_no_acl_found="False")), []),
    ("everybody, on one broker", both(secured(super_users="User:ANONYMOUS"), written_1(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", allow_everyone_if_no_acl_found="true")), ["B18"]),
    ("copies of new topics", both(everywhere(default_replication_factor="3"), running_1(default_replication_factor="2")), ["W20"]),
    ("copies of new topics, decided for controllers", both(spec(controller_properties={"min.insync.replicas": "2"}), both(everywhere(min_insync_replicas="2"), running_1(min_insync_replicas="1"))), []),
    ("super users that nobody asks", written_1(super_users="User:x"), []),
    ("a mechanism that no listener uses", both(everywhere(sasl_mechanism_inter_broker_protocol="GSSAPI"), running_1(sasl_mechanism_inter_broker_protocol="PLAIN")), []),
    ("two mechanisms between brokers", both(everywhere(**PLAIN), running_1(**{**PLAIN, "sasl_mechanism_inter_broker_protocol": "GSSAPI"})), ["B18"]),
    ("told by some only", running_1(num_partitions="3"), []),
]  # fmt: skip

ACTORS: list[Row] = [
    ("tree not read", around(tree=None), ["B0"]),
    ("no features", tree(has_feature=False), ["B6c"]),
    ("controller ids in the range of given ones", both(controller_ids(1001, 1002, 1003), tree(generated_ids=2)), ["B2b"]),
    ("reassignment by the API", around(moving=("orders-0",)), ["B4d"]),
    ("reassignments not told", around(moving=None), ["B4d"]),
    ("reassignment in ZooKeeper alone", both(zk(reassigning=True), around(moving=None)), ["B4d"]),
    ("throttle in force", both(topics(leader_replication_throttled_replicas="*"), tree(broker_settings={"1": RATE})), ["B14"]),
    ("throttle of a topic", topics(follower_replication_throttled_replicas="0:1"), ["W6"]),
    ("rate of a broker", tree(broker_settings={"<default>": RATE}), ["W6"]),
    ("dynamic setting", tree(broker_settings={"<default>": ("log.cleaner.threads",)}), ["W13"]),
    ("unclean elections", topics(unclean_leader_election_enable="true"), ["W13"]),
    ("policy", everywhere(alter_config_policy_class_name="com.example.Policy"), ["W12"]),
    ("Cruise Control", named("__CruiseControlMetrics"), ["W9"]),
    ("CMAK", tree(cmak=True), ["W9"]),
    ("CMAK not told", tree(cmak=None), ["W9"]),
    ("settings changed now", tree(changed=(("settings of topics/orders", NOW - 60),)), ["W9"]),
    ("settings changed long ago", tree(changed=(("settings of topics/orders", NOW - 3600),)), []),
    ("old groups", zk(live_groups=("legacy",)), ["W17"]),
    ("clock of a broker", tree(registrations={i: Registration(NOW - 500 + 60 * (i == 1), NOW - 500) for i in range(3)}), ["W8"]),
    ("clock of ZooKeeper", tree(latest=NOW + 30), ["W8"]),
    ("broker's time not told", tree(registrations={i: Registration(NOW, NOW) for i in range(2)}), ["W8"]),
    ("nodes on other machines", around(one_machine=False), ["W8"]),
    ("our patience too short", commanded(stop_timeout=60.0, kill_after=400.0), ["W7"]),
    ("nodes killed too early", commanded(kill_after=90.0), ["W7"]),
    ("when nodes are killed not told", commanded(), ["W7"]),
    ("nodes killed late enough", commanded(kill_after=600.0), []),
    ("meta.properties of version 1", broker_1(files=TWO_FORMS), ["W10"]),
    ("directory of another broker", broker_1(files=STRANGE_DIR), ["B2d"]),
    ("directory of a broker given to a controller", controller_files(NodeFiles(meta={"/d": {"broker.id": "1"}}, has_metadata_log=False)), ["B2f"]),
    ("directories not read", broker_1(files=NodeFiles(config(1))), ["B0"]),
]  # fmt: skip

ROWS = [*VERSIONS, *SECURITY, *ALIKE, *ACTORS]


def codes(case: Case) -> list[str]:
    return [finding.code for finding in findings(*case)]


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_one_defect_gives_its_code(change: Change, expected: list[str]) -> None:
    assert codes(change(*healthy())) == expected


def test_every_code_of_preflight_has_a_test() -> None:
    tested = {code for _, _, expected in (*ROWS, *base.DEFECTS, *written.ROWS) for code in expected} | {"B1b"}
    assert RULES.keys() - tested == set()


UNKNOWN: list[tuple[str, Change]] = [
    ("B1c", release("")),
    ("B1c", release("3.6-IV2")),
    ("W4", release("3.8-IV0")),
    ("B4d", around(moving=None)),
    ("B7b", around(log_dirs={})),
    ("B10a", tree(guarded=("sasl",))),
    ("B10b", large_topic),
    ("B12b", around(servers=())),
    ("B13a", everywhere(principal_builder_class="com.example.Names")),
    ("B9d", spec(controller_security="SASL_SSL")),
    ("B13c", both(secured(**PLAIN, ssl_client_auth="required"), spec(controller_security="SSL"))),
    ("B15", around(taken={})),
    ("W7", commanded()),
    ("W8", around(one_machine=False)),
    ("W9", tree(cmak=None)),
]


@pytest.mark.parametrize(("code", "change"), UNKNOWN)
def test_what_cannot_be_seen_is_said_and_says_how_to_find_out(code: str, change: Change) -> None:
    (found,) = findings(*change(*healthy()))
    assert (found.code, found.severity) == (code, Severity.UNKNOWN)
    assert found.reason.remedy == RULES[code].ask
    assert found.reason.remedy != ""


@given(
    st.sets(st.sampled_from([field.name for field in fields(Surroundings) if field.name not in {"unread", "now", "one_machine"}]))
)
def test_nothing_unread_passes_silently(unread: set[str]) -> None:
    empty = Surroundings()
    found = findings(*around(**{name: getattr(empty, name) for name in unread})(*healthy()))
    assert len({finding.code for finding in found}) == len(unread)
    assert {finding.severity for finding in found} <= {Severity.UNKNOWN, Severity.BLOCK}


@given(st.lists(st.sampled_from([row[1] for row in ROWS if row[0] != "tree not read"]), max_size=3))
def test_findings_come_by_gravity_and_each_is_complete(changes: list[Callable[..., Case]]) -> None:
    case = healthy()
    for change in changes:
        try:
            case = change(*case)
        except AssertionError:  # one of them took away what another one changes
            return
    found = findings(*case)
    order = [list(Severity).index(finding.severity) for finding in found]
    assert order == sorted(order)
    assert all(finding.reason.why and finding.reason.remedy and finding.source for finding in found)


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
    (found,) = findings(*both(commanded(kill_after=600.0), everywhere(zookeeper_connect=connect))(*healthy()))
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


@pytest.mark.parametrize("change", [row[1] for row in SECURITY], ids=[row[0] for row in SECURITY])
def test_no_finding_holds_a_secret(change: Change) -> None:
    def keep(properties: Mapping[str, str]) -> dict[str, str]:
        return {**properties, **{key.replace("_", "."): value for key, value in SECRETS.items()}}

    view, facts = change(*healthy())
    brokers = {i: replace(b, files=replace(b.files, properties=keep(b.files.properties or {}))) for i, b in view.brokers.items()}
    assert "hunter2" not in "".join(map(str, findings(replace(view, brokers=brokers), facts)))


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("ssl.keystore.password", True),
        ("listener.name.internal.ssl.key.password", True),
        ("listener.name.a.plain.sasl.jaas.config", True),
        ("ssl.keystore.key", True),
        ("ssl.keystore.location", False),
        ("log.cleaner.threads", False),
    ],
)
def test_which_dynamic_settings_are_secrets(key: str, *, secret: bool) -> None:
    assert preflight_security.is_secret(key) is secret


def test_a_topic_with_one_replica_is_told_beside_all_others() -> None:
    found = codes(both(orders(replicas=(0,), isr=(0,)), known(around=Surroundings()))(*healthy()))
    assert found[0] == "B0"
    assert "W2" in found
