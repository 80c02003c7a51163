"""Files of every stage come from the original; the expected ones were accepted by Kafka 3.9.2's own KafkaConfig."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, HostSpec, NodeRole, NodeSpec, Policy
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, Rule, find_problems, find_rule, stage_of
from airflow_provider_kmigrate.core.node_files.properties import (
    FAST_FAILOVER,
    RenderFacts,
    edit_properties,
    parse_properties,
    render_broker_file,
    render_controller_file,
)
from airflow_provider_kmigrate.exceptions import Refused

HOSTS = HostSpec("agent", "/etc/kafka/server.properties")
NODE = NodeSpec(3000, NodeRole.CONTROLLER, "ctl0", 9093, HOSTS, log_dir="/var/kraft")
FACTS = RenderFacts("3000@ctl0:9093", "3.9-IV0")
BROKER_STAGES = (FileStage.ZOOKEEPER, FileStage.MIGRATION, FileStage.KRAFT)
CONTROLLER_STAGES = (FileStage.CONTROLLER_MIGRATION, FileStage.CONTROLLER_FINAL)

PLAIN = """\
# Broker of rack a
broker.id=1
listeners = INT://kafka1:9092,EXT://kafka1:9094
listener.security.protocol.map=INT:PLAINTEXT,EXT:PLAINTEXT
inter.broker.listener.name=INT
zookeeper.connect=zk1:2181,\\
   zk2:2181/kafka
