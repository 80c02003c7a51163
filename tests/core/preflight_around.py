"""Changes to what lies around a healthy cluster (`test_preflight.healthy`), for the tables of defects."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.model import (
    ClusterView,
    LogDir,
    NodeFiles,
    PartitionMetadata,
    Process,
    ProcessState,
    TopicMetadata,
    ZkAcl,
)
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec
from airflow_provider_kmigrate.core.preflight.findings import PreflightFacts
from tests.core.preflight_views import Case, Change, both, broker_1, config, spec, started

ACL_CLASS = "kafka.security.authorizer.AclAuthorizer"
RULE = ZkAcl("Topic", "orders", "LITERAL", "User:alice", "Read", "Allow")
RATE = ("leader.replication.throttled.rate",)
Row = tuple[str, Change, list[str]]


def environment(**changes: Any) -> Change:
    return lambda view, facts: (view, replace(facts, environment=replace(facts.environment, **changes)))


def tree(**changes: Any) -> Change:
    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        assert facts.environment.tree is not None
        return environment(tree=replace(facts.environment.tree, **changes))(view, facts)

    return change


def everywhere(**changes: str) -> Change:
    """Every broker's file and running configuration with other keys; an underscore stands for a dot."""

    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        configs = {i: config(i, **changes) for i in facts.configs}
        brokers = {i: replace(b, files=replace(b.files, properties=configs[i])) for i, b in view.brokers.items()}
        return started(replace(view, brokers=brokers), replace(facts, configs=configs))

    return change


def made(age: float, **process: Any) -> Change:
    """Broker 1's file, written so many seconds before its process started (below 0: after it)."""
    running = Process(ProcessState.RUNNING, 1, 1_000.0, killed_after=inf, **process)
    return broker_1(process=running, files=NodeFiles(config(1), {"/data": {}}, written_at=1_000.0 - age))


def running_1(**changes: str) -> Change:
    return lambda view, facts: (view, replace(facts, configs={**facts.configs, 1: config(1, **changes)}))


def written_1(**changes: str) -> Change:
    """Broker 1's file, with which it was restarted; what is in force is as before."""
    return both(broker_1(files=NodeFiles(config(1, **changes), {"/data": {}})), started)


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
    return both(environment(releases=dict.fromkeys(range(3), text)), spec(kafka_release=stated))


def rules(*found: ZkAcl) -> Change:
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
        replace(controller, host="localhost", port=controller.id, log_dir=f"/kraft{controller.id}")
        for controller in facts.spec.controllers
    )
    return spec(brokers=brokers, controllers=controllers)(view, facts)


def remote(killed_after: float | None = None, **changes: Any) -> Change:
    """Every node by its agent, on machines of their own, which report after how long they kill a node that does not stop."""

    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        hosts = HostSpec("agent", "/etc/kafka/server.properties", **changes)
        brokers, controllers = (
            tuple(replace(node, hosts=hosts) for node in nodes) for nodes in (facts.spec.brokers, facts.spec.controllers)
        )
        seen: dict[str, Any] = {
            name: {i: replace(node, process=replace(node.process, killed_after=killed_after)) for i, node in nodes.items()}
            for name, nodes in (("brokers", view.brokers), ("controllers", view.controllers))
        }
        return replace(view, **seen), replace(facts, spec=replace(facts.spec, brokers=brokers, controllers=controllers))

    return change


def dirs(*found: LogDir) -> Change:
    return environment(log_dirs={0: (LogDir("/data", "", 1 << 40),), 1: found, 2: (LogDir("/data", "", 1 << 40),)})


def both_dirs(version: str) -> Change:
    keys = everywhere(inter_broker_protocol_version=version, log_dirs="/data,/b")
    return both(keys, both(release(version), dirs(LogDir("/data", "", 1 << 40), LogDir("/b", "", 1 << 40))))


TWO_FORMS = NodeFiles(config(1), {"/a": {"version": "0", "broker.id": "1"}, "/b": {"version": "1", "node.id": "1"}})
STRANGE_DIR = NodeFiles(config(1), {"/a": {"version": "0", "broker.id": "2"}})
KRAFT_FILE = {"process.roles": "controller", "zookeeper.connect": "zk:2181/kafka", "node.id": "3001"}


INTERNAL = {"inter_broker_listener_name": "INTERNAL", "listener_security_protocol_map": "INTERNAL:SASL_SSL,CLIENTS:SSL"}
LOGIN = 'required username="broker" password="x";'
PLAIN = {**INTERNAL, "sasl_mechanism_inter_broker_protocol": "PLAIN", "listener_name_internal_plain_sasl_jaas_config": LOGIN}
SCRAM = {
    **INTERNAL,
    "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-256",
    "listener_name_internal_scram-sha-256_sasl_jaas_config": LOGIN,
}
SASL_CONTROLLERS = spec(controller_security="SASL_SSL")
