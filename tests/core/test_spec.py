"""Cluster files: what they mean, and every way they can be wrong. Reason codes and keys are compared, not sentences."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import yaml

from airflow_provider_kmigrate import spec
from airflow_provider_kmigrate.check import main
from airflow_provider_kmigrate.core.audit.verdict import VIOLATIONS
from airflow_provider_kmigrate.core.cluster_state.spec import (
    ApproverSpec,
    AuditSpec,
    CanarySpec,
    ClusterSpec,
    GroupProgressSpec,
    GroupSpec,
    HoldPolicy,
    HostSpec,
    InstanceSpec,
    NodeRole,
    NotifierSpec,
    Policy,
    SparkJobSpec,
    SparkSpec,
    StopPoint,
)
from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec import model
from airflow_provider_kmigrate.spec.model import Approvers, Audit, Hosts, Notifier, PolicySection, SparkJob, TimedPhase
from tests.core.spec_text import GOOD, changed


def problems(text: str) -> list[tuple[str, int, str]]:
    """(code, line, key) of every problem, from the reasons that the error carries."""
    with pytest.raises(SpecError) as caught:
        spec.loads(text, "f.yaml")
    found = []
    for reason in caught.value.reasons:
        _, line, rest = reason.text.split(":", 2)
        key = rest.split(":")[0].strip() if ": found" in rest else ""
        found.append((reason.code, int(line.split()[0]), key))
        assert "; expected " in reason.text, "a problem says what is expected"
        assert " Fix: " in reason.text, "a problem says how to correct it"
    return found


class TestGoodFiles:
    def test_the_documented_file_becomes_the_core_value(self) -> None:
        cluster = spec.loads(GOOD, "f.yaml")
        assert (cluster.name, cluster.cluster_id, cluster.path) == ("prod", "q1Sh-9_ISia_zwGINzRvyQ", "f.yaml")
        assert (cluster.zookeeper_conn_id, cluster.kafka_conn_id) == ("prod_zk", "prod_kafka")
        assert [node.id for node in cluster.nodes()] == [0, 1, 2, 3000]
        assert [node.port for node in cluster.nodes()] == [9092, 19092, 9092, 9093]
        assert cluster.node(NodeRole.BROKER, 1).rack == "1"
        assert cluster.voters == "3000@ctl0:9093"
        assert cluster.policy == Policy(canary_bake=5400.0, sample_interval=0.5, max_hybrid=60.0, fast_failover=True)

    def test_a_nodes_own_host_keys_win_over_the_defaults(self) -> None:
        plain, own = spec.loads(GOOD).brokers[1:]
        assert plain.hosts.properties == "/etc/kafka/server.properties"
        assert plain.hosts.stop_timeout == HostSpec("", "").stop_timeout
        assert own.hosts.properties == "/opt/kafka/server.properties"
        assert own.hosts.stop_timeout == 600.0
        assert own.hosts.connect == plain.hosts.connect

    def test_commands_are_argument_lists_and_no_shell_reads_them(self) -> None:
        own = changed("host: kafka0, rack: a", "host: kafka0, connect: 'kubectl exec \"a b\" -- kmigrate-node serve'")
        given, default = spec.loads(own).brokers[:2]
        assert default.hosts.connect == ("ssh", "{host}", "sudo -n kmigrate-node serve")
        assert given.hosts.connect == ("kubectl", "exec", "a b", "--", "kmigrate-node", "serve")

    def test_a_node_is_behind_its_own_connection_or_command_whatever_the_default_is(self) -> None:
        own = spec.loads(changed("rack: a}", "rack: a, ssh_conn_id: other}"))
        assert [(node.hosts.ssh_conn_id, bool(node.hosts.connect)) for node in own.brokers[:2]] == [("other", False), ("", True)]
        own = spec.loads(changed(CONNECT, "  ssh_conn_id: prod_ssh\n").replace("rack: a}", "rack: a, connect: docker}"))
        assert [(node.hosts.ssh_conn_id, node.hosts.connect) for node in own.nodes()][:2] == [("", ("docker",)), ("prod_ssh", ())]
        assert own.controllers[0].hosts.ssh_conn_id == "prod_ssh"

    def test_the_driver_is_the_agent_unless_the_file_says_otherwise(self) -> None:
        assert spec.loads(changed("  driver: agent\n", "")) == spec.loads(GOOD)
        gone = spec.loads(changed("log_dir: /var/lib/kraft", "log_dir: /var/lib/kraft, driver: gone")).controllers[0]
        assert gone.hosts.driver == "gone"

    def test_a_node_that_is_gone_needs_neither_a_file_nor_a_connection(self) -> None:
        data = yaml.safe_load(GOOD)
        del data["hosts"]
        reached = {"connect": "ssh {host} kmigrate-node serve", "properties": "/etc/kafka/server.properties"}
        data["brokers"] = [node | reached for node in data["brokers"]]
        data["controllers"] = [node | reached for node in data["controllers"][:-1]] + [
            data["controllers"][-1] | {"driver": "gone"}
        ]
        assert spec.loads(yaml.safe_dump(data)).controllers[-1].hosts == HostSpec("gone")

    @pytest.mark.parametrize(
        "cluster_id", ["-1Sh-9_ISia_zwGINzRvyQ", "--Sh-9_ISia_zwGINzRvyQ", "1234567890123456789012", "0x34567890123456789012"]
    )
    def test_ids_that_yaml_takes_for_something_else_stay_text(self, cluster_id: str) -> None:
        assert spec.loads(changed("q1Sh-9_ISia_zwGINzRvyQ", cluster_id)).cluster_id == cluster_id

    @pytest.mark.parametrize("name", ["on", "2024", "007", "no", "1_000", "-x"])
    def test_names_that_yaml_takes_for_something_else_stay_text(self, name: str) -> None:
        assert spec.loads(changed("name: prod", f"name: {name}")).name == name

    def test_the_controller_listener_has_a_section(self) -> None:
        quorum = (
            "quorum: {listener: CTL, security_protocol: SASL_SSL, conn_id: c, properties: {num.io.threads: 8, auto.x: true}}\n"
        )
        cluster = spec.loads(GOOD + quorum)
        assert (cluster.controller_listener, cluster.controller_security, cluster.controller_conn_id) == ("CTL", "SASL_SSL", "c")
        assert cluster.controller_properties == {"num.io.threads": "8", "auto.x": "true"}

    @pytest.mark.parametrize("section", ["groups:", "groups: []", "spark_jobs: []", "quorum:"])
    def test_empty_sections_mean_their_defaults(self, section: str) -> None:
        assert spec.loads(f"{GOOD}{section}\n") == spec.loads(GOOD)

    def test_spark_jobs_are_listed_with_what_holding_needs(self) -> None:
        section = """\
