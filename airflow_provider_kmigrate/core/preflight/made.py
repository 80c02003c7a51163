"""Every check that a preflight made: what it looked at, what it saw there, and what it found; and who can act on a finding.

A READY preflight is worth as much as the list of what it looked at. Each check of `checks.CHECKS` has a row in `ROWS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView
from airflow_provider_kmigrate.core.preflight.findings import (
    PreflightFacts,
    PreflightFinding,
    topics_in_zookeeper,
    zookeeper_broker_files,
)
from airflow_provider_kmigrate.core.shared.text import count_of, summarize


class Owner(StrEnum):
    """Who can act on what a check finds."""

    FILE = "the author of the cluster file"
    KAFKA = "Kafka's administrators"
    ZOOKEEPER = "ZooKeeper's administrators"
    MACHINES = "the machines' administrators"
    SECURITY = "those who manage users, rights and certificates"
    APPLICATIONS = "the owners of applications"


Saw = Callable[[ClusterView, PreflightFacts], str]


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One kind of check: `about` completes "checked ..."; `saw` says how much of it was read."""

    about: str
    owner: Owner
    saw: Saw


@dataclass(frozen=True, slots=True)
class CheckMade:
    """One check that was made on a cluster, with its findings."""

    about: str
    owner: Owner
    saw: str
    findings: tuple[PreflightFinding, ...]


def _saw_answers(view: ClusterView, facts: PreflightFacts) -> str:
    answered = sum(view.has_answered(node.id) for node in facts.spec.brokers)
    zookeeper = "ZooKeeper did not answer" if view.zk is None else "ZooKeeper answered"
    return f"{answered} of {count_of(len(facts.spec.brokers), 'broker')} answered; {zookeeper}"


def _saw_nodes(view: ClusterView, facts: PreflightFacts) -> str:
    registered = "unknown" if view.zk is None else str(len(view.zk.broker_ids))
    return f"{count_of(len(facts.spec.brokers), 'broker')} and {count_of(len(facts.spec.controllers), 'controller')} in the cluster file; {registered} registered in ZooKeeper"


def _saw_partitions(view: ClusterView, _: PreflightFacts) -> str:
    if view.partitions is None:
        return "the partitions were not read"
    return f"{count_of(len(view.partitions), 'partition')} of {count_of(len({partition.topic for partition in view.partitions}), 'topic')}"


def _saw_topics(view: ClusterView, _: PreflightFacts) -> str:
    return "the topics were not read" if view.topics is None else count_of(len(topics_in_zookeeper(view)), "topic")


def _saw_zookeeper(view: ClusterView, facts: PreflightFacts) -> str:
    tree = facts.environment.tree
    if view.zk is None or tree is None:
        return "ZooKeeper's tree was not read"
    settings, users = sum(map(len, tree.broker_settings.values())), len(tree.scram_users)
    counts = (count_of(settings, "dynamic setting"), count_of(users, "SCRAM user"), count_of(len(tree.acls), "ACL"))
    return f"ZooKeeper's tree: {', '.join(counts)}"


def _saw_servers(_: ClusterView, facts: PreflightFacts) -> str:
    return f"{count_of(len(facts.environment.servers), 'server')} of the ensemble"


def _saw_configs(_: ClusterView, facts: PreflightFacts) -> str:
    read = sum(config is not None for config in facts.configs.values())
    return f"the running configuration of {read} of {count_of(len(facts.spec.brokers), 'broker')}"


def _saw_files(view: ClusterView, facts: PreflightFacts) -> str:
    read = len(zookeeper_broker_files(view))
    return f"the properties file of {read} of {count_of(len(facts.spec.brokers), 'broker')}"


def _saw_releases(_: ClusterView, facts: PreflightFacts) -> str:
    releases = sorted({release or "unknown" for release in facts.environment.releases.values()})
    named = f"; {facts.spec.kafka_release} in the cluster file" if facts.spec.kafka_release else ""
    return f"Kafka {summarize(releases)} reported by brokers{named}" if releases else f"no release was reported{named}"


def _saw_log_dirs(_: ClusterView, facts: PreflightFacts) -> str:
    known = [dirs for dirs in facts.environment.log_dirs.values() if dirs is not None]
    return f"{count_of(sum(map(len, known)), 'directory', 'directories')} of {count_of(len(known), 'broker')}"


def _saw_groups(view: ClusterView, _: PreflightFacts) -> str:
    return (
        "ZooKeeper was not read"
        if view.zk is None
        else f"{count_of(len(view.zk.live_groups), 'group')} with members in ZooKeeper"
    )


