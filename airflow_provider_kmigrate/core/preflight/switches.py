"""Preflight's checks of Java's switches (`-D`): what brokers have from their command lines alone, and controllers would run without.

A controller in a migration connects to ZooKeeper as the brokers do. Of TLS a properties file may say the same, and wins (KafkaConfig).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.node_files.config_matrix import read_setting
from airflow_provider_kmigrate.core.preflight.actors import find_process
from airflow_provider_kmigrate.core.preflight.findings import (
    Check,
    PreflightFacts,
    PreflightFinding,
    blocks,
    has_migration_begun,
    topics_in_zookeeper,
    unknown,
    warns,
    zookeeper_broker_files,
)
from airflow_provider_kmigrate.core.preflight.jaas import JAAS_SWITCH
from airflow_provider_kmigrate.core.shared.text import join_ids, summarize

_IN_FILES = {
    "zookeeper.client.secure": "zookeeper.ssl.client.enable",
    "zookeeper.clientCnxnSocket": "zookeeper.clientCnxnSocket",
    "zookeeper.ssl.keyStore.location": "zookeeper.ssl.keystore.location",
    "zookeeper.ssl.keyStore.password": "zookeeper.ssl.keystore.password",
    "zookeeper.ssl.keyStore.type": "zookeeper.ssl.keystore.type",
    "zookeeper.ssl.trustStore.location": "zookeeper.ssl.truststore.location",
    "zookeeper.ssl.trustStore.password": "zookeeper.ssl.truststore.password",
    "zookeeper.ssl.trustStore.type": "zookeeper.ssl.truststore.type",
    "zookeeper.ssl.protocol": "zookeeper.ssl.protocol",
    "zookeeper.ssl.enabledProtocols": "zookeeper.ssl.enabled.protocols",
    "zookeeper.ssl.ciphersuites": "zookeeper.ssl.cipher.suites",
    "zookeeper.ssl.hostnameVerification": "zookeeper.ssl.endpoint.identification.algorithm",
    "zookeeper.ssl.crl": "zookeeper.ssl.crl.enable",
    "zookeeper.ssl.ocsp": "zookeeper.ssl.ocsp.enable",
}
"""Switches, and the keys of properties files that say the same (KafkaConfig.ZkSslConfigToSystemPropertyMap)."""

_JUTE = "jute.maxbuffer"
_JUTE_DEFAULT = 0xFFFFF  # bytes; of a client without the switch (ZKClientConfig, 3.6 and later)
_ASKED_FROM = 1_000_000  # bytes; the sizes are computed, not measured
_TOWARDS_ZOOKEEPER = re.compile(r"(?:zookeeper|jute)\..*")


def _check_switches(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    brokers = {node.id: _switches_of(view, node) for node in facts.spec.brokers}
    running = {broker: switches for broker, switches in brokers.items() if switches is not None}
    needed = {name: switches[name] for switches in reversed(running.values()) for name in switches}
    differing = sorted(name for name in needed if len({switches.get(name) for switches in running.values()}) > 1)
    if differing:
        yield warns(
            "B10c", f"brokers run with different switches of Java: {_format_switches({name: needed[name] for name in differing})}"
        )
    missing: dict[tuple[str, ...], list[NodeSpec]] = {}
    for controller in facts.spec.controllers:
        missing.setdefault(_find_missing(view, facts, controller, needed), []).append(controller)
    for names, controllers in missing.items():
        if names:
            yield from _judge(view, facts, {name: needed[name] for name in names}, controllers)


def _check_unread_arguments(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """What a file of Java's arguments or a JAAS file sets is not known if it was not read; so it is in no other finding."""
    processes = {node.name: find_process(view, node).software for node in facts.spec.nodes()}
    if unread := [f"{path} of {name}" for name, software in processes.items() if software for path in software.unread]:
        yield unknown("B10c", f"files of Java's arguments or logins that were not read: {summarize(unread)}")


def _switches_of(view: ClusterView, node: NodeSpec) -> Mapping[str, str] | None:
    """What Java runs with; None if it is not known. Of a node that does not run: what its service sets."""
    software = find_process(view, node).software
    return software.switches if software else None