spark_jobs:
  - name: orders-to-lake
    checkpoint: s3a://lake/checkpoints/orders
    topics: [orders, payments]
    options: {failOnDataLoss: true, kafka.group.id: lake}
    hold: always
    hold_timeout: 20m
    conn_id: lake
  - {name: watched, hold: never}
"""
        held, watched = spec.loads(GOOD + section).spark_jobs
        options = {"failOnDataLoss": "true", "kafka.group.id": "lake"}
        assert held == SparkJobSpec(
            "orders-to-lake", "s3a://lake/checkpoints/orders", ("orders", "payments"), options, HoldPolicy.ALWAYS,
            hold_timeout=1200.0, conn_id="lake",
        )  # fmt: skip
        assert watched == SparkJobSpec("watched", hold=HoldPolicy.NEVER)
        assert spec.loads(GOOD + section).spark_job("watched") is not None

    def test_a_job_of_another_kind_has_two_commands_and_what_shows_where_it_stands(self) -> None:
        commands = "hold_command: orders-job pause, release_command: [orders-job, resume]"
        section = (
            f"spark_jobs: [{{name: sink, {commands}, group: connect-sink, hold_folder: /h, quiet: 2m, command_conn_id: c}}]\n"
        )
        assert spec.loads(GOOD + section).spark_jobs == (
            SparkJobSpec(
                "sink", hold_folder="/h", hold_command=("orders-job", "pause"), release_command=("orders-job", "resume"),
                command_conn_id="c", group="connect-sink", quiet=120.0,
            ),
        )  # fmt: skip

    def test_every_finding_of_a_ledger_may_be_tolerated(self) -> None:
        assert set(get_args(model.Finding)) == VIOLATIONS.keys()

    def test_an_audit_is_there_only_where_the_file_has_one(self) -> None:
        section = "audit: {conn_id: spark, result: /r, events: [/e], schedule: '*/10 6-20 * * 1,3', retry_delay: 5m}\n"
        assert spec.loads(GOOD + section.replace("}", ", sample_fraction: 0.25}")).audit.sample_fraction == 0.25  # type: ignore[union-attr]
        found = spec.loads(GOOD + section).audit
        assert found == AuditSpec("spark", "/r", ("/e",), schedule="*/10 6-20 * * 1,3", retry_delay=300.0)
        assert (spec.loads(GOOD).audit, spec.loads(f"{GOOD}audit:\n").audit) == (None, None)
        assert found is not None
        assert found.spark == SparkSpec(driver_memory="3g")
        told = "{driver_memory: 512m, archives: ['/e.tgz#e'], deploy_mode: cluster, kafka_options: {kafka.ssl.key.password: '${file:/f:k}'}}"
        found = spec.loads(GOOD + section.replace("}", f", spark: {told}}}")).audit
        assert found is not None
        assert (found.spark.archives, found.spark.deploy_mode, found.spark.driver_memory) == (("/e.tgz#e",), "cluster", "512m")
        found = spec.loads(GOOD + section.replace("}", ", canary: {margin: 2, window: 80}}")).audit
        assert found is not None
        assert found.canary == CanarySpec(window=80, margin=2.0)

    @pytest.mark.parametrize(
        "schedule",
        ["61 * * * *", "* * *", "@once", "* * * * * *", "5-2 * * * *", "0 0 0 * *", "mon * * * *", "*/0 * * * *", "7/2 * * * *"],
    )
    def test_a_schedule_that_airflow_would_not_take_is_refused(self, schedule: str) -> None:
        with pytest.raises(SpecError) as caught:
            spec.loads(f"{GOOD}audit: {{conn_id: spark, result: /r, events: [/e], schedule: '{schedule}'}}\n")
        assert [reason.code for reason in caught.value.reasons] == ["F04"]

    def test_secrets_may_be_references(self) -> None:
        reference = "${file:/etc/kafka/secrets:keystore}"
        cluster = spec.loads(GOOD + f"quorum: {{properties: {{ssl.keystore.password: '{reference}'}}}}\n")
        assert cluster.controller_properties["ssl.keystore.password"] == reference

    @pytest.mark.parametrize(
        "key",
        ["listeners", "log.dirs", "zookeeper.ssl.protocol", "num.io.threads", "metadata.max.idle.interval.ms", "ssl.protocol"],
    )
    def test_controllers_may_have_keys_of_their_own(self, key: str) -> None:
        assert spec.loads(f"{GOOD}quorum: {{properties: {{{key}: x}}}}\n").controller_properties == {key: "x"}

    def test_a_stage_may_have_keys_of_its_own(self) -> None:
        stages = (
            "stage_properties: {broker_kraft: {authorizer.class.name: com.example.K}, controller_final: {num.io.threads: 8}}\n"
        )
        expected = {"broker_kraft": {"authorizer.class.name": "com.example.K"}, "controller_final": {"num.io.threads": "8"}}
        assert spec.loads(GOOD + stages).stage_properties == expected
        assert spec.loads(GOOD).stage_properties == {}

    @pytest.mark.parametrize(
        ("section", "key", "code"),
        [
            ("broker_kraft", "listeners", "F04"),
            ("broker_migration", "node.id", "F04"),
            ("controller_final", "zookeeper.connect", "F04"),
            ("broker_kraft", "num.io.thread", "F04"),  # a typing error
            ("broker_kraft", "ssl.keystore.password", "F06"),
            ("broker_zookeeper", "num.io.threads", "F04"),  # their own file stays
        ],
    )
    def test_what_a_stage_could_not_have_is_named(self, section: str, key: str, code: str) -> None:
        with pytest.raises(SpecError) as refused:
            spec.loads(f"{GOOD}stage_properties: {{{section}: {{{key}: geheim}}}}\n")
        assert [reason.code for reason in refused.value.reasons] == [code]
        assert "geheim" not in str(refused.value)

    def test_a_section_confirms_that_its_connection_accepts_any_host_name(self) -> None:
        assert spec.loads(GOOD).unverified == frozenset()
        text = changed("{conn_id: prod_zk}", "{conn_id: prod_zk, verify_hostname: false}")
        assert spec.loads(text + "quorum: {verify_hostname: false}\n").unverified == {"zookeeper", "quorum"}

    def test_the_controllers_listener_is_named_in_upper_case(self) -> None:
        assert spec.loads(GOOD + "quorum: {listener: ctl}\n").controller_listener == "CTL"

    def test_aliases_and_merge_keys_work(self) -> None:
        text = changed("  - {id: 0, host: kafka0, rack: a}", "  - &first {id: 0, host: kafka0, rack: a}").replace(
            "{id: 1, ", "{<<: *first, id: 1, "
        )
        assert spec.loads(text).brokers[1].host == "kafka1"

    def test_braces_of_other_tools_are_left_alone(self) -> None:
        words = ["bash", "-c", 'echo ${HOME} {{x}} {"a": 1} {a,b}', "{host}"]
        text = changed('    - "{host}"\n', "".join(f"    - {json.dumps(word)}\n" for word in words))
        assert spec.loads(text).brokers[0].hosts.connect[1:-1] == tuple(words)

    def test_models_and_core_have_the_same_keys(self) -> None:
        assert {field.name for field in fields(Policy)} == set(PolicySection.model_fields)
        assert {field.name for field in fields(HostSpec)} == set(Hosts.model_fields)
        assert {field.name for field in fields(SparkJobSpec)} == set(SparkJob.model_fields)
        assert {field.name for field in fields(AuditSpec)} == set(Audit.model_fields)
        assert {field.name for field in fields(ApproverSpec)} == set(Approvers.model_fields)
        assert {field.name for field in fields(NotifierSpec)} == set(Notifier.model_fields)
        assert set(get_args(TimedPhase)) >= {str(point) for point in StopPoint} - {"soak", "hybrid"}  # parts of a phase

    @pytest.mark.parametrize(
        "kind",
        [ApproverSpec, AuditSpec, CanarySpec, ClusterSpec, GroupProgressSpec, GroupSpec, HostSpec, InstanceSpec, NotifierSpec,
         Policy, SparkJobSpec],
    )  # fmt: skip
    def test_every_key_is_read_by_something(self, kind: type) -> None:
        package = Path(spec.__file__).parents[1]
        code = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py") if path.parent.name != "spec")
        assert [field.name for field in fields(kind) if not re.search(rf"\w\.{field.name}\b", code)] == []

    def test_approvers_notifiers_and_when_restarts_may_begin(self) -> None:
        people = (
            "approvers: {users: [ann, 7], required: 2, reason: true, expires: 2d}\n"
            "notify: [{notifier: a.b.C, arguments: {to: ops, tries: 3}}]\nrunbook_url: https://wiki/runbook/\nrehearsal: true\n"
            "windows: 22:00-04:00\nstop_after: first_roll\ndeadlines: {copy: 30m}\n"
        )
        cluster = spec.loads(GOOD + people)
        assert cluster.approvers == ApproverSpec(("ann", "7"), required=2, reason=True, expires=172_800.0)
        assert cluster.notify == (NotifierSpec("a.b.C", {"to": "ops", "tries": 3}),)
        assert (cluster.runbook_url, cluster.rehearsal) == ("https://wiki/runbook", True)
        assert (cluster.windows, cluster.stop_after) == (("22:00-04:00",), (StopPoint.FIRST_ROLL,))
        assert cluster.deadlines == {"copy": 1800.0}

    def test_without_approvers_any_user_may_approve_and_no_conf_may(self) -> None:
        cluster = spec.loads(GOOD)
        assert (cluster.approvers, cluster.notify, cluster.rehearsal) == (None, (), False)
        assert (cluster.windows, cluster.stop_after, cluster.deadlines) == ((), (), {})


CONNECT = """\
  connect:
    - ssh
    - "{host}"
    - sudo -n kmigrate-node serve