def _saw_machines(view: ClusterView, facts: PreflightFacts) -> str:
    nodes = [*facts.spec.nodes()]
    unread = {reason.node for reason in view.unknowns if reason.node} & {node.name for node in nodes}
    return f"the machines of {len(nodes) - len(unread)} of {count_of(len(nodes), 'node')}"


def _saw_certificates(_: ClusterView, facts: PreflightFacts) -> str:
    ends = [certificate.end for certificate in facts.environment.certificates.values() if certificate is not None]
    return f"{count_of(len(ends), 'listener')}, {sum(end != float('inf') for end in ends)} with a certificate"


def _saw_connections(_: ClusterView, facts: PreflightFacts) -> str:
    return f"kmigrate's own connections; towards ZooKeeper: {summarize(facts.connections.zookeeper) or 'neither TLS nor SASL'}"


def _saw_controllers(_: ClusterView, facts: PreflightFacts) -> str:
    return f"{count_of(len(facts.spec.controllers), 'controller')} in the cluster file"


_F, _K, _Z, _M, _S, _A = Owner.FILE, Owner.KAFKA, Owner.ZOOKEEPER, Owner.MACHINES, Owner.SECURITY, Owner.APPLICATIONS
#: Name of a check's function, without `_check_` -> what it looks at.
ROWS: Final[Mapping[str, CheckRow]] = {
    "unknowns": CheckRow("that ZooKeeper and every broker answer", _M, _saw_answers),
    "unread_hosts": CheckRow("that every node's machine reports its process and files", _M, _saw_machines),
    "unread_parts": CheckRow("that nothing else was left unread", _K, _saw_answers),
    "cluster_identity": CheckRow("that all of them are this cluster", _F, _saw_answers),
    "node_ids": CheckRow("ids of brokers and controllers", _F, _saw_nodes),
    "brokers_alive": CheckRow("that every broker runs, answers and is registered", _K, _saw_answers),
    "in_sync": CheckRow("ISRs and leaders", _K, _saw_partitions),
    "unfinished_work": CheckRow("unfinished reassignments and deletions", _K, _saw_zookeeper),
    "epochs": CheckRow("epochs of controllers and partition states", _K, _saw_partitions),
    "topic_ids": CheckRow("ids of topics", _K, _saw_topics),
    "leftovers": CheckRow("what an earlier migration left", _K, _saw_nodes),
    "files": CheckRow("brokers' properties files", _K, _saw_files),
    "running_configs": CheckRow("that files are what brokers have read", _K, _saw_configs),
    "made_at_start": CheckRow("files that a start writes", _M, _saw_files),
    "managed_files": CheckRow("marks of configuration management in files", _M, _saw_files),
    "protocol_versions": CheckRow("inter.broker.protocol.version", _K, _saw_configs),
    "releases": CheckRow("known defects of the releases", _K, _saw_releases),
    "token_defect": CheckRow("delegation tokens", _S, _saw_zookeeper),
    "protocol_behind": CheckRow("a protocol version behind the release", _K, _saw_configs),
    "log_dirs": CheckRow("log directories", _K, _saw_log_dirs),
    "tiered_storage": CheckRow("tiered storage", _K, _saw_configs),
    "ensemble_versions": CheckRow("the ensemble's versions", _Z, _saw_servers),
    "authorizers": CheckRow("authorizers", _S, _saw_configs),
    "acls": CheckRow("ACLs", _S, _saw_zookeeper),
    "rules_elsewhere": CheckRow("an authorizer's rules in another ZooKeeper", _S, _saw_configs),
    "users": CheckRow("users and their credentials", _S, _saw_zookeeper),
    "zookeeper_access": CheckRow("access to ZooKeeper", _S, _saw_zookeeper),
    "large_answers": CheckRow("large answers of ZooKeeper", _Z, _saw_topics),
    "passwords": CheckRow("passwords that only ZooKeeper holds", _S, _saw_zookeeper),
    "principal_builders": CheckRow("principal builders", _S, _saw_configs),
    "super_users": CheckRow("super users", _S, _saw_configs),
    "controllers_listener": CheckRow("the protection of the controllers' listener", _S, _saw_controllers),
    "brokers": CheckRow("the protection of brokers' listeners", _S, _saw_configs),
    "controllers": CheckRow("that controllers are protected as brokers are", _S, _saw_controllers),
    "connections": CheckRow("the protection of kmigrate's connections", _S, _saw_connections),
    "known_names": CheckRow("that controllers accept each other", _S, _saw_controllers),
    "logins": CheckRow("logins between nodes", _S, _saw_files),
    "zookeeper_address": CheckRow("the address of ZooKeeper for controllers", _F, _saw_files),
    "chroots": CheckRow("the chroot", _F, _saw_files),
    "classes": CheckRow("classes that nodes load", _K, _saw_files),
    "unknown_keys": CheckRow("keys that no release reads", _K, _saw_files),
    "ending_keys": CheckRow("keys and classes that end with Kafka 4", _K, _saw_files),
    "ending_settings": CheckRow("settings of topics and dynamic ones that end with Kafka 4", _K, _saw_zookeeper),
    "authorizer_settings": CheckRow("an authorizer's settings", _S, _saw_files),
    "key_stores": CheckRow("key and trust stores", _S, _saw_files),
    "own_values": CheckRow("logins and certificates that are one broker's own", _S, _saw_files),
    "rendered_file": CheckRow("that the controllers' file can be written", _F, _saw_controllers),
    "agreement": CheckRow("that brokers agree in what must be alike", _K, _saw_configs),
    "dynamic_listeners": CheckRow("listeners that are only dynamic", _K, _saw_zookeeper),
    "dynamic_thread_pools": CheckRow("dynamic numbers of threads", _K, _saw_zookeeper),
    "zookeeper_tree": CheckRow("malformed znodes", _Z, _saw_zookeeper),
    "reassignments": CheckRow("reassignments through the API", _K, _saw_partitions),
    "throttles": CheckRow("throttles", _K, _saw_zookeeper),
    "dynamic_settings": CheckRow("dynamic settings of brokers", _K, _saw_zookeeper),
    "policies": CheckRow("policies for topics", _K, _saw_configs),
    "groups": CheckRow("consumer groups that use ZooKeeper", _A, _saw_groups),
    "storm_spouts": CheckRow("Storm spouts that keep their offsets in ZooKeeper", _A, _saw_zookeeper),
    "stop_timeouts": CheckRow("time limits of stops", _M, _saw_machines),
    "clocks": CheckRow("clocks", _M, _saw_machines),
    "other_tools": CheckRow("other tools that change the cluster", _A, _saw_zookeeper),
    "directories": CheckRow("meta.properties of every directory", _K, _saw_machines),
    "restart_loops": CheckRow("units that end again and again", _M, _saw_machines),
    "controller_places": CheckRow("places of controllers: directories, files, ports", _M, _saw_controllers),
    "stops": CheckRow("that a stop ends one node alone", _M, _saw_machines),
    "dependents": CheckRow("units that stop with Kafka's", _M, _saw_machines),
    "conflicts": CheckRow("units that exclude each other", _M, _saw_machines),
    "folders": CheckRow("whether units may write where controllers must", _M, _saw_machines),
    "zookeeper_needs": CheckRow("units that need ZooKeeper's", _M, _saw_machines),
    "started_file": CheckRow("with which file nodes were started", _M, _saw_machines),
    "overrides": CheckRow("settings that units add to the file", _M, _saw_machines),
    "software": CheckRow("the release and the Java on each disk", _M, _saw_machines),
    "switches": CheckRow("switches of Java that brokers have and controllers do not", _M, _saw_machines),
    "unread_arguments": CheckRow("files of Java's arguments and logins", _M, _saw_machines),
    "zookeeper_section": CheckRow("the login towards ZooKeeper in JAAS files", _S, _saw_machines),
    "keytabs": CheckRow("who may read keytabs", _S, _saw_machines),
    "topic_ids_on_disk": CheckRow("ids of topics in directories", _K, _saw_machines),
    "room": CheckRow("room for the metadata log", _M, _saw_log_dirs),
    "certificates": CheckRow("until when certificates are valid", _S, _saw_certificates),
    "addresses": CheckRow("addresses of nodes", _F, _saw_nodes),
    "connection_limits": CheckRow("limits of connections at the controllers", _K, _saw_files),
    "clean_stops": CheckRow("that brokers move their leaders before they stop", _K, _saw_configs),
    "coordinators": CheckRow("partition counts of coordinators' topics", _K, _saw_partitions),
    "replication": CheckRow("replicas of partitions", _K, _saw_partitions),
    "quorum_size": CheckRow("the number of controllers", _F, _saw_controllers),
}


def row_of(check: Callable[..., object]) -> CheckRow:
    """The row of a check. Raises KeyError if it has none."""
    return ROWS[check.__name__.removeprefix("_check_")]