def _find_missing(view: ClusterView, facts: PreflightFacts, controller: NodeSpec, needed: Mapping[str, str]) -> tuple[str, ...]:
    """The switches that neither a controller's service nor its file, or what that inherits, has; also with another yes, no or number."""
    own = _switches_of(view, controller) or {}
    observed = view.controllers.get(controller.id)
    files = (
        (observed.files.properties or {}) if observed else {},
        facts.spec.controller_properties,
        *zookeeper_broker_files(view).values(),
    )
    return tuple(
        sorted(
            name
            for name, value in needed.items()
            if not any(read_setting(file, _IN_FILES.get(name, name)) is not None for file in files)
            and (name not in own or (_is_comparable(value) and own[name].lower() != value.lower()))
        )
    )


def _is_comparable(value: str) -> bool:
    """Whether two machines must have the same value: no path, which each machine has its own of, and no hidden one."""
    return "/" not in value and value != "..."


def _judge(
    view: ClusterView, facts: PreflightFacts, missing: Mapping[str, str], controllers: Iterable[NodeSpec]
) -> Iterator[PreflightFinding]:
    """A controller that runs without them shows it; of another one a start script may set what its service does not show."""
    tree = facts.environment.tree
    by_login = bool(tree and "sasl" in tree.guarded) or "SASL" in facts.connections.zookeeper
    is_needed = any(_TOWARDS_ZOOKEEPER.fullmatch(name) or (name == JAAS_SWITCH and by_login) for name in missing)
    runs = {controller: find_process(view, controller).state is ProcessState.RUNNING for controller in controllers}
    is_shown = {controller: runs[controller] and _switches_of(view, controller) is not None for controller in runs}
    if without := [
        controller.id for controller, shown in is_shown.items() if shown and is_needed and not has_migration_begun(view)
    ]:
        yield blocks("B10c", _describe(missing, f"controllers {join_ids(without)} run without"))
    if unclear := [controller.id for controller, shown in is_shown.items() if not shown]:
        yield unknown("B10c", _describe(missing, f"the services of controllers {join_ids(unclear)} do not show them"))


def _describe(missing: Mapping[str, str], observed: str) -> str:
    switches = _format_switches(missing)
    return f'brokers run with {switches}, {observed}; the line for each one\'s unit: Environment="KAFKA_OPTS={switches}"'


def _format_switches(switches: Mapping[str, str]) -> str:
    return " ".join(f"-D{name}={value}" if value else f"-D{name}" for name, value in sorted(switches.items()))


def _check_large_answers(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """What Kafka reads from ZooKeeper in one answer, the list of topics and the partitions of one, against the controllers' limit."""
    topics = topics_in_zookeeper(view)
    names = sum(len(name.encode()) + 4 for name in topics)
    largest = max((sum(14 + 6 * len(p.replicas) for p in topic.partitions.values()) for topic in topics.values()), default=0)
    if (size := max(names, largest)) <= _ASKED_FROM:
        return
    limits = {node.id: _limit_of_answers(view, node) for node in facts.spec.controllers}
    text = f"an answer of ZooKeeper takes about {size:,} bytes"
    if below := [controller for controller, limit in limits.items() if limit is not None and limit < size]:
        yield blocks("B10b", f"{text}; controllers {join_ids(below)} run with a lower limit (-D{_JUTE})")
    if unclear := [controller for controller, limit in limits.items() if limit is None]:
        yield unknown("B10b", f"{text}; the limit of controllers {join_ids(unclear)} is unknown")


def _limit_of_answers(view: ClusterView, controller: NodeSpec) -> int | None:
    """In bytes; None if it is not known. A start script may set what the service of a node that does not run does not show."""
    switches = _switches_of(view, controller)
    if switches is None or (_JUTE not in switches and find_process(view, controller).state is not ProcessState.RUNNING):
        return None
    try:
        return int(switches[_JUTE], 0) if _JUTE in switches else _JUTE_DEFAULT
    except ValueError:
        return None


CHECKS: tuple[Check, ...] = (_check_switches, _check_unread_arguments, _check_large_answers)
