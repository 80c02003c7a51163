"""Preflight's checks of protection: certificates that are not verified, passwords without TLS, listeners in plaintext.

What brokers have stays as it is, so it is a warning. What kmigrate adds must not be weaker, unless the cluster file confirms it: the
controllers' listener, and kmigrate's own connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView
from airflow_provider_kmigrate.core.node_files.config_matrix import (
    find_references,
    inter_broker_listener,
    is_true,
    listener_key_prefix,
    listener_names,
    read_listener_setting,
)
from airflow_provider_kmigrate.core.preflight.controllers import MECHANISM, Rendered, render_future_keys, security_of
from airflow_provider_kmigrate.core.preflight.findings import (
    Check,
    PreflightFacts,
    PreflightFinding,
    blockers_from_reasons,
    blocks,
    warns,
    zookeeper_broker_files,
)
from airflow_provider_kmigrate.core.shared.text import summarize

Keys = Mapping[str, str]
_ALGORITHM = "ssl.endpoint.identification.algorithm"
_MECHANISMS = "sasl.enabled.mechanisms"
_CLIENT_AUTH = "ssl.client.auth"
_VERIFYING = frozenset({"https", "ldaps"})  # as Java knows them; with an empty value it accepts any host name


def _check_controllers_listener(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    spec, files = facts.spec, zookeeper_broker_files(view)
    # A listener of that name that a broker opens is its own, such as the one of `control.plane.listener.name`: C04 says so.
    security_by_broker = {
        broker: security_of(keys, spec.controller_listener)
        for broker, keys in files.items()
        if spec.controller_listener.upper() not in listener_names(keys)
    }
    # Its own name: no file says anything of it. PLAINTEXT: the cluster file cannot protect it less, and is what is rendered.
    expected_protocols = {spec.controller_listener, spec.controller_security, "PLAINTEXT"}
    if differing := [
        f"broker {broker} {protocol}" for broker, protocol in security_by_broker.items() if protocol not in expected_protocols
    ]:
        text = f"the listener {spec.controller_listener} is {spec.controller_security} in the cluster file, in brokers' files it is not"
        yield blocks("B9e", f"{text}: {summarize(differing)}")
    plain = [broker for broker, keys in files.items() if _security_between_brokers(keys) == "PLAINTEXT"]
    if files and not plain and spec.controller_security == "PLAINTEXT" and not spec.controller_security_written:
        yield blocks(
            "B9e",
            "no broker is PLAINTEXT towards the others, but the controllers' listener would be, because the cluster file says nothing of it",
        )


def _check_brokers(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    """What brokers have now; the migration does not change it."""
    files = zookeeper_broker_files(view)
    if any_name := [f"broker {broker}" for broker, keys in files.items() if not _verifies_brokers(keys)]:
        yield warns("B9f", f"brokers do not verify each other's host names ({_ALGORITHM}): {summarize(any_name)}")
    if any_name := [f"broker {broker}" for broker, keys in files.items() if not _verifies_zookeeper(keys)]:
        yield warns("B9f", f"brokers do not verify ZooKeeper's host names (zookeeper.{_ALGORITHM}): {summarize(any_name)}")
    plain = {broker: [name for name in listener_names(keys) if _sends_passwords(keys, name)] for broker, keys in files.items()}
    if listed := [f"{', '.join(names)} of broker {broker}" for broker, names in plain.items() if names]:
        yield warns("B9f", f"listeners with PLAIN, but without TLS: {summarize(listed)}")


def _check_controllers(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """The listener that kmigrate renders, compared with the one between brokers."""
    future = render_future_keys(view, facts)
    if future is None:
        return
    _, _, source = future.nodes[0]
    if _identifies_clients(source, inter_broker_listener(source)) and _serves_anyone(future.controllers, future.listener):
        text = f"the controllers' listener would be SSL for clients without a certificate ({_CLIENT_AUTH}), between brokers it is {_security_between_brokers(source)}"
        yield (warns if _is_stated_in_quorum(facts, future, _CLIENT_AUTH) else blocks)("B9f", text)
    if _sends_passwords(future.controllers, future.listener):
        weaker = _has_protection(source) and not _is_stated_in_quorum(facts, future, MECHANISM, _MECHANISMS)
        text = f"the controllers' listener would be SASL_PLAINTEXT with PLAIN ({MECHANISM}), between brokers it is {_security_between_brokers(source)}"
        yield (blocks if weaker else warns)("B9f", text)
    if security_of(future.controllers, future.listener).endswith("SSL"):
        yield from _check_host_names(facts, future)


def _check_host_names(facts: PreflightFacts, future: Rendered) -> Iterator[PreflightFinding]:
    unverified = {node_name: file for node_name, keys, file in future.nodes if not _verifies_host_names(keys, future.listener)}
    weaker = [
        node_name
        for node_name, file in unverified.items()
        if _security_between_brokers(file).endswith("SSL") and _verifies_brokers(file)
    ]
    if weaker and not _is_stated_in_quorum(facts, future, _ALGORITHM):
        yield blocks(
            "B9f", f"host names of controllers would not be verified, unlike brokers' ({_ALGORITHM}), by {summarize(weaker)}"
        )
    elif unverified:
        yield warns("B9f", f"host names of controllers will not be verified ({_ALGORITHM}), by {summarize(unverified)}")


def _check_connections(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Connections of kmigrate; a section of the cluster file may confirm that one does not verify host names."""
    yield from blockers_from_reasons(facts.connections.refused, "Airflow's HTTP connections")
    unverified_connections, confirmed_in_file = facts.connections.unverified, facts.spec.unverified
    if unconfirmed_connections := sorted(unverified_connections - confirmed_in_file):
        yield blocks("B9f", f"kmigrate's own connections would not verify host names: {summarize(unconfirmed_connections)}")
    if confirmed := sorted(unverified_connections & confirmed_in_file):
        yield warns(
            "B9f", f"kmigrate's own connections do not verify host names, as the cluster file says: {summarize(confirmed)}"
        )
    if readable := sorted(facts.connections.readable):
        yield warns("B9f", f"kmigrate's own connections send their password without TLS: {summarize(readable)}")
    if facts.connections.librdkafka_without_kerberos:
        audit = facts.spec.audit
        users = "the probe and the audit" if audit and audit.probe else "the audit" if audit else ""
        text = "the connection to Kafka is GSSAPI, and the librdkafka of this Python was built without it (No provider for SASL mechanism GSSAPI)"
        yield (
            blocks("B21", f"{text}: {users} could not connect")
            if users
            else warns("B21", f"{text}: nothing else of it is used here")
        )
    if facts.connections.anonymous and not facts.environment.one_machine:
        yield warns(
            "W22", "kmigrate's connection to ZooKeeper has no identity: any client of ZooKeeper may write below /_kmigrate"
        )
    tree = facts.environment.tree
    others = tree.others if tree is not None else None
    if others and others.who:
        yield blocks("H14", f"{others}, who is not kmigrate")
    elif others and not facts.connections.anonymous:
        yield warns("W22", f"{others}, although kmigrate's connection has an identity")