"""
WRONG = [
    ("name: prod", "name: prod east", [("F04", 1, "name")]),
    ("name: prod", "", [("F04", 1, "name")]),
    ("name: prod", "name: ''", [("F04", 1, "name")]),
    ("q1Sh-9_ISia_zwGINzRvyQ", "q1Sh-9_ISia_zwGINzRvy", [("F04", 2, "cluster_id")]),
    ("q1Sh-9_ISia_zwGINzRvyQ", "q1Sh+9_ISia_zwGINzRvyQ", [("F04", 2, "cluster_id")]),
    ("zookeeper:", "zookeper:", [("F04", 1, "zookeeper"), ("F04", 3, "zookeper")]),
    ("{conn_id: prod_zk}", "prod_zk", [("F04", 3, "zookeeper")]),
    ("{conn_id: prod_zk}", "{conn_id: prod_zk, hosts: a}", [("F04", 3, "zookeeper.hosts")]),
    ("driver: agent", "driver: ssh", [("F04", 6, "hosts.driver")]),
    ("driver: agent", "driver: command", [("F04", 6, "hosts.driver")]),
    ("driver: agent", "driver: docker", [("F04", 6, "hosts.driver")]),
    ("driver: agent", "driver: gone", [("F04", 6, "hosts.driver")]),
    ("driver: agent", "start: up", [("F04", 6, "hosts.start")]),
    ("driver: agent", "kill_after: 10m", [("F04", 6, "hosts.kill_after")]),
    ("{id: 0, host: kafka0, rack: a}", "{id: 0, host: kafka0, write: 'put {path}'}", [("F04", 13, "brokers[0].write")]),
    (CONNECT, "", [("F04", 5, "hosts.ssh_conn_id")]),
    (CONNECT, CONNECT + "  ssh_conn_id: prod_ssh\n", [("F04", 8, "hosts.connect")]),
    (CONNECT, "  ssh_conn_id: prod_ssh\n  conn_id: prod_hosts\n", [("F04", 9, "hosts.conn_id")]),
    ("rack: a}", "rack: a, ssh_conn_id: a, connect: x}", [("F04", 13, "brokers[0].connect")]),
    (CONNECT, "  ssh_conn_id: prod ssh\n", [("F04", 8, "hosts.ssh_conn_id")]),
    (
        "  driver: agent\n" + "  properties: /etc/kafka/server.properties\n",
        "",
        [("F04", 11, "brokers[0].properties"), ("F04", 12, "brokers[1].properties"), ("F04", 15, "controllers[0].properties")],
    ),
    ("driver: agent", "driver: local", [("F04", 6, "hosts.driver")]),
    ("properties: /etc/kafka/server.properties", "properties: server.properties", [("F04", 7, "hosts.properties")]),
    ('"{host}"', '"{hots}"', [("F04", 8, "hosts.connect")]),
    ('"{host}"', '"{cluster_id}"', [("F04", 8, "hosts.connect")]),
    (CONNECT, "  connect: ssh {host} 'kmigrate-node serve\n", [("F04", 8, "hosts.connect")]),
    (CONNECT, "  connect: []\n", [("F04", 8, "hosts.connect")]),
    ("{id: 0, host: kafka0, rack: a}", "{id: zero, host: kafka0, rack: a}", [("F04", 13, "brokers[0].id")]),
    ("{id: 0, host: kafka0, rack: a}", "{id: true, host: kafka0, rack: a}", [("F04", 13, "brokers[0].id")]),
    ("{id: 0, host: kafka0, rack: a}", "{id: -1, host: kafka0, rack: a}", [("F04", 13, "brokers[0].id")]),
    ("{id: 0, host: kafka0, rack: a}", "{id: 0, host: 'kafka0:9092', rack: a}", [("F04", 13, "brokers[0].host")]),
    ("{id: 0, host: kafka0, rack: a}", "{id: 0, host: -oProxyCommand=x}", [("F04", 13, "brokers[0].host")]),
    ("{id: 0, host: kafka0, rack: a}", "{id: 0, host: kafka0, rack: [a]}", [("F04", 13, "brokers[0].rack")]),
    ("{id: 0, host: kafka0, rack: a}", "kafka0", [("F04", 13, "brokers[0]")]),
    ("port: 19092", "port: 70000", [("F04", 14, "brokers[1].port")]),
    ("stop_timeout: 10m", "stop_timeout: 10 minutes", [("F04", 15, "brokers[2].stop_timeout")]),
    ("stop_timeout: 10m", "stop_timeout: 0", [("F04", 15, "brokers[2].stop_timeout")]),
    ("id: 1, host: kafka1", "id: 0, host: kafka1", [("F04", 14, "brokers[1].id")]),
    (
        "kafka1, rack: 1, port: 19092",
        "kafka0, properties: /b",
        [("F04", 14, "brokers[1].connect"), ("F04", 14, "brokers[1].port")],
    ),
    ("kafka1, rack: 1, port: 19092", "KAFKA0., properties: /b, connect: x", [("F04", 14, "brokers[1].port")]),
    ("host: kafka1", "host: Kafka0", [("F04", 14, "brokers[1].properties")]),
    ("host: kafka1", "host: kafka0, properties: /etc//kafka/./server.properties", [("F04", 14, "brokers[1].properties")]),
    ("host: kafka1", "host: kafka0., properties: /b", [("F04", 14, "brokers[1].connect")]),
    (
        CONNECT + "brokers:\n  - {id: 0, host: kafka0, rack: a}\n  - {id: 1, host: kafka1",
        "  ssh_conn_id: s\nbrokers:\n  - {id: 0, host: kafka0, rack: a}\n  - {id: 1, properties: /b, host: KAFKA0.",
        [("F04", 11, "brokers[1].ssh_conn_id")],
    ),
    (CONNECT, "  connect: /usr/bin/agent\n", [("F04", 11, "brokers[1].connect"), ("F04", 12, "brokers[2].connect")]),
    (
        "host: ctl0, log_dir: /var/lib/kraft",
        "host: KAFKA1, port: 19092, properties: /c, log_dir: /k",
        [("F04", 17, "controllers[0].port")],
    ),
    (
        "zookeeper: {conn_id: prod_zk}",
        "zookeeper: {conn_id: prod_zk, verify_hostname: no}",
        [("F04", 3, "zookeeper.verify_hostname")],
    ),
    ("host: kafka1", "host: kafka0", [("F04", 14, "brokers[1].properties")]),
    ("id: 3000", "id: 1", [("F04", 17, "controllers[0].id")]),
    ("host: ctl0, log_dir: /var/lib/kraft", "host: ctl0", [("F04", 17, "controllers[0].log_dir")]),
    ("min_soak: 24h", "min_soak: a day", [("F04", 18, "policy.min_soak")]),
    ("min_soak: 24h", "min_soak: .inf", [("F04", 18, "policy.min_soak")]),
    ("min_soak: 24h", "min_soke: 24h", [("F04", 18, "policy.min_soke")]),
    ("min_soak: 24h", "stable_samples: 0", [("F04", 18, "policy.stable_samples")]),
    ("fast_failover: true", "fast_failover: yes", [("F04", 18, "policy.fast_failover")]),
    ("policy:", "spark_jobs: [{name: g}]\npolicy:", [("F04", 18, "spark_jobs[0].checkpoint")]),
    (
        "policy:",
        "spark_jobs: [{name: g, checkpoint: /c, hold_command: pause}]\npolicy:",
        [("F04", 18, "spark_jobs[0].release_command")],
    ),
    (
        "policy:",
        "spark_jobs: [{name: g, checkpoint: /c, release_command: resume}]\npolicy:",
        [("F04", 18, "spark_jobs[0].hold_command")],
    ),
    ("policy:", "spark_jobs: [{name: g, checkpoint: /c, group: g}]\npolicy:", [("F04", 18, "spark_jobs[0].hold_command")]),
    (
        "policy:",
        "spark_jobs: [{name: g, hold_command: p, release_command: r, group: g}]\npolicy:",
        [("F04", 18, "spark_jobs[0].checkpoint")],
    ),
    ("policy:", "spark_jobs: [{name: g h, hold: never}]\npolicy:", [("F04", 18, "spark_jobs[0].name")]),
    ("policy:", "spark_jobs: [{name: g, checkpoint: c}]\npolicy:", [("F04", 18, "spark_jobs[0].checkpoint")]),
    ("policy:", "spark_jobs: [{name: g, hold: sometimes, checkpoint: /c}]\npolicy:", [("F04", 18, "spark_jobs[0].hold")]),
    (
        "policy:",
        "spark_jobs:\n- {name: g, checkpoint: /c}\n- {name: h, checkpoint: /c}\npolicy:",
        [("F04", 20, "spark_jobs[1].checkpoint")],
    ),
    (
        "policy:",
        "spark_jobs: [{name: g, hold: never, options: {kafka.sasl.jaas.config: x}}]\npolicy:",
        [("F06", 18, "spark_jobs[0].options.kafka.sasl.jaas.config")],
    ),
    ("policy:", "audit: {conn_id: s, result: /r, probe: false, topics: []}\npolicy:", [("F04", 18, "audit.events")]),
    ("policy:", "audit: {conn_id: s, result: /r, probe: maybe}\npolicy:", [("F04", 18, "audit.probe")]),
    (
        "policy:",
        "audit: {conn_id: s, result: /r, spark: {driver_memory: 3}}\npolicy:",
        [("F04", 18, "audit.spark.driver_memory")],
    ),
    (
        "policy:",
        "audit: {conn_id: s, result: /r, spark: {deploy_mode: cluster}}\npolicy:",
        [("F04", 18, "audit.spark.deploy_mode")],
    ),
    (
        "policy:",
        "audit: {conn_id: s, result: /r, spark: {properties: {spark.driver.memory: 2g}}}\npolicy:",
        [("F04", 18, "audit.spark.properties.spark.driver.memory")],
    ),
    (
        "policy:",
        "audit: {conn_id: s, result: /r, spark: {properties: {driver.cores: 2}}}\npolicy:",
        [("F04", 18, "audit.spark.properties.driver.cores")],
    ),
    (
        "policy:",
        "audit: {conn_id: s, result: /r, spark: {kafka_options: {kafka.bootstrap.servers: h}}}\npolicy:",
        [("F04", 18, "audit.spark.kafka_options.kafka.bootstrap.servers")],
    ),
    (
        "policy:",
        "audit: {conn_id: s, result: /r, spark: {kafka_options: {failOnDataLoss: x}}}\npolicy:",
        [("F04", 18, "audit.spark.kafka_options.failOnDataLoss")],
    ),
    (
        "policy:",
        "audit: {conn_id: s, result: /r, spark: {kafka_options: {kafka.ssl.key.password: S3CRET}}}\npolicy:",
        [("F06", 18, "audit.spark.kafka_options.kafka.ssl.key.password")],
    ),
    (
        "policy:",
        "audit: {conn_id: s, result: /r, spark: {properties: {spark.hadoop.fs.s3a.secret.key: S3CRET}}}\npolicy:",
        [("F06", 18, "audit.spark.properties.spark.hadoop.fs.s3a.secret.key")],
    ),
    (
        "policy:",
        "audit: {conn_id: s, result: /r, topics: [t], sample_fraction: 1.5}\npolicy:",
        [("F04", 18, "audit.sample_fraction")],
    ),
    (
        "policy:",
        "audit: {conn_id: s, result: /r, topics: [t], sample_fraction: 0}\npolicy:",
        [("F04", 18, "audit.sample_fraction")],
    ),
    ("policy:", "audit: {conn_id: s, result: /r, canary: {margin: 1}}\npolicy:", [("F04", 18, "audit.canary.margin")]),
    ("policy:", "audit: {conn_id: s, result: /r, canary: {window: 39}}\npolicy:", [("F04", 18, "audit.canary.window")]),
    (
        "policy:",
        "audit: {conn_id: s, result: /r, baseline_time: 2026-13-31T12:00Z}\npolicy:",
        [("F04", 18, "audit.baseline_time")],
    ),
    (
        "policy:",
        "audit: {conn_id: s, result: /r, baseline_time: '2026-01-31T12:00+01:00'}\npolicy:",
        [("F04", 18, "audit.baseline_time")],
    ),
    ("policy:", "audit: {conn_id: s, result: /r, baseline_time: 2026-01-31}\npolicy:", [("F04", 18, "audit.baseline_time")]),
    (
        "policy:",
        "audit: {conn_id: s, result: /r, topics: [t], sample_fraction: true}\npolicy:",
        [("F04", 18, "audit.sample_fraction")],
    ),
    ("policy:", "audit: {conn_id: s, result: /r, allow: [redelivery]}\npolicy:", [("F04", 18, "audit.allow[0]")]),
    ("policy:", "audit: {result: /r, events: [/e]}\npolicy:", [("F04", 18, "audit.conn_id")]),
    ("policy:", "audit: {conn_id: s, result: r, events: [/e]}\npolicy:", [("F04", 18, "audit.result")]),
    ("policy:", "audit: {conn_id: s, result: /r, events: [/e], level: logs}\npolicy:", [("F04", 18, "audit.level")]),
    ("policy:", "quorum: {properties: {sasl.jaas.config: x}}\npolicy:", [("F06", 18, "quorum.properties.sasl.jaas.config")]),
    *(
        ("policy:", f"quorum: {{properties: {{{key}: x}}}}\npolicy:", [("F04", 18, f"quorum.properties.{key}")])
        for key in (
            "zookeeper.metadata.migration.enable",
            "zookeeper.connect",
            "process.roles",
            "broker.id",
            "super.user",
            "log.dir",
        )
    ),
    ("policy:", "quorum: {properties: {a.b: [x]}}\npolicy:", [("F04", 18, "quorum.properties.a.b")]),
    ("policy:", "name: other\npolicy:", [("F04", 18, "name")]),
    ("policy:", "approvers: {users: []}\npolicy:", [("F04", 18, "approvers.users")]),
    ("policy:", "approvers: {users: [ann], required: 3}\npolicy:", [("F04", 18, "approvers.required")]),
    ("policy:", "approvers: {users: [ann, ann], required: 2}\npolicy:", [("F04", 18, "approvers.users")]),
    ("policy:", "approvers: {groups: [ops]}\npolicy:", [("F04", 18, "approvers.groups"), ("F04", 18, "approvers.users")]),
    ("policy:", "notify: [{notifier: smtp}]\npolicy:", [("F04", 18, "notify[0].notifier")]),
    (
        "policy:",
        "notify: [{notifier: a.B, arguments: {slack_token: x, smtp_conn_id: mail}}]\npolicy:",
        [("F06", 18, "notify[0].arguments.slack_token")],
    ),
    ("policy:", "windows: [24:00-01:00]\npolicy:", [("F04", 18, "windows[0]")]),
    ("policy:", "stop_after: second_roll\npolicy:", [("F04", 18, "stop_after[0]")]),
    ("policy:", "deadlines: {copy: 0}\npolicy:", [("F04", 18, "deadlines.copy")]),
    ("policy:", "deadlines: {kopy: 1m}\npolicy:", [("F04", 18, "deadlines.kopy")]),
    ("policy:", "rehearsal: 1\npolicy:", [("F04", 18, "rehearsal")]),
    ("policy:", "runbook_url: wiki\npolicy:", [("F04", 18, "runbook_url")]),
]


class TestWrongFiles:
    @pytest.mark.parametrize(("old", "new", "expected"), WRONG, ids=[f"{new or '-' + old}"[:40] for old, new, _ in WRONG])
    def test_each_mistake_is_found_where_it_is_and_nothing_else(
        self, old: str, new: str, expected: list[tuple[str, int, str]]
    ) -> None:
        assert problems(changed(old, new)) == expected

    @pytest.mark.parametrize(("old", "new"), model.RENAMED.items())
    def test_an_old_key_is_an_error_that_names_the_new_one(self, old: str, new: str) -> None:
        section, key = old.split(".")
        shape = next(iter(model.ClusterFile.model_fields[section].examples or ()))
        shape = [{**shape[0], key: 1}] if isinstance(shape, list) else {**shape, key: 1}
        with pytest.raises(SpecError) as caught:
            spec.loads(yaml.safe_dump(yaml.safe_load(GOOD) | {section: shape}), "f.yaml")
        (reason,) = caught.value.reasons
        assert reason.code == "F04"
        assert f"Fix: rename `{key}` to `{new}`" in reason.text
        assert f"{key}: found the old name of a key" in reason.text
        models = {"audit": Audit, "quorum": model.QuorumSection, "spark_jobs": SparkJob}
        assert new in models[section].model_fields
        assert key not in models[section].model_fields

    @pytest.mark.parametrize("key", sorted(model.REMOVED_HOST_KEYS))
    @pytest.mark.parametrize("driver", ["agent", "local", "command"])
    def test_a_key_of_the_removed_driver_is_answered_with_the_section_to_write(self, driver: str, key: str) -> None:
        data = yaml.safe_load(GOOD)
        data["hosts"] |= {key: 1, "driver": driver}
        data["controllers"][0] |= {key: "x"}
        with pytest.raises(SpecError) as caught:
            spec.loads(yaml.safe_dump(data))
        found = [reason.text for reason in caught.value.reasons]
        assert len(found) == 2 + (driver != "agent")
        for text in found:
            section = yaml.safe_load(text.split("Fix: write `")[1].split("` instead")[0])
            assert spec.loads(yaml.safe_dump(yaml.safe_load(GOOD) | section)).controllers[0].hosts.connect[0] == "ssh"

    @pytest.mark.parametrize(
        "text", ["a: [", "\t- x", "a: 1\n---\nb: 2", "a: !!python/name:os.system x", "a: &a [*a]", "a: \x00", "a: !!int x"]
    )
    def test_text_that_is_no_yaml(self, text: str) -> None:
        assert [code for code, _, _ in problems(text)] == ["F00"]

    @pytest.mark.parametrize("text", ["", "- 1", "prod", "# only a comment"])
    def test_yaml_that_is_no_mapping(self, text: str) -> None:
        assert problems(text) == [("F04", 1, "")]

    @pytest.mark.parametrize("section", ["brokers", "controllers"])
    def test_a_cluster_without_nodes(self, section: str) -> None:
        data = yaml.safe_load(GOOD) | {section: []}
        assert [(code, key) for code, _, key in problems(yaml.safe_dump(data))] == [("F04", section)]

    def test_all_mistakes_of_a_file_are_in_one_message(self) -> None:
        text = (
            changed("q1Sh-9_ISia_zwGINzRvyQ", "short")
            .replace("id: 3000", "id: 1")
            .replace("min_soak", "soak")
            .replace("driver: agent", "driver: dock")
        )
        assert problems(text) == [
            ("F04", 2, "cluster_id"),
            ("F04", 6, "hosts.driver"),
            ("F04", 17, "controllers[0].id"),
            ("F04", 18, "policy.soak"),
        ]

    def test_the_text_has_a_line_for_each_reason(self) -> None:
        with pytest.raises(SpecError) as caught:
            spec.loads(changed("id: 3000", "id: 1").replace("port: 19092", "port: 0"), "clusters/prod.yaml")
        lines = str(caught.value).splitlines()
        assert len(lines) == 1 + len(caught.value.reasons) == 3
        assert lines[1].strip().startswith("clusters/prod.yaml:14: brokers[1].port:")

    def test_an_unknown_key_is_answered_with_the_nearest_known_one(self) -> None:
        with pytest.raises(SpecError) as caught:
            spec.loads(changed("port: 19092", "prot: 19092"))
        assert "`port`" in caught.value.reasons[0].text

    @pytest.mark.parametrize(
        "canary",
        [
            "quorum: {properties: {sasl.jaas.config: CANARY-7f31}}",
            "quorum: {properties: {listener.password: CANARY-7f31, x: [CANARY-7f31]}}",
            "password: CANARY-7f31",
            "quorum: {ssl.key.pem: CANARY-7f31}",
            "spark_jobs: [{name: g, hold: never, options: {kafka.ssl.key.password: CANARY-7f31, x: [CANARY-7f31]}}]",
            "notify: [{notifier: a.B, arguments: {api_token: CANARY-7f31}}]",
        ],
    )
    def test_no_secret_is_ever_repeated(self, canary: str) -> None:
        with pytest.raises(SpecError) as caught:
            spec.loads(f"{GOOD}{canary}\n")
        assert "CANARY" not in f"{caught.value}{caught.value.reasons}"


class TestFiles:
    def test_a_file_and_a_missing_one(self, tmp_path: Path) -> None:
        path = tmp_path / "prod.yaml"
        path.write_text(GOOD, encoding="utf-8")
        assert spec.load(path) == spec.loads(GOOD, str(path))
        with pytest.raises(SpecError) as caught:
            spec.load(tmp_path / "other.yaml")
        assert [reason.code for reason in caught.value.reasons] == ["F00"]

    def test_a_file_is_parsed_once_until_its_text_changes(self, tmp_path: Path) -> None:
        path = tmp_path / "prod.yaml"
        path.write_text(GOOD, encoding="utf-8")
        first = spec.load(path)
        assert spec.load(path) is first
        path.write_text(changed("id: 2, host: kafka2", "id: 2, host: moved2"), encoding="utf-8")
        assert spec.load(path).brokers[2].host == "moved2"
        for _ in range(2):
            path.write_text("name: [", encoding="utf-8")
            with pytest.raises(SpecError):
                spec.load(path)
        path.write_text(GOOD, encoding="utf-8")
        assert spec.load(path).brokers[2].host == "kafka2"
        (tmp_path / "copy.yaml").write_text(GOOD, encoding="utf-8")
        assert spec.load(tmp_path / "copy.yaml").path == str(tmp_path / "copy.yaml")

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "prod.yaml").write_bytes(b"name: \xff\xfe")
        with pytest.raises(SpecError) as caught:
            spec.load(tmp_path / "prod.yaml")
        assert [reason.code for reason in caught.value.reasons] == ["F00"]

    def test_a_folder_gives_what_is_right_and_what_is_wrong(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text(GOOD, encoding="utf-8")
        (tmp_path / "b.yml").write_text("name: [", encoding="utf-8")
        (tmp_path / "notes.txt").write_text("no cluster", encoding="utf-8")
        (tmp_path / ".hidden.yaml").write_text("no cluster", encoding="utf-8")
        specs, errors = spec.load_folder(tmp_path)
        assert [cluster.path for cluster in specs] == [str(tmp_path / "a.yaml")]
        assert [error.reasons[0].code for error in errors] == ["F00"]

    @pytest.mark.parametrize(
        ("copy", "keys"),
        [
            (changed("name: prod", "name: other"), ["cluster_id"]),
            (changed("q1Sh", "q2Sh"), ["name"]),
            (GOOD, ["name", "cluster_id"]),
        ],
    )
    def test_two_files_for_one_cluster_are_both_refused(self, tmp_path: Path, copy: str, keys: list[str]) -> None:
        (tmp_path / "a.yaml").write_text(GOOD, encoding="utf-8")
        (tmp_path / "b.yaml").write_text(copy, encoding="utf-8")
        (tmp_path / "c.yaml").write_text(changed("name: prod", "name: third").replace("q1Sh", "q3Sh"), encoding="utf-8")
        specs, errors = spec.load_folder(tmp_path)
        assert [cluster.name for cluster in specs] == ["third"]
        assert [[reason.code for reason in error.reasons] for error in errors] == [["F04"] * len(keys)] * 2
        assert [key for key in keys if f" {key}: " not in str(errors[0])] == []

    def test_a_missing_folder(self, tmp_path: Path) -> None:
        specs, errors = spec.load_folder(tmp_path / "none")
        assert specs == ()
        assert [error.reasons[0].code for error in errors] == ["F00"]

    def test_the_command_checks_files(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "a.yaml").write_text(GOOD, encoding="utf-8")
        assert main([str(tmp_path)]) == 0
        (tmp_path / "b.yaml").write_text("x: 1", encoding="utf-8")
        assert main([str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]) == 1
        assert "b.yaml:1: x:" in capsys.readouterr().err

    def test_the_command_does_not_call_nothing_right(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "prod.yml.bak").write_text(GOOD, encoding="utf-8")
        assert main([str(tmp_path)]) == 1
        assert f"{tmp_path}: no cluster file" in capsys.readouterr().err
        with pytest.raises(SystemExit) as end:
            main([])
        assert end.value.code == 2
        assert "FILE_OR_FOLDER" in capsys.readouterr().err


class TestAdvice:
    @pytest.mark.parametrize(("count", "codes"), [(1, ["W3"]), (2, ["W3"]), (3, []), (4, ["W3"]), (5, [])])
    def test_an_unwise_number_of_controllers_is_a_warning(self, count: int, codes: list[str]) -> None:
        cluster = with_controllers(count)
        assert [reason.code for reason in spec.advice(cluster)] == codes

    @pytest.mark.parametrize(
        ("lines", "codes"),
        [("policy: {min_soak: 0}", ["W28"]), ("policy: {min_soak: 5m}", []), ("policy: {min_soak: 0}\nrehearsal: true", [])],
    )
    def test_a_soak_of_almost_no_time_is_a_warning(self, lines: str, codes: list[str]) -> None:
        cluster = spec.loads(re.sub(r"policy: .*", lines, GOOD))
        assert [reason.code for reason in spec.advice(cluster) if reason.code != "W3"] == codes

    @pytest.mark.parametrize(
        ("lines", "said"),
        [
            ("policy: {start_timeout: 600000}", "policy.start_timeout is 600000 s"),
            ("policy: {sample_interval: 200}", "policy.sample_interval is 200 s"),
            ("policy: {start_timeout: 24h, min_soak: 60d, canary_bake: 1d}", ""),
        ],
    )
    def test_a_number_of_milliseconds_is_a_warning(self, lines: str, said: str) -> None:
        texts = [reason.text for reason in spec.advice(spec.loads(re.sub(r"policy: .*", lines, GOOD))) if reason.code == "W28"]
        assert len(texts) == bool(said)
        assert not said or said in texts[0]

    def test_one_timeout_of_all_hosts_is_named_once(self) -> None:
        text = GOOD.replace("hosts:", "hosts:\n  stop_timeout: 330000", 1)
        [warning] = (reason for reason in spec.advice(spec.loads(text)) if reason.code == "W28")
        assert warning.text.count("hosts.stop_timeout is 330000 s") == 1


def with_controllers(count: int) -> ClusterSpec:
    data = yaml.safe_load(GOOD)
    data["controllers"] = [{"id": 3000 + n, "host": f"ctl{n}", "log_dir": "/var/lib/kraft"} for n in range(count)]
    return spec.loads(yaml.safe_dump(data))
