"""Preflight's checks of protection: certificates that are not verified, passwords without TLS, listeners in plaintext.

What brokers have stays as it is, so it is a warning. What kmigrate adds must not be weaker, unless the cluster file confirms it: the
controllers' listener, and kmigrate's own connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_provider_kmigrate.core.files.config_matrix import (
    inter_broker_listener,
    is_true,
    listener_names,
    listener_prefix,
    listener_setting,
    references,
)
from airflow_provider_kmigrate.core.model import ClusterView
from airflow_provider_kmigrate.core.preflight.controllers import MECHANISM, Rendered, rendered, security_of
from airflow_provider_kmigrate.core.preflight.findings import (
    Check,
    PreflightFacts,
    PreflightFinding,
    blocks,
    refused,
    warns,
    zookeeper_files,
)
from airflow_provider_kmigrate.core.text import summarize

Keys = Mapping[str, str]
_ALGORITHM = "ssl.endpoint.identification.algorithm"
_MECHANISMS = "sasl.enabled.mechanisms"
_CLIENT_AUTH = "ssl.client.auth"
_VERIFYING = frozenset({"https", "ldaps"})  # as Java knows them; with an empty value it accepts any host name


def _controllers_listener(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    spec, files = facts.spec, zookeeper_files(view)
    named = {broker: security_of(keys, spec.controller_listener) for broker, keys in files.items()}
    # Its own name: no file says anything of it. PLAINTEXT: the cluster file cannot protect it less, and is what is rendered.
    ours = {spec.controller_listener, spec.controller_security, "PLAINTEXT"}
    if other := [f"broker {broker} {protocol}" for broker, protocol in named.items() if protocol not in ours]:
        text = f"the listener {spec.controller_listener} is {spec.controller_security} in the cluster file, in brokers' files it is not"
        yield blocks("B9e", f"{text}: {summarize(other)}")
    plain = [broker for broker, keys in files.items() if _between(keys) == "PLAINTEXT"]
    if files and not plain and spec.controller_security == "PLAINTEXT" and not spec.controller_security_written:
        yield blocks(
            "B9e",
            "no broker is PLAINTEXT towards the others, but the controllers' listener would be, because the cluster file says nothing of it",
        )


def _of_brokers(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    """What brokers have now; the migration does not change it."""
    files = zookeeper_files(view)
    if any_name := [f"broker {broker}" for broker, keys in files.items() if not _verifies_brokers(keys)]:
        yield warns("B9f", f"brokers do not verify each other's host names ({_ALGORITHM}): {summarize(any_name)}")
    if any_name := [f"broker {broker}" for broker, keys in files.items() if not _verifies_zookeeper(keys)]:
        yield warns("B9f", f"brokers do not verify ZooKeeper's host names (zookeeper.{_ALGORITHM}): {summarize(any_name)}")
    plain = {broker: [name for name in listener_names(keys) if _sends_passwords(keys, name)] for broker, keys in files.items()}
    if listed := [f"{', '.join(names)} of broker {broker}" for broker, names in plain.items() if names]:
        yield warns("B9f", f"listeners with PLAIN, but without TLS: {summarize(listed)}")


def _of_controllers(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """The listener that kmigrate renders, compared with the one between brokers."""
    there = rendered(view, facts)
    if there is None:
        return
    _, _, source = there.nodes[0]
    if _identifies(source, inter_broker_listener(source)) and _serves_anyone(there.controllers, there.listener):
        text = f"the controllers' listener would be SSL for clients without a certificate ({_CLIENT_AUTH}), between brokers it is {_between(source)}"
        yield (warns if _written(facts, there, _CLIENT_AUTH) else blocks)("B9f", text)
    if _sends_passwords(there.controllers, there.listener):
        weaker = _has_protection(source) and not _written(facts, there, MECHANISM, _MECHANISMS)
        text = f"the controllers' listener would be SASL_PLAINTEXT with PLAIN ({MECHANISM}), between brokers it is {_between(source)}"
        yield (blocks if weaker else warns)("B9f", text)
    if security_of(there.controllers, there.listener).endswith("SSL"):
        yield from _unverified(facts, there)


def _unverified(facts: PreflightFacts, there: Rendered) -> Iterator[PreflightFinding]:
    unverified = {who: file for who, keys, file in there.nodes if not _verifies(keys, there.listener)}
    weaker = [who for who, file in unverified.items() if _between(file).endswith("SSL") and _verifies_brokers(file)]
    if weaker and not _written(facts, there, _ALGORITHM):
        yield blocks(
            "B9f", f"host names of controllers would not be verified, unlike brokers' ({_ALGORITHM}), by {summarize(weaker)}"
        )
    elif unverified:
        yield warns("B9f", f"host names of controllers will not be verified ({_ALGORITHM}), by {summarize(unverified)}")


def _of_connections(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Connections of kmigrate; a section of the cluster file may confirm that one does not verify host names."""
    yield from refused(facts.connections.refused, "Airflow's HTTP connections")
    found, said = facts.connections.unverified, facts.spec.unverified
    if silent := sorted(found - said):
        yield blocks("B9f", f"kmigrate's own connections would not verify host names: {summarize(silent)}")
    if confirmed := sorted(found & said):
        yield warns(
            "B9f", f"kmigrate's own connections do not verify host names, as the cluster file says: {summarize(confirmed)}"
        )
    if readable := sorted(facts.connections.readable):
        yield warns("B9f", f"kmigrate's own connections send their password without TLS: {summarize(readable)}")
    if facts.connections.anonymous and not facts.environment.one_machine:
        yield warns(
            "W22", "kmigrate's connection to ZooKeeper has no identity: any client of ZooKeeper may write below /_kmigrate"
        )
    tree = facts.environment.tree
    if not facts.connections.anonymous and tree is not None and tree.open_root:
        yield warns("W22", f"any client of ZooKeeper may write {tree.open_root}, although kmigrate's connection has an identity")