zookeeper.session.timeout.ms=18000
inter.broker.protocol.version=3.9
log.dirs=/data
num.partitions=12
log.retention.hours=48
"""

SASL = """\
broker.id=1
listeners=L1://kafka1:9092
listener.security.protocol.map=L1:SASL_PLAINTEXT
inter.broker.listener.name=L1
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.l1.plain.sasl.jaas.config=PlainLoginModule required;
listener.name.ext.plain.sasl.jaas.config=PlainLoginModule required user_client="x";
zookeeper.connect=zk1:2181/kafka
zookeeper.set.acl=true
authorizer.class.name=kafka.security.authorizer.AclAuthorizer
super.users=User:broker;User:controller
password.encoder.secret=s
delegation.token.secret.key=d
control.plane.listener.name=CP
log.dirs=/data
"""


def test_a_broker_in_migration_mode_keeps_its_file_and_learns_of_the_controllers() -> None:
    rendered = render_broker_file(PLAIN, FileStage.MIGRATION, FACTS)

    same, added = rendered.split("zookeeper.metadata.migration.enable=true\n")
    assert same == PLAIN.replace("EXT:PLAINTEXT", "EXT:PLAINTEXT,CONTROLLER:PLAINTEXT")
    assert added == "controller.quorum.voters=3000@ctl0:9093\ncontroller.listener.names=CONTROLLER\n"


def test_a_kraft_broker_has_its_id_under_the_new_name_and_nothing_of_zookeeper() -> None:
    assert render_broker_file(PLAIN, FileStage.KRAFT, FACTS) == (
        "# Broker of rack a\n"
        "listeners = INT://kafka1:9092,EXT://kafka1:9094\n"
        "listener.security.protocol.map=INT:PLAINTEXT,EXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        "inter.broker.listener.name=INT\n"
        "log.dirs=/data\n"
        "num.partitions=12\n"
        "log.retention.hours=48\n"
        "process.roles=broker\n"
        "node.id=1\n"
        "controller.quorum.voters=3000@ctl0:9093\n"
        "controller.listener.names=CONTROLLER\n"
    )


def test_a_controller_inherits_what_it_shares_with_the_brokers_and_no_more() -> None:
    properties = parse_properties(render_controller_file(PLAIN, NODE, FileStage.CONTROLLER_MIGRATION, FACTS))

    assert properties == {
        "process.roles": "controller",
        "node.id": "3000",
        "listeners": "CONTROLLER://ctl0:9093",
        "inter.broker.listener.name": "INT",
        "metadata.log.dir": "/var/kraft",
        "log.dirs": "/var/kraft",
        "zookeeper.connect": "zk1:2181,zk2:2181/kafka",
        "zookeeper.metadata.migration.enable": "true",
        "zookeeper.session.timeout.ms": "18000",
        "num.partitions": "12",
        "log.retention.hours": "48",
        "controller.quorum.voters": "3000@ctl0:9093",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "INT:PLAINTEXT,EXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }


@pytest.mark.parametrize(("value", "during"), [("0", None), ("5000", None), ("${env:IDLE}", None), ("800", "800")])
def test_a_brokers_idle_interval_that_looks_like_a_stalled_dual_write_comes_after_the_migration(
    value: str, during: str | None
) -> None:
    """A broker in ZooKeeper mode ignores the key, so that any value may be in its file."""
    original = edit_properties(PLAIN, {"metadata.max.idle.interval.ms": value, "config.providers": "env"})
    before, after = (parse_properties(render_controller_file(original, NODE, stage, FACTS)) for stage in CONTROLLER_STAGES)
    assert before.get("metadata.max.idle.interval.ms") == during
    assert after["metadata.max.idle.interval.ms"] == value


def test_a_final_controller_differs_by_zookeeper_only() -> None:
    before, after = (parse_properties(render_controller_file(PLAIN, NODE, stage, FACTS)) for stage in CONTROLLER_STAGES)
    assert after == {key: value for key, value in before.items() if not key.startswith("zookeeper.")}


def test_a_secured_cluster_keeps_its_security_in_every_stage() -> None:
    facts = RenderFacts("3000@ctl0:9093", "3.9-IV0", controller_security="SASL_PLAINTEXT")
    kraft = parse_properties(render_broker_file(SASL, FileStage.KRAFT, facts))
    copying, final = (parse_properties(render_controller_file(SASL, NODE, stage, facts)) for stage in CONTROLLER_STAGES)

    for properties in (kraft, copying, final):
        assert properties["authorizer.class.name"] == "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        assert properties["sasl.mechanism.inter.broker.protocol"] == "PLAIN"  # without it a final controller exits (measured)
        assert properties["sasl.mechanism.controller.protocol"] == "PLAIN"
        assert properties["listener.name.controller.plain.sasl.jaas.config"] == "PlainLoginModule required;"
        assert properties["super.users"] == "User:broker;User:controller"
        assert properties["delegation.token.secret.key"] == "d"
    assert "password.encoder.secret" in copying
    assert "password.encoder.secret" not in kraft
    assert "listener.name.ext.plain.sasl.jaas.config" not in copying
    assert "control.plane.listener.name" not in kraft | copying | final
    assert parse_properties(render_broker_file(SASL, FileStage.MIGRATION, facts))["control.plane.listener.name"] == "CP"
    assert copying["zookeeper.set.acl"] == "true"


def test_a_file_without_a_listener_map_or_version_gets_both_spelled_out() -> None:
    properties = parse_properties(render_broker_file("node.id=2\nzookeeper.connect=zk:2181", FileStage.MIGRATION, FACTS))

    assert properties["listener.security.protocol.map"].startswith("PLAINTEXT:PLAINTEXT,SSL:SSL")
    assert properties["inter.broker.protocol.version"] == "3.9-IV0"
    assert properties["node.id"] == "2"


def test_fast_failover_serves_both_rolls_and_leaves_leader_balancing_as_it_was() -> None:
    facts = RenderFacts("3000@ctl0:9093", "3.9-IV0", fast_failover=True)
    original = PLAIN + "replica.fetch.wait.max.ms=300\n"
    rendered = {stage: parse_properties(render_broker_file(original, stage, facts)) for stage in BROKER_STAGES}

    assert rendered[FileStage.MIGRATION].items() >= FAST_FAILOVER[FileStage.MIGRATION].items()
    assert rendered[FileStage.KRAFT].items() >= FAST_FAILOVER[FileStage.KRAFT].items()
    assert "auto.leader.rebalance.enable" not in rendered[FileStage.KRAFT]
    assert rendered[FileStage.ZOOKEEPER]["replica.fetch.wait.max.ms"] == "300"
    copying, final = (parse_properties(render_controller_file(original, NODE, stage, facts)) for stage in CONTROLLER_STAGES)
    assert copying["auto.leader.rebalance.enable"] == "false"
    assert "auto.leader.rebalance.enable" not in final


def test_the_cluster_file_may_add_keys_but_not_take_the_flag_away() -> None:
    extra = {
        "zookeeper.metadata.migration.enable": "false",
        "zookeeper.ssl.keystore.location": "/ctl.jks",
        "listeners": "CONTROLLER://0.0.0.0:9093",
        "metadata.log.segment.bytes": "1048576",
        "num.partitions": "3",
        "node.id": "9",
    }
    facts = RenderFacts("3000@ctl0:9093", "3.9-IV0", controller_properties=extra)
    copying, final = (parse_properties(render_controller_file(PLAIN, NODE, stage, facts)) for stage in CONTROLLER_STAGES)

    assert copying["zookeeper.metadata.migration.enable"] == "true"
    assert copying["zookeeper.ssl.keystore.location"] == "/ctl.jks"
    assert copying["listeners"] == "CONTROLLER://0.0.0.0:9093"
    assert copying["node.id"] == "3000"
    assert (final["metadata.log.segment.bytes"], final["num.partitions"]) == ("1048576", "3")
    assert not any(key.startswith("zookeeper.") for key in final)


@pytest.mark.parametrize(
    ("original", "code"),
    [
        (PLAIN.replace("broker.id=1\n", ""), "C04"),
        (PLAIN.replace("3.9", "3.8"), "C04"),
        (PLAIN.replace("EXT", "CONTROLLER"), "C04"),
        (render_broker_file(PLAIN, FileStage.MIGRATION, FACTS), "O06"),
    ],
)
def test_what_cannot_be_rendered_is_refused_with_its_reason(original: str, code: str) -> None:
    with pytest.raises(Refused) as refused:
        render_broker_file(original, FileStage.KRAFT, FACTS)
    assert [reason.code for reason in refused.value.reasons] == [code]


@pytest.mark.parametrize("stage", CONTROLLER_STAGES)
@pytest.mark.parametrize("original", [PLAIN.replace("3.9", "3.8"), render_broker_file(PLAIN, FileStage.MIGRATION, FACTS)])
def test_no_controller_inherits_from_what_no_broker_could_migrate_with(original: str, stage: FileStage) -> None:
    with pytest.raises(Refused) as refused:
        render_controller_file(original, NODE, stage, FACTS)
    assert {reason.code for reason in refused.value.reasons} <= {"C04", "O06"}


def test_an_unknown_version_is_not_left_out() -> None:
    original, facts = PLAIN.replace("inter.broker.protocol.version=3.9\n", ""), RenderFacts("3000@ctl0:9093", "")
    with pytest.raises(Refused) as refused:
        render_broker_file(original, FileStage.MIGRATION, facts)
    assert [reason.code for reason in refused.value.reasons] == ["C04"]


def test_a_rollback_is_allowed_even_with_problems_in_the_original() -> None:
    original = PLAIN.replace("3.9", "3.8")
    assert render_broker_file(original, FileStage.ZOOKEEPER, FACTS) == original


def test_a_file_that_was_rendered_is_not_taken_for_the_original() -> None:
    rendered = render_broker_file(PLAIN, FileStage.MIGRATION, FACTS)
    with pytest.raises(Refused):
        render_broker_file(rendered, FileStage.ZOOKEEPER, FACTS)


def test_a_controller_without_a_directory_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        render_controller_file(PLAIN, NodeSpec(3000, NodeRole.CONTROLLER, "ctl0", 9093, HOSTS), FileStage.CONTROLLER_FINAL, FACTS)
    assert {reason.code for reason in refused.value.reasons} == {"C04"}


def test_roles_are_not_mixed_up() -> None:
    with pytest.raises(ValueError, match="broker"):
        render_broker_file(PLAIN, FileStage.CONTROLLER_FINAL, FACTS)
    with pytest.raises(ValueError, match="controller"):
        render_controller_file(PLAIN, NODE, FileStage.KRAFT, FACTS)


PROVIDERS = """\
config.providers=file
config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
ssl.keystore.password=${file:/etc/kafka/secrets:ks}
"""


def test_references_of_a_controller_come_with_what_resolves_them() -> None:
    properties = parse_properties(render_controller_file(PLAIN + PROVIDERS, NODE, FileStage.CONTROLLER_FINAL, FACTS))
    assert properties["config.providers"] == "file"
    assert properties["config.providers.file.class"].endswith("FileConfigProvider")


def test_a_reference_that_nothing_resolves_is_no_password() -> None:
    original = PLAIN + PROVIDERS.replace("config.providers=file\n", "config.providers=vault\n")
    with pytest.raises(Refused) as refused:
        render_controller_file(original, NODE, FileStage.CONTROLLER_FINAL, FACTS)
    assert [reason.code for reason in refused.value.reasons] == ["C10"]
    render_broker_file(original, FileStage.KRAFT, FACTS)


def test_what_brokers_say_of_the_controllers_listener_is_the_controllers() -> None:
    facts = RenderFacts("3000@ctl0:9093", "3.9-IV0", controller_security="SSL")
    own = "listener.name.int.ssl.keystore.location=/int.jks\nlistener.name.int.ssl.protocol=TLSv1.3\n"
    original = PLAIN + own + "listener.name.controller.ssl.keystore.location=/ctl.jks\n"
    for stage in CONTROLLER_STAGES:
        properties = parse_properties(render_controller_file(original, NODE, stage, facts))
        assert properties["listener.name.controller.ssl.keystore.location"] == "/ctl.jks"
        assert properties["listener.name.controller.ssl.protocol"] == "TLSv1.3"


def test_a_comma_at_the_end_of_the_listener_map_is_no_listener() -> None:
    """Kafka 3.9.2 drops it there, and does not start with `A:SSL,,B:SSL` (seen)."""
    original = PLAIN.replace("EXT:PLAINTEXT\n", "EXT:PLAINTEXT ,\n")
    properties = parse_properties(render_broker_file(original, FileStage.KRAFT, FACTS))
    assert properties["listener.security.protocol.map"] == "INT:PLAINTEXT,EXT:PLAINTEXT,CONTROLLER:PLAINTEXT"


def test_names_of_listeners_are_in_upper_case() -> None:
    """`controller.listener.names=controller` beside `listeners=controller://` is refused by Kafka 3.9.2 (seen)."""
    facts = RenderFacts("3000@ctl0:9093", "3.9-IV0", "controller")
    properties = parse_properties(render_controller_file(PLAIN, NODE, FileStage.CONTROLLER_FINAL, facts))
    assert (properties["listeners"], properties["controller.listener.names"]) == ("CONTROLLER://ctl0:9093", "CONTROLLER")
    with pytest.raises(Refused) as refused:
        render_broker_file(PLAIN.replace("EXT", "controller"), FileStage.KRAFT, facts)
    assert [reason.code for reason in refused.value.reasons] == ["C04"]


def test_controllers_take_the_mechanism_by_which_nodes_log_in() -> None:
    scram = SASL.replace("PLAIN,SCRAM-SHA-256", "SCRAM-SHA-256")
    extra = {"sasl.mechanism.controller.protocol": "PLAIN"}
    facts = RenderFacts("3000@ctl0:9093", "3.9-IV0", controller_security="SASL_SSL", controller_properties=extra)
    key = "listener.name.controller.sasl.enabled.mechanisms"

    assert parse_properties(render_controller_file(scram, NODE, FileStage.CONTROLLER_FINAL, facts))[key] == "PLAIN"
    assert key not in parse_properties(render_controller_file(SASL, NODE, FileStage.CONTROLLER_FINAL, facts))
    assert key not in parse_properties(render_broker_file(scram, FileStage.KRAFT, facts))


RBAC = (
    PLAIN
    + """\