def _verifies_host_names(keys: Keys, listener: str) -> bool:
    """Whether a client with these keys verifies host names on a TLS listener: an empty value, and no other, switches it off."""
    value = keys.get(listener_key_prefix(listener) + _ALGORITHM, keys.get(_ALGORITHM))
    return value is None or bool(find_references(value)) or value.strip().lower() in _VERIFYING


def _verifies_brokers(keys: Keys) -> bool:
    listener = inter_broker_listener(keys)
    return not security_of(keys, listener).endswith("SSL") or _verifies_host_names(keys, listener)


def _verifies_zookeeper(keys: Keys) -> bool:
    """Anything but `https` switches it off (KafkaConfig.setZooKeeperClientProperty)."""
    value = keys.get(f"zookeeper.{_ALGORITHM}")
    off = value is not None and not find_references(value) and value.strip().lower() != "https"
    return not (off and is_true(keys, "zookeeper.ssl.client.enable"))


def _sends_passwords(keys: Keys, listener: str) -> bool:
    """Whether clients may log in with PLAIN on a listener without TLS."""
    enabled = read_listener_setting(keys, listener, _MECHANISMS) or "GSSAPI"
    return security_of(keys, listener) == "SASL_PLAINTEXT" and "PLAIN" in {name.strip().upper() for name in enabled.split(",")}


def _identifies_clients(keys: Keys, listener: str) -> bool:
    """Whether a listener serves only clients that log in, or have a certificate."""
    auth = read_listener_setting(keys, listener, _CLIENT_AUTH) or "none"
    security = security_of(keys, listener)
    return security.startswith("SASL") or (security == "SSL" and (bool(find_references(auth)) or auth.lower() == "required"))


def _serves_anyone(keys: Keys, listener: str) -> bool:
    """Whether a listener has TLS, but identifies no client; B9e checks one in plaintext."""
    return security_of(keys, listener) == "SSL" and not _identifies_clients(keys, listener)


def _security_between_brokers(keys: Keys) -> str:
    return security_of(keys, inter_broker_listener(keys))


def _has_protection(keys: Keys) -> bool:
    """Whether brokers log in to each other, or use TLS, without a password in plain text."""
    return _security_between_brokers(keys) != "PLAINTEXT" and not _sends_passwords(keys, inter_broker_listener(keys))


def _is_stated_in_quorum(facts: PreflightFacts, future: Rendered, *keys: str) -> bool:
    """Whether `quorum.properties` names one of these keys, for all listeners or the controllers': it is meant."""
    prefix = listener_key_prefix(future.listener)
    return any(name in facts.spec.controller_properties for key in keys for name in (key, prefix + key))


CHECKS: tuple[Check, ...] = (_check_controllers_listener, _check_brokers, _check_controllers, _check_connections)