def _verifies(keys: Keys, listener: str) -> bool:
    """Whether a client with these keys verifies host names on a TLS listener: an empty value, and no other, switches it off."""
    value = keys.get(listener_prefix(listener) + _ALGORITHM, keys.get(_ALGORITHM))
    return value is None or bool(references(value)) or value.strip().lower() in _VERIFYING


def _verifies_brokers(keys: Keys) -> bool:
    listener = inter_broker_listener(keys)
    return not security_of(keys, listener).endswith("SSL") or _verifies(keys, listener)


def _verifies_zookeeper(keys: Keys) -> bool:
    """Anything but `https` switches it off (KafkaConfig.setZooKeeperClientProperty)."""
    value = keys.get(f"zookeeper.{_ALGORITHM}")
    off = value is not None and not references(value) and value.strip().lower() != "https"
    return not (off and is_true(keys, "zookeeper.ssl.client.enable"))


def _sends_passwords(keys: Keys, listener: str) -> bool:
    """Whether clients may log in with PLAIN on a listener without TLS."""
    enabled = listener_setting(keys, listener, _MECHANISMS) or "GSSAPI"
    return security_of(keys, listener) == "SASL_PLAINTEXT" and "PLAIN" in {name.strip().upper() for name in enabled.split(",")}


def _identifies(keys: Keys, listener: str) -> bool:
    """Whether a listener serves only clients that log in, or have a certificate."""
    auth = listener_setting(keys, listener, _CLIENT_AUTH) or "none"
    security = security_of(keys, listener)
    return security.startswith("SASL") or (security == "SSL" and (bool(references(auth)) or auth.lower() == "required"))


def _serves_anyone(keys: Keys, listener: str) -> bool:
    """Whether a listener has TLS, but identifies no client; B9e checks one in plaintext."""
    return security_of(keys, listener) == "SSL" and not _identifies(keys, listener)


def _between(keys: Keys) -> str:
    return security_of(keys, inter_broker_listener(keys))


def _has_protection(keys: Keys) -> bool:
    """Whether brokers log in to each other, or use TLS, without a password in plain text."""
    return _between(keys) != "PLAINTEXT" and not _sends_passwords(keys, inter_broker_listener(keys))


def _written(facts: PreflightFacts, there: Rendered, *keys: str) -> bool:
    """Whether `quorum.properties` names one of these keys, for all listeners or the controllers': it is meant."""
    prefix = listener_prefix(there.listener)
    return any(name in facts.spec.controller_properties for key in keys for name in (key, prefix + key))


CHECKS: tuple[Check, ...] = (_controllers_listener, _of_brokers, _of_controllers, _of_connections)