authorizer.class.name=com.example.ServerAuthorizer
example.authorizer.access.rule.providers=EXAMPLE,ZK_ACL
super.users=User:admin
"""
)
FOR_KRAFT = {
    "authorizer.class.name": "com.example.KRaftAuthorizer",
    "example.authorizer.access.rule.providers": "EXAMPLE,KRAFT_ACL",
    "super.users": "User:admin;User:ANONYMOUS",
    "num.io.threads": "8",
}


def test_brokers_in_kraft_mode_have_the_controllers_settings_of_an_authorizer_that_is_not_kafkas() -> None:
    facts = RenderFacts("3000@ctl0:9093", "3.9-IV0", controller_properties=FOR_KRAFT)
    broker = parse_properties(render_broker_file(RBAC, FileStage.KRAFT, facts))
    controller = parse_properties(render_controller_file(RBAC, NODE, FileStage.CONTROLLER_FINAL, facts))
    assert {key: broker[key] for key in FOR_KRAFT if "authorizer" in key} == {
        key: FOR_KRAFT[key] for key in FOR_KRAFT if "authorizer" in key
    }
    assert (broker["super.users"], "num.io.threads" in broker) == ("User:admin", False)
    assert {key: controller[key] for key in FOR_KRAFT} == FOR_KRAFT
    migrating = parse_properties(render_broker_file(RBAC, FileStage.MIGRATION, facts))
    assert migrating["authorizer.class.name"] == "com.example.ServerAuthorizer"
    assert "authorizer.class.name" not in parse_properties(render_broker_file(PLAIN, FileStage.KRAFT, facts))


def test_controllers_of_tiered_storage_know_of_it() -> None:
    properties = parse_properties(
        render_controller_file(PLAIN + "remote.log.storage.system.enable=true\n", NODE, CONTROLLER_STAGES[0], FACTS)
    )
    assert properties["remote.log.storage.system.enable"] == "true"


def test_facts_come_from_the_cluster_file() -> None:
    secret = {"listener.name.controller.plain.sasl.jaas.config": "geheim"}
    spec = ClusterSpec(
        "c",
        "id",
        "zk",
        "kafka",
        (),
        (NODE,),
        Policy(fast_failover=True),
        controller_properties=secret,
        controller_security="SASL_SSL",
    )
    facts = RenderFacts.of(spec, "3.9-IV0")

    assert facts == RenderFacts("3000@ctl0:9093", "3.9-IV0", "CONTROLLER", "SASL_SSL", secret, fast_failover=True)
    assert "geheim" not in repr(facts)


OTHER_KEYS = st.sampled_from(
    ["log.retention.hours", "zookeeper.ssl.client.enable", "ssl.key.password", "x", "num.partitions", "broker.rack"]
)


@settings(max_examples=60, deadline=None)
@given(st.sets(OTHER_KEYS), st.sampled_from(BROKER_STAGES), st.booleans())
def test_every_rendering_obeys_the_table(others: set[str], stage: FileStage, fast: bool) -> None:
    original = PLAIN + "".join(f"{key}=v\n" for key in sorted(others))
    facts = RenderFacts("3000@ctl0:9093", "3.9-IV0", fast_failover=fast)

    before, after = parse_properties(original), parse_properties(render_broker_file(original, stage, facts))

    assert stage_of(after) is stage
    assert find_problems(after, stage, chroot="/kafka", metadata_version="3.9") == ()
    kept = {key for key in before if find_rule(key, stage) is Rule.SAME} - FAST_FAILOVER[FileStage.MIGRATION].keys()
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}


@pytest.mark.parametrize(
    ("connect", "host", "broker_hosts", "written"),
    [
        ("localhost:2181/kafka", "ctl0", ("kafka0", "kafka1"), "kafka0:2181/kafka"),
        ("localhost", "ctl0", ("kafka0",), "kafka0:2181"),
        ("[::1]:2182, 127.0.0.1,zk2:2181/a/b", "ctl0", ("kafka0",), "kafka0:2182,kafka0:2181,zk2:2181/a/b"),
        ("localhost:2181", "KAFKA1.", ("kafka0", "kafka1"), "localhost:2181"),
        ("localhost:2181", "ctl0", ("localhost", "kafka1"), "localhost:2181"),
        ("localhost:2181", "127.0.0.1", ("kafka0",), "localhost:2181"),
        ("${env:ZOOKEEPER}", "ctl0", ("kafka0",), "${env:ZOOKEEPER}"),
        ("zk1:2181,\n zk2:2181/kafka", "ctl0", ("kafka0",), "zk1:2181,zk2:2181/kafka"),
        ("localhost:2181", "ctl0", (), "localhost:2181"),
    ],
)
def test_a_controller_elsewhere_gets_the_name_of_the_brokers_own_machine(
    connect: str, host: str, broker_hosts: tuple[str, ...], written: str
) -> None:
    node = replace(NODE, host=host)
    facts = replace(FACTS, broker_hosts=broker_hosts)
    original = PLAIN.replace("zk1:2181,\\\n   zk2:2181/kafka", connect.replace("\n", "\\\n")) + "config.providers=env\n"
    text = render_controller_file(original, node, FileStage.CONTROLLER_MIGRATION, facts)
    assert parse_properties(text)["zookeeper.connect"] == written


class TestStageProperties:
    """What the cluster file has for one stage alone."""

    RANGER: ClassVar = {
        FileStage.MIGRATION: {"ranger.source": "both"},
        FileStage.KRAFT: {"authorizer.class.name": "com.example.KRaftRules", "metric.reporters": ""},
        FileStage.CONTROLLER_MIGRATION: {"authorizer.class.name": "com.example.KRaftRules", "ranger.source": "both"},
        FileStage.CONTROLLER_FINAL: {"authorizer.class.name": "com.example.KRaftRules", "num.io.threads": "3"},
    }
    OLD = f"{PLAIN}authorizer.class.name=com.example.ZooKeeperRules\nmetric.reporters=com.example.Reporter\nranger.source=zookeeper\n"
    KEYS = ("authorizer.class.name", "metric.reporters", "ranger.source", "num.io.threads")

    @pytest.mark.parametrize(
        ("stage", "expected"),
        [
            (FileStage.ZOOKEEPER, ("com.example.ZooKeeperRules", "com.example.Reporter", "zookeeper", None)),
            (FileStage.MIGRATION, ("com.example.ZooKeeperRules", "com.example.Reporter", "both", None)),
            (FileStage.KRAFT, ("com.example.KRaftRules", "", "zookeeper", None)),
            (FileStage.CONTROLLER_MIGRATION, ("com.example.KRaftRules", "com.example.Reporter", "both", "8")),
            (FileStage.CONTROLLER_FINAL, ("com.example.KRaftRules", "com.example.Reporter", None, "3")),
        ],
    )
    def test_each_stage_has_its_own(self, stage: FileStage, expected: tuple[str | None, ...]) -> None:
        facts = replace(FACTS, controller_properties={"num.io.threads": "8"}, stage_properties=self.RANGER)
        text = (
            render_controller_file(self.OLD, NODE, stage, facts)
            if stage.of_controller
            else render_broker_file(self.OLD, stage, facts)
        )
        keys = parse_properties(text)
        assert tuple(keys.get(key) for key in self.KEYS) == expected

    @pytest.mark.parametrize("stage", [FileStage.MIGRATION, FileStage.KRAFT])
    @pytest.mark.parametrize("key", ["node.id", "log.dirs", "log.dir", "listeners", "process.roles", "zookeeper.connect"])
    def test_no_broker_loses_what_makes_its_stage(self, stage: FileStage, key: str) -> None:
        facts = replace(FACTS, stage_properties={stage: {key: "x"}})
        assert render_broker_file(PLAIN, stage, facts) == render_broker_file(PLAIN, stage, FACTS)

    def test_an_authorizer_of_zookeepers_is_refused_in_kraft_mode(self) -> None:
        wrong = {FileStage.KRAFT: {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}}
        with pytest.raises(Refused, match="reads ZooKeeper"):
            render_broker_file(PLAIN, FileStage.KRAFT, replace(FACTS, stage_properties=wrong))

    def test_an_empty_class_takes_the_files_away(self) -> None:
        facts = replace(FACTS, stage_properties={FileStage.KRAFT: {"client.quota.callback.class": ""}})
        text = render_broker_file(f"{PLAIN}client.quota.callback.class=com.example.Quotas\n", FileStage.KRAFT, facts)
        assert "client.quota.callback.class" not in parse_properties(text)
